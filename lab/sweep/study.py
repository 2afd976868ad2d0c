"""What a study is: its methods, their grids, what is compared, and how points are chosen."""

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
    """One line of a table.

    Attributes
    ----------
    label : str
        Its name in tables and pictures.
    algorithm : str
        A name in ``strategies.ALGORITHMS``.
    settings : Settings
        Other keys that it changes; they win over everything but a seed, a fold and a point of the grid.
    grid : tuple of Settings
        Points to choose from. One: no choice.
    ranges : Ranges
        What a study that searches at random draws its points from, instead of a grid; wins over ``settings``.
    """

    label: str
    algorithm: str
    settings: Settings = field(default_factory=dict)
    grid: tuple[Settings, ...] = ({},)
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
    """Which runs there are, and how the points of the reported ones are chosen.

    Attributes
    ----------
    base : Settings
        The run-config that all runs share.
    methods : tuple of Method
        All with grids of one length: equal budgets for tuning.
    compare : dict
        Keys and their values; each combination is run with each method.
    repeat : dict
        Keys and their values; what is averaged.
    select : str
        The metric on the sites' held-out samples by which a point of the grid is chosen: the best.
    tuning_seed : int
        Of the runs that choose.
    tune_by : tuple of str
        Keys of ``compare`` with a choice of their own for each of their values. Of the others the first value chooses.
    extend : int
        By how many points at most a grid grows whose best point lies on its edge.
    trials : int
        If above 0, points per method, drawn from its ranges: a random search instead of grids.
    by_model : bool
        Whether a search goes where Optuna's TPE expects the best, after its first `STARTUP` random points.
    halving : int
        If above 1, one in ``halving`` points of a choice goes on after 1 / halving² of the rounds, and again after
        1 / halving of them: the better ones by ``select``. Points that a grid grows by, or that a model proposes, are
        run to their end.
    rank : bool
        Whether methods without a choice are also run at the tuning seed, so that one can be chosen among all.
    place : Settings
        Keys of all runs that do not change what they compute, such as where the data are.
    equal_iterations : bool
        Whether each run takes rounds × local-steps iterations of the run-config, with any local-steps of its own.
    """

    base: Settings = field(default_factory=dict)
    methods: tuple[Method, ...]
    compare: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    repeat: Mapping[str, tuple[Value, ...]] = field(default_factory=lambda: {"seed": (0, 1, 2)})
    select: str = "pooled.auroc"
    tuning_seed: int = 100
    tune_by: tuple[str, ...] = ()
    extend: int = 2
    trials: int = 0
    by_model: bool = False
    halving: int = 0
    rank: bool = False
    place: Settings = field(default_factory=dict)
    equal_iterations: bool = False


def rungs(settings: Settings, share: int) -> list[int]:
    """Return the rounds after which the worse runs of a search stop: a share² and a share of all."""
    rounds = int(settings.get("rounds", RunConfig.keys()["rounds"].default))
    first = max(1, rounds // share**2)
    return [rung for rung in (first, first * share) if rung < rounds]
