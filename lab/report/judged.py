"""The report's metrics at its top, and its tables of evidence."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from edelweiss.lab.report import figures, private
from edelweiss.lab.report.figures import estimate
from edelweiss.problems.metrics import HEADLINE, METRICS, format_named, shown
from edelweiss.server_app.console import volume

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from edelweiss.lab.report.content import Content, Rows

PLACES = {
    "pooled": "all sites pooled",
    "within-sites": "within sites",
    "common-test-set": "common test set",
    "noised": "held out, under noise",
}


def numbers(run: Content) -> Iterator[tuple[str, str, str]]:
    """Yield the metrics at the top: label, value, data."""
    means = run.evidence["mean"] if run.labels and run.evidence else {}
    for key, label in PLACES.items():
        if mean := means.get(key):
            yield f"Mean AUROC over labels, {label}", *_halves(mean["auroc"], f"{mean['labels']} labels")
    evidence = None if run.labels else run.evidence
    for key, label in (("pooled", "AUROC, all sites pooled"), ("common-test-set", "AUROC, common test set")):
        if evidence and (one := evidence[key]):
            yield label, *_halves(one["auroc"], f"{one['positives']:,} positive of {one['n']:,}")
    if evidence and evidence["within-sites"]["sites"]:
        within = evidence["within-sites"]
        yield "AUROC within sites", *_halves(within["auroc"], f"mean of {within['sites']} sites with both classes")
    if evidence and (one := evidence["pooled"]):
        yield "Average precision", *_halves(one["auprc"], f"chance: {one['positives'] / one['n']:.2f}")
    for name, found in private.noised(run):
        noise = f"; {found['noise']:.0%} of the width is noise" if found["value"] is not None else "hidden by the noise"
        value, ends = _halves(found, "")
        yield f"{name}, under noise", value, ends.removesuffix("; ") + noise
    if not run.evidence and run.last:
        over = "mean over sites" if run.personalised else "the line of the last round"
        over = f"mean over labels; {over}" if run.labels else over
        for name in HEADLINE:
            if run.last.get(name) is not None:
                yield METRICS[name].label, format_named(run.last, name), over
    yield "Rounds", f"{len(run.records):,} of {run.config.rounds:,}", f"{len(run.sites)} sites"
    yield "Moved", volume(run.cost["bytes-up"] + run.cost["bytes-down"]), f"{run.cost['seconds']:,.0f} s"


def _halves(found: Mapping[str, Any], of: str) -> tuple[str, str]:
    value, _, ends = estimate(found).partition(" (")
    return value, f"{ends.removesuffix(')')}; {of}" if ends else of


def anchored(run: Content) -> Iterator[tuple[str, Content]]:
    """Yield each of several labels with a name for its place in the page, and for its pictures."""
    for place, part in enumerate(run.parts, 1):
        yield f"label-{place}-{re.sub(r'[^A-Za-z0-9]+', '-', part.label).strip('-')}".strip("-"), part


def label_table(run: Content) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the heads of the table of labels, and its rows: where a label's part begins, and the cells."""
    if not (run.labels and run.evidence):
        return [], []
    judged, mean = run.evidence["labels"], run.evidence["mean"]
    cells = [(key, kind) for kind in ("auroc", "auprc") for key in PLACES if kind in (mean.get(key) or {})]
    kinds = {"auroc": "AUROC", "auprc": "average precision"}
    heads = ["label", "samples", "positive", *(f"{kinds[kind]}, {PLACES[key]}" for key, kind in cells)]
    rows = []
    for anchor, part in anchored(run):
        own = judged.get(part.label)
        values = [estimate(own[key][kind]) if own and own.get(key) else "-" for key, kind in cells]
        rows.append((anchor, [part.label, *_counts(own), *values]))
    last = [f"{estimate(mean[key][kind])}, of {mean[key]['labels']}" for key, kind in cells]
    return heads, [*rows, ("", ["mean over labels", "", "", *last])]


