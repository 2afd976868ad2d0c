"""A site that has joined: how often it looks for work, and what it gives back between runs."""

from __future__ import annotations

import io
import json
import os
import tracemalloc
import zipfile
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from flwr.app import Message, RecordDict
from flwr.proto.fab_pb2 import Fab, GetFabResponse
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, Metadata, ObjectTree, PullObjectResponse
from flwr.proto.message_pb2 import Message as Envelope
from flwr.proto.run_pb2 import GetRunResponse, Run
from flwr.supercore.task_identity import TaskIdentity

from edelweiss.client_app.bundle import run_config_in
from edelweiss.client_app.connection import ROOT, JoinConfig, root_problem
from edelweiss.client_app.doctor.machine import examine_state
from edelweiss.client_app.fleet import ENDED, Fleet, Line
from edelweiss.client_app.join import LONGEST, SOON, Joined, Stop, join
from edelweiss.common import ConfigError
from tests.said import has


class Quiet(Stop):
    """Never told to end, until it has waited so often; notes for how long."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._times = times

    def wait(self, seconds: float) -> None:
        """Wait for no time."""
        self.waits.append(seconds)
        if len(self.waits) == self._times:
            self._event.set()


def test_it_looks_after_20_ms_while_there_is_work_and_then_ever_less_often_up_to_3_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = [True, True, *[False] * 60, True, False]
    config = JoinConfig.read("", {"superlink": "127.0.0.1:1", "insecure": True})
    site, stop, looks = Joined(config), Quiet(len(work)), iter(work)
    monkeypatch.setattr(site, "answer_next", lambda fleet: next(looks))
    site.serve(cast("Fleet", cast("Any", None)), stop)
    waits = stop.waits
    assert SOON == waits[0] == waits[1] == 0.02
    idle = waits[1:62]
    assert all(a < b or a == b == LONGEST for a, b in pairwise(idle))
    assert idle[-1] == LONGEST == 3.0
    assert sum(wait for wait in idle if wait < LONGEST) < 60, "it gets there within a minute"
    assert waits[62] == SOON < waits[63] < 2 * SOON


@pytest.mark.slow
def test_between_runs_the_memory_of_the_gpu_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a run's last message; and where its end is never heard of, when another one begins."""
    emptied: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append("it"))
    monkeypatch.setattr("edelweiss.client_app.app.call", lambda message, context: message)
    site = Joined(JoinConfig.read("", {"superlink": "127.0.0.1:1", "insecure": True}))
    fleet = cast("Fleet", SimpleNamespace(node_id=1, run_config=lambda run_id: {}))
    counts = []
    for run_id, kind in ((1, "query"), (1, "train"), (1, "train"), (2, "query"), (2, "train"), (2, "evaluate")):
        about = SimpleNamespace(run_id=run_id, message_type=kind)
        site.answer(fleet, cast("Message", SimpleNamespace(metadata=about)))
        counts.append(len(emptied))
    begun = counts[0]
    assert [count - begun for count in counts] == [0, 0, 0, 1, 1, 2]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be root")
def test_root_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = JoinConfig.read("", {"superlink": "a:1", "insecure": True, "state-dir": str(tmp_path / "state")})
    monkeypatch.delenv(ROOT)
    with pytest.raises(ConfigError, check=has(ROOT, keys=["root"])):
        join(config)
    assert not list(tmp_path.iterdir())
    assert [one.level for one in examine_state(config) if one.about == "root"] == ["error"]
    monkeypatch.setenv(ROOT, "1")
    assert root_problem() == ""


# ---------------------------------------------------------------------- what is no bundle, and no message


