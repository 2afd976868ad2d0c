"""What a site tells of few patients: less."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from client_app.policy.rules import Policy
    from config import RunConfig
    from datasets import Facts, SiteData


def few(count: float, fewest: int) -> bool:
    """Whether a count is one of a small group. A group of nobody is none."""
    return 0 < count < fewest


def few_of_a_class(counts: Sequence[int], policy: Policy) -> bool:
    """Whether there is a class with few patients."""
    return any(few(count, policy.fewest_of_each_class) for count in counts)


def counts_by_class(labels: Tensor, classes: int) -> list[int]:
    """Return how many samples there are of each class."""
    return labels.bincount(minlength=classes).tolist()


def no_evaluation(data: SiteData, policy: Policy) -> str:
    """Return why a site sends no evaluation, in words; empty when it does, or has nobody to evaluate on."""
    if few(len(data.held_out), policy.fewest_held_out):
        return f"no evaluation: fewer than {policy.fewest_held_out} samples are held out here"
    if few_of_a_class(counts_by_class(data.held_out.targets(), data.classes), policy):
        return f"no evaluation: of a class fewer than {policy.fewest_of_each_class} samples are held out here"
    return ""


def protected(facts: Facts, data: SiteData, policy: Policy) -> Facts:
    """Return what a site tells before a run, with less of what few patients have.

    A count of few is told as the fewest that is told exactly; counts per class are left out when one of them is small;
    the sums of a feature that few have are left out, as if nobody had it. The notes say so.
    """
    notes = [text] if (text := no_evaluation(data, policy)) else []
    changes: dict[str, object] = {}
    if few(len(data.held_out), policy.fewest_held_out):
        changes["held_out"] = policy.fewest_held_out
    fewest, counts = policy.fewest_of_each_class, counts_by_class(data.train.targets(), data.classes)
    if few_of_a_class(counts, policy):
        if facts.positives is None:
            notes.append(f"no counts per class: there are fewer than {fewest} training samples of a class here")
        else:
            notes.append(f"of a class there are fewer than {fewest} training samples here, told as {fewest}")
            told = fewest if few(counts[1], fewest) else len(data.train) - fewest
            changes["positives"] = told
    if facts.class_counts and few_of_a_class(counts, policy):
        changes["class_counts"] = ()
    if facts.held_out_counts and no_evaluation(data, policy):
        changes["held_out_counts"] = ()
    hidden = [few(count, policy.fewest_training) for count in facts.count]
    if any(hidden):
        notes.append(f"no sums of {sum(hidden)} features: fewer than {policy.fewest_training} samples have them here")
        for name in ("count", "total", "squares"):
            sums = getattr(facts, name)
            changes[name] = tuple(0.0 if hide else value for value, hide in zip(sums, hidden, strict=True))
        changes["missing"] = facts.missing + int(sum(c for c, hide in zip(facts.count, hidden, strict=True) if hide))
    return replace(facts, **changes, notes=(*facts.notes, *notes))  # type: ignore[arg-type]


def otherwise(run: RunConfig, policy: Policy) -> tuple[str, ...]:
    """Return what a site does otherwise than a run asks, where it does not refuse; in words."""
    if run.folds or run.holdout_share == policy.holdout_share:
        return ()
    return (
        f"holdout-share = {policy.holdout_share:g}, not {run.holdout_share:g}: who is held out is this site's decision",
    )
