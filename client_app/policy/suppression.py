"""What a site tells of few patients: less."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from edelweiss.client_app.policy.rules import Policy
    from edelweiss.config import RunConfig
    from edelweiss.datasets import Facts, Samples, SiteData


def few(count: float, fewest: int) -> bool:
    """Whether a count is one of a small group. A group of nobody is none."""
    return 0 < count < fewest


def patients(data: SiteData, samples: Samples) -> int:
    """Return of how many patients samples are; where no column says whose a row is, each is another's."""
    if not data.by_patient:
        return len(samples)
    assert data.patient_ids is not None, "a hospital's own data say whose each row is"
    return len(np.unique(data.patient_ids[samples.rows.numpy()]))


def few_of_a_class(counts: Sequence[int], policy: Policy) -> bool:
    """Whether there is a class with few patients."""
    return any(few(count, policy.fewest_of_each_class) for count in counts)


def counts_by_class(labels: Tensor, classes: int) -> list[int]:
    """Return how many samples there are of each class; of several labels those of all, where they are known."""
    if labels.ndim > 1:
        return [int((own == kind).sum()) for own in labels.T for kind in range(classes)]
    return labels.bincount(minlength=classes).tolist()


def hidden_labels(data: SiteData, policy: Policy) -> tuple[int, ...]:
    """Return which of several labels are not evaluated: of few held-out samples, or few of one of their classes."""
    if data.held_out.labels.ndim == 1:
        return ()
    known = [own[own >= 0] for own in data.held_out.targets().T]
    return tuple(
        place
        for place, own in enumerate(known)
        if few(len(own), policy.fewest_held_out) or few_of_a_class(counts_by_class(own, data.classes), policy)
    )


def no_evaluation(data: SiteData, policy: Policy) -> str:
    """Return why a site sends no evaluation, in words; empty when it does, or has nobody to evaluate on."""
    if few(patients(data, data.held_out), policy.fewest_held_out):
        return f"no evaluation: fewer than {policy.fewest_held_out} patients are held out here"
    labels = data.held_out.targets()
    if labels.ndim > 1:
        hides_all = len(labels) > 0 and len(hidden_labels(data, policy)) == labels.shape[1]
        return "no evaluation: of each label too few samples are held out here" if hides_all else ""
    if few_of_a_class(counts_by_class(labels, data.classes), policy):
        return f"no evaluation: of a class fewer than {policy.fewest_of_each_class} samples are held out here"
    return ""


def protected(facts: Facts, data: SiteData, policy: Policy) -> Facts:
    """Return what a site tells before a run, with less of what few patients have.

    A count of few is told as the fewest that is told exactly; counts per class are left out when one of them is small;
    the sums of a feature that few have are left out, as if nobody had it. The notes say so.
    """
    notes = [text] if (text := no_evaluation(data, policy)) else []
    changes: dict[str, object] = {}
    if few(patients(data, data.held_out), policy.fewest_held_out):
        changes["held_out"] = policy.fewest_held_out
    fewest, counts = policy.fewest_of_each_class, counts_by_class(data.train.targets(), data.classes)
    if facts.label_counts:
        told_labels = [_few_told(*pair, fewest) for pair in zip(facts.label_counts, facts.label_positives, strict=True)]
        if few_of_a_class(counts, policy):
            notes.append(f"of labels that have fewer than {fewest} training samples of a class here, {fewest} are told")
        if unjudged := hidden_labels(data, policy):
            which = f"{len(unjudged)} of {len(facts.label_counts)} labels"
            notes.append(f"no evaluation of {which}: too few samples, or too few of a class, are held out here")
        changes["label_counts"], changes["label_positives"] = zip(*told_labels, strict=True)
    elif few_of_a_class(counts, policy):
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


def _few_told(known: int, positives: int, fewest: int) -> tuple[int, int]:
    """Return of how many samples a label is known and of how many it is positive, neither class of few."""
    classes = (known - positives, positives)
    negatives, positives = (fewest if few(count, fewest) else count for count in classes)
    return negatives + positives, positives


def otherwise(run: RunConfig, policy: Policy) -> tuple[str, ...]:
    """Return what a site does otherwise than a run asks, where it does not refuse; in words."""
    if run.folds or run.holdout_share == policy.holdout_share:
        return ()
    return (
        f"holdout-share = {policy.holdout_share:g}, not {run.holdout_share:g}: who is held out is this site's decision",
    )
