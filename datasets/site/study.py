"""A study file: what the columns of every hospital's table mean, written once by the coordinator.

With it, a hospital's table is read as it is, with its delimiters, codes and words for categories, and becomes a table
of numbers with labels from 0.
"""

from __future__ import annotations

import csv
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from edelweiss.common import hint, numbers, repeated, shorter
from edelweiss.common.files import as_path, reason
from edelweiss.common.memory import collecting_rarely
from edelweiss.common.overrides import toml_value
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.numbers import DATE, MISSING, TRUTH, canonical, is_number
from edelweiss.datasets.patient_ids import patient_key, spelt_apart
from edelweiss.datasets.site.formats import FOUND, Form, Lines, lines_of, looks_like
from edelweiss.datasets.site.header import LOOKED_AT, separated, title_above
from edelweiss.datasets.site.table import CELLS, as_numbers, mapped
from edelweiss.datasets.source import Change

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from edelweiss.datasets.source import Mask

    Floats = NDArray[np.float64]
    Wrong = dict[str, list[int]]  # the places of invalid values by reason

_ROW, _DAYS = "\0row", "\0days"  # beside the columns of a table, no name of which can be printed like this
DAYS = {"days": 1.0, "years": 365.25}  # of a unit of time
ISO = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})([ T].*)?")
POINTS = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})([ T].*)?")


@dataclass(frozen=True)
class Column:
    """One feature."""

    name: str  # in the table's header
    unit: str = ""  # shown in messages
    low: float = -math.inf  # allowed range, inclusive
    high: float = math.inf
    codes: tuple[tuple[str, float], ...] = ()  # for a category: pairs of a word and its number; empty: it is a number
    missing: tuple[str, ...] = ()  # texts for a missing value, in addition to the study's
    bands: tuple[float, ...] = ()  # numbers, ascending, at which subgroups begin
    mean: float | None = None  # what is typical of patients, from the literature, say
    deviation: float | None = None
    words: tuple[tuple[str, float], ...] = ()  # for a number: texts that stand for one, such as "> 89"
    one_hot: bool = False  # for a category: a feature of 0 and 1 for each of its numbers, and not one of the numbers
    before_index: Literal["", "days", "years"] = ""  # for a date: the time from it to the study's index date

    @property
    def meanings(self) -> dict[float, str]:
        """The words of each of a category's numbers."""
        words: dict[float, list[str]] = {}
        for word, code in self.codes:
            words.setdefault(code, []).append(word)
        return {code: " or ".join(said) for code, said in words.items()}

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the inputs that the column becomes.

        They have the numbers of categories and not their words, which a hospital may spell in its own way.
        """
        return (
            tuple(f"{self.name} = {canonical(repr(code))}" for code in self.meanings) if self.one_hot else (self.name,)
        )

    def spread(self, numbers: Floats) -> dict[str, Floats]:
        """Return the inputs that the column's numbers, shape (n,), NaN where missing, become."""
        if not self.one_hot:
            return {self.name: numbers}
        gone = np.isnan(numbers)
        return {
            name: np.where(gone, np.nan, numbers == code)
            for name, code in zip(self.features, self.meanings, strict=True)
        }

    @property
    def typical(self) -> tuple[float, float] | None:
        """Mean and standard deviation: as stated, or of a uniform number in the range, or of codes; None: unknown."""
        if self.one_hot:
            share = 1 / len(self.meanings)
            return share, math.sqrt(share * (1 - share))
        if self.mean is not None and self.deviation is not None:
            return self.mean, self.deviation
        if self.codes:
            numbers = np.array([code for _, code in self.codes])
            return float(numbers.mean()), float(numbers.std()) or 1.0
        if math.isfinite(self.low) and math.isfinite(self.high):
            return (self.low + self.high) / 2, (self.high - self.low) / math.sqrt(12)
        return None

    def parted(self, values: NDArray[np.float32]) -> dict[str, Mask]:
        """Return which rows belong to each subgroup: the words of a category, the bands of a number.

        `values` has shape (n, K): a column for each of `features`.
        """
        if self.one_hot:
            parts = {said: values[:, place] == 1 for place, said in enumerate(self.meanings.values())}
            return {**parts, "missing": np.isnan(values).any(1)}
        values = values[:, 0]
        if self.codes:
            parts = {said: values == np.float32(code) for code, said in self.meanings.items()}
        else:
            ends = np.array([-math.inf, *self.bands, math.inf], np.float32)
            inner = [f"{low:g} to {high:g}" for low, high in pairwise(self.bands)]
            names = [f"below {self.bands[0]:g}", *inner, f"{self.bands[-1]:g} or more"]
            parts = {
                name: (values >= low) & (values < high) for name, (low, high) in zip(names, pairwise(ends), strict=True)
            }
        return {**parts, "missing": np.isnan(values)}


