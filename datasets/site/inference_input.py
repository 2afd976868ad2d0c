"""New patients to use a model on: a table or a list of images, read in chunks, by column name, without labels."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edelweiss.common import hint, shown
from edelweiss.common.files import as_path, is_file, reason
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.facts import columns_hash
from edelweiss.datasets.image_faults import Faults, Kind
from edelweiss.datasets.image_file import ImageForm
from edelweiss.datasets.images import read_images
from edelweiss.datasets.numbers import LARGEST
from edelweiss.datasets.site.formats import READERS, Form, found_in, looks_like, stream_of
from edelweiss.datasets.site.header import LOOKED_AT, SEPARATORS, START, no_names, separated, wrong_names
from edelweiss.datasets.site.images import located
from edelweiss.datasets.site.study import ISO
from edelweiss.datasets.site.table import as_text, numbers_in

if TYPE_CHECKING:
    import pandas as pd

    from edelweiss.datasets.data_summary import DataSummary
    from edelweiss.datasets.model_schema import ModelSchema
    from edelweiss.datasets.site.study import Rule

BLOCK = 1024  # rows per evaluation step; chunks of whole blocks give the same bits
CELLS = 2**20  # cells per chunk, roughly
FIRST = 5  # rows named in a message


def open_inference_input(
    place: str | Path, schema: ModelSchema, data_summary: DataSummary, others: Sequence[str] = ()
) -> InferenceTable | InferenceImages:
    """Open a file of patients, or a folder that holds one like a site's folder.

    Raises
    ------
    DataError
        If it does not exist or does not fit the model.
    """
    images = len(data_summary.shape) == 3
    wanted = ("labels.csv",) if images else ("data.csv", "data.parquet")
    try:
        path = as_path(place)
        if path.is_dir():
            found = [path / name for name in wanted if is_file(path / name)]
            if len(found) != 1:
                raise DataError(f"{path} holds {len(found)} of {', '.join(wanted)}: name one file")
            [path] = found
    except OSError as error:
        raise DataError(f"{shown(str(place))} cannot be read: {reason(error)}") from None
    if not is_file(path):
        raise DataError(f"{path}: there is no such file")
    return InferenceImages(path, schema, data_summary) if images else InferenceTable(path, schema, data_summary, others)


@dataclass(frozen=True)
class Chunk:
    """Some patients."""

    inputs: Tensor  # shape (n, F) float32, NaN where missing, or (n, C, H, W) uint8
    kept: list[list[str]]  # per patient, the values of the columns that are not features


class Wrong:
    """Invalid values by column and reason: their number, and the first few with their rows."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._found: dict[tuple[str, str], tuple[list[str], int, dict[str, Any]]] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, where: str, why: str, rows: Iterable[str], count: int, **fields: Any) -> None:
        """Add ``count`` values; ``rows`` describes the first few, and ``fields`` are those of the first error."""
        first, before, fields = self._found.get((where, why), ([], 0, fields))
        first += [row for row, _ in zip(rows, range(FIRST - len(first)), strict=False)]
        self._found[where, why] = (first, before + count, fields)

    def errors(self) -> list[DataError]:
        """Return an error for each kind."""
        found = []
        for (where, why), (first, count, fields) in self._found.items():
            more = f" and {count - len(first)} more" if count > len(first) else ""
            text = f"{self.file}: {where}: {', '.join(first)}{more}: {why}"
            found.append(DataError(text, f"{count} values of the file do not fit the model", **fields))
        return found


