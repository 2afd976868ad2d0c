"""Formatting of the estimates of evidence.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edelweiss.problems.metrics import shown

if TYPE_CHECKING:
    from collections.abc import Mapping


def interval_with_ties(found: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return an interval widened by the uncertainty of ties within groups of samples; None without one."""
    low, high, off = found["low"], found["high"], found.get("ties") or 0.0
    if low is None or high is None:
        return None
    return (max(0.0, low - off), min(1.0, high + off)) if off else (low, high)


def format_estimate(found: Mapping[str, Any], without: str = " (no interval)", *, signed: bool = False) -> str:
    """Format an estimate with its `interval_with_ties`; a difference with its sign; a dash if it is undefined.

    If some sites aggregate scores, only the digits that are certain are shown.
    """
    if found["value"] is None:
        return "-"
    sign, interval = "+" * signed, interval_with_ties(found)
    value = f"{found['value']:{sign}.2f}" if signed else shown(found["value"], found.get("ties"), 2)
    if interval is None or value == "-":
        return value + without
    return f"{value} ({interval[0]:{sign}.2f} to {interval[1]:{sign}.2f})"
