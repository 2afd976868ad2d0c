"""A study file is checked before it is sent out: what contradicts, what is open, and what `doctor` will ask for."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from edelweiss.common import shorter
from edelweiss.common.files import as_path, reason, toml_in
from edelweiss.common.overrides import toml_value
from edelweiss.config.study import ColumnTable, StudyFile
from edelweiss.config.study_merge import DECIDE, written
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.numbers import MISSING, canonical, is_number
from edelweiss.datasets.site import read_described
from edelweiss.datasets.site.columns import names_an_id
from edelweiss.datasets.site.draft import FILL_IN
from edelweiss.datasets.site.study import ISO

MANY = 20  # most words of a category that need no second look
_TABLE = re.compile(r"^\s*\[([^\[].*)\]\s*(#.*)?$")


class Line(NamedTuple):
    """What the check found."""

    level: str  # ok, warning or error
    about: str
    text: str


def check(content: bytes) -> tuple[list[Line], StudyFile | None]:
    """Check a study file; return what was found, and the file, None if it cannot be used."""
    content, found = _once(content)
    try:
        values = toml_in(content)
    except ValueError as error:
        return [*found, Line("error", "file", f"it cannot be read: {error}")], None
    file, wrong = StudyFile.checked(values, any_text=True)
    found += [_line("error", text) for text in wrong]
    if file is not None:
        # A value that cannot be used leaves contradictions out; all are found again when it is mended.
        found += [_line("error", text) for text in file.contradictions()]
        found += [*_open(content, file), *_doubts(file)]
    if any(line.level == "error" for line in found) or file is None:
        return found, None
    return [*found, *_asked(file)], file


def check_data(file: StudyFile, place: str) -> Iterator[Line]:
    """Yield what is wrong with a table, or the table of a folder, that is read as a hospital reads its own."""
    study = file.study()
    try:
        path = as_path(place)
        found = read_described(study, study.place(place) if path.is_dir() else path, len(study.classes) == 2)
    except OSError as error:
        yield Line("error", "data", f"{shorter(place)} cannot be read: {reason(error)}")
        return
    except DataError as error:
        for problem in error.problems or (error,):
            yield Line("error", "data", str(problem))
        return
    for doubt in found.warnings:
        yield Line("warning", "data", str(doubt))
    for note in found.notes:
        yield Line("ok", "data", note)
    counts = [int((found.classes == code).sum()) for code in range(found.class_count)]
    if absent := [code for code, count in enumerate(counts) if not count]:
        texts = [" or ".join(map(toml_value, study.classes[code])) for code in absent if code < len(study.classes)]
        yield Line("warning", "data", f"{path.name}: no row has the label {', '.join(texts)}")
    text = f"{len(found.classes):,} rows, {len(found.features)} features; of each class: {', '.join(map(str, counts))}"
    yield Line("ok", "data", f"{path.name}: {text}")


def _line(level: str, text: str) -> Line:
    """Return a problem by the key that it begins with."""
    if table := re.match(r"(columns|label|leave-out|extract|header|subgroups|drop)\b", text):
        return Line(level, table[1], text)
    return Line(level, "file", text)


def _once(content: bytes) -> tuple[bytes, list[Line]]:
    """Return the content without a column's second table, which TOML does not allow, and what was wrong."""
    kept, found, skips = list[bytes](), list[Line](), False
    first: dict[str, int] = {}
    for number, line in enumerate(content.splitlines(keepends=True), 1):
        if header := _TABLE.match(line.decode(errors="replace")):
            name = _column(header[1])
            skips = name is not None and name in first
            if name is not None and skips:
                text = f"[columns.{toml_value(name)}] is there twice, in lines {first[name]} and {number}: delete one"
                found.append(Line("error", "columns", text))
            elif name is not None:
                first[name] = number
        elif line.lstrip().startswith(b"[["):
            skips = False
        if not skips:
            kept.append(line)
    return b"".join(kept), found


def _column(header: str) -> str | None:
    """Return the column of a table's name such as ``columns."age"``; None for another."""
    try:
        values: Any = tomllib.loads(f"[{header}]")
    except ValueError:
        return None
    columns = values.get("columns", {})
    return next(iter(columns), None) if len(columns) == 1 and not next(iter(columns.values())) else None


def _open(content: bytes, file: StudyFile) -> Iterator[Line]:
    """Yield what a person has still to do."""
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        if line.lstrip().startswith(f"# {DECIDE}: "):
            said = line.partition(": ")[2]
            yield Line("error", "open", f"line {number}: {shorter(said)}: decide, then delete this comment")
    texts = [text for own in (*file.label.classes, file.label.negative, file.label.positive) for text in own]
    left = [text for text in (file.label.column, *texts) if text.startswith(FILL_IN)]
    if left:
        mend = 'as in column = "died", negative = ["0"], positive = ["1"]'
        yield Line("error", "open", f"label: {', '.join(map(toml_value, left))} is to be filled in, {mend}")


