"""An evaluation as a hospital tells it: of groups of samples, and none of it of one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edelweiss.datasets.labels import stratum
from edelweiss.datasets.patient_ids import keyed
from edelweiss.problems.histogram import Histogram
from edelweiss.problems.metrics import metric
from edelweiss.problems.pooling import pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from edelweiss.datasets import SiteData
    from edelweiss.problems import Metrics

PARTS = 3  # of the held-out patients: the fewest of which two say what one patient cannot change


def dealt(data: SiteData, key: str) -> list[Tensor]:
    """Deal the held-out patients into `PARTS`, which have as many of each class, give or take one.

    Parameters
    ----------
    data : SiteData
        A hospital's own.
    key : str
        Its secret: who is in which part follows from it, and stays.

    Returns
    -------
    list of Tensor
        Positions among the held-out samples; all of a patient are in one part.
    """
    assert data.patient_ids is not None, "a hospital's own data say whose each row is"
    whose, labels = keyed(data.patient_ids[data.held_out.rows.numpy()], key), stratum(data.held_out.targets().numpy())
    _, first, patient = np.unique(whose, return_index=True, return_inverse=True)
    part = np.empty(len(first), np.int64)
    part[np.argsort(labels[first], kind="stable")] = np.arange(len(first)) % PARTS
    return [torch.from_numpy(np.flatnonzero(part[patient] == number)) for number in range(PARTS)]


def coarse(parts: Sequence[Metrics], count: int, fewest: int) -> Metrics:
    """Return the evaluation that a site tells, from those of the parts of its held-out patients.

    Histograms of scores are merged until no bin is about fewer than ``fewest`` samples, counts of right answers are
    told in multiples of it, and what follows from the two (AUROC, average precision, accuracies) follows from these.
    Of a mean it tells the median over the parts, which one patient can move no further than the two others are apart;
    and of that as many digits as the count is worth.

    Parameters
    ----------
    parts : sequence of Metrics
        What ``Problem.metrics`` returned for each part.
    count : int
        Of held-out samples, in all parts.
    fewest : int
        A group's fewest samples, of one class.
    """
    told: Metrics = {}
    groups: Metrics = {}
    for name in parts[0]:
        values: list[Any] = [part[name] for part in parts]
        if isinstance(values[0], bytes):
            whole = Histogram.total([Histogram.unpacked(value) for value in values])
            groups[name] = merged(whole, fewest).packed()
        elif isinstance(values[0], list):
            groups[name] = np.sum(values, axis=0).tolist()
        elif metric(name).pooled in ("scores", "classes"):
            groups[name] = math.nan  # follows from the counts
        elif metric(name).pooled == "sum":
            told[name] = sum(values)
        elif metric(name).pooled == "most":
            told[name] = groups[name] = fewest
        else:
            share = metric(name).better == "up"  # of patients
            told[name] = rounded(float(np.median(values)), fewest / count, share=share)
    if "class-correct" in groups:
        counts = np.array([groups["class-correct"], groups["class-counts"]])
        groups["class-correct"] = np.minimum(fewest * np.rint(counts[0] / fewest), counts[1]).astype(int).tolist()
    follows = {name: value for name, value in pool([groups]).items() if name in groups and name not in told}
    return {**groups, **follows, **told}


def merged(histogram: Histogram, fewest: int) -> Histogram:
    """Merge bins with neighbours until each counts ``fewest`` or more.

    A bin that has enough stays, and takes what few were before it. Else bins become a group as soon as they have enough
    together. Its place says little of where one of them is: between its first and its last bin, the one that is
    divisible by the highest power of 2. What is left over at the end goes to the last group. So the order within the
    histogram stays, and at any point fewer than 3 ``fewest`` samples have moved from one side to the other. All of a
    group are above the place of the group before, and below that of the one behind.

    Parameters
    ----------
    histogram : Histogram
        Of nobody, or of ``fewest`` together.
    fewest : int
        At least 1.
    """
    places: list[int] = []
    sizes: list[int] = []
    first, few = 0, 0
    for bin_, count in zip(histogram.bins.tolist(), histogram.counts.tolist(), strict=True):
        first, few = (first if few else bin_), few + count
        if few >= fewest:
            places.append(bin_ if count >= fewest else _between(first, bin_))
            sizes.append(few)
            few = 0
    if few:
        sizes[-1] += few
    return Histogram(np.array(places, np.int64), np.array(sizes, np.int64))


def _between(low: int, high: int) -> int:
    """Return the number above ``low`` and up to ``high`` that is divisible by the highest power of 2."""
    zeros = (low ^ high).bit_length() - 1 if (low < 0) == (high < 0) else 64
    return high >> zeros << zeros


def rounded(value: float, part: float, *, share: bool) -> float:
    """Round to a multiple of a power of 2: the first that is at least this part of the value; of a share, of 1."""
    if not math.isfinite(value):
        return value
    step = 2.0 ** math.ceil(math.log2(part * (1 if share else max(abs(value), 1e-12))))
    return step * round(value / step)
