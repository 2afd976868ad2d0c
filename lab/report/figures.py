"""The pictures of a run: curves over rounds, ROC, precision and recall, calibration, net benefit, each site's AUROC.

Each function returns a Matplotlib figure. Colours are those of Okabe and Ito (2008), which colour-blind readers tell
apart; lines are labelled where they end, and what is uncertain has a band or a bar.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from edelweiss.evidence.text import format_estimate, interval_with_ties
from edelweiss.problems.metrics import HEADLINE, METRICS, clip_to_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from edelweiss.server_app.recorder import Record

BLUE, VERMILLION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#808080"
WIDTH, HEIGHT = 4.4, 3.3  # inches, of one panel
MOST_LINES = 40  # thin lines of sites in one panel: more cannot be told apart
LEVEL = "95 % interval"

Evaluation = dict[str, Any]
"""One of evidence.json, see `evidence.summary`."""


# ---------------------------------------------------------------------- over rounds


def curves(records: Sequence[Record], *, personalised: bool, several: bool = False) -> Figure:
    """Draw a panel per metric: a thin line per site, a thick one for what a round's line says.

    That is the common test set where there is one, or the coordinator's own evaluation of a problem without data; else
    all sites' samples pooled. Where each site has a model of its own it is the mean over the sites, with the standard
    deviation over them and the worst decile. Of ``several`` labels all of it is about their means.
    """
    names = [name for name in HEADLINE if any(record.get(name) is not None for record in records)]
    figure, panels = _panels(max(1, len(names)))
    said = "mean over sites ± sd" if personalised else "all sites, pooled"
    if not personalised and (central := [record["central"] for record in records if "central" in record]):
        said = "common test set" if "n" in central[-1] else "at the coordinator"
    for axes, name in zip(panels, names, strict=False):
        _over_rounds(axes, name, records, said, personalised)
        if several:
            axes.set_ylabel(f"{METRICS[name].label}, mean over labels")
    return figure


def _over_rounds(axes: Axes, name: str, records: Sequence[Record], said: str, personalised: bool) -> None:
    rounds, means = (_numbers(record.get(key) for record in records) for key in ("round", name))
    sites = sorted({site for record in records for site in record.get("sites", {})})
    for site in sites[:MOST_LINES]:
        own = _numbers(record.get("sites", {}).get(site, {}).get(name) for record in records)
        _line(axes, rounds, own, color=BLUE, alpha=0.5, linewidth=0.8)
    if personalised:
        over = [record.get("over-sites", {}).get(name, {}) for record in records]
        spread, worst = (_numbers(each.get(key) for each in over) for key in ("std", "worst-decile"))
        known = ~np.isnan(spread)
        low, high = (clip_to_range(name, means + side * spread)[known] for side in (-1, 1))
        axes.fill_between(rounds[known], low, high, color=VERMILLION, alpha=0.15, linewidth=0)
        _line(axes, rounds, worst, color=VERMILLION, linewidth=1, linestyle="--")
    _line(axes, rounds, means, color=VERMILLION, linewidth=2)
    axes.set(xlabel="round", ylabel=METRICS[name].label)
    if METRICS[name].log:
        axes.set_yscale("log")
    axes.set_title(said, loc="left", color=VERMILLION)
    if personalised:
        axes.set_title("dashed: worst decile", loc="right", color=VERMILLION, fontsize=8)
    elif sites:
        shown = f"each of {len(sites)} sites" if len(sites) <= MOST_LINES else f"{MOST_LINES} of {len(sites)} sites"
        axes.set_title(shown, loc="right", color=BLUE, fontsize=8)


def _line(axes: Axes, rounds: np.ndarray, values: np.ndarray, **how: Any) -> None:
    """Draw a line through the rounds that were evaluated; a point where that is one."""
    known = ~np.isnan(values)
    axes.plot(rounds[known], values[known], marker="o" if known.sum() == 1 else "", markersize=3, **how)


# ---------------------------------------------------------------------- of the final model


def roc(evidence: Mapping[str, Any]) -> Figure:
    """Draw sensitivity against 1 - specificity, with a band."""
    figure, (axes,) = _panels(1)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":")
    for site in list(evidence["sites"].values())[:MOST_LINES]:
        axes.plot(*_columns(site["roc"], "fpr", "tpr"), color=BLUE, alpha=0.5, linewidth=0.8)
    for label, evaluation, colour in together(evidence):
        axes.plot(*_columns(evaluation["roc"], "fpr", "tpr"), color=colour, linewidth=2)
        _band(axes, evaluation["roc"], colour)
        _name(axes, f"{label}: AUROC {estimate(evaluation['auroc'])}", colour)
    _square(axes, "1 - specificity", "sensitivity", evidence)
    return figure


def precision_recall(evidence: Mapping[str, Any]) -> Figure:
    """Draw precision against recall, with a band and the share of positives, which chance has for precision."""
    figure, (axes,) = _panels(1)
    for site in list(evidence["sites"].values())[:MOST_LINES]:
        axes.plot(*_columns(site["precision-recall"], "recall", "precision"), color=BLUE, alpha=0.5, linewidth=0.8)
    for label, evaluation, colour in together(evidence):
        axes.plot(*_columns(evaluation["precision-recall"], "recall", "precision"), color=colour, linewidth=2)
        _band(axes, evaluation["precision-recall"], colour)
        axes.axhline(evaluation["positives"] / evaluation["n"], color=GREY, linewidth=0.8, linestyle=":")
        _name(axes, f"{label}: AP {estimate(evaluation['auprc'])}", colour)
    _square(axes, "recall (sensitivity)", "precision", evidence)
    return figure


def calibration(evidence: Mapping[str, Any]) -> Figure:
    """Draw the observed share of positives against the predicted probability, in groups, with intervals."""
    figure, (axes,) = _panels(1)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":")
    each_site = [(name, site, BLUE) for name, site in list(evidence["sites"].items())[:MOST_LINES]]
    for label, evaluation, colour in together(evidence) or each_site:
        points = [point for point in evaluation["calibration"]["curve"] if point["observed"] is not None]
        x, y, low, high = (
            np.array([point[key] for point in points]) for key in ("predicted", "observed", "low", "high")
        )
        bars = [np.clip(y - low, 0, None), np.clip(high - y, 0, None)]
        axes.errorbar(x, y, bars, color=colour, marker="o", markersize=4, linewidth=1.5, elinewidth=0.8)
        slope = evaluation["calibration"]["slope"]
        if together(evidence) and slope["value"] is not None:
            _name(axes, f"{label}: slope {estimate(slope)}", colour)
    _square(axes, "predicted probability", "observed share of positives", None)
    return figure


def net_benefit(evidence: Mapping[str, Any]) -> Figure:
    """Draw the decision curve: the net benefit of treating by the model, of treating all, and none."""
    figure, (axes,) = _panels(1)
    axes.axhline(0, color=GREY, linewidth=0.8)
    top = 0.0
    for label, evaluation, colour in together(evidence):
        threshold, model = _columns(evaluation["net-benefit"], "threshold", "model")
        _, every = _columns(evaluation["net-benefit"], "threshold", "all")
        axes.plot(threshold, every, color=colour, linewidth=0.8, linestyle="--")
        axes.plot(threshold, model, color=colour, linewidth=2)
        _name(axes, f"{label}; dashed: treat all", colour)
        top = max(top, np.nanmax(np.concatenate([model, every[:1]])))
    axes.set(xlabel="threshold probability", ylabel="net benefit", ylim=(-0.15 * (top or 1), 1.15 * (top or 1)))
    axes.annotate("treat none", (0, 0), xycoords=("axes fraction", "data"), va="bottom", fontsize=8, color=GREY)
    return figure


def forest(evidence: Mapping[str, Any]) -> Figure:
    """Draw each site's AUROC with its interval, and those of all sites below."""
    rows = [(name, site["auroc"], BLUE) for name, site in evidence["sites"].items()]
    if evidence["within-sites"]["sites"] > 1:
        rows.append(("mean within sites", evidence["within-sites"]["auroc"], GREEN))
    rows += [(label, evaluation["auroc"], colour) for label, evaluation, colour in together(evidence)]
    return _rows(rows)


