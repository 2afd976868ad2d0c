"""A site's table: its lines, its labels and its features."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edelweiss.common import CLOSE, LISTED, hint, natural
from edelweiss.common.files import read_file, reason
from edelweiss.common.memory import free_memory
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.labels import as_label, split_names
from edelweiss.datasets.numbers import LARGEST, MISSING, TRUTH, canonical, is_number
from edelweiss.datasets.site.data_warnings import DataWarnings
from edelweiss.datasets.site.formats import text_of
from edelweiss.datasets.site.header import LOOKED_AT, START, no_names, separated, wrong_names
from edelweiss.datasets.source import Ints

if TYPE_CHECKING:
    import pandas as pd


LABEL_PAIRS = (("0", "1"), ("-1", "1"), ("no", "yes"), ("false", "true"))  # negative, positive
_MOST_CLASSES = 1000  # a column with more is one of ids, not of classes
_WHOLE = re.compile("-?[0-9]+")
_ID = re.compile("-?[0-9]{19,20}")  # a whole number of 64 bits, as it is written
_ALLOWED = "0/1, -1/+1, no/yes or false/true"


def read_table(file: Path) -> pd.DataFrame:
    """Read a table as text, see `formats.text_of`; a parquet file with its own types."""
    import pandas as pd

    written_as_text = file.suffix != ".parquet"
    try:
        if written_as_text:
            _check_lines(file, data := text_of(file))
            # As text, because pandas silently turns a column with one bad value into objects.
            frame = pd.read_csv(io.BytesIO(data), dtype=str, keep_default_na=False)
        else:
            frame = _parquet(file, read_file(file))
    except DataError:
        raise
    except Exception as error:  # pandas, Arrow and codecs raise many kinds on a damaged file
        mend = "it must be text separated by commas" if written_as_text else "write it again as a Parquet file"
        text = f"{file} cannot be read: {reason(error)}; {mend}"
        raise DataError(text, f"{file.name} cannot be read") from error
    frame.columns = pd.Index([str(name).strip() for name in frame.columns])
    if len(frame) == 0:
        raise DataError(f"{file} has a header and no rows", f"{file.name} has no rows")
    if problems := [*wrong_names(file, list(frame.columns))]:
        raise DataError.join(problems)
    return frame


def looks_like(data: bytes) -> str:
    """Name the format of a file that is not a text table; empty if it may be one."""
    start = data[:1024].removeprefix(b"\xef\xbb\xbf").lstrip()
    kinds = {
        b"<": "HTML or XML",
        b"{": "JSON",
        b"[": "JSON",
        b"PK\3\4": "a zip file; an Excel workbook is called .xlsx",
        b"\xd0\xcf\x11\xe0": "an old Excel workbook",
        b"PAR1": "a Parquet file",
        b"%PDF": "a PDF file",
    }
    return next((kind for mark, kind in kinds.items() if start.startswith(mark)), "")


def _parquet(file: Path, data: bytes) -> pd.DataFrame:
    """Read a Parquet file; columns that are neither numbers nor text are rejected."""
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
        except ValueError:  # includes UnicodeDecodeError
            text = f"{file}: column {str(name)!r} holds bytes, not text; write numbers, or remove the column"
            problems.append(DataError(text, f"{file.name}: a column holds bytes, not text", key=str(name)))
    if problems:
        raise DataError.join(problems)
    return frame


def _check_lines(file: Path, data: bytes) -> None:
    """Reject what pandas silently repairs: lines of another length, and duplicate column names."""
    if kind := looks_like(data):
        text = f"{file} is {kind}; it must be text separated by commas"
        raise DataError(text, f"{file.name} is {kind}, not a text table")
    with io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline="") as stream:
        lines = csv.reader(stream)
        header, rows, ragged = next(lines, []), list[list[str]](), list[str]()
        for row in lines:
            if row and len(row) != len(header):
                ragged.append(f"line {lines.line_num} has {len(row)}")
            elif row and len(rows) < LOOKED_AT:
                rows.append(row)
    if not header:
        raise DataError(f"{file} is empty; its first line must name the columns", f"{file.name} is empty")
    if form := separated(data[:START].decode("utf-8", "replace"), ","):
        points = " and with decimal points" * form.commas
        raise DataError(
            f"{file}: {form}: save it with commas between the values{points}, or let a study file describe it, with "
            f"{form.keys}",
            f"{file.name}: its values are not separated by commas",
        )
    problems = [*no_names(file, header, rows)]
    if ragged:
        problems.append(
            DataError(
                f"{file}: the header has {len(header)} columns, but {examples(ragged)}; every line needs as "
                "many values as the header, empty where missing",
                f"{file.name}: {len(ragged)} lines do not have as many values as the header",
            )
        )
    problems += wrong_names(file, [name.strip() for name in header])
    if problems:
        raise DataError.join(problems)


def other_ways(labels: Sequence[str], columns: Sequence[str]) -> str:
    """Suggest causes for missing label columns; empty without a clue."""
    with_commas = [name for name in columns if len(parts := split_names(name)) > 1 and {*parts} <= {*labels}]
    if with_commas:
        return f" Write a name that contains a comma in double quotes: label = '{as_label(with_commas[:1])}'."
    numbers = [name for name in columns if is_number(name)]
    first = " Is the first line a patient's instead of the names of the columns? Then insert these above it."
    return first if 2 * len(numbers) > len(columns) else ""


def as_text(column: pd.Series) -> pd.Series:
    """Return a column as stripped text, empty where missing."""
    return column.astype("string").fillna("").str.strip()


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
    values = shown.map(canonical)
    if len(missing := np.flatnonzero(values.isin(MISSING))):
        problems.append(
            DataError(
                f"{file}: label {label!r} is missing in {_at(missing, shown)}; fill it in or remove the rows",
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
                f"file, under [label]: {_as_study(binary)}",
                f"{file.name}: the label has {len(found)} distinct values that are not {allowed}",
                key=label,
                allowed=allowed,
            )
        )
    if problems:
        return np.zeros(0, np.int64), ()
    classes: Ints = np.array([codes[value] for value in values], np.int64)
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


def _as_study(binary: bool) -> str:
    return (
        'for example negative = ["1"] and positive = ["2"]' if binary else 'for example classes = [["1"], ["2"], ["3"]]'
    )


def read_patients(
    frame: pd.DataFrame, file: Path, patient: str, labels: Sequence[str], problems: list[DataError]
) -> list[str]:
    """Return the patient id of each row; errors are added to ``problems``."""
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
        return []
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
    return [str(text) for text in patients]


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
    """Return the features, shape (n, F), NaN where missing; errors go to ``problems``, doubts to ``warnings``."""
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
                    f"{file}: column {name!r} must hold numbers, but has {_at(bad, column)}; write "
                    "numbers with a decimal point, code categories as numbers, leave missing values "
                    "empty, or remove the column",
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
