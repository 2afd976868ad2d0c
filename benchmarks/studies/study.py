"""What a study is: its methods, their grids, what is compared and what is reported."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

Value = bool | int | float | str
Settings = Mapping[str, Value]
"""Run-config keys, flat."""

Ranges = Mapping[str, "Between | tuple[Value, ...]"]
"""What a random search draws from, by key; a key of several words takes one draw for all of them."""

REPO = Path(__file__).resolve().parents[2]
CODA = ("coda", "coda-plus", "codasca")
FCSG = ("fcsg", "fcsg-m", "acc-fcsg-m")
SCGD = ("local-scgd", "local-scgdm")
ONE_STEP_SIZE = ("fedavg", *CODA, *FCSG, *SCGD)  # the same for x and y, or there is no y
STEPS = (0.01, 0.03, 0.1, 0.3, 1.0)  # the grid of --full
SEARCH_SEED = 0  # of the points that a search draws


@dataclass(frozen=True)
class Between:
    """A range of positive numbers, drawn from uniformly in the logarithm."""

    low: float
    high: float


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
    grid, full_grid : tuple of Settings
        Points to choose from, at the default size and with ``--full`` (empty: the same). One: no choice.
    ranges : Ranges
        What a study that searches at random draws its points from, instead of a grid; wins over ``settings``.
    """

    label: str
    algorithm: str
    settings: Settings = field(default_factory=dict)
    grid: tuple[Settings, ...] = ({},)
    full_grid: tuple[Settings, ...] = ()
    ranges: Ranges = field(default_factory=dict)


def method(
    algorithm: str,
    *steps: float,
    full: tuple[float, ...] = (),
    label: str = "",
    settings: Settings | None = None,
) -> Method:
    """Return a method with a grid of step sizes, the same for x and y."""
    names = [f"{algorithm}.lr"] + [f"{algorithm}.lr-dual"] * (algorithm not in ONE_STEP_SIZE)
    grid, full_grid = (tuple(dict.fromkeys(names, step) for step in values) for values in (steps, full))
    label = label or algorithm
    return Method(label=label, algorithm=algorithm, settings=settings or {}, grid=grid, full_grid=full_grid)


def drawn(method: Method, trials: int) -> tuple[Settings, ...]:
    """Return so many points of a method's ranges; the same ones at any time, and other ones for another label."""
    rng = random.Random(f"{method.label}: {SEARCH_SEED}")  # a text seeds alike on every machine
    points = []
    for _ in range(trials):
        point: dict[str, Value] = {}
        for keys, choices in method.ranges.items():
            if isinstance(choices, Between):
                value: Value = float(f"{math.exp(rng.uniform(math.log(choices.low), math.log(choices.high))):.2g}")
            else:
                value = rng.choice(choices)
            point |= dict.fromkeys(keys.split(), value)
        points.append(point)
    return tuple(points)


@dataclass(frozen=True, kw_only=True)
class Study:
    """One published experiment.

    Attributes
    ----------
    name, title : str
        Of the command and the files; of the page and the picture.
    experiment : Path
        The run-config.
    methods : tuple of Method
        All with grids of one length: equal budgets for tuning.
    report : dict
        Metrics of a run's last round: path in a line of metrics.jsonl → heading. The first is compared at equal cost.
    compare : dict
        Keys and their values; each combination has its own table, or its own rows where there are several keys.
    repeat : dict
        Keys and their values; what is averaged.
    reduced : Settings, size : str
        What a default run changes, and that in words, which ``--full`` makes false.
    note : str
        What else one has to know of the setting to read the table. A key changed by hand may make it false.
    select : str
        The metric on the sites' held-out samples by which a point of the grid is chosen: the largest.
    tuning_seed : int
        Of the runs that choose.
    tune_by : tuple of str
        Keys of ``compare`` with a choice of their own for each of their values. Of the others the first value chooses.
    extend : int
        By how many points at most a grid grows whose best point lies on its edge.
    trials : int
        If above 0, points per method, drawn from its ranges: a random search instead of grids.
    equal_iterations : bool
        Whether each run takes rounds × local-steps of the run-config, whatever its local-steps.
    reference : str
        The method whose budget the others get in the columns at equal cost; empty: no such columns.
    paper : dict, paper_note : str
        Published numbers, by method and by heading, and by the value of the first key of ``compare`` where they depend
        on it; where they are from and what was different.
    picture : str
        ``"curves"`` over rounds, ``"points"``, or ``"axis"``: the last value against the last key of ``compare``.
    curves : tuple of str
        The metrics to draw; empty: all.
    target : float
        If set, a column says in which round the first metric reached it.
    versus : str
        If set, a table of every other method's difference to this one in the first metric, paired by what is repeated.
    within : float
        If set, a table says up to which value of the last key of ``compare`` the first metric of a method stays within
        this much of what it has at the first value.
    """

    name: str
    title: str
    experiment: Path
    methods: tuple[Method, ...]
    report: Mapping[str, str]
    compare: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    repeat: Mapping[str, tuple[Value, ...]] = field(default_factory=lambda: {"seed": (0, 1, 2)})
    reduced: Settings = field(default_factory=dict)
    size: str = ""
    note: str = ""
    select: str = "pooled.auroc"
    tuning_seed: int = 100
    tune_by: tuple[str, ...] = ()
    extend: int = 2
    trials: int = 0
    equal_iterations: bool = False
    reference: str = ""
    paper: Mapping[str, Mapping[str, float | Mapping[float, float]]] = field(default_factory=dict)
    paper_note: str = ""
    picture: str = "curves"
    curves: tuple[str, ...] = ()
    target: float | None = None
    versus: str = ""
    within: float | None = None
