"""Runs with a ticket: sites that pin the study's key take part in no other, and only what they sealed counts."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, RecordDict

from edelweiss.client_app.audit import FILE, RECEIPTS, Audit, keep_receipts
from edelweiss.client_app.audit import SEAL as AUDIT_SEAL
from edelweiss.client_app.cli import main as main_of_a_site
from edelweiss.client_app.connection import read_key
from edelweiss.client_app.policy.records import Records
from edelweiss.common import Value
from edelweiss.config import ConfigError, RunConfig
from edelweiss.federation import RunError, pack
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.federation.seals import SEAL, Question, Receipt, Seals
from edelweiss.federation.ticket import TicketError, config_hash, private_key, read, require_signed, ticket_hash
from edelweiss.federation.wire import reply
from edelweiss.lab.cli import main
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import Result, coordinate
from edelweiss.server_app.tickets import EXECUTOR_KEY, STUDY_KEYS, seals_of
from tests.said import has
from tests.server_app.sites import SiteGrid
from tests.server_app.studies import NAMES, Study, changed, new_key


class Heard(Progress):
    """What a coordinator says."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def say(self, text: str, style: str = "") -> None:
        """Note a line."""
        self.lines.append(text)

    def warn(self, text: str) -> None:
        """Note a warning."""
        self.lines.append(text)


def run(grid: SiteGrid, lines: list[str] | None = None) -> tuple[Result, list[str]]:
    """Run a job with known secrets of the sites; return its result and what the coordinator said."""
    heard = Heard()
    heard.lines = heard.lines if lines is None else lines
    with grid:
        grid.fix_secrets()
        return coordinate(grid.config, grid, heard), heard.lines


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """A study, on the machine of its executor."""
    monkeypatch.setenv(EXECUTOR_KEY, str(tmp_path / "executor.key"))
    return Study(tmp_path)


# ---------------------------------------------------------------------- what a site takes part in


def asked(study: Study, job: RunConfig, seals: Seals | None) -> str:
    """Ask the first site for its facts; return its refusal, or an empty text."""
    with SiteGrid(job, study.nodes) as grid:
        question = Message(RecordDict({"config": ConfigRecord({"app": fingerprint(), "run": "r"})}), 1, "query")
        if seals:
            seals.seal(question)
        [answer] = grid.send_and_receive([question])
    return str(answer.content["error"]["message"]) if "error" in answer.content else ""  # type: ignore[index]


def test_a_signed_run_is_taken(study: Study) -> None:
    job = study.signed()
    assert asked(study, job, study.seals(job)) == ""


def tampered(ticket: str, **values: object) -> str:
    """Return a ticket with other values and the same signature."""
    other = read(ticket).model_copy(update=values)
    stranger = other.sign(private_key_of_nobody())
    return stranger.partition(".")[0] + "." + ticket.partition(".")[2]


def private_key_of_nobody() -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate()


REFUSED: dict[str, Callable[[Study], tuple[RunConfig, Seals | None]]] = {
    "without a ticket": lambda study: (study.job(), None),
    "signed by another key": lambda study: _with(study, study.ticket(study.job(), by="stranger.key")),
    "no ticket at all": lambda study: _with(study, "abc.def", seals=False),
    "run-config changed after signing": lambda study: _with(study, study.signed().ticket, local_steps=9),
    "an extended ticket": lambda study: _with(study, tampered(study.signed().ticket, ends=2**40)),
    "a roster changed": lambda study: _with(study, tampered(study.signed().ticket, sites={"east": "0" * 64})),
    "past its time": lambda study: _with(study, _ended(study)),
    "another release": lambda study: _with(study, _resigned(study, release="0" * 12)),
    "without this site": lambda study: _with(study, _resigned(study, sites={"a": "1" * 64, "b": "2" * 64})),
    "this site under another's name": lambda study: _with(study, _swapped(study)),
    "asked by another executor": lambda study: _asked_by(study, "stranger.key"),
    "asked without a seal": lambda study: (study.signed(), None),
}


def _with(study: Study, ticket: str, *, seals: bool = True, **keys: Value) -> tuple[RunConfig, Seals | None]:
    job = changed(study.job(), ticket=ticket, **keys)
    return job, study.seals(job) if seals else None


def _resigned(study: Study, **values: object) -> str:
    other = read(study.signed().ticket).model_copy(update=values)
    return other.sign(private_key(str(study.folder / "study.key")))


def _ended(study: Study) -> str:
    return _resigned(study, ends=int(time.time()) - 1)


