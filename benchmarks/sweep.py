"""A published study at one size: its runs, and what a user types to have them."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from benchmarks.studies import Method, Settings, Study
from edelweiss.common.files import reason
from edelweiss.config import ConfigError, flatten
from edelweiss.lab.compare.runs import OUTCOME
from edelweiss.lab.sweep import jobs
from edelweiss.lab.sweep.study import drawn
from edelweiss.lab.sweep.workers import StoppedError, compute

if TYPE_CHECKING:
    from pathlib import Path

    from edelweiss.common import Value
    from edelweiss.lab.sweep import study as general


@dataclass(frozen=True)
class Sweep(jobs.Sweep[Study]):
    """A study at one size, and where its runs lie. What it says of its setting no longer holds with changed keys."""

    full: bool = False  # the paper's own size and the whole grid, or what two cores can do

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

    @cached_property
    def _experiment(self) -> dict[str, Value]:
        """The run-config as its file has it; read once, and asked for by every run."""
        return flatten(tomllib.loads(self.study.experiment.read_text(encoding="utf-8")))

    def base(self) -> dict[str, Value]:
        """Return the run-config that all runs share: the experiment's, reduced unless it is the paper's own size."""
        return self._experiment | ({} if self.full else dict(self.study.reduced)) | dict(self.changes)

    def place(self, job: jobs.Job, data_root: str) -> Settings:
        """Return where a run finds its data, and the model that it starts from; both are made where they are not there.

        Data that are drawn lie beside the study's runs. Of true ones ``data_root`` has the same folders.
        """
        found = dict(super().place(job, data_root))
        if self.study.generated and not self.full:
            from benchmarks.xrays import make

            try:
                found["data-root"] = str(make(self.folder.parent / "xrays"))
            except OSError as error:
                raise StoppedError(f"images cannot be drawn: {reason(error)}") from None
        elif self.study.generated and not data_root:
            file = self.study.experiment.name
            raise StoppedError(f"--full takes true images: name their folder with --data-root; {file} says what it has")
        if self.study.first_stage:
            folder = found["data-root"]
            found["data-root"] = f"{folder}/first-{job.settings['sites']}"
            if job.settings.get("init-from"):
                found["init-from"] = str(self._first_stage(job.settings["seed"], f"{folder}/first-1"))
        return found

    @property
    def placed(self) -> frozenset[str]:
        """The model to start from lies with the runs, too."""
        return super().placed | ({"init-from"} if self.study.first_stage else set())

    def _first_stage(self, seed: Value, data_root: str) -> Path:
        """Return the folder of the first stage's run, which is done here where it is not there."""
        assert self.study.first_stage is not None
        written = flatten(tomllib.loads(self.study.first_stage.read_text(encoding="utf-8")))
        own = {} if self.full else dict(self.study.first_reduced)
        settings = {**written, **own, "seed": seed}
        method = Method(label="first stage", algorithm=str(written["algorithm"]))
        job = jobs.Job(method, {}, {}, {"seed": seed}, {k: v for k, v in settings.items() if k not in jobs.MACHINE})
        folder = self.folder / job.name
        if not (folder / OUTCOME).exists() and (wrong := compute({**job.settings, "data-root": data_root}, folder)):
            raise StoppedError(f"the first stage at seed {seed}: {wrong}")
        return folder

    def grid(self, method: general.Method) -> tuple[Settings, ...]:
        """Return the method's points at this size, before any extension."""
        if self.study.trials:
            return drawn(method, self.study.trials)
        wide = method.full_grid if isinstance(method, Method) else ()
        return (wide or method.grid) if self.full else method.grid

    def check(self) -> None:
        """Parse a run of each kind that there may be, and say which keys cannot be changed.

        Raises
        ------
        edelweiss.config.ConfigError
            For all that cannot be done.
        """
        if wrong := [f"{key}: {why}; leave it out" for key, why in self.fixed().items() if key in self.changes]:
            raise ConfigError("--set", wrong)
        super().check()

    def fixed(self) -> dict[str, str]:
        """Return the keys that no user can change, and why."""
        found = dict.fromkeys(jobs.MACHINE, "it does not change what is computed")
        found |= {"algorithm": "each method has its own"}
        for axes, what in ((self.study.compare, "compares"), (self.study.repeat, "repeats every run with")):
            found |= {key: f"the study {what} {', '.join(map(str, values))}" for key, values in axes.items()}
        for method in self.study.methods:
            for part in (method.settings, *self.grid(method)):
                found |= {key: f"the study sets it for {method.label}" for key in part if key not in found}
        return found