@dataclass(frozen=True)
class Rule:
    """Which rows are left out: those with one of the texts, or a number below or above a limit."""

    column: str
    values: tuple[str, ...] = ()  # texts; empty: blank
    below: float = -math.inf
    above: float = math.inf

    def __str__(self) -> str:
        said = [repr(text) if text else "blank" for text in self.values]
        said += [f"below {self.below:g}"] * (self.below > -math.inf) + [f"above {self.above:g}"] * (
            self.above < math.inf
        )
        return f"{self.column!r} is {' or '.join(said)}"


@dataclass(frozen=True)
class Described:
    """A table as a study describes it.

    Attributes
    ----------
    frame
        Features as numbers, NaN where missing; the label as the number of its class; the patient as text. The index
        counts the file's rows from 0.
    changes
        How many rows were left out, or merged with others of their patient.
    notes
        Columns that are not read.
    indicators
        The features that are 1 for one word of a category.
    """

    frame: pd.DataFrame
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    indicators: frozenset[str]


@dataclass(frozen=True)
class Study:
    """The content of a study file. Its texts ignore case, and whole numbers may be written with a point and zeros."""

    columns: tuple[Column, ...]  # the features; other columns are not read
    label: str  # name of the label column
    classes: tuple[tuple[str, ...], ...]  # for each class from 0, the texts in that column that mean it
    file: str = "data.csv"  # name of the table in a hospital's folder, or a pattern that matches one file
    delimiter: str = ""  # between values; empty: found, and turned into a comma
    decimal: str = ""  # within numbers; empty: found, and turned into a point
    encoding: str = ""  # of text; empty: found
    sheet: str = ""  # of a workbook; empty: its only one
    header_row: int = 1  # of a sheet
    header: tuple[str, ...] = ()  # names of all columns in order, for tables without a header; empty: the first line
    missing: tuple[str, ...] = MISSING[1:]  # texts for a missing value, unless a word of the category; "" always is
    patient: str = ""  # column with the patient ids; empty: none
    subgroups: tuple[str, ...] = ()  # columns, with codes or bands, in whose subgroups a model is evaluated
    drop: tuple[str, ...] = ()  # columns that are not read, on purpose
    leave_out: tuple[Rule, ...] = ()  # rows that are left out
    one_row: Literal["", "first", "last", "mean", "max"] = ""  # of a patient's rows; empty: all are kept
    index_date: str = ""  # the column of the date to which times are counted, or one date, YYYY-MM-DD, for all rows
    date_format: str = ""  # as of strptime; empty: YYYY-MM-DD or D.M.YYYY

    def place(self, folder: str) -> Path:
        """Return the table's file; DataError if there is none or more than one."""
        try:
            found = sorted(path for path in as_path(folder).glob(self.file) if as_path(path).is_file())
        except (OSError, ValueError, NotImplementedError) as error:
            text = f"data-dir {folder} cannot be read: {reason(error)}"
            raise DataError(text, "the data folder cannot be read", key="data-dir", value=folder) from None
        if len(found) != 1:
            what = (
                f"{len(found)} match: {examples([shorter(path.name) for path in found])}" if found else "none matches"
            )
            raise DataError(
                f"data-dir {folder}: exactly one file must match the study's {self.file!r}, but {what}",
                f"{len(found)} files of the data folder match the study's file; exactly one must",
                key="data-dir",
                value=folder,
            )
        return found[0]

    def read(self, file: Path, also: str = "") -> Described:
        """Read a hospital's own table; ``also`` names a column to keep as it is, if it exists.

        Raises
        ------
        DataError
            With everything that does not fit the study.
        """
        import pandas as pd

        invalid: dict[str, dict[str, list[tuple[int, str]]]] = {}  # by column and reason: rows from 1, and their texts
        cells: dict[str, list[Any]] = {}
        hits: Counter[Rule] = Counter()
        names, others, rows, how = list[str](), list[str](), 0, ""
        for text in self._parts(file):
            if not rows:
                names, how = [*text.columns], text.attrs[FOUND]
                others = [self.patient] if self.patient in names else []
                others += [also] if also in names and also not in (*self.names(), *self.features()) else []
            rows, kept = rows + len(text), np.ones(len(text), np.bool_)
            for rule, hit in self.left_out(text).items():
                hits[rule] += int((kept & hit).sum())
                kept &= ~hit
            part = text[kept]
            found, wrong = self.values(part)
            if self.label in part:
                found[self.label], wrong[self.label] = self._classes(part[self.label])
            for name, reasons in wrong.items():
                for why, places in reasons.items():
                    bad = part[name].iloc[places]
                    said = zip((bad.index + 1).tolist(), bad, strict=True)
                    invalid.setdefault(name, {}).setdefault(why, []).extend(said)
            days = self._days(part)[0] if self.one_row else None
            found |= {name: part[name] for name in others} | {_ROW: part.index.to_numpy()}
            for name, column in {**found, **({} if days is None else {_DAYS: days})}.items():
                cells.setdefault(name, []).append(column)
        if problems := [*self._absent(names, file), *self._invalid(invalid, file)]:
            raise DataError.join(problems)
        changes = [Change(hits[rule], rows, f"rows are left out: {rule}") for rule in self.leave_out if rule in hits]
        columns = {name: _joined(cells.pop(name)) for name in [*cells]}
        index, when = columns.pop(_ROW), columns.pop(_DAYS, None)
        if not len(index):
            raise DataError(f"{file}: leave-out leaves no row", "the study's rules leave no row", key="leave-out")
        frame = pd.DataFrame(columns, index=index, copy=False)
        if self.one_row:
            if apart := spelt_apart(frame[self.patient].unique()):
                which = examples([" = ".join(map(repr, spellings)) for spellings in apart])
                raise DataError(
                    f"{file}: patient {self.patient!r}: {which}: one-row = {self.one_row!r} would merge the rows "
                    "of each: spell each alike or, if these are different patients, give them other identifiers",
                    f"{len(apart)} patients are spelt in several ways, and the study's one-row would merge them",
                    key=self.patient,
                )
            before, frame = len(frame), self._one_row(frame, when)
            what = f"rows are merged with others of their patient: one-row = {self.one_row!r}"
            changes.append(Change(before - len(frame), before, what))
        named = {*self.read_columns(), *self.drop, also}
        unread = [repr(name) for name in names if name not in named]
        notes = [f"{file.name}: columns {examples(unread)} are not read, since the study does not name them"] * bool(
            unread
        )
        if how:
            notes.insert(0, f"{file.name}: {how}")
        indicators = frozenset(name for column in self.columns if column.one_hot for name in column.features)
        return Described(frame, tuple(changes), tuple(notes), indicators)

    def values(self, frame: pd.DataFrame) -> tuple[dict[str, Floats | pd.Series], dict[str, Wrong]]:
        """Return the inputs in a table of texts by their names, and by column the invalid values."""
        found: dict[str, Floats | pd.Series] = {}
        days, late = self._days(frame)
        wrong = {self.index_date: late} if late else {}
        for column in self.columns:
            if column.name in frame:
                numbers, bad = self.cells(frame[column.name], column, days)
                found.update(column.spread(numbers))
                if bad:
                    wrong[column.name] = bad
        return found, wrong

    def left_out(self, frame: pd.DataFrame) -> dict[Rule, Mask]:
        """Return which rows of a table of texts each rule leaves out, where the table has the rule's column."""
        days, _ = self._days(frame)
        columns = {column.name: column for column in self.columns}
        found = {}
        for rule in self.leave_out:
            if rule.column not in frame:
                continue
            texts = frame[rule.column]
            hit = texts.map(canonical).isin([*map(canonical, rule.values)]).to_numpy(np.bool_, copy=True)
            if math.isfinite(rule.below) or math.isfinite(rule.above):
                numbers, _ = self.cells(texts, columns.get(rule.column, Column(rule.column)), days, checked=False)
                hit |= (numbers < rule.below) | (numbers > rule.above)
            found[rule] = hit
        return found

    def read_columns(self) -> list[str]:
        """Return the columns of a table that the study needs."""
        index = [self.index_date] if self.index_date and not ISO.fullmatch(self.index_date) else []
        return [*dict.fromkeys([*self.names(), *index, *(rule.column for rule in self.leave_out)])]

    def names(self) -> list[str]:
        """Return the columns of features, label and patient."""
        return [column.name for column in self.columns] + [self.label, *([self.patient] if self.patient else [])]

    def features(self) -> list[str]:
        """Return the names of the inputs that the columns become."""
        return [name for column in self.columns for name in column.features]

    def typical(self) -> dict[str, tuple[float, float] | None]:
        """Return what is `Column.typical` of each input, by its name; a private run standardises by this alone."""
        return {name: column.typical for column in self.columns for name in column.features}

    @property
    def separator(self) -> str:
        """What separates the values of a text once it is read."""
        return self.delimiter or ","

    @property
    def form(self) -> Form:
        """How the file is written."""
        return Form(self.delimiter, self.decimal, self.encoding, self.sheet, self.header_row)

    # ------------------------------------------------------------------ steps

    @contextmanager
    def _opened(self, file: Path) -> Iterator[Lines]:
        try:
            with collecting_rarely(), lines_of(file, self.form, strict=True) as table:
                if kind := looks_like(table.start.encode()):
                    raise ValueError(f"it is {kind}")
                yield table
        except DataError:
            raise
        except (OSError, ValueError, EOFError, zlib.error, csv.Error) as error:
            text = f"{file} cannot be read: {reason(error)}; it must be text separated by {self.separator!r}"
            raise DataError(text, "the table cannot be read") from error

    def _parts(self, file: Path) -> Iterator[pd.DataFrame]:
        """Yield the rows as text, a part at a time; the index counts them from 0."""
        import pandas as pd

        count, ragged = 0, list[str]()
        with self._opened(file) as table:
            lines: Iterator[tuple[int, list[str]]]
            lines = ((number, _stripped(line)) for number, line in table.rows if any(line))
            first = next(lines, None)
            names = [*self.header] or (first[1] if first else [])
            if first and first[1] != names:
                lines = chain([first], lines)
            form = separated(table.start, self.delimiter) if self.delimiter else None
            ragged += [f"line 1 has {len(names)}"] * bool(form and len(names) == 1)
            twice, looked_at = repeated(names), [] if first is None else [first]
            while part := list(islice(lines, max(1, CELLS // max(1, len(names))))):
                looked_at += part[: LOOKED_AT - len(looked_at)]
                ragged += [f"line {number} has {len(line)}" for number, line in part if len(line) != len(names)]
                if not (ragged or twice):
                    places = range(count, count + len(part))
                    frame = pd.DataFrame([line for _, line in part], places, names, dtype=object)
                    frame.attrs[FOUND] = table.found
                    yield frame
                count += len(part)
        if not count:
            raise DataError(f"{file} has no rows", "the table has no rows")
        if form and ragged:
            raise DataError(
                f"{file}: {form}, but the study says {self.separator!r}: write {form.keys} there",
                "the table's values are not separated as the study says",
            )
        if (ragged or twice) and (title := title_above(file, names, looked_at)):
            raise title
        problems = []
        if ragged:
            text = f"{file}: there are {len(names)} columns, but {examples(ragged)}; is it separated by "
            public = f"{len(ragged)} lines of the table do not have one value per column"
            problems.append(DataError(f"{text}{self.separator!r}?", public))
        if twice:
            text = f"{file}: {examples(twice)} names more than one column; rename them"
            problems.append(DataError(text, f"{len(twice)} names stand for more than one column", key=twice[0]))
        if problems:
            raise DataError.join(problems)

    def _absent(self, names: Sequence[str], file: Path) -> Iterator[DataError]:
        for name in self.read_columns():
            if name not in names:
                text = f"{file}: the table has no column {name!r}, which the study names.{hint(name, names)}"
                yield DataError(text, "the table lacks a column that the study names", key=name)

    def _one_row(self, frame: pd.DataFrame, days: Floats | None) -> pd.DataFrame:
        """Return one row of each patient; first and last are by the index date, where it is a column."""
        if (frame[self.patient] == "").any():  # an error that the caller reports
            return frame
        who = mapped(frame[self.patient], patient_key)
        if self.one_row in ("mean", "max"):
            rows = frame.groupby(who, sort=False)
            merged = rows.transform("first")
            inputs = self.features()
            merged[inputs] = rows[inputs].transform(self.one_row)
            merged[self.label] = frame[self.label].astype(int).groupby(who).transform("max").astype(str)
            frame = frame.assign(**{name: merged[name] for name in [*inputs, self.label]})
            return frame[~who.duplicated()]
        order = np.arange(len(frame)) if days is None else np.argsort(days, kind="stable")
        keep: Literal["first", "last"] = "first" if self.one_row == "first" else "last"
        inside = ~who.iloc[order].duplicated(keep=keep)
        return frame.iloc[np.sort(order[inside.to_numpy(np.bool_)])]

    def _invalid(self, found: Mapping[str, Mapping[str, list[tuple[int, str]]]], file: Path) -> Iterator[DataError]:
        columns = {column.name: column for column in self.columns}
        for name in dict.fromkeys([self.index_date, *columns, self.label, *found]):
            for why, rows in found.get(name, {}).items():
                listed = examples([f"row {row} ({text!r})" for row, text in rows])
                yield DataError(
                    f"{file}: {'label' if name == self.label else 'column'} {name!r}: {listed}: {why}"
                    f"{_mend(columns[name], [text for _, text in rows]) if name in columns else ''}",
                    f"the label of {len(rows)} rows is not one of the study's"
                    if name == self.label
                    else f"{len(rows)} values of a column do not fit the study",
                    key=name,
                    row=rows[0][0],
                )

    def _days(self, frame: pd.DataFrame) -> tuple[Floats | None, Wrong]:
        """Return the index date of each row, in days, NaN where missing, and invalid ones; None if there is none."""
        if fixed := ISO.fullmatch(self.index_date):
            year, month, day = map(int, fixed.groups()[:3])
            return np.full(len(frame), float(date(year, month, day).toordinal())), {}
        if not self.index_date or self.index_date not in frame:  # a column may lack a name
            return None, {}
        return self.cells(frame[self.index_date], Column(self.index_date, before_index="days"), None, checked=False)

    def cells(
        self, values: Iterable[str], column: Column, days: Floats | None = None, *, checked: bool = True
    ) -> tuple[Floats, Wrong]:
        """Return a column as numbers, shape (n,), NaN where missing, and the places of invalid values by reason.

        ``days`` are the index dates; without them dates become days. If not ``checked``, ranges are ignored.
        """
        gone = {"", *map(canonical, (*self.missing, *column.missing))}
        codes = {_compact(word): code for word, code in (*column.codes, *column.words)}
        wrong: Wrong = {}
        plain = None if codes or column.before_index else self._plain(values, gone)
        if plain is None:
            known: dict[str, tuple[float, str]] = {}
            read: list[float] = []
            for place, text in enumerate(values):
                if (found := known.get(text)) is None:
                    found = known[text] = self._number(text, column, codes, gone)
                read.append(found[0])
                if found[1]:
                    wrong.setdefault(found[1], []).append(place)
        numbers = np.array(read, np.float64) if plain is None else plain
        if column.before_index and days is not None:
            numbers = (days - numbers) / DAYS[column.before_index]
        outside = (numbers < column.low) | (numbers > column.high)
        if checked and outside.any():
            unit = f" {column.unit}" if column.unit else ""
            why = f"it must be from {column.low:g} to {column.high:g}{unit}"
            if column.before_index:
                why += f", counted in {column.before_index} from this date to the index date"
            wrong[why] = np.flatnonzero(outside).tolist()
        return numbers, wrong

    def _plain(self, values: Iterable[str], gone: set[str]) -> Floats | None:
        """Return what `_number` says of each text, fast; None unless all are numbers or missing."""
        absent = [float(text) for text in gone if is_number(text)]
        if any(not value.is_integer() for value in absent):  # whole numbers may be written with zeros, others not
            return None
        texts = list(values)
        if self.decimal == ",":
            texts = [text.replace(".", "x").replace(",", ".") for text in texts]
        numbers = as_numbers(texts, {**TRUTH, **dict.fromkeys(gone, math.nan)})
        if numbers is not None and absent:
            numbers[np.isin(numbers, absent)] = math.nan
        return numbers

    def _number(self, text: str, column: Column, codes: dict[str, float], gone: set[str]) -> tuple[float, str]:
        """Return a value as a number, NaN if missing, and the reason if it is invalid."""
        plain = text.replace(".", "x").replace(",", ".") if self.decimal == "," else text
        for spelling in (text, plain):
            if (code := codes.get(_compact(spelling))) is not None:
                return code, ""
        if canonical(text) in gone or canonical(plain) in gone:
            return math.nan, ""
        if column.codes:
            return math.nan, f"allowed are {examples([word for word, _ in column.codes])}"
        if column.before_index:
            return self._date(text)
        if DATE.match(text):
            return math.nan, (
                "dates are not allowed: give an age or a number of days instead, or set before-index for the column"
            )
        try:
            return TRUTH[text.lower()] if text.lower() in TRUTH else numbers.number(plain), ""
        except ValueError:
            return (
                math.nan,
                f"it must be a number, with {self.decimal or '.'!r} before its decimals, or one of words or missing",
            )

    def _date(self, text: str) -> tuple[float, str]:
        """Return a date in days since the year 1, and the reason if it is invalid."""
        try:
            if self.date_format:
                return float(datetime.strptime(text, self.date_format).toordinal()), ""
            if found := ISO.fullmatch(text):
                year, month, day = map(int, found.groups()[:3])
            elif found := POINTS.fullmatch(text):
                day, month, year = map(int, found.groups()[:3])
            else:
                return math.nan, "it must be a date, YYYY-MM-DD or D.M.YYYY; set date-format for others"
            return float(date(year, month, day).toordinal()), ""
        except ValueError:
            said = f"as {self.date_format!r} says" if self.date_format else "YYYY-MM-DD or D.M.YYYY"
            return math.nan, f"it must be a date, {said}"

    def _classes(self, values: pd.Series) -> tuple[pd.Series, Wrong]:
        """Return the class of each row, and the places of texts that are none."""
        codes = {canonical(text): str(code) for code, texts in enumerate(self.classes) for text in texts}
        found = mapped(values, lambda text: codes.get(canonical(text), ""))
        why = (
            f"the study allows {examples(list(codes))}; correct them, or leave these rows out with [[leave-out]] "
            f'column = "{self.label}" and their values'
        )
        wrong = np.flatnonzero(found == "").tolist()
        return found, {why: wrong} if wrong else {}


def _mend(column: Column, texts: Sequence[str]) -> str:
    """Return what a study file could say of texts that do not fit a column."""
    said = [toml_value(text) for text in dict.fromkeys(texts)][:3]
    ways = [f"missing = [{', '.join(said)}]"]
    if column.codes:
        ways.append(f"codes with {said[0]}")
    elif not column.before_index and not is_number(texts[0]):
        ways.append(f"words = {{ {said[0]} = NUMBER }}")
    return f"; or say under [columns.{toml_value(column.name)}] {' or '.join(ways)}"


def _stripped(line: Sequence[str]) -> list[str]:
    return [value.strip() for value in line]


def _joined(parts: list[Any]) -> Any:
    """Return a column, for which its parts are given up."""
    import pandas as pd

    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return pd.concat([pd.Series(part.to_numpy(object), dtype="str") for part in parts], ignore_index=True).array


def _compact(text: str) -> str:
    """Return the canonical spelling without spaces: ``> 89`` and ``>89`` are equal."""
    return canonical("".join(text.split()) if any(map(str.isspace, text)) else text)
