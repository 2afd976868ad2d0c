"""The page of a study under docs/results/: what people wrote about it, and in its midst what its runs say.

What is generated stands between two lines, ``<!-- begin NAME -->`` and ``<!-- end NAME -->``. It is replaced, and the
rest of the page stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import price
from benchmarks.comparisons import sections
from benchmarks.pictures import CAPTIONS, draw
from benchmarks.studies.private import EPSILON
from benchmarks.sweep import Sweep
from benchmarks.tables import Tables, csv_lines, gather, table
from edelweiss.lab.compare.grids import FACTOR
from edelweiss.lab.compare.runs import shown
from edelweiss.lab.compare.text import write_csv

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.studies import Between, Value

HOUR = 60  # minutes: what a default run is meant to take on two cores


def insert(page: Path, name: str, title: str, text: str) -> None:
    """Replace the generated part NAME of a page; a page that lacks it gets it at its end, a new one a title too."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
    content = page.read_text(encoding="utf-8") if page.exists() else f"# {title}\n"
    before, found, rest = content.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        before, after = f"{content.rstrip()}\n\n", ""
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def write(sweep: Sweep, folder: Path) -> str:
    """Write NAME.csv and NAME.png, and the generated part of NAME.md; returns that part."""
    tables = gather(sweep)
    text = markdown(sweep, tables)
    if any(row.converged for rows in tables.values() for row in rows):
        picture = folder / f"{sweep.name}.png"
        folder.mkdir(parents=True, exist_ok=True)
        draw(sweep, tables, picture)
        text += f"\n![{sweep.title}]({picture.name})\n\n{CAPTIONS[sweep.study.picture]}\n"
    if lines := csv_lines(sweep, tables):
        write_csv(folder / f"{sweep.name}.csv", lines)
    insert(folder / f"{sweep.name}.md", sweep.name, sweep.title, text)
    return text


def markdown(sweep: Sweep, tables: Tables) -> str:
    """Return the tables with what one has to know to read them."""
    parts = preamble(sweep)
    versions = {run.outcome.version for rows in tables.values() for row in rows for run in row.runs}
    if len(versions) > 1:
        parts.append(f"These runs are of {len(versions)} versions of the code: {', '.join(sorted(versions))}.")
    private = EPSILON in sweep.study.compare
    parts += [*price.sections(sweep, tables), "All runs:"] if private else []
    if private or len(sweep.study.compare) > 1:
        parts.append(table(sweep, tables, tuple(sweep.study.compare)))
    else:
        for cell, rows in tables.items():
            if cell:
                parts.append(f"**{sweep.study.named(dict(cell))}**")
            parts.append(table(sweep, {cell: rows}))
    parts += sections(sweep.study, tables)
    parts.append(duration(sweep, tables))
    return "\n\n".join(parts) + "\n"


def duration(sweep: Sweep, tables: Tables) -> str:
    """Say how long all runs took, those that chose among them, and whether two cores do them within the hour."""
    tuning = (sweep.outcome(job) for method in sweep.study.methods for job in sweep.tuning(method))
    outcomes = [outcome for outcome in tuning if outcome]
    outcomes += [run.outcome for rows in tables.values() for row in rows for run in row.runs]
    minutes = sum(outcome.seconds for outcome in outcomes) / 60
    took = f"{len(outcomes)} runs took {f'{minutes:,.0f} minutes' if minutes >= 1 else 'under a minute'} of one core."
    if sweep.full:
        return took
    hour = "within the hour" if minutes <= 2 * HOUR else f"about {minutes / 2:,.0f} minutes, longer than the hour"
    return f"{took} On two cores that is {hour} that a study is meant to take."


def preamble(sweep: Sweep) -> list[str]:
    """Say what was run and how it is reported, in paragraphs. With changed keys the study's words on its setting go."""
    study = sweep.study
    parts = [f"<!-- Written by `{sweep.command}`; do not edit. -->", f"`{sweep.command}`: {sweep.title}."]
    if sweep.changes:
        parts.append("A trial. The study's own description is left out: the changed keys may make it false.")
    else:
        parts += [" ".join(note for note in (study.size * (not sweep.full), study.note) if note)]
    if any(len(sweep.grid(method)) > 1 for method in study.methods):
        parts.append(choice(sweep))
    repeats = " × ".join(f"{len(values)} {key}s" for key, values in study.repeat.items())
    parts.append(f"Mean ± standard deviation over {repeats}.")
    if study.reference:
        parts.append(
            f"The columns on the right: {next(iter(study.report.values()))} at the last evaluation before a method had "
            f"used more sample gradients, or more bytes, than {study.reference} in its whole run."
        )
    if labels := averaging(sweep):
        parts.append(
            f"A stage of {' and '.join(labels)} ends with the average of its iterates. The last value, in the table "
            "and in the picture, is that of such an average; it may be worse than the one before."
        )
    parts.append(study.paper_note)
    return [part for part in parts if part]


def choice(sweep: Sweep) -> str:
    """Say how the points were chosen."""
    study, points = sweep.study, len(sweep.grid(sweep.study.methods[0]))
    what = f"{points} points drawn from its own ranges" if study.trials else f"its own grid of {points} points"
    private = ", and that sites under privacy tell of in noised histograms" * (EPSILON in study.compare)
    fixed = shown({key: values[0] for key, values in study.compare.items() if key not in study.tune_by})
    text = (
        f"{'Search' if study.trials else 'Step sizes'}: for each method the best of {what}, by `{study.select}` (the "
        f"samples that the sites hold out{private}) at seed {study.tuning_seed}{f' and {fixed}' * bool(fixed)}, which "
        "no number below uses."
    )
    if study.trials:
        text += f" What they were drawn from:\n\n{ranges(sweep)}"
    if study.tune_by:
        text += f" There is a choice for each {' and '.join(study.tune_by)}."
    if sweep.extend:
        text += (
            f" A grid whose best point lies on its edge grew there by a factor of {FACTOR:g}, up to {sweep.extend} "
            "times; a * marks a choice that lies on the edge still."
        )
    return text


def ranges(sweep: Sweep) -> str:
    """List what a search draws from: a line for all methods, and one for what is each one's own."""
    from benchmarks.studies import Between

    def text(key: str, choices: Between | tuple[Value, ...]) -> str:
        name = " ".join(dict.fromkeys(part.rpartition(".")[2] for part in key.split()))
        if isinstance(choices, Between):
            return f"{name} from {choices.low:g} to {choices.high:g}"
        return f"{name} {', '.join(map(str, choices[:-1]))} or {choices[-1]}"

    methods = sweep.study.methods
    shared = {key for key in methods[0].ranges if all(key in method.ranges for method in methods)}
    lines = {"all": {key: methods[0].ranges[key] for key in sorted(shared)}}
    lines |= {m.label: {key: choices for key, choices in m.ranges.items() if key not in shared} for m in methods}
    return "\n".join(f"- {label}: {'; '.join(text(*one) for one in found.items())}" for label, found in lines.items())


def averaging(sweep: Sweep) -> list[str]:
    """Return the methods whose model at the end of a stage, and so of the run, is an average over that stage."""
    from edelweiss.strategies import ALGORITHMS

    return [method.label for method in sweep.study.methods if ALGORITHMS[method.algorithm].averages_stages]
