"""What a site tells for evidence.json, in two answers to the last evaluation: their records, and what these may hold.

The first has its `Sketch`, by which the coordinator chooses a grid, its own AUROC, and its subgroups. The second has
the `Counts` on that grid. A site whose rules let it tell of groups of patients only gives no sketch and is not asked
for counts: what it tells of its scores is the histogram in its evaluation, and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from evidence.delong import Auroc
from evidence.grid import BINS, Counts, Sketch
from keys import Number, Schema, Several, Text, mistakes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evidence.sums import Floats

MOST_GROUPS = 100
LARGEST = 1e30  # of a score, and of a sum of scores: beyond it a model has diverged
COUNT, SCORE = Number(0, 2**53, whole=True), Number(-LARGEST, LARGEST)
SHARE, VARIANCE = Number(0, 1, nan=True, rounding=1e-9), Number(0, 1, nan=True)
COLUMNS: dict[str, Number | Text] = {
    "column": Text(),
    "name": Text(),
    "n": COUNT,
    "positives": COUNT,
    "auroc": SHARE,
    "variance": VARIANCE,
}


@dataclass(frozen=True, eq=False)
class Group:
    """A subgroup at a site: of which column, its name, its samples, and its AUROC with the variance."""

    column: str
    name: str
    n: int
    positives: int
    auroc: Auroc


@dataclass(frozen=True, eq=False)
class Told:
    """The first answer.

    Attributes
    ----------
    cuts : (ndarray, ndarray)
        Those of a `Sketch`; empty where groups of patients are told only.
    auroc : Auroc
        The site's own, exactly; NaN without cuts.
    design : float
        See `evidence.delong.design_effect`; 1 where each patient has one sample.
    groups : sequence of Group
        Subgroups.
    other : Auroc
        Of the model that the run is compared with, on the same samples; NaN without one.
    covariance : float
        Of the two.
    """

    cuts: tuple[Floats, Floats] = field(default_factory=lambda: (np.zeros(0), np.zeros(0)))
    auroc: Auroc = field(default_factory=lambda: Auroc(math.nan, math.nan))
    design: float = 1.0
    groups: Sequence[Group] = ()
    other: Auroc = field(default_factory=lambda: Auroc(math.nan, math.nan))
    covariance: float = math.nan

    @property
    def grouped(self) -> bool:
        """Whether the site tells of groups of patients only."""
        return not any(map(len, self.cuts))

    def sketch(self, positives: int, negatives: int) -> Sketch:
        """Return the sketch of so many samples."""
        return Sketch.told(*self.cuts, positives, negatives)

    def record(self) -> dict[str, Any]:
        """Write it as a record of a message."""
        groups = {"column": [one.column for one in self.groups], "name": [one.name for one in self.groups],
                  "n": [one.n for one in self.groups], "positives": [one.positives for one in self.groups],
                  "auroc": [one.auroc.value for one in self.groups],
                  "variance": [one.auroc.variance for one in self.groups]}  # fmt: skip
        return {
            "positive-cuts": self.cuts[0].tolist(),
            "negative-cuts": self.cuts[1].tolist(),
            "auroc": self.auroc.value,
            "variance": self.auroc.variance,
            "design": self.design,
            "other-auroc": self.other.value,
            "other-variance": self.other.variance,
            "covariance": self.covariance,
            **{f"group-{key}": values for key, values in groups.items()},
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Told:
        """Read a record in which `wrong` found nothing."""
        rows = zip(*(record[f"group-{key}"] for key in COLUMNS), strict=True)
        return cls(
            (np.array(record["positive-cuts"], float), np.array(record["negative-cuts"], float)),
            Auroc(record["auroc"], record["variance"]),
            record["design"],
            [Group(column, name, n, positives, Auroc(*auroc)) for column, name, n, positives, *auroc in rows],
            Auroc(record["other-auroc"], record["other-variance"]),
            record["covariance"],
        )

    @staticmethod
    def wrong(record: Mapping[str, Any], n: int, positives: int) -> list[str]:
        """Return what is wrong with a record of a site that has so many samples."""
        schema: Schema = {
            "positive-cuts": Several(SCORE, most=min(BINS, positives)),
            "negative-cuts": Several(SCORE, most=min(BINS, n - positives)),
            "auroc": SHARE,
            "variance": VARIANCE,
            "design": Number(1e-3, 1e6),
            "other-auroc": SHARE,
            "other-variance": VARIANCE,
            "covariance": Number(-1, 1, nan=True),
            **{f"group-{key}": Several(item, most=MOST_GROUPS) for key, item in COLUMNS.items()},
        }
        if wrong := mistakes(record, schema):
            return wrong
        cuts = {key: record[key] for key in ("positive-cuts", "negative-cuts")}
        wrong = [f"{key} do not ascend" for key, values in cuts.items() if not ascending(values)]
        for (key, values), count in zip(cuts.items(), (positives, n - positives), strict=True):
            if any(cuts.values()) and bool(values) != bool(count):
                wrong.append(f"{key} has {len(values)} entries, of {count} samples")
        if all(cuts.values()) and math.isnan(record["auroc"]):
            wrong.append("auroc = nan: it has samples of both classes")
        for key in ("auroc", "other-auroc"):
            if positives in (0, n) and not math.isnan(record[key]):
                wrong.append(f"{key} = {record[key]}: it has samples of one class")
        if len({len(record[f"group-{key}"]) for key in COLUMNS}) > 1:
            wrong.append("the columns of its subgroups have not the same length")
        elif any(p > all_ or all_ > n for p, all_ in zip(record["group-positives"], record["group-n"], strict=True)):
            wrong.append(f"a subgroup has more positives than samples, or more samples than the site: {n}")
        for p, all_, auroc in zip(*(record[f"group-{key}"] for key in ("positives", "n", "auroc")), strict=False):
            if p in (0, all_) and not math.isnan(auroc):
                wrong.append(f"the AUROC of a subgroup of one class is {auroc}")
        return wrong


def record_names(labels: Sequence[str]) -> dict[str, str]:
    """Return for each label what a message calls its record; of one label, whose name is empty, ``"evidence"``."""
    return {label: f"evidence-{place}" if label else "evidence" for place, label in enumerate(labels)}


def grid_record(cuts: Sequence[list[float]]) -> dict[str, list[float] | list[int]]:
    """Write the grids of all labels as entries of a record: one behind the other, and of several how long each is."""
    bins = {"bins": [len(own) for own in cuts]} if len(cuts) > 1 else {}
    return {"cuts": [cut for own in cuts for cut in own], **bins}


def grids_of(cuts: Sequence[float], bins: Sequence[int]) -> list[Sequence[float]]:
    """Read what `grid_record` wrote."""
    ends = [*accumulate(bins)] if bins else [len(cuts)]
    return [cuts[start:end] for start, end in pairwise([0, *ends])]


def wrong_grids(cuts: Sequence[float], bins: Sequence[int]) -> list[str]:
    """Return what is wrong with the grids in a record that is otherwise as it should be."""
    if not cuts:
        return ["cuts are empty, which asks for nothing: leave them out"]
    if bins and sum(bins) != len(cuts):
        return [f"bins add up to {sum(bins)}, of {len(cuts)} cuts"]
    return ["cuts do not ascend"] if not all(map(ascending, grids_of(cuts, bins))) else []


def counts_record(counts: Counts) -> dict[str, Any]:
    """Write the second answer as a record of a message."""
    return {
        "positives": counts.positives.astype(int).tolist(),
        "negatives": counts.negatives.astype(int).tolist(),
        "sums": counts.sums.tolist(),
    }


def counts_of(record: Mapping[str, Any]) -> Counts:
    """Read a record in which `wrong_counts` found nothing."""
    return Counts(*(np.array(record[key], float) for key in ("positives", "negatives", "sums")))


def wrong_counts(record: Mapping[str, Any], bins: int, n: int, positives: int) -> list[str]:
    """Return what is wrong with a record of counts on a grid, of a site that has so many samples."""
    counted = Several(COUNT, (bins,))
    wrong = mistakes(record, {"positives": counted, "negatives": counted, "sums": Several(SCORE, (bins,))})
    for name, count in (("positives", positives), ("negatives", n - positives)) if not wrong else ():
        if (total := sum(record[name])) != count:
            wrong.append(f"{name} add up to {total}: it has {count}")
    return wrong


def ascending(cuts: Sequence[float]) -> bool:
    """Whether each is above the one before it."""
    return all(low < high for low, high in pairwise(cuts))
