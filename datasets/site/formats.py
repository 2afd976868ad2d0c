"""The files in which hospitals have tables, each turned into what the readers take: UTF-8 text, a line for each row.

Text may be packed with gzip and be in UTF-8, UTF-16 or Windows' Western code page. Of a workbook (Excel) one sheet is
read, of a file of Stata, SAS or SPSS its values and not their labels. Parquet files keep their types and are read
elsewhere, but by a study file, which reads texts.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edelweiss.common.files import read_file, reason
from edelweiss.common.memory import free_memory
from edelweiss.datasets.errors import DataError, examples

if TYPE_CHECKING:
    import pandas as pd

GZIP = b"\x1f\x8b"
PART = 2**20  # bytes looked at at a time
MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
WESTERN = "cp1252"  # what Windows calls ANSI; Latin-1 has the same letters
NAMES = {"utf-8-sig": "UTF-8", "utf-16": "UTF-16", WESTERN: "Windows-1252"}
CONVERT = {  # what nothing here reads, and the command that converts it
    ".rds": "Rscript -e \"write.csv(readRDS('{0}'), 'data.csv', row.names = FALSE)\"",
    ".rda": "Rscript -e \"write.csv(get(load('{0}')), 'data.csv', row.names = FALSE)\"",
    ".rdata": "Rscript -e \"write.csv(get(load('{0}')), 'data.csv', row.names = FALSE)\"",
    ".arff": 'python -c "from scipy.io import arff; import pandas; '
    "pandas.DataFrame(arff.loadarff('{0}')[0]).to_csv('data.csv', index=False)\"",
    ".xls": "soffice --headless --convert-to xlsx {0}",
}


@dataclass(frozen=True)
class Form:
    """How a hospital's file is written; a study file may say so."""

    delimiter: str = ","
    decimal: str = "."
    encoding: str = ""  # empty: found
    sheet: str = ""  # of a workbook; empty: its only one
    header_row: int = 1  # of a sheet: the row with the names of the columns


def text_of(file: Path, form: Form | None = None) -> bytes:
    """Return a table as UTF-8 text with the form's delimiter and decimal mark.

    Raises
    ------
    DataError
        If the file is of a kind that nothing here reads, is damaged, or does not fit the form.
    """
    form = form or Form()
    if command := CONVERT.get(file.suffix.lower()):
        text = f"{file} is a {file.suffix} file, which is not read: convert it, with {command.format(file.name)}"
        raise DataError(text, f"{file.name} is a {file.suffix} file, which is not read")
    reader = READERS.get(file.suffix.lower())
    try:
        return _written(reader(file, form), form) if reader else _decoded(file, _unpacked(read_file(file)), form)[0]
    except DataError:
        raise
    except ImportError as error:
        raise DataError(
            f"{file} cannot be read: {error.name} is missing; install it with pip install 'edelweiss[spss]', or save "
            "the table as CSV",
            f"{file.name} cannot be read: a package is missing",
        ) from None
    except Exception as error:  # the readers raise many kinds on a damaged file
        raise DataError(
            f"{file} cannot be read: {reason(error)}; write it again, or as CSV", f"{file.name} cannot be read"
        ) from error


def stream_of(file: Path, form: Form | None = None) -> io.TextIOWrapper:
    """Open a table as text, a part at a time where the file is UTF-8 already; see `text_of`."""
    if file.suffix.lower() not in READERS and not (form and form.encoding) and _is_utf8(file):
        return file.open("r", encoding="utf-8-sig", newline="")
    return io.TextIOWrapper(io.BytesIO(text_of(file, form)), encoding="utf-8", newline="")


def _is_utf8(file: Path) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with file.open("rb") as stream:
            while part := stream.read(PART):
                decoder.decode(part)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def encoding_of(file: Path) -> str:
    """Return in which encoding a file of text is, as people call it; empty for another kind of file."""
    if file.suffix.lower() in {*READERS, ".parquet"}:
        return ""
    try:
        encoding = _decoded(file, _unpacked(read_file(file)), Form())[1]
    except (OSError, ValueError, EOFError, zlib.error):
        return ""
    return NAMES[encoding]


# ---------------------------------------------------------------------- text


def _unpacked(data: bytes) -> bytes:
    """Unpack gzip; anything else is returned unchanged."""
    if not data.startswith(GZIP):
        return data
    most = free_memory() // 4
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
        found = packed.read(most + 1)
    if len(found) > most:
        raise ValueError(f"unpacked it takes more than {most / 1e9:,.1f} GB, a quarter of the free memory")
    return found