def labels(evidence: Mapping[str, Any]) -> Figure:
    """Draw each label's AUROC with its interval, and the mean of each below."""
    every = [(name.replace("$", r"\$"), own) for name, own in evidence["labels"].items()]
    kinds = {"pooled": VERMILLION, "within-sites": BLUE, "common-test-set": GREEN, "noised": GREY}
    return _rows(
        [
            (f"{name}, {kind.replace('-', ' ')}", own[kind]["auroc"], colour)
            for kind, colour in kinds.items()
            for name, own in [*every, ("mean", evidence["mean"])]
            if own.get(kind) and "auroc" in own[kind]
        ]
    )


def _rows(rows: Sequence[tuple[str, Mapping[str, Any], str]]) -> Figure:
    """Draw an AUROC with its interval in each row: a name, the estimate, the colour."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.4 * WIDTH, max(1.4, 0.6 + 0.2 * len(rows))), layout="constrained")
    axes = figure.subplots()
    for place, (_, found, colour) in enumerate(rows):
        if found["value"] is not None and (interval := interval_with_ties(found)) is not None:
            bars = [[max(0.0, found["value"] - interval[0])], [max(0.0, interval[1] - found["value"])]]
            axes.errorbar([found["value"]], [place], xerr=bars, color=colour, marker="s", markersize=4, capsize=2)
    axes.axvline(0.5, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(rows)), [f"{name}   {estimate(found)}" for name, found, _ in rows], fontsize=8)
    axes.set(xlabel=f"AUROC, {LEVEL}", ylim=(len(rows) - 0.5, -0.5))
    return figure


def estimate(found: Mapping[str, Any], *, signed: bool = False) -> str:
    """Write an estimate with its interval, a difference with its sign; a dash where it is not defined."""
    return format_estimate(found, "", signed=signed)


def together(evidence: Mapping[str, Any]) -> list[tuple[str, Evaluation, str]]:
    """Return what has a thick line: all sites' patients together, and the common test set."""
    every = [
        ("all sites, pooled", evidence["pooled"], VERMILLION),
        ("common test set", evidence["common-test-set"], GREEN),
    ]
    return [(label, evaluation, colour) for label, evaluation, colour in every if evaluation]


