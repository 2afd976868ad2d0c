"""What came and what left, as a site's own log has it; and that nobody changes that log unseen."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import resource
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from edelweiss.client_app.audit import (
    FILE,
    LONGEST,
    MOST,
    SEAL,
    TAIL,
    Audit,
    AuditError,
    Verified,
    acknowledge,
    arrays_of,
    require_whole,
)
from edelweiss.client_app.cli import main
from edelweiss.client_app.commands.audit import write_csv
from edelweiss.client_app.connection import JoinConfig
from edelweiss.client_app.doctor.machine import examine_state
from edelweiss.client_app.join import described, join
from edelweiss.client_app.policy.records import Records, RunRecord
from edelweiss.common import ConfigError
from edelweiss.datasets import Facts
from edelweiss.federation import Encoding, pack
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from tests import said
from tests.client_app.policies import Hospital, told
from tests.said import has
from tests.server_app.sites import SiteGrid, job, table


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Hospital, SiteGrid, Path]:
    """Run two rounds at one hospital; return it, its grid with all answers, and a folder with its log."""
    hospital = Hospital(tmp_path_factory.mktemp("logged"), *table(200, seed=0), seed="a")
    with hospital.run() as grid:
        coordinate(grid.config, grid, Progress(quiet=True))
    return hospital, grid, hospital.state


LINES = 4  # of a run that was asked for its facts: the run, the question, the rule, the answer


def lines_of(state: Path, *ways: str) -> list[dict[str, Any]]:
    """Return the lines about messages, or those of other ways."""
    return [line for _, line in Audit(state).lines() if line["way"] in (ways or ("in", "out"))]


@pytest.mark.parametrize("kind", ["query.other", "train.steal", "evaluate.x"])
def test_a_message_of_no_known_kind_is_there_too(tmp_path: Path, kind: str) -> None:
    hospital = Hospital(tmp_path, *table(200, seed=0), seed="a")
    with hospital.run() as grid:
        assert grid.ask(kind, 0).has_error()
    came, left = lines_of(hospital.state)
    assert (came["way"], left["way"], left["kind"]) == ("in", "out", kind)
    assert left["refused"] == f"no message is called {kind!r}"


@pytest.mark.parametrize("kind", ["query", "train", "evaluate"])
def test_flowers_other_names_of_messages_are_none_of_ours(tmp_path: Path, kind: str) -> None:
    """The default action of a kind goes where the kind goes; what is asked of it is checked by its name."""
    hospital = Hospital(tmp_path, *table(200, seed=0), seed="a")
    with hospital.run() as grid:
        refusal = grid.ask(f"{kind}.default", 0).content["error"]
    assert isinstance(refusal, ConfigRecord)
    assert refusal["message"] == f"no message is called '{kind}.default'"
    assert [line["kind"] for line in lines_of(hospital.state)] == [f"{kind}.default"] * 2


def test_every_message_is_there_with_what_it_held(logged: tuple[Hospital, SiteGrid, Path]) -> None:
    _, grid, state = logged
    lines = lines_of(state)
    assert [(line["way"], line["kind"], line["round"]) for line in lines] == [
        (way, kind, number)
        for kind, number in (("query", 0), ("train", 1), ("train", 2), ("evaluate", 2))
        for way in ("in", "out")
    ]
    assert {line["run"] for line in lines} == {str(grid.run_id)}
    for line, answer in zip(lines[1::2], grid.answers, strict=True):
        arrays = {name: a.numpy() for r in answer.content.array_records.values() for name, a in r.items()}
        assert {a["name"]: (tuple(a["shape"]), a["bytes"]) for a in line["arrays"]} == {
            name: (array.shape, array.nbytes) for name, array in arrays.items()
        }
        for written in line["arrays"]:
            assert written["norm"] == pytest.approx(float(np.linalg.norm(arrays[written["name"]])), rel=1e-5)
        named = {name.partition("[")[0] for name in line["numbers"]}
        rest = [*answer.content.metric_records.values(), *answer.content.config_records.values()]
        assert named == {name for record in rest for name in record}


def test_no_value_and_no_path_is_written(logged: tuple[Hospital, SiteGrid, Path]) -> None:
    hospital, grid, state = logged
    config, _, text = (state / FILE).read_text().partition("\n")
    assert json.loads(config)["way"] == "run", "what the coordinator says of its own folders"
    assert str(hospital.folder) not in text
    [facts] = [a.content.config_records["facts"] for a in grid.answers if "facts" in a.content.config_records]
    assert isinstance(facts["total"], list)
    assert not [value for value in facts["total"] if str(value)[:8] in text]
    assert (state / FILE).stat().st_mode & 0o077 == 0


def test_refusals_are_written_as_the_coordinator_hears_them(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path, *table(60, seed=0), most_rounds=1)
    said = hospital.described()
    assert [line.get("refused") for line in lines_of(hospital.state)] == [None, said]


def test_of_what_nobody_foresaw_only_the_type_leaves_and_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hospital = Hospital(tmp_path, *table(60, seed=0))

    def broken(*_: object) -> None:
        raise RuntimeError("patient 4711")

    monkeypatch.setattr("edelweiss.client_app.request_pipeline.admit", broken)
    with hospital.run() as grid:
        answer = grid.ask("query", 0)
    said = "RuntimeError (the site's own log says more)"
    assert answer.error.reason == f"SiteError: {said}"
    assert [line.get("refused") for line in lines_of(hospital.state)] == [None, said]
    assert "patient 4711" in caplog.text


def test_what_a_coordinator_calls_things_breaks_neither_log_nor_terminal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    hospital = Hospital(tmp_path, *table(60, seed=0))
    names: list[dict[str, Any]] = [
        {"round": "1\n2026-01-01 INFO ended", "app": "a\nb"},
        {"phase": b"p"},
        {"phase": "p" * 10**5},
    ]
    with hospital.run() as grid:
        for name in names:
            record = ConfigRecord({"app": fingerprint(), "[/x]\x1b[2J": 1, **name})
            message = Message(RecordDict({"config": record, "a": pack({"[/x]": torch.zeros(1)})}), 1, "train")
            assert "\n" not in described(message)
            grid.send_and_receive([message])
    assert "a\nb" not in caplog.text
    assert len(lines_of(hospital.state)) == 2 * len(names)
    assert (hospital.state / FILE).stat().st_size < 10_000
    assert main(["audit", "--state-dir", str(hospital.state)]) == 0
    printed = capsys.readouterr().out
    assert "[/x]" in printed
    assert "\x1b[2J" not in printed


@pytest.mark.parametrize("encoding", [Encoding("bf16"), Encoding("float16"), Encoding(coarse=frozenset({"x"}))])
def test_the_norm_of_a_rounded_vector_is_that_of_what_it_stands_for(encoding: Encoding) -> None:
    x = 1e3 * torch.ones(300)
    written, _ = encoding.encode({"x": x}, {}, "train")
    told = arrays_of(written)
    assert {"name": "x", "shape": [300], "bytes": written["x"].nbytes} == {
        k: v for k, v in told[0].items() if k != "norm"
    }
    assert told[0]["norm"] == pytest.approx(x.norm().item(), rel=0.01)
    assert len(told) == len(written)


def test_names_are_cut_and_their_number_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hospital = Hospital(tmp_path, *table(60, seed=0))
    named = {f"{'n' * 10**4}{number}\n\x1b[2J": number for number in range(300)}
    arrays = pack({f"\x1b[2J{'a' * 10**4}{number}": torch.zeros(1) for number in range(300)})
    with hospital.run() as grid:
        content = RecordDict({"config": ConfigRecord({"app": fingerprint(), **named}), "a": arrays})
        grid.send_and_receive([Message(content, 1, "train")])
    came = lines_of(hospital.state)[0]
    assert (len(came["arrays"]), len(came["numbers"]), came["more"]) == (MOST, MOST, 401)
    assert all(len(name) <= LONGEST + 1 and name.isprintable() for name in came["numbers"])
    assert all(len(a["name"]) <= LONGEST + 1 and a["name"].isprintable() for a in came["arrays"])
    assert main(["audit", "--state-dir", str(hospital.state)]) == 0
    assert "401" in capsys.readouterr().out.replace("│", " ").split()


@pytest.mark.parametrize("seal", ["", "{}", "[1]"])
def test_a_damaged_seal_is_said_and_lets_nothing_leave(
    tmp_path: Path, seal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hospital = Hospital(tmp_path, *table(60, seed=0))
    hospital.described()
    (hospital.state / SEAL).write_text(seal)
    with hospital.run() as grid:
        assert "AuditError" in grid.ask("query", 0).error.reason
    assert main(["audit", "--state-dir", str(hospital.state)]) == 1
    assert said.lines(capsys.readouterr().err, SEAL)


def test_nothing_leaves_that_cannot_be_written(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path, *table(60, seed=0))
    assert isinstance(hospital.described(), Facts)
    (hospital.state / FILE).unlink()
    (hospital.state / FILE).mkdir()
    with hospital.run() as grid:
        answer = grid.ask("query", 0)
    assert answer.error.reason == "SiteError: IsADirectoryError (the site's own log says more)"


@pytest.mark.parametrize("kind", ["query", "query.other"])
def test_an_error_says_its_type_and_nothing_of_the_site(tmp_path: Path, kind: str) -> None:
    hospital = Hospital(tmp_path, *table(60, seed=0))
    (tmp_path / "state").write_text("no folder")
    with hospital.run() as grid:
        answer = grid.ask(kind, 0)
    assert "ExistsError (the site's own log says more)" in answer.error.reason
    assert str(tmp_path) not in answer.error.reason


def test_simulated_parts_keep_no_log(tmp_path: Path) -> None:
    from edelweiss.config import RunConfig

    config = RunConfig.parse(job(tmp_path, state_dir=str(tmp_path / "state"), rounds=1))
    with SiteGrid(config) as grid:
        coordinate(config, grid, Progress(quiet=True))
        assert not list(tmp_path.rglob(FILE))
        assert not list(grid.scratch.path.rglob(FILE))


# ---------------------------------------------------------------------- whole or not


def copied(state: Path, folder: Path) -> tuple[Path, list[bytes]]:
    """Copy a log; return the copy's folder, and its lines."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (FILE, SEAL):
        (folder / name).write_bytes((state / name).read_bytes())
    return folder, (folder / FILE).read_bytes().splitlines(keepends=True)


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 7), what=st.sampled_from(["change", "remove", "repeat", "swap", "cut"]))
def test_whoever_touches_a_line_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, logged: tuple[Hospital, SiteGrid, Path], place: int, what: str
) -> None:
    folder, lines = copied(logged[2], tmp_path_factory.mktemp("copy"))
    match what:
        case "change":
            lines[place] = lines[place].replace(b'"round":', b'"round": ')
        case "remove":
            del lines[place]
        case "repeat":
            lines.insert(place, lines[place])
        case "swap":
            other = (place + 1) % len(lines)
            lines[place], lines[other] = lines[other], lines[place]
        case "cut":
            del lines[place:]
    (folder / FILE).write_bytes(b"".join(lines))
    with pytest.raises(AuditError) as caught:
        list(Audit(folder).lines())
    assert caught.value.row == place + 1 if what == "cut" else caught.value.row
    assert main(["audit", "--state-dir", str(folder)]) == 1