def fleet_of(**responses: Any) -> Fleet:
    """Return a connection to a coordinator that responds so to these calls."""
    return Fleet(1, cast("Line", SimpleNamespace(call=lambda method, _: responses[method])))


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave this process as `receive` does: an answer to a message may be made."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.mark.usefixtures("received")
def test_how_long_an_answer_took_is_not_said() -> None:
    """It may depend on who was in a batch."""
    asked: list[Any] = []

    def call(method: str, request: Any) -> Any:
        asked.append(request)
        return SimpleNamespace(session_id="", objects_to_push=[])

    message = Message(RecordDict(), 1, "query")
    message.metadata.__dict__["_run_id"] = 5
    Fleet(1, cast("Line", SimpleNamespace(call=call))).send(Message(RecordDict(), reply_to=message))
    assert [seconds for request in asked for seconds in request.clientapp_runtime_list] == [0.0]


def bundle(pyproject: bytes, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a bundle with this configuration."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as file:
        file.writestr("pyproject.toml", pyproject)
    return packed.getvalue()


def other_bundle() -> bytes:
    """Return one that has all but a configuration."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("client_app/app.py", "")
    return packed.getvalue()


APP = b"[project]\nname='x'\nversion='1.0.0'\n[tool.flwr.app]\npublisher='p'\n%b"
PARTS = b"[tool.flwr.app.components]\nserverapp='a:b'\nclientapp='a:b'\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        bundle(b"a = ["),
        bundle(b"\xff"),
        bundle(APP % b"config=3\n" + PARTS),
        bundle(APP % b"[tool.flwr.app.config]\na=[1]\n" + PARTS),
        bundle(b"#" * 2**22),
        other_bundle(),
        bundle(b"[a]", zipfile.ZIP_LZMA),
        bundle(b"[a]" * 99)[:200],
    ],
    ids=["nothing", "no zip", "no toml", "no text", "no table", "a list", "a bomb", "no file", "a method", "cut"],
)
@pytest.mark.usefixtures("received")
def test_a_bundle_that_is_none_is_answered_and_written_down(tmp_path: Path, content: bytes) -> None:
    run = GetRunResponse(run=Run(fab_hash=sha256(content).hexdigest()))
    fleet = fleet_of(GetRun=run, GetFab=GetFabResponse(fab=Fab(content=content)))
    config = JoinConfig.model_validate({"superlink": "a:1", "insecure": True, "state-dir": str(tmp_path)})
    message = Message(RecordDict(), 1, "query")
    answer = Joined(config).answer(fleet, message)
    assert answer.error.reason == "the run's bundle cannot be read"
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [line.get("refused") for line in lines] == [None, "the run's bundle cannot be read"]


def test_a_bundle_that_unpacks_to_much_costs_nothing() -> None:
    """A file of a few bytes for each thousand of what it holds: a site reads none of it but the beginning."""
    bomb = bundle(b" " * 2**28)
    assert len(bomb) < 2**19
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, check=has("1,048,576 bytes")):
            run_config_in(bomb, {})
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_a_bundle_says_the_defaults_and_the_run_what_is_changed() -> None:
    content = bundle(APP % b"[tool.flwr.app.config]\nrounds=3\ncodasca.lr=0.1\n" + PARTS)
    assert run_config_in(content, {"rounds": 5}) == {"rounds": 5, "codasca.lr": 0.1}
    with pytest.raises(ValueError, check=has("'round'", "'rounds'")):
        run_config_in(content, {"round": 5})


@pytest.mark.parametrize("content", [b"", b"junk", b"Message 5\0abc", b"Array 3\0abc"])
def test_what_is_no_message_is_given_up(content: bytes) -> None:
    fleet = fleet_of(
        PullMessages=PullMessagesResponse(
            messages_list=[Envelope(metadata=Metadata(run_id=3), content={})],
            message_object_trees=[ObjectTree(object_id="aa" * 32)],
        ),
        PullObject=PullObjectResponse(object_found=True, object_available=True, object_content=content),
        ConfirmMessageReceived=ConfirmMessageReceivedResponse(),
    )
    with pytest.raises(ENDED):
        fleet.receive()
