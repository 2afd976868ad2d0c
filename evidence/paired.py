"""DeLong's paired test of two models on the pooled patients of all sites, without sharing scores.

The pooled counts of a model's scores give each sample's placement under that model. The variance of the difference of
the two AUROCs is that of the difference of the two placements, each centred at its AUROC. A site that receives the
pooled counts of both models sums the squared differences over its patients and reports the sums: seven numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edelweiss.common import Schema, record_errors
from edelweiss.common.schema import number, several, whole
from edelweiss.evidence.delong import binned_placements, from_counts
from edelweiss.evidence.grid import Counts
from edelweiss.evidence.sums import sum_by
from edelweiss.problems.histogram import Histogram, bins_of
from edelweiss.problems.histogram import wrong as wrong_histogram

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edelweiss.evidence.sums import Floats, Ints


SCHEMA = Schema(squares=several(number(0), (2,)), products=number(), patients=several(whole(0, 2**53), (3,)))


@dataclass(frozen=True)
class Spread:
    """Sums of squared differences between two models' placements of a site's patients, see `spread`."""

    # sums over patients of the squared sum of differences, of their positive and of their negative samples
    squares: tuple[float, float]
    products: float  # sum over patients of the product of the two sums; 0 with one sample per patient
    patients: tuple[int, int, int]  # number of patients with positive samples, with negative samples, in all

    def record(self) -> dict[str, Any]:
        """Write the sums as a record of the second reply to the last evaluation."""
        return {"squares": [*self.squares], "products": self.products, "patients": [*self.patients]}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Spread:
        """Read a record that `wrong` accepts."""
        (first, second), (p, n, every) = record["squares"], record["patients"]
        return cls((first, second), record["products"], (p, n, every))

    @staticmethod
    def wrong(record: Mapping[str, Any], n: int, positives: int) -> list[str]:
        """List the problems of a record from a site with ``n`` samples."""
        if wrong := record_errors(record, SCHEMA):
            return wrong
        most = (2.0 * n) ** 2  # two placements less two AUROCs differ by 2 at most
        for name, sums in (("squares", record["squares"]), ("products", [record["products"]])):
            if max(map(abs, sums)) > most:
                return [f"{name} = {record[name]}: must be at most {most:g}"]
        first, second, every = record["patients"]
        for name, patients, samples in (("positive", first, positives), ("negative", second, n - positives)):
            if patients > samples or bool(patients) != bool(samples):
                wrong.append(f"patients = {record['patients']}: {patients} cannot have {samples} {name} samples")
        if not max(first, second) <= every <= first + second:
            wrong.append(f"patients = {record['patients']}: the total does not match the two classes")
        squares = record["squares"]
        if record["products"] ** 2 > squares[0] * squares[1] * (1 + 1e-9):
            wrong.append(f"products = {record['products']}: exceeds the bound given by squares = {squares}")
        return wrong


def spread(
    scores: tuple[Floats, Floats], labels: Floats, patients: Ints | None, merged: tuple[Counts, Counts]
) -> Spread:
    """Compute the sums of a site.

    Scores are by each of the two models, labels 1 and 0, each (n,); patients are numbered from 0, by default one per
    sample; `merged` are the pooled counts of both models, including this site's, with both classes.
    """
    placed = []
    for own, counts in zip(scores, merged, strict=True):
        place = np.searchsorted(counts.bins, bins_of(own))
        placed.append(np.where(labels == 1, *(placement[place] for placement in _centred(counts))))
    patient_of = np.arange(len(labels)) if patients is None else patients
    many = int(patient_of.max()) + 1 if len(patient_of) else 0
    sums = [sum_by(np.where(labels == label, placed[0] - placed[1], 0.0), patient_of, many) for label in (1, 0)]
    with_class = [len(np.unique(patient_of[labels == label])) for label in (1, 0)]
    return Spread(
        (float(sums[0] @ sums[0]), float(sums[1] @ sums[1])),
        float(sums[0] @ sums[1]),
        (with_class[0], with_class[1], len(np.unique(patient_of))),
    )


def _centred(counts: Counts) -> tuple[Floats, Floats]:
    """Return the placements of a positive and of a negative in each bin, minus the AUROC."""
    value = from_counts([counts]).value
    of_positives, of_negatives = binned_placements(counts.positives, counts.negatives)
    return of_positives - value, of_negatives - value


def variance_of_difference(samples: tuple[float, float], spreads: Sequence[Spread]) -> float:
    """Compute the variance of the difference of two AUROCs (DeLong; for clustered samples Obuchowski, 1997).

    `samples` are positives and negatives at all sites. NaN if a class has fewer than two patients.
    """
    sizes = np.sum([one.patients for one in spreads], axis=0)
    if sizes[:2].min() < 2:
        return math.nan
    squares, products = np.sum([one.squares for one in spreads], axis=0), sum(one.products for one in spreads)
    corrected = sizes / (sizes - 1)
    within = sum(corrected[kind] * squares[kind] / samples[kind] ** 2 for kind in (0, 1))
    return max(0.0, float(within + 2 * corrected[2] * products / (samples[0] * samples[1])))


def merged_record(merged: Sequence[tuple[Counts, Counts] | None]) -> dict[str, list[bytes]]:
    """Write the pooled counts of both models, label by label, for the second request of the last evaluation.

    Each label has four histograms: positives and negatives of the first model, then of the other. They are empty for a
    label that is not compared.
    """
    return {"merged": [part for both in merged for part in _packed(both)]}


def _packed(both: tuple[Counts, Counts] | None) -> list[bytes]:
    return [histogram.packed() for counts in both for histogram in counts.histograms()] if both else [b""] * 4


def read_merged(merged: Sequence[bytes]) -> list[tuple[Counts, Counts] | None]:
    """Read the output of `merged_record`, after `merged_problems` accepted it."""
    found: list[tuple[Counts, Counts] | None] = []
    for place, asked in enumerate(asked_for(merged)):
        parts = [Histogram.unpacked(part) for part in merged[4 * place : 4 * place + 4]]
        both = Counts.of_histograms(parts[0], parts[1]), Counts.of_histograms(parts[2], parts[3])
        found.append(both if asked else None)
    return found


def asked_for(merged: Sequence[bytes]) -> list[bool]:
    """Return for each label whether it is compared."""
    return [any(merged[place : place + 4]) for place in range(0, len(merged), 4)]


def merged_problems(merged: Sequence[bytes]) -> list[str]:
    """List the problems of pooled counts, four histograms for each label."""
    if not any(merged):
        return ["merged: empty; leave it out"]
    return [f"merged: {text}" for text in map(wrong_histogram, merged) if text][:1]
