"""Batching of a small message's records into one, to save Flower's calls.

Flower transfers each record, array and chunk by a separate call of several milliseconds; a round's messages to a site
and back have about 35, which dominates a round with a small model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Written
from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]  # has no types

from edelweiss.common import records_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from flwr.app import Context

PARCEL = "parcel"
SMALL = 2**20  # bytes of arrays; larger ones are uploaded to the SuperLink once for all sites


def batch(content: RecordDict) -> RecordDict:
    """Batch the records of a message; a large message is returned unchanged."""
    arrays = records_in(content, ArrayRecord).values()
    if sum(len(array.data) for record in arrays for array in record.values()) > SMALL:
        return content
    return RecordDict({PARCEL: ConfigRecord({PARCEL: recorddict_to_proto(content).SerializeToString()})})


def unbatch(content: RecordDict) -> RecordDict:
    """Undo `batch`; anything else is returned unchanged."""
    parcel = content.get(PARCEL)
    inside = parcel.get(PARCEL) if isinstance(parcel, ConfigRecord) else None
    if not isinstance(inside, bytes) or len(content) > 1:
        return content
    try:
        return recorddict_from_proto(Written.FromString(inside))
    except (DecodeError, ValueError, TypeError, KeyError):
        return content


def reply_in_kind(message: Message, context: Context, answer: Callable[[Message, Context], Message]) -> Message:
    """Reply to a batched message with a batch; a mod of Flower's ClientApp."""
    content = unbatch(message.content)
    if content is message.content:
        return answer(message, context)
    message.content = content
    answered = answer(message, context)
    if answered.has_content():
        answered.content = batch(answered.content)
    return answered
