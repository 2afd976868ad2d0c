"""The picture of a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from problems.metrics import HEADLINE, METRICS

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from server_app.report import Record


def draw(records: list[Record], path: Path, *, personalised: bool) -> None:
    """Draw the curves of a run: a panel per metric; a thin line per site, a thick one for what a round's line says.

    That is the common test set where there is one, or the coordinator's own evaluation of a problem without data; else
    all sites' samples pooled. Where each site has a model of its own it is the mean over the sites, with the standard
    deviation over them and the worst decile.
    """
    from matplotlib.figure import Figure

    names = [name for name in HEADLINE if any(record.get(name) is not None for record in records)]
    if not names:
        return
    figure = Figure(figsize=(4.2 * len(names), 3.4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        _panel(axes, name, records, personalised)
    red = "all sites pooled"
    if personalised:
        red = "mean over sites, ± one standard deviation, dashed: worst decile"
    elif central := [record["central"] for record in records if "central" in record]:
        red = "common test set" if "n" in central[-1] else "at the coordinator"
    figure.suptitle(f"red: {red}; blue: each site", fontsize=9)
    figure.savefig(path, dpi=110)


def _panel(axes: Axes, name: str, records: list[Record], personalised: bool) -> None:
    rounds = [record["round"] for record in records]
    for site in sorted({site for record in records for site in record.get("sites", {})}):
        values = [record.get("sites", {}).get(site, {}).get(name, math.nan) for record in records]
        axes.plot(rounds, values, color="tab:blue", alpha=0.25, linewidth=0.8)
    means = [record.get(name, math.nan) for record in records]
    if personalised:
        summaries: list[dict[str, Any]] = [record.get("over-sites", {}).get(name, {}) for record in records]
        spread, worst = ([s.get(key, math.nan) for s in summaries] for key in ("std", "worst-decile"))
        low, high = ([m + sign * s for m, s in zip(means, spread, strict=True)] for sign in (-1, 1))
        axes.fill_between(rounds, low, high, color="tab:red", alpha=0.15, linewidth=0)
        axes.plot(rounds, worst, color="tab:red", linewidth=1, linestyle="--")
    axes.plot(rounds, means, color="tab:red", linewidth=2)
    axes.set(xlabel="round", title=METRICS[name].label)
    if METRICS[name].log:
        axes.set_yscale("log")
    axes.grid(alpha=0.3)
