"""Groups of runs that differ only in seed and fold: means, spreads, and paired differences between two groups."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from edelweiss.lab.compare.runs import Run, final, path_of_ties

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.95


@dataclass
class Group:
    """A line of a table: runs of one setting with several seeds."""

    label: str
    runs: list[Run] = field(default_factory=list)
    missing: int = 0

    @property
    def converged(self) -> list[Run]:
        """The runs that did not diverge."""
        return [run for run in self.runs if not run.outcome.diverged]

    def values(self, path: str) -> list[float]:
        """Return a metric at the end of each run that has it."""
        return [value for value in self.by_repeat(path) if math.isfinite(value)]

    def by_repeat(self, path: str) -> pd.Series[float]:
        """Return a metric at the end of each run by the run's seed and fold; NaN where a run has none."""
        index = [str(run.repeat) for run in self.runs]
        return pd.Series([final(run.outcome, path) for run in self.runs], index, dtype=float)

    def max_tie_error(self, path: str) -> float:
        """Return the largest error of a metric due to coarsened scores; 0 if no site coarsens."""
        where = path_of_ties(path)
        return max((final(run.outcome, where) or 0.0 for run in self.runs), default=0.0) if where else 0.0

    def spent(self, kind: str) -> float:
        """Return what a whole run spent on average, see `Run.spending`; 0 without a run."""
        totals = [curve[-1][1] for run in self.converged if (curve := run.spending(kind))]
        return statistics.mean(totals) if totals else 0.0


@dataclass(frozen=True)
class Difference:
    """A mean difference over pairs of runs, and half the width of its confidence interval (Student's t)."""

    mean: float
    half: float
    pairs: int

    @classmethod
    def between(cls, group: Group, base: Group, path: str, comparisons: int = 1) -> Difference:
        """Compare two groups, as one of several comparisons; mean and half are NaN with fewer than two pairs."""
        ours, theirs = group.by_repeat(path), base.by_repeat(path)
        pairs = list((ours - theirs.reindex(ours.index)).dropna())
        if len(pairs) < 2:
            return cls(math.nan, math.nan, len(pairs))
        return cls(statistics.mean(pairs), half_width(pairs, comparisons), len(pairs))

    @property
    def sign(self) -> int:
        """1 or -1 where the interval leaves out zero, and 0 where it shows no order."""
        return (self.mean > self.half) - (self.mean < -self.half)

    def __str__(self) -> str:
        """The mean and the interval."""
        low, high = self.mean - self.half, self.mean + self.half
        form = "+.1e" if 0 < max(abs(low), abs(high)) < 1e-3 else "+.4f"
        return f"{self.mean:{form}} ({low:{form}} to {high:{form}})"


def half_width(values: Sequence[float], comparisons: int = 1) -> float:
    """Return half the width of the confidence interval of a mean, from two values or more.

    With several ``comparisons`` all of their intervals hold together at that confidence (Bonferroni).
    """
    from scipy.stats import t

    quantile = float(t.ppf(1 - (1 - CONFIDENCE) / 2 / comparisons, len(values) - 1))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))
