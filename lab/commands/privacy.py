"""``privacy plan``: the noise that a run needs at a site of n patients, or the ε that a given noise costs."""

from __future__ import annotations

import argparse
import math
import sys
from typing import TYPE_CHECKING

from edelweiss.common.numbers import number, whole
from edelweiss.lab.commands import takes_run_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from edelweiss.common import Value

SUMMARY = "plan a run with differential privacy: its noise and its ε"
DESCRIPTION = (
    "Show the noise that a run with differential privacy adds at sites of different sizes, without running it: for "
    "its dp.epsilon, or for ε = 8, 3 and 1 where that is 0. With --noise show the ε that a given noise costs instead."
)
PATIENTS = (200, 2000, 6000)
EPSILON = "dp.epsilon"
EPSILONS = (8.0, 3.0, 1.0)
HEADINGS = ("patients", "in a batch", "answers", "noise", "epsilon", "tight", "best guess")
LEGEND = (
    "in a batch: how likely a patient is in one; answers: sums of gradients, with noise of so many dp.clip in each; "
    "epsilon: what the run takes from a site's budget; tight: what it costs by itself; "
    "best guess: how often an attacker at best tells rightly whether a patient took part, where a coin has 0.5"
)
SCALES = (
    "standardise: hospitals send no sums of columns for it. Give each column of a table mean and deviation, or range, "
    "in the study file; else one of large numbers drowns the others"
)
STUDY = {
    200: (0.978, 0.916, 0.785, 0.553),
    2000: (0.990, 0.953, 0.951, 0.933),
    6000: (0.992, 0.953, 0.953, 0.950),
}
"""Mean AUROC by patients of a site, without privacy and at each of `EPSILONS`: docs/results/privacy-mnist.csv."""
EXPECT = (
    "AUROC to expect depends on the data. In a study (fedavg on bce, MNIST with 10% positive, 8 sites, 100 steps of "
    "128 patients; docs/results/privacy-mnist.md) it was"
)


def takes(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("plan", choices=["plan"], metavar="plan", help="what to do")
    takes_run_config(parser)
    parser.add_argument(
        "--patients",
        type=whole,
        nargs="+",
        default=PATIENTS,
        metavar="N",
        help=f"patients that a site trains on; default: {' '.join(map(str, PATIENTS))}",
    )
    parser.add_argument("--noise", type=number, nargs="+", default=(), metavar="SIGMA", help="in multiples of dp.clip")


def main(options: argparse.Namespace) -> int:
    """Print the plan; returns the exit code."""
    from edelweiss.config import ConfigError, read_overrides

    try:
        print("\n".join(plan(read_overrides(options.run_config), options.patients, options.noise)))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def plan(given: Mapping[str, Value], patients: Sequence[int], noises: Sequence[float] = ()) -> Iterator[str]:
    """Yield the lines of a plan.

    Parameters
    ----------
    given
        Keys of the run.
    patients
        n of a site, 1 or more each.
    noises
        σ to find ε for, in multiples of dp.clip, above 0; none: find σ for dp.epsilon.

    Raises
    ------
    ConfigError
        When a number is out of its range, the run cannot be private, or no noise is enough.
    """
    from edelweiss.config import ConfigError, RunConfig
    from edelweiss.config.privacy import Price, counts_cost, price, queries_of
    from edelweiss.federation.privacy_account import epsilon
    from edelweiss.federation.privacy_plan import total

    wrong = [f"--patients {n}: must be 1 or more" for n in patients if n < 1]
    wrong += [f"--noise {noise:g}: must be above 0" for noise in noises if noise <= 0]
    if wrong:
        raise ConfigError("command", wrong)
    given = {key: value for key, value in given.items() if (key, value) != (EPSILON, 0)}
    runs = [RunConfig.parse({EPSILON: each, **given}) for each in EPSILONS[: 1 if noises or EPSILON in given else None]]
    run = runs[0]
    yield (
        f"{run.algorithm} on {run.problem}, {run.rounds} rounds, {run.sites} sites, batch-size = {run.batch_size}, "
        f"dp.delta = {run.dp_delta:g}"
    )
    yield "".join(f"{each:>12}" for each in HEADINGS)
    for n in patients:
        if noises:
            prices = [Price(queries_of(run, run.sites, n), noise, counts_cost()) for noise in noises]
        else:
            prices = [price(each, run.sites, n) for each in runs]
        for cost in prices:
            queries = total(cost.plan)
            answers = sum(math.ceil(query.gradients) * count for query, count in queries.items())
            spent, tight = epsilon(cost.curve, run.dp_delta), cost.tight_epsilon(run.dp_delta)
            rate = max(query.rate for query in queries)
            yield f"{n:12}{rate:12.4f}{answers:12}{cost.noise:12.3f}{spent:12.3f}{tight:12.3f}{cost.best_guess:12.3f}"
    yield LEGEND
    yield SCALES
    yield EXPECT
    for n, (without, *private) in STUDY.items():
        found = ", ".join(f"{auroc:.2f} at {each:g}" for auroc, each in zip(private, EPSILONS, strict=True))
        yield f"  with {n:,} patients a site {without:.2f} without privacy, and by epsilon {found}"
