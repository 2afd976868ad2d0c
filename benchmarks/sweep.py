"""A published study at one size: its runs, and what a user types to have them."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.studies import Method, Settings, Study
from config import ConfigError, flatten
from server_app.sweep import jobs
from server_app.sweep.study import drawn

if TYPE_CHECKING:
    from keys import Value
    from server_app.sweep import study as general


@dataclass(frozen=True)
class Sweep(jobs.Sweep[Study]):
    """A study at one size, and where its runs lie. What it says of its setting no longer holds with changed keys.

    Attributes
    ----------
    full : bool
        The paper's own size and the whole grid, or what two cores can do.
    """

    full: bool = False

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

    def base(self) -> dict[str, Value]:
        """Return the run-config that all runs share: the experiment's, reduced unless it is the paper's own size."""
        written = flatten(tomllib.loads(self.study.experiment.read_text(encoding="utf-8")))
        return written | ({} if self.full else dict(self.study.reduced)) | dict(self.changes)

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
        config.ConfigError
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
