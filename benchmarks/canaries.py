"""A one-run audit of the privacy account: is what canaries give away less than the account allows?

    python -m benchmarks.canaries [--canaries 4000] [--guesses 400] [--epsilon 1] [--broken 1]

A site has one patient for each feature, all of whose other features are 0, and a coin decides for each whether the
patient contributes. An algorithm runs once, with every clipped gradient at its largest. What the site sends moves along
a feature if its patient contributes, so an auditor guesses the coins of those that moved most and least. If the run
costs ε, a guess is right with probability at most e^ε / (1 + e^ε), whatever the other coins are: many right guesses
give a lower bound of ε, at 95 % confidence (Steinke, Nasr & Jagielski 2023, arXiv:2305.08846, Theorem 5.2).

--broken cuts the noise to that fraction of what is accounted for, which an audit has to find.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom

from edelweiss.client_app.privacy.oracle import Mechanism, Patients, PrivateOracle
from edelweiss.client_app.privacy.randomness import KeyedStream, derived
from edelweiss.datasets import DataSummary, Samples
from edelweiss.federation import Reply, Site
from edelweiss.federation.algorithm import phases_of
from edelweiss.federation.privacy_account import epsilon, noise_for, spent, tight_epsilon
from edelweiss.federation.privacy_plan import plan_of, total
from edelweiss.models import Architecture
from edelweiss.problems import PROBLEMS, Setting
from edelweiss.problems.patients import Rows
from edelweiss.strategies import ALGORITHMS, can_solve

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.federation import FederatedStrategy
    from edelweiss.problems import Arrays
    from edelweiss.problems.network import NetworkProblem

Floats = NDArray[np.float64]

AUDITED = ("fedavg", "fedprox", "scaffold", "codasca", "local-sgda", "fmgda", "ditto", "deprl", "fedgda-gt")
CANARIES, GUESSES = 4000, 400
ROUNDS, STEPS = 3, 2
RATE = 0.5  # share of the patients in a batch
DELTA = 1e-6
LOUD = 1e4  # value of a canary's feature: its gradient is clipped
CONFIDENCE = 0.95
SERVER = "server_lr"
STILL = 1e-7  # step size: a run stays where gradients are clipped


class Contributing(Patients):
    """Patients of whom some contribute nothing, though they count: what a patient's privacy is held against.

    Parameters
    ----------
    contribute
        Who does, shape (patients,).
    ids
        Of each sample; None: each is another's.
    """

    def __init__(self, contribute: Tensor, ids: Tensor | None = None) -> None:
        super().__init__(len(contribute) if ids is None else len(ids), ids)
        self._contribute = contribute

    def rows(self, chosen: Tensor) -> Rows:
        """Return the rows of those who were chosen and contribute."""
        return super().rows(chosen[self._contribute[chosen]])


@dataclass(frozen=True)
class Audit:
    """What an auditor has to guess from, and what the account says.

    Attributes
    ----------
    coins : ndarray
        Whether each canary contributed, shape (m,).
    scores : ndarray
        The higher, the likelier it did, shape (m,).
    epsilon, tight : float
        ε of the run: what a budget pays for it, and what it costs by itself.
    """

    coins: NDArray[np.bool_]
    scores: Floats
    epsilon: float
    tight: float

    def right(self, guesses: int) -> int:
        """Return how many guesses are right, half of them of those who contributed."""
        order = np.argsort(self.scores, kind="stable")
        half = guesses // 2
        return int(self.coins[order[-half:]].sum() + (~self.coins[order[:half]]).sum())

    def bound(self, guesses: int) -> float:
        """Return the lower bound of ε from as many guesses, see `lower_bound`."""
        return lower_bound(self.right(guesses), guesses, len(self.coins), DELTA)


def lower_bound(right: int, guesses: int, canaries: int, delta: float, confidence: float = CONFIDENCE) -> float:
    """Return the largest ε, to 1/1000, that so many right guesses rule out at a confidence; 0: none.

    Under (ε, δ) the number of right guesses is at least v with probability at most f(v) + 2 m δ max_i (f(v - i) - f(v))
    / i, where f(v) is the probability of v successes or more out of as many coins that show e^ε / (1 + e^ε).
    """
    low, high = 0.0, 20.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        tail = binom.sf(np.arange(right, -1, -1) - 1, guesses, 1 / (1 + math.exp(-middle)))  # f(v), f(v - 1), ..., f(0)
        more = np.max((tail[1:] - tail[0]) / np.arange(1, right + 1), initial=0.0)
        low, high = (middle, high) if tail[0] + 2 * canaries * delta * more < 1 - confidence else (low, middle)
    return low


def run(algorithm: str, canaries: int, target: float, broken: float = 1.0, seed: int = 0) -> Audit:
    """Audit one run of an algorithm whose account says ``target``.

    Parameters
    ----------
    algorithm
        A key of `ALGORITHMS`.
    canaries
        m, each a patient who contributes with probability a half.
    target
        ε of the whole run.
    broken
        The noise, as a multiple of what the account takes.
    seed
        Of the coins, and of the site's secret.
    """
    strategy_class = ALGORITHMS[algorithm]
    problem_name = next(name for name in ("bce", "auc") if can_solve(strategy_class, PROBLEMS[name]))
    steps = [field.name for field in fields(strategy_class) if "lr" in field.name.split("_") and field.name != SERVER]
    strategy = strategy_class(local_steps=STEPS, **dict.fromkeys(steps, STILL))
    summary = DataSummary(shape=(canaries,), classes=2, prior=0.3)
    setting = Setting(data_summary=summary, architecture=Architecture(model="mlp", hidden=1), seed=seed)
    problem = cast("NetworkProblem", PROBLEMS[problem_name](setting))

    coins = np.random.default_rng(seed).random(canaries) < 0.5
    samples = Samples(LOUD * torch.eye(canaries), torch.ones(canaries, dtype=torch.int64), torch.arange(canaries))
    patients = Contributing(torch.from_numpy(coins))

    size = round(RATE * canaries)
    plan = plan_of(strategy, ROUNDS, 1, canaries, size, "y" in problem.initial())
    noise = noise_for(total(plan), target, DELTA)
    mechanism = Mechanism(broken * noise, 1.0, 1.0)

    begin = start(problem)

    def oracle(place: str) -> PrivateOracle:
        stream = KeyedStream(derived(b"audit", "answer", [f"{seed} {place}".encode()]))
        paid = dict.fromkeys(total(plan), 10**9)  # the mechanism is audited here, and not the bookkeeping
        own = {**begin, "head": begin["x"][problem.head :]}
        return PrivateOracle(problem, samples, patients, stream, mechanism, paid, size, fresh=lambda: own)

    moved = movement(strategy, begin, canaries, oracle)
    return Audit(coins, moved, epsilon(spent(total(plan), noise), DELTA), tight_epsilon(total(plan), noise, DELTA))


def start(problem: NetworkProblem) -> Arrays:
    """Return a model that shows each feature the same: two units, open, one after the other."""
    begin = problem.initial()
    x = torch.zeros_like(begin["x"])
    features = problem.network.size - 5
    x[features], x[features + 1], x[features + 3] = 1.0, 1.0, 1.0  # bias; weight; weight of the head
    return {**begin, "x": x}


def movement(
    strategy: FederatedStrategy, begin: Arrays, canaries: int, oracle: Callable[[str], PrivateOracle]
) -> Floats:
    """Play a run with one site; return how far its answers moved along each feature, shape (m,)."""
    site, head = Site(0, "audited", 1, 1.0), len(begin["x"]) - 2
    state = strategy.initial_state(begin | ({"body": begin["x"][:head]} if strategy.splits_model else {}))
    memory: Arrays = {}
    moved = np.zeros(canaries)
    for server_round in range(1, ROUNDS + 1):
        for phase in phases_of(strategy, server_round, ROUNDS, 1):
            context = replace(strategy.context(server_round, ROUNDS, phase, 1), total_weight=1.0)
            sent = strategy.broadcast(state, context, site)
            reply, memory = strategy.local_update(sent, memory, oracle(f"{server_round} {phase}"), context)
            for name in {"x", "body"} & reply.keys():
                moved += (reply[name] - sent.get(name, begin["x"][: len(reply[name])]))[:canaries].double().numpy()
            state = strategy.aggregate(state, iter([Reply(site, reply)]), context)
    return moved


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each algorithm; returns 1 if a bound is above its account."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--canaries", type=int, default=CANARIES)
    parser.add_argument("--guesses", type=int, default=GUESSES)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--broken", type=float, default=1.0)
    parser.add_argument("--algorithms", nargs="+", default=AUDITED)
    options = parser.parse_args(arguments)
    print("| algorithm | right of " + f"{options.guesses} | lower bound of ε | ε by itself | ε of the budget |")
    print("| --- | --- | --- | --- | --- |")
    above = 0
    for algorithm in options.algorithms:
        found = run(algorithm, options.canaries, options.epsilon, options.broken)
        bound = found.bound(options.guesses)
        above += bound > found.epsilon
        print(
            f"| {algorithm} | {found.right(options.guesses)} | {bound:.2f} | {found.tight:.2f} | {found.epsilon:.2f} |"
        )
    return int(above > 0)


if __name__ == "__main__":
    sys.exit(main())
