"""The content of a message on its way through Flower: each byte hashed once, and copied as seldom as can be.

Flower cuts an array into pieces of 5 MB, names each by its hash, and sends and fetches them one by one. Its own
functions hash a piece up to three times and copy it up to four times on either side: for 100 MB that is longer than to
send them. These do the same with the same bytes on the wire, from flwr 1.39.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from hashlib import sha256
from operator import attrgetter
from typing import TYPE_CHECKING

from flwr.app import Array, ArrayRecord
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as LARGEST
from flwr.supercore.constant import HEAD_BODY_DIVIDER, HEAD_VALUE_DIVIDER
from flwr.supercore.inflatable.inflatable_object import get_object_head_values_from_object_content as head_values
from flwr.supercore.inflatable.inflatable_utils import inflatable_class_registry, pull_objects

from edelweiss.common import records_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flwr.app import RecordDict
    from flwr.supercore.inflatable.inflatable_object import InflatableObject

LANES = 2  # pieces on their way at a time, as in Flower
SOON, LATER = 0.01, 0.1  # seconds to the first look for a piece that has not arrived yet, and longest to a later one
LOOKS = 2500  # for one piece: four minutes of them. One whose sender is gone is given up before, by the SuperLink


class Piece(ArrayChunk):
    """A piece of an array, which never changes: it is hashed where it lies, and once."""

    @cached_property
    def head(self) -> bytes:
        """What stands before its bytes: the kind, no children, the length."""
        return HEAD_VALUE_DIVIDER.join((ArrayChunk.__qualname__, "", str(len(self.data)))).encode() + HEAD_BODY_DIVIDER

    @cached_property
    def object_id(self) -> str:
        """Its hash, which is its name."""
        digest = sha256(self.head)
        digest.update(self.data)
        return digest.hexdigest()

    def deflate(self) -> bytes:
        """Return what is sent."""
        return b"".join((self.head, self.data))


def cut(content: RecordDict) -> None:
    """Cut the arrays of a message that is about to leave; Flower finds the pieces where it would keep its own."""
    for record in records_in(content, ArrayRecord).values():
        for array in record.values():
            if "_chunks" not in array.__dict__:
                whole = memoryview(array.data)
                pieces = [Piece(whole[start : start + LARGEST]) for start in range(0, len(whole), LARGEST)]
                with ThreadPoolExecutor(LANES) as lanes:  # which hash side by side
                    names = list(lanes.map(attrgetter("object_id"), pieces))
                array.__dict__["_chunks"] = list(zip(names, pieces, strict=True))


def push(
    objects: dict[str, InflatableObject],
    push_object_fn: Callable[[str, bytes], None],
    *,
    object_ids_to_push: set[str] | None = None,
) -> None:
    """Send what is wanted of a message's objects, each copied when its turn has come; as Flower's ``push_objects``."""

    def send(name: str) -> None:
        push_object_fn(name, objects[name].deflate())

    wanted = [name for name in objects if object_ids_to_push is None or name in object_ids_to_push]
    lanes = ThreadPoolExecutor(LANES)
    try:
        for _ in lanes.map(send, wanted):
            pass  # it raises what a lane raised
    finally:
        lanes.shutdown(wait=False, cancel_futures=True)


pull = partial(pull_objects, initial_backoff=SOON, backoff_cap=LATER, max_tries_per_object=LOOKS)
"""Flower's, which waits a second for a piece that has not arrived, when most arrive within milliseconds."""


def whole(name: str, contents: Mapping[str, bytes]) -> InflatableObject:
    """Put a message together, as Flower's ``inflate_object_from_contents``; an array's pieces are copied once.

    Raises
    ------
    ValueError, LookupError, TypeError
        When the contents are not those of a message.
    """
    made: dict[str, InflatableObject] = {}

    def make(name: str) -> InflatableObject:
        if name not in made:
            content = contents[name]
            kind, children, _ = head_values(content)
            if kind == Array.__qualname__:
                made[name] = _array(content, children, contents)
            else:
                parts = {child: make(child) for child in children}
                made[name] = inflatable_class_registry[kind].inflate(content, children=parts)
        return made[name]

    return make(name)


def _array(content: bytes, children: list[str], contents: Mapping[str, bytes]) -> Array:
    said = json.loads(bytes(_body(content)))
    pieces = {name: _body(contents[name], ArrayChunk.__qualname__) for name in children}
    data = b"".join(pieces[children[place]] for place in said["arraychunk_ids"])
    return Array(said["dtype"], tuple(said["shape"]), said["stype"], data)


def _body(content: bytes, kind: str = "") -> memoryview:
    """Return what an object holds, in place."""
    if kind and head_values(content)[0] != kind:
        raise ValueError(f"an array's piece is no {kind}")
    return memoryview(content)[content.index(HEAD_BODY_DIVIDER) + len(HEAD_BODY_DIVIDER) :]