def assessed(evidence: Mapping[str, Any]) -> bool:
    """Whether there is more than what noised histograms say."""
    return bool(together(evidence) or evidence["sites"])


def _panels(count: int) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH * count, HEIGHT), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _columns(curve: Mapping[str, Any], *names: str) -> list[np.ndarray]:
    return [_numbers(curve[name]) for name in names]


def _numbers(values: Iterable[float | None]) -> np.ndarray:
    """Return numbers as an array; NaN where there is none."""
    return np.array([math.nan if value is None else value for value in values], float)


def _band(axes: Axes, curve: Mapping[str, Any], colour: str) -> None:
    if band := curve.get("band"):
        at, low, high = _columns(band, "at", "low", "high")
        axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)


def _name(axes: Axes, label: str, colour: str) -> None:
    """Write a line's name above the axes, in its colour; over those that are there."""
    number = len([text for text in axes.texts if text.get_gid() == "name"])
    axes.annotate(label, (0, 1.03 + 0.075 * number), xycoords="axes fraction", fontsize=9, color=colour, gid="name")


def _square(axes: Axes, x: str, y: str, evidence: Mapping[str, Any] | None) -> None:
    axes.set(xlabel=x, ylabel=y, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    if evidence and evidence["sites"]:
        axes.annotate("each site", (0.98, 0.03), xycoords="axes fraction", ha="right", fontsize=8, color=BLUE)
