"""How often a 95 % interval from noised histograms holds the true AUROC and average precision; prints a table.

    python -m benchmarks.noised_coverage [--trials 4000] [--others]

10 % of the patients are positive; `SCORES` says how scores are distributed in each class, and `OTHERS` has shapes by
which nothing in `evidence.noised` was chosen. A cell is a distribution, a number of held-out patients and an ε
(δ = 1e-5): the share of the intervals that were given which hold the truth, their mean width, how many were given, and
the share of the width that is noise. A dash: hardly any were given.
"""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import logit
from scipy.stats import beta, gamma, norm

from edelweiss.evidence import noised
from edelweiss.evidence.noised import Noised, estimates
from edelweiss.federation.privacy_account import Query, noise_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

PATIENTS, EPSILONS = (200, 500, 2000), (8.0, 3.0, 1.0)
FEWEST = 0.02  # of the intervals that must be given to say how often they hold: others stand out by luck
PREVALENCE, DELTA, SPREAD, CENTRE = 0.1, 1e-5, 1.2, -2.2


@dataclass(frozen=True)
class Scores:
    """How scores are distributed in each class: log-odds, of probabilities where ``odds`` is set.

    Attributes
    ----------
    positive, negative
        Distributions of SciPy, with parameters.
    step
        Scores are multiples of it; 0: any number.
    """

    positive: Any
    negative: Any
    odds: bool = False
    step: float = 0.0
    prevalence: float = PREVALENCE

    @classmethod
    def normal(cls, auroc: float) -> Scores:
        """Return normal scores that lie so far apart."""
        apart = norm.ppf(auroc) * math.sqrt(2)
        return cls(norm(CENTRE + SPREAD * apart, SPREAD), norm(CENTRE, SPREAD))

    @classmethod
    def betas(cls, positive: tuple[float, float], negative: tuple[float, float]) -> Scores:
        """Return the log-odds of probabilities from beta distributions."""
        return cls(beta(*positive), beta(*negative), odds=True)

    def truth(self) -> dict[str, float]:
        """Return AUROC and average precision."""
        score = self._on_steps(self.positive.ppf((np.arange(10_000) + 0.5) / 10_000))
        ends = score - self.step / 2, score + self.step / 2
        true, false = self.prevalence * self.positive.sf(ends[0]), (1 - self.prevalence) * self.negative.sf(ends[0])
        return {
            "auroc": float(np.mean([self.negative.cdf(end) for end in ends])),
            "auprc": float((true / np.maximum(true + false, 1e-300)).mean()),
        }

    def _on_steps(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.round(scores / self.step) * self.step if self.step else scores

    def drawn(
        self, patients: int, noise: float, random: np.random.Generator, edges: NDArray[np.float64] | None = None
    ) -> Noised:
        """Return the noised histograms of a site's patients."""
        positive = (random.random(patients) < self.prevalence).astype(float)
        found = np.where(
            positive == 1, *(own.rvs(patients, random_state=random) for own in (self.positive, self.negative))
        )
        scores = logit(np.clip(found, 1e-9, 1 - 1e-9)) if self.odds else self._on_steps(found)
        return Noised.of(scores, positive, np.ones(patients), patients, noise, random.standard_normal, edges)


SCORES = {
    "normal 0.75": Scores.normal(0.75),
    "normal 0.9": Scores.normal(0.9),
    "beta": Scores.betas((4, 2), (2, 5)),
    "at both ends": Scores.betas((0.5, 0.5), (0.3, 3)),
}
"""Normal ones by their AUROC; probabilities of one hump; and such as crowd at 0 and 1, with positives at both ends."""
OTHERS = {
    "normal 0.65": Scores.normal(0.65),
    "normal 0.95": Scores.normal(0.95),
    "positives spread twice": Scores(norm(CENTRE + 2, 1.8), norm(CENTRE, 0.9)),
    "skewed": Scores(gamma(3, loc=-3), gamma(1.5, loc=-3, scale=0.8)),
    "a few values": replace(Scores.normal(0.85), step=SPREAD),
    "normal 0.85, 5 %": replace(Scores.normal(0.85), prevalence=0.05),
    "normal 0.85, 20 %": replace(Scores.normal(0.85), prevalence=0.2),
    "normal 0.85, 50 %": replace(Scores.normal(0.85), prevalence=0.5),
}
"""Also with other shares of positives."""


def cell(scores: str, patients: int, epsilon: float, trials: int) -> dict[str, tuple[float, float, float, float]]:
    """Return coverage, width, share given and share of noise, by metric."""
    noise, random = noise_for({Query(1.0): 1}, epsilon, DELTA), np.random.default_rng(0)
    shape = (SCORES | OTHERS)[scores]
    sites = [[shape.drawn(patients, noise, random)] for _ in range(trials)]
    shares = [estimates(site) for site in sites[:: min(10, trials)]]  # of noise, which takes as long again
    truth, rows = shape.truth(), {}
    for name, estimate in (("auroc", noised._auroc), ("auprc", noised._average_precision)):
        ends = [one[1:] for one in (estimate(site, with_noise=True) for site in sites) if one]
        enough = len(ends) > FEWEST * trials
        low, high = np.array(ends).T if enough else np.full((2, 1), np.nan)
        covers = float(((low <= truth[name]) & (truth[name] <= high)).mean()) if enough else math.nan
        share = [one[f"{name}-noise"] for one in shares if enough and name in one]
        alone = float(np.mean(share)) if share else math.nan
        rows[name] = covers, float((high - low).mean()), len(ends) / trials, alone
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4000)
    parser.add_argument("--others", action="store_true", help="shapes by which nothing was chosen")
    asked = parser.parse_args(arguments)
    trials = asked.trials
    if trials < 1:
        parser.error(f"--trials {trials}: must be 1 or more")
    print("| scores | held out | ε | AUROC: covers | width | given | noise | AP: covers | width | given | noise |")
    print("| ---: " * 11 + "|")
    cells = [*product(OTHERS if asked.others else SCORES, PATIENTS, EPSILONS)]
    with ProcessPoolExecutor() as pool:
        found = pool.map(cell, *zip(*cells, strict=True), [trials] * len(cells))
        for (scores, patients, epsilon), row in zip(cells, found, strict=True):
            parts = [
                f"{covers:.3f} | {width:.3f} | {given:.0%} | {noise:.0%}"
                for covers, width, given, noise in row.values()
            ]
            line = f"| {scores} | {patients:,} | {epsilon:g} | {' | '.join(parts)} |"
            print(line.replace("nan%", "-").replace("nan", "-"), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