def _decoded(file: Path, data: bytes, form: Form) -> tuple[bytes, str]:
    """Return text as UTF-8 without a mark, and the encoding that it was in."""
    encoding = form.encoding or next((name for mark, name in MARKS.items() if data.startswith(mark)), "")
    if encoding in ("", "utf-8-sig"):
        try:
            data.decode("utf-8-sig")
        except UnicodeDecodeError:
            encoding = WESTERN
        else:
            return data.removeprefix(b"\xef\xbb\xbf"), "utf-8-sig"
    try:
        return data.decode(encoding).encode(), encoding
    except (UnicodeError, LookupError) as error:
        raise DataError(
            f"{file} is not text in {NAMES.get(encoding, encoding)} ({error}): save it as UTF-8, or name its encoding "
            "in a study file",
            f"{file.name} is not text in a known encoding",
        ) from None


# ---------------------------------------------------------------------- other files


def _workbook(file: Path, form: Form) -> Iterator[list[Any]]:
    """Yield the rows of a sheet from its header on."""
    import openpyxl

    book = openpyxl.load_workbook(file, data_only=True)
    sheets = {sheet.title: sheet for sheet in book.worksheets}
    if form.sheet not in (sheets if form.sheet or len(sheets) > 1 else ("",)):
        what = f"has no sheet {form.sheet!r}" if form.sheet else f"has {len(sheets)} sheets"
        text = f"{file} {what}: name one in a study file, sheet = one of {', '.join(map(repr, sheets))}"
        raise DataError(text, f"{file.name}: the sheet is not named, or not there", key="sheet", value=form.sheet)
    sheet = sheets[form.sheet] if form.sheet else next(iter(sheets.values()))
    if merged := [str(cells) for cells in sheet.merged_cells.ranges if cells.max_row >= form.header_row]:
        text = f"{file}: cells {examples(merged)} of sheet {sheet.title!r} are merged: unmerge them and fill in each"
        raise DataError(text, f"{file.name}: {len(merged)} groups of cells are merged")
    rows = [list(row) for row in sheet.iter_rows(min_row=form.header_row, values_only=True)]
    while rows and not any(value is not None for value in rows[-1]):
        rows.pop()
    width = max((place for row in rows for place, value in enumerate(row, 1) if value is not None), default=0)
    yield from (row[:width] for row in rows)


def _frame(read: Callable[[Path], pd.DataFrame]) -> Callable[[Path, Form], Iterator[list[Any]]]:
    def rows(file: Path, _: Form) -> Iterator[list[Any]]:
        frame = read(file)
        yield [str(name) for name in frame.columns]
        missing = frame.isna().to_numpy()
        for row, gone in zip(frame.itertuples(index=False, name=None), missing, strict=True):
            yield [None if lacks else value for value, lacks in zip(row, gone, strict=True)]

    return rows


def _stata(file: Path) -> pd.DataFrame:
    import pandas as pd

    return pd.read_stata(file, convert_categoricals=False)


def _sas(file: Path) -> pd.DataFrame:
    import pandas as pd

    return pd.read_sas(file, encoding="infer" if file.suffix.lower() == ".sas7bdat" else "latin-1")


def _spss(file: Path) -> pd.DataFrame:
    import pandas as pd

    return pd.read_spss(file, convert_categoricals=False)


def _parquet(file: Path) -> pd.DataFrame:
    from pyarrow import parquet

    # As Python's integers where some are missing: a float does not hold an identifier of 64 bits.
    frame: pd.DataFrame = parquet.read_table(file).to_pandas(integer_object_nulls=True)
    return frame


READERS: dict[str, Callable[[Path, Form], Iterator[list[Any]]]] = {
    ".xlsx": _workbook,
    ".xlsm": _workbook,
    ".dta": _frame(_stata),
    ".sas7bdat": _frame(_sas),
    ".xpt": _frame(_sas),
    ".sav": _frame(_spss),
    ".parquet": _frame(_parquet),
}
"""What yields the rows of a file that is no text, the names of the columns first; by its suffix."""


def _written(rows: Iterable[list[Any]], form: Form) -> bytes:
    """Write rows as text."""
    out = io.StringIO()
    writer = csv.writer(out, delimiter=form.delimiter, lineterminator="\n")
    writer.writerows([_cell(value, form.decimal) for value in row] for row in rows)
    return out.getvalue().encode()


def _cell(value: Any, decimal: str) -> str:
    """Return a value as people write it: whole numbers without a point, dates as YYYY-MM-DD."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case datetime() if value.time() == time():
            return value.date().isoformat()
        case date() | datetime() | time():
            return value.isoformat()
        case bytes():
            return value.decode("utf-8", "replace")
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return (str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)).replace(".", decimal)
    return str(value)
