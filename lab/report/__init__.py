"""A run's report: a page, a model card, and the reporting table that a journal asks for; made of its run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_report(folder: str | Path) -> Path:
    """Write ``report.html``, ``curves.png`` and ``.pdf``, ``model-card.md`` and ``tripod-ai.md`` into a run folder.

    Raises
    ------
    RunError
        When the folder holds no run that can be read.
    OSError
        When it cannot be written.
    """
    from edelweiss.lab.report import cards, page
    from edelweiss.lab.report.content import Content

    run = Content.read(folder)
    cards.write(run)
    return page.write(run)


def write_pictures(folder: str | Path) -> list[Path]:
    """Write each picture of the page as a PDF and a PNG, into ``pictures`` in a run folder; return the PDFs' paths.

    Raises
    ------
    RunError
        When the folder holds no run that can be read.
    OSError
        When they cannot be written.
    """
    from edelweiss.lab.report import drawing, page
    from edelweiss.lab.report.content import Content

    run = Content.read(folder)
    target = run.folder / "pictures"
    target.mkdir(exist_ok=True)
    drawn = page.drawings(run)
    for name, figure in drawn.items():
        drawing.save(figure, target / name)
    return [target / f"{name}.pdf" for name in drawn]
