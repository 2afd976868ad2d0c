"""Console output of a run: a line per round and a final table; with colours on a terminal."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from edelweiss.problems.metrics import HEADLINE, METRICS, TIES, format_named, shown, split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edelweiss.server_app.recorder import Record

COUNTED = {"examples": "train", "positives": "positive", "held-out": "held out"}
OVER_SITES = {"mean": "mean over sites", "std": "spread", "worst-decile": "worst decile"}


def volume(count: float) -> str:
    """Format a number of bytes, in powers of 1000."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


class Progress:
    """Prints the progress of a run, on a terminal with a progress bar."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(quiet=quiet, highlight=False, soft_wrap=True)
        if not self.console.is_terminal:
            self.console.width = 110
        self.keep: Callable[[str], None] | None = None  # what keeps warnings, `run_notes.RunWarnings`

    @cached_property
    def _bar(self) -> Bar:
        """The progress bar, drawn on events and not by a thread, because the local engine forks its workers."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        return Bar(*columns, console=self.console, transient=True, auto_refresh=False)

    def say(self, text: str, style: str = "") -> None:
        """Print a line."""
        self._print(Text(text), style)

    def _print(self, what: Text | Table, style: str = "") -> None:
        if not self.console.quiet:  # a quiet console would still render it
            self.console.print(what, style=style or None)

    def warn(self, text: str) -> None:
        """Print a warning, and keep it if there is a place for that."""
        if self.keep:
            self.keep(text)
        self._show_warning(text)

    def _show_warning(self, text: str) -> None:
        self.say(f"warning: {text}", "yellow")

    def round(self, record: Record, rounds: int) -> None:
        """Print a round: its metrics, time and traffic."""
        if self.console.quiet:
            return
        mean = _mean(record)
        there = [name for name in HEADLINE if name in record]
        metrics = "  ".join(f"{mean}{METRICS[name].label} {format_named(record, name)}" for name in there)
        moved = volume(record["bytes-down"] + record["bytes-up"])
        width = len(str(rounds))
        work = f"{record['gradients']:.0f} gradients"
        self.say(f"round {record['round']:>{width}}/{rounds}  {metrics}  {record['seconds']:.2f} s  {moved}  {work}")
        self._advance("rounds", record["round"], rounds)

    def evaluating(self, answered: int, sites: int) -> None:
        """Show the progress of the final evaluation."""
        if not (answered or self.console.is_terminal):
            self.say(f"final evaluation at {sites} sites")
        self._advance("final evaluation, sites", answered, sites)

    def _advance(self, what: str, done: int, of: int) -> None:
        """Move the bar, on a terminal; a new task restarts it."""
        if not self.console.is_terminal or self.console.quiet:
            return
        task = next((task for task in self._bar.tasks if task.description == what), None)
        if task is None:
            for old in self._bar.task_ids:
                self._bar.remove_task(old)
            number = self._bar.add_task(what, total=of)
        else:
            number = task.id
        self._bar.start()
        self._bar.update(number, completed=done, refresh=True)

    def close(self) -> None:
        """Remove the bar."""
        if "_bar" in vars(self):
            self._bar.stop()

    def sites(self, records: list[Record], sizes: dict[str, dict[str, Any]], *, personalised: bool) -> None:
        """Print the final table: metrics of the final model at each site, pooled, and on the common test set.

        If each site has its own model, the last two are replaced by mean, spread and worst decile over the sites.
        ``gradients`` counts a site's evaluations in the whole run. Empty columns are omitted.
        """
        record = records[-1]
        per_site = record.get("sites", {})
        names = [name for name in HEADLINE if any(name in site for site in per_site.values())]
        counted = {key: heading for key, heading in COUNTED.items() if any(key in size for size in sizes.values())}
        title = "each site's own final model" if personalised else "the final model"
        if counted:
            title += f", on samples that {'it did not train' if personalised else 'no site trained'} on"
        table = Table(title=title, title_justify="left")
        table.add_column("site")
        for heading in (*counted.values(), "gradients", *(f"{_mean(record)}{METRICS[name].label}" for name in names)):
            table.add_column(heading, justify="right")
        for site, metrics in per_site.items():
            counts = [str(sizes.get(site, {}).get(key, "-")) for key in counted]
            gradients = f"{sum(r['site-gradients'].get(site, 0) for r in records):.0f}"
            table.add_row(site, *counts, gradients, *(format_named(metrics, name) for name in names))
        for label, n, values in _summaries(record, names, personalised, with_data=bool(counted)):
            table.add_section()
            table.add_row(label, *(n if key == "held-out" else "" for key in counted), "", *values)
        self._print(table)


def _mean(record: Record) -> str:
    """Return the prefix of a metric that is a mean over several labels."""
    metrics = record.get("central") or record.get("pooled") or {}
    return "mean " if any(split(name)[1] for name in metrics) else ""


def _over_sites(over_sites: Record, name: str, key: str) -> str:
    """Format a statistic of a metric over sites that each have their own model."""
    off = over_sites.get(TIES.get(name, ""), {}).get(key, 0.0)
    return shown(over_sites[name][key], off) if name in over_sites else ""


def _summaries(
    record: Record, names: list[str], personalised: bool, *, with_data: bool
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the last lines of the table: a label, the number of samples, and the metrics."""
    if personalised:
        over_sites = record["over-sites"]
        for key, label in OVER_SITES.items():
            yield label, "", [_over_sites(over_sites, name, key) for name in names]
        return
    central = "common test set" if with_data else "at the coordinator"
    for kind, label in (("pooled", "all sites, pooled"), ("central", central)):
        if kind in record:
            n = str(int(record[kind].get("n", 0)) or "-")
            yield label, n, [format_named(record[kind], name) for name in names]
