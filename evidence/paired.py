"""Two models on the same patients of all sites: DeLong's paired test, without moving a score.

A sample's placement under a model follows from its class and bin, once all sites' counts on that model's grid are added
up. So does by how much its two placements differ, each taken less the AUROC. The variance of the difference of the two
AUROCs is the variance of that. A site that is sent the counts of all adds up the squares, over its patients, and tells
the sums: six numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evidence.delong import binned_placements, from_counts
from evidence.sums import added
from evidence.told import COUNT, grids_of
from keys import Number, Schema, Several, mistakes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evidence.sums import Floats, Ints

Pair = tuple["Floats", "Floats"]
"""Counts of positives and of negatives on a model's grid, shape (bins,) each."""


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
        """Write it as a record of a message: the third answer to the last evaluation."""
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
            "patients": Several(COUNT, (3,)),
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


def summed(pairs: Sequence[Pair]) -> Pair:
    """Return the counts of some sites on one grid, added up; of one site at least."""
    positives, negatives = (np.asarray(np.sum([pair[kind] for pair in pairs], axis=0)) for kind in (0, 1))
    return positives, negatives


def spread(bins: tuple[Ints, Ints], labels: Floats, patients: Ints | None, merged: tuple[Pair, Pair]) -> Spread:
    """Return the sums of a site.

    Parameters
    ----------
    bins : (ndarray, ndarray)
        Shape (n,): the bin of each sample on the grid of either model.
    labels : ndarray
        Shape (n,): 1 for positive and 0 for negative.
    patients : ndarray, optional
        Shape (n,): whose each sample is, numbered from 0; default: each is another's.
    merged : (Pair, Pair)
        The counts of all sites on both grids; of each class at least one.
    """
    placed = [np.where(labels == 1, *(place[own] for place in _centred(pair)))
              for own, pair in zip(bins, merged, strict=True)]  # fmt: skip
    whose = np.arange(len(labels)) if patients is None else patients
    many = int(whose.max()) + 1 if len(whose) else 0
    sums = [added(np.where(labels == label, placed[0] - placed[1], 0.0), whose, many) for label in (1, 0)]
    with_class = [len(np.unique(whose[labels == label])) for label in (1, 0)]
    return Spread(
        (float(sums[0] @ sums[0]), float(sums[1] @ sums[1])),
        float(sums[0] @ sums[1]),
        (with_class[0], with_class[1], len(np.unique(whose))),
    )


def _centred(pair: Pair) -> tuple[Floats, Floats]:
    """Return the placements of a positive and of a negative in each bin, less the AUROC."""
    value = from_counts([pair]).value
    of_positives, of_negatives = binned_placements(*pair)
    return of_positives - value, of_negatives - value


def variance_of_difference(merged: Pair, spreads: Sequence[Spread]) -> float:
    """Return the variance of the difference of the two AUROCs (DeLong; of clustered samples Obuchowski, 1997).

    Parameters
    ----------
    merged : Pair
        The counts of all sites, on the grid of either model.
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
    samples = [float(counts.sum()) for counts in merged]
    squares, products = np.sum([one.squares for one in spreads], axis=0), sum(one.products for one in spreads)
    corrected = sizes / (sizes - 1)
    within = sum(corrected[kind] * squares[kind] / samples[kind] ** 2 for kind in (0, 1))
    return max(0.0, float(within + 2 * corrected[2] * products / (samples[0] * samples[1])))


def merged_record(merged: Sequence[tuple[Pair, Pair]]) -> dict[str, list[int]]:
    """Write the counts of all sites on both models' grids, label by label, as the third question has them.

    They are in the order: positives on the first model's grids, negatives there, and the same on the other's.
    """
    parts = [both[model][kind] for model in (0, 1) for kind in (0, 1) for both in merged]
    return {"merged": np.concatenate(parts).astype(int).tolist()}


def merged_of(
    merged: Sequence[int], bins: tuple[Sequence[Sequence[float]], Sequence[Sequence[float]]]
) -> list[tuple[Pair, Pair]]:
    """Read what `merged_record` wrote; ``bins`` are the grids of all labels, of both models."""
    lengths = [len(grid) for model in (0, 1) for _ in (0, 1) for grid in bins[model]]
    parts = [np.array(part, float) for part in grids_of(merged, lengths)]
    many = len(bins[0])
    return [
        ((parts[place], parts[many + place]), (parts[2 * many + place], parts[3 * many + place]))
        for place in range(many)
    ]
