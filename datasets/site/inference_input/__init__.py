"""New patients to use a model on: read in chunks, by column name, without labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edelweiss.common import shown
from edelweiss.common.files import as_path, is_file, reason
from edelweiss.datasets.errors import DataError
from edelweiss.datasets.site.inference_input.images import InferenceImages
from edelweiss.datasets.site.inference_input.table import InferenceTable

if TYPE_CHECKING:
    from edelweiss.datasets.data_summary import DataSummary
    from edelweiss.datasets.model_schema import ModelSchema


def open_inference_input(
    place: str | Path, meaning: ModelSchema, data_summary: DataSummary, others: Sequence[str] = ()
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
    return (
        InferenceImages(path, meaning, data_summary) if images else InferenceTable(path, meaning, data_summary, others)
    )
