"""evidence.json for several labels, each evaluated on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def multilabel_summary(each: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Combine the `summary` of each label into the content of evidence.json."""
    first = next(iter(each.values()))
    parts = ("pooled", "within-sites", "common-test-set", "noised")
    mean = {part: _mean_over([own[part] for own in each.values() if own[part]]) for part in parts}
    return {**{key: first[key] for key in ("version", "level", "model")}, "labels": dict(each), "mean": mean}


def _mean_over(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Average the labels' estimates and the ends of their intervals."""
    found: dict[str, Any] = {}
    for kind in ("auroc", "auprc"):
        known = [part[kind] for part in parts if kind in part and part[kind]["value"] is not None]
        if known:
            found["labels"] = max(len(known), found.get("labels", 0))
            found[kind] = {
                end: None if any(one[end] is None for one in known) else sum(one[end] for one in known) / len(known)
                for end in ("value", "low", "high")
            } | {"by": "mean of the labels' ends", "ties": sum(one.get("ties") or 0.0 for one in known) / len(known)}
    return found or None
