"""``state.safetensors`` in the run folder: all that a run needs to go on after a round, with the same bits."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from typing import TYPE_CHECKING, Any

from edelweiss.common import from_record, to_record
from edelweiss.common.files import reason
from edelweiss.datasets import DataSummary, Facts
from edelweiss.federation import Checkpoints, RunError, Snapshot
from edelweiss.models.storage import StoredTensors, write_tensors
from edelweiss.server_app.console import volume
from edelweiss.server_app.local import LocalGrid

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flwr.serverapp import Grid

    from edelweiss.federation import Site
    from edelweiss.problems import Arrays
    from edelweiss.server_app.report import Record, Report
    from edelweiss.server_app.run_folder import RunFolder

SHARE = 0.02  # of a run's time that may go into writing
FIRST = 0.02  # seconds that a writing takes, as long as none was measured
FACTS = {
    "round": int,
    "facts": dict,
    "twins": dict,
    "line": dict,
    "cohort": dict,
    "sites": dict,
    "stack": int,
    "lines": int,
    "local": bool,
}
LINE = {"round", "seconds", "gradients", "bytes-down", "bytes-up"}
STATE = 5  # vectors as long as x that a state has, about


class RunState(Checkpoints):
    """Writes what a run can go on from, every ``checkpoint-every`` rounds, or fewer times where that would cost time.

    What sites remember is theirs to keep. The local engine's do so in shared memory, which ends with the run: there
    it is written into the run folder, too, as ``memory-ROUND.tar``.

    Parameters
    ----------
    folder : RunFolder
        Where to.
    report : Report
        Whose last line belongs to the state.
    grid : Grid
        Any engine's.

    Attributes
    ----------
    data_summary : DataSummary
        What the sites agreed on.
    start : Arrays
        What the run started from, but for x.
    stack : int
        Clients that a process trains side by side, once that is decided; 0 before.
    """

    def __init__(self, folder: RunFolder, report: Report, grid: Grid) -> None:
        super().__init__(folder.key)
        self.folder, self.report, self.every = folder.path, report, report.config.checkpoint_every
        self._bound = folder.bound
        self.local = grid if isinstance(grid, LocalGrid) else None
        self.path = folder.path / "state.safetensors"
        self.data_summary = DataSummary()
        self.start: Arrays = {}
        self.stack = 0
        self._sites: dict[str, str] = {}
        self._reached: tuple[Snapshot, Record, int] | None = None
        self._written = 0
        self._began, self._spent, self._cost = time.monotonic(), 0.0, FIRST

    def read(self) -> None:
        """Go on from what is there; from the start if the run was stopped before anything was written.

        Raises
        ------
        RunError
            When it cannot be used.
        """
        progress = self.report.progress
        if not os.path.lexists(self.path):
            progress.say("goes on from its start: it was stopped before a round was stored")
            self.report.take_up(None, 0, 0)
            return
        try:
            stored = StoredTensors.read(self.path)
            if not stored.intact:
                raise ValueError("it does not hold what was written")
            self._take(stored.tensors, stored.facts)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            text = f"resume: {self.path} cannot be used ({reason(error)}); start the run anew"
            raise RunError(text, key="resume", value=self.path) from None

    def _take(self, tensors: Arrays, facts: dict[str, Any]) -> None:
        """Take what a whole file holds: of this run alone, which the run-config and the app's version are part of."""
        if facts.get("bound") != self._bound:
            raise ValueError("it is of another run, or its run began with another run-config")
        progress, done = self.report.progress, facts["round"]
        if wrong := [name for name, kind in FACTS.items() if type(facts[name]) is not kind]:
            raise ValueError(f"{', '.join(wrong)}: no such thing is written")
        data_summary = from_record(DataSummary, facts["cohort"])
        memories = facts["facts"].get("memories")
        if facts["facts"].keys() != {"sending-order", "memories"} or {*map(type, memories.values())} - {int}:
            raise ValueError("it does not say in which order sites were sent to, or what they remember")
        if (
            not 1 <= done <= self.report.config.rounds
            or LINE - facts["line"].keys()
            or DataSummary.wrong(facts["cohort"])
        ):
            raise ValueError(f"round {done}, its line or what the sites agreed on cannot be")
        if facts["stack"] < 0:
            raise ValueError(f"stacks of {facts['stack']} clients cannot be")
        if facts["local"] != bool(self.local):
            was = "the local engine, where" if facts["local"] else "Flower, and"
            raise RunError(f"resume: the run was in {was} what sites remember is still: go on there", key="resume")
        tensors |= {name: tensors[twin] for name, twin in facts["twins"].items()}
        self.start = {name.partition("/")[2]: v for name, v in tensors.items() if name.startswith("start/")}
        self.data_summary, self._sites, self.stack = data_summary, facts["sites"], facts["stack"]
        state = {name: vector for name, vector in tensors.items() if not name.startswith("start/")}
        self.last = Snapshot(done, state, facts["facts"])
        self._written = done
        if self.local:
            self.local.restore(self.key, self._memory(done), facts["memory"])
        self.report.take_up(facts["line"], done, facts["lines"])
        progress.say(f"goes on after round {done} of {self.report.config.rounds}")

    def note_start(self, sites: Mapping[Site, Facts], data_summary: DataSummary, start: Arrays) -> None:
        """Take note of what holds for the whole run."""
        self.data_summary, self.start = data_summary, {name: vector for name, vector in start.items() if name != "x"}
        self._sites = _digests(sites)

    def require_same(self, sites: Mapping[Site, Facts]) -> None:
        """Check that the sites are those of the run before it was stopped, with the same data.

        Raises
        ------
        RunError
            Naming those that are not.
        """
        now, then = _digests(sites), self._sites
        if changed := sorted(name for name in {*now, *then} if now.get(name) != then.get(name)):
            raise RunError(
                f"the run cannot go on: {', '.join(changed)} joined, left or changed its data since it was stopped",
                sites=changed,
            )

    def require_room(self, d: int, states: int) -> None:
        """Check that the disk has room for about what this run writes.

        Parameters
        ----------
        d : int
            The length of x.
        states : int
            Bytes of what the sites remember; 0 where they keep it elsewhere.

        Raises
        ------
        RunError
            When it has not.
        """
        config = self.report.config
        written = 4 * d * (1 + (STATE if self.every else 0)) + (states if self.every else 0)
        needed, free = 2 * written, shutil.disk_usage(self.folder).free  # the new beside the old
        if free < needed:
            less = "; checkpoint-every = 0 takes less" if self.every else ""
            raise RunError(
                f"runs-dir = {config.runs_dir!r}: {volume(free)} are free there, and this run writes about "
                f"{volume(needed)}: make room, or take another runs-dir{less}",
                key="runs-dir",
                value=needed,
                allowed=free,
            )

    # ------------------------------------------------------------------ as a run goes

    def committed(self, server_round: int) -> int:
        """See `Checkpoints`. In the local engine state and memories are written together."""
        if self.every and not self.local:
            return self._written
        return server_round - 1 if self.every or not self.local else server_round

    def save_if_due(self, snapshot: Snapshot) -> None:
        """Take note, and write if that is due; in any case before the sites are told that the run is over."""
        self._reached = snapshot, self.report.records[-1], self.report.checksum
        if self.local and self.every:
            self.local.prune(self.key, snapshot.round)
        over = snapshot.round == self.report.config.rounds and not self.local
        due = self.every and snapshot.round % self.every == 0
        due = due and self._spent + self._cost <= SHARE * (time.monotonic() - self._began)
        if due or (over and self.every):
            self.write()

    def write(self) -> None:
        """Write the last round that was reached, unless it is there; what cannot be written leaves the one before."""
        if self._reached is None or not self.every or self._written == self._reached[0].round:
            return
        started = time.monotonic()
        snapshot, record, lines = self._reached
        try:
            self.report.write()
            memory = self.local.store(self.key, snapshot.round, self._memory(snapshot.round)) if self.local else None
            tensors, facts = self._content(snapshot, record, lines)
            write_tensors(self.path, tensors, {**facts, "memory": memory})
        except OSError as error:
            self._memory(snapshot.round).unlink(missing_ok=True)
            text = f"round {snapshot.round} cannot be stored ({error}); stopped now, the run could go on "
            self.report.progress.warn(text + (f"from round {self._written}" if self._written else "from its start"))
        else:
            self._written = snapshot.round
            self._remove_memories(but=snapshot.round)
        self._cost = time.monotonic() - started
        self._spent += self._cost

    def remove(self) -> None:
        """Remove all of it: the run is complete."""
        self.path.unlink(missing_ok=True)
        self._remove_memories()

    def _memory(self, server_round: int) -> Path:
        return self.folder / f"memory-{server_round}.tar"

    def _remove_memories(self, but: int = 0) -> None:
        for path in self.folder.glob("memory-*"):
            if path != self._memory(but):
                path.unlink()

    # ------------------------------------------------------------------ what is in the file

    def _content(self, snapshot: Snapshot, record: Record, lines: int) -> tuple[Arrays, dict[str, Any]]:
        tensors: Arrays = {}
        twins: dict[str, str] = {}
        stored: dict[object, str] = {}
        for name, vector in {**snapshot.tensors, **{f"start/{n}": v for n, v in self.start.items()}}.items():
            where = (vector.data_ptr(), vector.shape, vector.stride(), vector.dtype)
            if (twin := stored.setdefault(where, name)) != name:  # x and the point of reference are often one
                twins[name] = twin
            else:
                tensors[name] = vector if vector.untyped_storage().nbytes() == vector.nbytes else vector.clone()
        facts = {
            "round": snapshot.round,
            "facts": snapshot.facts,
            "twins": twins,
            "line": record,
            "cohort": to_record(self.data_summary),
            "sites": self._sites,
            "stack": self.stack,
            "bound": self._bound,
            "lines": lines,
            "local": bool(self.local),
        }
        return tensors, facts


def _digests(sites: Mapping[Site, Facts]) -> dict[str, str]:
    return {
        site.name: hashlib.sha256(json.dumps(to_record(facts)).encode()).hexdigest()[:16]
        for site, facts in sites.items()
    }
