"""Vectors in shared memory: files mapped by two processes, so that large arrays are not sent through a pipe."""

from __future__ import annotations

import itertools
import mmap
import os
from typing import TYPE_CHECKING, Any

from flwr.app import Array, ArrayRecord

from edelweiss.common import records_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flwr.app import RecordDict

Layout = dict[str, dict[str, tuple[str, tuple[int, ...], str, int, int]]]
"""Record, array → dtype, shape, stype, offset, length."""


class Segment:
    """A file mapped by two processes."""

    def __init__(self, path: str, size: int = 0) -> None:
        self.path = path
        with open(path, "a+b") as file:
            if size:
                file.truncate(size)
                if hasattr(os, "posix_fallocate"):  # so that a full disk raises here instead of crashing a later write
                    os.posix_fallocate(file.fileno(), 0, size)
            self.size = os.fstat(file.fileno()).st_size
            self.map = mmap.mmap(file.fileno(), self.size)


class Segments:
    """The segments that one process writes, reused once their readers are done."""

    def __init__(self, folder: str, owner: str) -> None:
        self.folder, self.owner, self.count = folder, owner, itertools.count()
        self.free: list[Segment] = []

    def write(self, contents: Sequence[dict[str, ArrayRecord]]) -> tuple[Segment | None, list[Layout]]:
        """Write all arrays of some messages into one segment."""
        layouts: list[Layout] = []
        total = 0
        for records in contents:
            layouts.append({name: {} for name in records})
            for name, record in records.items():
                for key, array in record.items():
                    layouts[-1][name][key] = (array.dtype, tuple(array.shape), array.stype, total, len(array.data))
                    total += len(array.data)
        if not total:
            return None, layouts
        segment = next((s for s in self.free if s.size >= total), None)
        if segment is None:
            segment = Segment(f"{self.folder}/{self.owner}-{next(self.count)}", total)
        else:
            self.free.remove(segment)
        for records, layout in zip(contents, layouts, strict=True):
            for name, record in records.items():
                for key, array in record.items():
                    offset, length = layout[name][key][3:]
                    segment.map[offset : offset + length] = array.data
        return segment, layouts


def read(mapped: mmap.mmap | None, layout: Layout) -> dict[str, ArrayRecord]:
    """Read what `Segments.write` wrote, as copies, so that the segment can be reused."""
    records = {}
    for name, arrays in layout.items():
        records[name] = ArrayRecord()
        for key, (dtype, shape, stype, offset, length) in arrays.items():
            data = mapped[offset : offset + length] if mapped is not None else b""
            records[name][key] = Array(dtype, shape, stype, data)
    return records


def split(content: RecordDict) -> tuple[dict[str, ArrayRecord], dict[str, Any]]:
    """Separate the arrays of a message from its small records."""
    arrays = records_in(content, ArrayRecord)
    return arrays, {name: record for name, record in content.items() if name not in arrays}
