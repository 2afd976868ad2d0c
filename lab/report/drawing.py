"""How pictures are drawn and written: in one style, without a date, whatever Matplotlib's settings are."""

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType

    from matplotlib.figure import Figure

INK = "#010203"  # on paper it is black; in a page it becomes the colour of its text, which is another one at night


@contextmanager
def style() -> Iterator[None]:
    """Draw axes and text in `INK`, on nothing; for drawing and for writing."""
    mpl = _matplotlib()
    colours = ("axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color", "text.color")
    settings: dict[str, Any] = dict.fromkeys(colours, INK) | {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "font.size": 9,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "pdf.fonttype": 42,  # text that can be searched and edited
        "svg.fonttype": "none",
        "svg.hashsalt": "edelweiss",  # or equal pictures would have other bytes
    }
    with mpl.rc_context(settings):
        yield


def _matplotlib() -> ModuleType:
    """Import Matplotlib, also where the environment names a backend that there is not: none is needed here."""
    if "matplotlib" not in sys.modules:
        with _without("MPLBACKEND") as backend:
            import matplotlib as mpl
        if backend:
            with suppress(ValueError):
                mpl.rcParams["backend"] = backend  # as it would have done by itself
    return sys.modules["matplotlib"]


@contextmanager
def _without(name: str) -> Iterator[str | None]:
    """Take a variable out of the environment meanwhile; yield its value."""
    value = os.environ.pop(name, None)
    try:
        yield value
    finally:
        if value is not None:
            os.environ[name] = value


def drawn(draw: Callable[[], Figure]) -> Figure:
    """Return a figure in the style of all."""
    with style():
        return draw()


def as_svg(figure: Figure) -> str:
    """Return a figure as an element of a page, in the colours of its text."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    with style():  # `savefig` would draw it twice, the first time for nothing
        canvas: Any = FigureCanvasSVG(figure)  # its methods have no types
        canvas.print_svg(out, metadata={"Date": None, "Creator": None})
    figure.set_layout_engine("none")  # wherever else it is written, it lies as it should: that takes half of the time
    svg = out.getvalue()[out.getvalue().index("<svg") :]
    svg = re.sub(r'(<svg\b[^>]*?) width="[^"]*"( [^>]*?)? height="[^"]*"', r"\1\2", svg, count=1)
    return svg.replace(INK, "currentColor")


def save(figure: Figure, path: Path) -> None:
    """Write a figure for a paper: a PDF and, for where that cannot be shown, a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    with style():
        canvas: Any = FigureCanvasPdf(figure)
        with _without("SOURCE_DATE_EPOCH"):  # which would be a date: no file has one
            canvas.print_pdf(path.with_suffix(".pdf"), metadata={"CreationDate": None})
        figure.set_layout_engine("none")
        figure.set(dpi=150, facecolor="white")
        canvas = FigureCanvasAgg(figure)
        canvas.print_png(path.with_suffix(".png"))
