"""A table of one's own in a simulation: read as a hospital's is, and dealt to sites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edelweiss.common import CLOSE, hint, natural, shorter
from edelweiss.common.files import as_path, is_file
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.numbers import MISSING
from edelweiss.datasets.site import PATIENT, read_rows
from edelweiss.datasets.site.table import as_text, read_table
from edelweiss.datasets.source import Ints, Source
from edelweiss.datasets.sources.arrays import gone

if TYPE_CHECKING:
    import pandas as pd

    from edelweiss.datasets.labels import Labels
    from edelweiss.datasets.site.study import Study

SUFFIXES = (".csv", ".parquet")


def read_grouped(
    file: str, label: str, binary: bool, group: str, study: Study | None, labels: Labels | None = None
) -> Source:
    """Read a table.

    Parameters
    ----------
    file
        A CSV or Parquet file as hospitals have it; with a study any text file that the study describes.
    label, binary
        See `datasets.site.read_site`.
    group
        Name of the column that says what each row belongs to, a hospital or a patient; no feature. Empty: none does.
    study
        What the table means.
    labels
        See `datasets.site.read_site`.

    Returns
    -------
    source
        With groups and their names, in the natural order of the names, where there is a group column; features in the
        order of their names. Whose a row is says the study's patient column, or without a study one called
        ``"patient"``, which is no feature.

    Raises
    ------
    DataError
        Naming everything that is wrong.
    """
    if not is_file(file):
        text = f"data-file {shorter(file)}: there is no such file{gone(file)}"
        raise DataError(text, "data-file: there is no such file")
    path = as_path(file)
    if not study and path.suffix not in SUFFIXES:
        text = f"must be a table, {' or '.join(SUFFIXES)}, or have a study file that describes it"
        raise DataError(f"data-file {path}: {text}", f"data-file: {text}")
    frame = study.table(path, also=group) if study else read_table(path)
    label, patient = (study.label, study.patient) if study else (label, PATIENT if PATIENT in frame.columns else "")
    if patient == (labels.names[0] if labels else label):
        patient = ""
    problems: list[DataError] = []
    groups, names = _groups(frame, path, group, label, problems) if group else (None, ())
    try:
        own = frame.drop(columns=group) if names and group != patient else frame
        source = read_rows(own, path, label, binary, patient, labels=labels, maps=not study)
    except DataError as error:
        problems.append(error)
    if problems:
        raise DataError.join(problems)
    patient_ids = source.patient_ids if source.by_patient else None
    return replace(source, groups=groups, group_names=names, patient_ids=patient_ids, row_ids=None)


def _groups(
    frame: pd.DataFrame, file: Path, group: str, label: str, problems: list[DataError]
) -> tuple[Ints | None, tuple[str, ...]]:
    """Return what each row belongs to, and the names of that; what is wrong goes to the problems."""
    if group not in frame.columns or group == label:
        columns = [str(name) for name in frame.columns if name != label]
        text = f"{file}: no group-column {group!r}; columns: {', '.join(columns)}.{hint(group, columns, CLOSE)}"
        problems.append(DataError(text, f"{file.name}: the group-column is not among its columns"))
        return None, ()
    values = as_text(frame[group])
    if len(missing := np.flatnonzero(values.str.lower().isin(MISSING))):
        rows = examples([f"row {row + 1}" for row in missing])
        text = f"{file}: group-column {group!r} is missing in {rows}; fill it in or remove the rows"
        problems.append(DataError(text, f"{file.name}: the group-column is missing in {len(missing)} rows"))
    names, groups = np.unique(values.to_numpy(str), return_inverse=True)
    order = sorted(range(len(names)), key=lambda place: natural(str(names[place])))
    return np.argsort(order)[groups].astype(np.int64), tuple(str(names[place]) for place in order)
