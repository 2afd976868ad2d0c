"""Batch prediction: scores for the patients of a file, written with the columns that are not features."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edelweiss.common import amount
from edelweiss.common.files import as_path, reason
from edelweiss.datasets.errors import DataError
from edelweiss.datasets.site.inference_input import open_inference_input
from edelweiss.datasets.units import OutlierCounter, rounded
from edelweiss.models.storage import atomic_writer

if TYPE_CHECKING:
    from edelweiss.datasets.site.inference_input import InferenceImages, InferenceTable
    from edelweiss.problems.trained_model import TrainedModel


MOST = 10  # features named in warnings


def predict(
    model: TrainedModel,
    source: str | Path,
    target: str | Path,
    others: Sequence[str] = (),
    warn: Callable[[str], None] = lambda text: print(f"warning: {text}", file=sys.stderr),
) -> list[str]:
    """Write a CSV file with a row for each patient: the columns that are not features, score and probability.

    With several labels there is a score and a probability for each.

    The source is a table, a list of images, or a folder with one of them, as at a site; `others` are columns that are
    not features, see `InferenceTable`. The target is a new file, written atomically. `warn` receives warnings about
    features far outside the training range, see `datasets.units`, which needs a model that standardises its inputs.
    Returns notes for the reader.

    Raises
    ------
    DataError
        With all problems of the source, or if the target cannot be written.
    """
    rows = open_inference_input(source, model.model_schema, model.data_summary, others)
    added = model.columns
    if twice := [name for name in added if name in rows.kept]:
        raise DataError(f"{rows.file}: the column {twice[0]!r} would occur twice: rename it", key=twice[0])
    count, watched = 0, _watched(model)
    try:
        path = as_path(target)
        if os.path.lexists(path):
            raise DataError(f"{path} exists: remove it, or name another file with --to", key="target", value=path)
        with atomic_writer(path) as draft:
            file = io.TextIOWrapper(draft, encoding="utf-8", newline="", write_through=True)
            lines = csv.writer(file)
            lines.writerow([*rows.kept, *added])
            for chunk in rows.chunks():
                scores = model.scores(chunk.inputs)
                if watched:
                    watched.add(chunk.inputs.double().numpy())
                count += len(scores)
                values = model.output_values(scores)
                lines.writerows([*kept, *map(repr, own)] for kept, *own in zip(chunk.kept, *values, strict=True))
            file.detach()
    except OSError as error:
        raise DataError(f"{target} cannot be written: {reason(error)}", key="target", value=target) from None
    for text in _outside(model, rows, watched) if watched else ():
        warn(text)
    return [*model.notes, *rows.notes, *_summary(model, count, rows.missing, path)]


def _watched(model: TrainedModel) -> OutlierCounter | None:
    """Return the outlier counter of a table; None if the training means are unknown."""
    if len(model.data_summary.shape) != 1 or not model.data_summary.shift:
        return None
    return OutlierCounter(
        np.array(model.data_summary.shift, np.float64), np.array(model.data_summary.scale, np.float64)
    )


def _outside(model: TrainedModel, rows: InferenceTable | InferenceImages, watched: OutlierCounter) -> Iterator[str]:
    """Yield a warning for each feature with values far outside the training range."""
    names = getattr(rows, "features", ())
    found = watched.found()
    for feature, (many, of, typical) in list(found.items())[:MOST]:
        yield (
            f"{rows.file}: column {names[feature]!r}: {many:,} of {of:,} values are far outside the training range: "
            f"{rounded(typical)} on average; in training the mean is {rounded(watched.mean[feature])} and the standard "
            f"deviation {rounded(watched.spread[feature], 2)}. Is it in another unit, or coded differently? Then the "
            "scores of these rows are meaningless"
        )
    if len(found) > MOST:
        yield f"{rows.file}: likewise in {len(found) - MOST} more columns"


def _summary(model: TrainedModel, count: int, missing: int, path: Path) -> Iterator[str]:
    if missing:
        filled = "the mean over the training samples" if model.model_schema.missing == "mean" else "0"
        yield f"{amount(missing, 'missing value')}, filled with {filled}, as in training"
    yield model.describe_scores()
    yield f"{amount(count, 'patient')} in {path}"
