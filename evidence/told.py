"""What a site tells for evidence.json, in its answers to the last evaluation: their records, and what these may hold.

The first has its `Sketch`, by which the coordinator chooses a grid, its own AUROC, and its subgroups. The second has
the `Counts` on that grid. Where a run is compared with another model, both are of either model, and a third answer has
what of the comparison needs the counts of all sites, see `evidence.paired`.

A site whose rules let it tell of groups of patients only gives no sketch and is not asked for counts: what it tells of
its scores is the histogram in its evaluation, and nothing else.
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

    from evidence.paired import Pair
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
    "true-positives": COUNT,
    "true-negatives": COUNT,
    "auroc": SHARE,
    "variance": VARIANCE,
}


@dataclass(frozen=True, eq=False)
class Group:
    """A subgroup at a site.

    Attributes
    ----------
    column, name : str
        Which.
    n, positives : int
        Its samples.
    hits : (int, int)
        How many of its positives are at or above the site's threshold (`evidence.curves.SAME_FOR_ALL`), and how many of
        its negatives are below.
    auroc : Auroc
        With the variance.
    """

    column: str
    name: str
    n: int
    positives: int
    hits: tuple[int, int]
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
    other_cuts : (ndarray, ndarray)
        Of the other model's scores, as ``cuts``; empty without one, and where the sites share no model.
    """

    cuts: tuple[Floats, Floats] = field(default_factory=lambda: (np.zeros(0), np.zeros(0)))
    auroc: Auroc = field(default_factory=lambda: Auroc(math.nan, math.nan))
    design: float = 1.0
    groups: Sequence[Group] = ()
    other: Auroc = field(default_factory=lambda: Auroc(math.nan, math.nan))
    covariance: float = math.nan
    other_cuts: tuple[Floats, Floats] = field(default_factory=lambda: (np.zeros(0), np.zeros(0)))

    @property
    def grouped(self) -> bool:
        """Whether the site tells of groups of patients only."""
        return not any(map(len, self.cuts))

    def sketch(self, positives: int, negatives: int) -> Sketch:
        """Return the sketch of so many samples."""
        return Sketch.told(*self.cuts, positives, negatives)

    def sketch_of_other(self, positives: int, negatives: int) -> Sketch | None:
        """Return the sketch of the other model's scores; None where there is none."""
        return Sketch.told(*self.other_cuts, positives, negatives) if any(map(len, self.other_cuts)) else None

    def record(self) -> dict[str, Any]:
        """Write it as a record of a message."""
        rows = [
            (one.column, one.name, one.n, one.positives, *one.hits, one.auroc.value, one.auroc.variance)
            for one in self.groups
        ]
        groups = {key: [row[place] for row in rows] for place, key in enumerate(COLUMNS)}
        return {
            "positive-cuts": self.cuts[0].tolist(),
            "negative-cuts": self.cuts[1].tolist(),
            "auroc": self.auroc.value,
            "variance": self.auroc.variance,
            "design": self.design,
            "other-auroc": self.other.value,
            "other-variance": self.other.variance,
            "covariance": self.covariance,
            "other-positive-cuts": self.other_cuts[0].tolist(),
            "other-negative-cuts": self.other_cuts[1].tolist(),
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
            [
                Group(column, name, n, positives, (p_right, n_right), Auroc(*auroc))
                for column, name, n, positives, p_right, n_right, *auroc in rows
            ],
            Auroc(record["other-auroc"], record["other-variance"]),
            record["covariance"],
            (np.array(record["other-positive-cuts"], float), np.array(record["other-negative-cuts"], float)),
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
            "other-positive-cuts": Several(SCORE, most=min(BINS, positives)),
            "other-negative-cuts": Several(SCORE, most=min(BINS, n - positives)),
            **{f"group-{key}": Several(item, most=MOST_GROUPS) for key, item in COLUMNS.items()},
        }
        if wrong := mistakes(record, schema):
            return wrong
        for of in ("", "other-"):
            cuts = {key: record[key] for key in (f"{of}positive-cuts", f"{of}negative-cuts")}
            wrong += [f"{key} do not ascend" for key, values in cuts.items() if not ascending(values)]
            for (key, values), count in zip(cuts.items(), (positives, n - positives), strict=True):
                if any(cuts.values()) and bool(values) != bool(count):
                    wrong.append(f"{key} has {len(values)} entries, of {count} samples")
            if all(cuts.values()) and math.isnan(record[f"{of}auroc"]):
                wrong.append(f"{of}auroc = nan: it has samples of both classes")
        for key in ("auroc", "other-auroc"):
            if positives in (0, n) and not math.isnan(record[key]):
                wrong.append(f"{key} = {record[key]}: it has samples of one class")
        if len({len(record[f"group-{key}"]) for key in COLUMNS}) > 1:
            wrong.append("the columns of its subgroups have not the same length")
        elif any(p > all_ or all_ > n for p, all_ in zip(record["group-positives"], record["group-n"], strict=True)):
            wrong.append(f"a subgroup has more positives than samples, or more samples than the site: {n}")
        elif any(hits > p or misses > all_ - p for all_, p, hits, misses in zip(
            *(record[f"group-{key}"] for key in ("n", "positives", "true-positives", "true-negatives")), strict=True
        )):  # fmt: skip
            wrong.append("a subgroup has more true positives than positives, or more true negatives than negatives")
        for p, all_, auroc in zip(*(record[f"group-{key}"] for key in ("positives", "n", "auroc")), strict=False):
            if p in (0, all_) and not math.isnan(auroc):
                wrong.append(f"the AUROC of a subgroup of one class is {auroc}")
        return wrong