def test_a_log_that_goes_on_after_a_cut_still_shows_it(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path, *table(60, seed=0))
    hospital.described()
    hospital.described()
    log = hospital.state / FILE
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:3]))
    hospital.described()
    with pytest.raises(AuditError, check=has(row=4)):
        lines_of(hospital.state)


@pytest.mark.parametrize("how", ["before the seal", "within a line"])
def test_a_process_that_is_ended_while_it_writes_leaves_a_log_that_is_whole(tmp_path: Path, how: str) -> None:
    hospital = Hospital(tmp_path, *table(60, seed=0))
    hospital.described()
    seal = (hospital.state / SEAL).read_bytes()
    hospital.described()
    log = hospital.state / FILE
    lines = log.read_bytes().splitlines(keepends=True)
    if how == "before the seal":
        log.write_bytes(b"".join(lines[: LINES + 1]))
        (hospital.state / SEAL).write_bytes(seal)
        assert len([*Audit(hospital.state).lines()]) == LINES + 1
    else:
        log.write_bytes(b"".join(lines[:LINES]) + lines[LINES][:40])
        (hospital.state / SEAL).write_bytes(seal)
    hospital.described()
    assert len(lines_of(hospital.state)) == 4


def test_lines_longer_than_what_is_read_from_the_end(tmp_path: Path) -> None:
    audit = Audit(tmp_path)
    for number in range(3):
        audit._append({"run": "1", "text": "x" * 10_000 * number})
    (tmp_path / SEAL).write_text(json.dumps({"lines": 2, "last": [digest for digest, _ in audit.lines()][1]}))
    audit._append({"run": "1"})
    assert len([*audit.lines()]) == 4


