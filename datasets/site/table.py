"""A site's table: its lines, its labels and its features."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from datasets.errors import DataError, examples
from datasets.numbers import LARGEST
from datasets.source import Ints
from keys import hint, shown
from keys.files import read_file, reason
from keys.memory import free_memory

if TYPE_CHECKING:
    import pandas as pd

    from datasets.site.doubts import Doubts

MISSING = ("", "?", "na", "nan")  # lower case
LABEL_PAIRS = (("0", "1"), ("-1", "1"), ("no", "yes"), ("false", "true"))  # negative, positive
UNNAMED = re.compile(r"Unnamed: \d+|__index_level_\d+__")  # as pandas and Arrow call a column without a name
_MOST_CLASSES = 1000  # more are a column of ids, not of classes
_ALLOWED = "0/1, -1/+1, no/yes or false/true"


def read_table(file: Path) -> pd.DataFrame:
    """Read a table: a CSV file as text, a parquet file with its own types."""
    import pandas as pd

    written_as_text = file.suffix == ".csv"
    try:
        data = read_file(file)
        if written_as_text:
            _check_lines(file, data)
            # Text, because pandas would turn any column with one bad value into objects without a word.
            frame = pd.read_csv(io.BytesIO(data), dtype=str, keep_default_na=False, encoding="utf-8-sig")
        else:
            frame = _parquet(file, data)
    except DataError:
        raise
    except Exception as error:  # of pandas, Arrow and the codecs in a damaged file
        mend = "it must be UTF-8 text separated by commas" if written_as_text else "write it anew, as a Parquet file"
        text = f"{file} cannot be read: {reason(error)}; {mend}"
        raise DataError(text, f"{file.name} cannot be read") from error
    frame.columns = pd.Index([str(name).strip() for name in frame.columns])
    if len(frame) == 0:
        raise DataError(f"{file} has a header and no rows", f"{file.name} has no rows")
    if problems := [*wrong_names(file, list(frame.columns))]:
        raise DataError.join(problems)
    return frame


def looks_like(data: bytes) -> str:
    """Say what a file is that was given the name of a table; empty if it may be one."""
    start = data[:1024].removeprefix(b"\xef\xbb\xbf").lstrip()
    kinds = {b"<": "HTML or XML", b"{": "JSON", b"[": "JSON", b"PK\3\4": "a zip file, such as an Excel workbook",
             b"\xd0\xcf\x11\xe0": "an old Excel workbook", b"PAR1": "a Parquet file", b"\x1f\x8b": "packed with gzip",
             b"%PDF": "a PDF file", b"\xff\xfe": "UTF-16 text", b"\xfe\xff": "UTF-16 text"}  # fmt: skip
    return next((kind for mark, kind in kinds.items() if start.startswith(mark)), "")


def _parquet(file: Path, data: bytes) -> pd.DataFrame:
    """Read a Parquet file; what is neither numbers nor text in it is refused by column."""
    from pyarrow import parquet

    found = parquet.ParquetFile(io.BytesIO(data))
    need, free = 8 * found.metadata.num_rows * found.metadata.num_columns, free_memory()
    if need > free:
        text = f"its values take {need / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB of memory are free"
        raise ValueError(text)
    frame: pd.DataFrame = found.read().to_pandas()
    problems = []
    for place, name in enumerate(frame.columns):
        try:
            as_text(frame.iloc[:, place])
        except ValueError:  # that of Unicode is one
            text = f"{file}: column {str(name)!r} holds bytes that are no text; write numbers, or remove the column"
            problems.append(DataError(text, f"{file.name}: a column holds bytes that are no text"))
    if problems:
        raise DataError.join(problems)
    return frame


def wrong_names(file: Path, names: Sequence[str]) -> Iterator[DataError]:
    """Yield what is wrong with the names of the columns."""
    if twice := [name for name, count in Counter(names).items() if count > 1 and name]:
        listed = examples([shown(name) for name in twice])
        text = f"{file}: {listed} names more than one column; rename them"
        yield DataError(text, f"{file.name}: {len(twice)} names are those of more than one column")
    if bare := [str(place) for place, name in enumerate(names, 1) if not name or UNNAMED.fullmatch(name)]:
        yield DataError(
            f"{file}: column {examples(bare)} has no name, as the row numbers that pandas writes: remove it "
            "(to_csv(..., index=False)), or name it",
            f"{file.name}: {len(bare)} columns have no name",
        )
    if odd := [shown(name) for name in names if not name.isprintable()]:
        text = f"{file}: the names of columns {examples(odd)} cannot be printed; rename them"
        yield DataError(text, f"{file.name}: {len(odd)} names of columns cannot be printed")


def _check_lines(file: Path, data: bytes) -> None:
    """Refuse what pandas would mend in silence: lines of another length, and columns of the same name."""
    if kind := looks_like(data):
        text = f"{file} is {kind}; it must be UTF-8 text separated by commas"
        raise DataError(text, f"{file.name} is {kind}, and no table in text")
    with io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="") as stream:
        lines = csv.reader(stream)
        header = next(lines, [])
        ragged = [f"line {lines.line_num} has {len(f)}" for f in lines if f and len(f) != len(header)]
    if not header:
        raise DataError(f"{file} is empty; its first line must name the columns", f"{file.name} is empty")
    problems = []
    if holds_values(header):
        problems.append(
            DataError(
                f"{file}: the first line seems to hold values and not the names of the columns, for numbers are among "
                "them; put a line with the names before it",
                f"{file.name}: the first line seems to hold values, not the names of the columns",
            )
        )
    if ragged:
        problems.append(
            DataError(
                f"{file}: the header has {len(header)} columns, but {examples(ragged)}; every line needs as "
                "many values as the header, empty where missing",
                f"{file.name}: {len(ragged)} lines have another number of values than the header",
            )
        )
    problems += wrong_names(file, [name.strip() for name in header])
    if problems:
        raise DataError.join(problems)


def holds_values(header: Sequence[str]) -> bool:
    """Whether a first line is a patient's and not the header: names that are numbers, unless they count the columns."""
    numbers = [name.strip() for name in header if _is_number(name)]
    return bool(numbers) and not any(numbers == [str(i + first) for i in range(len(numbers))] for first in (0, 1))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def as_text(column: pd.Series) -> pd.Series:
    """Return a column as stripped text, empty where missing."""
    return column.astype("string").fillna("").str.strip()


