"""What `federation.chunking` sends and puts together is to the byte what Flower's own functions do."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from edelweiss.federation.chunking import LARGEST, Piece, cut, push, whole
from tests.said import has


def message() -> Message:
    """Arrays of no piece, one and several, some of them alike, and what else a message may hold."""
    random = np.random.default_rng(0)
    large = random.standard_normal(LARGEST // 8 * 2 + 5)
    arrays = {
        "none": Array(np.zeros(0, np.float32)),
        "small": Array(random.standard_normal((3, 4)).astype(np.float32)),
        "large": Array(large),
        "again": Array(large),
        "alike": Array(np.zeros(4 * LARGEST, np.int8)),  # pieces of which most are one
    }
    records = {"arrays": ArrayRecord(arrays), "config": ConfigRecord({"round": 3}), "cost": MetricRecord({"a": [1.5]})}
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 7, 1, 2
    return Message(RecordDict(dict(records)), 5, "train")


def contents(sent: Message) -> dict[str, bytes]:
    return {name: part.deflate() for name, part in get_all_nested_objects(sent).items()}


def test_flower_finds_our_pieces_and_names_and_writes_everything_as_it_would_itself() -> None:
    sent = message()
    theirs = contents(sent)
    for array in sent.content["arrays"].values():
        array.__dict__.pop("_chunks", None)
        array.is_dirty = True
    cut(sent.content)
    assert all(isinstance(piece, Piece) for a in sent.content["arrays"].values() for _, piece in a.slice_array())
    assert contents(sent) == theirs
    assert {part.object_id for part in iterate_object_tree(get_object_tree(sent))} == theirs.keys()


def test_a_message_is_put_together_as_flower_would() -> None:
    sent = message()
    name, found = sent.object_id, contents(sent)
    ours, theirs = whole(name, found), inflate_object_from_contents(name, dict(found))
    assert isinstance(ours, Message)
    assert isinstance(theirs, Message)
    assert ours.metadata == theirs.metadata
    assert ours.content == theirs.content == sent.content


def test_a_piece_of_another_kind_is_refused() -> None:
    sent = message()
    name, found = sent.object_id, contents(sent)
    for piece in [piece for piece, content in found.items() if content.startswith(b"ArrayChunk ")]:
        found[piece] = found[piece].replace(b"ArrayChunk ", b"ConfigRecord ", 1)
    with pytest.raises(ValueError, check=has("ArrayChunk")):
        whole(name, found)


def test_what_is_wanted_is_sent_and_no_more() -> None:
    sent = message()
    cut(sent.content)
    found, arrived = contents(sent), {}
    wanted = set(list(found)[::2])
    push(get_all_nested_objects(sent), arrived.__setitem__, object_ids_to_push=wanted)
    assert arrived == {name: found[name] for name in wanted}


def test_the_first_failure_ends_it() -> None:
    def refuse(name: str, content: bytes) -> None:
        raise ConnectionError(name)

    with pytest.raises(ConnectionError):
        push(get_all_nested_objects(message()), refuse)
