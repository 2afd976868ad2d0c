"""The user's own table, to be split across simulated sites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edelweiss.common import CLOSE, hint, natural, shorter
from edelweiss.common.files import as_path, is_file
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.numbers import MISSING
from edelweiss.datasets.site import PATIENT, read_rows, texts
from edelweiss.datasets.site.formats import FOUND
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

    The file is CSV or Parquet like a hospital's, or with a study any text file that it describes. `group` names the
    column with each row's hospital or patient, which is not a feature; groups are in the natural order of names. The
    patient ids are in the study's patient column, or without a study in a column "patient". The rest is as for
    `datasets.site.read_site`.

    Raises
    ------
    DataError
        With all problems.
    """
    if not is_file(file):
        text = f"data-file {shorter(file)}: there is no such file{gone(file)}"
        raise DataError(text, "data-file: there is no such file", key="data-file")
    path = as_path(file)
    if not study and path.suffix not in SUFFIXES:
        text = f"must be a table, {' or '.join(SUFFIXES)}, or have a study file that describes it"
        raise DataError(f"data-file {path}: {text}", f"data-file: {text}", key="data-file")
    described = study.read(path, also=group) if study else None
    frame = described.frame if described else read_table(path, texts(label, labels, PATIENT, group))
    label, patient = (study.label, study.patient) if study else (label, PATIENT if PATIENT in frame.columns else "")
    if patient == (labels.names[0] if labels else label):
        patient = ""
    problems: list[DataError] = []
    indicators = described.indicators if described else ()
    groups, names = _groups(frame, path, group, label, problems) if group else (None, ())
    try:
        own = frame.drop(columns=group) if names and group != patient else frame
        source = read_rows(own, path, label, binary, patient, labels=labels, maps=not study, indicators=indicators)
    except DataError as error:
        problems.append(error)
    if problems:
        raise DataError.join(problems)
    patient_ids = source.patient_ids if source.by_patient else None
    if described:
        source = replace(source, changes=described.changes, notes=described.notes)
    elif said := frame.attrs.get(FOUND, ""):
        source = replace(source, notes=(f"{path.name}: {said}",))
    return replace(source, groups=groups, group_names=names, patient_ids=patient_ids, row_ids=None)


def _groups(
    frame: pd.DataFrame, file: Path, group: str, label: str, problems: list[DataError]
) -> tuple[Ints | None, tuple[str, ...]]:
    """Return each row's group and the groups' names; errors are added to ``problems``."""
    if group not in frame.columns or group == label:
        columns = [str(name) for name in frame.columns if name != label]
        text = f"{file}: no group-column {group!r}; columns: {', '.join(columns)}.{hint(group, columns, CLOSE)}"
        public = f"{file.name}: the group-column is not among its columns"
        problems.append(DataError(text, public, key="group-column", value=group))
        return None, ()
    values = as_text(frame[group])
    if len(missing := np.flatnonzero(values.str.lower().isin(MISSING))):
        rows = examples([f"row {row + 1}" for row in missing])
        text = f"{file}: group-column {group!r} is missing in {rows}; fill it in or remove the rows"
        public = f"{file.name}: the group-column is missing in {len(missing)} rows"
        problems.append(DataError(text, public, key="group-column", row=int(missing[0]) + 1))
    names, groups = np.unique(values.to_numpy(str), return_inverse=True)
    order = sorted(range(len(names)), key=lambda place: natural(str(names[place])))
    return np.argsort(order)[groups].astype(np.int64), tuple(str(names[place]) for place in order)
