"""What is made of Flower's types without its constructors is what these make."""

from __future__ import annotations

import pytest
import torch
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from edelweiss.federation.wire import pack, question, reply, unpack


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Message:
    for name, value in (("_run_id", 7), ("_task_id", 3), ("_node_id", 11)):
        monkeypatch.setattr(TaskIdentity, name, value, raising=False)
    made = Message(RecordDict(), 5, "train", ttl=60.0, group_id="2", dst_task_id=9)
    made.metadata.__dict__["_message_id"] = "a1"
    return made


def test_a_reply_has_the_metadata_that_flower_gives_it(asked: Message) -> None:
    content = RecordDict()
    own, theirs = reply(content, asked), Message(content, reply_to=asked)
    timed = ("_created_at", "_ttl")
    fields = [{name: x for name, x in vars(made.metadata).items() if name not in timed} for made in (own, theirs)]
    assert fields[0] == fields[1]
    ends = [made.metadata.created_at + made.metadata.ttl for made in (own, theirs, asked)]
    assert ends == pytest.approx([ends[2]] * 3, abs=1e-3)
    assert vars(own).keys() == vars(theirs).keys()
    assert own.content is content
    assert not own.has_error()
    assert asked.metadata.message_id == "a1", "the question stays as it was"


def test_a_message_has_the_metadata_that_flower_gives_it(asked: Message) -> None:
    content = RecordDict()
    own, theirs = question(content, 5, "train"), Message(content, 5, "train")
    fields = [{name: x for name, x in vars(made.metadata).items() if name != "_created_at"} for made in (own, theirs)]
    assert fields[0] == fields[1]
    assert own.metadata.created_at == pytest.approx(theirs.metadata.created_at, abs=60)
    assert vars(own).keys() == vars(theirs).keys()
    assert own.content is content


@pytest.mark.parametrize(
    "vector",
    [
        torch.arange(12.0).view(3, 4).T,
        torch.arange(6)[::2],
        torch.tensor(7),
        torch.empty(0),
        torch.tensor([True, False]),
        torch.ones(3, requires_grad=True),
        torch.ones(3, dtype=torch.float16),
        torch.ones(3, dtype=torch.int8),
    ],
)
def test_vectors_arrive_as_they_were_and_as_flower_reads_them(vector: torch.Tensor) -> None:
    packed = pack({"v": vector})
    back = unpack(packed)["v"]
    assert back.dtype == vector.dtype
    assert torch.equal(back, vector)
    assert torch.equal(torch.as_tensor(packed["v"].numpy()), vector)
