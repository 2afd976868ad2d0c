"""A study file: the coordinator's description of columns, by which each hospital's table is read as it is."""

from __future__ import annotations

import codecs
from datetime import date, datetime
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictFloat

from edelweiss.common import ConfigError, repeated, shorter, unknown
from edelweiss.common.files import TEXT, read_file, reason, toml_in
from edelweiss.config.extract import ExtractTable
from edelweiss.config.keys import Keys
from edelweiss.datasets.numbers import MISSING, canonical
from edelweiss.datasets.site.study import ISO, Column, Rule, Study

if TYPE_CHECKING:
    from collections.abc import Mapping


def text(value: object) -> object:
    """Return a number as text: a table does not tell them apart, TOML does."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def numbered(value: object) -> object:
    """Return the words of a list with their numbers from 0; an inner list has words of the same meaning."""
    if not isinstance(value, list):
        return value
    groups = [one if isinstance(one, list) else [one] for one in value]
    return {str(text(word)): code for code, words in enumerate(groups) for word in words}


def day(value: object) -> object:
    """Return a date of TOML as text."""
    return value.isoformat() if isinstance(value, date) else value


Text = Annotated[str, BeforeValidator(text)]
Texts = tuple[Text, ...]


class ColumnTable(Keys, strict=False):
    """``[columns.NAME]``."""

    unit: str = Field("", description="for people")
    range: tuple[StrictFloat, StrictFloat] | None = Field(None, description="lowest and highest valid number")
    codes: Annotated[dict[str, StrictFloat], BeforeValidator(numbered)] = Field(
        {}, description="for a category: its words and their numbers, or a list of its words, which counts from 0"
    )
    ordinal: bool = Field(
        False,
        description="whether the numbers of a category of three or more are an order; else it becomes one-hot, a "
        "feature of 0 and 1 for each",
    )
    words: dict[str, StrictFloat] = Field(
        {}, description='texts among the numbers, and the numbers they stand for: { "> 89" = 90, "<5" = 2.5 }'
    )
    before_index: Literal["", "days", "years"] = Field(
        "", description="for a column of dates: the time from it to `index-date`, in this unit"
    )
    missing: Texts = Field((), description="further texts for a missing value in this column")
    bands: tuple[StrictFloat, ...] = Field((), description="ascending numbers at which subgroups begin")
    mean: StrictFloat | None = Field(
        None,
        description="what is typical, from the literature, say: with differential privacy sites send no moments, and "
        "the inputs are standardised by this and `deviation`, or by `range` or `codes`",
    )
    deviation: StrictFloat | None = Field(None, gt=0, description="the standard deviation to `mean`")


class LabelTable(Keys, strict=False):
    """``[label]``."""

    column: str = Field(description="name of the label column")
    negative: Texts = Field((), description="its texts for a negative")
    positive: Texts = Field((), description="its texts for a positive")
    classes: tuple[Texts, ...] = Field((), description="instead of these two: the texts of each class, from class 0")


class LeaveOutTable(Keys, strict=False):
    """``[[leave-out]]``."""

    column: str = Field(description="of the table; it need not be a feature")
    values: Texts = Field((), description="its texts in rows that are left out; empty text: blank")
    below: StrictFloat = Field(-inf, description="rows with a smaller number are left out")
    above: StrictFloat = Field(inf, description="rows with a larger number are left out")


class StudyFile(Keys, strict=False):
    """The file."""

    name: str = Field("", description="of the study, for people")
    file: str = Field("data.csv", min_length=1, description="name of the table in a hospital's folder, or a pattern")
    delimiter: str = Field("", max_length=1, description="between values; empty: found")
    decimal: Literal["", ".", ","] = Field("", description="within numbers; empty: found")
    encoding: str = Field(
        "", description="of a text file, such as latin-1; empty: UTF-8, UTF-16 or Windows-1252, as found"
    )
    sheet: str = Field("", description="sheet of a workbook; empty: its only one")
    header_row: int = Field(1, ge=1, description="row of a sheet that names the columns")
    header: tuple[str, ...] = Field((), description="names of all columns in their order, for tables without a header")
    missing: Texts = Field(
        MISSING[1:],
        description="texts for a missing value, beside the empty text; a word of a category has precedence",
    )
    patient: str = Field("", description="patient column; empty: none")
    subgroups: tuple[str, ...] = Field(
        (),
        max_length=20,
        description="features whose subgroups the final model is evaluated on: categories, or numbers with bands",
    )
    drop: tuple[str, ...] = Field((), description="columns that are not read, on purpose: they cause no notice")
    one_row: Literal["", "first", "last", "mean", "max"] = Field(
        "",
        description="one row of each patient: the first or last (by `index-date`, if it is a column, else in the "
        "table's order), or the mean or maximum of each feature and the highest class; empty: all rows, which every "
        "split keeps together",
    )
    index_date: Annotated[str, BeforeValidator(day)] = Field(
        "", description="the column of the date to which `before-index` counts, or one date for all rows"
    )
    date_format: str = Field("", description="of dates, as of Python's strptime; empty: YYYY-MM-DD and D.M.YYYY")
    leave_out: tuple[LeaveOutTable, ...] = Field((), description="rules by which rows are left out, and counted")
    label: LabelTable = Field(description="what the label column means")
    columns: dict[str, ColumnTable] = Field(min_length=1, description="the features by column name")
    extract: ExtractTable | None = Field(None, description="how a hospital with a database gets the table")

    def contradictions(self) -> list[str]:
        """Return a line for each contradiction between keys."""
        found = []
        for name, column in self.columns.items():
            if column.range and not column.range[0] < column.range[1]:
                found.append(f"columns.{name}.range = {list(column.range)}: the first number must be below the second")
            if column.range and column.codes:
                found.append(f"columns.{name}: it has range and codes; a category needs no range")
            if column.bands and (column.codes or list(column.bands) != sorted(set(column.bands))):
                found.append(f"columns.{name}.bands = {list(column.bands)}: must be ascending numbers, of no category")
            if (column.mean is None) != (column.deviation is None):
                there, lacks = ("mean", "deviation") if column.deviation is None else ("deviation", "mean")
                found.append(f"columns.{name}.{there}: it needs {lacks} beside it; give both or neither")
            spelt = {(canonical(word), code) for word, code in column.codes.items()}
            if twice := repeated(word for word, _ in spelt):
                found.append(f"columns.{name}.codes: {', '.join(map(repr, twice))} stands for more than one number")
            for key, meant in (("codes", column.codes), ("words", column.words)):
                if both := [text for text in map(canonical, column.missing) if text in map(canonical, meant)]:
                    said = ", ".join(map(repr, both))
                    found.append(f"columns.{name}: {said} is among its {key} and missing: choose one")
            found += self._meaning(name, column)
        found += self._rows()
        found += self._dates()
        for name in self.subgroups:
            if name not in self.columns:
                found.append(f"subgroups: {unknown('feature', name, list(self.columns))}")
            elif not (self.columns[name].codes or self.columns[name].bands):
                found.append(f"subgroups: {name!r} has neither codes nor bands: give it bands, as in bands = [50, 65]")
        if any(separator in self.file for separator in "/\\"):
            found.append(f"file = {self.file!r}: must be a name in the hospital's folder, or a pattern of such names")
        if self.delimiter and self.delimiter in '"\0\n\r ':
            found.append(f"delimiter = {self.delimiter!r}: lines of a table need it; take another")
        if self.encoding and not _is_encoding(self.encoding):
            found.append(f"encoding = {self.encoding!r}: no such encoding; take utf-8, latin-1, cp1252 or utf-16")
        if self.delimiter and self.delimiter == self.decimal:
            found.append(f"delimiter = {self.delimiter!r}: it is also the decimal mark; take another")
        label = self.label
        if bool(label.classes) == bool(label.negative and label.positive):
            found.append("label: name the texts of negative and of positive, or those of all classes")
        texts = [canonical(value) for one in self._classes() for value in one]
        if twice := sorted({value for value in texts if texts.count(value) > 1}):
            found.append(f"label: {', '.join(map(repr, twice))} means more than one class")
        if both := [name for name in (label.column, self.patient) if name in self.columns]:
            found.append(f"columns: {', '.join(map(repr, both))} is the label or the patient column, not a feature")
        if self.patient == label.column:
            found.append(f"patient = {self.patient!r} is the label column: name the column of patients")
        if twice := repeated(self.header):
            found.append(f"header: {', '.join(map(repr, twice))} names more than one column")
        needed = (
            [*self.study().read_columns()] if bool(label.classes) != bool(label.negative and label.positive) else []
        )
        if self.header and (absent := [name for name in needed if name not in self.header]):
            found.append(f"header: it lacks {', '.join(map(repr, absent))}")
        return found + (self.extract.contradictions(list(self.columns)) if self.extract else [])

    def _meaning(self, name: str, column: ColumnTable) -> list[str]:
        """Return the contradictions in how a column becomes numbers."""
        found = []
        if column.ordinal and not column.codes:
            found.append(f"columns.{name}.ordinal: only a category has an order: give it codes")
        if column.words and (column.codes or column.before_index):
            found.append(f"columns.{name}.words: they are for a column of numbers, which has no codes or before-index")
        low, high = column.range or (-inf, inf)
        for word, value in column.words.items():
            if not low <= value <= high:
                found.append(
                    f"columns.{name}.words: {word!r} stands for {value:g}, outside its range {low:g} to {high:g}"
                )
        if column.before_index and column.codes:
            found.append(f"columns.{name}: it has before-index and codes; a date has none")
        if column.before_index and not self.index_date:
            found.append(f"columns.{name}.before-index: set index-date to a column of dates, or to one date")
        return found

    def _rows(self) -> list[str]:
        """Return the contradictions in which columns and rows are read."""
        found = []
        for rule in self.leave_out:
            if not (rule.values or rule.below > -inf or rule.above < inf):
                found.append(
                    f"leave-out: the rule for {rule.column!r} leaves nothing out: give it values, below or above"
                )
            else:
                found += self._leaves_none(rule)
        out = {canonical(text) for rule in self.leave_out if rule.column == self.label.column for text in rule.values}
        for texts in self._classes():
            if texts and {*map(canonical, texts)} <= out:
                said = ", ".join(map(repr, texts))
                found.append(f"leave-out: it leaves no row whose label is {said}: delete one of them from its values")
        needed = [
            *self.columns,
            self.label.column,
            self.patient,
            self.index_date,
            *(one.column for one in self.leave_out),
        ]
        if both := [name for name in dict.fromkeys(self.drop) if name in needed]:
            found.append(f"drop: {', '.join(map(repr, both))} is needed elsewhere in the file: choose one")
        if self.one_row and not self.patient:
            found.append(f"one-row = {self.one_row!r}: name the column of patients, as patient")
        if self.index_date == self.label.column or self.index_date in self.columns:
            found.append(
                f"index-date = {self.index_date!r}: it is the label or a feature, not the date that others count to"
            )
        if fixed := ISO.fullmatch(self.index_date):
            try:
                date(*map(int, fixed.groups()[:3]))
            except ValueError:
                found.append(f"index-date = {self.index_date!r}: there is no such date")
        features = [feature for column in self._columns() for feature in column.features]
        if twice := repeated(features):
            found.append(f"columns: {', '.join(map(repr, twice))} names a column and a word of a category; rename one")
        for column in self._columns():
            if column.one_hot and column.name in self.subgroups and self.one_row in ("mean", "max"):
                found.append(f"subgroups: {column.name!r}: with one-row = {self.one_row!r} a patient may be in several")
        return found

    def _leaves_none(self, rule: LeaveOutTable) -> list[str]:
        """Return why a rule leaves no row that has a number."""
        if rule.above < rule.below:
            text = f"below = {rule.below:g} and above = {rule.above:g} leave no number: below must be the smaller one"
            return [f"leave-out: the rule for {rule.column!r}: {text}"]
        column = self.columns.get(rule.column)
        low, high = (column.range if column else None) or (-inf, inf)
        if rule.below > high or rule.above < low:
            said = f"below = {rule.below:g}" if rule.below > high else f"above = {rule.above:g}"
            text = f"{said} leaves none of its range {low:g} to {high:g}: correct one of them"
            return [f"leave-out: the rule for {rule.column!r}: {text}"]
        return []

    def _dates(self) -> list[str]:
        """Return why a date's format does not say a day."""
        if not self.date_format:
            return []
        day = date(1969, 12, 31)
        try:
            if datetime.strptime(day.strftime(self.date_format), self.date_format).date() == day:
                return []
        except ValueError:
            pass
        return [f'date-format = {self.date_format!r}: it must say year, month and day, as "%d/%m/%Y" does']

    def _classes(self) -> tuple[Texts, ...]:
        return self.label.classes or (self.label.negative, self.label.positive)

    def _columns(self) -> list[Column]:
        return [
            Column(
                name,
                one.unit,
                *(one.range or (-inf, inf)),
                tuple(one.codes.items()),
                one.missing,
                one.bands,
                one.mean,
                one.deviation,
                tuple(one.words.items()),
                not one.ordinal and len(set(one.codes.values())) > 2,
                one.before_index,
            )
            for name, one in self.columns.items()
        ]

    def study(self) -> Study:
        """Return the description by which tables are read."""
        same = self.model_dump(exclude={"name", "label", "columns", "leave_out", "extract"})
        return Study(
            columns=tuple(self._columns()),
            label=self.label.column,
            classes=self._classes(),
            leave_out=tuple(Rule(**one.model_dump()) for one in self.leave_out),
            **same,
        )


