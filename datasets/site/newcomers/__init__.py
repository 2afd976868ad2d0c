"""A file of patients that a model is to be used on: read in chunks, by the names of the columns, without labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from datasets.errors import DataError
from datasets.site.newcomers.images import NewcomerImages
from datasets.site.newcomers.table import NewcomerTable
from keys import shown
from keys.files import as_path, is_file, reason

if TYPE_CHECKING:
    from datasets.cohort import Cohort
    from datasets.meaning import Meaning


def newcomers(
    place: str | Path, meaning: Meaning, cohort: Cohort, others: Sequence[str] = ()
) -> NewcomerTable | NewcomerImages:
    """Open a file of patients, or a folder that holds one as a site's folder does.

    Raises
    ------
    DataError
        When there is none, or it is none that the model can be used on.
    """
    images = len(cohort.shape) == 3
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
    return NewcomerImages(path, meaning, cohort) if images else NewcomerTable(path, meaning, cohort, others)
