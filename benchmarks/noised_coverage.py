"""How often a 95 % interval from noised histograms holds the true AUROC and average precision; prints a table.

    python -m benchmarks.noised_coverage [--trials 4000]

Scores are normal in each class, 10 % of the patients positive. A cell is a number of held-out patients and an ε (δ =
1e-5): the share of the intervals that were given which hold the truth, their mean width, how many were given, and the
share of the width that is noise. A dash: hardly any were given.
"""

from __future__ import annotations

import argparse
import math
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from scipy.integrate import quad
from scipy.stats import norm

from edelweiss.evidence.noised import Noised, estimates
from edelweiss.federation.privacy_account import Query, noise_for

if TYPE_CHECKING:
    from collections.abc import Sequence

AUROCS, PATIENTS, EPSILONS = (0.75, 0.9), (200, 500, 2000), (8.0, 3.0, 1.0)
FEWEST = 0.01  # of the intervals that must be given to say how often they hold: others stand out by luck
PREVALENCE, DELTA, SPREAD, CENTRE = 0.1, 1e-5, 1.2, -2.2


def truth(auroc: float) -> dict[str, float]:
    """Return AUROC and average precision of normal scores that lie so far apart."""
    apart = norm.ppf(auroc) * math.sqrt(2)

    def at(score: float) -> float:
        true, false = PREVALENCE * norm.sf(score - apart), (1 - PREVALENCE) * norm.sf(score)
        return float(norm.pdf(score - apart) * true / (true + false))

    return {"auroc": auroc, "auprc": quad(at, -8, 8 + apart)[0]}


def drawn(auroc: float, patients: int, noise: float, random: np.random.Generator) -> Noised:
    """Return the noised histograms of a site's patients."""
    positive = (random.random(patients) < PREVALENCE).astype(float)
    apart = norm.ppf(auroc) * math.sqrt(2)
    scores = CENTRE + SPREAD * (random.standard_normal(patients) + apart * positive)
    return Noised.of(scores, positive, np.ones(patients), patients, noise, random.standard_normal)


def cell(auroc: float, patients: int, epsilon: float, trials: int) -> dict[str, tuple[float, float, float, float]]:
    """Return coverage, width, share given and share of noise, by metric."""
    noise, random = noise_for({Query(1.0): 1}, epsilon, DELTA), np.random.default_rng(0)
    found = [estimates([drawn(auroc, patients, noise, random)]) for _ in range(trials)]
    rows = {}
    for name, true in truth(auroc).items():
        ends = [(one[f"{name}-low"], one[f"{name}-high"], one[f"{name}-noise"]) for one in found if name in one]
        enough = len(ends) > FEWEST * trials
        low, high, share = np.array(ends).T if enough else np.full((3, 1), np.nan)
        covers = float(((low <= true) & (true <= high)).mean()) if enough else math.nan
        rows[name] = covers, float((high - low).mean()), len(ends) / trials, float(share.mean())
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4000)
    trials = parser.parse_args(arguments).trials
    if trials < 1:
        parser.error(f"--trials {trials}: must be 1 or more")
    print("| AUROC | held out | ε | AUROC: covers | width | given | noise | AP: covers | width | given | noise |")
    print("| ---: " * 11 + "|")
    for auroc, patients, epsilon in product(AUROCS, PATIENTS, EPSILONS):
        parts = [
            f"{covers:.3f} | {width:.3f} | {given:.0%} | {noise:.0%}"
            for covers, width, given, noise in cell(auroc, patients, epsilon, trials).values()
        ]
        print(
            f"| {auroc} | {patients:,} | {epsilon:g} | {' | '.join(parts)} |".replace("nan%", "-").replace("nan", "-")
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
