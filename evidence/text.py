"""Estimates of evidence.json in words, in the digits that are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edelweiss.problems.metrics import shown

if TYPE_CHECKING:
    from collections.abc import Mapping


def ends(found: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return an interval, as much wider as the order within groups of samples may change it; None without one."""
    low, high, off = found["low"], found["high"], found.get("ties") or 0.0
    if low is None or high is None:
        return None
    return (max(0.0, low - off), min(1.0, high + off)) if off else (low, high)


def in_text(found: Mapping[str, Any], without: str = " (no interval)", *, signed: bool = False) -> str:
    """Write an estimate with its `ends`, a difference with its sign; a dash where it is not defined.

    It has the digits that are known where some sites told of groups of samples.
    """
    if found["value"] is None:
        return "-"
    sign, interval = "+" * signed, ends(found)
    value = f"{found['value']:{sign}.2f}" if signed else shown(found["value"], found.get("ties"), 2)
    if interval is None or value == "-":
        return value + without
    return f"{value} ({interval[0]:{sign}.2f} to {interval[1]:{sign}.2f})"
