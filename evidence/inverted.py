"""Warnings about inverted rankings: AUROCs significantly below 0.5, which means over sites would hide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edelweiss.evidence.text import format_estimate, interval_with_ties

PLACES = {
    "pooled": "all sites pooled",
    "within-sites": "within sites",
    "common-test-set": "on the common test set",
    "noised": "within sites, under noise",
}


def inverted_rankings(evidence: Mapping[str, Any]) -> list[str]:
    """Report AUROCs of evidence.json whose whole interval is below 0.5, and the usual causes; a sentence per label."""
    labels: Mapping[str, Mapping[str, Any]] = evidence.get("labels", {"": evidence})
    found = {name: _inverted_label(own) for name, own in labels.items()}
    return [f"{name}: {text}" if name else text for name, text in found.items() if text]


def _inverted_label(evidence: Mapping[str, Any]) -> str:
    where = [
        f"{words} {format_estimate(evidence[key]['auroc'])}"
        for key, words in PLACES.items()
        if evidence.get(key) and _below(evidence[key]["auroc"])
    ]
    sites = [
        f"at {name} {format_estimate(site['auroc'])}"
        for name, site in evidence["sites"].items()
        if _below(site["auroc"])
    ]
    if not where and not sites:
        return ""
    cause = "the label is coded the other way round " + ("at one or more sites" if where else "there")
    if where:
        cause = f"the steps are too long, so that training overshoots, or so short that it has not begun, or {cause}"
    return f"The model ranks patients the wrong way round: AUROC {'; '.join(where + sites)}. Usually {cause}."


def _below(auroc: Mapping[str, Any]) -> bool:
    interval = interval_with_ties(auroc)
    return interval is not None and interval[1] < 0.5
