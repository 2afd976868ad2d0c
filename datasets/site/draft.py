"""A draft of a study file, from a table as a hospital has it. People send it on, so it names nothing that few have."""

from __future__ import annotations

import csv
import json
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import numpy as np

from edelweiss.common import numbers
from edelweiss.common.files import reason
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.numbers import DATE, LARGEST, MISSING, NEGATIVE, canonical, is_number
from edelweiss.datasets.patient_ids import patient_key
from edelweiss.datasets.site import columns
from edelweiss.datasets.site.formats import READERS, Form, lines_of, looks_like
from edelweiss.datasets.site.header import LOOKED_AT, holds_words
from edelweiss.datasets.site.separators import in_words
from edelweiss.datasets.source import Ints

LEAST = 10  # patients who have what a draft names
MOST = 100_000  # rows that are kept
FORM_KEYS = ("delimiter", "decimal", "encoding", "sheet", "header-row")
MANY = 20  # most words of a category
FILL_IN = "FILL IN"
UNKNOWN = ("unknown", "unk", "missing", "not known", "not done", "n.a.", "unbekannt", "inconnu")
CODED = (-1, -7, -8, -9, -99, -999, -9999, 9, 99, 999, 9999, 99999)
DROPPED = (
    columns.EMPTY,
    columns.CONSTANT,
    columns.LABEL,
    columns.LEAK,
    columns.DATES,
    columns.MONTHS,
    columns.DAYS,
    columns.SERIAL,
    columns.NUMBERED,
    columns.REPEATED,
)
FEW_WORDS = "fewer than two words that enough patients have"
SEEMS = "it seems: values {}"
HARMLESS = {FEW_WORDS, SEEMS.format(columns.EMPTY[0]), SEEMS.format(columns.CONSTANT[0])}
"""Why a column says nothing here, though it may elsewhere."""
HEAD = f"""# A draft, written from one hospital's table: delete what does not belong, and confirm the rest.
# Values of fewer than {LEAST} patients are left out. Ranges leave out {LEAST - 1} patients at each end, rounded.
# Read it before you send it: the names of columns are the table's own."""
NO_PATIENT = """# NO COLUMN SAYS WHOSE A ROW IS, so each counts as a patient. If patients have several rows, name
# the column by --patient and draft anew: below may be words that one patient has, or the patients themselves."""