def _swapped(study: Study) -> str:
    east, north = read(study.signed().ticket).sites.values()
    return _resigned(study, sites={"east": north, "north": east})


def _asked_by(study: Study, executor: str) -> tuple[RunConfig, Seals | None]:
    job = study.signed()
    return job, study.seals(job, executor)


@pytest.mark.parametrize("why", REFUSED)
def test_any_other_run_is_refused_and_leaves_no_trace(study: Study, why: str) -> None:
    job, seals = REFUSED[why](study)
    assert asked(study, job, seals)
    assert not Records(str(study.nodes[0]["state-dir"])).runs()


def test_a_ticket_is_good_for_one_run_and_later_ones_need_later_tickets(study: Study) -> None:
    first, second = study.signed(), study.signed()
    assert read(first.ticket).serial < read(second.ticket).serial
    assert asked(study, second, study.seals(second)) == ""
    assert "used for another run" in asked(study, second, study.seals(second)), "a new run with the same ticket"
    assert "older" in asked(study, first, study.seals(first))
    third = study.signed()
    assert asked(study, third, study.seals(third)) == ""


def test_of_two_processes_that_begin_a_run_with_one_ticket_one_does(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are held where they have seen that the ticket is new, for as long as the other may come, too."""
    met, plain = threading.Barrier(2), Records.latest_serial

    def held(self: Records, study: str) -> int:
        found = plain(self, study)
        with contextlib.suppress(threading.BrokenBarrierError):
            met.wait(1.0)
        return found

    monkeypatch.setattr(Records, "latest_serial", held)
    job = study.signed()
    with ThreadPoolExecutor() as pool:
        said = sorted(pool.map(lambda _: asked(study, job, study.seals(job)), range(2)))
    assert said[0] == ""
    assert "used for another run" in said[1]


def test_a_seal_is_for_one_question_copy_and_ticket(study: Study) -> None:
    """A site's answer is bound to what it was asked, by whom, in which run; so is the executor's question."""
    job = study.signed()
    content = RecordDict({"config": ConfigRecord({"round": 1})})
    message = Message(content, 1, "train")
    study.seals(job).seal(message)
    asked = Question.of(message, ticket_hash(job.ticket))
    executor = read(job.ticket).executor
    assert asked.is_by(executor)
    for change in ({"ticket": b"other"}, {"content": b"other"}, {"nonce": b"other"}, {"node": 2}):
        assert not Question(**{**vars(asked), **change}).is_by(executor), change


# ---------------------------------------------------------------------- what a coordinator takes for an answer


class Intruded(SiteGrid):
    """The engine with a SuperLink that hands out a forged answer first, in place of the first site's own."""

    forge: Callable[[Intruded, Message, Message], Message | None]

    def __enter__(self) -> Intruded:
        super().__enter__()
        self.forged, self.old = 0, dict[str, Message]()
        self.places = set[tuple[str, str]]()
        return self

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replace the first answer to each question of the first site."""
        answers = []
        for answer in super().pull_messages(message_ids):
            question = self.questions[answer.metadata.reply_to_message_id]
            place = question.metadata.message_type, str(question.content["config"].get("round"))  # type: ignore[union-attr]
            if answer.metadata.src_node_id == 1 and place not in self.places:
                self.places.add(place)
                forged = self.forge(question, answer)  # type: ignore[call-arg]
                if forged is not None:
                    self.forged += 1
                    answer = forged
            answers.append(answer)
        return answers


def copied(answer: Message) -> RecordDict:
    """Return an answer's content, to be changed."""
    return RecordDict(dict(answer.content.items()))


def without_seal(grid: Intruded, question: Message, answer: Message) -> Message:
    content = copied(answer)
    del content[SEAL]
    return _to(answer, content)


def altered(grid: Intruded, question: Message, answer: Message) -> Message:
    content = copied(answer)
    content["more"] = ConfigRecord({"a": 1})
    return _to(answer, content)


def refusal(grid: Intruded, question: Message, answer: Message) -> Message:
    return _to(answer, RecordDict({"error": ConfigRecord({"site": "east", "message": "no more"})}))


def sealed_refusal(grid: Intruded, question: Message, answer: Message) -> Message:
    """The site's own seal on another content."""
    forged = refusal(grid, question, answer)
    forged.content[SEAL] = answer.content[SEAL]
    return forged


def by_the_other_site(grid: Intruded, question: Message, answer: Message) -> Message | None:
    """The other registered site learns the whole question and answers it with its own key, once names are known."""
    if question.metadata.message_type == "query":
        return None
    return _sealed_with(str(grid.node_configs[1]["key"]), grid, question, answer)


def by_a_stranger(grid: Intruded, question: Message, answer: Message) -> Message:
    file = Path(str(grid.node_configs[0]["key"])).with_name("stranger")
    new_key(file)
    return _sealed_with(str(file), grid, question, answer)


def of_an_unknown_curve(grid: Intruded, question: Message, answer: Message) -> Message:
    content = copied(answer)
    seal = dict(content[SEAL].items())  # type: ignore[union-attr]
    p384, unknown = bytes.fromhex("06052b81040022"), bytes.fromhex("06052b81040077")  # the last arc: no such curve
    content[SEAL] = ConfigRecord(seal | {"key": seal["key"].replace(p384, unknown)})  # type: ignore[union-attr]
    return _to(answer, content)


def with_a_head_that_is_no_hash(grid: Intruded, question: Message, answer: Message) -> Message:
    """The site signs it itself; all sites would get it with each later question."""
    return _sealed_with(str(grid.node_configs[0]["key"]), grid, question, answer, head="\x01" * 10_000)


def _sealed_with(key: str, grid: Intruded, question: Message, answer: Message, head: str = "") -> Message:
    content = copied(answer)
    del content[SEAL]
    if "arrays" in content:
        content["arrays"] = pack({"x": torch.full((2,), 1e3)})
    asked = Question.of(_to(question, copied(question)), ticket_hash(grid.config.ticket))
    content[SEAL] = asked.answered(content, read_key(key), 0, head)
    return _to(answer, content)


def replayed(grid: Intruded, question: Message, answer: Message) -> Message | None:
    """The site's genuine answer to an earlier question, or to the question before with another nonce."""
    kind = question.metadata.message_type
    earlier = grid.old.get(kind)
    grid.old[kind] = _to(answer, copied(answer))
    return earlier and _to(answer, copied(earlier))


def failure(grid: Intruded, question: Message, answer: Message) -> Message:
    """An error as Flower sends it, which nobody seals."""
    forged = _to(answer, RecordDict())
    forged.__dict__.update(_content=None, _error=Error(0, "the app broke"))
    return forged


def _to(answer: Message, content: RecordDict) -> Message:
    made = reply(content, answer)
    vars(made)["_metadata"] = answer.metadata
    return made


ATTACKS: Sequence[Callable[..., Any]] = (
    without_seal,
    altered,
    refusal,
    sealed_refusal,
    by_the_other_site,
    by_a_stranger,
    of_an_unknown_curve,
    with_a_head_that_is_no_hash,
    replayed,
    failure,
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_forged_answer_counts_as_none_and_the_genuine_one_counts(
    study: Study, attack: Callable[..., Any], honest: dict[str, Any]
) -> None:
    kind = type("Attacked", (Intruded,), {"forge": attack})
    grid = kind(study.signed(), study.nodes)
    result, lines = run(grid)
    assert grid.forged
    assert any("counts as none" in line for line in lines)
    assert {name: array.tobytes() for name, array in result.arrays.items()} == honest


def test_a_site_that_answers_for_another_before_names_are_known_stops_the_run_and_is_named(study: Study) -> None:
    kind = type("Attacked", (Intruded,), {"forge": by_the_other_site_at_once})
    with pytest.raises(RunError):
        run(kind(study.signed(round_timeout=1.0), study.nodes))


def by_the_other_site_at_once(grid: Intruded, question: Message, answer: Message) -> Message:
    return _sealed_with(str(grid.node_configs[1]["key"]), grid, question, answer)


@pytest.fixture
def honest(study: Study) -> dict[str, Any]:
    """The model of an honest run of the same sites, without any ticket."""
    result, lines = run(SiteGrid(study.job(), study.unpinned()))
    assert not any("counts as none" in line for line in lines)
    return {name: array.tobytes() for name, array in result.arrays.items()}


def test_without_seals_the_other_sites_answer_would_count(study: Study, honest: dict[str, Any]) -> None:
    """The attack is real: in a run without a ticket a forged refusal leaves the site out."""
    kind = type("Attacked", (Intruded,), {"forge": refusal})
    with pytest.raises(RunError):
        run(kind(study.job(), study.unpinned()))


class Stopped(SiteGrid):
    """The engine, interrupted in the second round."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Interrupt."""
        messages = list(messages)
        if any(message.content["config"].get("round") == 2 for message in messages):  # type: ignore[union-attr]
            raise KeyboardInterrupt
        return super().push_messages(messages)


def test_a_stopped_run_goes_on_with_a_new_ticket_to_the_same_bits(study: Study, honest: dict[str, Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Stopped(study.signed(run_name="stopped"), study.nodes))
    again = study.signed(resume=str(study.folder / "runs" / "stopped"), run_name="stopped")
    result, _ = run(SiteGrid(again, study.nodes))
    assert {name: array.tobytes() for name, array in result.arrays.items()} == honest


# ---------------------------------------------------------------------- the executor's and the signer's own checks


def test_an_executor_takes_no_run_that_its_ticket_is_not_for(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    job = study.signed()
    assert seals_of(study.job()) is None
    with pytest.raises(ConfigError):
        seals_of(changed(job, seed=7))
    with pytest.raises(ConfigError):
        seals_of(changed(job, ticket=study.ticket(study.job(), executor="stranger.key")))
    pinned = require_signed(job.ticket, [study.digits("study.key")])
    assert pinned == read(job.ticket)
    monkeypatch.setenv(STUDY_KEYS, study.digits("study.key"))
    assert seals_of(job)
    for other in (study.job(), changed(job, ticket=study.ticket(study.job(), by="stranger.key"))):
        with pytest.raises(ConfigError) as error:
            seals_of(other)
        assert error.value.keys == ["ticket"]
    monkeypatch.delenv(EXECUTOR_KEY)
    with pytest.raises(ConfigError):
        seals_of(job)


def test_names_of_a_ticket_can_be_told_apart(study: Study) -> None:
    key = (study.folder / "public" / "east.pub").read_text()
    for other, text in (("EAST ", new_key(study.folder / "k")), ("west", key)):
        (study.folder / "public" / "north.pub").unlink(missing_ok=True)
        file = study.folder / "public" / f"{other}.pub"
        file.write_text(text)
        with pytest.raises(ConfigError) as error:
            study.ticket(study.job())
        assert error.value.keys == ["sites"]
        file.unlink()


def test_what_a_signature_lacks_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["submit", "--superlink", "127.0.0.1:1", "--insecure"]
    assert main([*at, "--study-key", str(tmp_path / "none")]) == 2
    assert {"--sites", "--executor"} <= {word for word in capsys.readouterr().err.split() if word.startswith("--")}
    files = ["--study-key", str(tmp_path / "none"), "--sites", str(tmp_path), "--executor", str(tmp_path / "no.pub")]
    assert main([*at, *files]) == 2
    said = capsys.readouterr().err
    assert all(f"- {key}:" in said for key in ("study-key", "sites", "executor"))
    assert main([*at, *files, "--days", "0"]) == 2
    assert "days = 0" in capsys.readouterr().err


def test_a_study_key_is_its_owners_alone_and_never_replaced(tmp_path: Path) -> None:
    file = tmp_path / "study.key"
    assert main(["study", "key", str(file)]) == 0
    text = file.read_bytes()
    assert file.stat().st_mode & 0o077 == 0
    assert main(["study", "key", str(file)]) == 1
    assert file.read_bytes() == text


@pytest.mark.parametrize("text", ["", "x", "e30.e30", "e30=.e30=", "é.é"])
def test_what_is_no_ticket_is_a_mistake(text: str) -> None:
    with pytest.raises(TicketError):
        require_signed(text, ["0" * 64])


def test_nothing_of_an_unsigned_ticket_makes_a_line_of_the_log(study: Study) -> None:
    values = read(study.signed().ticket).model_dump() | {"x\x1b[2J\nERROR forged": 1}
    text = urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")
    with pytest.raises(TicketError, check=has("forged")) as error:
        read(f"{text}.e30")
    assert str(error.value).isprintable()


def test_a_ticket_fixes_whole_numbers_that_are_no_floats() -> None:
    assert config_hash({"seed": 2**53}) != config_hash({"seed": 2**53 + 1})
    assert config_hash({"seed": 1}) == config_hash({"seed": 1.0})


# ---------------------------------------------------------------------- receipts


def test_a_rewritten_log_differs_from_what_its_site_has_signed(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not from its own seal, which whoever rewrites the log writes as well; and both sites hold both heads."""
    run(SiteGrid(study.signed(), study.nodes))
    states = [Path(str(node["state-dir"])) for node in study.nodes]
    for state in states:
        assert main_of_a_site(["audit", "--state-dir", str(state), "--receipts"]) == 0
        said = capsys.readouterr().out
        assert all(f"{name} has signed line" in said for name in NAMES)
    lines = [line for _, line in Audit(states[0]).lines()]
    for file in (FILE, AUDIT_SEAL):
        (states[0] / file).unlink()
    for line in lines:
        forged = {key: value for key, value in line.items() if key != "before"}
        Audit(states[0])._append(forged | {"rules": "none"} if line["way"] == "rule" else forged)
    assert main_of_a_site(["audit", "--state-dir", str(states[0])]) == 0, "it looks whole"
    assert main_of_a_site(["audit", "--state-dir", str(states[0]), "--receipts"]) == 1
    assert "cut or rewritten" in capsys.readouterr().err


def test_the_last_answers_of_a_run_have_receipts_at_all_sites(study: Study) -> None:
    run(SiteGrid(job := study.signed(), study.nodes))
    states = {str(node["site"]): Path(str(node["state-dir"])) for node in study.nodes}
    last = {}
    for name, state in states.items():
        sent = [head for head, line in Audit(state).lines() if line["way"] == "out" and line["kind"] == "evaluate"]
        last[name] = sent[-1]
    for state in states.values():
        kept = json.loads((state / RECEIPTS / f"{read(job.ticket).serial}.json").read_text())
        assert {name: receipt["head"] for name, receipt in kept["sites"].items()} == last


def test_a_log_that_loses_lines_is_seen_by_the_coordinator(study: Study) -> None:
    class Cut(SiteGrid):
        """The engine, at one of whose sites the log is removed before the second round."""

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            if any(message.content["config"].get("round") == 2 for message in messages):  # type: ignore[union-attr]
                for file in (FILE, AUDIT_SEAL):
                    (Path(str(self.node_configs[0]["state-dir"])) / file).unlink(missing_ok=True)
            return super().push_messages(messages)

    heard: list[str] = []
    with pytest.raises(RunError):
        run(Cut(study.signed(round_timeout=1.0), study.nodes), heard)
    assert any("audit log has" in line for line in heard)


def receipt(seals: Seals, message: Message, study: Study, line: int, head: str = "5") -> Receipt:
    """Return the first site's receipt for its answer to a question."""
    seals.seal(message)
    answer = RecordDict({"a": ConfigRecord({"b": 1})})
    asked = Question.of(message, seals.ticket_hash)
    answer[SEAL] = asked.answered(answer, read_key(str(study.nodes[0]["key"])), line, head * 64)
    assert seals.fault(message, reply(answer, message)) == ""
    return seals.receipts["east"]


def test_an_older_receipt_takes_no_later_ones_place(study: Study, tmp_path: Path) -> None:
    """Nor does another of the same line, nor none: whoever replays a question brings those of its time."""
    job = study.signed()
    ticket, known = read(job.ticket), ticket_hash(job.ticket)
    message = Message(RecordDict({"config": ConfigRecord({"round": 1})}), 1, "train")
    older, later = (receipt(study.seals(job), message, study, line) for line in (3, 9))
    other = receipt(study.seals(job), message, study, 9, "6")
    for brought in ([older], [later], [older], [], [other]):
        keep_receipts(tmp_path, ticket, known, "north", [each.pack() for each in brought])
    kept = json.loads((tmp_path / RECEIPTS / f"{ticket.serial}.json").read_text())
    assert (kept["sites"]["east"]["line"], kept["sites"]["east"]["head"]) == (9, "5" * 64)


def test_receipts_that_no_site_has_signed_are_not_kept(study: Study, tmp_path: Path) -> None:
    job = study.signed()
    ticket, known = read(job.ticket), ticket_hash(job.ticket)
    message = Message(RecordDict({"config": ConfigRecord({"round": 1})}), 1, "train")
    genuine = receipt(study.seals(job), message, study, 5)
    keep_receipts(tmp_path / "kept", ticket, known, "north", [genuine.pack()])
    assert list((tmp_path / "kept" / RECEIPTS).iterdir())
    forged = [replace(genuine, line=4), replace(genuine, head="0" * 64), replace(genuine, node=2)]
    forged.append(replace(genuine, key=genuine.key.replace("06052b81040022", "06052b81040077")))  # an unknown curve
    packed = [*(each.pack() for each in forged), b"", b"{}", b"\xff", b"[" * 200_000]
    keep_receipts(tmp_path / "forged", ticket, known, "north", packed)
    keep_receipts(tmp_path / "forged", ticket, b"another run", "north", [genuine.pack()])
    assert not (tmp_path / "forged").exists()
