"""UCI heart disease: patients of four hospitals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from edelweiss.common.files import read_file, reason
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.files import SearchPath
from edelweiss.datasets.numbers import finite
from edelweiss.datasets.source import Source

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
TARGETS = range(5)
FEATURES = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal"),
)


def read(search_path: SearchPath) -> Source:
    """UCI heart disease: 13 features of 920 patients in four hospitals, natural sites; class 1 is any disease."""
    names = [f"{hospital}.data" for hospital in HOSPITALS]
    folders = search_path.under("heart_disease", "")
    folder = max(folders, key=lambda p: sum((p / name).is_file() for name in names))
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise DataError(
            f"heart-disease: {examples(missing)} not found in {' or '.join(map(str, folders))}; download the "
            "processed.*.data files of https://archive.ics.uci.edu/dataset/45/heart+disease to one of "
            "these folders under those names, or set data-root",
            f"heart-disease: {examples(missing)} not found under {search_path.names}",
            key="data-root",
        )
    tables = [_table(folder / name) for name in names]
    table = np.concatenate(tables)
    return Source(
        torch.from_numpy(table[:, :-1].astype(np.float32)),
        (table[:, -1] > 0).astype(np.int64),
        2,
        groups=np.repeat(np.arange(len(tables)), [len(t) for t in tables]),
        group_names=HOSPITALS,
        features=FEATURES,
    )


def _table(file: Path) -> NDArray[np.float64]:
    """Read one hospital: each line has 13 features (`?` if missing) and the target."""
    rows, bad = [], []
    try:
        lines = read_file(file).decode(errors="replace").splitlines()
    except OSError as error:
        raise DataError(f"{file} cannot be read: {reason(error)}", f"{file.name} cannot be read") from error
    for number, line in enumerate(lines, start=1):
        fields = [field.strip() for field in line.split(",")]
        if not line.strip() or (number == 1 and fields[-1] == "target"):
            continue
        try:
            row = [np.nan if field == "?" else finite(field) for field in fields]
        except ValueError:
            row = []
        if len(row) != len(FEATURES) + 1 or row[-1] not in TARGETS:
            bad.append(f"line {number} ({line[:60]!r})")
        rows.append(row)
    if bad or not rows:
        raise DataError(
            f"{file}: " + (f"{examples(bad)}: " if bad else "no rows: ") + "a line must hold 13 numbers "
            "(or ?) and the target, 0 to 4, separated by commas; download the file again",
            f"heart-disease: {file.name} has {len(bad)} bad lines of {len(rows)}",
        )
    return np.array(rows)
