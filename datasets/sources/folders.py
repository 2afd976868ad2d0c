"""One folder per hospital, for a simulation of these hospitals on one machine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from edelweiss.common import natural
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.files import SearchPath
from edelweiss.datasets.site import FILES
from edelweiss.datasets.source import Change, Source

TEST = "test"
log = logging.getLogger("edelweiss")


def read_folders(search_path: SearchPath, read: Callable[[str], Source]) -> Source:
    """Read and concatenate all folders in ``site-folders/`` of a folder of the search path, or in that folder itself.

    A folder ``test`` is not a hospital but the common test set.

    Each folder, which `read` reads (see `datasets.site.read_site`), is a group, in the natural order of names.

    Raises
    ------
    DataError
        With all problems of all folders, or if their data differ in kind.
    """
    looked = search_path.under("site-folders", "")
    root, folders = next(((place, found) for place in looked if (found := _folders(place))), (None, []))
    if root is None:
        raise DataError(
            f"site-folders: no folder with one of {', '.join(FILES)} in {' or '.join(map(str, looked))}; set data-root "
            "to the folder that holds one for each hospital",
            f"site-folders: no folder with one of {', '.join(FILES)} under {search_path.names}",
            key="data-root",
        )
    if folders == [root / TEST]:
        raise DataError.plain(f"site-folders: the only folder is {TEST}, the common test set; add hospitals' folders")
    folders.sort(key=lambda folder: (folder.name == TEST, natural(folder.name)))
    sources: list[Source] = []
    problems: list[DataError] = []
    for folder in folders:
        try:
            sources.append(read(str(folder)))
        except DataError as error:
            problems.append(DataError(str(error), f"{folder.name}: {error.public}"))
    names = [folder.name for folder in folders]
    if not problems:
        problems = _differences(names, sources)
    if problems:
        raise DataError.join(problems)
    for source in sources:
        for text in source.notes:
            log.warning("%s", text)  # images left out
    place = np.repeat(np.arange(len(sources)), [len(source.classes) for source in sources])
    known = np.concatenate([source.patient_ids for source in sources if source.patient_ids is not None])
    # Each hospital numbers its own patients, so equal ids of two folders are different patients.
    _, patient_ids = np.unique(np.stack([place.astype(np.uint64), known]), axis=1, return_inverse=True)
    return Source(
        torch.cat([source.inputs for source in sources]),
        np.concatenate([source.classes for source in sources]),
        max(source.class_count for source in sources),
        test=place == len(names) - 1 if names[-1] == TEST else None,
        groups=place,
        group_names=tuple(names),
        features=sources[0].features,
        patient_ids=patient_ids.reshape(-1).astype(np.uint64),
        by_patient=any(source.by_patient for source in sources),
        changes=Change.summed(change for source in sources for change in source.changes),
        warnings=_warnings(names, sources),
    )


def _warnings(names: list[str], sources: list[Source]) -> tuple[DataError, ...]:
    """Return the warnings of all folders, equal ones once."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, source in zip(names, sources, strict=True):
        for warning in source.warnings:
            found.setdefault((str(warning), warning.public), []).append(name)
    return tuple(
        DataError(f"{examples(where)}: {text}", f"{len(where)} folders: {public}")
        for (text, public), where in found.items()
    )


def _folders(place: Path) -> list[Path]:
    """Return a place's folders with a hospital's data."""
    try:
        return [folder for folder in place.iterdir() if any((folder / name).is_file() for name in FILES)]
    except OSError:
        return []


def _differences(names: list[str], sources: list[Source]) -> list[DataError]:
    """Return the differences that keep folders from being one data set."""
    shapes = {name: "x".join(map(str, source.inputs.shape[1:])) for name, source in zip(names, sources, strict=True)}
    if len(set(shapes.values())) > 1:
        listed = examples([f"{name} has {shape}" for name, shape in shapes.items()])
        text = f"site-folders: inputs differ: {listed}; every folder needs the same features, or images of one size"
        return [DataError.plain(f"{text} and colour: set image-size and image-colour", key="shape", value=shapes)]
    if len({source.features for source in sources}) > 1:
        return [DataError.plain("site-folders: the folders' feature columns have different names: rename them")]
    return []
