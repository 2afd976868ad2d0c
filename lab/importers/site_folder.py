"""The site folder that is made of a source: labels.csv, and the images by one link or as copies."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from edelweiss.common import shorter
from edelweiss.common.files import as_path, reason
from edelweiss.datasets.errors import DataError
from edelweiss.lab.importers import IMPORTERS, Importer
from edelweiss.lab.importers.account import account, next_steps, reasons
from edelweiss.lab.importers.listing import IMAGES, Listing
from edelweiss.lab.importers.release import Images, Release


def import_source(
    name: str,
    source: str,
    target: str,
    options: Mapping[str, str],
    images: str = "",
    copy: bool = False,
    say: Callable[[str], None] = print,
) -> Listing:
    """Make a site folder of a source; DataError naming everything that is wrong; then nothing is left at ``target``.

    `target` does not exist, or is empty. The images are linked as one folder, or those that are kept are copied. `say`
    takes each line about what was kept and left out, and why.
    """
    importer = IMPORTERS[name]
    problems: list[DataError] = []
    folder = root = _folder("FOLDER", source, problems)
    if images:
        root = _folder("--images", images, problems)
    place = _free(target, problems)
    if problems:
        raise DataError.join(problems)
    release = Release(folder)
    try:
        listing = importer.read(release, **options)
        release.check()
    except DataError:
        release.problems += _expected(name, release)
        release.check()
        raise
    _find_images(listing, importer, root)
    _write(listing, place, root, copy, say)
    for line in (*account(listing, release.read), *next_steps(place, None if copy else root)):
        say(line)
    return listing


# ---------------------------------------------------------------------- before anything is read


def _folder(what: str, text: str, problems: list[DataError]) -> Path:
    try:
        folder = as_path(text).absolute()
        os.scandir(folder).close()
    except OSError as error:
        text = f"{what} {shorter(text)} cannot be read: {reason(error)}; name the folder with the source's files"
        problems.append(DataError(text))
        return Path()
    return folder


def _free(target: str, problems: list[DataError]) -> Path:
    """Return the folder to make; a problem where something is there."""
    try:
        place = as_path(target).absolute()
        if os.path.lexists(place) and (not place.is_dir() or place.is_symlink() or any(place.iterdir())):
            text = f"TARGET {shorter(target)} is there already, and no empty folder; name another one"
            problems.append(DataError(text))
    except OSError as error:
        problems.append(DataError(f"TARGET {shorter(target)} cannot be used: {reason(error)}"))
        return Path()
    return place


def _expected(name: str, release: Release) -> Iterator[DataError]:
    """Yield what should be in a folder that lacks the main table, and which source it looks like."""
    main, *others = IMPORTERS[name].layout
    if not release.has(main):
        yield DataError(f"{name} is a folder with {main}, {', '.join(others)}; the tables may be packed with gzip")
        for other, importer in IMPORTERS.items():
            if release.has(importer.layout[0]):
                yield DataError(f"the folder looks like {other}: it has {importer.layout[0]}")


# ---------------------------------------------------------------------- images


def _find_images(listing: Listing, importer: Importer, root: Path) -> None:
    """Put where each image is into the listing, and leave out those that are missing."""
    if listing.frame.empty:
        raise DataError("nothing is left to import: " + "; ".join(reasons(listing)))
    files = Images(root, importer.folders, importer.endings)
    found = listing.frame["path"].map(files.find)
    if not (found != "").any():
        sought = f"{listing.frame['path'].iloc[0]}{importer.endings[0]}"
        raise DataError(
            f"{root} has none of the {len(found):,} images, such as {sought}; the source has "
            f"{importer.layout[-1]}. Put the images there, or name their folder with --images"
        )
    listing.leave_out(found == "", "missing, or out of reach")
    listing.frame = listing.frame.assign(path=f"{IMAGES}/" + found[listing.frame.index])


def _write(listing: Listing, place: Path, root: Path, copy: bool, say: Callable[[str], None]) -> None:
    """Write the folder under another name, and rename it when it is complete."""
    draft = place.with_name(f".{place.name}-{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        listing.frame.to_csv(draft / "labels.csv", index=False)
        if copy:
            _copy(listing, draft, root, say)
        else:
            (draft / IMAGES).symlink_to(root, target_is_directory=True)
        os.replace(draft, place)
    except OSError as error:
        raise DataError(f"TARGET {place} cannot be made: {error.filename or place}: {reason(error)}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _copy(listing: Listing, draft: Path, root: Path, say: Callable[[str], None]) -> None:
    files = {draft / path: root / Path(path).relative_to(IMAGES) for path in listing.frame["path"]}
    need, free = sum(file.stat().st_size for file in files.values()), shutil.disk_usage(draft).free
    if need > free:
        raise DataError(f"the images take {need / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free: leave out --copy")
    say(f"copying {len(files):,} images, {need / 1e9:,.1f} GB")
    for folder in {file.parent for file in files}:
        folder.mkdir(parents=True, exist_ok=True)
    for there, file in files.items():
        shutil.copyfile(file, there)
