"""Records that a site reports for evidence.json in its replies to the last evaluation, and their checks.

They come with the histograms of the evaluation: the site's AUROC with a variance that accounts for several samples per
patient, and its subgroups. If the run is compared with another model, they include histograms of that model's scores;
a second reply holds the part of the comparison that needs pooled counts, see `evidence.paired`.

A site whose policy aggregates scores over groups of patients reports only design effects and subgroups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from edelweiss.common import Schema, record_errors
from edelweiss.common.schema import binary, number, several, whole, words
from edelweiss.evidence.delong import Auroc
from edelweiss.evidence.design import SINGLE, Design
from edelweiss.evidence.grid import Counts
from edelweiss.problems.histogram import ENTRY, Histogram
from edelweiss.problems.histogram import wrong as wrong_histogram

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_GROUPS = 100
MAX_SCORE = 1e30  # a model with larger scores has diverged
COUNT = whole(0, 2**53)
SHARE, VARIANCE = number(-1e-9, 1 + 1e-9, nan=True), number(0, 1, nan=True)
EFFECT = number(1e-6, 1e6)  # a design effect
COLUMNS: dict[str, Any] = {
    "column": words(),
    "name": words(),
    "n": COUNT,
    "positives": COUNT,
    "true-positives": COUNT,
    "true-negatives": COUNT,
    "auroc": SHARE,
    "variance": VARIANCE,
    **{f"design-{of}": EFFECT for of in ("auroc", "sensitivity", "specificity", "largest")},
}

SCHEMA = Schema(
    {
        "auroc": SHARE,
        "variance": VARIANCE,
        "design": several(EFFECT, (len(fields(Design)),)),
        "other-auroc": SHARE,
        "other-variance": VARIANCE,
        "covariance": number(-1, 1, nan=True),
        "other-positive-scores": binary(ENTRY),
        "other-negative-scores": binary(ENTRY),
        **{f"group-{key}": several(item, most=MOST_GROUPS) for key, item in COLUMNS.items()},
    }
)


@dataclass(frozen=True, eq=False)
class Group:
    """A subgroup of a site's patients."""

    # column, name: the column of the table and the group's name in it
    column: str
    name: str
    # n, positives: number of samples, and of positive ones
    n: int
    positives: int
    # true positives and true negatives at the site's threshold (`evidence.curves.SUBGROUP_SPECIFICITY`)
    hits: tuple[int, int]
    auroc: Auroc  # AUROC with its variance
    # design effects of AUROC, sensitivity and specificity, and their upper bound, see `evidence.design`
    design: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of positives and of negatives."""
        return self.positives, self.n - self.positives


@dataclass(frozen=True, eq=False)
class Reported:
    """Statistics that a site reports with an evaluation."""

    # the site's exact AUROC; NaN from a site that aggregates scores
    auroc: Auroc = field(default_factory=lambda: Auroc(math.nan, math.nan))
    design: Design = SINGLE  # design effects
    groups: Sequence[Group] = ()  # subgroups
    # AUROC of the model under comparison on the same samples; NaN without one
    other: Auroc = field(default_factory=lambda: Auroc(math.nan, math.nan))
    covariance: float = math.nan  # covariance of the two AUROCs
    # counts of the other model's scores; None without one, with aggregated scores, or without a common model
    other_counts: Counts | None = None

    def record(self) -> dict[str, Any]:
        """Write the statistics as a record of a message."""
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
            "design": self.design.values(),
            "other-auroc": self.other.value,
            "other-variance": self.other.variance,
            "covariance": self.covariance,
            "other-positive-scores": positive,
            "other-negative-scores": negative,
            **{f"group-{key}": values for key, values in groups.items()},
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Reported:
        """Read a record that `wrong` accepts."""
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
        """List the problems of a record from a site with ``n`` samples; ``grouped`` if its scores are aggregated."""
        if wrong := record_errors(record, SCHEMA):
            return wrong
        of_other = {key: record[key] for key in ("other-positive-scores", "other-negative-scores")}
        if any(of_other.values()):
            texts = map(wrong_histogram, of_other.values(), (positives, n - positives))
            wrong += [f"{key}: {text}" for key, text in zip(of_other, texts, strict=True) if text]
        for key, known in (("auroc", not grouped), ("other-auroc", any(of_other.values()))):
            if known and 0 < positives < n and math.isnan(record[key]):
                wrong.append(f"{key} = nan: must be defined, since the site has both classes")
            if positives in (0, n) and not math.isnan(record[key]):
                wrong.append(f"{key} = {record[key]}: must be NaN, since the site has only one class")
        for key in ("design", *(key for key in record if key.startswith("group-design-"))):
            if any(effect > n for effect in record[key]):
                wrong.append(f"{key} = {record[key]}: design effects must be at most {n}, the number of samples")
        if len({len(record[f"group-{key}"]) for key in COLUMNS}) > 1:
            wrong.append("group-…: the columns of the subgroups differ in length")
        elif any(p > all_ or all_ > n for p, all_ in zip(record["group-positives"], record["group-n"], strict=True)):
            wrong.append(f"group-n: a subgroup has more positives than samples, or more samples than the site: {n}")
        elif any(
            hits > p or misses > all_ - p
            for all_, p, hits, misses in zip(
                *(record[f"group-{key}"] for key in ("n", "positives", "true-positives", "true-negatives")), strict=True
            )
        ):
            wrong.append("group-true-…: more true positives than positives, or more true negatives than negatives")
        for p, all_, auroc in zip(*(record[f"group-{key}"] for key in ("positives", "n", "auroc")), strict=False):
            if p in (0, all_) and not math.isnan(auroc):
                wrong.append(f"group-auroc = {auroc}: must be NaN for a subgroup with only one class")
        return wrong


def record_names(labels: Sequence[str]) -> dict[str, str]:
    """Name the record of each label in a message; a single label, whose name is empty, has ``"evidence"``."""
    return {label: f"evidence-{place}" if label else "evidence" for place, label in enumerate(labels)}
