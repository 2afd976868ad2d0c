"""A small message on its way through Flower: as one record, whatever it holds.

Flower sends and fetches each record, array and piece of a message by a call of its own. A round's messages to a site
and back have some 35 of them, at several milliseconds each, which is most of what a round with a small model takes. So
the coordinator sends the records of a small message together, as Flower would write them; a site answers in kind.
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
SMALL = 2**20  # bytes of arrays: sites share the pieces of what is larger, which are sent to the SuperLink once


def wrapped(content: RecordDict) -> RecordDict:
    """Return the records of a message as one, or as they are where they are not small."""
    arrays = records_in(content, ArrayRecord).values()
    if sum(len(array.data) for record in arrays for array in record.values()) > SMALL:
        return content
    return RecordDict({PARCEL: ConfigRecord({PARCEL: recorddict_to_proto(content).SerializeToString()})})


def opened(content: RecordDict) -> RecordDict:
    """Return the records of a message; what is no parcel comes back as it is, to be refused like any other content."""
    parcel = content.get(PARCEL)
    inside = parcel.get(PARCEL) if isinstance(parcel, ConfigRecord) else None
    if not isinstance(inside, bytes) or len(content) > 1:
        return content
    try:
        return recorddict_from_proto(Written.FromString(inside))
    except (DecodeError, ValueError, TypeError, KeyError):
        return content


def answer_in_kind(message: Message, context: Context, answer: Callable[[Message, Context], Message]) -> Message:
    """Open a message, have it answered, and send the answer as it came; a mod of Flower's ClientApp."""
    content = opened(message.content)
    if content is message.content:
        return answer(message, context)
    message.content = content
    answered = answer(message, context)
    if answered.has_content():
        answered.content = wrapped(answered.content)
    return answered
