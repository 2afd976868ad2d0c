"""Label columns whose values are 1, 0, uncertain (-1) or blank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edelweiss.common import CLOSE, hint
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.labels import DEVICES, UNKNOWN, VALUES, Labels
from edelweiss.datasets.numbers import MISSING, canonical
from edelweiss.datasets.site.table import as_text, beside_labels, other_ways
from edelweiss.datasets.source import Ints, Mask

if TYPE_CHECKING:
    import pandas as pd

_CODES = {"1": 1, "0": 0}
_UNCERTAIN = "-1"


def read_clinical(
    frame: pd.DataFrame, file: Path, labels: Labels, problems: list[DataError]
) -> tuple[Ints, NDArray[np.float32]]:
    """Read label columns: classes (1, 0, `UNKNOWN`) and values as written (1, 0, -1, NaN); (N, L), or (N,) of one.

    `labels` has the columns' names here. This site lacks a label whose column is all blank. The values as written
    identify a row independently of the run. If there are problems, which are collected, ignore the arrays.
    """
    columns = [str(name) for name in frame.columns]
    if absent := [name for name in labels.names if name not in frame.columns]:
        listed = "; ".join(f"no label column {name!r}.{hint(name, columns, CLOSE)}" for name in absent)
        text = (
            f"{file}: {listed} Columns: {', '.join(columns)}.{other_ways(labels.names, columns)} If this site has no "
            "such label, add the column and leave it blank in all rows"
        )
        public = f"{len(absent)} of {len(labels.names)} label columns are not among its {len(columns)} columns"
        missing = DataError(text, f"{file.name}: {public}", key="label", value=absent[0])
        raise DataError.join([missing, *beside_labels(frame, file)])
    if labels.healthy in labels.names:
        problems.append(DataError.plain(f"label {labels.healthy!r} means that no other is positive: leave it out"))
    classes = np.full((len(frame), len(labels.names)), UNKNOWN, np.int64)
    written = np.full(classes.shape, np.nan, np.float32)
    healthy = np.zeros(len(frame), np.bool_)
    if labels.healthy in columns:
        healthy = (as_text(frame[labels.healthy]).map(canonical) == "1").to_numpy(np.bool_)
    for place, (name, uncertain) in enumerate(zip(labels.names, labels.uncertain, strict=True)):
        shown = as_text(frame[name])
        values = shown.map(canonical)
        blank, doubtful = values.isin(MISSING).to_numpy(np.bool_), (values == _UNCERTAIN).to_numpy(np.bool_)
        if blank.all():  # this site lacks the label
            continue
        wrong = ~blank & ~doubtful & ~values.isin(_CODES).to_numpy(np.bool_)
        rules = {"uncertain": (uncertain, doubtful), "blank": (labels.blank, blank & ~healthy)}
        unsaid = {key: rows for key, (rule, rows) in rules.items() if not rule}
        problems += _mistakes(file, name, shown, wrong, unsaid)
        column = values.map(_CODES).fillna(UNKNOWN).to_numpy(np.int64, copy=True)
        written[:, place] = np.where(blank, np.nan, column)
        column[doubtful] = VALUES.get(uncertain, UNKNOWN)
        column[blank] = VALUES.get(labels.blank, UNKNOWN)
        if name != DEVICES:
            column[healthy] = 0
        classes[:, place] = column
    if not problems and (classes == UNKNOWN).all():
        text = "no row has a known label"
        problems.append(DataError(f"{file}: {text}; fill the columns in", f"{file.name}: {text}"))
    return (classes, written) if labels.several else (classes[:, 0], written[:, 0])


def _mistakes(file: Path, name: str, shown: pd.Series, wrong: Mask, unsaid: Mapping[str, Mask]) -> Iterator[DataError]:
    """Yield the problems of a label: invalid values, and by key those for which the run has no rule."""
    if wrong.any():
        at = examples([f"row {row + 1} ({str(shown.iloc[row])!r})" for row in np.flatnonzero(wrong)])
        yield DataError(
            f"{file}: label {name!r} has {at}; allowed: 1, 0, -1 (uncertain) or blank",
            f"{file.name}: a label has {wrong.sum()} values that are not 1, 0, -1 or blank",
            key=name,
            row=int(wrong.argmax()) + 1,
        )
    for key, rows in unsaid.items():
        if rows.any():
            at = examples([f"row {row + 1}" for row in np.flatnonzero(rows)])
            what = "uncertain (-1)" if key == "uncertain" else key
            yield DataError(
                f"{file}: label {name!r} is {what} in {at}; set the run's key {key} to say how to read this",
                f"{file.name}: a label is {what} in {rows.sum()} rows, and the run's key {key} is not set",
                key=key,
                row=int(rows.argmax()) + 1,
            )


def tally(frame: pd.DataFrame, names: Sequence[str]) -> dict[str, tuple[int, int, int, int]]:
    """Count for each label column the values that are 1, 0, uncertain and blank."""
    values = {name: as_text(frame[name]).map(canonical) for name in names}
    return {
        name: (
            int((own == "1").sum()),
            int((own == "0").sum()),
            int((own == _UNCERTAIN).sum()),
            int(own.isin(MISSING).sum()),
        )
        for name, own in values.items()
    }
