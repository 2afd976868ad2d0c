"""The images of a site's labels.csv: which are read, where they are, and which are left out."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np

from edelweiss.common import hint, shown
from edelweiss.common.files import is_address, is_file
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.image_cache import ImageCache
from edelweiss.datasets.image_faults import ADDRESS, FOLDER, LINKED, LOOP, MISSING, OUTSIDE, TWICE, Faults, Kind
from edelweiss.datasets.image_file import UNCHANGED, ImageForm
from edelweiss.datasets.images import read_images
from edelweiss.datasets.numbers import canonical
from edelweiss.datasets.patient_ids import patient_key
from edelweiss.datasets.site.table import as_text
from edelweiss.datasets.source import Bytes, Change, Mask

if TYPE_CHECKING:
    import pandas as pd

BLANK = "blank"  # how a run writes an empty view


@dataclass(frozen=True)
class ImageRules:
    """How a site's images are read."""

    form: ImageForm = UNCHANGED  # size, colour and fit
    views: tuple[str, ...] = ()  # values of the column `view`, in any case; "blank" for empty ones. Empty: all
    bad_images: float = 0.0  # in [0, 1): share of these images that may be unreadable and are then left out
    follow_links: bool = False  # whether links may lead out of the folder
    cache: ImageCache | None = None  # cache of decoded images; None: in memory


@dataclass(frozen=True)
class Listed:
    """The images read from a list."""

    pixels: Bytes  # shape (n, C, H, W)
    kept: Mask  # shape (N,) bool: the rows of these n images
    warnings: list[DataError]  # problems that the site continues with, such as unreadable images that are left out
    notes: list[str]  # what was left out as the run asks
    changes: list[Change]  # how many rows were left out


PLAIN = ImageRules()


def read_listed(
    frame: pd.DataFrame, file: Path, rules: ImageRules, problems: list[DataError], labels: Sequence[str], patient: str
) -> Listed:
    """Decode the images of a list; errors are added to ``problems``.

    An image may have several rows, for instance one per bounding box. It is read once if they agree on the ``labels``,
    the ``patient`` and the view, and rejected otherwise.
    """
    listed = Listed(np.zeros((0, 1, 1, 1), np.uint8), np.ones(len(frame), np.bool_), [], [], [])
    if "path" not in frame.columns:
        problems.append(
            DataError(
                f"{file}: no column 'path'; columns: {', '.join(map(str, frame.columns))}",
                f"{file.name}: no column 'path'",
                key="path",
            )
        )
        return listed
    seen = _seen(frame, file, rules.views, problems, listed)
    again = _again(frame, [name for name in labels if name in frame], [n for n in (patient, "view") if n in frame])
    listed.kept[:] = seen & ~again
    if count := int((seen & again).sum()):
        what = "rows repeat an image with the same values: each image is read once"
        listed.changes.append(Change(count, len(frame), what))
        listed.notes.append(f"{file}: {listed.changes[-1]}")
    rows = [int(row) for row in np.flatnonzero(listed.kept)]
    texts = as_text(frame["path"])
    names = [f"row {row + 1} ({shown(texts.iloc[row])})" for row in rows]
    faults = Faults(file, file.name, rules.bad_images, len(rows))
    files = located(file.parent, dict(zip(names, texts.iloc[rows], strict=True)), faults, rules.follow_links, once=True)
    pixels = read_images(files, rules.form, faults, problems, rules.cache)
    bad = faults.bad
    listed.kept[rows] = [name not in bad for name in names]
    if left := len(rows) - int(listed.kept.sum()):
        listed.changes.append(Change(left, len(rows), "images cannot be used and are left out"))
    return Listed(pixels, listed.kept, listed.warnings + faults.warnings(), listed.notes, listed.changes)