def _is_encoding(name: str) -> bool:
    try:
        return bool(codecs.lookup(name)) and isinstance("a".encode(name), bytes)
    except LookupError:
        return False


def parse(file: str, values: Mapping[str, Any]) -> Study:
    """Return the study that a file's content describes; raises as `parse_file` does."""
    return parse_file(file, values).study()


def parse_file(file: str, values: Mapping[str, Any]) -> StudyFile:
    """Return a file's content.

    Raises
    ------
    ConfigError
        Listing everything that is wrong with it.
    """
    content, wrong = StudyFile.checked(values, any_text=True)
    wrong += content.contradictions() if content else []
    if content is None or wrong:
        raise ConfigError(f"study file {file}", wrong)
    return content


@lru_cache(maxsize=4)
def _parsed(file: str, content: bytes) -> tuple[StudyFile, Study]:
    found = parse_file(file, toml_in(content))
    return found, found.study()


def read_study(file: str) -> Study:
    """Read a study file as tables are read by it; ConfigError listing everything that is wrong with it."""
    return _read(file)[1]


def read_study_file(file: str) -> StudyFile:
    """Read a study file with all that it says; raises as `read_study` does."""
    return _read(file)[0]


def _read(file: str) -> tuple[StudyFile, Study]:
    try:
        return _parsed(file, read_file(file, TEXT))
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError("study file", [f"{shorter(file)} cannot be read: {reason(error)}"]) from None
