"""The progress of a run in a notebook: a bar and the last round's metrics, in one output that is updated."""

from __future__ import annotations

from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from edelweiss.problems.metrics import HEADLINE, METRICS, format_named
from edelweiss.server_app.console import Progress

if TYPE_CHECKING:
    from edelweiss.server_app.recorder import Record


class NotebookProgress(Progress):
    """Shows a run in the output of a notebook's cell; warnings stay below the bar."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self._bar_html, self._line, self._warnings = "", "", list[str]()
        self._ipython: Any = import_module("IPython.display")
        self._output = self._ipython.display(self._ipython.HTML("starting"), display_id=True)

    def say(self, text: str, style: str = "") -> None:
        """Show a line in place of the one before."""
        self._line = text
        self._update()

    def _show_warning(self, text: str) -> None:
        """Show a line that stays."""
        self._warnings.append(text)
        self._update()

    def round(self, record: Record, rounds: int) -> None:
        """Move the bar, and show the round's metrics."""
        there = [name for name in HEADLINE if name in record]
        self._line = "  ".join(f"{METRICS[name].label} {format_named(record, name)}" for name in there)
        self._bar_html = f'<progress value="{record["round"]}" max="{rounds}"></progress> {record["round"]}/{rounds} '
        self._update()

    def evaluating(self, answered: int, sites: int) -> None:
        """Show how far the last evaluation is."""
        self.say(f"the last evaluation, sites {answered}/{sites}")

    def sites(self, records: list[Record], sizes: dict[str, dict[str, Any]], *, personalised: bool) -> None:
        """Show no table: the cell's value is the run, which has one."""

    def close(self) -> None:
        """Leave the output as it is."""

    def _update(self) -> None:
        warnings = "".join(f"<br>warning: {escape(text)}" for text in self._warnings)
        self._output.update(self._ipython.HTML(f"{self._bar_html}{escape(self._line)}{warnings}"))
