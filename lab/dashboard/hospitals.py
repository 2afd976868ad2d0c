"""The hospitals: what the SuperLink says of each, and what the runs know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from edelweiss.federation.fingerprint import release
from edelweiss.lab.dashboard.runs import SITE_TONES, Shown, ago, by_node

LASTING = ("name", "release", "answered", "seconds")  # what is known until a later run knows better


def hospitals(runs: Sequence[Shown], nodes: Iterable[Mapping[str, Any]], *, every: bool) -> list[dict[str, str]]:
    """Return a row for each hospital, by name.

    Parameters
    ----------
    runs : sequence of Shown
        All runs, the latest first.
    nodes : iterable
        The SuperLink's, as of `SuperLink.nodes`.
    every : bool
        Whether to show the hospitals of runs that are no nodes, too: where there is no SuperLink.
    """
    known: dict[str, dict[str, Any]] = {}
    for run in reversed(runs):
        for node, each in by_node(run.folder).items():
            lasting = {key: each[key] for key in LASTING if each.get(key)}
            running = [(run.name, each)] if run.status == "running" and each.get("state") else []
            before = known.get(node, {"now": []})
            known[node] = before | lasting | {"now": before["now"] + running}
    listed = {str(each["node"]): each for each in nodes}
    now = datetime.now().timestamp()
    rows = [
        _row(node, listed.get(node, {}), known.get(node, {}), now)
        for node in dict.fromkeys([*listed, *(known if every else ())])
    ]
    # A site without a key of its own is another node after it was killed: the old one is of no interest.
    there = {row["name"] for row in rows if row["connection"] == "connected"}
    return sorted(
        (row for row in rows if row["connection"] == "connected" or row["name"] not in there),
        key=lambda row: str(row["name"]),
    )


def _row(node: str, link: Mapping[str, Any], own: Mapping[str, Any], now: float) -> dict[str, Any]:
    online, answered = link.get("online"), own.get("answered")
    since = moment(str(link.get("since", "")))
    ours = own.get("release") == release()
    # What joined after the last answer may be another release.
    older = bool(online and answered and since and since.timestamp() > answered)
    return {
        "name": link.get("name") or own.get("name") or f"number {node}",
        "connection": "connected" if online else "away" if link else "unknown",
        "tone": "good" if online else "bad" if link else "off",
        "since": f"{since:%Y-%m-%d %H:%M:%S}" if since else "",
        "now": [
            {"run": run, "state": str(each.get("state", "")), "tone": SITE_TONES.get(str(each.get("state")), "off")}
            for run, each in own.get("now", [])
        ],
        "release": str(own.get("release", "")),
        "note": "" if not own.get("release") else "when it last answered" if older else "" if ours else "not ours",
        "answered": ago(answered, now),
        "seconds": f"{own['seconds']:.2f}" if isinstance(own.get("seconds"), float) else "",
    }


def moment(text: str) -> datetime | None:
    """Read Flower's time as this machine's; None if it is none."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        return None
