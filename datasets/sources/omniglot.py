"""Omniglot's zip files: handwritten characters, 20 drawings of each, read without unpacking."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from edelweiss.common.files import reason
from edelweiss.datasets.errors import DataError
from edelweiss.datasets.files import SearchPath, cached, downloaded
from edelweiss.datasets.source import Bytes, Ints, Mask, Source

SIDE = 28
LARGEST = 1000  # most pixels of a side; the original has 105
PARTS = (
    ("images_background.zip", "images_evaluation.zip"),  # all 1,623 characters
    ("images_background_small1.zip", "images_background_small2.zip"),  # 136 and 156 characters, 50 of them in both
)
_INSIDE = ("omniglot", "", "omniglot/omniglot-py", "omniglot-py")  # the last two are torchvision's
TRAINED_SHARE = 1200 / 1623  # of the characters, as in the few-shot papers since Vinyals et al. 2016


def read(search_path: SearchPath) -> Source:
    """Omniglot: grey images of 28x28, 20 of each handwritten character; a character turned by 90° is another class.

    Class 4 c + r is character c turned r times; a character with its turns is a group. The test rows are those of 423
    of the 1,623 characters, as in the few-shot papers, chosen by a fixed seed. Without the whole data set, the two
    small background sets are read.
    """
    files = search_path.first(_found)
    if files is None:
        sought = [f"{folder}/{{{','.join(parts)}}}" for parts in PARTS for folder in search_path.under(*_INSIDE)]
        downloaded("omniglot", "Omniglot", search_path, sought, part="background")
        files = [search_path.target / "omniglot-py" / name for name in PARTS[0]]
    images, characters = cached("omniglot", files, ("images", "characters"), partial(decode, files))
    turned = np.stack([np.rot90(images, turns, axes=(1, 2)) for turns in range(4)])
    groups, count = np.tile(characters, 4), int(characters.max()) + 1
    return Source(
        torch.from_numpy(turned.reshape(-1, 1, *images.shape[1:])),
        4 * groups + np.repeat(np.arange(4), len(images)),
        4 * count,
        held_out(count)[groups],
        groups,
    )


def _found(root: Path) -> list[Path] | None:
    """Return a root's files, preferably those of the whole data set."""
    sets = [[root / folder / name for name in parts] for parts in PARTS for folder in _INSIDE]
    return next((files for files in sets if all(file.is_file() for file in files)), None)


def decode(files: Sequence[Path]) -> tuple[Bytes, Ints]:
    """Read drawings, scaled from 105 to 28 pixels, (n, 28, 28), and the number of each one's character, (n,) from 0.

    Zip files hold ``<set>/<alphabet>/<character>/<drawing>.png``; a drawing in several files counts once. 0 is paper
    and 255 ink; a pixel is the mean of the square that it covers. Rows are in the order of the names of alphabets and
    characters.

    Raises
    ------
    DataError
        If a file cannot be read or has no drawings at such paths.
    """
    from PIL import Image

    drawings: dict[tuple[str, ...], Bytes] = {}  # by alphabet, character and name
    file, member = Path(), ""
    try:
        for file in files:
            member = ""
            with zipfile.ZipFile(file) as archive:
                names = [n for n in archive.namelist() if n.endswith(".png") and n.count("/") == 3]
                if not names:
                    raise ValueError("it holds no drawings at <set>/<alphabet>/<character>/<drawing>.png")
                if len(set(names)) < len(names):
                    raise ValueError("it holds a drawing twice")
                for member in names:
                    key = tuple(member.split("/")[1:])
                    if key not in drawings:
                        with archive.open(member) as stream, Image.open(stream, formats=("PNG",)) as image:
                            if max(image.size) > LARGEST:
                                raise ValueError(f"it is {image.width}x{image.height}, more than a drawing")
                            small = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
                        drawings[key] = 255 - np.asarray(small)  # ink is black
    except Exception as error:  # a damaged archive or image raises many kinds
        where = f"{file} ({member})" if member else str(file)
        raise DataError(
            f"{where} cannot be read: {reason(error)}; download it again from https://github.com/brendenlake/omniglot",
            f"{file.name} cannot be read",
        ) from error
    keys = sorted(drawings)
    characters = {key: number for number, key in enumerate(sorted({key[:2] for key in keys}))}
    return np.stack([drawings[key] for key in keys]), np.array([characters[key[:2]] for key in keys])


def held_out(characters: int) -> Mask:
    """Choose the characters to test on, shape (characters,), independent of a run's seed."""
    chosen = np.ones(characters, np.bool_)
    chosen[np.random.default_rng(0).permutation(characters)[: round(characters * TRAINED_SHARE)]] = False
    return chosen
