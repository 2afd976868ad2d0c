"""Warnings at a run's end that its step sizes are likely off: an objective that hardly moves, or one that oscillates.

Both are statements at `evidence.intervals.LEVEL`, 95 %. The third sign, a ranking the wrong way round, follows from the
evidence: `evidence.inverted`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from edelweiss.evidence.intervals import LEVEL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from edelweiss.config import RunConfig
    from edelweiss.evidence.sums import Floats
    from edelweiss.federation import FederatedStrategy
    from edelweiss.server_app.recorder import Record

MOST_RANGES = 5  # of rounds in a line about an outlier
OBJECTIVES = ("loss", "distance-x")  # of a record: the first that it has
FEWEST = 9  # evaluations: of fewer no order can be shown at this level
CONVERGED = 3.0  # time constants after which 95 % of an exponential fall lies behind


def training_warnings(strategy: FederatedStrategy, records: Sequence[Record]) -> list[str]:
    """Return the warnings about a finished run from its lines of metrics.jsonl, two sentences each."""
    found: list[str] = []
    name = next((name for name in OBJECTIVES if any(name in record for record in records)), "")
    values = np.array([record[name] for record in records if name in record], float)
    if len(values) < FEWEST or not np.isfinite(values).all():
        return found
    if not np.diff(values).any():
        found.append(
            "The objective does not move at all: steps are so short that they round to nothing, or so long that the "
            f"first one saturates the model. Try others (now {strategy.step_sizes})."
        )
    elif factor := steps_too_short(values):
        found.append(
            f"The objective has hardly moved: its fall does not slow down, so the run is shorter than the time in "
            f"which it would converge. Try steps {factor:.2g} times as long or longer (now {strategy.step_sizes}), or "
            f"more rounds."
        )
    if oscillates(values, _between_sites(records[-1], name)):
        found.append(
            "The objective oscillates: from one evaluation to the next it changes by as much as the whole run has "
            f"gained. Try steps a third as long (now {strategy.step_sizes})."
        )
    return found


def steps_too_short(values: Floats) -> float:
    """Return by what factor steps should be longer, at least, if the run is too short for them; 0 if it is not.

    An objective approaches its limit as exp(-t/τ) where steps suit it. Then its fall in the second half of a run of
    length T is exp(-T/2τ) times that in the first. If this ratio is above exp(-1/2), then T < τ: Mann and Whitney's
    test on the falls between successive evaluations, which a few odd ones, such as that to a stage's average, do not
    change. To be `CONVERGED` takes steps longer by 3τ/T; a ratio within its error of 1 only bounds τ from below.
    """
    from scipy.stats import mannwhitneyu, wilcoxon

    falls = -np.diff(values)
    early, late = falls[: len(falls) // 2], falls[len(falls) // 2 :]
    chance = (1 - LEVEL) / 2
    tests = mannwhitneyu(late, math.exp(-0.5) * early, alternative="greater"), wilcoxon(falls, alternative="greater")
    first, second = float(np.median(early)), float(np.median(late))
    if second <= 0 or any(test.pvalue > chance for test in tests):
        return 0.0
    slowing = -2 * math.log(min(second / first, 1.0)) if first > 0 else 0.0
    error = _deviation(falls) / (math.sqrt(len(falls)) * max(first, second))
    return CONVERGED / max(slowing, 2 * error, float(np.finfo(np.float32).eps))


def oscillates(values: Floats, between_sites: float) -> bool:
    """Return whether an objective changes between evaluations by as much as a run has gained, and this matters.

    ``between_sites`` is the objective's standard error over sites: a smaller change is less than other patients would
    make. Only the second half of a run counts, and changes about their mean: a trend, as of overfitting, is none.
    """
    from scipy.stats import norm

    half = values[len(values) // 2 :]
    change = float(np.std(np.diff(half), ddof=1))
    gained = max(0.0, values[0] - half.mean())
    return bool(norm.ppf((1 + LEVEL) / 2) * change > gained and change > between_sites)


def _deviation(values: Floats) -> float:
    """Return the standard deviation of values as their median absolute deviation shows it: odd ones change little."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _between_sites(record: Record, name: str) -> float:
    """Return the standard error of an objective over sites; 0 if it is not about several."""
    own = [site[name] for site in record.get("sites", {}).values() if math.isfinite(site.get(name, math.nan))]
    return float(np.std(own, ddof=1)) / math.sqrt(len(own)) if len(own) > 1 else 0.0


def outliers(config: RunConfig, records: Sequence[Record]) -> list[str]:
    """Return a line for each site whose replies were outliers: how far at most, and in which rounds."""
    rounds: dict[str, dict[int, float]] = {}
    for record in records:
        for name, ratio in record.get("outliers", {}).items():
            rounds.setdefault(name, {})[record["round"]] = ratio
    how = config.robustness.aggregation
    done = "shortened to" if how == "clipped" else "beyond"
    return [
        f"Site {name!r} sent updates of up to {max(of.values()):.3g} times the sites' median norm, in {_ranges(of)} "
        f"({done} outlier-multiple = {config.outlier_multiple:g}, aggregation = {how!r}): ask it why."
        for name, of in rounds.items()
    ]


def _ranges(rounds: Iterable[int]) -> str:
    """Return rounds in words: "rounds 3, 5-9"."""
    found: list[list[int]] = []
    for r in rounds:
        if found and r == found[-1][1] + 1:
            found[-1][1] = r
        else:
            found.append([r, r])
    listed = [f"{first}-{last}" if last > first else str(first) for first, last in found[:MOST_RANGES]]
    more = [f"{len(found) - MOST_RANGES} more spans"] if len(found) > MOST_RANGES else []
    return ("round " if len(found) == 1 and found[0][0] == found[0][1] else "rounds ") + ", ".join([*listed, *more])
