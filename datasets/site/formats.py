"""The files in which hospitals have tables, each turned into what the readers take: UTF-8 text, a line for each row.

Text may be packed with gzip and be in UTF-8, UTF-16 or Windows' Western code page. Of a workbook (Excel) one sheet is
read, of a file of Stata, SAS or SPSS its values and not their labels. Parquet files keep their types and are read
elsewhere, but by a study file, which reads texts.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import gc
import gzip
import io
import math
import re
import shlex
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast
from xml.etree import ElementTree

from edelweiss.common.files import opened, reason
from edelweiss.common.memory import free_memory, memory_limit
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.site.formulas import uncalculated
from edelweiss.datasets.site.header import START
from edelweiss.datasets.site.separators import in_words, resolved, uniform

if TYPE_CHECKING:
    import pandas as pd

ROWS = 2**10  # of text that are written anew at a time
PARQUET = 2**14  # rows of a file that is no text that are turned into text at a time
READSTAT = 2**18  # those of SAS's and SPSS's files, of which each part is read from the file's beginning on
CELL = 20  # bytes for each value of a table, at most at a time: measured, within a tenth
BOOK = 400  # bytes for each cell of a workbook, likewise
BOOKS = (".xlsx", ".xlsm")
CELLS = re.compile(rb"<(?:\w+:)?c[ />]")  # in the XML of a sheet
GZIP = b"\x1f\x8b"
FOUND = "found"  # of a frame's `attrs`: `Lines.found` of its file
PART = 2**20  # bytes looked at at a time
LONGEST = 2**24  # characters of a line, which is held in memory
BLANK = 2**20  # characters in which a text must say something: gzip packs a billion blank lines into a megabyte
MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
WESTERN = "cp1252"  # what Windows calls ANSI; Latin-1 has the same letters
NAMES = {"utf-8-sig": "UTF-8", "utf-16": "UTF-16", "utf-16-le": "UTF-16", WESTERN: "Windows-1252"}
CONVERT = {  # what nothing here reads, and the command that converts it; the name is quoted, and never part of code
    ".rds": "Rscript -e \"write.csv(readRDS(commandArgs(TRUE)[1]), 'data.csv', row.names = FALSE)\" {0}",
    ".rda": "Rscript -e \"write.csv(get(load(commandArgs(TRUE)[1])), 'data.csv', row.names = FALSE)\" {0}",
    ".rdata": "Rscript -e \"write.csv(get(load(commandArgs(TRUE)[1])), 'data.csv', row.names = FALSE)\" {0}",
    ".arff": 'python -c "from scipy.io import arff; import pandas, sys; '
    "pandas.DataFrame(arff.loadarff(sys.argv[1])[0]).map(lambda one: one.decode() if isinstance(one, bytes) else one)"
    ".to_csv('data.csv', index=False)\" {0}",
    ".xls": "soffice --headless --convert-to xlsx {0}",
    ".xlsb": "soffice --headless --convert-to xlsx {0}",
    ".ods": "soffice --headless --convert-to xlsx {0}",
    ".mdb": "mdb-export {0} TABLE > data.csv",
    ".accdb": "mdb-export {0} TABLE > data.csv",
    ".zip": "unzip {0}",
    ".json": "python -c \"import pandas, sys; pandas.read_json(sys.argv[1]).to_csv('data.csv', index=False)\" {0}",
    ".por": "python -c \"import pyreadstat as p, sys; p.read_por(sys.argv[1])[0].to_csv('data.csv', index=0)\" {0}",
    ".zsav": "python -c \"import pyreadstat as p, sys; p.read_sav(sys.argv[1])[0].to_csv('data.csv', index=0)\" {0}",
    ".feather": "python -c \"import pandas, sys; pandas.read_feather(sys.argv[1]).to_parquet('data.parquet')\" {0}",
}
KINDS = {  # how a file begins that is no text, whatever its name
    b"<stata_dta>": "a Stata file, which is called .dta",
    GZIP: "packed with gzip, which is unpacked once, and of text alone: unpack it",
    b"<": "HTML or XML",
    b"{": "JSON",
    b"[": "JSON",
    b"PK\3\4": "a zip file; an Excel workbook is called .xlsx",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook, or one with a password: save it as .xlsx, without a password",
    b"PAR1": "a Parquet file, which is called .parquet",
    b"%PDF": "a PDF file",
}
SEPARATOR = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)  # what Excel writes and reads as a first line


@dataclass(frozen=True)
class Form:
    """How a hospital's file is written; a study file may say so."""

    delimiter: str = ""  # of text; empty: found, and a comma once it is read
    decimal: str = ""  # of text; empty: found, and a point once it is read
    encoding: str = ""  # empty: found
    sheet: str = ""  # of a workbook; empty: its only one
    header_row: int = 1  # the row of a sheet, or the line of a text, with the names of the columns


