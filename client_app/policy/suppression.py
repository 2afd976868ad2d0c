"""Small-cell suppression in the facts that a site reports."""

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
    """Whether a count is small but not 0."""
    return 0 < count < fewest


def patients(data: SiteData, samples: Samples) -> int:
    """Count the patients of samples; without a patient column, each sample is a patient."""
    if not data.by_patient:
        return len(samples)
    assert data.patient_ids is not None, "a hospital's own data have patient ids"
    return len(np.unique(data.patient_ids[samples.rows.numpy()]))


def few_of_a_class(counts: Sequence[int], policy: Policy) -> bool:
    """Whether there is a class with few patients."""
    return any(few(count, policy.fewest_of_each_class) for count in counts)


def counts_by_class(labels: Tensor, classes: int) -> list[int]:
    """Count the samples of each class; for several labels, all known values."""
    if labels.ndim > 1:
        return [int((own == kind).sum()) for own in labels.T for kind in range(classes)]
    return labels.bincount(minlength=classes).tolist()


def hidden_labels(data: SiteData, policy: Policy) -> tuple[int, ...]:
    """Return the labels that are not evaluated because a class, or all held-out samples, are few."""
    if data.held_out.labels.ndim == 1:
        return ()
    known = [own[own >= 0] for own in data.held_out.targets().T]
    return tuple(
        place
        for place, own in enumerate(known)
        if few(len(own), policy.fewest_held_out) or few_of_a_class(counts_by_class(own, data.classes), policy)
    )


def no_evaluation(data: SiteData, policy: Policy) -> str:
    """Return why a site suppresses its evaluation; empty if it does not, or has no held-out patients."""
    if few(patients(data, data.held_out), policy.fewest_held_out):
        return f"no evaluation: fewer than {policy.fewest_held_out} patients are held out here"
    labels = data.held_out.targets()
    if labels.ndim > 1:
        hides_all = len(labels) > 0 and len(hidden_labels(data, policy)) == labels.shape[1]
        return "no evaluation: too few held-out samples of each label here" if hides_all else ""
    if few_of_a_class(counts_by_class(labels, data.classes), policy):
        return f"no evaluation: fewer than {policy.fewest_of_each_class} held-out samples of a class here"
    return ""


def protected(facts: Facts, data: SiteData, policy: Policy) -> Facts:
    """Return a site's facts with small cells suppressed.

    A small count is replaced by the smallest exact one; counts per class are omitted if one is small; the sums of a
    feature that few patients have are omitted, as if none had it. Notes say so.
    """
    notes = [text] if (text := no_evaluation(data, policy)) else []
    changes: dict[str, object] = {}
    if few(patients(data, data.held_out), policy.fewest_held_out):
        changes["held_out"] = policy.fewest_held_out
    fewest, counts = policy.fewest_of_each_class, counts_by_class(data.train.targets(), data.classes)
    if facts.label_counts:
        raised = [_raised_counts(*pair, fewest) for pair in zip(facts.label_counts, facts.label_positives, strict=True)]
        if few_of_a_class(counts, policy):
            notes.append(f"of labels that have fewer than {fewest} training samples of a class here, {fewest} are told")
        if unjudged := hidden_labels(data, policy):
            which = f"{len(unjudged)} of {len(facts.label_counts)} labels"
            notes.append(f"no evaluation of {which}: too few samples, or too few of a class, are held out here")
        changes["label_counts"], changes["label_positives"] = zip(*raised, strict=True)
    elif few_of_a_class(counts, policy):
        if facts.positives is None:
            notes.append(f"no counts per class: there are fewer than {fewest} training samples of a class here")
        else:
            notes.append(f"of a class there are fewer than {fewest} training samples here, told as {fewest}")
            raised_positives = fewest if few(counts[1], fewest) else len(data.train) - fewest
            changes["positives"] = raised_positives
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


def _raised_counts(known: int, positives: int, fewest: int) -> tuple[int, int]:
    """Return the known and positive samples of a label, raised so that neither class is small."""
    classes = (known - positives, positives)
    negatives, positives = (fewest if few(count, fewest) else count for count in classes)
    return negatives + positives, positives


def policy_overrides(run: RunConfig, policy: Policy) -> tuple[str, ...]:
    """Describe where a site's policy overrides a run without refusing it."""
    if run.folds or run.holdout_share == policy.holdout_share:
        return ()
    return (f"holdout-share = {policy.holdout_share:g}, not {run.holdout_share:g}: the split is this site's decision",)
