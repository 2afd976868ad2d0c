"""Images of new patients, as a list names them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from edelweiss.common import shown
from edelweiss.common.files import reason
from edelweiss.datasets.errors import DataError
from edelweiss.datasets.image_faults import Faults, Kind
from edelweiss.datasets.image_file import ImageForm
from edelweiss.datasets.images import read_images
from edelweiss.datasets.site.header import wrong_names
from edelweiss.datasets.site.images import located
from edelweiss.datasets.site.inference_input.chunks import BLOCK, Chunk, bounded

if TYPE_CHECKING:
    from edelweiss.datasets.data_summary import DataSummary
    from edelweiss.datasets.model_schema import ModelSchema


class InferenceImages:
    """Images of patients, listed as in ``labels.csv``: a column ``path`` and any others. Opening it reads the list.

    Attributes as for `InferenceTable`; all columns are kept.
    """

    missing = 0

    def __init__(self, file: Path, meaning: ModelSchema, data_summary: DataSummary) -> None:
        self.file, self.notes = file, list[str]()
        self._shape = data_summary.shape
        # A colour model takes grey images; a grey model takes colour images only if it was trained with image-colour.
        colour = "rgb" if meaning.image_colour == "auto" and data_summary.shape[0] == 3 else meaning.image_colour
        self._form = ImageForm(meaning.image_size, meaning.image_fit, colour)
        try:
            with file.open(encoding="utf-8-sig", newline="") as stream:
                self.kept, *self._rows = [
                    tuple(map(str.strip, line)) for line in csv.reader(bounded(stream)) if line
                ] or [()]
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
