"""``report.html``: one file, without a network, of all that a run folder says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.storage import replacing
from server_app.page import account, figures
from server_app.page.judged import anchored, in_short, judged, label_table, numbers
from server_app.page.template import PAGE, STYLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from matplotlib.figure import Figure

    from server_app.page.content import Content

FILE = "report.html"
MOST_DRAWN = 20  # of several labels: the numbers of all are there
CONSERVATIVE = (
    "The ends of a mean's interval are the means of the labels' ends. All labels are of the same patients, so they may "
    "be wrong together; the interval is as wide as if they were, and so no narrower than it should be."
)


def write(run: Content) -> Path:
    """Write the page, and its curves as files of their own; returns the page's path."""
    path = run.folder / FILE
    with replacing(path) as file:
        file.write(html(run).encode())
    if run.records:
        figures.save(drawings(run)["curves"], run.folder / "curves")
    return path


def html(run: Content) -> str:
    """Return the page."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    pictures = {name: Markup(figures.as_svg(draw)) for name, draw in drawings(run).items()}
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(PAGE)
    return page.render(
        run=run,
        style=Markup(STYLE),
        pictures=pictures,
        numbers=list(numbers(run)),
        notes=run.notes,
        data=account.data(run),
        sites=account.site_table(run),
        site_note=account.site_note(run),
        known=account.known_table(run),
        labels=label_table(run),
        conservative=CONSERVATIVE,
        parts=[{"anchor": anchor, "label": part.label, "sites": account.site_table(part), "short": in_short(part),
                **judged(part)} for anchor, part in anchored(run)],
        costs=account.costs(run),
        left=list(account.left(run)),
        **account.settings(run.config),
        versions=[[name, number] for name, number in account.versions(run).items()],
        whole={"anchor": "", **judged(run)},
    )  # fmt: skip


def drawings(run: Content) -> dict[str, Callable[[], Figure]]:
    """Return what can be drawn of a run, by name."""
    found: dict[str, Callable[[], Figure]] = {}
    if run.records:
        several = bool(run.labels)
        found["curves"] = lambda: figures.curves(run.records, personalised=run.personalised, several=several)
    if run.labels:
        if judged := run.evidence:
            found["labels"] = lambda: figures.labels(judged)
        for anchor, part in list(anchored(run))[:MOST_DRAWN]:
            found |= {f"{anchor}-{name}": draw for name, draw in drawings(part).items()}
    elif evidence := run.evidence:
        found["calibration"] = lambda: figures.calibration(evidence)
        if evidence["sites"]:
            found["forest"] = lambda: figures.forest(evidence)
        if evidence["pooled"] or evidence["common-test-set"]:
            found["roc"] = lambda: figures.roc(evidence)
            found["precision-recall"] = lambda: figures.precision_recall(evidence)
            found["net-benefit"] = lambda: figures.net_benefit(evidence)
    return found
