"""Two models on the same patients of all sites: DeLong's paired test, without moving a score.

A sample's placement under a model follows from its class and score, once all sites' counts of that model's scores are
added up. So does by how much its two placements differ, each taken less the AUROC. The variance of the difference of
the two AUROCs is the variance of that. A site that is sent the counts of all adds up the squares, over its patients,
and tells the sums: six numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edelweiss.common import Number, Schema, Several, mistakes
from edelweiss.evidence.delong import binned_placements, from_counts
from edelweiss.evidence.grid import Counts
from edelweiss.evidence.sums import added
from edelweiss.problems.histogram import Histogram, bins_of
from edelweiss.problems.histogram import wrong as wrong_histogram

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edelweiss.evidence.sums import Floats, Ints


@dataclass(frozen=True)
class Spread:
    """How much two models differ in where they place the patients of a site, see `spread`.

    Attributes
    ----------
    squares : (float, float)
        Sums over patients, of their positive samples and of their negative ones: of the square of the sum of the
        differences of these samples.
    products : float
        The same with the two sums multiplied; 0 where each patient has one sample.
    patients : (int, int, int)
        How many have positive samples, negative ones, any.
    """

    squares: tuple[float, float]
    products: float
    patients: tuple[int, int, int]

    def record(self) -> dict[str, Any]:
        """Write it as a record of a message: the second answer to the last evaluation."""
        return {"squares": [*self.squares], "products": self.products, "patients": [*self.patients]}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Spread:
        """Read a record in which `wrong` found nothing."""
        (first, second), (p, n, every) = record["squares"], record["patients"]
        return cls((first, second), record["products"], (p, n, every))

    @staticmethod
    def wrong(record: Mapping[str, Any], n: int, positives: int) -> list[str]:
        """Return what is wrong with a record of a site that has so many samples."""
        most = (2.0 * n) ** 2  # two placements less two AUROCs differ by 2 at most
        schema: Schema = {
            "squares": Several(Number(0, most), (2,)),
            "products": Number(-most, most),
            "patients": Several(Number(0, 2**53, whole=True), (3,)),
        }
        if wrong := mistakes(record, schema):
            return wrong
        first, second, every = record["patients"]
        for name, told, count in (("positive", first, positives), ("negative", second, n - positives)):
            if told > count or bool(told) != bool(count):
                wrong.append(f"patients = {record['patients']}: {told} have {count} {name} samples")
        if not max(first, second) <= every <= first + second:
            wrong.append(f"patients = {record['patients']}: so many have one class, the other, any")
        squares = record["squares"]
        if record["products"] ** 2 > squares[0] * squares[1] * (1 + 1e-9):
            wrong.append(f"products = {record['products']}: more than squares = {squares} allow")
        return wrong


def spread(
    scores: tuple[Floats, Floats], labels: Floats, patients: Ints | None, merged: tuple[Counts, Counts]
) -> Spread:
    """Return the sums of a site.

    Parameters
    ----------
    scores : (ndarray, ndarray)
        Shape (n,): those of each sample by either model.
    labels : ndarray
        Shape (n,): 1 for positive and 0 for negative.
    patients : ndarray, optional
        Shape (n,): whose each sample is, numbered from 0; default: each is another's.
    merged : (Counts, Counts)
        The counts of all sites for both models, which have this site's; of each class at least one.
    """
    placed = []
    for own, counts in zip(scores, merged, strict=True):
        place = np.searchsorted(counts.bins, bins_of(own))
        placed.append(np.where(labels == 1, *(placement[place] for placement in _centred(counts))))
    whose = np.arange(len(labels)) if patients is None else patients
    many = int(whose.max()) + 1 if len(whose) else 0
    sums = [added(np.where(labels == label, placed[0] - placed[1], 0.0), whose, many) for label in (1, 0)]
    with_class = [len(np.unique(whose[labels == label])) for label in (1, 0)]
    return Spread(
        (float(sums[0] @ sums[0]), float(sums[1] @ sums[1])),
        float(sums[0] @ sums[1]),
        (with_class[0], with_class[1], len(np.unique(whose))),
    )


def _centred(counts: Counts) -> tuple[Floats, Floats]:
    """Return the placements of a positive and of a negative in each bin, less the AUROC."""
    value = from_counts([counts]).value
    of_positives, of_negatives = binned_placements(counts.positives, counts.negatives)
    return of_positives - value, of_negatives - value


def variance_of_difference(samples: tuple[float, float], spreads: Sequence[Spread]) -> float:
    """Return the variance of the difference of the two AUROCs (DeLong; of clustered samples Obuchowski, 1997).

    Parameters
    ----------
    samples : (float, float)
        How many positives and negatives there are at all sites.
    spreads : sequence of Spread
        Of all these sites.

    Returns
    -------
    float
        NaN where fewer than two patients have a class.
    """
    sizes = np.sum([one.patients for one in spreads], axis=0)
    if sizes[:2].min() < 2:
        return math.nan
    squares, products = np.sum([one.squares for one in spreads], axis=0), sum(one.products for one in spreads)
    corrected = sizes / (sizes - 1)
    within = sum(corrected[kind] * squares[kind] / samples[kind] ** 2 for kind in (0, 1))
    return max(0.0, float(within + 2 * corrected[2] * products / (samples[0] * samples[1])))


def merged_record(merged: Sequence[tuple[Counts, Counts] | None]) -> dict[str, list[bytes]]:
    """Write the counts of all sites for both models, label by label, as the second question has them.

    Of each label there are four histograms: positives and negatives of the first model, and of the other. They are
    empty for a label that is not asked for.
    """
    return {"merged": [part for both in merged for part in (_packed(both) if both else [b""] * 4)]}


def _packed(both: tuple[Counts, Counts]) -> list[bytes]:
    return [histogram.packed() for counts in both for histogram in counts.histograms()]


def merged_of(merged: Sequence[bytes]) -> list[tuple[Counts, Counts] | None]:
    """Read what `merged_record` wrote, in which `wrong_merged` found nothing."""
    found: list[tuple[Counts, Counts] | None] = []
    for place, asked in enumerate(asked_for(merged)):
        parts = [Histogram.unpacked(part) for part in merged[4 * place : 4 * place + 4]]
        both = Counts.of_histograms(parts[0], parts[1]), Counts.of_histograms(parts[2], parts[3])
        found.append(both if asked else None)
    return found


def asked_for(merged: Sequence[bytes]) -> list[bool]:
    """Return for each label whether what `merged_record` wrote asks for it."""
    return [any(merged[place : place + 4]) for place in range(0, len(merged), 4)]


def wrong_merged(merged: Sequence[bytes]) -> list[str]:
    """Return what is wrong with counts of all sites, of which there are four for each label."""
    if not any(merged):
        return ["merged is empty, which asks for nothing: leave it out"]
    return [f"merged: {text}" for text in map(wrong_histogram, merged) if text][:1]
