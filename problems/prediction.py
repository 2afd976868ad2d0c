"""Scores for patients: a file in, a file out, the columns that are no features kept."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from datasets.errors import DataError
from datasets.site.newcomers import newcomers
from keys.files import as_path, reason
from models.storage import replacing

if TYPE_CHECKING:
    from problems.trained import TrainedModel


def predict(model: TrainedModel, source: str | Path, target: str | Path, others: Sequence[str] = ()) -> list[str]:
    """Write a CSV file with a line for each patient: what is known besides the features, the score, the probability.

    Of several labels there is a score, and a probability, for each.

    Parameters
    ----------
    model
        What is used.
    source
        A table, a list of images, or a folder that holds one of them as a site's does.
    target
        A file that does not exist yet. It is there when it is complete, and not before.
    others
        Columns that are no features, see `NewcomerTable`.

    Returns
    -------
    list of str
        What whoever reads it should know, a line each.

    Raises
    ------
    DataError
        Naming everything that is wrong with the source; or when the target cannot be written.
    """
    rows = newcomers(source, model.meaning, model.cohort, others)
    added = model.columns
    if twice := [name for name in added if name in rows.kept]:
        raise DataError(f"{rows.file}: the column {twice[0]!r} would be there twice: rename it")
    count = 0
    try:
        path = as_path(target)
        if os.path.lexists(path):
            raise DataError(f"{path} exists: remove it, or name another file with --to")
        with replacing(path) as draft:
            file = io.TextIOWrapper(draft, encoding="utf-8", newline="", write_through=True)
            lines = csv.writer(file)
            lines.writerow([*rows.kept, *added])
            for chunk in rows.chunks():
                scores = model.scores(chunk.inputs)
                count += len(scores)
                values = model.told(scores)
                lines.writerows([*kept, *map(repr, own)] for kept, *own in zip(chunk.kept, *values, strict=True))
            file.detach()
    except OSError as error:
        raise DataError(f"{target} cannot be written: {reason(error)}") from None
    return [*model.notes, *rows.notes, *_summary(model, count, rows.missing, path)]


def _summary(model: TrainedModel, count: int, missing: int, path: Path) -> Iterator[str]:
    if missing:
        filled = "the mean over the training samples" if model.meaning.missing == "mean" else "0"
        yield f"{missing:,} missing values, taken as {filled}, as in training"
    yield model.about_scores()
    yield f"{count:,} patients in {path}"