def _at(rows: Iterable[int], values: pd.Series) -> str:
    return examples([f"row {row + 1} ({str(values.iloc[row])!r})" for row in rows])


def read_labels(
    frame: pd.DataFrame, file: Path, label: str, binary: bool, problems: list[DataError]
) -> tuple[Ints, int]:
    """Classes of the rows and how many classes there are; what is wrong goes to the problems."""
    if label not in frame.columns:
        columns = [str(name) for name in frame.columns]
        semicolons = " The file seems to be separated by semicolons: use commas." if ";" in columns[0] else ""
        # Raised at once: the other columns cannot be judged while one of them may be the label.
        raise DataError(
            f"{file}: no label column {label!r}; columns: {', '.join(columns)}.{semicolons}{hint(label, columns)}",
            f"{file.name}: the label column is not among its {len(columns)} columns",
        )
    shown = as_text(frame[label])
    values = shown.map(canonical)
    if len(missing := np.flatnonzero(values.isin(MISSING))):
        problems.append(
            DataError(
                f"{file}: label {label!r} is missing in {_at(missing, shown)}; fill it in or remove the rows",
                f"{file.name}: the label is missing in {len(missing)} rows",
            )
        )
    found = Counter(values[~values.isin(MISSING)])
    allowed, codes = _ALLOWED, dict[str, int]()
    if binary:
        pair = next((pair for pair in LABEL_PAIRS if found.keys() <= set(pair)), ())
        codes = {name: code for code, name in enumerate(pair)}
    else:
        allowed = f"class numbers from 0 to {_MOST_CLASSES - 1}"
        if all(name.isdecimal() and int(name) < _MOST_CLASSES for name in found):
            codes = {name: int(name) for name in found}
    if found and not codes:
        listed = examples([f"{name!r} ({count} rows)" for name, count in found.most_common()])
        problems.append(
            DataError(
                f"{file}: label {label!r} has the values {listed}; allowed: {allowed}",
                f"{file.name}: the label has {len(found)} different values that are not {allowed}",
            )
        )
    if problems:
        return np.zeros(0, np.int64), 0
    classes: Ints = np.array([codes[value] for value in values], np.int64)
    return classes, 2 if binary else max(codes.values()) + 1


