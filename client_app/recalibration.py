"""A site's own map from scores to probabilities, saved in its model's file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edelweiss.evidence import Counts
from edelweiss.evidence.calibration import platt

if TYPE_CHECKING:
    from edelweiss.evidence.sums import Floats

FEWEST = 10  # least held-out samples of each class for a fit of two parameters

Entry = dict[str, float | int]
"""``intercept``, ``slope``, and the numbers of samples: ``held-out``, ``positives``."""


def fit_maps(scores: Floats, labels: Floats) -> list[Entry | None]:
    """Fit Platt's map to a site's held-out samples, for each label.

    Parameters
    ----------
    scores, labels : ndarray
        Shape (n, L); an unknown label is negative.

    Returns
    -------
    list
        None for a label with too few known samples, or that the model ranks no better than chance.
    """
    return [_fitted(scores[known, place], labels[known, place]) for place, known in enumerate((labels >= 0).T)]


def _fitted(scores: Floats, labels: Floats) -> Entry | None:
    positives = int(labels.sum())
    if min(positives, len(labels) - positives) < FEWEST or not np.isfinite(scores).all():
        return None
    fit = platt(Counts.of(scores, labels))
    if not fit.slope > 0:
        return None
    return {"intercept": fit.intercept, "slope": fit.slope, "held-out": len(labels), "positives": positives}
