"""The run folder: its lock, the run's status, and the conditions for resuming it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import socket
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edelweiss.common import shown
from edelweiss.common.files import as_path, is_file, read_json, reason
from edelweiss.config import ConfigError, RunConfig
from edelweiss.config.resume import changed, lasting
from edelweiss.federation import RunError
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.models.storage import atomic_writer
from edelweiss.problems import PROBLEMS

if TYPE_CHECKING:
    from collections.abc import Iterator

WRITTEN = {".json", ".jsonl", ".toml", ".safetensors", ".tar", ".draft", ".html", ".md", ".png", ".pdf"}
"""What the names of the files in a run folder end with."""

_locks: set[int] = set()


def _let_go() -> None:
    """Close a fork's copies of the locks, so that a worker that outlives its coordinator does not hold them."""
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_let_go)


class RunFolder:
    """A run folder, locked for one process.

    ``status.json`` has the run's status: ``running`` (also after its process was killed), ``stopped`` with the reason,
    or ``complete``, with warnings about its training if there are any; and what a resumed run must match: its key,
    release and run-config.

    Parameters
    ----------
    path : Path
        Where it is.
    config : RunConfig
        Of the run.
    key : str
        The run's key at the sites; empty for a new one.

    Attributes
    ----------
    path : Path
        Where it is.
    key : str
        What the sites call the run.
    bound : str
        A hash of everything that a resumed run must match.
    """

    def __init__(self, path: Path, config: RunConfig, key: str = "") -> None:
        self.path, self.key = path, key or secrets.token_hex(16)
        self._bound = {"run": self.key, "app": fingerprint(), "config": lasting(config)}
        self.bound = hashlib.sha256(json.dumps(self._bound, sort_keys=True).encode()).hexdigest()
        self._lock = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the process ends
        except OSError:
            os.close(self._lock)
            text = f"resume = {str(path)!r}: the run is still running in another process: end that"
            raise RunError(text, key="resume", value=path) from None
        _locks.add(self._lock)
        self.note("running", process=os.getpid(), host=socket.gethostname())

    @classmethod
    def new(cls, config: RunConfig, record: str = "") -> RunFolder:
        """Create a new folder; ``record`` is a comment for its config.toml.

        Raises
        ------
        ConfigError
            If a run has this name already.
        RunError
            If it cannot be created.
        """
        try:
            folder = cls(_new_folder(as_path(config.runs_dir), config), config)
            (folder.path / "config.toml").write_text(record + config.to_toml(), encoding="utf-8")
        except OSError as error:
            text = f"runs-dir = {shown(config.runs_dir)}: no run folder can be made there ({reason(error)})"
            raise RunError(text, key="runs-dir", value=config.runs_dir) from None
        return folder

    @classmethod
    def again(cls, config: RunConfig) -> RunFolder:
        """Open the folder that ``resume`` names.

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
            return cls(path, config, str(_status(path)["run"]))
        except OSError as error:
            text = f"resume = {shown(config.resume)}: it cannot be opened ({reason(error)})"
            raise RunError(text, key="resume", value=config.resume) from None

    def note(self, status: str, **more: object) -> None:
        """Write the run's status.

        Raises
        ------
        RunError
            If it cannot be written.
        """
        content = {"status": status, "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}", **more, **self._bound}
        try:
            with atomic_writer(self.path / "status.json") as file:
                file.write(json.dumps(content, indent=1).encode() + b"\n")
        except OSError as error:
            raise RunError(f"{self.path / 'status.json'} cannot be written ({reason(error)})") from None

    def close(self) -> None:
        """Release the lock."""
        _locks.discard(self._lock)
        os.close(self._lock)


def _new_folder(root: Path, config: RunConfig) -> Path:
    what = config.dataset if PROBLEMS[config.problem].needs_data else config.problem
    name = config.run_name or f"{datetime.now():%Y%m%d-%H%M%S}-{config.algorithm}-{what}"
    name = re.sub(r"[^\w.+-]+|^\.+$", "-", name)  # nor "." and "..", which are other folders
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
    status, untrained = _status(folder).get("status"), {"config.toml", "status.json", "about.json"}
    if status == "stopped" and {each.name for each in folder.iterdir()} <= untrained:
        for name in untrained:
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()
        return
    how = f"resume that run with resume = {str(folder)!r}, " if status in ("stopped", "running") else ""
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
