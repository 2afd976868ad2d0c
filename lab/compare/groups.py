"""Runs that differ by what is repeated alone: their means and spreads, and differences of one such group to another."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edelweiss.lab.compare.runs import Run, final, metric, path_of_ties

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
        found = (final(run.outcome, path) for run in self.runs)
        return [value for value in found if value is not None and math.isfinite(value)]

    def off(self, path: str) -> float:
        """Return the most by which a metric of a run may be off, because sites told of groups; 0 where none did."""
        where = path_of_ties(path)
        return max((final(run.outcome, where) or 0.0 for run in self.runs), default=0.0) if where else 0.0

    def reached(self, path: str, target: float) -> list[tuple[float, float]]:
        """Return when a metric reached a target, of each run that came so far: the round, and seconds per worker."""
        found = []
        for run in self.runs:
            seconds = 0.0
            for record in run.outcome.records:
                seconds += record.get("seconds", 0.0) / run.sites
                if (metric(record, path) or 0.0) >= target:
                    found.append((float(record["round"]), seconds))
                    break
        return found

    def spent(self, kind: str) -> float:
        """Return what a whole run spent on average, see `Run.spending`; 0 without a run."""
        totals = [curve[-1][1] for run in self.converged if (curve := run.spending(kind))]
        return statistics.mean(totals) if totals else 0.0

    def within(self, path: str, kind: str, budget: float) -> float | None:
        """Return a metric's mean over the runs, each as it was last evaluated before it exceeded a budget."""
        found = []
        for run in self.converged:
            lines = zip(run.outcome.records, run.spending(kind), strict=True)
            affordable = [
                value
                for record, (_, total) in lines
                if total <= budget * 1.001 and (value := metric(record, path)) is not None
            ]
            if not affordable:
                return None
            found.append(affordable[-1])
        return statistics.mean(found) if found else None


@dataclass(frozen=True)
class Difference:
    """A mean difference over pairs of runs, and half the width of its confidence interval (Student's t)."""

    mean: float
    half: float
    pairs: int

    @classmethod
    def between(cls, group: Group, base: Group, path: str) -> Difference:
        """Compare two groups; mean and half are NaN with fewer than two pairs."""
        pairs = paired(group, base, path)
        if len(pairs) < 2:
            return cls(math.nan, math.nan, len(pairs))
        return cls(statistics.mean(pairs), half_width(pairs), len(pairs))

    @property
    def sign(self) -> int:
        """1 or -1 where the interval leaves out zero, and 0 where it shows no order."""
        return (self.mean > self.half) - (self.mean < -self.half)

    def __str__(self) -> str:
        """The mean and the interval."""
        low, high = self.mean - self.half, self.mean + self.half
        form = "+.1e" if 0 < max(abs(low), abs(high)) < 1e-3 else "+.4f"
        return f"{self.mean:{form}} ({low:{form}} to {high:{form}})"


def paired(group: Group, base: Group, path: str) -> list[float]:
    """Return the differences of a metric after the last round, of runs that agree in all that is repeated."""
    there = {tuple(run.repeat.items()): final(run.outcome, path) for run in base.runs}
    found = [(final(run.outcome, path), there.get(tuple(run.repeat.items()))) for run in group.runs]
    return [ours - theirs for ours, theirs in found if ours is not None and theirs is not None]


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the confidence interval of a mean, from two values or more."""
    from scipy.stats import t

    quantile = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def p_value(values: Sequence[float]) -> float:
    """Return Student's two-sided p of a mean of zero, from two values or more; below 1 - `CONFIDENCE` as `half_width`
    leaves out zero."""
    from scipy.stats import t

    mean, error = statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))
    if not error:
        return float(mean == 0)
    return float(2 * t.sf(abs(mean) / error, len(values) - 1))


def holm(ps: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm, Scand. J. Statist. 6:65-70, 1979), in the same order.

    The smallest is multiplied with their number, the next with one less, and so on; none is below a smaller one.
    """
    corrected, least = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda place: ps[place])):
        least = max(least, min(1.0, ps[place] * (len(ps) - rank)))
        corrected[place] = least
    return corrected
