"""A draft of a study file, from a table as a hospital has it. People send it on, so it names nothing that few have."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from edelweiss.common import numbers
from edelweiss.common.files import reason
from edelweiss.datasets.errors import DataError
from edelweiss.datasets.numbers import LARGEST, MISSING, canonical, is_number
from edelweiss.datasets.site import columns
from edelweiss.datasets.site.formats import READERS, Form, text_of
from edelweiss.datasets.site.study import DATE
from edelweiss.datasets.source import Ints

LEAST = 10  # patients who have what a draft names
MANY = 20  # most words of a category
FILL_IN = "FILL IN"
UNKNOWN = ("unknown", "unk", "missing", "not known", "not done", "n.a.", "unbekannt", "inconnu")
NEGATIVE = ("0", "no", "n", "false", "negative", "neg", "nein", "non", "alive")
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


def draft(file: Path, label: str = "", patient: str = "") -> str:
    """Return a commented study file for a table.

    Parameters
    ----------
    file
        In any format that tables are read in.
    label
        The label column; empty: a line to fill in.
    patient
        The patient column; empty: of the columns with a name like ``patient_id`` the one with the fewest values.

    Raises
    ------
    DataError
        If the file cannot be read, names no columns, or lacks the label or patient column.
    """
    header, rows, form = _read(file)
    for key, name in (("label", label), ("patient", patient)):
        if name and name not in header:
            text = f"{file}: no column {name!r} for --{key}; its columns: {', '.join(header)}"
            raise DataError(text, f"{file.name}: the {key} column is absent", key=key, value=name)
    table = {name: [row[place].strip() for row in rows] for place, name in enumerate(header)}
    named = [name for name in header if name != label and columns.names_an_id(name)]
    # Of patients and their stays, the fewer are the patients; to count too few leaves out more.
    patient = patient or min(named, key=lambda name: len({*table[name]}), default="")
    who = table[patient] if patient else [str(row) for row in range(len(rows))]
    classes, said = _label(table[label], who) if label else ([], ["# Name the label column, and check its texts."])
    lines = [HEAD, *([] if patient else [NO_PATIENT]), f"file = {_toml(file.name)}"]
    if file.suffix.lower() not in READERS:
        lines += [f"delimiter = {_toml(form.delimiter)}  # found", f'decimal = "{form.decimal}"  # found']
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
        if name in named:
            dropped.append(f"    {_toml(name)},  # named like an identifier")
            continue
        found, why = _column(name, table[name], who, form.decimal, labels)
        if why:
            dropped.append(f"    {_toml(name)},  # {why}")
        else:
            kept.append("\n".join([f"[columns.{_toml(name)}]", *found]))
    if not kept:
        raise DataError.plain(f"{file.name}: no column is left as a feature: identifiers, dates and free text are none")
    if dropped:
        lines += ["drop = [", *dropped, "]"]
    lines += ["", "[label]", f"column = {_toml(label or FILL_IN)}", *said]
    if not label:
        lines += ['negative = ["0"]', 'positive = ["1"]']
    return "\n".join(lines) + "\n\n" + "\n\n".join(kept) + "\n"


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _read(file: Path) -> tuple[list[str], list[list[str]], Form]:
    """Return the names of columns, the rows, and how the file is written."""
    form = Form()
    try:
        text = text_of(file).decode()
    except OSError as error:
        raise DataError(f"{file} cannot be read: {reason(error)}", f"{file.name} cannot be read") from None
    if file.suffix.lower() not in READERS:
        first = text.partition("\n")[0]
        form = Form(max(",;\t|", key=first.count))
    header, *rows = csv.reader(io.StringIO(text, newline=""), delimiter=form.delimiter) if text.strip() else [[]]
    header, rows = [name.strip() for name in header], [row for row in rows if any(row)]
    # The names are written into the draft: a row of a patient must not be taken for them.
    if (
        not header
        or len({*header}) < len(header)
        or any(not name or is_number(name) or DATE.match(name) for name in header)
    ):
        raise DataError.plain(f"{file.name}: its first line must name all columns, each once: add a line of names")
    if uneven := [place for place, row in enumerate(rows, 2) if len(row) != len(header)]:
        raise DataError.plain(
            f"{file.name}: row {uneven[0]} has not {len(header)} values as the first line: correct it"
        )
    if form.delimiter != ",":
        cells = [cell for row in rows for cell in row]
        commas = sum(bool(re.fullmatch(r"[+-]?\d+,\d+", cell.strip())) for cell in cells)
        points = sum(bool(re.fullmatch(r"[+-]?\d+\.\d+", cell.strip())) for cell in cells)
        form = Form(form.delimiter, "," if commas > points else ".")
    return header, rows, form


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


def _column(name: str, texts: list[str], who: list[str], decimal: str, labels: Ints | None) -> tuple[list[str], str]:
    """Return a feature's lines, or why the column is dropped."""
    blank = [text.lower() in MISSING for text in texts]
    point = [text.replace(decimal, ".") if decimal != "." else text for text in texts]
    there = [one for one, gone in zip(point, blank, strict=True) if not gone]
    values = np.array(
        [
            numbers.number(one) if not gone and is_number(one) else math.nan
            for one, gone in zip(point, blank, strict=True)
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
        return _number(
            name,
            values,
            who,
            [text.replace(decimal, ".") if is_number(text.replace(decimal, ".")) else text for text in often],
            known,
        ), ""
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
