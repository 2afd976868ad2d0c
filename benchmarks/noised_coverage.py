"""How often a 95 % interval from noised histograms holds the true AUROC and average precision; prints a table.

    python -m benchmarks.noised_coverage [--trials 4000]

10 % of the patients are positive; `SCORES` says how scores are distributed in each class. A cell is a distribution, a
number of held-out patients and an ε (δ = 1e-5): the share of the intervals that were given which hold the truth, their
mean width, how many were given, and the share of the width that is noise. A dash: hardly any were given.
"""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import logit
from scipy.stats import beta, norm

from edelweiss.evidence import noised
from edelweiss.evidence.noised import Noised, estimates
from edelweiss.federation.privacy_account import Query, noise_for

if TYPE_CHECKING:
    from collections.abc import Sequence

PATIENTS, EPSILONS = (200, 500, 2000), (8.0, 3.0, 1.0)
FEWEST = 0.01  # of the intervals that must be given to say how often they hold: others stand out by luck
PREVALENCE, DELTA, SPREAD, CENTRE = 0.1, 1e-5, 1.2, -2.2


@dataclass(frozen=True)
class Scores:
    """How scores are distributed in each class: log-odds, of probabilities where ``odds`` is set.

    Attributes
    ----------
    positive, negative
        Distributions of SciPy, with parameters.
    """

    positive: Any
    negative: Any
    odds: bool = False

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
        score = self.positive.ppf((np.arange(10_000) + 0.5) / 10_000)
        true, false = PREVALENCE * self.positive.sf(score), (1 - PREVALENCE) * self.negative.sf(score)
        return {
            "auroc": float(self.negative.cdf(score).mean()),
            "auprc": float((true / np.maximum(true + false, 1e-300)).mean()),
        }

    def drawn(self, patients: int, noise: float, random: np.random.Generator) -> Noised:
        """Return the noised histograms of a site's patients."""
        positive = (random.random(patients) < PREVALENCE).astype(float)
        found = np.where(
            positive == 1, *(own.rvs(patients, random_state=random) for own in (self.positive, self.negative))
        )
        scores = logit(np.clip(found, 1e-9, 1 - 1e-9)) if self.odds else found
        return Noised.of(scores, positive, np.ones(patients), patients, noise, random.standard_normal)


SCORES = {
    "normal 0.75": Scores.normal(0.75),
    "normal 0.9": Scores.normal(0.9),
    "beta": Scores.betas((4, 2), (2, 5)),
    "at both ends": Scores.betas((0.5, 0.5), (0.3, 3)),
}
"""Normal ones by their AUROC; probabilities of one hump; and such as crowd at 0 and 1, with positives at both ends."""


def cell(scores: str, patients: int, epsilon: float, trials: int) -> dict[str, tuple[float, float, float, float]]:
    """Return coverage, width, share given and share of noise, by metric."""
    noise, random = noise_for({Query(1.0): 1}, epsilon, DELTA), np.random.default_rng(0)
    sites = [[SCORES[scores].drawn(patients, noise, random)] for _ in range(trials)]
    shares = [estimates(site) for site in sites[:: min(10, trials)]]  # of noise, which takes as long again
    truth, rows = SCORES[scores].truth(), {}
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
    trials = parser.parse_args(arguments).trials
    if trials < 1:
        parser.error(f"--trials {trials}: must be 1 or more")
    print("| scores | held out | ε | AUROC: covers | width | given | noise | AP: covers | width | given | noise |")
    print("| ---: " * 11 + "|")
    cells = [*product(SCORES, PATIENTS, EPSILONS)]
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
