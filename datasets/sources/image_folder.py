"""Images in one folder per class, as ImageNet and Tiny-ImageNet are distributed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from edelweiss.common import shown
from edelweiss.common.files import is_file, read_file, reason
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.files import SearchPath, cached
from edelweiss.datasets.image_faults import Faults
from edelweiss.datasets.image_file import ImageForm
from edelweiss.datasets.images import read_images
from edelweiss.datasets.source import Bytes, Source

SUFFIXES = (".png", ".jpg", ".jpeg")  # in any case
ANNOTATIONS = "val_annotations.txt"  # Tiny-ImageNet's: per line an image of val/images/, a tab, its class and more

_ByClass = dict[str, list[Path]]


def read(search_path: SearchPath, form: ImageForm) -> Source:
    """Images in train/<class>/, and the official test set in val/<class>/ or test/<class>/, if there is one.

    The folder is ``image-folder/`` in a folder of the search path, or that folder itself. Classes 0, 1, ... are the
    folders in ``train/`` in the order of their names, with all images below them. Test images are arranged alike, or as
    in Tiny-ImageNet in ``val/images/`` with a list of their classes.

    Images are decoded once to ``form``; the cache folder holds a copy as large as they are in memory.

    Raises
    ------
    DataError
        With all problems; images by their paths in the folder.
    """
    folders = search_path.under("image-folder", "")
    folder = next((folder for folder in folders if (folder / "train").is_dir()), None)
    if folder is None:
        raise DataError(
            f"image-folder: no train/ in {' or '.join(map(str, folders))}; set data-root to the folder that holds "
            "train/<class>/ and, if there is a test set, val/<class>/ or test/<class>/",
            f"image-folder: no train/ under {search_path.names}",
            key="data-root",
        )
    problems: list[DataError] = []
    try:
        train = _by_class(folder / "train")
        tests = {name: _test(place, problems) for name in ("val", "test") if (place := folder / name).is_dir()}
    except (OSError, ValueError) as error:
        text = f"{folder} cannot be read: {reason(error)}"
        raise DataError(text, "image-folder: the folder cannot be read") from error
    problems += [DataError(f"{folder}: {text}", f"image-folder: {public}") for text, public in _wrong(train, tests)]
    test = next((part for part in tests.values() if part.keys() & train.keys()), {})
    parts = [(name, file) for part in (train, test) for name in sorted(part) for file in part[name]]
    files = {file.relative_to(folder).as_posix(): file for _, file in parts}

    def decode() -> list[Bytes]:
        images = read_images(files, form, Faults(folder, "image-folder"), problems)
        if problems:
            raise DataError.join(problems)
        return [images]

    other = [word for word in (form.fit, form.colour) if word not in ("crop", "auto")]
    name = "-".join(["image-folder", str(form.size or "any"), *other])
    [images] = decode() if problems else cached(name, list(files.values()), ["images"], decode)
    number = {name: number for number, name in enumerate(sorted(train))}
    classes = np.array([number[name] for name, _ in parts], np.int64)
    official = np.arange(len(parts)) >= sum(map(len, train.values()))
    return Source(torch.from_numpy(images), classes, len(train), official if test else None)


def _by_class(folder: Path) -> _ByClass:
    """Return the images in and below each folder, by its name, without hidden files."""
    return {
        entry.name: sorted(
            file for file in entry.rglob("*") if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
        )
        for entry in folder.iterdir()
        if entry.is_dir() and not entry.name.startswith(".")
    }


def _test(folder: Path, problems: list[DataError]) -> _ByClass:
    """Return the test images of each class; errors in a list of them are added to ``problems``."""
    file = folder / ANNOTATIONS
    if not file.is_file():
        return _by_class(folder)
    listed: dict[Path, str] = {}
    bad: list[str] = []
    for number, line in enumerate(read_file(file).decode().splitlines(), start=1):
        name, _, rest = line.partition("\t")
        image = folder / "images" / name
        if not rest or image in listed or not is_file(image):
            bad.append(f"line {number} ({shown(name)})")
        listed[image] = rest.partition("\t")[0]
    if bad:
        problems.append(
            DataError(
                f"{file}: {examples(bad)}: a line must hold the name of an image in images/, each once, a tab and the "
                "class; unpack the data set again",
                f"image-folder: {file.name} has {len(bad)} bad lines of {len(listed)}",
            )
        )
    return {name: sorted(image for image in listed if listed[image] == name) for name in set(listed.values())}


def _wrong(train: _ByClass, tests: dict[str, _ByClass]) -> Iterator[tuple[str, str]]:
    """Yield the problems of the folders: the full text, and one without names of folders."""
    if len(train) < 2:
        text = f"train/ holds {len(train)} folders of classes"
        yield f"{text} ({examples(list(train))}); it must hold at least two, one per class", text
    if empty := sorted(name for name, files in train.items() if not files):
        text = f"train/ has {len(empty)} folders without any {', '.join(SUFFIXES)}"
        yield f"{text}: {examples(empty)}; fill or remove them", text
    known = [name for name, part in tests.items() if part.keys() & train.keys()]
    if len(known) == 2:
        text = "val/ and test/ both have images by class: it is unclear which is the test set; remove one"
        yield text, text
    if tests and not known:
        text = f"{' and '.join(f'{name}/' for name in tests)} without a folder named as one in train/"
        yield f"{text}; sort the test images by class, or move them away", text
    for name in known:
        if strange := sorted(tests[name].keys() - train.keys()):
            text = f"{name}/ has {len(strange)} classes that train/ lacks"
            yield f"{text}: {examples(strange)}; remove them", text
        elif not any(tests[name].values()):
            yield f"{name}/ holds no images; fill or remove it", f"{name}/ holds no images"
