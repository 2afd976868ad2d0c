"""Omniglot's zip files: handwritten characters, 20 drawings of each, read without unpacking."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datasets.errors import DataError

SIDE = 28
PARTS = (
    ("images_background.zip", "images_evaluation.zip"),  # all 1,623 characters
    ("images_background_small1.zip", "images_background_small2.zip"),  # 136 and 156, of which 50 are in both
)
TRAINED_SHARE = 1200 / 1623  # of the characters, as in the few-shot papers since Vinyals et al. 2016


def decode(files: Sequence[Path]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read drawings and scale them from 105 to 28 pixels.

    Parameters
    ----------
    files
        Zip files with ``<set>/<alphabet>/<character>/<drawing>.png``. A drawing that several files hold, by alphabet,
        character and name, counts once.

    Returns
    -------
    images
        Shape (n, 28, 28), 0 for paper to 255 for ink; a pixel is the mean of the square that it covers.
    characters
        Shape (n,): numbers from 0, in the order of the names of alphabets and characters; rows are in that order.

    Raises
    ------
    DataError
        A file cannot be read, or holds no drawings at such paths.
    """
    from PIL import Image

    drawings: dict[tuple[str, ...], NDArray[np.uint8]] = {}  # by alphabet, character and name
    file, member = Path(), ""
    try:
        for file in files:
            member = ""
            with zipfile.ZipFile(file) as archive:
                names = [n for n in archive.namelist() if n.endswith(".png") and n.count("/") == 3]
                if not names:
                    raise ValueError("it holds no drawings at <set>/<alphabet>/<character>/<drawing>.png")
                for member in names:
                    key = tuple(member.split("/")[1:])
                    if key not in drawings:
                        with archive.open(member) as stream, Image.open(stream) as image:
                            small = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
                        drawings[key] = 255 - np.asarray(small)  # ink is black
    except (OSError, EOFError, ValueError, SyntaxError, zlib.error, zipfile.BadZipFile) as error:
        where = f"{file} ({member})" if member else str(file)
        raise DataError(
            f"{where} cannot be read: {error}; download it again from https://github.com/brendenlake/omniglot",
            f"{file.name} cannot be read",
        ) from error
    keys = sorted(drawings)
    characters = {key: number for number, key in enumerate(sorted({key[:2] for key in keys}))}
    return np.stack([drawings[key] for key in keys]), np.array([characters[key[:2]] for key in keys])


def held_out(characters: int) -> NDArray[np.bool_]:
    """Choose the characters to test on, shape (characters,): always the same, whatever the seed of a run."""
    chosen = np.ones(characters, np.bool_)
    chosen[np.random.default_rng(0).permutation(characters)[: round(characters * TRAINED_SHARE)]] = False
    return chosen
