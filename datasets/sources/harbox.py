"""HARBox: windows of motion-sensor readings from many users' phones, one table per user."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from edelweiss.common import natural, numbers
from edelweiss.common.files import read_file, reason
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.files import SearchPath, cached
from edelweiss.datasets.numbers import LARGEST
from edelweiss.datasets.source import Ints, Source

ACTIVITIES = ("call", "hop", "typing", "walk", "wave")  # classes 0 to 4
FEATURES = tuple(
    f"{sensor} {axis} {step}"
    for step in range(100)  # 2 s at 50 Hz
    for sensor in ("accelerometer", "gyroscope", "magnetometer")
    for axis in "xyz"
)
LABELS = ("activity", "label")  # last name of a header, if a table has one


def read(search_path: SearchPath) -> Source:
    """HARBox (Ouyang et al. 2021, ClusterFL): 900 features of 9 axes of motion, 5 activities; users are natural sites.

    The users are the files <user>.csv under harbox/, in the order of the numbers in their names; see `decode`.
    """
    folders = search_path.under("harbox", "")
    files = next((found for folder in folders if (found := [*folder.glob("*.csv")])), [])
    files.sort(key=lambda file: natural(file.stem))
    if not files:
        raise DataError(
            f"harbox: no <user>.csv in {' or '.join(map(str, folders))}; put one there for each user, with a line per "
            f"window of 2 s: its {len(FEATURES)} numbers and the activity; or set data-root",
            f"harbox was not found under {search_path.names}",
            key="data-root",
        )
    inputs, classes, users = cached("harbox", files, ("inputs", "classes", "users"), partial(decode, files))
    return Source(
        torch.from_numpy(inputs),
        classes,
        len(ACTIVITIES),
        groups=users,
        group_names=tuple(file.stem for file in files),
        features=FEATURES,
    )


def decode(files: Sequence[Path]) -> tuple[NDArray[np.float32], Ints, Ints]:
    """Read the tables of all users, one file each: inputs (n, 900), classes (n,), and the index of the file, (n,).

    A line is a window: 900 numbers separated by commas (the 9 axes at the first time step, then at the second, ...) and
    the activity, by name or as 0 to 4. The first line may be a header.

    Raises
    ------
    DataError
        With the bad lines of all files.
    """
    problems: list[DataError] = []
    tables = [_table(file, problems) for file in files]
    if problems:
        raise DataError.join(problems)
    users = np.repeat(np.arange(len(tables)), [len(classes) for _, classes in tables])
    inputs, classes = (np.concatenate(parts) for parts in zip(*tables, strict=True))
    return inputs, classes, users


def _table(file: Path, problems: list[DataError]) -> tuple[NDArray[np.float32], Ints]:
    """Read one user; errors are added to ``problems``."""
    windows: list[NDArray[np.float32]] = []
    classes: list[int] = []
    bad: list[str] = []
    try:
        lines = read_file(file).decode("utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        problems.append(DataError(f"{file} cannot be read: {reason(error)}", f"harbox: {file.name} cannot be read"))
        return np.empty((0, len(FEATURES)), np.float32), np.empty(0, np.int64)
    for number, line in enumerate(lines, start=1):
        *values, activity = (field.strip() for field in line.split(","))
        if not line.strip() or (number == 1 and activity.lower() in LABELS):
            continue
        try:
            window, label = _window(values), _class(activity)
        except ValueError as error:
            bad.append(f"line {number} has {error}")
        else:
            windows.append(window)
            classes.append(label)
    if bad or not windows:
        problems.append(
            DataError(
                f"{file}: {examples(bad) if bad else 'no rows'}; a line must hold {len(FEATURES)} finite numbers and "
                f"the activity, separated by commas: {', '.join(ACTIVITIES)}, or 0 to {len(ACTIVITIES) - 1}",
                f"harbox: {file.name} has {len(bad)} bad lines" if bad else f"harbox: {file.name} has no rows",
            )
        )
    return np.array(windows, np.float32), np.array(classes, np.int64)


def _window(values: Sequence[str]) -> NDArray[np.float32]:
    """Parse one window; raise ValueError with what the line has."""
    if len(values) != len(FEATURES):
        raise ValueError(f"{len(values)} numbers and an activity")
    try:
        window = np.array(values, np.float64)  # at once: an hour has millions of numbers
        if "_" in (line := "".join(values)) or not line.isascii():  # NumPy accepts these
            raise ValueError
    except ValueError:
        window = np.array([_number(value) for value in values])
    window[np.abs(window) > LARGEST] = np.inf
    if len(wrong := np.flatnonzero(~np.isfinite(window))):
        raise ValueError(f"{values[wrong[0]]!r} as number {wrong[0] + 1}")
    return window.astype(np.float32)


def _number(text: str) -> float:
    try:
        return numbers.number(text)
    except ValueError:
        return np.nan


def _class(activity: str) -> int:
    """Return the class of an activity given by name or number; raise ValueError for any other."""
    names = (*ACTIVITIES, *map(str, range(len(ACTIVITIES))))
    if activity.lower() not in names:
        raise ValueError(f"the activity {activity!r}")
    return names.index(activity.lower()) % len(ACTIVITIES)
