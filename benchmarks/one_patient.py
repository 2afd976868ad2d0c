"""What the worst coordinator learns of one patient, if it spends all of a site's budget on that one.

    python -m benchmarks.one_patient [--delta 1e-3] [--trials 20000]

It chooses a model for which nobody else's gradient says anything, in the same places at least, and asks once about all
patients. The answer is the patient's features and a constant, scaled to the clip, and the noise that ε takes. Features
are independent and standard normal, as far as the coordinator knows; it has the best linear guess of each from the
answer. The table has the error of that guess, root mean square in standard deviations. Without an answer it is 1.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import numpy as np

from edelweiss.config.privacy import counts_cost
from edelweiss.federation.privacy_account import SENSITIVITY, Query, noise_for

if TYPE_CHECKING:
    from collections.abc import Sequence

EPSILONS = (8.0, 3.0, 1.0)
FEATURES = (4, 13, 100)
CONSTANT = 0.3  # what a gradient by the bias is of one by the weight of a feature of 1: the attacker's choice


def error(target: float, features: int, delta: float, trials: int) -> float:
    """Return the error of the best linear guess of a feature, in standard deviations.

    Parameters
    ----------
    target
        ε of the run, which has one query over all patients.
    features
        d.
    delta
        δ of the run.
    trials
        Patients.
    """
    noise = noise_for({Query(1.0): 1}, target, delta, counts_cost()) / SENSITIVITY
    random = np.random.default_rng(0)
    rows = random.normal(size=(trials, features))
    gradients = np.column_stack([rows, np.full(trials, CONSTANT)])
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
    answers = gradients + noise * random.normal(size=gradients.shape)
    known = np.column_stack([answers, np.ones(trials)])
    guesses = known @ np.linalg.lstsq(known, rows, rcond=None)[0]
    return float(np.sqrt(np.mean((guesses - rows) ** 2)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--delta", type=float, default=1e-3)
    parser.add_argument("--trials", type=int, default=20_000)
    options = parser.parse_args(arguments)
    print("| features | " + " | ".join(f"ε = {target:g}" for target in EPSILONS) + " |")
    print("| --- " * (1 + len(EPSILONS)) + "|")
    for features in FEATURES:
        errors = (error(target, features, options.delta, options.trials) for target in EPSILONS)
        print(f"| {features} | " + " | ".join(f"{found:.2f}" for found in errors) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
