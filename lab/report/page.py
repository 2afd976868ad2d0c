"""``report.html``: a self-contained page about a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edelweiss.lab.report import account, drawing, figures, private
from edelweiss.lab.report.judged import anchored, in_short, judged, label_table, numbers
from edelweiss.models.storage import atomic_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from matplotlib.figure import Figure

    from edelweiss.lab.report.content import Content

FILE = "report.html"
TEMPLATE = Path(__file__).with_name("page.html.md")
MOST_DRAWN = 20  # of several labels: the numbers of all are there
CONSERVATIVE = (
    "The ends of a mean's interval are the means of the labels' ends. All labels are of the same patients, so they may "
    "be wrong together; the interval is as wide as if they were, and so no narrower than it should be."
)


def write(run: Content) -> Path:
    """Write the page, and its curves as files of their own; returns the page's path."""
    path = run.folder / FILE
    with atomic_writer(path) as file:
        file.write(html(run, pictures := drawings(run)).encode())
    if run.records:
        drawing.save(pictures["curves"], run.folder / "curves")
    return path


def html(run: Content, drawn: Mapping[str, Figure] | None = None) -> str:
    """Return the page; its pictures are `drawings`, which a caller that needs them again has drawn already."""
    drawn = drawings(run) if drawn is None else drawn
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    jinja = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return jinja.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        run=run,
        pictures={name: Markup(drawing.as_svg(figure)) for name, figure in drawn.items()},
        numbers=list(numbers(run)),
        notes=run.notes,
        returned=account.last_values(run),
        data=account.data(run),
        sites=account.site_table(run),
        site_note=account.site_note(run),
        known=account.known_table(run),
        privacy=list(private.privacy(run)),
        noises=private.noises(run),
        labels=label_table(run),
        conservative=CONSERVATIVE,
        parts=[
            {
                "anchor": anchor,
                "label": part.label,
                "sites": account.site_table(part),
                "short": in_short(part),
                **judged(part),
            }
            for anchor, part in anchored(run)
        ],
        costs=account.costs(run),
        left=list(account.left(run)),
        **account.settings(run.config),
        versions=[[name, number] for name, number in account.versions(run).items()],
        whole={"anchor": "", **judged(run)},
    )


def drawings(run: Content) -> dict[str, Figure]:
    """Draw all that can be drawn of a run, by name."""
    return {name: drawing.drawn(draw) for name, draw in _drawings(run).items()}


def _drawings(run: Content) -> dict[str, Callable[[], Figure]]:
    found: dict[str, Callable[[], Figure]] = {}
    if run.records:
        several = bool(run.labels)
        found["curves"] = lambda: figures.curves(run.records, personalised=run.personalised, several=several)
    if run.labels:
        if judged := run.evidence:
            found["labels"] = lambda: figures.labels(judged)
        for anchor, part in list(anchored(run))[:MOST_DRAWN]:
            found |= {f"{anchor}-{name}": draw for name, draw in _drawings(part).items()}
    elif (evidence := run.evidence) and figures.assessed(evidence):
        found["calibration"] = lambda: figures.calibration(evidence)
        if evidence["sites"]:
            found["forest"] = lambda: figures.forest(evidence)
        if evidence["pooled"] or evidence["common-test-set"]:
            found["roc"] = lambda: figures.roc(evidence)
            found["precision-recall"] = lambda: figures.precision_recall(evidence)
            found["net-benefit"] = lambda: figures.net_benefit(evidence)
    return found
