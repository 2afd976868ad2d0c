"""A run in which one message to one site, or one of its replies, is changed on its way."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict

from edelweiss.common import Value
from edelweiss.config import RunConfig
from edelweiss.federation import RunError
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import Result, coordinate
from edelweiss.server_app.local import LocalGrid, unused_run_id
from tests.federation.changes import Change, copied, values

SITES, ROUNDS = 3, 3
VICTIM = 1  # the node that it happens to
JOBS: dict[str, dict[str, Value]] = {  # algorithms that send all there is to send
    "codasca": {"stage-iterations": 4},
    "codasca, some sites": {"algorithm": "codasca", "fraction": 0.9},
    "coda": {"stage-iterations": 4},
    "fedgda-gt": {},
    "fednest": {},
    "dispfl": {"dispfl.mixing": "client", "model": "mlp"},
    "fedavg": {"problem": "bce"},
    "fcsg-m": {"problem": "auprc"},
    "fedrod": {"problem": "cross-entropy", "model": "mlp"},
    "codasca, bf16": {"algorithm": "codasca", "model": "mlp", "hidden": 9, "wire": "bf16"},
    "fmgda, float16 and int8": {
        "algorithm": "fmgda",
        "model": "mlp",
        "hidden": 9,
        "wire": "float16",
        "wire-estimators": "int8",
    },
}

Changes = Callable[[RecordDict], Iterator[Change]]


def job(folder: Path, name: str, **changed: Value) -> RunConfig:
    """Return a short run of a row of `JOBS`, over real patients."""
    keys: dict[str, Any] = {"algorithm": name, "problem": "auc", "model": "linear", "hidden": 3, "sites": SITES}
    keys |= {"rounds": ROUNDS, "local-steps": 2, "workers": 1, "device": "cpu", "runs-dir": str(folder / "runs")}
    keys |= {"checkpoint-every": 0, "round-timeout": 5.0, "min-replies": 1, "report": False}
    return RunConfig.parse(keys | JOBS[name] | changed)


class Meddler(LocalGrid):
    """The local engine, between whose coordinator and one of whose sites somebody sits.

    Attributes
    ----------
    sent, answered : list of RecordDict
        What the site was sent, and answered.
    on_its_way, on_its_way_back : dict of int to callable
        What is done to which of them, in place.
    said : list of str
        Warnings of the run.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config, unused_run_id())
        self.sent: list[RecordDict] = []
        self.answered: list[RecordDict] = []
        self.on_its_way: dict[int, Callable[[RecordDict], None]] = {}
        self.on_its_way_back: dict[int, Callable[[RecordDict], None]] = {}
        self.said: list[str] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; one may be changed."""
        messages = list(messages)
        for place, message in enumerate(messages):
            if message.metadata.dst_node_id == VICTIM:
                self.sent.append(message.content)
                if change := self.on_its_way.get(len(self.sent) - 1):
                    content = copied(message.content)
                    change(content)
                    messages[place] = Message(content, VICTIM, message.metadata.message_type)
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return answers; one may be changed."""
        before = files(self.states.folder)
        answers = list(super().pull_messages(message_ids))
        for answer in answers:
            if answer.metadata.src_node_id == VICTIM and answer.has_content():
                self.answered.append(answer.content)
                if len(self.sent) - 1 in self.on_its_way:
                    raise Told(None if files(self.states.folder) != before else refusal(answer))
                if change := self.on_its_way_back.get(len(self.answered) - 1):
                    change(answer.content)
            elif answer.metadata.src_node_id == VICTIM and len(self.sent) - 1 in self.on_its_way:
                raise Broke(answer.error.reason)
        return answers

    def play(self) -> Result:
        """Play the run."""
        progress = Progress(quiet=True)
        progress.warn = self.said.append  # type: ignore[method-assign]
        return coordinate(self.config, self, progress)


class Told(BaseException):
    """What the site answered is known, and the rest of the run does not matter."""


class Broke(BaseException):
    """The site's app broke."""


def refusal(answer: Message) -> str | None:
    """Return why a site did not do its work; None if it did."""
    error = answer.content.config_records.get("error")
    return str(error["message"]) if error else None


def files(folder: Path) -> dict[str, bytes]:
    """Return what lies in a folder."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@contextmanager
def meddler(name: str, **changed: Value) -> Iterator[Meddler]:
    """Open a run of a row of `JOBS`."""
    folder = Path(tempfile.mkdtemp(prefix="messages-"))
    try:
        with Meddler(job(folder, name, **changed)) as grid:
            yield grid
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def at_the_site(name: str, place: int, change: Callable[[RecordDict], None]) -> str | None:
    """Change what a site is sent; return why it refuses, None if it does not, or has written something."""
    with meddler(name) as grid:
        grid.on_its_way[place] = change
        try:
            grid.play()
        except Told as told:
            said: str | None = told.args[0]
            return said
        except Broke as broke:
            raise RuntimeError(*broke.args) from None
    raise RuntimeError("the message was never sent")


def at_the_coordinator(name: str, place: int, change: Callable[[RecordDict], None]) -> str | None:
    """Change what a site answers; return what the run says of that site, None for nothing. It has to go on."""
    with meddler(name) as grid:
        grid.on_its_way_back[place] = change
        try:
            grid.play()
        except RunError as error:
            if place:
                raise RuntimeError(f"the run ended: {error}") from None
            return str(error)  # facts that are in order, and do not go together with those of others
    names = ("site-0", f"node {VICTIM}")  # the second before its facts are known
    return "\n".join(text for text in grid.said if any(name in text for name in names)) or None


def chosen(changes: Changes, text: str) -> Callable[[RecordDict], None]:
    """Return the change of a content that is called so; the first, where one comes of two values."""

    def change(content: RecordDict) -> None:
        next(found for called, found in changes(content) if called == text)(content)

    return change


def configs(content: RecordDict) -> Iterator[Change]:
    """Yield what can be wrong with what a message says of itself; some may be left out.

    The run's key before the run; where to cut scores, which makes it the question before.
    """
    for text, change in values(content, "config"):
        if text != "config: cuts is missing" and ("arrays" in content or text != "config: run is missing"):
            yield text, change