def _doubts(file: StudyFile) -> Iterator[Line]:
    """Yield what is possible, and probably not meant."""
    if not file.patient:
        text = 'no patient column: each row counts as a patient, and may be held out alone: patient = "..." names it'
        yield Line("warning", "patient", text)
    numbers = {name: one for name, one in file.columns.items() if not one.codes and not one.before_index}
    measured = {name: one for name, one in numbers.items() if one.range != (0, 1)}
    if bare := [name for name, one in measured.items() if not one.unit]:
        text = 'one hospital may have mg/dl where another has mmol/l: unit = "..." says it to people'
        yield Line("warning", "columns", f"no unit: {_names(bare)}; {text}")
    if bare := [name for name, one in numbers.items() if not one.range]:
        text = "any number passes, and a run with differential privacy has nothing to standardise it by"
        if without := [name for name in bare if file.columns[name].mean is None]:
            yield Line("warning", "columns", f"no range: {_names(without)}; {text}: range = [LOWEST, HIGHEST]")
    for name, one in file.columns.items():
        yield from (Line("warning", "columns", f"columns.{shorter(name)}{text}") for text in _about_column(file, one))
    if named := [name for name in file.columns if names_an_id(name)]:
        text = f"drop = {written(named)} instead of their tables"
        yield Line("warning", "columns", f"named like identifiers: {_names(named)}; if they are: {text}")
    others = [file.label.column, *([file.patient] if file.patient else [])]
    alike: dict[str, list[str]] = {}
    for name in [*file.columns, *others]:
        alike.setdefault("".join(name.casefold().split()), []).append(name)
    for names in alike.values():
        if len(names) > 1:
            yield Line("warning", "columns", f"{_names(names)} differ in case or spaces only: are they one column?")
    if dates := [name for name, one in file.columns.items() if one.before_index]:
        also = [file.index_date] if file.index_date and not ISO.fullmatch(file.index_date) else []
        if not file.date_format:
            text = 'are read as YYYY-MM-DD or D.M.YYYY, and no others: date-format = "%m/%d/%Y" for such'
            yield Line("warning", "dates", f"{_names([*dates, *also])} {text}")
        elif "%y" in file.date_format:
            text = "has a year of two digits: 69 is 1969, and 68 is 2068"
            yield Line("warning", "dates", f"date-format = {toml_value(file.date_format)} {text}")


def _about_column(file: StudyFile, column: ColumnTable) -> Iterator[str]:
    """Yield warnings about one column, each to follow its name."""
    low, high = column.range or (None, None)
    if column.range and low is not None and high is not None:
        inside = [text for text in column.missing if is_number(text) and low <= float(text) <= high]
        inside += [text for text in file.missing if is_number(text) and low <= float(text) <= high]
        if inside:
            texts = ", ".join(map(toml_value, dict.fromkeys(inside)))
            yield (
                f": {texts} means missing, and lies within the range {written(column.range)}: is it a value of some "
                "patients? Narrow the range, or take it out of missing"
            )
        if column.mean is not None and not low <= column.mean <= high:
            yield f".mean = {written(column.mean)}: it is outside the range {written(column.range)}"
        if outside := [band for band in column.bands if not low < band <= high]:
            yield f".bands: {written(outside)} is outside the range {written(column.range)}: its subgroup is empty"
    if column.words and (both := [word for word in column.words if canonical(word) in map(canonical, file.missing)]):
        yield f".words: {', '.join(map(toml_value, both))} is among the texts for missing too: the number counts"
    if column.codes and (both := [word for word in column.codes if canonical(word) in map(canonical, file.missing)]):
        said = ", ".join(map(toml_value, both))
        yield f".codes: {said} is among the texts for missing too, and counts as a word: delete it in one of them"
    if column.codes and len({*column.codes.values()}) == 1:
        yield f".codes: {_names([*column.codes])} are one number, so the feature is the same for all patients"
    if len({*column.codes.values()}) > MANY:
        yield f'.codes: {len({*column.codes.values()})} words, each a feature: group them, as in [["a", "b"], "c"]'


def _asked(file: StudyFile) -> Iterator[Line]:
    """Yield what `doctor` asks of each hospital's table."""
    study = file.study()
    form = f"values separated by {toml_value(file.delimiter)}, " if file.delimiter else "separators as found, "
    form += f"decimals after {toml_value(file.decimal)}" if file.decimal else "decimal marks as found"
    yield Line("ok", "doctor", f"asks for one file that matches {toml_value(file.file)}: {form}")
    names = [*file.header] or study.read_columns()
    order = " in this order, without a line of names" if file.header else ", in any order"
    yield Line("ok", "doctor", f"asks for {len(names)} columns{order}: {_names(names, 100)}")
    classes = [" or ".join(toml_value(text) for text in own) for own in study.classes]
    kinds = ["negative", "positive"] if len(classes) == 2 else [f"class {code}" for code in range(len(classes))]
    said = "; ".join(f"{kind}: {texts}" for kind, texts in zip(kinds, classes, strict=True))
    yield Line("ok", "doctor", f"asks for a label in each row of {toml_value(file.label.column)}, {said}")
    gone = file.missing if file.missing != MISSING[1:] else ("NA, NaN, ? and the like",)
    yield Line("ok", "doctor", f"takes an empty value for missing, and {', '.join(gone) or 'nothing else'}")
    for name, one in file.columns.items():
        also = f"; missing: {', '.join(map(toml_value, one.missing))}" * bool(one.missing)
        yield Line("ok", "doctor", f"refuses in {toml_value(name)} what is not {_wanted(one)}{also}")
    for rule in study.leave_out:
        yield Line("ok", "doctor", f"leaves out rows where {rule}")
    if file.one_row:
        yield Line("ok", "doctor", f"takes one row of each patient: one-row = {toml_value(file.one_row)}")


def _wanted(column: ColumnTable) -> str:
    """Return what a column's values must be, in words."""
    if column.codes:
        return f"one of {', '.join(map(toml_value, column.codes))}"
    limits = f" from {written(column.range[0])} to {written(column.range[1])}" if column.range else ""
    if column.before_index:
        return f"a date{f', counted in {column.before_index} to the index date,' * bool(limits)}{limits}"
    words = f", or one of {', '.join(map(toml_value, column.words))}" * bool(column.words)
    return f"a number{limits}{f' {column.unit}' * bool(column.unit)}{words}"


def _names(names: Iterable[str], most: int = 10) -> str:
    return examples([*map(toml_value, names)], most)
