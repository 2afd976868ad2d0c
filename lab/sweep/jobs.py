"""The runs of a study, their outcomes, and the points chosen by them."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from edelweiss.common.files import is_file, read_toml, reason
from edelweiss.config import ConfigError, RunConfig
from edelweiss.lab.compare.grids import beyond
from edelweiss.lab.compare.runs import MACHINE, OUTCOME, PAUSE, Outcome, Run
from edelweiss.lab.sweep.job import Job, combinations, parsed
from edelweiss.lab.sweep.study import STARTUP, Study, drawn, rungs

if TYPE_CHECKING:
    from pathlib import Path

    from edelweiss.common import Value
    from edelweiss.lab.compare.runs import Settings
    from edelweiss.lab.sweep.search import Search
    from edelweiss.lab.sweep.study import Method

S = TypeVar("S", bound=Study)


@dataclass(frozen=True)
class Sweep(Generic[S]):
    """A study, and where its runs lie."""

    study: S  # what is compared
    folder: Path  # of the study's runs
    changes: Settings = field(default_factory=dict)  # keys that a user changed for all runs
    _expected: dict[str, dict[str, Any]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _searches: dict[str, Search] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def extend(self) -> int:
        """By how many points a grid may grow; what a search draws from has no edge."""
        return 0 if self.study.trials else self.study.extend

    def base(self) -> dict[str, Value]:
        """Return the run-config that all runs share."""
        return {**self.study.base, **self.changes}

    def settings(self, method: Method, cell: Settings, *more: Settings) -> Settings:
        """Return the run-config of a method; of two that name a key the later one counts."""
        merged: dict[str, Any] = self.base()
        before = dict(merged)
        for part in (cell, method.settings, *more, self.changes):
            merged |= part
        if self.study.equal_iterations:
            iterations = before.get("rounds", 1) * before.get("local-steps", 1)
            merged["rounds"] = max(1, round(iterations / merged["local-steps"]))
        merged["algorithm"] = method.algorithm
        if merged.get("dp.epsilon") == 0:  # one of those that are compared; it has no δ and no clip
            merged = {key: value for key, value in merged.items() if not key.startswith("dp.") or key == "dp.epsilon"}
        own = ("", "dp", method.algorithm, merged.get("problem", "auc"))  # the tables of others change nothing
        return {key: value for key, value in merged.items() if key.rpartition(".")[0] in own and key not in MACHINE}

    def grid(self, method: Method) -> tuple[Settings, ...]:
        """Return the method's points as far as they are known before any run."""
        if not (self.study.trials and method.ranges):
            return method.grid or ({},)
        first = min(self.study.trials, STARTUP) if self.study.by_model else self.study.trials
        return drawn(method, first)

    def place(self, job: Job, data_root: str) -> Settings:
        """Return where a run finds what it needs: keys of `placed`, which win over its settings."""
        return {**self.study.place, **({"data-root": data_root} if data_root else {})}

    @property
    def placed(self) -> frozenset[str]:
        """Keys of a run that may be other ones at another time, and the run is the same."""
        return MACHINE

    # ------------------------------------------------------------------ runs that choose

    def tuning(self, method: Method) -> list[Job]:
        """Return the runs of all choices, as far as one can say which there are."""
        cells = {key: self.study.compare[key] for key in self.study.tune_by}  # without keys: one, which is empty
        return [job for cell in combinations(cells) for job in self.search(method, cell).jobs]

    def search(self, method: Method, cell: Settings | None = None) -> Search:
        """Return the search for a cell of what is compared, as far as it has come; left out: for the first one."""
        from edelweiss.lab.sweep.search import Search  # loads Optuna

        cell = cell or next(combinations(self.study.compare))
        tuned = {key: cell[key] for key in self.study.tune_by}
        key = str((method.label, tuned))
        if key not in self._searches:
            self._searches[key] = Search(self, method, tuned)
        return self._searches[key].advance()

    def trial(self, method: Method, point: Settings, tuned: Settings) -> Job:
        """Return the run that judges a point."""
        cell, repeat = {**next(combinations(self.study.compare)), **tuned}, next(combinations(self.study.repeat))
        repeat |= {"seed": self.study.tuning_seed}
        quick: dict[str, Value] = {"evaluate-every": 0, "central-test": False}
        settings = self.settings(method, cell, point, repeat, quick)
        if self.study.halving and (early := rungs(settings, self.study.halving)):
            settings = {**settings, "evaluate-every": early[0]}
        # Not on the test set, even where each site is given its part of that.
        settings = {key: value for key, value in settings.items() if key != "personal-test"}
        return Job(method, point, tuned, repeat, settings, tuning=True)

    def choose(self, method: Method, cell: Settings | None = None) -> Settings | None:
        """Return the best point by the held-out samples, for a cell of what is compared; left out: for the first one.

        None when the tuning runs are not all there, or when all of them diverged.
        """
        search = self.search(method, cell)
        if not search.jobs:
            return self.grid(method)[0]
        return search.best if search.complete and not search.diverged else None

    def chosen_by(self, method: Method) -> float | None:
        """Return the value of `Study.select` that the first choice was made by; None without one."""
        return self.search(method).value

    def on_edge(self, method: Method, point: Settings, cell: Settings) -> bool:
        """Return whether a choice lies on the edge of a grid that has grown as far as it may."""
        jobs = self.search(method, cell).jobs
        return self.extend > 0 and beyond([job.point for job in jobs], point) is not None

    # ------------------------------------------------------------------ runs that are reported

    def reported(self, method: Method, point: Settings, only: Settings | None = None) -> list[Job]:
        """Return the runs that the tables show, all or those of one cell."""
        return [
            Job(method, point, cell, repeat, self.settings(method, cell, point, repeat))
            for cell in ([only] if only is not None else combinations(self.study.compare))
            for repeat in combinations(self.study.repeat)
        ]

    def chosen(self) -> list[Job]:
        """Return the reported runs of all choices that can be made."""
        found = []
        for method in self.study.methods:
            for cell in combinations(self.study.compare):
                if (point := self.choose(method, cell)) is not None:
                    found += self.reported(method, point, cell)
        return found

    def check(self) -> None:
        """Parse a run of each kind that the study may need; ConfigError for all that cannot be done."""
        repeats = len(list(combinations(self.study.repeat)))
        # The repeats of a run differ by seed and fold, which are as good as any.
        runs = (
            job
            for each in self.study.methods
            for point in self.grid(each)
            for job in self.reported(each, point)[::repeats]
        )
        for jobs in (runs, (job for each in self.study.methods for job in self.tuning(each)[:1])):
            wrong: dict[str, str] = {}  # what is wrong, and the first run of which it is
            for job in jobs:
                try:
                    parsed({**job.settings, **self.study.place})
                except ConfigError as error:
                    for problem in error.problems:
                        wrong.setdefault(problem, job.method.label)
            if wrong:
                one = len(self.study.methods) == 1
                raise ConfigError("sweep", [text if one else f"{label}: {text}" for text, label in wrong.items()])

    def kinds(self) -> list[RunConfig]:
        """Return a run of each method, which differs from its others in numbers alone."""
        jobs = (self.reported(each, self.grid(each)[0])[0] for each in self.study.methods)
        return [parsed({**job.settings, **self.study.place}) for job in jobs]

    # ------------------------------------------------------------------ what came of them

    def outcome(self, job: Job) -> Outcome | None:
        """Read a run; None when it is not there, was cut off, or is of other settings than these are by now.

        Raises
        ------
        edelweiss.config.ConfigError
            For one that is damaged.
        """
        folder = self.folder / job.name
        end = PAUSE if job.until and is_file(folder / PAUSE) and not os.path.lexists(folder / OUTCOME) else OUTCOME
        if not os.path.lexists(folder / end) and (folder.is_dir() or not os.path.lexists(folder)):
            return None
        try:
            outcome, then = Outcome.read(folder, end), read_toml(folder / "config.toml")
            if "algorithm" not in then:
                raise ValueError("its config.toml is empty")
        except (OSError, ValueError) as error:
            text = f"{folder} is damaged, or of another version ({reason(error)}): remove it, and the run is done again"
            raise ConfigError("runs that are kept", [text]) from None
        if job.name not in self._expected:
            self._expected[job.name] = tomllib.loads(parsed(job.settings).to_toml())
        now = self._expected[job.name]
        # A default that has changed since makes it another run; a key that was added or removed does not.
        if any(now[key] != then[key] for key in now.keys() & then.keys() - self.placed):
            return None
        if len(outcome.records) < job.until and not outcome.diverged:
            return None  # it was paused earlier
        return outcome

    def run(self, job: Job) -> Run | None:
        """Return a run with its outcome; None where `outcome` has none."""
        outcome = self.outcome(job)
        return Run(job.settings, job.repeat, outcome) if outcome else None
