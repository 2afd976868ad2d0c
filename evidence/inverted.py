"""A model turned over: one that ranks patients the wrong way round, which no mean over sites or rounds would show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edelweiss.evidence.text import ends, in_text

PLACES = {
    "pooled": "all sites pooled",
    "within-sites": "within sites",
    "common-test-set": "on the common test set",
}


def turned_over(evidence: Mapping[str, Any]) -> list[str]:
    """Say where an AUROC is below 0.5 by its whole interval, and what that usually means; of several labels which.

    Parameters
    ----------
    evidence : mapping
        The content of evidence.json, see `evidence.summary`.

    Returns
    -------
    list of str
        A sentence for each label for which it is so; empty otherwise.
    """
    labels: Mapping[str, Mapping[str, Any]] = evidence.get("labels", {"": evidence})
    found = {name: _of_a_label(own) for name, own in labels.items()}
    return [f"{name}: {text}" if name else text for name, text in found.items() if text]


def _of_a_label(evidence: Mapping[str, Any]) -> str:
    where = [
        f"{words} {in_text(evidence[key]['auroc'])}"
        for key, words in PLACES.items()
        if evidence[key] and _below(evidence[key]["auroc"])
    ]
    sites = [f"at {name} {in_text(site['auroc'])}" for name, site in evidence["sites"].items() if _below(site["auroc"])]
    if not where and not sites:
        return ""
    usually = "the label is coded the other way round " + ("at one or more sites" if where else "there")
    if where:
        usually = f"the steps are too long, so that training overshoots (try a smaller step size), or {usually}"
    return f"The model ranks patients the wrong way round: AUROC {'; '.join(where + sites)}. Usually {usually}."


def _below(auroc: Mapping[str, Any]) -> bool:
    interval = ends(auroc)
    return interval is not None and interval[1] < 0.5
