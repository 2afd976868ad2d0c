"""The run folder: its lock, the run's status, and the conditions for resuming it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import socket
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edelweiss.common import ConfigError, shown
from edelweiss.common.files import as_path, is_file, read_json, reason
from edelweiss.config.resume import changed, lasting
from edelweiss.federation import RunError
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.server_app.run_notes import ACTS, WARNINGS, note_act, read_notes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from edelweiss.config import RunConfig
    from edelweiss.server_app.run_notes import Act

WRITTEN = {".json", ".jsonl", ".toml", ".safetensors", ".tar", ".draft", ".html", ".md", ".png", ".pdf"}
"""What the names of the files in a run folder end with."""

ENDED_EARLY = ("stopped", "failed", "lost")
"""The status of a run that has ended and can be resumed."""

LOOK = 0.5  # seconds that another process may hold the lock of a folder to see whether its run is there
FOLDER_PIPE = "EDELWEISS_FOLDER_PIPE"  # environment variable: a file descriptor, for `_tell_executor`

_locks: set[int] = set()


def _let_go() -> None:
    """Close a fork's copies of the locks, so that a worker that outlives its coordinator does not hold them."""
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_let_go)


class RunFolder:
    """A run folder, locked for one process.

    ``status.json`` has the run's status: ``running``; ``complete``, with warnings about its training if there are any;
    ``stopped`` by somebody, or until a hospital's operator decides; ``failed`` with the reason; or ``lost``, if its
    process was killed, as `mark_lost` finds. And what a resumed run must match: its key, release and run-config.

    Parameters
    ----------
    path : Path
        Where it is.
    config : RunConfig
        Of the run.
    key : str
        The run's key at the sites; empty for a new one.
    number : int
        Flower's number of the run, by which a SuperLink stops it; 0 in the local engine.

    Attributes
    ----------
    path : Path
        Where it is.
    key : str
        What the sites call the run.
    bound : str
        A hash of everything that a resumed run must match.
    """

    def __init__(self, path: Path, config: RunConfig, key: str = "", number: int = 0) -> None:
        self.path, self.key = path, key or secrets.token_hex(16)
        self._bound = {"run": self.key, "app": fingerprint(), "config": lasting(config)}
        self.bound = hashlib.sha256(json.dumps(self._bound, sort_keys=True).encode()).hexdigest()
        if (lock := _locked(path, seconds=LOOK)) is None:
            text = f"resume = {str(path)!r}: the run is still running in another process: end that"
            raise RunError(text, key="resume", value=path) from None
        self._lock = lock
        _locks.add(lock)
        _tell_executor(path)
        more = {"flower-run": str(number)} if number else {}
        self.note("running", process=os.getpid(), host=socket.gethostname(), **more)

    @classmethod
    def new(cls, config: RunConfig, record: str = "", number: int = 0) -> RunFolder:
        """Create a new folder; ``record`` is a comment for its config.toml, ``number`` Flower's of the run.

        Raises
        ------
        ConfigError
            If a run has this name already.
        RunError
            If it cannot be created.
        """
        try:
            folder = cls(_new_folder(as_path(config.runs_dir), config), config, number=number)
            (folder.path / "config.toml").write_text(record + config.to_toml(), encoding="utf-8")
        except OSError as error:
            text = f"runs-dir = {shown(config.runs_dir)}: no run folder can be made there ({reason(error)})"
            raise RunError(text, key="runs-dir", value=config.runs_dir) from None
        return folder

    @classmethod
    def again(cls, config: RunConfig, number: int = 0) -> RunFolder:
        """Open the folder that ``resume`` names; ``number`` is Flower's of the run.

        Raises
        ------
        ConfigError
            If no run can be resumed there with this run-config.
        RunError
            If a run is still running there.
        """
        try:
            path = as_path(config.resume).resolve()
            wrong = [*_hindrances(path, config)]
        except (OSError, RuntimeError) as error:  # a symlink loop
            wrong = [f"it cannot be read: {reason(error)}"]
        if wrong:
            raise ConfigError("run-config", [f"resume = {shown(config.resume)}: {text}" for text in wrong])
        try:
            return cls(path, config, str(_status(path)["run"]), number)
        except OSError as error:
            text = f"resume = {shown(config.resume)}: it cannot be opened ({reason(error)})"
            raise RunError(text, key="resume", value=config.resume) from None

    def note_act(self, act: Act, by: str) -> None:
        """Note who resumed or stopped the run, but no stop after a stop: the page has noted whose it is."""
        if act == "stopped" and any(last.get("act") == act for last in read_notes(self.path / ACTS)[-1:]):
            return
        with suppress(OSError):  # it is not worth a run
            note_act(self.path, act, by)

    def note(self, status: str, **more: object) -> None:
        """Write the run's status.

        Raises
        ------
        RunError
            If it cannot be written.
        """
        try:
            _write_status(self.path, {"status": status, **more, **self._bound})
        except OSError as error:
            raise RunError(f"{self.path / 'status.json'} cannot be written ({reason(error)})") from None

    def close(self) -> None:
        """Release the lock."""
        _locks.discard(self._lock)
        os.close(self._lock)


