"""A run folder as the page shows it: leniently, for a run that goes on may be in the middle of a line."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from edelweiss.common import printable
from edelweiss.common.files import read_json, read_toml
from edelweiss.config import flatten
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.problems.metrics import HEADLINE, METRICS
from edelweiss.server_app import about, site_status
from edelweiss.server_app.console import volume
from edelweiss.server_app.run_folder import ENDED_EARLY, mark_lost
from edelweiss.server_app.run_notes import ACTS, LONGEST, WARNINGS, read_notes

TONES = {"complete": "good", "running": "", "stopped": "warn", "failed": "bad", "lost": "bad"}
SITE_TONES = {
    "answered": "good",
    "asked": "",
    "away": "bad",
    "refused": "bad",
    "broke": "bad",
    "awaits approval": "warn",
}
RECENT = 10  # rounds whose mean time says how much is left
MOST_POINTS, MOST_SITES = 150, 40  # of a curve, and thin ones of one picture
KEPT = 50  # runs whose rounds are kept in memory
MOST_RUNS = 4096  # whose status, keys and number of rounds are, as long as they have ended
NUMBERS = ("seconds", "bytes-down", "bytes-up")  # of a round, besides its metrics

Round = dict[str, Any]
"""What is shown of a line of metrics.jsonl: `NUMBERS`, headline metrics, and these of each site under "sites"."""


@dataclass(frozen=True)
class Shown:
    """What is shown of a run."""

    folder: Path
    state: dict[str, Any]

    @classmethod
    def read(cls, folder: Path | str) -> Shown:
        """Read how a run stands; what else is shown of it is read when asked for, and of one that has ended once."""
        try:
            found = os.stat(f"{folder}/status.json")
            return _ended(str(folder), found.st_ino, found.st_mtime_ns)
        except (OSError, _RunningError):
            return cls(Path(folder), mark_lost(Path(folder)))

    @cached_property
    def keys(self) -> dict[str, Any]:
        """Its run-config."""
        file = self.folder / "config.toml"
        try:
            return _keys(file, file.stat().st_mtime_ns)
        except (OSError, ValueError):
            return {}

    @property
    def records(self) -> Sequence[Round]:
        """Its rounds so far."""
        return _ROUNDS.of(self.folder / "metrics.jsonl").records

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def status(self) -> str:
        """One of `TONES`, or "unknown"."""
        return str(self.state.get("status", "unknown"))

    @property
    def tone(self) -> str:
        """The class of its badge."""
        return TONES.get(self.status, "off")

    @property
    def since(self) -> str:
        """Since when it has this status."""
        return str(self.state.get("since", ""))

    @property
    def reason(self) -> str:
        """Why it ended."""
        return str(self.state.get("reason", ""))

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """What looks wrong with data and training, the newest first: when it was said, if known, and the text."""
        files = self.folder / WARNINGS, self.folder / about.FILE
        return _warned(*files, *map(_version, files), tuple(map(str, self.state.get("warnings", []))))

    @property
    def acts(self) -> list[tuple[str, str, str]]:
        """When somebody resumed or stopped it, which of the two, and who; the newest first."""
        found = [(clock(each["at"]), str(each.get("act")), str(each.get("by"))) for each in _notes(self.folder / ACTS)]
        return found[::-1]

    @property
    def resumable(self) -> bool:
        """Whether it can go on, with this release."""
        return self.status in ENDED_EARLY and self.state.get("app") == fingerprint()

    @property
    def report(self) -> bool:
        """Whether it has a report; one that was resumed has that of its earlier end, which is not shown."""
        return self.status != "running" and (self.folder / "report.html").is_file()

    @cached_property
    def done(self) -> int:
        """Rounds that are written."""
        if self.status == "running":
            return len(self.records)
        try:
            return (self.folder / "metrics.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0

    @property
    def rounds(self) -> int:
        """Rounds that it is to have; 0 if nobody knows."""
        found = self.keys.get("rounds", 0)
        return found if isinstance(found, int) else 0

    @property
    def algorithm(self) -> str:
        """Its algorithm."""
        return str(self.keys.get("algorithm", ""))

    @property
    def started_by(self) -> str:
        """Who started it."""
        return str(self.keys.get("started-by", ""))

    @property
    def _pace(self) -> float:
        recent = [float(each.get("seconds") or 0) for each in self.records[-RECENT:]]
        return sum(recent) / len(recent) if recent else 0.0

    @property
    def seconds_per_round(self) -> str:
        """Of the last rounds."""
        return f"{self._pace:.2f}" if self.records else "none yet"

    @property
    def left(self) -> str:
        """How long it is going to take."""
        if self.status != "running" or not self.records or len(self.records) >= self.rounds:
            return ""
        seconds = self._pace * (self.rounds - len(self.records))
        if seconds < 100:
            return f"{seconds:.0f} s"
        return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"

    @property
    def bytes(self) -> str:
        """The traffic of the whole run."""
        found = _ROUNDS.of(self.folder / "metrics.jsonl")
        return f"{volume(found.down)} to the hospitals, {volume(found.up)} from them"

    def curves(self) -> list[dict[str, Any]]:
        """Return a line for each headline metric, and thin ones of the sites, as in the report."""
        return [found for name in HEADLINE if (found := _curve(name, self.records))]

    def sites(self, names: Mapping[str, str] = {}) -> list[dict[str, str]]:
        """Return the state of each of its sites, by name, if known by node; empty in the local engine."""
        now, found = time.time(), []
        running = self.status == "running"
        for node, each in by_node(self.folder).items():
            if not (state := str(each.get("state", "")) if running else "in the run no more"):
                continue
            found.append(
                {
                    "node": node,
                    "name": names.get(node) or str(each.get("name", node)),
                    "state": state,
                    "reason": str(each.get("reason", "")),
                    "tone": SITE_TONES.get(state, "off"),
                    "since": ago(each.get("since"), now),
                    "answered": ago(each.get("answered"), now),
                    "seconds": f"{each['seconds']:.2f}" if isinstance(each.get("seconds"), float) else "",
                }
            )
        return sorted(found, key=lambda site: site["name"])

    def missing(self, sites: Sequence[Mapping[str, str]], nodes: Sequence[Mapping[str, Any]] = ()) -> list[str]:
        """Say whom the run waits for, if it waits: by its sites, and by the nodes of the SuperLink."""
        if self.status != "running":
            return []
        away = [each["name"] for each in sites if each["state"] == "away"]
        waits = [each["name"] for each in sites if each["state"] == "awaits approval"]
        said = [f"Waits for the operator's approval at {', '.join(waits)}."] if waits else []
        if away:
            said.append(f"Away: {', '.join(away)}.")
        if not sites and self.keys.get("dataset") == "site" and self.keys.get("engine") != "local":
            here = [each for each in nodes if each["online"]]
            gone = [str(each["name"]) for each in nodes if not each["online"] and each["name"]]
            known = f" {len(here)} are." if nodes else ""
            known += f" Away: {', '.join(gone)}." if gone else ""
            said.append(f"Waits until {self.keys.get('sites')} hospitals are connected.{known}")
        return said


# ---------------------------------------------------------------------- rounds


class _Rounds:
    """The rounds of the runs that were looked at last, of which only new lines are read."""

    def __init__(self) -> None:
        self._known: OrderedDict[Path, _Read] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, file: Path) -> _Read:
        """Return what is shown of each whole line of a file; nothing without one."""
        with self._lock:
            try:
                with file.open("rb") as stream:
                    status = os.fstat(stream.fileno())
                    known = self._known.pop(file, _Read(status.st_ino))
                    if known.inode != status.st_ino or known.size > status.st_size:  # a run that was resumed
                        known = _Read(status.st_ino)
                    stream.seek(known.size)
                    new = stream.read()
            except OSError:
                return _Read(0)
            with suppress(ValueError, AttributeError):  # somebody wrote into it
                known = known.more(new[: new.rfind(b"\n") + 1])
            self._known[file] = known
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
            return known


@dataclass(frozen=True)
class _Read:
    """What was read of a file with rounds: so many bytes, and the traffic of these rounds."""

    inode: int
    size: int = 0
    records: tuple[Round, ...] = ()
    down: float = 0.0
    up: float = 0.0

    def more(self, lines: bytes) -> _Read:
        """Return it with further lines."""
        if not lines:
            return self
        new = [_shown(json.loads(line)) for line in lines.splitlines()]
        down, up = (sum(each.get(key) or 0 for each in new) for key in ("bytes-down", "bytes-up"))
        return _Read(self.inode, self.size + len(lines), (*self.records, *new), self.down + down, self.up + up)


def _shown(record: dict[str, Any]) -> Round:
    found = {name: record[name] for name in (*NUMBERS, *HEADLINE) if isinstance(record.get(name), int | float)}
    sites = record.get("sites")
    if isinstance(sites, dict):
        own = {site: {name: each.get(name) for name in HEADLINE if name in each} for site, each in sites.items()}
        found["sites"] = dict(list(own.items())[:MOST_SITES])
    return found


_ROUNDS = _Rounds()


def _curve(name: str, records: Sequence[Round]) -> dict[str, Any]:
    """Return the lines of a metric; empty if no round has it."""
    every = max(1, -(-len(records) // MOST_POINTS))
    thinned = [(i, records[i]) for i in sorted({*range(0, len(records), every), *range(len(records))[-1:]})]
    whole = [(i, each[name]) for i, each in thinned if name in each]
    if not whole:
        return {}
    names = dict.fromkeys(site for _, each in thinned for site in each.get("sites", {}))
    sites = [[(i, each.get("sites", {}).get(site, {}).get(name)) for i, each in thinned] for site in names]
    known = [[(i, value) for i, value in own if isinstance(value, int | float)] for own in sites]
    low = min(value for line in (whole, *known) for _, value in line)
    high = max(value for line in (whole, *known) for _, value in line)
    width, height = max(1, len(records) - 1), (high - low) or 1.0

    def points(line: Sequence[tuple[int, float]]) -> str:
        return " ".join(f"{8 + 304 * i / width:.1f},{112 - 104 * (value - low) / height:.1f}" for i, value in line)

    ends = {"first": whole[0][1], "last": whole[-1][1], "low": low, "high": high}
    return {
        "label": METRICS[name].label,
        "points": points(whole),
        "sites": [points(line) for line in known if line],
        "count": len(records),
        **{key: f"{value:.4g}" for key, value in ends.items()},
    }


class _RunningError(Exception):
    """A run that has not ended: how it stands is never remembered."""


@lru_cache(maxsize=MOST_RUNS)
def _ended(folder: str, inode: int, changed: int) -> Shown:
    run = Shown(Path(folder), mark_lost(Path(folder)))
    if run.status not in ("complete", *ENDED_EARLY):
        raise _RunningError
    return run


@lru_cache(maxsize=MOST_RUNS)
def _sites(file: str, changed: int) -> dict[str, dict[str, Any]]:
    found = read_json(Path(file))
    if not isinstance(found, dict):
        return {}
    return {str(node): each for node, each in found.items() if isinstance(each, dict)}


@lru_cache(maxsize=KEPT)
def _noted(file: Path, changed: int, size: int) -> list[dict[str, Any]]:
    return read_notes(file)


@lru_cache(maxsize=KEPT)
def _warned(
    file: Path, described: Path, version: tuple[int, int], described_version: tuple[int, int], state: tuple[str, ...]
) -> list[tuple[str, str]]:
    kept = [(str(each.get("text", "")), clock(each["at"])) for each in _notes(file)]
    try:
        data = read_json(described).get("data-warnings", [])
    except (OSError, ValueError, AttributeError):
        data = []
    texts = {text for text, _ in kept}  # of a release before this one there are none
    first = [(text, "") for each in (*data, *state) if (text := printable(str(each), LONGEST)) not in texts]
    return [(at, text) for text, at in [*reversed(kept), *reversed(first)]]


@lru_cache(maxsize=MOST_RUNS)
def _keys(file: Path, changed: int) -> dict[str, Any]:
    return dict(flatten(read_toml(file)))


# ---------------------------------------------------------------------- folders


def by_node(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the content of sites.json; without states if it is from before the run was resumed."""
    file = f"{folder}/{site_status.FILE}"
    try:
        written = os.stat(file).st_mtime_ns
        sites, old = _sites(file, written), written < os.stat(f"{folder}/status.json").st_mtime_ns
    except (OSError, ValueError):
        return {}
    return {node: each | {"state": ""} for node, each in sites.items()} if old else sites


def _version(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _notes(file: Path) -> list[dict[str, Any]]:
    try:
        found = file.stat()
        return _noted(file, found.st_mtime_ns, found.st_size)
    except OSError:
        return []


def clock(at: float) -> str:
    """Return a time in seconds since 1970 in words; empty if it is none."""
    try:
        return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return ""


def ago(at: object, now: float) -> str:
    """Say how long ago a moment was."""
    if not isinstance(at, int | float):
        return ""
    seconds = max(0.0, now - at)
    return f"{seconds:.0f} s ago" if seconds < 100 else clock(at)


def all_runs(root: Path) -> list[Shown]:
    """Return the runs in a folder, the latest first."""
    try:
        with os.scandir(root) as entries:
            folders = [each.path for each in entries if each.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    found = [Shown.read(folder) for folder in folders if os.path.isfile(f"{folder}/config.toml")]
    return sorted(found, key=lambda run: (run.status == "running", run.since), reverse=True)