def record_names(labels: Sequence[str]) -> dict[str, str]:
    """Return for each label what a message calls its record; of one label, whose name is empty, ``"evidence"``."""
    return {label: f"evidence-{place}" if label else "evidence" for place, label in enumerate(labels)}


def grid_record(cuts: Sequence[list[float]], of: str = "") -> dict[str, list[float] | list[int]]:
    """Write the grids of all labels as entries of a record: one behind the other, and of several how long each is.

    ``of`` is ``"other-"`` for those of the other model.
    """
    bins = {f"{of}bins": [len(own) for own in cuts]} if len(cuts) > 1 else {}
    return {f"{of}cuts": [cut for own in cuts for cut in own], **bins}


def grids_of(cuts: Sequence[float], bins: Sequence[int]) -> list[Sequence[float]]:
    """Read what `grid_record` wrote, or what goes with it: an entry for each bin of all grids."""
    ends = [*accumulate(bins)] if bins else [len(cuts)]
    return [cuts[start:end] for start, end in pairwise([0, *ends])]


def wrong_grids(cuts: Sequence[float], bins: Sequence[int], of: str = "") -> list[str]:
    """Return what is wrong with the grids in a record that is otherwise as it should be."""
    if not cuts:
        return [f"{of}cuts are empty, which asks for nothing: leave them out"]
    if bins and sum(bins) != len(cuts):
        return [f"{of}bins add up to {sum(bins)}, of {len(cuts)} {of}cuts"]
    return [] if all(map(ascending, grids_of(cuts, bins))) else [f"{of}cuts do not ascend"]


def counts_record(counts: Counts, other: Counts | None = None) -> dict[str, Any]:
    """Write the second answer as a record of a message; ``other`` is of the other model's scores."""
    return {
        "positives": counts.positives.astype(int).tolist(),
        "negatives": counts.negatives.astype(int).tolist(),
        "sums": counts.sums.tolist(),
    } | ({} if other is None else {
        "other-positives": other.positives.astype(int).tolist(),
        "other-negatives": other.negatives.astype(int).tolist(),
    })  # fmt: skip


def counts_of(record: Mapping[str, Any]) -> Counts:
    """Read a record in which `wrong_counts` found nothing."""
    return Counts(*(np.array(record[key], float) for key in ("positives", "negatives", "sums")))


def counts_of_other(record: Mapping[str, Any]) -> Pair | None:
    """Read what such a record has of the other model's scores; None for nothing."""
    if "other-positives" not in record:
        return None
    return np.array(record["other-positives"], float), np.array(record["other-negatives"], float)


def wrong_counts(record: Mapping[str, Any], bins: int, n: int, positives: int, other_bins: int = 0) -> list[str]:
    """Return what is wrong with a record of counts on a grid, of a site that has so many samples.

    With ``other_bins`` it has counts on a grid for the other model's scores, too.
    """
    counted = Several(COUNT, (bins,))
    schema: Schema = {"positives": counted, "negatives": counted, "sums": Several(SCORE, (bins,))}
    others = dict.fromkeys(("other-positives", "other-negatives") if other_bins else (), Several(COUNT, (other_bins,)))
    wrong = mistakes(record, {**schema, **others})
    for name, count in (("positives", positives), ("negatives", n - positives)) if not wrong else ():
        for of in ("", "other-") if other_bins else ("",):
            if (total := sum(record[f"{of}{name}"])) != count:
                wrong.append(f"{of}{name} add up to {total}: it has {count}")
    return wrong


def ascending(cuts: Sequence[float]) -> bool:
    """Whether each is above the one before it."""
    return all(low < high for low, high in pairwise(cuts))