def _write_status(path: Path, content: Mapping[str, object]) -> None:
    from edelweiss.models.storage import atomic_writer  # needs torch, and the executor, which waits for weeks, does not

    content = {"status": content["status"], "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}"} | dict(content)
    with atomic_writer(path / "status.json") as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")


def _locked(path: Path, seconds: float = 0.0) -> int | None:
    """Lock a run folder, until the process ends or closes what is returned; None if another process has done so."""
    lock, deadline = os.open(path, os.O_RDONLY), time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except OSError:
            if time.monotonic() >= deadline:
                os.close(lock)
                return None
        time.sleep(0.02)  # `mark_lost` in another process may be looking


def mark_lost(path: Path) -> dict[str, Any]:
    """Return the content of a run folder's status.json, after marking a run whose process is gone as lost.

    Empty where there is none. Who may not write there gets the same content.
    """
    if (status := _status(path)).get("status") != "running":
        return status
    try:
        if (lock := _locked(path)) is None:
            return status
        try:
            if (status := _status(path)).get("status") != "running":  # it has ended meanwhile
                return status
            why = f"its process {status.get('process', '?')} on {status.get('host', '?')} is gone without a word"
            status = {key: value for key, value in status.items() if key != "since"}
            status |= {"status": "lost", "reason": f"{why}: it was killed, or the machine was"}
            with suppress(OSError):
                _write_status(path, status)
        finally:
            os.close(lock)
    except OSError:
        return status
    return status


def _tell_executor(path: Path) -> None:
    """Tell the process that started this one where the run's folder is."""
    if pipe := os.environ.pop(FOLDER_PIPE, ""):
        with suppress(OSError, ValueError):
            os.write(int(pipe), os.fsencode(path))
            os.close(int(pipe))


def folder_name(run_name: str) -> str:
    """Return what the folder of a run with this name is called."""
    return re.sub(r"[^\w.+-]+|^\.+$", "-", run_name)  # nor "." and "..", which are other folders


def _new_folder(root: Path, config: RunConfig) -> Path:
    from edelweiss.problems import PROBLEMS

    what = config.dataset if PROBLEMS[config.problem].needs_data else config.problem
    name = config.run_name or f"{datetime.now():%Y%m%d-%H%M%S}-{config.algorithm}-{what}"
    name = folder_name(name)
    if config.run_name and os.path.lexists(root / name):
        _give_way(root / name, config)
    for suffix in ("", *(f"-{number}" for number in range(2, 1000 if not config.run_name else 2))):
        folder = root / (name + suffix)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder.resolve()
    raise FileExistsError(f"{root / name} exists, and 998 folders with a number after it: remove some")


def _give_way(folder: Path, config: RunConfig) -> None:
    """Remove the folder of a run with the same name if it stopped before training; otherwise raise ConfigError."""
    status, untrained = mark_lost(folder).get("status"), {"config.toml", "status.json", "about.json", "sites.json"}
    untrained |= {WARNINGS, ACTS}
    if status in ENDED_EARLY and {each.name for each in folder.iterdir()} <= untrained:
        for name in untrained:
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()
        return
    how = f"resume that run with resume = {str(folder)!r}, " if status in (*ENDED_EARLY, "running") else ""
    text = f"{folder} exists already: {how}choose another run-name, or remove that folder"
    raise ConfigError("run-config", [f"run-name = {shown(config.run_name)}: {text}"])


def _status(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path / "status.json")
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _hindrances(path: Path, config: RunConfig) -> Iterator[str]:
    """Yield the obstacles to resuming a run in a folder."""
    if not is_file(path / "config.toml"):
        yield "this is no run folder, in which there would be a config.toml"
        return
    if odd := sorted(each.name for each in path.iterdir() if each.suffix in WRITTEN and not each.is_file()):
        yield f"{', '.join(odd)} in it: no regular file; bring back what the run wrote, or start the run anew"
        return
    status = _status(path)
    if status.get("status") == "complete":
        yield "this run is complete; to train its model further, start another with init-from"
        return
    key, app, began = (status.get(name) for name in ("run", "app", "config"))
    if not re.fullmatch("[0-9a-f]{32}", str(key)) or not isinstance(app, str):
        yield "its status.json is missing or damaged: bring it back from a copy, or start the run anew"
    elif app != fingerprint():
        yield (
            f"it began with version {shown(app)} of the app, and this is {fingerprint()!r}: go on with that release, "
            "or start a new run, with init-from from its model"
        )
    elif not isinstance(began, dict):
        yield "its status.json does not say with which run-config it began: start the run anew"
    elif differences := changed(lasting(config), began):
        yield (
            f"it began with another run-config: {differences}. Leave these out of --run-config, and its config.toml "
            "unchanged (flwr run needs that file, too); for other values start a new run, with init-from from its model"
        )
