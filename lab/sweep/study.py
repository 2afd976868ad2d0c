"""A study: methods, grids, comparisons, and how points are chosen."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edelweiss.common import Value
from edelweiss.config import RunConfig
from edelweiss.lab.compare.runs import Settings

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Ranges = Mapping[str, "Between | tuple[Value, ...]"]
"""What a random search draws from, by key; a key of several words takes one draw for all of them."""

SEARCH_SEED = 0  # of the points that a search draws
REPEATS = 10  # draws for each point, since some are there already
STARTUP = 10  # random points of a search by TPE, before it has a model


@dataclass(frozen=True)
class Between:
    """A range of positive numbers, drawn from uniformly in the logarithm; ``whole`` ones are rounded."""

    low: float
    high: float
    whole: bool = False


@dataclass(frozen=True, kw_only=True)
class Method:
    """One line of a table."""

    label: str  # its name in tables and pictures
    algorithm: str  # a name in `strategies.ALGORITHMS`
    # other keys that it changes; they win over everything but a seed, a fold and a point of the grid
    settings: Settings = field(default_factory=dict)
    grid: tuple[Settings, ...] = ({},)  # points to choose from. One: no choice
    # what a study that searches at random draws its points from, instead of a grid; wins over `settings`
    ranges: Ranges = field(default_factory=dict)


def seed_of(method: Method) -> int:
    """Return the seed of a method's search; methods with other labels draw other points."""
    return zlib.crc32(f"{method.label}: {SEARCH_SEED}".encode())


def distributions(ranges: Ranges) -> dict[str, BaseDistribution]:
    """Return what Optuna draws each key from."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    def of(choices: Between | tuple[Value, ...]) -> BaseDistribution:
        if not isinstance(choices, Between):
            return CategoricalDistribution(choices)
        if choices.whole:
            return IntDistribution(round(choices.low), round(choices.high), log=True)
        return FloatDistribution(choices.low, choices.high, log=True)

    return {keys: of(choices) for keys, choices in ranges.items()}


def point_of(params: Mapping[str, Value]) -> dict[str, Value]:
    """Return the point that Optuna's parameters mean: numbers in two digits, the words of a key one by one."""
    point: dict[str, Value] = {}
    for keys, value in params.items():
        point |= dict.fromkeys(keys.split(), float(f"{value:.2g}") if isinstance(value, float) else value)
    return point


def drawn(method: Method, trials: int) -> tuple[Settings, ...]:
    """Return ``trials`` different random points of a method's ranges, fewer where there are not as many.

    They are always the same, and a larger number only adds some.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = distributions(method.ranges)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed_of(method)))
    points: dict[str, Settings] = {}
    for _ in range(REPEATS * trials):
        point = point_of(study.ask(space).params)
        points.setdefault(str(point), point)
        if len(points) == trials:
            break
    return tuple(points.values())


@dataclass(frozen=True, kw_only=True)
class Study:
    """Which runs there are, and how the points of the reported ones are chosen."""

    base: Settings = field(default_factory=dict)  # the run-config that all runs share
    methods: tuple[Method, ...]  # all with grids of one length: equal budgets for tuning
    # keys and their values; each combination is run with each method
    compare: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    # keys and their values; what is averaged
    repeat: Mapping[str, tuple[Value, ...]] = field(default_factory=lambda: {"seed": (0, 1, 2)})
    # the metric on the sites' held-out samples by which a point of the grid is chosen: the best
    select: str = "pooled.auroc"
    tuning_seed: int = 100  # of the runs that choose
    # keys of `compare` with a choice of their own for each of their values. Of the others the first value chooses
    tune_by: tuple[str, ...] = ()
    extend: int = 2  # by how many points at most a grid grows whose best point lies on its edge
    trials: int = 0  # if above 0, points per method, drawn from its ranges: a random search instead of grids
    # whether a search goes where Optuna's TPE expects the best, after its first `STARTUP` random points
    by_model: bool = False
    # if above 1, one in `halving` points of a choice goes on after 1 / halving² of the rounds, and again after 1 /
    # halving of them: the better ones by `select`. Points that a grid grows by, or that a model proposes, are run to
    # their end
    halving: int = 0
    # whether methods without a choice are also run at the tuning seed, so that one can be chosen among all
    rank: bool = False
    # keys of all runs that do not change what they compute, such as where the data are
    place: Settings = field(default_factory=dict)
    # whether each run takes rounds × local-steps iterations of the run-config, with any local-steps of its own
    equal_iterations: bool = False


def rungs(settings: Settings, share: int) -> list[int]:
    """Return the rounds after which the worse runs of a search stop: a share² and a share of all."""
    rounds = int(settings.get("rounds", RunConfig.keys()["rounds"].default))
    first = max(1, rounds // share**2)
    return [rung for rung in (first, first * share) if rung < rounds]
