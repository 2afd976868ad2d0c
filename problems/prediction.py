"""Scores for patients: a file in, a file out, the columns that are no features kept."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edelweiss.common.files import as_path, reason
from edelweiss.datasets.errors import DataError
from edelweiss.datasets.site.inference_input import newcomers
from edelweiss.datasets.units import Watched, rounded
from edelweiss.models.storage import atomic_writer

if TYPE_CHECKING:
    from edelweiss.datasets.site.inference_input.images import NewcomerImages
    from edelweiss.datasets.site.inference_input.table import NewcomerTable
    from edelweiss.problems.trained_model import TrainedModel


MOST = 10  # features that are warned of by name


def _to_stderr(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def predict(
    model: TrainedModel,
    source: str | Path,
    target: str | Path,
    others: Sequence[str] = (),
    warn: Callable[[str], None] = _to_stderr,
) -> list[str]:
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
    warn
        Is told of features whose values are far outside of what the model was trained on, see `datasets.units`; where
        the model standardises its inputs, as only that model's file says what these were.

    Returns
    -------
    list of str
        What whoever reads it should know, a line each.

    Raises
    ------
    DataError
        Naming everything that is wrong with the source; or when the target cannot be written.
    """
    rows = newcomers(source, model.meaning, model.data_summary, others)
    added = model.columns
    if twice := [name for name in added if name in rows.kept]:
        raise DataError(f"{rows.file}: the column {twice[0]!r} would be there twice: rename it")
    count, watched = 0, _watched(model)
    try:
        path = as_path(target)
        if os.path.lexists(path):
            raise DataError(f"{path} exists: remove it, or name another file with --to")
        with atomic_writer(path) as draft:
            file = io.TextIOWrapper(draft, encoding="utf-8", newline="", write_through=True)
            lines = csv.writer(file)
            lines.writerow([*rows.kept, *added])
            for chunk in rows.chunks():
                scores = model.scores(chunk.inputs)
                if watched:
                    watched.add(chunk.inputs.double().numpy())
                count += len(scores)
                values = model.told(scores)
                lines.writerows([*kept, *map(repr, own)] for kept, *own in zip(chunk.kept, *values, strict=True))
            file.detach()
    except OSError as error:
        raise DataError(f"{target} cannot be written: {reason(error)}") from None
    for text in _outside(model, rows, watched) if watched else ():
        warn(text)
    return [*model.notes, *rows.notes, *_summary(model, count, rows.missing, path)]


def _watched(model: TrainedModel) -> Watched | None:
    """Return what watches the values of a table; None where the training's mean and spread are not known."""
    if len(model.data_summary.shape) != 1 or not model.data_summary.shift:
        return None
    return Watched(np.array(model.data_summary.shift, np.float64), np.array(model.data_summary.scale, np.float64))


def _outside(model: TrainedModel, rows: NewcomerTable | NewcomerImages, watched: Watched) -> Iterator[str]:
    """Yield a line for each feature whose values are far outside of the training's."""
    names = getattr(rows, "features", ())
    found = watched.found()
    for feature, (many, of, typical) in list(found.items())[:MOST]:
        yield (
            f"{rows.file}: column {names[feature]!r}: {many:,} of {of:,} values are far outside of what the model was "
            f"trained on: {rounded(typical)} on average; in training the mean is {rounded(watched.mean[feature])} and "
            f"the standard deviation {rounded(watched.spread[feature], 2)}. Is it in another unit, or coded otherwise? "
            "Scores of these rows mean nothing if so"
        )
    if len(found) > MOST:
        yield f"{rows.file}: so are values of {len(found) - MOST} more columns"


def _summary(model: TrainedModel, count: int, missing: int, path: Path) -> Iterator[str]:
    if missing:
        filled = "the mean over the training samples" if model.meaning.missing == "mean" else "0"
        yield f"{missing:,} missing values, taken as {filled}, as in training"
    yield model.about_scores()
    yield f"{count:,} patients in {path}"