def looks_like(data: bytes) -> str:
    """Name the format of a file that is not a text table; empty if it may be one."""
    start = data[:1024].removeprefix(b"\xef\xbb\xbf").lstrip()
    return next((kind for mark, kind in KINDS.items() if start.startswith(mark)), "")


def convertible(name: str) -> str:
    """Return the command that converts a file that nothing here reads; empty for others."""
    command = CONVERT.get(Path(name).suffix.lower(), "")
    return command.format(shlex.quote(f"./{name}" if name.startswith("-") else name)) if command else ""


def text_of(file: Path, form: Form | None = None) -> bytes:
    """Return a table as UTF-8 text with the form's delimiter and decimal mark, a comma and a point where it has none.

    Raises
    ------
    DataError
        If the file is of a kind that nothing here reads, is damaged, or does not fit the form.
    """
    form = form or Form()
    if file.suffix.lower() in READERS:
        return _written(_rows(file, form), form)
    with _explained(file), stream_of(file, form) as stream:
        return stream.read().encode()


@contextmanager
def _explained(file: Path) -> Iterator[None]:
    """Turn whatever a damaged file raises while it is read into a `DataError`."""
    try:
        yield
    except DataError:
        raise
    except ImportError as error:
        raise DataError(
            f"{file} cannot be read: {error.name} is missing; install it with pip install 'edelweiss[spss]', or save "
            "the table as CSV",
            f"{file.name} cannot be read: a package is missing",
        ) from None
    except Exception as error:  # the readers raise many kinds on a damaged file
        with file.open("rb") as stream:
            kind = looks_like(stream.read(PART))
        own = (".parquet", ".dta", *BOOKS) if kind.startswith(("a zip", "a Parquet", "a Stata")) else ()
        mend = f"it is {kind}" if kind and file.suffix.lower() not in own else "write it again, or as CSV"
        text = f"{file} cannot be read: {reason(error)}; {mend}"
        raise DataError(text, f"{file.name} cannot be read") from error


def _rows(file: Path, form: Form) -> Iterator[list[str]]:
    """Yield the rows of a file that is no text, the names of the columns first."""
    with _explained(file):
        for row in READERS[file.suffix.lower()](file, form):
            yield [cell_text(value, form.decimal or ".") for value in row]


@dataclass(frozen=True)
class Lines:
    """A table that is being read."""

    start: str  # the first characters of a file of text; empty of another
    rows: Iterator[tuple[int, list[str]]]  # of each line its number in the file, from 1, and its cells
    form: Form  # of the file; a decimal mark that was found is a point in the rows
    found: str = ""  # how it was found to be separated, in words; empty for what needs none


@contextmanager
def lines_of(file: Path, form: Form | None = None, *, strict: bool = False) -> Iterator[Lines]:
    """Open a table whose lines are read once, one after the other; ``strict`` as in `csv.reader`.

    Raises
    ------
    DataError, OSError, ValueError, csv.Error
        As `text_of`; of a file of text while its lines are read, too.
    """
    form = form or Form()
    if file.suffix.lower() in READERS:
        yield Lines("", enumerate(_rows(file, form), 1), form)
        return
    encoding = _known(file, form)
    found, start = _start(file, encoding, form)
    with _at_header(file, encoding, form) as (stream, above, _):
        reader = csv.reader(stream, delimiter=found.delimiter, strict=strict)
        lines = uniform(file, ((above + reader.line_num, line) for line in reader), found, form.decimal or ".")
        yield Lines(start, lines, found, _said(form, found))


