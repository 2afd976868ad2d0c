"""What a report says of differential privacy: what the run promised, and what is known from noised histograms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edelweiss.problems import PROBLEMS
from edelweiss.server_app.evidence import noised_in_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from edelweiss.lab.report.content import Content, Table

TRUST = (
    "Without differential privacy: the coordinator can compute single patients' rows from what sites send. A hospital "
    "that sets a privacy budget prevents it."
)
KINDS = {"auroc": "AUROC", "auprc": "Average precision"}
SUMMED = (
    "With secure aggregation the coordinator saw sums over all sites and nothing of one; without differential privacy "
    "it can still compute patients' rows from such sums, with models of its choice."
)


def privacy(run: Content) -> Iterator[str]:
    """Yield what the run promises each patient, a sentence each; that it promises nothing, without noise."""
    if not PROBLEMS[run.config.problem].needs_data:
        return
    if not run.config.private:
        yield SUMMED if run.config.secure_aggregation else TRUST
        return
    promised = run.about.get("privacy", {})
    clip = promised.get("clip", run.config.dp_clip)
    other = promised.get("difference-clip", run.config.dp_difference_clip)
    clips = f"clip = {clip:.3g}" + f", of differences {other:.3g}" * bool(other and other != clip)
    yield (
        f"Differential privacy: each site added noise to what it sent, so that the whole run changes what anybody else "
        f"can tell of one patient by at most ε = {run.config.dp_epsilon:g} at δ = {run.config.dp_delta:g} ({clips})."
    )
    if run.config.evidence and promised:
        yield "Patients held out are judged at the end at the same ε; nobody is both trained on and held out."
    if run.config.dataset != "site":
        yield "Simulated sites protect nobody: their secrets follow from the seed."


def noises(run: Content) -> Table:
    """Return each site's noise and what the run cost its patients."""
    heads = ["site", "patients", "noise σ, in clips", "ε of the budget", "ε of this run alone"]
    return heads, [
        [name, f"{one['patients']:,}", f"{one['noise']:.3g}", f"{one['epsilon']:.3g}", f"{one['tight-epsilon']:.3g}"]
        for name, one in run.about.get("privacy", {}).get("sites", {}).items()
    ]


def noised(run: Content) -> list[tuple[str, Mapping[str, Any]]]:
    """Return what is known from noised histograms: its name and the estimate; empty where nothing was asked."""
    found = _found(run)
    if not found:
        return []
    known = ((words, found[kind]) for kind, words in KINDS.items() if kind in found)
    return [(f"{words} {one['pairs']}" if "pairs" in one else words, one) for words, one in known]


def in_words(run: Content) -> list[str]:
    """Write what is known from noised histograms as sentences."""
    found = _found(run)
    return [f"{words[0].upper()}{words[1:]}." for words in noised_in_words(found)] if found else []


def _found(run: Content) -> Mapping[str, Any] | None:
    return None if run.labels else (run.evidence or {}).get("noised")
