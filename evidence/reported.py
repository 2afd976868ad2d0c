"""What a site tells for evidence.json, in its answers to the last evaluation: their records, and what these may hold.

The histograms in its evaluation say most. Beside them are its own AUROC with a variance that knows of patients with
several samples, and its subgroups. Where a run is compared with another model, there are histograms of that one's
scores, too, and a second answer has what of the comparison needs the counts of all sites, see `evidence.paired`.

A site whose rules let it tell of groups of patients only tells no more of its scores than its evaluation does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from edelweiss.common import Binary, Number, Schema, Several, Text, mistakes
from edelweiss.evidence.delong import Auroc
from edelweiss.evidence.design import SINGLE, Design
from edelweiss.evidence.grid import Counts
from edelweiss.problems.histogram import ENTRY, Histogram
from edelweiss.problems.histogram import wrong as wrong_histogram

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_GROUPS = 100
LARGEST = 1e30  # of a score: beyond it a model has diverged
COUNT = Number(0, 2**53, whole=True)
SHARE, VARIANCE = Number(0, 1, nan=True, rounding=1e-9), Number(0, 1, nan=True)
EFFECT = Number(1e-6, 1e6)  # a design effect
COLUMNS: dict[str, Number | Text] = {
    "column": Text(),
    "name": Text(),
    "n": COUNT,
    "positives": COUNT,
    "true-positives": COUNT,
    "true-negatives": COUNT,
    "auroc": SHARE,
    "variance": VARIANCE,
    **{f"design-{of}": EFFECT for of in ("auroc", "sensitivity", "specificity", "largest")},
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
    design : (float, float, float, float)
        How many times as large the variances of AUROC, sensitivity and specificity are because patients have several
        samples, and could be at most, see `evidence.design`.
    """

    column: str
    name: str
    n: int
    positives: int
    hits: tuple[int, int]
    auroc: Auroc
    design: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)

    @property
    def sizes(self) -> tuple[int, int]:
        """How many positives and negatives it has."""
        return self.positives, self.n - self.positives


@dataclass(frozen=True, eq=False)
class Told:
    """What comes with an evaluation.

    Attributes
    ----------
    auroc : Auroc
        The site's own, exactly; NaN of one that tells of groups of patients only.
    design : Design
        How many times as large variances are because patients have several samples.
    groups : sequence of Group
        Subgroups.
    other : Auroc
        Of the model that the run is compared with, on the same samples; NaN without one.
    covariance : float
        Of the two.
    other_counts : Counts, optional
        Of the other model's scores; None without one, of groups, and where the sites share no model.
    """

    auroc: Auroc = field(default_factory=lambda: Auroc(math.nan, math.nan))
    design: Design = SINGLE
    groups: Sequence[Group] = ()
    other: Auroc = field(default_factory=lambda: Auroc(math.nan, math.nan))
    covariance: float = math.nan
    other_counts: Counts | None = None

    def record(self) -> dict[str, Any]:
        """Write it as a record of a message."""
        rows = [
            (one.column, one.name, one.n, one.positives, *one.hits, one.auroc.value, one.auroc.variance, *one.design)
            for one in self.groups
        ]
        groups = {key: [row[place] for row in rows] for place, key in enumerate(COLUMNS)}
        of_other = self.other_counts.histograms() if self.other_counts else ()
        positive, negative = (own.packed() for own in of_other) if of_other else (b"", b"")
        return {
            "auroc": self.auroc.value,
            "variance": self.auroc.variance,
            "design": self.design.told(),
            "other-auroc": self.other.value,
            "other-variance": self.other.variance,
            "covariance": self.covariance,
            "other-positive-scores": positive,
            "other-negative-scores": negative,
            **{f"group-{key}": values for key, values in groups.items()},
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Told:
        """Read a record in which `wrong` found nothing."""
        rows = zip(*(record[f"group-{key}"] for key in COLUMNS), strict=True)
        of_other = [record[f"other-{kind}-scores"] for kind in ("positive", "negative")]
        return cls(
            Auroc(record["auroc"], record["variance"]),
            Design(*record["design"]),
            [
                Group(column, name, n, positives, (p_right, n_right), Auroc(value, variance), tuple(design))
                for column, name, n, positives, p_right, n_right, value, variance, *design in rows
            ],
            Auroc(record["other-auroc"], record["other-variance"]),
            record["covariance"],
            Counts.of_histograms(*map(Histogram.unpacked, of_other)) if any(of_other) else None,
        )

    @staticmethod
    def wrong(record: Mapping[str, Any], n: int, positives: int, *, grouped: bool = False) -> list[str]:
        """Return what is wrong with a record of a site that has so many samples, and maybe tells of groups only."""
        schema: Schema = {
            "auroc": SHARE,
            "variance": VARIANCE,
            "design": Several(EFFECT, (len(fields(Design)),)),
            "other-auroc": SHARE,
            "other-variance": VARIANCE,
            "covariance": Number(-1, 1, nan=True),
            "other-positive-scores": Binary(ENTRY),
            "other-negative-scores": Binary(ENTRY),
            **{f"group-{key}": Several(item, most=MOST_GROUPS) for key, item in COLUMNS.items()},
        }
        if wrong := mistakes(record, schema):
            return wrong
        of_other = {key: record[key] for key in ("other-positive-scores", "other-negative-scores")}
        if any(of_other.values()):
            texts = map(wrong_histogram, of_other.values(), (positives, n - positives))
            wrong += [f"{key}: {text}" for key, text in zip(of_other, texts, strict=True) if text]
        for key, known in (("auroc", not grouped), ("other-auroc", any(of_other.values()))):
            if known and 0 < positives < n and math.isnan(record[key]):
                wrong.append(f"{key} = nan: it has samples of both classes")
            if positives in (0, n) and not math.isnan(record[key]):
                wrong.append(f"{key} = {record[key]}: it has samples of one class")
        effects = [record["design"], *(record[key] for key in record if key.startswith("group-design-"))]
        if any(effect > n for own in effects for effect in own):
            wrong.append(f"a design effect is more than {n}, as if its samples were of less than one patient")
        if len({len(record[f"group-{key}"]) for key in COLUMNS}) > 1:
            wrong.append("the columns of its subgroups have not the same length")
        elif any(p > all_ or all_ > n for p, all_ in zip(record["group-positives"], record["group-n"], strict=True)):
            wrong.append(f"a subgroup has more positives than samples, or more samples than the site: {n}")
        elif any(
            hits > p or misses > all_ - p
            for all_, p, hits, misses in zip(
                *(record[f"group-{key}"] for key in ("n", "positives", "true-positives", "true-negatives")), strict=True
            )
        ):
            wrong.append("a subgroup has more true positives than positives, or more true negatives than negatives")
        for p, all_, auroc in zip(*(record[f"group-{key}"] for key in ("positives", "n", "auroc")), strict=False):
            if p in (0, all_) and not math.isnan(auroc):
                wrong.append(f"the AUROC of a subgroup of one class is {auroc}")
        return wrong


def record_names(labels: Sequence[str]) -> dict[str, str]:
    """Return for each label what a message calls its record; of one label, whose name is empty, ``"evidence"``."""
    return {label: f"evidence-{place}" if label else "evidence" for place, label in enumerate(labels)}
