"""Numbers and tables as text."""

from __future__ import annotations

import math
import re
import statistics
from typing import TYPE_CHECKING, Any

import pandas as pd

from edelweiss.problems.metrics import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from edelweiss.lab.compare.groups import Group

NOTHING = "–"


def number(value: float | None) -> str:
    """Format a metric: four places, or two digits where it is small."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:.1e}" if value and abs(value) < 1e-3 else f"{value:.4f}"


def spread(values: Sequence[float], off: float = 0.0) -> str:
    """Format mean ± standard deviation, of values that may be ``off`` by so much in the digits that are known."""
    if not values:
        return NOTHING
    mean = shown(statistics.mean(values), off) if off >= 5e-5 else number(statistics.mean(values))
    return f"{mean} ± {number(statistics.stdev(values))}" if len(values) > 1 else mean


def amount(value: float) -> str:
    """Format a cost: three digits at least."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def remark(group: Group) -> str:
    """Say how many runs are missing or diverged."""
    diverged, total = len(group.runs) - len(group.converged), len(group.runs) + group.missing
    notes = [f"{diverged} of {total} runs diverged"] if diverged else []
    notes += [f"{group.missing} of {total} runs missing"] if group.missing else []
    return f" ({'; '.join(notes)})" if notes else ""


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the second line aligns the columns."""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_csv(file: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write a line each, under all the keys that any of them has."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(lines, dtype=object).to_csv(file, index=False)


TEX = {"\\": r"\textbackslash{}", "±": r"$\pm$", "–": r"\textendash{}", "‖": r"$\|$", "²": r"$^2$"}
TEX |= {each: f"\\{each}" for each in "&%$#_{}"}
TEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
TEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}  # other characters in TeX's oldest fonts
TEX |= {"[": "{[}", "*": "{*}"}  # behind the end of a line they would be taken for a part of it


def latex(lines: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """Return a table for LaTeX with booktabs, the notes before it as comments."""
    heading, *rest = ([_tex(cell) for cell in line] for line in lines)
    table = pd.DataFrame(rest, columns=heading)
    text = table.to_latex(index=False, escape=False, column_format=f"l{'r' * (len(heading) - 1)}")
    comments = [*(" ".join(note.split()) for note in notes), r"needs \usepackage{booktabs}"]
    return "".join(f"% {comment}\n" for comment in comments) + text


def _tex(cell: str) -> str:
    """Return what TeX prints as these characters; the sign of a number is a minus, and two hyphens are no dash."""

    def written(found: re.Match[str]) -> str:
        return {"sign": "$-$", "hyphen": "-{}"}.get(found.lastgroup or "", TEX.get(found[0], found[0]))

    return re.sub(r"(?P<sign>(?<![\w.-])-(?=[\d.]))|(?P<hyphen>-(?=-))|.", written, " ".join(cell.split()))
