"""A site's table: its lines, its labels and its features."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edelweiss.common import CLOSE, LISTED, hint, natural
from edelweiss.common.files import read_file, reason
from edelweiss.common.memory import collecting_rarely, free_memory
from edelweiss.common.overrides import toml_value
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.labels import as_label, split_names
from edelweiss.datasets.numbers import DATE, LARGEST, MISSING, NEGATIVE, TRUTH, canonical, is_number
from edelweiss.datasets.patient_ids import is_rounded, patient_key
from edelweiss.datasets.site.columns import names_an_id
from edelweiss.datasets.site.data_warnings import DataWarnings
from edelweiss.datasets.site.formats import FOUND, lines_of, looks_like
from edelweiss.datasets.site.header import LOOKED_AT, no_names, title_above, wrong_names
from edelweiss.datasets.source import Ints

if TYPE_CHECKING:
    import pandas as pd


LABEL_PAIRS = (("0", "1"), ("-1", "1"), ("no", "yes"), ("false", "true"))  # negative, positive
_MOST_CLASSES = 1000  # a column with more is one of ids, not of classes
_WHOLE = re.compile("-?[0-9]+")
_COMMAS = re.compile("[+-]?[0-9]+,[0-9]+")
_ID = re.compile("-?[0-9]{19,20}")  # a whole number of 64 bits, as it is written
CELLS = 2**18  # of a part that is read at a time
EXACT = 2.0**53  # up to which a float64 holds whole numbers
WORDS = {**dict.fromkeys(MISSING, nan), **TRUTH}
_ALLOWED = "0/1, -1/+1, no/yes or false/true"


def read_table(file: Path, texts: Collection[str] | None = None) -> pd.DataFrame:
    """Read a table, a part at a time, see `formats.lines_of`.

    Parameters
    ----------
    file
        A Parquet file is read with its own types.
    texts
        Columns that stay text, as they are written; None: all. The others are numbers, NaN where missing, if they hold
        nothing else; ``texts`` themselves need not exist.

    Raises
    ------
    DataError
        With all problems.
    """
    import pandas as pd

    written_as_text = file.suffix != ".parquet"
    try:
        frame = _in_parts(file, texts) if written_as_text else _parquet(file, read_file(file))
    except DataError:
        raise
    except Exception as error:  # pandas, Arrow and codecs raise many kinds on a damaged file
        mend = (
            "it must be text, separated by commas, semicolons, tabs or bars"
            if written_as_text
            else "write it again as a Parquet file"
        )
        text = f"{file} cannot be read: {reason(error)}; {mend}"
        raise DataError(text, f"{file.name} cannot be read") from error
    frame.columns = pd.Index([str(name).strip() for name in frame.columns])
    if len(frame) == 0:
        raise DataError(f"{file} has a header and no rows", f"{file.name} has no rows")
    if problems := [*wrong_names(file, list(frame.columns))]:
        raise DataError.join(problems)
    return frame


def _parquet(file: Path, data: bytes) -> pd.DataFrame:
    """Read a Parquet file; columns that are neither numbers nor text are rejected."""
    from pandas.api.types import is_numeric_dtype
    from pyarrow import parquet

    found = parquet.ParquetFile(io.BytesIO(data))
    need, free = 8 * found.metadata.num_rows * found.metadata.num_columns, free_memory()
    if need > free:
        text = f"its values take {need / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB of memory are free"
        raise ValueError(text)
    frame: pd.DataFrame = found.read().to_pandas(ignore_metadata=True)  # which would make an index of columns
    problems = []
    for place, name in enumerate(frame.columns):
        if is_numeric_dtype(column := frame.iloc[:, place]):
            continue
        try:
            as_text(column)
        except ValueError:  # includes UnicodeDecodeError
            text = f"{file}: column {str(name)!r} holds bytes, not text; write numbers, or remove the column"
            problems.append(DataError(text, f"{file.name}: a column holds bytes, not text", key=str(name)))
    if problems:
        raise DataError.join(problems)
    return frame


def _in_parts(file: Path, texts: Collection[str] | None) -> pd.DataFrame:
    """Read a table other than Parquet; reject lines of another length, and duplicate column names."""
    import pandas as pd

    with collecting_rarely(), lines_of(file) as table:
        if kind := looks_like(table.start.encode()):
            text = f"{file} is {kind}; it must be text, separated by commas, semicolons, tabs or bars"
            raise DataError(text, f"{file.name} is {kind}, not a text table")
        _, header = next(table.rows, (0, []))
        if not header:
            raise DataError(f"{file} is empty; its first line must name the columns", f"{file.name} is empty")
        names = [name.strip() for name in header]
        wrong, ragged, looked_at = [*wrong_names(file, names)], list[str](), list[list[str]]()
        first: list[tuple[int, list[str]]] = []
        columns = [_Cells(texts is None or name in texts) for name in names]
        while part := list(islice(table.rows, max(1, CELLS // len(names)))):
            first += part[: LOOKED_AT - len(first)]
            rows = [row for _, row in part if len(row) == len(names)]
            if len(rows) < len(part):
                odd = ((number, len(row)) for number, row in part if len(row) not in (0, len(names)))
                ragged += [f"line {number} has {count}" for number, count in odd]
            looked_at += rows[: LOOKED_AT - len(looked_at)]
            if not (wrong or ragged):  # else nobody asks for the values
                for column, cells in zip(columns, zip(*rows, strict=True), strict=False):
                    column.add(cells)
    if (wrong or ragged) and (title := title_above(file, header, first)):
        raise title
    problems = [*no_names(file, header, looked_at)]
    if ragged:
        problems.append(
            DataError(
                f"{file}: the header has {len(header)} columns, but {examples(ragged)}; every line needs as "
                "many values as the header, empty where missing",
                f"{file.name}: {len(ragged)} lines do not have as many values as the header",
            )
        )
    if problems := [*problems, *wrong]:
        raise DataError.join(problems)
    # Without a copy, for that would join all columns of numbers into one block beside them.
    frame = pd.DataFrame({name: column.whole() for name, column in zip(names, columns, strict=True)}, copy=False)
    frame.attrs[FOUND] = table.found
    return frame


class _Cells:
    """A column while it is read: numbers as long as it holds nothing else, then text."""

    def __init__(self, text: bool) -> None:
        self._text, self._parts = text, list[Any]()

    def add(self, cells: Sequence[str]) -> None:
        """Add the next cells."""
        import pandas as pd

        if not self._text and (numbers := as_numbers(cells)) is not None:
            self._parts.append(numbers)
            return
        if not self._text:
            self._text = True
            self._parts = [pd.array(list(map(_written, part.tolist())), dtype="str") for part in self._parts]
        self._parts.append(pd.array(cells, dtype="str"))

    def whole(self) -> Any:
        """Return all cells, for which the parts are given up."""
        import pandas as pd

        parts, self._parts = self._parts, []
        if self._text:
            return pd.concat([pd.Series([], dtype="str"), *map(pd.Series, parts)], ignore_index=True).array
        return np.concatenate(parts) if parts else np.zeros(0)


def as_numbers(cells: Sequence[str], words: Mapping[str, float] = WORDS) -> NDArray[np.float64] | None:
    """Return cells as numbers, NaN where missing; None if any is something else, or a number that is not exact.

    ``words`` are texts in lower case, and the numbers that they stand for.
    """
    if not (said := "".join(cells)).isascii() or "_" in said:  # digits of other scripts, or Python's 1_000
        return None

    def number(cell: str) -> float:
        if (known := words.get(cell)) is None and (known := words.get(cell.strip().lower())) is None:
            known = float(cell)
            if isnan(known):
                raise ValueError(f"{cell!r} is not a number")
        return known

    try:
        found = np.array(list(map(float, cells)))
        if np.isnan(found).any():  # Python's float takes words such as -nan
            found = np.array(list(map(number, cells)))
    except ValueError:
        try:
            found = np.array(list(map(number, cells)))
        except ValueError:
            return None
    return None if (np.abs(found) > EXACT).any() else found


def _written(number: float) -> str:
    return "" if isnan(number) else str(int(number)) if number.is_integer() else repr(number)


def other_ways(labels: Sequence[str], columns: Sequence[str]) -> str:
    """Suggest causes for missing label columns; empty without a clue."""
    with_commas = [name for name in columns if len(parts := split_names(name)) > 1 and {*parts} <= {*labels}]
    if with_commas:
        return f" Write a name that contains a comma in double quotes: label = '{as_label(with_commas[:1])}'."
    numbers = [name for name in columns if is_number(name)]
    if len(columns) == 1:
        return " There is one column: values must be separated by commas, semicolons, tabs or bars."
    first = " Is the first line a patient's instead of the names of the columns? Then insert these above it."
    return first if 2 * len(numbers) > len(columns) else ""


def as_text(column: pd.Series) -> pd.Series:
    """Return a column as stripped text, empty where missing."""
    return column.astype("string").fillna("").str.strip()


def mapped(texts: pd.Series, function: Callable[[str], str]) -> pd.Series:
    """Return a function of each text, called once for equal ones."""
    import pandas as pd

    place, different = pd.factorize(texts)
    return pd.Series(np.array([*map(function, different)], object)[place], texts.index, dtype=object)


def _at(rows: Iterable[int], values: pd.Series) -> str:
    return examples([f"row {values.index[row] + 1} ({str(values.iloc[row])!r})" for row in rows])


def read_labels(
    frame: pd.DataFrame, file: Path, label: str, binary: bool, problems: list[DataError], maps: bool = False
) -> tuple[Ints, tuple[str, ...]]:
    """Return the class of each row and the value that means each class; errors are added to ``problems``.

    If this file is the only one (``maps``), values that do not count the classes from 0 without a gap are mapped in
    their order; one of several hospitals may lack a class.
    """
    if label not in frame.columns:
        columns = [str(name) for name in frame.columns]
        text = (
            f"{file}: no label column {label!r}: set label to the name of one of its columns, which are "
            f"{examples(columns, LISTED)}.{hint(label, columns, CLOSE)}{other_ways((label,), columns)}"
        )
        public = f"{file.name}: the label column is not among its {len(columns)} columns"
        raise DataError.join([DataError(text, public, key="label", value=label), *beside_labels(frame, file)])
    shown = as_text(frame[label])
    values = mapped(shown, canonical)
    if len(missing := np.flatnonzero(values.isin(MISSING))):
        problems.append(
            DataError(
                f"{file}: label {label!r} is missing in {_at(missing, shown)}; fill it in, or leave the rows out, in a "
                f'study file by [[leave-out]] column = {toml_value(label)}, values = [""]',
                f"{file.name}: the label is missing in {len(missing)} rows",
                key=label,
                row=int(missing[0]) + 1,
            )
        )
    found = Counter(values[~values.isin(MISSING)])
    allowed, codes = _ALLOWED, dict[str, int]()
    if binary:
        pair = next((pair for pair in LABEL_PAIRS if found.keys() <= set(pair)), ())
        codes = {name: code for code, name in enumerate(pair)}
    else:
        allowed = f"class numbers from 0 to {_MOST_CLASSES - 1}"
        if all(re.fullmatch("[0-9]{1,3}", name) for name in found):
            codes = {name: int(name) for name in found}
        if maps and sorted(codes.values()) != [*range(len(found))]:
            allowed, codes = f"whole numbers or words, at most {_MOST_CLASSES:,} distinct ones", in_order(found)
    if found and not codes:
        listed = examples([f"{name!r} ({count} rows)" for name, count in found.most_common()])
        problems.append(
            DataError(
                f"{file}: label {label!r} has the values {listed}; allowed: {allowed}. Or map other values in a study "
                f"file, under [label]: {as_study(label, found, binary)}",
                f"{file.name}: the label has {len(found)} distinct values that are not {allowed}",
                key=label,
                allowed=allowed,
            )
        )
    if problems:
        return np.zeros(0, np.int64), ()
    classes: Ints = values.map(codes).to_numpy(np.int64).astype(np.int64, copy=False)
    said = {code: name for name, code in codes.items()}
    return classes, tuple(said.get(code, str(code)) for code in range(2 if binary else max(said) + 1))


def in_order(values: Iterable[str]) -> dict[str, int]:
    """Number classes from 0: whole numbers ascending, then words; empty if there are other numbers or too many."""
    whole, others = set[str](), set[str]()
    for value in values:
        (whole if _WHOLE.fullmatch(value) else others).add(value)
    if len(whole) + len(others) > _MOST_CLASSES or any(map(is_number, others)):
        return {}
    return {name: code for code, name in enumerate([*sorted(whole, key=int), *sorted(others, key=natural)])}


def _negative_first(words: Sequence[str]) -> list[str]:
    return sorted(words, key=lambda word: word.lower() not in NEGATIVE)


def as_study(label: str, found: Mapping[str, int], binary: bool = True) -> str:
    """Return lines of a study file that say which of a label's values, with their numbers of rows, mean what."""
    said = [toml_value(name) for name in _negative_first(sorted(found, key=lambda name: -found[name]))]
    if not binary:
        return f"for example classes = [{', '.join(f'[{name}]' for name in said[:LISTED])}]"
    said += ["..."] * (2 - len(said))
    pair = f"for example negative = [{said[0]}] and positive = [{said[1]}]"
    if len(found) < 3:
        return pair
    return f"{pair}; or leave rows out by [[leave-out]] column = {toml_value(label)}, values = [{said[2]}]"


