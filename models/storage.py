"""Files of named tensors that say what they are: safetensors, with one entry of JSON beside the tensors."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors.torch import load, save
from torch import Tensor

from edelweiss.common.files import read_file

CHECKSUM = "checksum"  # beside the facts


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
    contiguous = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    facts = json.loads(json.dumps(facts))
    data = save(contiguous, {"edelweiss": json.dumps({**facts, CHECKSUM: checksum(contiguous, facts)})})
    with replacing(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file to be written, which takes the place of the old one when it is complete and on the disk."""
    draft = draft_of(path)
    try:
        with open(draft, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


@dataclass(frozen=True)
class Stored:
    """What is in a file.

    Attributes
    ----------
    tensors, facts : dict
        As `write_tensors` was given them; facts are empty for a file that it did not write.
    whole : bool
        Whether they are those that it was given, by their checksum.
    """

    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    whole: bool

    @classmethod
    def read(cls, path: Path) -> Stored:
        """Read a file.

        Raises
        ------
        OSError
            When there is no such file, or it cannot be read.
        ValueError
            When it is something else.
        """
        return cls.of(read_file(path))

    @classmethod
    def of(cls, data: bytes) -> Stored:
        """Return what is in the content of a file; ValueError says why that is nothing."""
        try:
            tensors = load(data)
        except Exception as error:  # whatever a damaged header leads to
            raise ValueError(f"it is no safetensors file ({error})") from None
        facts = _entry(data)
        claimed = facts.pop(CHECKSUM, None)
        return cls(tensors, facts, claimed == checksum(tensors, facts))


def checksum(tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> int:
    """Return the CRC-32 of names, dtypes, shapes and bits of all tensors, and of the facts."""
    found = zlib.crc32(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        found = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, found)
    return found


def facts_in(data: bytes) -> dict[str, Any]:
    """Return what `write_tensors` was given besides the tensors; empty for a file that it did not write."""
    return {name: fact for name, fact in _entry(data).items() if name != CHECKSUM}


def _entry(data: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return dict(json.loads(header["__metadata__"]["edelweiss"]))
    return {}


def draft_of(path: Path) -> Path:
    """Return where a file is written before it replaces the old one."""
    return path.with_suffix(".draft")
