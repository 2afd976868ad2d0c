"""What a published study is: a study of runs, and what its page says and shows of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edelweiss.common import Value
from edelweiss.lab.compare.runs import Settings, shown
from edelweiss.lab.sweep import study

REPO = Path(__file__).resolve().parents[2]
CODA = ("coda", "coda-plus", "codasca")
FCSG = ("fcsg", "fcsg-m", "acc-fcsg-m")
SCGD = ("local-scgd", "local-scgdm")
ONE_STEP_SIZE = ("fedavg", *CODA, *FCSG, *SCGD)  # the same for x and y, or there is no y
STEPS = (0.01, 0.03, 0.1, 0.3, 1.0)  # the grid of --full


@dataclass(frozen=True, kw_only=True)
class Method(study.Method):
    """One line of a table; ``full_grid`` are the points to choose from with ``--full``, empty: the same."""

    full_grid: tuple[Settings, ...] = ()


def method(
    algorithm: str, *steps: float, full: tuple[float, ...] = (), label: str = "", settings: Settings | None = None
) -> Method:
    """Return a method with a grid of step sizes, the same for x and y."""
    names = [f"{algorithm}.lr"] + [f"{algorithm}.lr-dual"] * (algorithm not in ONE_STEP_SIZE)
    grid, full_grid = (tuple(dict.fromkeys(names, step) for step in values) for values in (steps, full))
    label = label or algorithm
    return Method(label=label, algorithm=algorithm, settings=settings or {}, grid=grid, full_grid=full_grid)


@dataclass(frozen=True, kw_only=True)
class Study(study.Study):
    """One published experiment."""

    # name, title: of the command and the files; of the page and the picture
    name: str
    title: str
    experiment: Path  # the run-config that all runs share
    # metrics of a run's last round: path in a line of metrics.jsonl → heading. The first is compared at equal cost.
    # Each combination of what the study compares has its own table, or its own rows where there are several keys
    report: Mapping[str, str]
    # what a default run changes, and that in words, which `--full` makes false
    reduced: Settings = field(default_factory=dict)
    size: str = ""
    # what else one has to know of the setting to read the table. A key changed by hand may make it false
    note: str = ""
    reference: str = ""  # the method whose budget the others get in the columns at equal cost; empty: no such columns
    # published numbers, by method and by heading, and by the value of the first key of `compare` where they depend on
    # it; where they are from and what was different
    paper: Mapping[str, Mapping[str, float | Mapping[float, float]]] = field(default_factory=dict)
    paper_note: str = ""
    # "curves" over rounds, "points", or "axis": the last value against the last key of `compare`
    picture: str = "curves"
    curves: tuple[str, ...] = ()  # the metrics to draw; empty: all
    target: float | None = None  # if set, a column says in which round the first metric reached it
    # if set, a table of every other method's difference to this one in the first metric, paired by what is repeated
    versus: str = ""
    versus_in: tuple[str, ...] = ()  # headings of the metrics of that table; empty: the first
    # if set, a table says up to which value of the last key of `compare` the first metric of a method stays within
    # this much of what it has at the first value
    within: float | None = None
    # whether the command draws the data, see `benchmarks.xrays`; with `--full` it takes true ones
    generated: bool = False
    # what a value of a key that is compared is called, where its number says little
    names: Mapping[str, Mapping[Value, str]] = field(default_factory=dict)
    # if set, the run-config of a run whose model those of the study start from that name one in `init-from`: one for
    # each seed
    first_stage: Path | None = None
    first_reduced: Settings = field(default_factory=dict)  # what a default run changes of it

    def named(self, settings: Settings) -> str:
        """Write settings that are compared in few words, by their names where they have some."""
        return ", ".join(self.names.get(key, {}).get(value) or shown({key: value}) for key, value in settings.items())
