"""What is made of Flower's types without its constructors is what these make."""

from __future__ import annotations

import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from edelweiss.federation.wire import reply


@pytest.fixture
def question(monkeypatch: pytest.MonkeyPatch) -> Message:
    for name, value in (("_run_id", 7), ("_task_id", 3), ("_node_id", 11)):
        monkeypatch.setattr(TaskIdentity, name, value, raising=False)
    asked = Message(RecordDict(), 5, "train", ttl=60.0, group_id="2", dst_task_id=9)
    asked.metadata.__dict__["_message_id"] = "a1"
    return asked


def test_a_reply_has_the_metadata_that_flower_gives_it(question: Message) -> None:
    content = RecordDict()
    own, theirs = reply(content, question), Message(content, reply_to=question)
    timed = ("_created_at", "_ttl")
    fields = [{name: x for name, x in vars(made.metadata).items() if name not in timed} for made in (own, theirs)]
    assert fields[0] == fields[1]
    ends = [made.metadata.created_at + made.metadata.ttl for made in (own, theirs, question)]
    assert ends == pytest.approx([ends[2]] * 3, abs=1e-3)
    assert vars(own).keys() == vars(theirs).keys()
    assert own.content is content
    assert not own.has_error()
    assert question.metadata.message_id == "a1", "the question stays as it was"
