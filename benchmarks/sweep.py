"""The runs of a study: which there are, what came of them, and which step sizes that chooses.

A run has a folder named after its configuration, so that it is found again.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from benchmarks.studies import Method, Settings, Study, Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from config import RunConfig

Record = dict[str, Any]

# What says where and how a run is computed, not what it computes.
MACHINE = ("data-root", "runs-dir", "run-name", "engine", "workers", "threads", "device", "checkpoint-every")
OUTCOME = "outcome.json"  # written last: a folder without it is of a run that was cut off


@dataclass(frozen=True)
class Job:
    """One run of a study.

    Attributes
    ----------
    method : Method
        Whose run it is.
    point : Settings
        Of the method's grid.
    cell : Settings
        Which table or panel it belongs to; empty for a tuning run.
    repeat : Settings
        Its seed, and its fold where there are folds.
    settings : Settings
        The whole run-config, less what depends on the machine.
    """

    method: Method
    point: Settings
    cell: Settings
    repeat: Settings
    settings: Settings

    @property
    def name(self) -> str:
        """The run folder's name: equal settings, equal name."""
        text = json.dumps(dict(self.settings), sort_keys=True)
        label = re.sub(r"[^a-z0-9]+", "-", self.method.label.lower())
        return f"{label}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    def __str__(self) -> str:
        """What makes this run different from the others of its study."""
        return f"{self.method.label} {shown({**self.point, **self.cell, **self.repeat})}"


def shown(settings: Settings) -> str:
    """Write settings in few words: an algorithm's table goes without saying."""
    return ", ".join(
        f"{key.rpartition('.')[2]}={value:g}" if isinstance(value, float) else f"{key.rpartition('.')[2]}={value}"
        for key, value in settings.items()
    )


@dataclass(frozen=True)
class Outcome:
    """What came of a run: a line per round, and the message of a run that diverged."""

    records: list[Record]
    diverged: str
    seconds: float
    version: str


