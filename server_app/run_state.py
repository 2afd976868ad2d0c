"""``state.safetensors`` in the run folder: the checkpoint from which a run resumes with identical results."""

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
    from edelweiss.server_app.recorder import Record, Recorder
    from edelweiss.server_app.run_folder import RunFolder

SHARE = 0.02  # most of a run's time for writing checkpoints
FIRST = 0.02  # assumed seconds of the first write
FACTS = {
    "round": int,
    "facts": dict,
    "twins": dict,
    "line": dict,
    "data-summary": dict,
    "sites": dict,
    "stack": int,
    "lines": int,
    "local": bool,
}
LINE = {"round", "seconds", "gradients", "bytes-down", "bytes-up"}
STATE = 5  # vectors as long as x that a state has, about


class RunState(Checkpoints):
    """Writes checkpoints every ``checkpoint-every`` rounds, or less often if that takes too much time.

    Sites keep their own memories. In the local engine these are in shared memory, which is lost with the run, so they
    are also written into the run folder, as ``memory-ROUND.tar``.

    Parameters
    ----------
    folder : RunFolder
        Where to.
    recorder : Recorder
        Its last line belongs to the checkpoint.
    grid : Grid
        Any engine's.

    Attributes
    ----------
    data_summary : DataSummary
        The summary of the sites' data.
    start : Arrays
        The initial model without x.
    stack : int
        Clients that a process trains together; 0 before that is decided.
    """

    def __init__(self, folder: RunFolder, recorder: Recorder, grid: Grid) -> None:
        super().__init__(folder.key)
        self.folder, self.recorder, self.every = folder.path, recorder, recorder.config.checkpoint_every
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
        """Resume from the last checkpoint, or from the start if there is none.

        Raises
        ------
        RunError
            If it is unusable.
        """
        progress = self.recorder.progress
        if not os.path.lexists(self.path):
            progress.say("restarts from the beginning: it was stopped before the first checkpoint")
            self.recorder.take_up(None, 0, 0)
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
        """Restore the content of an intact file, which must be of this run, run-config and release."""
        if facts.get("bound") != self._bound:
            raise ValueError("it is of another run, or its run began with another run-config")
        progress, done = self.recorder.progress, facts["round"]
        if wrong := [name for name, kind in FACTS.items() if type(facts[name]) is not kind]:
            raise ValueError(f"{', '.join(wrong)}: unknown content")
        data_summary = from_record(DataSummary, facts["data-summary"])
        memories = facts["facts"].get("memories")
        if facts["facts"].keys() != {"sending-order", "memories"} or {*map(type, memories.values())} - {int}:
            raise ValueError("it does not say in which order sites were sent to, or what they remember")
        if (
            not 1 <= done <= self.recorder.config.rounds
            or LINE - facts["line"].keys()
            or DataSummary.wrong(facts["data-summary"])
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
        self.recorder.take_up(facts["line"], done, facts["lines"])
        progress.say(f"resumes after round {done} of {self.recorder.config.rounds}")

    def note_start(self, sites: Mapping[Site, Facts], data_summary: DataSummary, start: Arrays) -> None:
        """Receive what stays the same for the whole run."""
        self.data_summary, self.start = data_summary, {name: vector for name, vector in start.items() if name != "x"}
        self._sites = _digests(sites)

    def require_same(self, sites: Mapping[Site, Facts]) -> None:
        """Check that the sites and their data are those of the run before it was stopped.

        Raises
        ------
        RunError
            With those that are not.
        """
        now, then = _digests(sites), self._sites
        if changed := sorted(name for name in {*now, *then} if now.get(name) != then.get(name)):
            raise RunError(
                f"the run cannot be resumed: {', '.join(changed)} joined, left or changed its data since it stopped",
                sites=changed,
            )

    def require_room(self, d: int, states: int) -> None:
        """Check that the disk has room for this run's files.

        Parameters
        ----------
        d : int
            The length of x.
        states : int
            Bytes of the sites' memories; 0 if they keep them elsewhere.

        Raises
        ------
        RunError
            If there is too little.
        """
        config = self.recorder.config
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
        """Receive a snapshot, and write it if due, always before the sites learn that the run is over."""
        self._reached = snapshot, self.recorder.records[-1], self.recorder.checksum
        if self.local and self.every:
            self.local.prune(self.key, snapshot.round)
        over = snapshot.round == self.recorder.config.rounds and not self.local
        due = self.every and snapshot.round % self.every == 0
        due = due and self._spent + self._cost <= SHARE * (time.monotonic() - self._began)
        if due or (over and self.every):
            self.write()

    def write(self) -> None:
        """Write the last snapshot unless it is written already; a failed write leaves the previous checkpoint."""
        if self._reached is None or not self.every or self._written == self._reached[0].round:
            return
        started = time.monotonic()
        snapshot, record, lines = self._reached
        try:
            self.recorder.write()
            memory = self.local.store(self.key, snapshot.round, self._memory(snapshot.round)) if self.local else None
            tensors, facts = self._content(snapshot, record, lines)
            write_tensors(self.path, tensors, {**facts, "memory": memory})
        except OSError as error:
            self._memory(snapshot.round).unlink(missing_ok=True)
            text = f"round {snapshot.round} cannot be stored ({error}); if stopped now, the run would resume "
            self.recorder.progress.warn(text + (f"from round {self._written}" if self._written else "from its start"))
        else:
            self._written = snapshot.round
            self._remove_memories(but=snapshot.round)
        self._cost = time.monotonic() - started
        self._spent += self._cost

    def remove(self) -> None:
        """Remove all checkpoints of a complete run."""
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
            if (twin := stored.setdefault(where, name)) != name:  # x and the reference point are often the same
                twins[name] = twin
            else:
                tensors[name] = vector if vector.untyped_storage().nbytes() == vector.nbytes else vector.clone()
        facts = {
            "round": snapshot.round,
            "facts": snapshot.facts,
            "twins": twins,
            "line": record,
            "data-summary": to_record(self.data_summary),
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
