"""A small message travels as one record and holds the same when it is unbatch; what is no parcel stays as it is."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from edelweiss.federation.batching import PARCEL, SMALL, batch, reply_in_kind, unbatch


def content(values: int = 12) -> RecordDict:
    """Whatever a message may hold."""
    vectors = {"x": np.arange(values, dtype=np.float32), "none": np.zeros(0), "bits": np.array([[True], [False]])}
    config = {"round": 3, "share": 0.1, "app": "ab", "key": b"\x00\xff", "last": True, "names": ["a", "é"], "none": []}
    return RecordDict(
        {
            "arrays": ArrayRecord({name: Array(vector) for name, vector in vectors.items()}),
            "empty": ArrayRecord(),
            "config": ConfigRecord(config),
            "cost": MetricRecord({"gradients": 2**40, "loss": [0.5, float("inf")]}),
        }
    )


def message(inside: RecordDict) -> Message:
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 7, 1, 2
    return Message(inside, 5, "train")


def test_it_is_one_record_and_holds_the_same() -> None:
    sent = batch(content())
    assert len(get_all_nested_objects(message(sent))) == 3, "the message, its content, the record"
    found = unbatch(sent)
    assert found == content()
    assert list(found) == list(content())
    assert list(found["arrays"]) == ["x", "none", "bits"]
    assert type(found["config"]["last"]) is bool


def test_large_arrays_stay_in_pieces_that_sites_can_share() -> None:
    for values, small in ((SMALL // 8, True), (SMALL, False)):
        inside = content(values)
        assert (batch(inside) is not inside) is small


@pytest.mark.parametrize(
    "other",
    [
        content(),
        RecordDict(),
        RecordDict({PARCEL: ConfigRecord({PARCEL: b"not what Flower writes"})}),
        RecordDict({PARCEL: ConfigRecord({PARCEL: "text"})}),
        RecordDict({PARCEL: MetricRecord({PARCEL: 1})}),
        RecordDict({PARCEL: ConfigRecord()}),
        RecordDict({**batch(content()), "config": ConfigRecord()}),
    ],
)
def test_what_is_no_parcel_stays_as_it_is(other: RecordDict) -> None:
    assert unbatch(other) is other


@pytest.mark.parametrize("sent", [batch(content()), content()])
def test_a_site_answers_in_kind(sent: RecordDict) -> None:
    """A coordinator that sends no parcels, of an earlier release, gets none."""

    def answer(asked: Message, _: Context) -> Message:
        assert asked.content == content()
        return Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=asked)

    given = reply_in_kind(message(sent), Context(7, 5, {}, RecordDict(), {}), answer)
    assert (PARCEL in given.content) == (PARCEL in sent)
    assert unbatch(given.content)["metrics"]["loss"] == 1.0