@dataclass(frozen=True)
class Table:
    """A table to draft from: all rows as text, or as many as `MOST`, drawn at random."""

    name: str  # of its file
    header: list[str]
    rows: list[list[str]]
    of: int  # rows that were read
    keys: Mapping[str, str | int] = field(default_factory=dict)  # of a study file, that say how it is written
    found: str = ""  # how it was found to be written
    query: str = ""  # by which a database returned it

    @classmethod
    def read(cls, file: Path, form: Form | None = None) -> Table:
        """Read a file; DataError if it cannot be read, or its first line does not name the columns."""
        form = form or Form()
        given = {key: getattr(form, key.replace("-", "_")) for key in FORM_KEYS}
        keys = {key: value for key, value in given.items() if value != getattr(Form(), key.replace("-", "_"))}
        try:
            with lines_of(file, form) as lines:
                if kind := looks_like(lines.start.encode()):
                    raise DataError(f"{file} is {kind}, not a table", f"{file.name} is {kind}, not a table")
                rows = ((number, row) for number, row in lines.rows if any(row))
                _, header = next(rows, (0, []))
                decimal = form.decimal or "."
                table = cls.of_rows(file.name, header, (_pointed(row, decimal) for _, row in rows))
                found = in_words(lines.form) if file.suffix.lower() not in READERS and not keys else ""
                return replace(table, keys=keys, found=found)
        except DataError:
            raise
        except (OSError, ValueError, EOFError, zlib.error, csv.Error) as error:
            text = f"{file} cannot be read: {reason(error)}"
            raise DataError(text, f"{file.name} cannot be read") from None

    @classmethod
    def of_rows(cls, name: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
        """Take rows, of which at most `MOST` are kept; DataError if the header names no columns."""
        names = [one.strip() for one in header]
        # The names are written into the draft: a row of a patient must not be taken for them.
        if (
            not names
            or len({*names}) < len(names)
            or any(not one or is_number(one) or DATE.match(one) for one in names)
        ):
            text = "its first line must name all columns, each once: add it, or say by --header-row which one does"
            raise DataError.plain(f"{name}: {text}")
        random, kept, count, uneven = Random(0), list[list[str]](), 0, list[str]()
        for count, row in enumerate(rows, 1):
            if len(row) != len(names):
                uneven.append(f"row {count} has {len(row)}")
            elif len(kept) < MOST:
                kept.append([*row])
            elif (place := random.randrange(count)) < MOST:
                kept[place] = [*row]
        if uneven:
            text = f"{name}: the first line has {len(names)} values, but {examples(uneven)}: correct them, or say by "
            text += "--header-row which line names the columns"
            raise DataError(text, f"{name}: {len(uneven)} rows have another number of values than the first line")
        if holds_words(names, kept[:LOOKED_AT]):
            text = "its first line is like those below it: it must name the columns: add a line of names above it"
            raise DataError.plain(f"{name}: {text}")
        return cls(name, names, kept, count)


def _pointed(row: list[str], decimal: str) -> list[str]:
    """Return cells with decimal points in their numbers."""
    if decimal == ".":
        return row
    return [cell.replace(",", ".") if re.fullmatch(r"\s*[+-]?\d*,\d+\s*", cell) else cell for cell in row]


def draft(file: Path, label: str = "", patient: str = "", form: Form | None = None) -> str:
    """Return a commented study file for a table of a file, in any format that tables are read in; see `draft_of`."""
    return draft_of(Table.read(file, form), label, patient)


def draft_of(source: Table, label: str = "", patient: str = "") -> str:
    """Return a commented study file for a table.

    Parameters
    ----------
    source
        The table.
    label
        The label column; empty: a line to fill in.
    patient
        The patient column; empty: of the columns with a name like ``patient_id`` the one with the fewest values, or
        one of people's names.

    Raises
    ------
    DataError
        If the table lacks the label or patient column, or all features.
    """
    header, rows, name_ = source.header, source.rows, source.name
    for key, name in (("label", label), ("patient", patient)):
        if name and name not in header:
            text = f"{name_}: no column {name!r} for --{key}; its columns: {', '.join(header)}"
            raise DataError(text, f"{name_}: the {key} column is absent", key=key, value=name)
    table = {name: [row[place].strip() for row in rows] for place, name in enumerate(header)}
    named = [name for name in header if name != label and columns.names_an_id(name)]
    # Of patients and their stays, the fewer are the patients; to count too few leaves out more.
    patient = patient or min(named, key=lambda name: len({*table[name]}), default="")
    people = [name for name in header if name != label and columns.names_a_person(name)]
    patient = patient or min(people, key=lambda name: -len({*table[name]}), default="")
    who = [patient_key(text) for text in table[patient]] if patient else [str(row) for row in range(len(rows))]
    classes, said = _label(table[label], who) if label else ([], ["# Name the label column, and check its texts."])
    lines = [HEAD, *([] if patient else [NO_PATIENT])]
    if source.of > len(rows):
        lines.append(
            f"# Drafted from {len(rows):,} of its {source.of:,} rows, drawn at random: rare words may be lacking."
        )
    lines += [f"# It is {source.found}."] if source.found else []
    lines += [f"file = {_toml(name_)}", *(f"{key} = {_toml(value)}" for key, value in source.keys.items())]
    if patient:
        twice = len(set(who)) < len(who)
        several = "some have several rows; one-row takes one of each" if twice else "each has one row"
        lines += [f"patient = {_toml(patient)}  # {several}"]
    places = {text: code for code, text in enumerate(classes)}
    labels = np.array([places.get(canonical(text), -1) for text in table[label]]) if label else None
    dropped, kept = [], []
    for name in header:
        if name in (label, patient):
            continue
        if name in (*named, *people):
            what = "an identifier" if name in named else "a person's name"
            dropped.append(f"    {_toml(name)},  # named like {what}")
            continue
        found, why = _column(name, table[name], who, labels)
        if why:
            dropped.append(f"    {_toml(name)},  # {why}")
        else:
            kept.append("\n".join([f"[columns.{_toml(name)}]", *found]))
    if not kept:
        raise DataError.plain(f"{name_}: no column is left as a feature: identifiers, dates and free text are none")
    if dropped:
        lines += ["drop = [", *dropped, "]"]
    lines += ["", "[label]", f"column = {_toml(label or FILL_IN)}", *said]
    if not label:
        lines += ['negative = ["0"]', 'positive = ["1"]']
    if source.query:
        kept.append(f"[extract]  # at this hospital; another has other tables\nquery = {_toml(source.query)}")
    return "\n".join(lines) + "\n\n" + "\n\n".join(kept) + "\n"


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _patients(texts: list[str], who: list[str]) -> dict[str, set[str]]:
    """Return who has each text."""
    found = defaultdict(set)
    for text, one in zip(texts, who, strict=True):
        found[text].add(one)
    return found


def _label(texts: list[str], who: list[str]) -> tuple[list[str], list[str]]:
    """Return the label's texts from class 0 on, and their lines."""
    found = _patients([canonical(text) for text in texts], who)
    words = [text for text in found if text not in MISSING]
    often = sorted(text for text in words if len(found[text]) >= LEAST)
    often.sort(key=lambda text: (text not in NEGATIVE, -len(found[text])) if len(often) == 2 else (False, 0))
    rare = ["# Some texts are left out, as few patients have them: add their meaning by hand."] * (
        len(often) < len(words)
    )
    if 2 < len(words) <= MANY and len(often) > 2:
        return often, [*rare, "classes = [", *(f"    [{_toml(text)}]," for text in often), "]"]
    if len(often) > 2:
        often, rare = [], ["# It has many texts: say which of them mean what."]
    pair = [*often, FILL_IN, f"{FILL_IN} TOO"]
    if len(often) == 1 and often[0] not in NEGATIVE:
        pair = [FILL_IN, often[0]]
        rare += ["# Check which of the two is the positive."]
    return often, [*rare, f"negative = [{_toml(pair[0])}]", f"positive = [{_toml(pair[1])}]"]


def _column(name: str, texts: list[str], who: list[str], labels: Ints | None) -> tuple[list[str], str]:
    """Return a feature's lines, or why the column is dropped."""
    blank = [text.lower() in MISSING for text in texts]
    there = [one for one, gone in zip(texts, blank, strict=True) if not gone]
    values = np.array(
        [
            numbers.number(one) if not gone and is_number(one) else math.nan
            for one, gone in zip(texts, blank, strict=True)
        ]
    )
    share = float(np.isfinite(values).sum()) / max(len(there), 1)
    if there and np.mean([bool(DATE.match(one)) for one in there]) > 0.5:
        return [], "dates: or give it before-index, and the file an index-date"
    if np.nanmax(np.abs(values), initial=0) > LARGEST:
        return [], "numbers too large for a feature, like identifiers"
    known = [] if labels is None else [labels]
    if (share >= 0.5 or not there) and (kind := columns.kind_of(name, values, known)) in DROPPED:
        return [], SEEMS.format(kind[0])
    found = _patients([canonical(text) for text in texts], who)
    often = sorted(text for text, them in found.items() if text not in MISSING and len(them) >= LEAST)
    if share >= 0.5:
        return _number(name, values, who, often, known), ""
    words = {canonical(text) for text, gone in zip(texts, blank, strict=True) if not gone} - {*UNKNOWN}
    codes = [text for text in often if text not in UNKNOWN]
    if len(words) > MANY:
        return [], "free text or identifiers: it has more than 20 words"
    if len(codes) < 2:
        return [], FEW_WORDS
    place = {text: code for code, text in enumerate(codes)}
    given = np.array([place.get(canonical(text), math.nan) for text in texts])
    if known and columns.kind_of(name, given, known) in (columns.LABEL, columns.LEAK):
        return [], "seems to be a copy of the label, or to tell it"
    lines = ["# A feature of 0 and 1 for each word; ordinal = true if they are an order."] * (len(codes) > 2)
    lines += ["# Some words are left out, as few patients have them."] * (len(codes) < len(words))
    lines += [f"codes = {_toml(codes)}"]
    return lines + _missing([text for text in often if text in UNKNOWN]), ""


def _number(name: str, values: columns.Floats, who: list[str], often: list[str], known: list[Ints]) -> list[str]:
    codes = []
    if columns.kind_of(name, values, known) == columns.CODES:
        codes = [text for text in often if is_number(text) and numbers.number(text) in CODED]
    lines = ['unit = ""  # fill in']
    coded = np.isin(values, [numbers.number(text) for text in codes])
    least: dict[str, float] = {}
    most: dict[str, float] = {}
    for one, value in zip(who, values, strict=True):
        if math.isfinite(value) and not np.isin(value, values[coded]):
            least[one], most[one] = min(value, least.get(one, value)), max(value, most.get(one, value))
    if len(least) >= 2 * LEAST:
        low, high = sorted(least.values())[LEAST - 1], sorted(most.values())[-LEAST]
        lines += [
            f"# range = [{float(f'{low:.1e}'):g}, {float(f'{high:.1e}'):g}]  # most are within; set what is valid"
        ]
    unknown = [text for text in often if text in UNKNOWN]
    if said := [text for text in often if not is_number(text) and text not in UNKNOWN]:
        lines += [f"# words = {{ {', '.join(f'{_toml(text)} = 0' for text in said)} }}  # say which number each means"]
    return lines + _missing(codes + unknown)


def _missing(texts: list[str]) -> list[str]:
    return [f"missing = {_toml(texts)}  # suspected"] if texts else []