def read_patients(
    frame: pd.DataFrame, file: Path, patient: str, labels: Sequence[str], problems: list[DataError]
) -> pd.Series | None:
    """Return the patient of each row, see `patient_key`; errors are added to ``problems``."""
    if patient not in frame.columns or patient in labels:
        columns = [str(name) for name in frame.columns if name not in labels]
        problems.append(
            DataError(
                f"{file}: no patient column {patient!r}; columns: {', '.join(columns)}.{hint(patient, columns, CLOSE)}",
                f"{file.name}: the patient column is not among its columns",
                key="patient",
                value=patient,
            )
        )
        return None
    patients = as_text(frame[patient])
    if len(missing := np.flatnonzero(patients.str.lower().isin(MISSING))):
        rows = examples([f"row {patients.index[int(row)] + 1}" for row in missing])
        problems.append(
            DataError(
                f"{file}: patient {patient!r} is missing in {rows}; fill it in or remove the rows",
                f"{file.name}: the patient is missing in {len(missing)} rows",
                key=patient,
                row=int(missing[0]) + 1,
            )
        )
    if rounded := np.flatnonzero(patients.isin([*filter(is_rounded, patients.unique())])).tolist():
        problems.append(
            DataError(
                f"{file}: patient {patient!r}: {_at(rounded, patients)}: a spreadsheet or a column of floats has "
                "rounded these, so several patients may be one: export the column as text, or as whole numbers",
                f"{file.name}: the patient is rounded in {len(rounded)} rows",
                key=patient,
                row=rounded[0] + 1,
            )
        )
    return mapped(patients, patient_key)


