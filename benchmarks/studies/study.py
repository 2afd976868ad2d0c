"""What a study is: its methods, their grids, what is compared and what is reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

Value = bool | int | float | str
Settings = Mapping[str, Value]
"""Run-config keys, flat."""

REPO = Path(__file__).resolve().parents[2]
CODA = ("coda", "coda-plus", "codasca")
FCSG = ("fcsg", "fcsg-m", "acc-fcsg-m")
SCGD = ("local-scgd", "local-scgdm")
ONE_STEP_SIZE = ("fedavg", *CODA, *FCSG, *SCGD)  # the same for x and y, or there is no y
STEPS = (0.01, 0.03, 0.1, 0.3, 1.0)  # the grid of --full


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
    """

    label: str
    algorithm: str
    settings: Settings = field(default_factory=dict)
    grid: tuple[Settings, ...] = ({},)
    full_grid: tuple[Settings, ...] = ()


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
    reference : str
        The method whose budget the others get in the columns at equal cost; empty: no such columns.
    paper : dict, paper_note : str
        Published numbers, by method and by heading; where they are from and what was different.
    picture : str
        ``"curves"`` over rounds, or ``"points"``.
    curves : tuple of str
        The metrics to draw; empty: all.
    target : float
        If set, a column says in which round the first metric reached it.
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
    reference: str = ""
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    paper_note: str = ""
    picture: str = "curves"
    curves: tuple[str, ...] = ()
    target: float | None = None