def canonical(value: str) -> str:
    """One spelling of a label: lower case, and whole numbers without sign, point or zeros to no effect."""
    try:
        return str(int(number)) if (number := float(value)).is_integer() else value.lower()
    except ValueError:
        return value.lower()


def read_patients(
    frame: pd.DataFrame, file: Path, patient: str, labels: Sequence[str], problems: list[DataError]
) -> list[str]:
    """Whose each row is, as the patient column says; what is wrong goes to the problems."""
    if patient not in frame.columns or patient in labels:
        columns = [str(name) for name in frame.columns if name not in labels]
        problems.append(
            DataError(
                f"{file}: no patient column {patient!r}; columns: {', '.join(columns)}.{hint(patient, columns)}",
                f"{file.name}: the patient column is not among its columns",
            )
        )
        return []
    patients = as_text(frame[patient])
    if len(missing := np.flatnonzero(patients == "")):
        rows = examples([f"row {row + 1}" for row in missing])
        problems.append(
            DataError(
                f"{file}: patient {patient!r} is missing in {rows}; fill it in or remove the rows",
                f"{file.name}: the patient is missing in {len(missing)} rows",
            )
        )
    return [str(text) for text in patients]


def numbers_in(column: pd.Series) -> tuple[pd.Series, NDArray[np.float64], Ints]:
    """Return a column as it was judged, its numbers, NaN where missing, and the places of what is no number."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return column, column.to_numpy(np.float64, na_value=np.nan, copy=True), np.zeros(0, np.int64)
    column = as_text(column)
    missing = column.str.lower().isin(MISSING).to_numpy(np.bool_)
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    return column, numbers, np.flatnonzero(np.isnan(numbers) & ~missing)


def read_numbers(
    frame: pd.DataFrame, file: Path, features: tuple[str, ...], doubts: Doubts, problems: list[DataError]
) -> NDArray[np.float32]:
    """Feature columns as one array, NaN where missing; what is wrong, or may be, goes to the problems and doubts."""
    inputs = np.empty((len(frame), len(features)), np.float32)
    if not features:
        problems.append(
            DataError(f"{file} has no feature column beside the label", f"{file.name} has no feature column")
        )
    for index, name in enumerate(features):
        column, numbers, bad = numbers_in(frame[name])
        if len(bad):
            problems.append(
                DataError(
                    f"{file}: column {name!r} must hold numbers, but has {_at(bad, column)}; write "
                    "numbers with a decimal point, code categories as numbers, leave missing values "
                    "empty, or remove the column",
                    f"{file.name}: a column has {len(bad)} values that are not numbers",
                )
            )
        if len(large := np.flatnonzero(np.abs(numbers) > LARGEST)):
            problems.append(
                DataError(
                    f"{file}: column {name!r} must be within +-{LARGEST:g}, but has {_at(large, column)}; leave the "
                    "value empty if it is missing",
                    f"{file.name}: a column has {len(large)} values that are infinite or beyond {LARGEST:g}",
                )
            )
            numbers[large] = np.nan
        inputs[:, index] = numbers
        doubts.column(name, numbers)
    if features and not problems and np.isnan(inputs).all():
        text = "no feature column holds any value"
        problems.append(DataError(f"{file}: {text}; fill them in", f"{file.name}: {text}"))
    return inputs