def numbers_in(column: pd.Series) -> tuple[pd.Series, NDArray[np.float64], Ints]:
    """Return a column as checked, its numbers (NaN where missing), and the places of values that are not numbers."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return column, column.to_numpy(np.float64, na_value=np.nan, copy=True), np.zeros(0, np.int64)
    column = as_text(column)
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan, copy=True)
    words = np.flatnonzero(np.isnan(numbers))
    lower = column.iloc[words].str.lower()
    numbers[words] = lower.map(TRUTH).to_numpy(np.float64, na_value=np.nan)
    return column, numbers, words[~lower.isin([*MISSING, *TRUTH]).to_numpy(np.bool_)]


def _mend(name: str, column: pd.Series, bad: Ints) -> str:
    """Return what makes numbers of the texts of a column, or the lines of a study file by which they are read."""
    texts, there = column.iloc[bad], int((~column.str.lower().isin(MISSING)).sum())
    words = list(dict.fromkeys(texts))
    some, key = ", ".join(map(toml_value, words[:3])), f"under [columns.{toml_value(name)}]"
    drop = f"or drop = [{toml_value(name)}]"
    if name == "path":
        return "a list of images must be called labels.csv"
    if names_an_id(name):
        return f"in a study file say patient = {toml_value(name)} if it identifies patients, {drop}"
    if 2 * sum(map(bool, map(DATE.match, texts))) > there:
        return f'in a study file say {key} before-index = "years" and give index-date, {drop}'
    if all(_COMMAS.fullmatch(word) for word in words):
        return (
            'write numbers with a decimal point or, if the comma is a decimal mark, say decimal = "," in a study file'
        )
    if all(word[0].isdigit() and word[-1] not in ".0123456789" for word in words) and 2 * len(bad) > there:
        return "write the number alone, without its unit"
    if 2 * len(bad) < there:
        return f"in a study file say {key} missing = [{some}] or words = {{ {toml_value(words[0])} = NUMBER }}"
    if len(words) > LISTED or 2 * len(words) > there:
        return f"write numbers with a decimal point, or in a study file say drop = [{toml_value(name)}]"
    return f"in a study file say {key} codes = [{', '.join(map(toml_value, _negative_first(sorted(words))))}], {drop}"


def beside_labels(frame: pd.DataFrame, file: Path) -> list[DataError]:
    """Return the problems of numeric columns in a table that lacks its label column, which may be any other."""
    problems: list[DataError] = []
    found = {str(name): numbers_in(frame[name]) for name in frame.columns}
    judged = tuple(name for name, (_, numbers, bad) in found.items() if np.isfinite(numbers).sum() > len(bad))
    if judged:
        read_numbers(frame, file, judged, DataWarnings(file, np.zeros(len(frame), np.int64)), problems)
    return problems


def read_numbers(
    frame: pd.DataFrame,
    file: Path,
    features: tuple[str, ...],
    warnings: DataWarnings,
    problems: list[DataError],
    indicators: Collection[str] = (),
) -> NDArray[np.float32]:
    """Return the features, shape (n, F), NaN where missing; errors go to ``problems``."""
    inputs = np.empty((len(frame), len(features)), np.float32)
    if not features:
        problems.append(
            DataError(f"{file} has no feature column, only the label", f"{file.name} has no feature column")
        )
    for index, name in enumerate(features):
        column, numbers, bad = numbers_in(frame[name])
        if len(bad):
            problems.append(
                DataError(
                    f"{file}: column {name!r} must hold numbers, but has {_at(bad, column)}; "
                    f"{_mend(name, column, bad)}",
                    f"{file.name}: a column has {len(bad)} values that are not numbers",
                    key=name,
                    row=int(bad[0]) + 1,
                )
            )
        if len(large := np.flatnonzero(np.abs(numbers) > LARGEST)):
            mend = "leave the value empty if it is missing"
            if all(_ID.fullmatch(str(value)) for value in column.iloc[large]):
                mend = "these are identifiers: remove the column, or name it as patient if they are the patients'"
            problems.append(
                DataError(
                    f"{file}: column {name!r} must be within +-{LARGEST:g}, but has {_at(large, column)}; {mend}",
                    f"{file.name}: a column has {len(large)} values that are infinite or beyond {LARGEST:g}",
                    key=name,
                    row=int(large[0]) + 1,
                )
            )
            numbers[large] = np.nan
        inputs[:, index] = numbers
        warnings.column(name, numbers, indicator=name in indicators)
    if features and not problems and np.isnan(inputs).all():
        text = "no feature column holds any value"
        problems.append(DataError(f"{file}: {text}; fill them in", f"{file.name}: {text}"))
    return inputs
