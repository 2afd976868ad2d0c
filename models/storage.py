"""Files of named tensors that say what they are: safetensors, with one entry of JSON beside the tensors."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from safetensors.torch import save
from torch import Tensor


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
    """Replace a file as a whole: whoever stops this half-way leaves the old one in place, and so does a full disk.

    Parameters
    ----------
    path : Path
        In a folder that exists.
    tensors : mapping
        What to store; contiguous copies are made where needed.
    facts : mapping
        What else it takes to use them, as JSON has it. It is one entry of the metadata: the format keeps no order
        between several, and equal contents give equal bytes.
    """
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with replacing(path) as file:
        file.write(save(contiguous, {"edelweiss": json.dumps(facts)}))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file to be written, which takes the place of the old one when it is complete and on the disk."""
    draft = draft_of(path)
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def facts_in(data: bytes) -> dict[str, object]:
    """Return what `write_tensors` was given besides the tensors; empty for a file that it did not write."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return dict(json.loads(header["__metadata__"]["edelweiss"]))
    return {}


def draft_of(path: Path) -> Path:
    """Return where a file is written before it replaces the old one."""
    return path.with_suffix(".draft")