def test_the_command_prints_a_table_and_remembers_the_end(
    tmp_path: Path, logged: tuple[Hospital, SiteGrid, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    state = str(logged[2])
    assert main(["audit", "--state-dir", state]) == 0
    out = capsys.readouterr().out
    assert f"run {logged[1].run_id}" in out
    assert f"{len([*Audit(logged[2]).lines()])} lines" in out
    last = out.split()[-1]
    assert main(["audit", "--state-dir", state, "--noted", last]) == 0
    # Whoever writes both files anew is found out by a hash that was noted elsewhere.
    forged = Audit(tmp_path)
    for _, line in [*Audit(logged[2]).lines()][:6]:
        forged._append({key: value for key, value in line.items() if key != "before"})
    assert main(["audit", "--state-dir", str(tmp_path)]) == 0
    assert main(["audit", "--state-dir", str(tmp_path), "--noted", last]) == 1
    (tmp_path / "new").mkdir()
    assert main(["audit", "--state-dir", str(tmp_path / "new")]) == 0


@pytest.mark.parametrize("file", [FILE, SEAL])
@pytest.mark.parametrize("what", ["folder", "pipe", "deep", "bytes"])
def test_what_lies_in_the_place_of_the_log_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, what: str
) -> None:
    place = tmp_path / file
    match what:
        case "folder":
            place.mkdir()
        case "pipe":
            os.mkfifo(place)
        case "deep":
            place.write_text("[" * 10**5)
        case "bytes":
            place.write_bytes(b"\xff" * 9)
    assert main(["audit", "--state-dir", str(tmp_path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the audit log ")


def test_a_sealed_line_that_no_site_writes_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Audit(tmp_path)._append({"run": 3})
    assert main(["audit", "--state-dir", str(tmp_path)]) == 1
    assert said.lines(capsys.readouterr().err, "line 1 ")


@pytest.mark.parametrize("command", [["audit"], ["runs"], ["approve", "1"], ["refuse", "1"]])
@pytest.mark.parametrize("folder", ["none", "a\0b", "~nobody-of-this-name/x", "/dev/null"])
def test_a_state_folder_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], folder: str
) -> None:
    """Where a name is mistyped nobody may read that no run waits, and nothing has come."""
    place = str(tmp_path / folder) if folder == "none" else folder
    with pytest.raises(SystemExit):
        main([*command, "--state-dir", place])
    assert said.lines(capsys.readouterr().err, f"--state-dir: {place!r}")


# ---------------------------------------------------------------------- what a third party asks of it


def test_the_question_and_what_allowed_it_are_there(logged: tuple[Hospital, SiteGrid, Path]) -> None:
    _, grid, state = logged
    [begun], [rule] = lines_of(state, "run"), lines_of(state, "rule")
    assert begun["run-config"] == grid.contexts[0].run_config
    assert "another seed" in rule["rules"]
    assert rule["decision"] == "its rules"
    asked = [line for line in lines_of(state) if line["way"] == "in"]
    assert len({line["message"] for line in asked}) == len(asked), "a hash of each question"
    models = [line["vectors"]["arrays"] for line in asked if line["kind"] != "query"]
    assert len(set(models)) == len(models) == 3


def test_who_decides_is_there(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path, *table(60, seed=0), approve="ask")
    with hospital.run() as grid:
        told(grid)
        assert main(["approve", str(grid.run_id), "--state-dir", str(hospital.state)]) == 0
        assert isinstance(told(grid), Facts)
    [act], [rule] = lines_of(hospital.state, "act"), lines_of(hospital.state, "rule")
    assert act["act"].startswith("approved, by ")
    assert act["run"] == str(grid.run_id)
    assert rule["decision"] == "its operator"


@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
def test_no_run_begins_on_a_broken_log_until_somebody_acknowledges_it(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And then that its file is another than the one that was sealed: the whole folder may have been put back."""
    hospital = Hospital(tmp_path, *table(60, seed=0))
    assert isinstance(hospital.described(), Facts)
    log = hospital.state / FILE
    lines = log.read_bytes().splitlines(keepends=True)
    match damage:
        case "changed":
            log.write_bytes(b"".join([lines[0].replace(b'"round":', b'"round": '), *lines[1:]]))
        case "cut":
            log.write_bytes(b"".join(lines[:1]))
        case "gone":
            log.unlink()
            (hospital.state / SEAL).unlink()
    with pytest.raises(ConfigError, check=lambda error: error.keys == ["state-dir"]):
        join(JoinConfig.read(str(hospital.node["policy"]), {"state-dir": str(hospital.state), "insecure": True}))
    if damage != "gone":  # of the site's own process, whose messages would be a log again
        assert isinstance(hospital.described(), str)
    assert main(["audit", "--state-dir", str(hospital.state)]) == 1
    assert main(["audit", "--state-dir", str(hospital.state), "--acknowledge"]) == 0
    [act] = lines_of(hospital.state, "act")
    assert act["act"].startswith("acknowledged that")
    if damage != "gone":  # with its seal: there is nothing to compare
        for _ in range(2):
            assert "put back" in str(hospital.described())
        assert main(["audit", "--state-dir", str(hospital.state), "--acknowledge"]) == 0
    assert isinstance(hospital.described(), Facts)
    capsys.readouterr()
    assert main(["audit", "--state-dir", str(hospital.state), "--acknowledge"]) == 0
    assert said.lines(capsys.readouterr().out, "nothing to acknowledge")


def put_back(state: Path, copy: Path) -> None:
    """Put a copy of a state folder back as a backup does: times of contents and all."""
    shutil.rmtree(state)
    shutil.copytree(copy, state)


@pytest.mark.parametrize("room", ["half a line", "a line", "nothing"])
def test_a_full_disk_leaves_the_log_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: str) -> None:
    """Whether the line itself has no room, or the seal after it; and however often that is tried."""
    log = Audit(tmp_path)
    for act in ("first", "second"):
        log.operator(act)
    before = (tmp_path / FILE).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = len(before) + {"half a line": 40, "a line": 10**6, "nothing": 0}[room]
    with monkeypatch.context() as patch:
        if room == "a line":
            patch.setattr(os, "replace", full)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            for _ in range(3):
                with pytest.raises(OSError):
                    log.operator("third")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / FILE).read_bytes() == before
    assert not log.copied()
    log.operator("fourth")
    assert [line["act"].partition(",")[0] for _, line in log.lines()] == ["first", "second", "fourth"]
    assert not log.copied()


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_log_is_put_aside_whole_though_others_write_to_it(tmp_path: Path) -> None:
    """Somebody has changed it, a run goes on, and an operator acknowledges that."""
    ended = threading.Event()
    Audit(tmp_path).operator("first")

    def write() -> None:
        while not ended.is_set():
            Audit(tmp_path).operator("more")

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        acknowledge(tmp_path, "it was changed")
    ended.set()
    for thread in threads:
        thread.join()
    require_whole(tmp_path)
    assert len([*tmp_path.glob("audit-*.jsonl")]) == 20


def test_no_run_begins_in_a_folder_that_was_put_back_until_somebody_acknowledges_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though the log of the copy is whole, and whatever is added to it meanwhile."""
    hospital = Hospital(tmp_path, *table(60, seed=0))
    state, command = hospital.state, ["audit", "--state-dir", str(hospital.state)]
    assert isinstance(hospital.described(), Facts)
    shutil.copytree(state, tmp_path / "copy")
    assert isinstance(hospital.described(), Facts)
    assert not Audit(state).copied()
    put_back(state, tmp_path / "copy")
    config = JoinConfig.read(str(hospital.node["policy"]), {"state-dir": str(state), "insecure": True})
    for _ in range(2):  # the refusal is a line, too
        refused = hospital.described()
        assert isinstance(refused, str)
        assert "put back" in refused
        assert str(tmp_path) not in refused
        assert [each.level for each in examine_state(config) if each.about == "state"] == ["error", "ok"]
    assert main(command) == 0, "the log itself is unaltered"
    assert said.lines(capsys.readouterr().out, "later lines may be missing")
    assert main([*command, "--acknowledge"]) == 0
    assert "acknowledged that the state folder" in lines_of(state, "act")[-1]["act"]
    assert isinstance(hospital.described(), Facts)
    capsys.readouterr()
    assert main([*command, "--acknowledge"]) == 0
    assert said.lines(capsys.readouterr().out, "nothing to acknowledge")


@pytest.mark.parametrize("moment", ["before the seal", "within a line"])
def test_a_process_that_was_killed_is_not_taken_for_a_copy(tmp_path: Path, moment: str) -> None:
    log = Audit(tmp_path)
    for act in ("a", "b" * 2 * TAIL):
        log.operator(act)
    seal = (tmp_path / SEAL).read_bytes()
    if moment == "before the seal":
        log.operator("c" * 2 * TAIL)
        (tmp_path / SEAL).write_bytes(seal)
    else:
        with (tmp_path / FILE).open("ab") as file:
            file.write(b'{"time"')
    assert not log.copied()
    log.operator("d")
    assert not log.copied()
    assert len([*log.lines()]) == (4 if moment == "before the seal" else 3)


def test_a_log_of_an_earlier_release_is_no_copy(tmp_path: Path) -> None:
    """Its seal does not say when the log changed; from the next line on it does."""
    log = Audit(tmp_path / "state")
    log.operator("a")
    seal = json.loads((tmp_path / "state" / SEAL).read_text())
    (tmp_path / "state" / SEAL).write_text(json.dumps({key: seal[key] for key in ("lines", "last")}))
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    put_back(tmp_path / "state", tmp_path / "copy")
    assert not log.copied()
    log.operator("b")
    shutil.rmtree(tmp_path / "copy")
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    put_back(tmp_path / "state", tmp_path / "copy")
    assert log.copied()


def test_it_can_be_read_in_a_pipe_a_spreadsheet_and_a_browser(
    logged: tuple[Hospital, SiteGrid, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = ["--state-dir", str(logged[2])]
    assert main(["audit", *state]) == 0
    assert "…" not in capsys.readouterr().out, "nothing is cut"
    count = len([*Audit(logged[2]).lines()])
    for option, read in (("--csv", pd.read_csv), ("--html", lambda page: re.findall("<tr>", page.read_text()))):
        file = tmp_path / option.strip("-")
        assert main(["audit", *state, option, str(file)]) == 0
        assert len(read(file)) == count
        assert main(["audit", *state, option, str(tmp_path / "none" / "file")]) == 1
    capsys.readouterr()


def test_a_page_shows_what_a_coordinator_calls_things_as_text(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path, *table(60, seed=0))
    with hospital.run() as grid:
        record = ConfigRecord({"app": fingerprint(), "<script>alert(1)</script>": 1})
        grid.send_and_receive([Message(RecordDict({"config": record}), 1, "query")])
    page = tmp_path / "page.html"
    assert main(["audit", "--state-dir", str(hospital.state), "--html", str(page)]) == 0
    assert "<script" not in page.read_text()
    assert "&lt;script&gt;" in page.read_text()


def test_a_log_is_read_while_the_site_goes_on_writing(tmp_path: Path) -> None:
    """Whoever looks at it during a run is not told that it was altered."""
    log, ended = Audit(tmp_path, "1"), threading.Event()
    log.operator("begins")

    def write() -> None:
        while not ended.is_set():
            log.operator("goes on")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        lengths = [len(list(log.lines())) for _ in range(100)]
    finally:
        ended.set()
        thread.join()
    assert lengths[-1] > lengths[0]


def test_only_new_lines_are_read_again(tmp_path: Path) -> None:
    log, at = Audit(tmp_path, "1"), Verified()
    for number in range(3):
        log.operator(f"does {number}", "1")
        assert [line["act"].split(",")[0] for _, line in log.lines(at)] == [f"does {number}"]
    assert list(log.lines(at)) == []
    file = tmp_path / "audit.jsonl"
    file.write_bytes(file.read_bytes() + b'{"before":"x"}\n')
    with pytest.raises(AuditError) as error:
        list(log.lines(at))
    assert error.value.row == 4


def test_nothing_that_a_coordinator_names_is_a_formula_or_moves_the_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = io.StringIO()
    write_csv({"1": [("time", "=HYPERLINK(1)", "@SUM", "-1", "+1", "a=b")]}, file)
    [_, row] = csv.reader(io.StringIO(file.getvalue()))
    assert row == ["1", "time", "'=HYPERLINK(1)", "'@SUM", "'-1", "'+1", "a=b"]
    shown = {"computes\x1b[2J": "\x1b]0;title\x07\u202e\r\nrun 8: approved"}
    record = RunRecord(run="7", began=time.time(), asked="x", until=time.time() + 60, shown=shown)
    Records(str(tmp_path)).note(record)
    assert main(["runs", "--state-dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert not set(printed) & {"\x1b", "\x07", "\u202e", "\r"}
    assert not [line for line in printed.splitlines() if line.startswith("run 8")]