@dataclass(frozen=True)
class Sweep:
    """A study at one size, and where its runs lie.

    Attributes
    ----------
    study : Study
        What is compared.
    full : bool
        The paper's own size and the whole grid, or what two cores can do.
    folder : Path
        Of the study's runs.
    changes : Settings
        Keys that a user changed for all runs. What the study says of its setting no longer holds then.
    """

    study: Study
    full: bool
    folder: Path
    changes: Settings = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the files of this size are called."""
        return self.study.name + ("-full" if self.full else "")

    @property
    def title(self) -> str:
        """The study's title; it may name a key's value, so changed keys leave only the study's name."""
        changed = ", ".join(f"{key}={value}" for key, value in self.changes.items())
        return f"{self.study.name}, with {changed}" if changed else self.study.title

    @property
    def command(self) -> str:
        """What a user types."""
        changes = "".join(f" --set '{key}={json.dumps(value)}'" for key, value in self.changes.items())
        return f"python -m benchmarks.reproduce {self.study.name}{' --full' * self.full}{changes}"

    def settings(self, method: Method, cell: Settings, *more: Settings) -> Settings:
        """Return the run-config of a method; of two that name a key the later one counts."""
        from config import flatten

        merged: dict[str, Value] = flatten(tomllib.loads(self.study.experiment.read_text(encoding="utf-8")))
        for part in ({} if self.full else self.study.reduced, cell, method.settings, *more, self.changes):
            merged |= part
        merged["algorithm"] = method.algorithm
        own = ("", method.algorithm, merged.get("problem", "auc"))  # the tables of others change nothing
        return {key: value for key, value in merged.items() if key.rpartition(".")[0] in own and key not in MACHINE}

    def grid(self, method: Method) -> tuple[Settings, ...]:
        """Return the method's points at this size."""
        return (method.full_grid or method.grid) if self.full else method.grid

    def tuning(self, method: Method) -> list[Job]:
        """Return one run per point of the grid; none where there is no choice."""
        grid = self.grid(method)
        if len(grid) == 1:
            return []
        cell, repeat = next(combinations(self.study.compare)), next(combinations(self.study.repeat))
        repeat |= {"seed": self.study.tuning_seed}
        quick: Settings = {"evaluate-every": 0, "central-test": False}
        jobs = [Job(method, point, {}, repeat, self.settings(method, cell, point, repeat, quick)) for point in grid]
        # Not on the test set, even where each site is given its part of that.
        return [replace(job, settings={k: v for k, v in job.settings.items() if k != "personal-test"}) for job in jobs]

    def reported(self, method: Method, point: Settings) -> list[Job]:
        """Return the runs that the tables show."""
        return [
            Job(method, point, cell, repeat, self.settings(method, cell, point, repeat))
            for cell in combinations(self.study.compare)
            for repeat in combinations(self.study.repeat)
        ]

    def check(self) -> None:
        """Parse every run, whatever will be chosen.

        Raises
        ------
        config.ConfigError
            For keys that cannot be changed, or for the first run that cannot be done.
        """
        from config import ConfigError

        if wrong := [f"{key}: {why}; leave it out" for key, why in self.fixed().items() if key in self.changes]:
            raise ConfigError("--set", wrong)
        for method in self.study.methods:
            for point in self.grid(method):
                for job in (*self.tuning(method), *self.reported(method, point)):
                    parsed(job.settings)

    def fixed(self) -> dict[str, str]:
        """Return the keys that no user can change, and why."""
        found = dict.fromkeys(MACHINE, "it does not change what is computed")
        found |= {"algorithm": "each method has its own"}
        for axes, what in ((self.study.compare, "compares"), (self.study.repeat, "repeats every run with")):
            found |= {key: f"the study {what} {', '.join(map(str, values))}" for key, values in axes.items()}
        for method in self.study.methods:
            for part in (method.settings, *self.grid(method)):
                found |= {key: f"the study sets it for {method.label}" for key in part if key not in found}
        return found

    def outcome(self, job: Job) -> Outcome | None:
        """Read a run; None when it is not there, was cut off, or is of other settings than these are by now."""
        folder = self.folder / job.name
        try:
            end = json.loads((folder / OUTCOME).read_text(encoding="utf-8"))
            then = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        now = tomllib.loads(parsed(job.settings).to_toml())
        # A default that has changed since makes it another run; a key that was added or removed does not.
        if any(now[key] != then[key] for key in now.keys() & then.keys() - set(MACHINE)):
            return None
        lines = folder / "metrics.jsonl"  # a run that diverges in its first round has none
        records = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
        return Outcome(records, **end)

    def choose(self, method: Method) -> Settings | None:
        """Return the best point of the grid by the held-out samples.

        None when the tuning runs are not all there, or when all of them diverged.
        """
        grid, jobs = self.grid(method), self.tuning(method)
        if not jobs:
            return grid[0]
        outcomes = [self.outcome(job) for job in jobs]
        if None in outcomes:
            return None
        values = [final(outcome, self.study.select) for outcome in outcomes if outcome]
        found = [(value, -place) for place, value in enumerate(values) if value is not None]
        return grid[-max(found)[1]] if found else None


def combinations(axes: Mapping[str, Sequence[Value]]) -> Iterator[dict[str, Value]]:
    """Yield every choice of a value for each axis; one empty choice without axes."""
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def final(outcome: Outcome, path: str) -> float | None:
    """Return a metric of a run's last round; None where it is not defined, and for a run that diverged."""
    return None if outcome.diverged or not outcome.records else metric(outcome.records[-1], path)


def metric(record: Record, path: str) -> float | None:
    """Return a number of a line, by a path such as ``"central.auroc"``; None where there is none."""
    value: Any = record
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return None if value is None else float(value)


def parsed(settings: Settings) -> RunConfig:
    """Check a run-config."""
    from config import RunConfig

    return RunConfig.parse(settings)