class InferenceTable:
    """A table of patients, CSV or Parquet; opening it checks its header.

    The table is in the study's spelling if the model was trained with a study file. If the model's file names no
    features, they are all columns but `others`, which must have the hash of names that it gives.

    Attributes
    ----------
    kept : tuple of str
        Columns that are not features, in their order.
    notes : list of str
        Harmless oddities.
    missing : int
        Missing values so far.

    Raises
    ------
    DataError
        If it is no table, or lacks columns that the model needs; with all problems.
    """

    def __init__(self, file: Path, schema: ModelSchema, data_summary: DataSummary, others: Sequence[str] = ()) -> None:
        self.file, self.study, self.missing = file, schema.study, 0
        self.notes: list[str] = []
        self.wrong = Wrong(file)
        self._parquet = file.suffix == ".parquet" and not self.study  # a study file describes texts
        self._separator = self.study.separator if self.study else ","
        self._headless = False  # the study gives the header
        self._first: list[list[str]] = []  # rows after the first line
        try:
            self.names = self._header()
        except DataError:
            raise
        except Exception as error:  # Arrow raises many kinds on a damaged file
            raise self._unreadable(error) from None
        if problems := [*self._wrong_header(schema.features)]:
            raise DataError.join(problems)
        if not self._parquet and (said := found_in(file, self.study.form if self.study else None)):
            self.notes.append(said)
        self.features = self._features(schema, data_summary, others)
        columns = {column.name for column in self.study.columns} if self.study else {*self.features}
        self.kept = tuple(name for name in self.names if name not in columns)
        order = [name for name in self.names if name in self.features]
        if order != [name for name in self.features if name in order]:
            self.notes.append("the features are not in the model's order: they are matched by name")
        if self.study and self.study.one_row and self.study.patient in self.names:
            self.notes.append(
                "each row has a score; the model was trained on one row of each patient "
                f"(one-row = {self.study.one_row!r})"
            )

    def chunks(self) -> Iterator[Chunk]:
        """Read the rows; DataError at the end, with all problems.

        After the first invalid value no more chunks come, but all rows are checked.
        """
        first = 1
        strange: dict[Rule, int] = {}
        try:
            for frame in self._frames():
                for rule, hit in self.study.left_out(frame).items() if self.study else ():
                    strange[rule] = strange.get(rule, 0) + int(hit.sum())
                inputs = self._inputs(frame, first)
                first += len(frame)
                if not self.wrong:
                    self.missing += int(np.isnan(inputs).sum())
                    kept = frame[list(self.kept)].apply(as_text) if self._parquet else frame[list(self.kept)]
                    yield Chunk(torch.from_numpy(inputs), kept.to_numpy(object).tolist())
        except DataError:
            raise
        except Exception as error:  # pandas, Arrow and codecs raise many kinds on a damaged file
            raise self._unreadable(error) from None
        if self.wrong:
            raise DataError.join(self.wrong.errors())
        self.notes += [
            f"{count:,} rows are such as the study left out, so that the model was not trained on them: {rule}"
            for rule, count in strange.items()
            if count
        ]
        if first == 1:
            raise DataError(f"{self.file} has no rows", "the table has no rows")

    # ------------------------------------------------------------------ the header

    def _header(self) -> list[str]:
        if not is_file(self.file):
            raise FileNotFoundError("there is no such file")
        if self._parquet:
            from pyarrow import parquet

            return [str(name).strip() for name in parquet.ParquetFile(self.file).schema_arrow.names]
        with self._opened() as stream:
            start = stream.read(START)
        if kind := looks_like(start.encode()):
            raise ValueError(f"it is {kind}")
        form = separated(start, self._separator)
        if form:
            here = SEPARATORS.get(self._separator, repr(self._separator))
            points = f", and {'a decimal comma' if self.study and self.study.decimal == ',' else 'decimal points'}"
            raise ValueError(f"{form}: save it with {here} between the values{points * form.commas}")
        with self._opened() as stream:
            lines = (line for line in self._lines(stream) if line)
            names = next(lines, [])
            self._first = [line for line in islice(lines, LOOKED_AT) if len(line) == len(names)]
        return [name.strip() for name in names]

    def _wrong_header(self, features: Sequence[str]) -> Iterator[DataError]:
        names, study = self.names, self.study
        self._headless = bool(study and study.header and names != list(study.header))
        if study and self._headless:
            if len(names) != len(study.header):
                text = f"its first line has {len(names)} values, but the study names {len(study.header)} columns"
                yield DataError(f"{self.file}: {text}", "the number of columns is not that of the study")
            self.names = list(study.header)
            return
        if not names:
            yield DataError(f"{self.file} is empty; its first line must name the columns", "the table is empty")
        elif not self._parquet and not {*features} <= {*names}:
            yield from no_names(self.file, names, self._first)
        yield from wrong_names(self.file, names)

    def _features(self, schema: ModelSchema, data_summary: DataSummary, others: Sequence[str]) -> tuple[str, ...]:
        """Return the columns that are features, in the model's order."""
        problems = [
            DataError(f"there is no column {name!r}.{hint(name, self.names)}", "a named column is missing", key=name)
            for name in others
            if name not in self.names
        ]
        features = schema.features
        if not features:
            no_features = {
                *others,
                *(schema.labels.names if schema.labels else [schema.label]),
                *([self.study.patient] if self.study else []),
            }
            features = tuple(sorted(name for name in self.names if name not in no_features))
            if len(features) != data_summary.shape[0] or columns_hash(features) != data_summary.columns:
                problems.append(
                    DataError(
                        f"{self.file}: the model's file does not name its {data_summary.shape[0]} features, only the "
                        f"fingerprint {data_summary.columns} of their names, and the {len(features)} columns "
                        f"{examples([*map(repr, features)])} have {columns_hash(features)}: name all columns that are "
                        "not features with --others, and spell the features as the hospitals do",
                        "the columns are not the model's features",
                    )
                )
        elif absent := [name for name in self._needed(features) if name not in self.names]:
            listed = [f"{name!r}{hint(name, self.names)}" for name in absent]
            of = f"{len(self._needed(features))} columns of its study" if self.study else f"{len(features)} features"
            count = f"{len(absent)} of the model's {of}"
            text = f"{self.file}: the table lacks {count}: "
            public = "the table lacks features of the model"
            problems.append(DataError(f"{text}{'; '.join(listed)}.", public, key=absent[0]))
        if problems:
            raise DataError.join(problems)
        return features

    def _needed(self, features: Sequence[str]) -> list[str]:
        """Return the columns that become the features."""
        if not self.study:
            return [*features]
        columns, study = [column.name for column in self.study.columns], self.study
        if any(column.before_index for column in study.columns) and not ISO.fullmatch(study.index_date):
            columns.append(study.index_date)
        return columns

    # ------------------------------------------------------------------ the rows

    def _opened(self) -> AbstractContextManager[io.TextIOWrapper]:
        return stream_of(self.file, self.study.form if self.study else None)

    def _lines(self, stream: io.TextIOWrapper) -> Iterator[list[str]]:
        return csv.reader(stream, delimiter=self._separator, strict=True)

    def _frames(self) -> Iterator[pd.DataFrame]:
        """Yield the rows as text, or as a Parquet file has them."""
        import pandas as pd

        rows = min(8, max(1, CELLS // len(self.names) // BLOCK)) * BLOCK
        if self._parquet:
            from pyarrow import parquet

            for batch in parquet.ParquetFile(self.file).iter_batches(rows):
                yield batch.to_pandas().set_axis(self.names, axis=1)
            return
        taken: list[list[str]] = []
        number = 0
        with self._opened() as stream:
            lines = (line for line in self._lines(stream) if (any(line) if self.study else line))
            if not self._headless:
                next(lines)
            for number, line in enumerate(lines, 1):
                if len(line) != len(self.names):
                    why = f"there are {len(self.names)} columns; is it separated by {self._separator!r}?"
                    self.wrong.add(
                        "lines of another length", why, [f"row {number} has {len(line)} values"], 1, row=number
                    )
                    line = [""] * len(self.names)
                taken.append(line)
                if len(taken) == rows:
                    yield pd.DataFrame(taken, columns=self.names, dtype=str)
                    taken = []
        if taken:
            yield pd.DataFrame(taken, columns=self.names, dtype=str)

    def _inputs(self, frame: pd.DataFrame, first: int) -> NDArray[np.float32]:
        """Return the features of some rows, in the model's order; collect invalid values."""
        import pandas as pd

        inputs = np.empty((len(frame), len(self.features)), np.float32)
        described: Mapping[str, Any] = {}
        if self.study:
            frame = frame.apply(as_text)
            described, invalid = self.study.values(frame)
            for name, wrong in invalid.items():
                for why, places in wrong.items():
                    self._note(name, why, places, frame[name], first)
        for index, name in enumerate(self.features):
            if self.study:
                numbers = described[name]
                column = frame[name] if name in frame else pd.Series(numbers)
            else:
                column, numbers, bad = numbers_in(frame[name])
                why = "it must be a number with a decimal point, or empty where it is missing"
                self._note(name, why, bad, column, first)
            large = np.flatnonzero(np.abs(numbers) > LARGEST)
            self._note(name, f"it must be within +-{LARGEST:g}", large, column, first)
            inputs[:, index] = numbers
        return inputs

    def _note(
        self, name: str, why: str, places: Sequence[int] | NDArray[np.int64], column: pd.Series, first: int
    ) -> None:
        if len(places):
            rows = (f"row {place + first} ({str(column.iloc[place])!r})" for place in places)
            self.wrong.add(f"column {name!r}", why, rows, len(places), key=name, row=int(places[0]) + first)

    def _unreadable(self, error: Exception) -> DataError:
        told = f"{self.file} cannot be read: {reason(error)}"
        text = self.file.suffix.lower() not in READERS
        return DataError(f"{told}; it must be text separated by {self._separator!r}" if text else told)


class InferenceImages:
    """Images of patients, listed as in ``labels.csv``: a column ``path`` and any others. Opening it reads the list.

    Attributes as for `InferenceTable`; all columns are kept.
    """

    missing = 0

    def __init__(self, file: Path, schema: ModelSchema, data_summary: DataSummary) -> None:
        self.file, self.notes = file, list[str]()
        self._shape = data_summary.shape
        # A colour model takes grey images; a grey model takes colour images only if it was trained with image-colour.
        colour = "rgb" if schema.image_colour == "auto" and data_summary.shape[0] == 3 else schema.image_colour
        self._form = ImageForm(schema.image_size, schema.image_fit, colour)
        try:
            with stream_of(file, Form(delimiter=",", decimal=".")) as stream:
                self.kept, *self._rows = [tuple(map(str.strip, line)) for line in csv.reader(stream) if line] or [()]
        except DataError:
            raise
        except (OSError, ValueError, csv.Error) as error:
            raise DataError(f"{file} cannot be read: {reason(error)}") from None
        wrong = list(wrong_names(file, self.kept))
        if "path" not in self.kept:
            columns = ", ".join(self.kept) or "none"
            wrong.append(DataError(f"{file}: no column 'path', which names the images; columns: {columns}", key="path"))
        for number, row in enumerate(self._rows, 1):
            if len(row) != len(self.kept):
                text = f"row {number} has {len(row)} values for {len(self.kept)} columns"
                wrong.append(DataError(f"{file}: {text}"))
        if not self._rows:
            wrong.append(DataError(f"{file} has no rows"))
        if wrong:
            raise DataError.join(wrong)

    def chunks(self) -> Iterator[Chunk]:
        """Decode the images; see `InferenceTable.chunks`."""
        faults, place = Faults(self.file, self.file.name), self.kept.index("path")
        for start in range(0, len(self._rows), BLOCK):
            rows = self._rows[start : start + BLOCK]
            paths = {f"row {number} ({shown(row[place])})": row[place] for number, row in enumerate(rows, start + 1)}
            problems: list[DataError] = []
            images = read_images(located(self.file.parent, paths, faults), self._form, faults, problems)
            if problems or faults.errors():
                continue
            if images.shape[1:] != self._shape:
                (have, need) = ("x".join(map(str, shape)) for shape in (images.shape[1:], self._shape))
                wrong = f"have the shape {have}, and the model takes {need}"
                kind = Kind(wrong, "convert them as in training", "refused")
                faults.add(kind, f"rows {start + 1} to {start + len(rows)}")
            else:
                yield Chunk(torch.from_numpy(images), [list(row) for row in rows])
        if found := faults.errors():
            raise DataError.join(found)
        self.notes += map(str, faults.warnings())
