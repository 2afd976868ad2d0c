"""Subgroups of the held-out patients by the study's columns, one column at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edelweiss.client_app.policy.coarsening import merged
from edelweiss.client_app.policy.suppression import few
from edelweiss.evidence.curves import SUBGROUP_SPECIFICITY, threshold
from edelweiss.evidence.delong import Auroc, exact, from_counts
from edelweiss.evidence.design import Design, largest_effect
from edelweiss.evidence.grid import Counts
from edelweiss.evidence.reported import Group
from edelweiss.problems.histogram import Histogram

if TYPE_CHECKING:
    from edelweiss.client_app.policy.rules import Policy
    from edelweiss.client_app.site import OpenSite
    from edelweiss.datasets.source import Mask
    from edelweiss.evidence.sums import Floats, Ints


def subgroups(site: OpenSite, which: Mask, scores: Floats, labels: Floats, patients: Ints | None) -> list[Group]:
    """Return the subgroups that a site reports; ``which`` selects the held-out samples of the other arguments.

    If scores are coarsened, a column with a small subgroup, or few of a class in one, is omitted, since the other
    subgroups would reveal it.
    """
    config, data = site.data_config, site.data()
    if data is None or config.study is None:
        return []
    at = threshold(scores, labels, SUBGROUP_SPECIFICITY)
    values = data.held_out.inputs[data.held_out.rows].numpy()[which]
    found: list[Group] = []
    for column in config.study.columns:
        if column.name not in config.study.subgroups:
            continue
        parts = column.parted(values[:, [data.features.index(name) for name in column.features]])
        parts = {name: mask for name, mask in parts.items() if mask.any()}
        if site.exact:
            for name, mask in parts.items():
                whose = None if patients is None else np.unique(patients[mask], return_inverse=True)[1]
                own, hits = exact(scores[mask], labels[mask], whose), _hits(scores[mask], labels[mask], at)
                design = Design.of_group(scores[mask], labels[mask], whose, at)
                found.append(Group(column.name, name, int(mask.sum()), int(labels[mask].sum()), hits, own, design))
        elif all(_enough(labels[mask], site.policy) for mask in parts.values()):
            fewest = site.policy.fewest_of_each_class
            found += [
                _coarse(
                    column.name,
                    name,
                    scores[mask],
                    labels[mask],
                    at,
                    fewest,
                    1.0 if patients is None else largest_effect(patients[mask]),
                )
                for name, mask in parts.items()
            ]
    return found


def _hits(scores: Floats, labels: Floats, at: float) -> tuple[int, int]:
    """Count the positives with at least this score, and the negatives with less."""
    return int(labels[scores >= at].sum()), int((1 - labels[scores < at]).sum())


def _enough(labels: Floats, policy: Policy) -> bool:
    """Whether there are enough of these patients in each class."""
    classes = (int(labels.sum()), int((1 - labels).sum()))
    return len(labels) >= policy.fewest_held_out and not any(few(n, policy.fewest_of_each_class) for n in classes)


def _coarse(column: str, name: str, scores: Floats, labels: Floats, at: float, fewest: int, design: float) -> Group:
    """Return a coarsened subgroup: class counts rounded down to multiples of ``fewest``, AUROC of merged histograms.

    Correct predictions are rounded to the nearest multiple. All variances are scaled by ``design``.
    """
    positives, negatives = (merged(Histogram.of(scores[labels == label]), fewest) for label in (1, 0))
    pooled = from_counts([Counts.of_histograms(positives, negatives)])
    p, n = (int(count) // fewest * fewest for count in (labels.sum(), (1 - labels).sum()))
    right = [fewest * round(count / fewest) for count in _hits(scores, labels, at)]
    auroc = Auroc(pooled.value, design * pooled.variance)
    return Group(column, name, p + n, p, (min(right[0], p), min(right[1], n)), auroc, (design,) * 4)
