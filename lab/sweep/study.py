"""What a study is: its methods, their grids, what is compared, and how points are chosen."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from edelweiss.common import Value
from edelweiss.lab.compare.runs import Settings

Ranges = Mapping[str, "Between | tuple[Value, ...]"]
"""What a random search draws from, by key; a key of several words takes one draw for all of them."""

SEARCH_SEED = 0  # of the points that a search draws


@dataclass(frozen=True)
class Between:
    """A range of positive numbers, drawn from uniformly in the logarithm; ``whole`` ones are rounded."""

    low: float
    high: float
    whole: bool = False

    def draw(self, rng: random.Random) -> Value:
        """Return a number of the range, in two digits."""
        drawn = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        return round(drawn) if self.whole else float(f"{drawn:.2g}")


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
        What it changes besides; wins over everything but a seed, a fold and a point of the grid.
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


def drawn(method: Method, trials: int) -> tuple[Settings, ...]:
    """Return so many points of a method's ranges; the same ones at any time, and other ones for another label."""
    rng = random.Random(f"{method.label}: {SEARCH_SEED}")  # a text seeds alike on every machine
    points = []
    for _ in range(trials):
        point: dict[str, Value] = {}
        for keys, choices in method.ranges.items():
            value = choices.draw(rng) if isinstance(choices, Between) else rng.choice(choices)
            point |= dict.fromkeys(keys.split(), value)
        points.append(point)
    return tuple(points)


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
    halving : int
        If above 1, of the points of a choice one in so many goes on after 1 / halving² of the rounds, and again after
        1 / halving of them: the better ones by ``select``. What a grid grows by is run to the end.
    rank : bool
        Whether methods without a choice are run at the tuning seed, too, so that one can be chosen among all.
    place : Settings
        Keys of all runs that do not change what they compute, such as where the data are.
    equal_iterations : bool
        Whether each run takes rounds × local-steps of the run-config, whatever its local-steps.
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
    halving: int = 0
    rank: bool = False
    place: Settings = field(default_factory=dict)
    equal_iterations: bool = False