def _start(file: Path, encoding: str, form: Form) -> tuple[Form, str]:
    """Return how a text is written, with what its start shows, and that start."""
    with _at_header(file, encoding, form) as (stream, _, separator):
        start = stream.read(START)
    return resolved(file, start, replace(form, delimiter=form.delimiter or separator)), start


@contextmanager
def _at_header(file: Path, encoding: str, form: Form) -> Iterator[tuple[io.TextIOWrapper, int, str]]:
    """Open a text at the line that names its columns; yield it, how many lines are above, and the mark of ``sep=``."""
    with _unpacked(file) as plain:
        stream = io.TextIOWrapper(plain, encoding=encoding, newline="")
        said = SEPARATOR.fullmatch(stream.readline(START))
        above = max(form.header_row - 1, int(bool(said)))
        stream.seek(0)
        for _ in range(above):
            stream.readline()
        yield stream, above, said[1] if said else ""


@contextmanager
def stream_of(file: Path, form: Form | None = None) -> Iterator[io.TextIOWrapper]:
    """Open a table as text, a part at a time where the file is text already; see `text_of`."""
    form = form or Form()
    if file.suffix.lower() in READERS:
        yield io.TextIOWrapper(io.BytesIO(text_of(file, form)), encoding="utf-8", newline="")
        return
    encoding = _known(file, form)
    found, _ = _start(file, encoding, form)
    with _at_header(file, encoding, form) as (stream, above, _):
        if (found.delimiter, found.decimal) == (form.delimiter or ",", form.decimal or "."):
            yield stream
            return
        reader = csv.reader(stream, delimiter=found.delimiter)
        rows = uniform(file, ((above + reader.line_num, line) for line in reader), found, form.decimal or ".")
        yield io.TextIOWrapper(cast("BinaryIO", _Written(rows, form)), encoding="utf-8", newline="")


