"""A run for comparison: its settings, a line per round, and its outcome."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edelweiss.common import Value
from edelweiss.common.files import read_json
from edelweiss.common.options import MOST
from edelweiss.config import RunConfig
from edelweiss.config.resume import COMPUTED, LEFT
from edelweiss.lab.run_folder import Record, read_records
from edelweiss.problems.metrics import METRICS, RANKINGS, TIES, split

if TYPE_CHECKING:
    from pathlib import Path

Settings = Mapping[str, Value]
"""Run-config keys, flat."""

MACHINE = frozenset(COMPUTED | LEFT)  # what says where and how a run is computed, not what it computes
PARTS = ("central", "pooled", "noised", "over-sites")  # of a line, that are about all sites
OUTCOME = "outcome.json"  # of a sweep's run, written last: a folder without it is of a run that was cut off
PAUSE = "pause.json"  # as outcome.json, of a run that its sweep stopped early and that may go on
DIVERGED = re.compile("diverges|NaN or infinity")  # in the reason that a run stopped for


@dataclass(frozen=True)
class Outcome:
    """What came of a run: a line per round, and the message of a run that diverged; ``tuning``: whether it chose."""

    records: list[Record]
    diverged: str
    seconds: float
    version: str
    tuning: bool = False

    @classmethod
    def read(cls, folder: Path, end: str = OUTCOME) -> Outcome:
        """Read what `lab.sweep.workers.compute` and the run left in a folder.

        Raises
        ------
        OSError, ValueError
            When it cannot be read, or is not that.
        """
        said = read_json(folder / end)
        kinds: dict[str, type] = {"diverged": str, "seconds": float, "version": str}
        found = {key: type(value) for key, value in said.items()} if isinstance(said, dict) else {}
        if found not in (kinds, kinds | {"tuning": bool}):
            raise ValueError(f"{end} must hold {', '.join(kinds)}")
        if not 0 <= said["seconds"] <= MOST:
            raise ValueError(f"{end} has seconds = {said['seconds']}")
        return cls(read_records(folder), **said)

    @property
    def last(self) -> Record:
        """The line of the last round; empty for a run that diverged in the first."""
        return self.records[-1] if self.records else {}


@dataclass(frozen=True)
class Run:
    """A run and what came of it."""

    settings: Settings  # its run-config, as far as it is not the default
    # what distinguishes it from the runs that it is averaged with: its seed, and its fold in cross-validation
    repeat: Settings
    outcome: Outcome  # what came of it

    @property
    def sites(self) -> int:
        """How many sites took part."""
        return int(self.settings.get("sites", RunConfig.keys()["sites"].default))

    def spending(self, kind: str) -> list[tuple[int, float]]:
        """Return (round, what had been spent by then).

        A site's gradients, samples (in batches of the run) or megabytes; or seconds of the run, ``"seconds"``.
        """
        total, curve = 0.0, []
        for record in self.outcome.records:
            if kind == "megabytes":
                total += ((record["bytes-down"] or 0.0) + (record["bytes-up"] or 0.0)) / 1e6
            else:
                total += record.get(kind) or 0.0
            curve.append((record["round"], total if kind == "seconds" else total / self.sites))
        return curve


def final(outcome: Outcome, path: str) -> float | None:
    """Return a metric of a run's last round; None where it is not defined, and for a run that diverged."""
    return None if outcome.diverged or not outcome.records else metric(outcome.records[-1], path)


def metric(record: Record, path: str) -> float | None:
    """Return a number of a line by a path such as ``"central.auroc"`` or ``"over-sites.auroc.Edema.mean"``; or None."""
    part, _, rest = path.partition(".")
    value: Any = record.get(part)
    if rest and isinstance(value, dict):  # a label's name may have dots of its own
        name, _, kind = rest.rpartition(".")
        over_sites = value.get(name)
        value = over_sites.get(kind) if isinstance(over_sites, dict) else value.get(rest)
    return float(value) if isinstance(value, int | float) else None


def path_of_ties(path: str) -> str:
    """Return the path of a metric's largest possible error, see `problems.metrics.TIES`; empty if it has none."""
    name = name_of(path)
    return path.replace(f".{name}", f".{TIES[name]}", 1) if name in TIES else ""


def held_out(record: Record, select: str) -> float | None:
    """Return the metric that a choice is by; of a private run, which pools nothing, by its noised histograms."""
    found, name = metric(record, select), select.removeprefix("pooled.")
    return metric(record, f"noised.{name}") if found is None and name != select else found


def paths(record: Record) -> list[str]:
    """Return the path of each metric of a line that is about all sites."""
    parts = {part: found for part in PARTS if isinstance(found := record.get(part), dict)}
    return [
        path
        for part, values in parts.items()
        for name, value in values.items()
        for path in ([f"{part}.{name}.{kind}" for kind in value] if isinstance(value, dict) else [f"{part}.{name}"])
        if metric(record, path) is not None and (part != "noised" or split(name)[0] in RANKINGS)
    ]


def name_of(path: str) -> str:
    """Return which of `problems.metrics.METRICS` a path leads to; empty if none."""
    return next((part for part in path.split(".") if part in METRICS), "")


def label_of(path: str) -> str:
    """Return which of several labels a path is about; empty if none."""
    part, _, name = path.partition(".")
    return split(name.rpartition(".")[0] if part == "over-sites" else name)[1]


def lower_is_better(path: str) -> bool:
    """Whether the smaller of two values is the better one, as of a loss."""
    return name_of(path) in METRICS and METRICS[name_of(path)].better == "down"


def shown(settings: Settings) -> str:
    """Write settings in few words: an algorithm's table goes without saying."""
    texts = (
        f"{key.rpartition('.')[2]}={value:g}" if isinstance(value, float) else f"{key.rpartition('.')[2]}={value}"
        for key, value in settings.items()
    )
    return ", ".join(dict.fromkeys(texts))  # once, where several problems have the key
