"""Files of named tensors with facts about them: safetensors with one JSON entry in the metadata."""

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

CHECKSUM = "checksum"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
    """Write tensors and facts to a file; the write is atomic.

    Parameters
    ----------
    path : Path
        A file in an existing folder.
    tensors : mapping
        The tensors by name.
    facts : mapping
        JSON values. They form one entry of the metadata, because the format does not preserve the order of several and
        equal contents must give equal bytes.
    """
    contiguous = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    facts = json.loads(json.dumps(facts))
    data = save(contiguous, {"edelweiss": json.dumps({**facts, CHECKSUM: checksum(contiguous, facts)})})
    with atomic_writer(path) as file:
        file.write(data)


@contextlib.contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """Open a file for an atomic write: it replaces the old one when it is complete and on disk."""
    draft = draft_path(path)
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
class StoredTensors:
    """The content of a file of tensors."""

    # tensors, facts: as written by `write_tensors`; other files have no facts
    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    intact: bool  # whether the checksum matches

    @classmethod
    def read(cls, path: Path) -> StoredTensors:
        """Read a file.

        Raises
        ------
        OSError
            If the file cannot be read.
        ValueError
            If it is not a safetensors file.
        """
        return cls.of(read_file(path))

    @classmethod
    def of(cls, data: bytes) -> StoredTensors:
        """Parse the bytes of a file; ValueError if they are not a safetensors file."""
        try:
            tensors = load(data)
        except Exception as error:  # anything a damaged header raises
            raise ValueError(f"not a safetensors file ({error})") from None
        facts = _entry(data)
        claimed = facts.pop(CHECKSUM, None)
        return cls(tensors, facts, claimed == checksum(tensors, facts))


def checksum(tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> int:
    """Compute the CRC-32 of the names, dtypes, shapes and bits of all tensors, and of the facts."""
    found = zlib.crc32(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        found = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, found)
    return found


def _entry(data: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return dict(json.loads(header["__metadata__"]["edelweiss"]))
    return {}


def draft_path(path: Path) -> Path:
    """Return the temporary path of an atomic write."""
    return path.with_suffix(".draft")
