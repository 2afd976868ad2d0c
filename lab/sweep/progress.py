"""How far a sweep is."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING

from edelweiss.lab.compare.runs import held_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edelweiss.lab.compare.runs import Outcome
    from edelweiss.lab.sweep.job import Job


class Progress:
    """One live line on a terminal, a line per run elsewhere."""

    def __init__(self, select: str) -> None:
        self.select, self.total = select, 0
        self.started, self.fresh = time.monotonic(), 0
        self._there: set[tuple[str, int]] = set()  # a run that goes on after a pause counts again

    @property
    def done(self) -> int:
        """How many runs are there, and parts of runs that were paused; never fewer than before."""
        return len(self._there)

    def expect(self, there: Sequence[Job], more: int) -> None:
        """Note which runs are there, and how many are still to come as far as one can say."""
        self._there.update((job.name, job.until) for job in there)
        self.total = self.done + more

    def finished(self, job: Job, outcome: Outcome | None) -> None:
        """Note the end of a run."""
        self._there.add((job.name, job.until))
        self.fresh += 1
        assert outcome is not None, "the run has just been written"
        value = None if outcome.diverged else held_out(outcome.last, self.select)
        result = "diverged" if outcome.diverged else f"{self.select} {value:.4g}" if value is not None else "done"
        left = (time.monotonic() - self.started) / self.fresh * (self.total - self.done)
        text = f"[{self.done}/{self.total}] {job}: {result}, {outcome.seconds:.0f} s; about {left / 60:.1f} min left"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the live line."""
        if self.fresh and sys.stderr.isatty():
            print(file=sys.stderr)
