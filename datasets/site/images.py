"""The images that a site's labels.csv names: which of them are looked at, where they lie, and what is left out."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np

from edelweiss.common import hint, shown
from edelweiss.common.files import is_file
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.image_cache import ImageCache
from edelweiss.datasets.image_faults import LINKED, LOOP, MISSING, OUTSIDE, TWICE, Faults, Kind
from edelweiss.datasets.image_file import UNCHANGED, ImageForm
from edelweiss.datasets.images import read_images
from edelweiss.datasets.numbers import canonical
from edelweiss.datasets.site.table import as_text
from edelweiss.datasets.source import Bytes, Change, Mask

if TYPE_CHECKING:
    import pandas as pd

BLANK = "blank"  # how a run writes the view of rows that say none


@dataclass(frozen=True)
class ImageRules:
    """How a site's images are read."""

    form: ImageForm = UNCHANGED  # what they are brought to
    # the values of the column `view` that are looked at, in any case, "blank" where it is empty; empty: all
    views: tuple[str, ...] = ()
    bad_images: float = 0.0  # in [0, 1). The share of these rows whose images may be unreadable, and are then left out
    follow_links: bool = False  # whether links may lead out of the folder
    cache: ImageCache | None = None  # where decoded images are kept; None: in memory


@dataclass(frozen=True)
class Listed:
    """What was read."""

    pixels: Bytes  # shape (n, C, H, W)
    kept: Mask  # shape (N,) bool: which of the rows these n are
    warnings: list[DataError]  # what the site goes on with: unreadable images that are left out, and the like
    notes: list[str]  # what was left out because the run wants it so
    changes: list[Change]  # what was left out, in numbers


PLAIN = ImageRules()


def read_listed(
    frame: pd.DataFrame, file: Path, rules: ImageRules, problems: list[DataError], labels: Sequence[str], patient: str
) -> Listed:
    """Decode the images of a list; what stands in the way goes to the problems.

    Lists of boxes have a row for each, so an image may have several. They are read as one where they agree on the
    ``labels``, the ``patient`` and the view; else the image is refused, for nobody can know which of them is right.
    """
    listed = Listed(np.zeros((0, 1, 1, 1), np.uint8), np.ones(len(frame), np.bool_), [], [], [])
    if "path" not in frame.columns:
        problems.append(
            DataError(
                f"{file}: no column 'path'; columns: {', '.join(map(str, frame.columns))}",
                f"{file.name}: no column 'path'",
            )
        )
        return listed
    seen = _seen(frame, file, rules.views, problems, listed)
    again = _again(frame, [name for name in labels if name in frame], [n for n in (patient, "view") if n in frame])
    listed.kept[:] = seen & ~again
    if count := int((seen & again).sum()):
        what = "rows list an image again and say the same of it: each image is read once"
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
        listed.changes.append(Change(left, len(rows), "images cannot be used, and are left out"))
    return Listed(pixels, listed.kept, listed.warnings + faults.warnings(), listed.notes, listed.changes)


def _again(frame: pd.DataFrame, labels: Sequence[str], others: Sequence[str]) -> Mask:
    """Return which rows name an image that an earlier row names, and have the same in these columns."""
    said = {("path", ""): as_text(frame["path"]).map(lambda text: str(PurePath(text)))}  # of `./a` the same as of `a`
    said |= {("label", name): as_text(frame[name]).map(canonical) for name in labels}
    said |= {("other", name): as_text(frame[name]).str.casefold() for name in others}
    again: Mask = type(frame)(said).duplicated().to_numpy(np.bool_)
    return again


def located(
    folder: Path, paths: dict[str, str], faults: Faults, follow_links: bool = False, *, once: bool = False
) -> dict[str, Path]:
    """Return where images lie, by name; what cannot be used is among the faults.

    Parameters
    ----------
    folder
        What the paths are relative to, and have to lie in.
    paths
        As they are written, by the name that a message has for each.
    faults
        Where to add what is wrong.
    follow_links
        Whether links in the folder may lead out of it; a path never may.
    once
        Whether no two may be the same file.
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
    """Return where a file lies that a path names, or what is wrong with the path."""
    inside = not PurePath(text).is_absolute() and ".." not in PurePath(text).parts
    try:
        path = (base / text).resolve(strict=True)
    except (OSError, ValueError, RuntimeError) as error:  # not there, too long, with a NUL, a loop of links
        circle = isinstance(error, RuntimeError) or getattr(error, "errno", None) == errno.ELOOP
        return LOOP if circle else MISSING if inside else OUTSIDE
    if not path.is_relative_to(base) and not (inside and follow_links):
        return LINKED if inside else OUTSIDE
    return path if is_file(path) else MISSING


def _seen(frame: pd.DataFrame, file: Path, views: tuple[str, ...], problems: list[DataError], listed: Listed) -> Mask:
    """Return which rows are of the views that the run looks at; what is odd is noted."""
    if not views:
        return np.ones(len(frame), np.bool_)
    wanted = f"views = {', '.join(views)!r}"
    if "view" not in frame.columns:
        columns = [str(name) for name in frame.columns]
        problems.append(
            DataError(
                f"{file}: no column 'view', and the run has {wanted}; columns: {', '.join(columns)}."
                f"{hint('view', columns)} Add it, or let the run leave views empty",
                f"{file.name}: no column 'view', and the run has {wanted}",
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
        text = f"{file}: no row is of {wanted}: {'; '.join(absent)} The column has {found}"
        problems.append(DataError(text, f"{file.name}: no row is of {wanted}"))
        return np.ones(len(frame), np.bool_)
    if absent:
        text = f"{file}: no row has view {'; '.join(absent)} The column has {found}"
        listed.warnings.append(DataError(text, f"{file.name}: {len(absent)} of the run's views are those of no row"))
    left_out = len(seen) - int(seen.sum())
    listed.changes.append(Change(left_out, len(seen), f"rows are left out by {wanted}"))
    listed.notes.append(f"{file}: {left_out} of {len(seen)} rows are left out by {wanted}; the column has {found}")
    return seen