def _again(frame: pd.DataFrame, labels: Sequence[str], others: Sequence[str]) -> Mask:
    """Return which rows repeat the image of an earlier row, with the same values in these columns."""
    cells = {("path", ""): as_text(frame["path"]).map(lambda text: str(PurePath(text)))}  # `./a` is `a`
    cells |= {("label", name): as_text(frame[name]).map(canonical) for name in labels}
    cells |= {("other", name): as_text(frame[name]).map(patient_key) for name in others}  # which ignores case
    again: Mask = type(frame)(cells).duplicated().to_numpy(np.bool_)
    return again


def located(
    folder: Path, paths: dict[str, str], faults: Faults, follow_links: bool = False, *, once: bool = False
) -> dict[str, Path]:
    """Resolve the paths of images; unusable ones are added to ``faults``.

    Paths, by the names that messages use, are relative to the folder and must stay in it. With `follow_links` a link in
    the folder may lead out of it; a path never may. With `once` each file may occur only once.
    """
    base, files = folder.resolve(), dict[str, Path]()
    first: dict[Path, str] = {}
    for name, text in paths.items():
        place = _place(base, text, follow_links)
        if isinstance(place, Kind):
            faults.add(place, name)
        elif once and place in first:
            faults.add(TWICE, name, f"as {first[place].partition(' (')[0]}")
        else:
            files[name] = place
            first[place] = name
    return files


def _place(base: Path, text: str, follow_links: bool) -> Path | Kind:
    """Resolve a path, or return its fault."""
    if is_address(text):
        return ADDRESS
    if "\\" in text and not is_file(base / text):  # a path of Windows
        text = text.replace("\\", "/")
    inside = not PurePath(text).is_absolute() and ".." not in PurePath(text).parts
    try:
        path = (base / text).resolve(strict=True)
    except (OSError, ValueError, RuntimeError) as error:  # missing, too long, with a NUL, a symlink loop
        circle = isinstance(error, RuntimeError) or getattr(error, "errno", None) == errno.ELOOP
        return LOOP if circle else MISSING if inside else OUTSIDE
    if not path.is_relative_to(base) and not (inside and follow_links):
        return LINKED if inside else OUTSIDE
    return path if is_file(path) else FOLDER if path.is_dir() and path != base else MISSING


def _seen(frame: pd.DataFrame, file: Path, views: tuple[str, ...], problems: list[DataError], listed: Listed) -> Mask:
    """Return which rows have one of the run's views."""
    if not views:
        return np.ones(len(frame), np.bool_)
    wanted = f"views = {', '.join(views)!r}"
    if "view" not in frame.columns:
        columns = [str(name) for name in frame.columns]
        problems.append(
            DataError(
                f"{file}: no column 'view', and the run has {wanted}; columns: {', '.join(columns)}."
                f"{hint('view', columns)} Add it, or leave the run's views empty",
                f"{file.name}: no column 'view', and the run has {wanted}",
                key="view",
            )
        )
        return np.ones(len(frame), np.bool_)
    texts = as_text(frame["view"]).replace("", BLANK)
    counts = Counter(texts)
    there = {text.casefold() for text in counts}
    seen: Mask = texts.str.casefold().isin([view.casefold() for view in views]).to_numpy(np.bool_)
    absent = [f"{view!r}{hint(view, counts)}" for view in views if view.casefold() not in there]
    found = examples([f"{view!r} ({count} rows)" for view, count in counts.most_common()])
    if not seen.any():
        text = f"{file}: no row has {wanted}: {'; '.join(absent)} The column has {found}"
        problems.append(DataError(text, f"{file.name}: no row has {wanted}", key="view"))
        return np.ones(len(frame), np.bool_)
    if absent:
        text = f"{file}: no row has view {'; '.join(absent)} The column has {found}"
        public = f"{file.name}: {len(absent)} of the run's views do not occur"
        listed.warnings.append(DataError(text, public, key="view"))
    left_out = len(seen) - int(seen.sum())
    listed.changes.append(Change(left_out, len(seen), f"rows are left out by {wanted}"))
    listed.notes.append(f"{file}: {left_out} of {len(seen)} rows are left out by {wanted}; the column has {found}")
    return seen
