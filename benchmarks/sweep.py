"""The runs of a study: which there are, what came of them, and which step sizes that chooses.

A run has a folder named after its configuration, so that it is found again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from benchmarks.studies import Method, Settings, Study, Value, drawn
from keys.fields import MOST
from keys.files import json_in, read_file, read_json, read_toml, reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from config import RunConfig

Record = dict[str, Any]

# What says where and how a run is computed, not what it computes.
MACHINE = ("data-root", "runs-dir", "run-name", "engine", "workers", "threads", "device", "checkpoint-every")
FACTOR = 3.0  # by which a grid of step sizes grows
COSTS = {"round", "gradients", "samples", "bytes-down", "bytes-up"}  # in each line of a run
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
        Which table or panel it belongs to; of a tuning run the values that a choice of their own is made for.
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
    texts = (
        f"{key.rpartition('.')[2]}={value:g}" if isinstance(value, float) else f"{key.rpartition('.')[2]}={value}"
        for key, value in settings.items()
    )
    return ", ".join(dict.fromkeys(texts))  # once, where several problems have the key


@dataclass(frozen=True)
class Outcome:
    """What came of a run: a line per round, and the message of a run that diverged."""

    records: list[Record]
    diverged: str
    seconds: float
    version: str

    @classmethod
    def read(cls, folder: Path) -> Outcome:
        """Read what `workers.compute` and the run left in a folder.

        Raises
        ------
        OSError, ValueError
            When it cannot be read, or is not that.
        """
        end = read_json(folder / OUTCOME)
        kinds = {"diverged": str, "seconds": float, "version": str}
        if not isinstance(end, dict) or {key: type(value) for key, value in end.items()} != kinds:
            raise ValueError(f"{OUTCOME} must hold {', '.join(kinds)}")
        if not 0 <= end["seconds"] <= MOST:
            raise ValueError(f"{OUTCOME} has seconds = {end['seconds']}")
        lines = folder / "metrics.jsonl"  # a run that diverges in its first round has none
        written = read_file(lines).splitlines() if os.path.lexists(lines) else []
        records = [json_in(line) for line in written]
        for number, record in enumerate(records, start=1):
            whole = isinstance(record, dict) and record.keys() >= COSTS and _all_numbers(record)
            if not whole or str(record["round"]) != str(number):
                raise ValueError(f"line {number} of {lines.name} is not what a run writes after round {number}")
        return cls(records, **end)


def _all_numbers(value: Any) -> bool:
    """Whether there is nothing but numbers, and null for those that are not defined."""
    if isinstance(value, dict):
        return all(map(_all_numbers, value.values()))
    return value is None or isinstance(value, int | float)


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

    @property
    def extend(self) -> int:
        """By how many points a grid may grow; what a search draws from has no edge."""
        return 0 if self.study.trials else self.study.extend

    def settings(self, method: Method, cell: Settings, *more: Settings) -> Settings:
        """Return the run-config of a method; of two that name a key the later one counts."""
        from config import flatten

        merged: dict[str, Any] = flatten(tomllib.loads(self.study.experiment.read_text(encoding="utf-8")))
        merged |= ({} if self.full else self.study.reduced) | self.changes
        iterations = merged.get("rounds", 1) * merged.get("local-steps", 1)
        for part in (cell, method.settings, *more, self.changes):
            merged |= part
        if self.study.equal_iterations:
            merged["rounds"] = max(1, round(iterations / merged["local-steps"]))
        merged["algorithm"] = method.algorithm
        own = ("", method.algorithm, merged.get("problem", "auc"))  # the tables of others change nothing
        return {key: value for key, value in merged.items() if key.rpartition(".")[0] in own and key not in MACHINE}

    def grid(self, method: Method) -> tuple[Settings, ...]:
        """Return the method's points at this size, before any extension."""
        if self.study.trials:
            return drawn(method, self.study.trials)
        return (method.full_grid or method.grid) if self.full else method.grid

    def tuned_cells(self) -> list[dict[str, Value]]:
        """Return the values of `Study.tune_by` that a choice of their own is made for; one empty cell without keys."""
        return list(combinations({key: self.study.compare[key] for key in self.study.tune_by}))

    def tuning(self, method: Method) -> list[Job]:
        """Return the runs of all choices, as far as one can say which there are."""
        return [job for cell in self.tuned_cells() for job in self.trials(method, cell)]

    def trials(self, method: Method, tuned: Settings) -> list[Job]:
        """Return the runs of one choice: one per point of the grid, as far as it was extended; none without a choice.

        A grid whose best point lies on its edge grows there by a point, once all of its runs are there.
        """
        grid = self.grid(method)
        if len(grid) == 1:
            return []
        jobs = [self._trial(method, point, tuned) for point in grid]
        for _ in range(self.extend):
            if (best := self._best(jobs)) is None or (point := beyond([job.point for job in jobs], best)) is None:
                break
            jobs.append(self._trial(method, point, tuned))
        return jobs

    def _trial(self, method: Method, point: Settings, tuned: Settings) -> Job:
        cell, repeat = next(combinations(self.study.compare)) | tuned, next(combinations(self.study.repeat))
        repeat |= {"seed": self.study.tuning_seed}
        quick: Settings = {"evaluate-every": 0, "central-test": False}
        settings = self.settings(method, cell, point, repeat, quick)
        # Not on the test set, even where each site is given its part of that.
        return Job(method, point, tuned, repeat, {k: v for k, v in settings.items() if k != "personal-test"})

    def _best(self, jobs: Sequence[Job]) -> Settings | None:
        """Return the point with the highest value, the smallest one if all diverged; None before all runs are there."""
        outcomes = [self.outcome(job) for job in jobs]
        if None in outcomes:
            return None
        values = [final(outcome, self.study.select) for outcome in outcomes if outcome]
        found = [(value, -place) for place, value in enumerate(values) if value is not None]
        if not found:
            return min((job.point for job in jobs), key=lambda point: min(steps(point).values(), default=0.0))
        return jobs[-max(found)[1]].point

    def reported(self, method: Method, point: Settings, only: Settings | None = None) -> list[Job]:
        """Return the runs that the tables show, all or those of one cell."""
        return [
            Job(method, point, cell, repeat, self.settings(method, cell, point, repeat))
            for cell in ([only] if only is not None else combinations(self.study.compare))
            for repeat in combinations(self.study.repeat)
        ]

    def check(self) -> None:
        """Parse a run of each kind that there may be, whatever will be chosen.

        Raises
        ------
        config.ConfigError
            For keys that cannot be changed, or for the first run that cannot be done.
        """
        from config import ConfigError

        if wrong := [f"{key}: {why}; leave it out" for key, why in self.fixed().items() if key in self.changes]:
            raise ConfigError("--set", wrong)
        repeats = len(list(combinations(self.study.repeat)))
        for method in self.study.methods:
            for point in self.grid(method):  # the repeats of a run differ by seed and fold, which are as good as any
                for job in self.reported(method, point)[::repeats]:
                    parsed(job.settings)
            for job in self.tuning(method)[:1]:
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
        """Read a run; None when it is not there, was cut off, or is of other settings than these are by now.

        Raises
        ------
        config.ConfigError
            For one that is damaged.
        """
        folder = self.folder / job.name
        if not os.path.lexists(folder / OUTCOME) and (folder.is_dir() or not os.path.lexists(folder)):
            return None
        try:
            outcome, then = Outcome.read(folder), read_toml(folder / "config.toml")
            if "algorithm" not in then:
                raise ValueError("its config.toml is empty")
        except (OSError, ValueError) as error:
            from config import ConfigError

            text = f"{folder} is damaged, or of another version ({reason(error)}): remove it, and the run is done again"
            raise ConfigError("runs that are kept", [text]) from None
        now = tomllib.loads(parsed(job.settings).to_toml())
        # A default that has changed since makes it another run; a key that was added or removed does not.
        if any(now[key] != then[key] for key in now.keys() & then.keys() - set(MACHINE)):
            return None
        return outcome

    def choose(self, method: Method, cell: Settings | None = None) -> Settings | None:
        """Return the best point by the held-out samples, for a cell of what is compared; left out: for the first one.

        None when the tuning runs are not all there, or when all of them diverged.
        """
        cell = cell or next(combinations(self.study.compare))
        jobs = self.trials(method, {key: cell[key] for key in self.study.tune_by})
        if not jobs:
            return self.grid(method)[0]
        if all((outcome := self.outcome(job)) is not None and outcome.diverged for job in jobs):
            return None
        return self._best(jobs)

    def on_edge(self, method: Method, point: Settings, cell: Settings) -> bool:
        """Return whether a choice lies on the edge of a grid that has grown as far as it may."""
        jobs = self.trials(method, {key: cell[key] for key in self.study.tune_by})
        return self.extend > 0 and beyond([job.point for job in jobs], point) is not None

    def chosen(self) -> list[Job]:
        """Return the reported runs of all choices that can be made."""
        found = []
        for method in self.study.methods:
            for cell in combinations(self.study.compare):
                if (point := self.choose(method, cell)) is not None:
                    found += self.reported(method, point, cell)
        return found


def steps(point: Settings) -> dict[str, float]:
    """Return the step sizes of a point: what a grid is extended by."""
    return {key: float(value) for key, value in point.items() if key.rpartition(".")[2].startswith("lr")}


def beyond(points: Sequence[Settings], best: Settings) -> Settings | None:
    """Return the point past the edge of a grid that the best point lies on, three times as far; None inside.

    Its neighbours are the points that differ in step sizes only.
    """
    others = {key: value for key, value in best.items() if key not in steps(best)}
    line = [min(steps(point).values()) for point in points if steps(point) and others.items() <= point.items()]
    here = min(steps(best).values(), default=0.0)
    if len(line) < 2 or min(line) < here < max(line):
        return None
    factor = 1 / FACTOR if here == min(line) else FACTOR
    return {**best, **{key: float(f"{value * factor:.1g}") for key, value in steps(best).items()}}


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
