"""A hospital's own folder: one table, or images with their labels.

Whatever is wrong is collected, so that one reading names every problem. The full message goes to the site's
own log; the public one names columns, files and counts only. Rows count from 1, after the header.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from datasets.errors import DataError, examples, suggestion
from datasets.partition import Ints
from datasets.sources import Source

if TYPE_CHECKING:
    import pandas as pd

FILES = ("data.csv", "data.parquet", "labels.csv")
MISSING = ("", "?", "na", "nan")  # lower case
LABEL_PAIRS = (("0", "1"), ("-1", "1"), ("no", "yes"), ("false", "true"))  # negative, positive
_MOST_CLASSES = 1000  # more are a column of ids, not of classes
_ALLOWED = "0/1, -1/+1, no/yes or false/true"
_GREY = ("1", "L", "LA")
_BYTE_MODES = (*_GREY, "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")


def read_site(folder: str, label: str, binary: bool) -> Source:
    """Read a hospital's folder.

    Parameters
    ----------
    folder
        It holds exactly one of ``data.csv`` and ``data.parquet``, a table whose columns are all numbers
        (empty, NaN, NA or ? where missing) but for the label; or ``labels.csv`` with the columns ``path``
        and the label, and the images at these paths: all of one size, 8 bits a channel. Features are put in
        the order of their names, so that sites whose columns are ordered differently agree.
    label
        Name of the label column.
    binary
        True: labels are 0/1, -1/+1, no/yes or false/true, in any case. False: class indices from 0.

    Returns
    -------
    source
        Without test rows and groups. Images are grey (one channel) when all of them are, else RGB. With
        `binary` false the class count is one above the largest class found.

    Raises
    ------
    DataError
        Naming everything that is wrong.
    """
    file = _the_file(folder)
    frame = _frame(file)
    problems: list[DataError] = []
    classes, class_count = _labels(frame, file, label, binary, problems)
    if file.name == "labels.csv":
        inputs: NDArray[np.float32] | NDArray[np.uint8] = _images(frame, file, problems)
        features: tuple[str, ...] = ()
    else:
        features = tuple(sorted(name for name in frame.columns if name != label))
        inputs = _numbers(frame, file, features, problems)
    if problems:
        raise DataError.join(problems)
    return Source(torch.from_numpy(inputs), classes, class_count, features=features)


def _the_file(folder: str) -> Path:
    if not folder:
        raise DataError.plain("data_dir is empty; the data set 'site' needs the folder of the site's data")
    place = Path(folder).expanduser()
    try:
        found = sorted(entry.name for entry in place.iterdir())
    except OSError as error:
        raise DataError(
            f"data_dir {place} cannot be read: {error.strerror}; set data_dir to the folder that holds "
            f"one of {', '.join(FILES)}",
            "the data folder does not exist or cannot be read",
        ) from error
    known = [name for name in FILES if name in found]
    if len(known) == 1:
        return place / known[0]
    if known:
        text = f"holds {' and '.join(known)}, and it is unclear which one to use; keep one of them"
        raise DataError(f"data_dir {place} {text}", f"the data folder {text}")
    raise DataError(
        f"data_dir {place} holds none of {', '.join(FILES)}; found: {examples(found) or 'nothing'}",
        f"the data folder holds none of {', '.join(FILES)}",
    )


def _frame(file: Path) -> pd.DataFrame:
    """Read a table: a CSV file as text, a parquet file with its own types."""
    import pandas as pd

    try:
        if file.suffix == ".csv":
            _check_lines(file)
            # Text, because pandas would turn any column with one bad value into objects without a word.
            frame = pd.read_csv(file, dtype=str, keep_default_na=False, encoding="utf-8-sig")
        else:
            frame = pd.read_parquet(file)
    except DataError:
        raise
    except (OSError, ValueError, csv.Error, ImportError) as error:  # those of pandas and Arrow are among them
        raise DataError(
            f"{file} cannot be read: {error}; a .csv file must be UTF-8 text separated by commas",
            f"{file.name} cannot be read",
        ) from error
    frame.columns = pd.Index([str(name).strip() for name in frame.columns])
    if len(frame) == 0:
        raise DataError(f"{file} has a header and no rows", f"{file.name} has no rows")
    return frame


def _check_lines(file: Path) -> None:
    """Refuse what pandas would mend in silence: lines of another length, and columns of the same name."""
    with file.open(encoding="utf-8-sig", newline="") as stream:
        lines = csv.reader(stream)
        header = next(lines, [])
        ragged = [f"line {lines.line_num} has {len(f)}" for f in lines if f and len(f) != len(header)]
    if not header:
        raise DataError(f"{file} is empty; its first line must name the columns", f"{file.name} is empty")
    problems = []
    if ragged:
        problems.append(
            DataError(
                f"{file}: the header has {len(header)} columns, but {examples(ragged)}; every line needs as "
                "many values as the header, empty where missing",
                f"{file.name}: {len(ragged)} lines have another number of values than the header",
            )
        )
    if twice := [name for name, count in Counter(name.strip() for name in header).items() if count > 1]:
        text = f"{examples([repr(name) for name in twice])} names more than one column; rename them"
        problems.append(DataError(f"{file}: {text}", f"{file.name}: {text}"))
    if problems:
        raise DataError.join(problems)


def _text(column: pd.Series) -> pd.Series:
    """Return a column as stripped text, empty where missing."""
    return column.astype("string").fillna("").str.strip()


def _at(rows: Iterable[int], values: pd.Series) -> str:
    return examples([f"row {row + 1} ({str(values.iloc[row])!r})" for row in rows])


def _labels(frame: pd.DataFrame, file: Path, label: str, binary: bool, problems: list[DataError]) -> tuple[Ints, int]:
    """Classes of the rows and how many classes there are; what is wrong goes to the problems."""
    if label not in frame.columns:
        columns = [str(name) for name in frame.columns]
        semicolons = "; the file seems to be separated by semicolons, use commas" if ";" in columns[0] else ""
        # Raised at once: the other columns cannot be judged while one of them may be the label.
        raise DataError(
            f"{file}: no label column {label!r}; columns: {', '.join(columns)}{suggestion(label, columns)}{semicolons}",
            f"{file.name}: no label column {label!r} among {len(columns)} columns",
        )
    shown = _text(frame[label])
    values = shown.map(_canonical)
    if len(missing := np.flatnonzero(values.isin(MISSING))):
        problems.append(
            DataError(
                f"{file}: label {label!r} is missing in {_at(missing, shown)}; fill it in or remove the rows",
                f"{file.name}: label {label!r} is missing in {len(missing)} rows",
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
                f"{file.name}: label {label!r} has {len(found)} different values that are not {allowed}",
            )
        )
    if problems:
        return np.zeros(0, np.int64), 0
    classes: Ints = np.array([codes[value] for value in values], np.int64)
    return classes, 2 if binary else max(codes.values()) + 1


def _canonical(value: str) -> str:
    """One spelling of a label: lower case, and whole numbers without sign, point or zeros to no effect."""
    try:
        return str(int(number)) if (number := float(value)).is_integer() else value.lower()
    except ValueError:
        return value.lower()


def _numbers(
    frame: pd.DataFrame, file: Path, features: tuple[str, ...], problems: list[DataError]
) -> NDArray[np.float32]:
    """Feature columns as one array, NaN where missing; what is wrong goes to the problems."""
    import pandas as pd

    inputs = np.empty((len(frame), len(features)), np.float32)
    if not features:
        problems.append(
            DataError(f"{file} has no feature column beside the label", f"{file.name} has no feature column")
        )
    for index, name in enumerate(features):
        column = frame[name]
        if pd.api.types.is_numeric_dtype(column):
            numbers = column.to_numpy(np.float64, na_value=np.nan)
        else:
            column = _text(column)
            missing = column.str.lower().isin(MISSING).to_numpy(np.bool_)
            numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
            if len(bad := np.flatnonzero(np.isnan(numbers) & ~missing)):
                problems.append(
                    DataError(
                        f"{file}: column {name!r} must hold numbers, but has {_at(bad, column)}; write "
                        "numbers with a decimal point, code categories as numbers, leave missing values "
                        "empty, or remove the column",
                        f"{file.name}: column {name!r} has {len(bad)} values that are not numbers",
                    )
                )
        with np.errstate(over="ignore"):  # beyond float32 is infinite, and named below
            inputs[:, index] = numbers
        if len(infinite := np.flatnonzero(np.isinf(inputs[:, index]))):
            problems.append(
                DataError(
                    f"{file}: column {name!r} must be finite and within +-3e38, but has "
                    f"{_at(infinite, column)}; leave the value empty if it is missing",
                    f"{file.name}: column {name!r} has {len(infinite)} infinite values",
                )
            )
    return inputs


def _images(frame: pd.DataFrame, file: Path, problems: list[DataError]) -> NDArray[np.uint8]:
    """Decode the images, (N, C, H, W); what is wrong goes to the problems."""
    from PIL import Image

    nothing = np.zeros((0, 1, 1, 1), np.uint8)
    if "path" not in frame.columns:
        problems.append(
            DataError(
                f"{file}: no column 'path'; columns: {', '.join(map(str, frame.columns))}",
                f"{file.name}: no column 'path'",
            )
        )
        return nothing

    base = file.parent.resolve()
    paths = _text(frame["path"])
    files = [(base / path).resolve() for path in paths]
    faults: dict[str, list[str]] = {}  # kind of fault -> where

    def fault(kind: str, row: int, detail: object = "") -> None:
        faults.setdefault(kind, []).append(f"row {row + 1} ({paths.iloc[row]!r}{detail})")

    # Headers first: sizes and modes are known before memory is taken for all pixels.
    sizes: dict[int, tuple[int, int]] = {}
    grey = True
    for row, path in enumerate(files):
        if not path.is_relative_to(base):
            fault("lie outside the folder", row)
        elif not path.is_file():
            fault("are missing", row)
        else:
            try:
                with Image.open(path) as image:
                    sizes[row], mode = image.size, image.mode
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                fault("cannot be read", row, f": {error}")
                continue
            grey = grey and mode in _GREY
            if mode not in _BYTE_MODES:
                fault("have more than 8 bits a channel", row, f": mode {mode}")
    [(usual, _)] = Counter(sizes.values()).most_common(1) or [((1, 1), 0)]
    for row, size in sizes.items():
        if size != usual:
            fault("have another size than most", row, f": {size[0]}x{size[1]}, most {usual[0]}x{usual[1]}")

    images = nothing
    if not faults and not problems:
        images = np.empty((len(files), 1 if grey else 3, usual[1], usual[0]), np.uint8)
        for row, path in enumerate(files):
            try:
                with Image.open(path) as image:
                    pixels = np.asarray(image.convert("L" if grey else "RGB"))
            except (OSError, ValueError, SyntaxError) as error:
                fault("cannot be read", row, f": {error}")
            else:
                images[row] = pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1)
    for kind, where in faults.items():
        problems.append(
            DataError(
                f"{file}: images {kind}: {examples(where)}; put 8-bit images of one size into the folder, "
                "at the paths that the file gives",
                f"{file.name}: {len(where)} images {kind}",
            )
        )
    return images