def _counts(own: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return of how many samples a label is known that the model was judged on, and of how many it is positive."""
    every = [one for one in list(own["sites"].values()) or [own["common-test-set"]] if one] if own else []
    sums = (sum(one[key] for one in every) for key in ("n", "positives"))
    n, positives = (f"{count:,}" if every else "-" for count in sums)
    return n, positives


def in_short(part: Content) -> str:
    """Summarise a label in one line."""
    own = part.evidence
    said = [f"AUROC {PLACES[key]} {estimate(own[key]['auroc'])}" for key in PLACES if own and own.get(key)]
    return "; ".join(said) or "no evaluated sample has this label"


def judged(run: Content) -> dict[str, Any]:
    """Return the template's fields for the evidence of one label."""
    evidence = None if run.labels else run.evidence
    under_noise = private.in_words(run)
    if not evidence or not figures.assessed(evidence):
        return {"evidence": None, "under_noise": under_noise}
    together = [(label, one) for label, one, _ in figures.together(evidence)]
    every = together + ([] if together else list(evidence["sites"].items()))
    points = [
        [
            f"{label}: {point.get('measure') or point['told']} at {point['fixed']} {point['at']:.2f}",
            f"{point['reached']:.3f}",
            estimate(point),
            shown(point["threshold"]),
        ]
        for label, one in together
        for point in one["points"]
        if point["value"] is not None
    ]
    rows = [
        [
            label,
            f"{one['n']:,}",
            estimate(one["calibration"]["intercept"]),
            estimate(one["calibration"]["slope"]),
            shown(one["calibration"]["brier"]),
            shown(one["calibration"]["ece"]),
        ]
        for label, one in every
    ]
    groups = [
        [
            f"{column}: {name}",
            f"{one['n']:,}",
            f"{one['positives']:,}",
            str(one["sites"]),
            *(estimate(one[key]) if key in one else "-" for key in ("auroc", "sensitivity", "specificity")),
        ]
        for column, found in evidence["subgroups"].items()
        for name, one in found.items()
    ]
    return {
        "evidence": evidence,
        "under_noise": under_noise,
        "points": points,
        "point_heads": ["operating point", "reached", "value (95 % interval)", "threshold of the score"],
        "probabilities": _probabilities(evidence["probabilities"]),
        "calibration_rows": rows,
        "calibration_heads": ["", "samples", "intercept", "slope", "Brier score", "calibration error (ECE)"],
        "subgroups": groups,
        "subgroup_heads": ["group", "samples", "positive", "sites", "AUROC", "sensitivity", "specificity"],
        "compared": _compared(evidence["compared"]),
    }


def _compared(compared: Mapping[str, Any] | None) -> Rows:
    """Return the rows of the table that compares two models."""
    if not compared:
        return []
    every = list(compared["by-site"].items())
    for label, key in (("all sites pooled", "pooled"), ("common test set", "common-test-set")):
        every += [(label, compared[key])] * bool(compared.get(key))  # an older run has none that is pooled
    rows = [
        [name, shown(one["auroc"]), shown(one["other"]), estimate(one["difference"], signed=True), shown(one["p"])]
        for name, one in every
    ]
    mean = [f"mean within {compared['sites']} sites", "", "", estimate(compared["difference"], signed=True)]
    return rows + [[*mean, shown(compared["p"])]] * bool(compared["sites"])


def _probabilities(said: Mapping[str, Any]) -> str:
    if said["by"] == "none":
        return "The model's scores are log-odds, so they are probabilities as they stand."
    how = "Training for the area under a curve ranks patients and yields no probabilities. A Platt map, p = 1 / "
    how += "(1 + exp(-(a + b s))), was fitted to the scores s of held-out patients"
    if said["intercept"] is not None:
        how += f" (a = {said['intercept']:.3g}, b = {said['slope']:.3g})"
    return how + {
        "other-sites": "; each site is assessed with the map that was fitted at all others.",
        "same-patients": "; it is assessed on the patients that it was fitted on, which is optimistic.",
    }.get(said["assessed-on"], ".")