class _Written(io.RawIOBase):
    """Rows as text, a part at a time."""

    def __init__(self, rows: Iterator[tuple[int, list[str]]], form: Form) -> None:
        self._rows, self._form, self._left = rows, form, b""

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; return how many bytes are in it, 0 at the end."""
        while not self._left:
            part = [row for _, row in islice(self._rows, ROWS)]
            if not part:
                return 0
            self._left = _written(part, self._form)
        taken, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)


def _known(file: Path, form: Form) -> str:
    """Return the encoding of a file that must be text."""
    if command := convertible(file.name):
        text = f"{file} is a {file.suffix} file, which is not read: convert it, with {command}"
        raise DataError(text, f"{file.name} is a {file.suffix} file, which is not read")
    return survey(file, form.encoding).encoding


@dataclass(frozen=True)
class Survey:
    """What a file of text is like, before its lines are read."""

    encoding: str  # as Python calls it
    bytes: int  # unpacked
    lines: int


def survey(file: Path, encoding: str = "") -> Survey:
    """Read a file of text once, a part at a time, in the encoding that it is said to have, or else seems to have.

    Raises
    ------
    DataError
        If it is not text in that encoding.
    OSError, ValueError, EOFError, zlib.error
        If it cannot be read.
    """
    with _unpacked(file) as plain:
        start = plain.read(PART)
    marked = [name for mark, name in MARKS.items() if start.startswith(mark)]
    if not marked and len(start) > 8 and {*start[1:32:2]} == {0} and 0 not in start[:32:2]:
        marked = ["utf-16-le"]  # of Windows, without a mark
    problem: Exception | None = None
    for found in [encoding] if encoding else marked or ["utf-8-sig", WESTERN]:
        try:
            return _surveyed(file, found)
        except (UnicodeError, LookupError) as error:
            problem = error
    if kind := looks_like(start):
        raise DataError(f"{file} is {kind}; it must be text", f"{file.name} is {kind}, not a text table")
    raise DataError(
        f"{file} is not text in {NAMES.get(found, found)} ({problem}): save it as UTF-8, or name its encoding in a "
        "study file",
        f"{file.name} is not text in a known encoding",
        key="encoding",
    )


def _surveyed(file: Path, encoding: str) -> Survey:
    decoder = codecs.getincrementaldecoder(encoding)()
    size = lines = since = blank = 0  # characters since the latest end of a line; blank ones, part for part
    with _unpacked(file) as plain:
        most = math.inf if isinstance(plain, io.BufferedReader) else free_memory() // 4
        while part := plain.read(PART):
            size, text = size + len(part), decoder.decode(part)
            if text and 2 * text.count("\0") >= len(text):  # a single one is named by its row
                raise UnicodeError("it has NUL characters")
            end = max(text.rfind("\n"), text.rfind("\r"))
            since = since + len(text) if end < 0 else len(text) - end - 1
            lines += text.count("\n") or text.count("\r")
            blank = blank + len(text) if text.isspace() else 0
            if blank >= BLANK:
                raise ValueError(f"{BLANK:,} characters before line {lines + 1:,} are blank: remove such lines")
            if since > LONGEST:
                raise ValueError(f"line {lines + 1} has more than {LONGEST:,} characters")
            if size > most:
                raise ValueError(f"unpacked it takes more than {most / 1e9:,.1f} GB, a quarter of the free memory")
        decoder.decode(b"", final=True)
    return Survey(encoding, size, lines)


@contextmanager
def _unpacked(file: Path) -> Iterator[BinaryIO]:
    """Open a file, which gzip may have packed."""
    with opened(file) as stream:
        packed = stream.read(len(GZIP)) == GZIP
        stream.seek(0)
        if not packed:
            yield stream
            return
        with gzip.GzipFile(fileobj=stream) as plain:
            yield cast("BinaryIO", plain)


def takes(file: Path, form: Form | None = None) -> int:
    """Return how many bytes of memory a table takes to read; 0 if that cannot be told before, as of a damaged file.

    Of text the lines are counted and the first one is taken for as wide as the others; of a workbook the cells of all
    sheets are counted, as far as one that is damaged can be unpacked.
    """
    with contextlib.suppress(
        Exception
    ):  # the readers raise many kinds on a damaged file, and whoever reads it will say
        if file.suffix.lower() in BOOKS:
            return _workbook_takes(file)
        return CELL * _cells(file, form or Form())
    return 0


def _cells(file: Path, form: Form) -> int:
    match file.suffix.lower():
        case ".parquet":
            from pyarrow import parquet

            about = parquet.read_metadata(file)
            return int(about.num_rows * about.num_columns)
        case ".dta":
            with opened(file) as stream:
                return _stata_cells(stream.read(PART))
        case ".xpt":  # whose head says nothing of rows
            return file.stat().st_size // 8  # bytes of a number
        case ".sav" | ".sas7bdat":
            import pyreadstat

            read = pyreadstat.read_sav if file.suffix.lower() == ".sav" else pyreadstat.read_sas7bdat
            _, said = read(str(file), metadataonly=True)
            return int((said.number_rows or 0) * (said.number_columns or 0))
    with lines_of(file, form) as table:
        return survey(file, form.encoding).lines * len(next(table.rows, (0, []))[1])


def _stata_cells(start: bytes) -> int:
    """Return how many values a Stata file has, by its header: number of variables and of observations."""
    if not start.startswith(b"<stata_dta>"):  # before release 117
        order: Literal["little", "big"] = "little" if start[1] == 2 else "big"
        return int.from_bytes(start[4:6], order) * int.from_bytes(start[6:10], order)
    order = "little" if b"<byteorder>LSF" in start[:100] else "big"
    variables, rows = (start[start.index(mark) + len(mark) :] for mark in (b"<K>", b"<N>"))
    ends = variables.index(b"</K>"), rows.index(b"</N>")
    return int.from_bytes(variables[: ends[0]], order) * int.from_bytes(rows[: ends[1]], order)


def _workbook_takes(file: Path) -> int:
    """Return how many bytes a workbook takes, which is read whole; no more is unpacked than fits into memory."""
    with opened(file) as stream, zipfile.ZipFile(stream) as book:
        unpacked = sum(part.file_size for part in book.infolist())
        if unpacked > free_memory():
            return unpacked
        cells = 0
        for part in book.infolist():
            if part.filename.startswith("xl/worksheets/"):
                with contextlib.suppress(Exception), book.open(part) as sheet:  # a damaged part leaves the others
                    for some in iter(partial(sheet.read, PART), b""):
                        cells += len(CELLS.findall(some))
    return unpacked + BOOK * cells


def too_large(file: Path, needed: int) -> str:
    """Return that a table, which takes so many bytes to read, will not fit into memory; empty if it will."""
    if needed <= (free := free_memory()):
        return ""
    mend = "save it as CSV or Parquet" if file.suffix.lower() in BOOKS else "leave columns or rows out"
    return (
        f"{file.name} takes {needed / 1e9:.1f} GB to read, and {free / 1e9:.1f} GB are free, of the "
        f"{memory_limit() / 1e9:.1f} GB that this process may have: {mend}, give the container more, or end other "
        "programs"
    )


def encoding_of(file: Path) -> str:
    """Return in which encoding a file of text is, as people call it; empty for another kind of file."""
    if file.suffix.lower() in {*READERS, ".parquet"}:
        return ""
    try:
        return NAMES[survey(file).encoding]
    except (OSError, ValueError, EOFError, zlib.error):
        return ""


def found_in(file: Path, form: Form | None = None) -> str:
    """Say how a file of text was found to be separated, see `separators.in_words`; empty for what needs no word."""
    form = form or Form()
    if file.suffix.lower() in {*READERS, ".parquet"}:
        return ""
    return _said(form, _start(file, _known(file, form), form)[0])


def _said(given: Form, found: Form) -> str:
    return "" if given.delimiter and given.decimal else in_words(found)


# ---------------------------------------------------------------------- other files


def _workbook(file: Path, form: Form) -> Iterator[list[Any]]:
    """Yield the rows of a sheet from its header on."""
    from openpyxl.reader.excel import ExcelReader

    if text := too_large(file, takes(file)):  # a few megabytes may become any number of gigabytes
        raise DataError(f"{file.parent}: {text}", f"{file.name} is too large for the memory of this site")
    reader = ExcelReader(file, data_only=True)
    with warnings.catch_warnings(action="ignore"):  # of charts, rules and extensions, which hold no cell
        reader.read()
        parts = {sheet.name: place.target for sheet, place in reader.parser.find_sheets()}
    book = reader.wb
    sheets = {sheet.title: sheet for sheet in book.worksheets}
    if not sheets:
        text = (
            'has no sheet that is read: save it as "Excel Workbook (*.xlsx)", not as a "Strict Open XML" one, or as CSV'
        )
        raise DataError(f"{file} {text}", f"{file.name} has no sheet that is read")
    if form.sheet not in (sheets if form.sheet or len(sheets) > 1 else ("",)):
        what = f"has no sheet {form.sheet!r}" if form.sheet else f"has {len(sheets)} sheets"
        text = f"{file} {what}: name one in a study file, sheet = one of {', '.join(map(repr, sheets))}"
        raise DataError(text, f"{file.name}: the sheet is not named, or not there", key="sheet", value=form.sheet)
    sheet = sheets[form.sheet] if form.sheet else next(iter(sheets.values()))
    if merged := [str(cells) for cells in sheet.merged_cells.ranges if cells.max_row >= form.header_row]:
        text = f"{file}: cells {examples(merged)} of sheet {sheet.title!r} are merged: unmerge them and fill in each"
        raise DataError(text, f"{file.name}: {len(merged)} groups of cells are merged")
    part = parts[sheet.title]
    with opened(file) as stream, zipfile.ZipFile(stream) as archive:
        # Whoever wrote it may say that no value in it is a result yet, and have put 0 in each formula's place.
        said = ElementTree.fromstring(archive.read(reader.parser.workbook_part_name)).find("{*}calcPr")
        stale = said is not None and said.get("fullCalcOnLoad") in ("1", "true")
        if open_ := uncalculated(lambda: archive.open(part), form.header_row, stale):
            raise DataError(
                f"{file}: cells {examples(open_)} of sheet {sheet.title!r} have formulas that nothing has calculated: "
                "open it in Excel and save it (in LibreOffice press Ctrl+Shift+F9 before), or save the sheet as CSV",
                f"{file.name}: {len(open_)} cells have formulas that nothing has calculated",
            )
    # Not sheet.iter_rows, which makes all cells up to the farthest: a blank one with a format may be anywhere.
    rows: dict[int, list[Any]] = {}
    for (row, column), cell in sorted(sheet._cells.items()):
        if row >= form.header_row and cell.value is not None:
            values = rows.setdefault(row, [])
            values.extend([None] * (column - 1 - len(values)))
            values.append(cell.value)
    del reader, book, sheets, sheet
    gc.collect()  # its cells and sheets name each other; a second reading would take memory beside them
    last, width = max(rows, default=0), max(map(len, rows.values()), default=0)
    if text := too_large(file, CELL * (last - form.header_row + 1) * width):
        raise DataError(
            f"{file.parent}: {text}; its last cells are in row {last:,} and in column {width:,}: is one a slip?",
            f"{file.name} is too large for the memory of this site",
        )
    for place in range(form.header_row, last + 1):
        values = rows.pop(place, [])
        yield values + [None] * (width - len(values))


def _frames(read: Callable[[Path], Iterator[pd.DataFrame]]) -> Callable[[Path, Form], Iterator[list[Any]]]:
    def rows(file: Path, _: Form) -> Iterator[list[Any]]:
        for place, frame in enumerate(read(file)):
            if not place:
                yield [str(name) for name in frame.columns]
            yield from _in_rows(frame)

    return rows


def _in_rows(frame: pd.DataFrame) -> Iterator[list[Any]]:
    for place, kind in enumerate(frame.dtypes):
        if kind == "float32":  # 5.1, as whoever entered it reads it, not 5.099999904632568
            frame.isetitem(place, frame.iloc[:, place].astype(str).astype(float).to_numpy())
    missing = frame.isna().to_numpy()
    for row, gone in zip(frame.itertuples(index=False, name=None), missing, strict=True):
        yield [None if lacks else value for value, lacks in zip(row, gone, strict=True)]


def _stata(file: Path) -> Iterator[pd.DataFrame]:
    import pandas as pd

    with pd.read_stata(file, convert_categoricals=False, chunksize=PARQUET) as parts:
        yield from parts


def _readstat(file: Path) -> Iterator[pd.DataFrame]:
    import pyreadstat

    transport = file.suffix.lower() == ".xpt"  # which does not say what it is written in
    own: dict[str, Any] = {".sav": pyreadstat.read_sav, ".sas7bdat": pyreadstat.read_sas7bdat}
    read, at, encoding = own.get(file.suffix.lower(), pyreadstat.read_xport), 0, None
    while True:
        try:
            part, _ = read(str(file), row_offset=at, row_limit=READSTAT, encoding=encoding)
        except UnicodeDecodeError:
            if encoding or not transport:
                raise
            encoding = "WINDOWS-1252"
            continue
        yield part
        at += len(part)
        if len(part) < READSTAT:
            return


def _parquet(file: Path, _: Form) -> Iterator[list[Any]]:
    from pyarrow import parquet

    found = parquet.ParquetFile(file)
    yield [str(name) for name in found.schema_arrow.names]
    for part in found.iter_batches(PARQUET):
        # As Python's integers where some are missing: a float does not hold an identifier of 64 bits.
        yield from _in_rows(part.to_pandas(integer_object_nulls=True))


READERS: dict[str, Callable[[Path, Form], Iterator[list[Any]]]] = {
    ".xlsx": _workbook,
    ".xlsm": _workbook,
    ".dta": _frames(_stata),
    ".sas7bdat": _frames(_readstat),
    ".xpt": _frames(_readstat),
    ".sav": _frames(_readstat),
    ".parquet": _parquet,
}
"""What yields the rows of a file that is no text, the names of the columns first; by its suffix."""


def _written(rows: Iterable[list[str]], form: Form) -> bytes:
    """Write rows as text."""
    out = io.StringIO()
    csv.writer(out, delimiter=form.delimiter or ",", lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def cell_text(value: Any, decimal: str = ".") -> str:
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
