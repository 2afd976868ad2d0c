"""A run folder as the page shows it: leniently, for a run that goes on may be in the middle of a line."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from edelweiss.common.files import read_json, read_toml
from edelweiss.config import flatten
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.problems.metrics import HEADLINE, METRICS
from edelweiss.server_app.console import volume
from edelweiss.server_app.run_folder import ENDED_EARLY, mark_lost
from edelweiss.server_app.site_status import FILE

TONES = {"complete": "good", "running": "", "stopped": "warn", "failed": "bad", "lost": "bad"}
SITE_TONES = {"answered": "good", "asked": "", "away": "bad", "awaits approval": "warn"}
RECENT = 10  # rounds whose mean time says how much is left


@dataclass(frozen=True)
class Shown:
    """What is shown of a run."""

    folder: Path
    state: dict[str, Any]
    keys: dict[str, Any]
    records: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> Shown:
        """Read what is there of a run folder."""
        try:
            keys = flatten(read_toml(folder / "config.toml"))
        except (OSError, ValueError):
            keys = {}
        records = []
        try:
            for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
                records.append(json.loads(line))
        except (OSError, ValueError):  # not begun, or a line that is being written
            pass
        return cls(folder, mark_lost(folder), keys, [each for each in records if isinstance(each, dict)])

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
    def warnings(self) -> list[str]:
        """What looks wrong with its training."""
        return [str(each) for each in self.state.get("warnings", [])]

    @property
    def resumable(self) -> bool:
        """Whether it can go on, with this release."""
        return self.status in ENDED_EARLY and self.state.get("app") == fingerprint()

    @property
    def done(self) -> int:
        """Rounds that are written."""
        return len(self.records)

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
        if self.status != "running" or not self.records or self.done >= self.rounds:
            return ""
        seconds = self._pace * (self.rounds - self.done)
        return (
            f"{seconds:.0f} s"
            if seconds < 100
            else f"{seconds / 60:.0f} min"
            if seconds < 6000
            else (f"{seconds / 3600:.1f} h")
        )

    @property
    def bytes(self) -> str:
        """The traffic of the whole run."""
        down, up = (sum(each.get(key) or 0 for each in self.records) for key in ("bytes-down", "bytes-up"))
        return f"{volume(down)} to the hospitals, {volume(up)} from them"

    def curves(self) -> list[dict[str, Any]]:
        """Return a polyline for each headline metric."""
        found = []
        for name in HEADLINE:
            values = [(i, each[name]) for i, each in enumerate(self.records) if isinstance(each.get(name), int | float)]
            if not values:
                continue
            low, high = min(v for _, v in values), max(v for _, v in values)
            width, height = max(1, len(self.records) - 1), (high - low) or 1.0
            points = " ".join(f"{8 + 304 * i / width:.1f},{112 - 104 * (v - low) / height:.1f}" for i, v in values)
            ends = {"first": values[0][1], "last": values[-1][1], "low": low, "high": high}
            shown = {key: f"{value:.4g}" for key, value in ends.items()}
            found.append({"label": METRICS[name].label, "points": points, "count": len(values), **shown})
        return found

    def sites(self) -> list[dict[str, str]]:
        """Return the state of each of its sites, by name; empty in the local engine."""
        now, found = time.time(), []
        running = self.status == "running"
        for node, each in by_node(self.folder).items():
            state = str(each.get("state", "")) if running else "in the run no more"
            found.append(
                {
                    "node": node,
                    "name": str(each.get("name", node)),
                    "state": state,
                    "tone": SITE_TONES.get(state, "off"),
                    "since": ago(each.get("since"), now),
                    "answered": ago(each.get("answered"), now),
                    "seconds": f"{each['seconds']:.2f}" if isinstance(each.get("seconds"), float) else "",
                }
            )
        return sorted(found, key=lambda site: site["name"])

    def missing(self) -> list[str]:
        """Say whom the run waits for, if it waits."""
        if self.status != "running":
            return []
        sites = self.sites()
        away = [each["name"] for each in sites if each["state"] == "away"]
        waits = [each["name"] for each in sites if each["state"] == "awaits approval"]
        said = [f"Waits for the operator's approval at {', '.join(waits)}."] if waits else []
        if away:
            said.append(f"Away: {', '.join(away)}.")
        wanted = self.keys.get("sites")
        if not sites and self.keys.get("dataset") == "site" and self.keys.get("engine") != "local":
            said.append(f"Waits until {wanted} hospitals are connected.")
        return said


def by_node(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the content of sites.json."""
    try:
        found = read_json(folder / FILE)
    except (OSError, ValueError):
        return {}
    return (
        {str(node): each for node, each in found.items() if isinstance(each, dict)} if isinstance(found, dict) else {}
    )


def ago(moment: object, now: float) -> str:
    """Say how long ago a moment was."""
    if not isinstance(moment, int | float):
        return ""
    seconds = max(0.0, now - moment)
    if seconds < 100:
        return f"{seconds:.0f} s ago"
    return f"{datetime.fromtimestamp(moment):%Y-%m-%d %H:%M:%S}"


def all_runs(root: Path) -> list[Shown]:
    """Return the runs in a folder, the latest first."""
    try:
        folders = [Path(each.path) for each in os.scandir(root) if each.is_dir() and not each.is_symlink()]
    except OSError:
        return []
    found = [Shown.read(folder) for folder in folders if (folder / "config.toml").is_file()]
    return sorted(found, key=lambda run: (run.status == "running", run.since), reverse=True)
