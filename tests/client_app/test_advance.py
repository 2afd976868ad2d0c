"""Decisions in advance: they let begin, or refuse, the runs that they name; every other run waits as ever."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from edelweiss.client_app.audit import Audit, require_whole
from edelweiss.client_app.cli import main
from edelweiss.client_app.policy import admission
from edelweiss.client_app.policy import advance as module
from edelweiss.client_app.policy.advance import (
    Advance,
    Terms,
    advance_of,
    advances,
    decide_in_advance,
    read_advances,
    withdraw,
)
from edelweiss.client_app.policy.records import Records
from edelweiss.common import ConfigError, Value, from_record
from edelweiss.config import RunConfig
from edelweiss.datasets import Facts
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.federation.seals import Seals
from tests.client_app.policies import WAITS, Hospital, error_in, site_toml, told, train
from tests.said import lines
from tests.server_app.sites import SiteGrid, table
from tests.server_app.studies import Study

KEY = "0123abcd" * 4
REFUSED = "its operator refused the run"


def day(days: int = 5) -> str:
    return (datetime.now() + timedelta(days=days)).strftime("%Y-%m-%d")


def texts(**more: str) -> dict[str, str]:
    """Return the limits of an approval of the runs that `Hospital` gets by default."""
    found = {"algorithm": "codasca", "problem": "auc", "model": "linear", "rounds": "2", "runs": "2", "until": day()}
    found |= {"release": fingerprint(), "label": "label"}
    return found | {key.replace("_", "-"): text for key, text in more.items()}


def decide(records: Records, decision: Any = "approved", by: str = "anna", **more: str) -> Advance:
    given = (
        texts(**more)
        if decision == "approved"
        else {"until": day()} | {k.replace("_", "-"): v for k, v in more.items()}
    )
    found = advance_of(given, decision, by, module.next_number(records))
    assert decide_in_advance(records, found, "here")
    return found


def begun(grid: SiteGrid, run: str = KEY) -> Facts | str:
    """Ask a site to describe itself, with the run's key."""
    content = RecordDict({"config": ConfigRecord({"app": fingerprint(), "run": run})})
    found: Any = grid.ask("query", 0, content).content.config_records
    return WAITS if "waiting" in found else error_in(found) or from_record(Facts, dict(found["facts"]))


@pytest.fixture
def asking(tmp_path: Path) -> tuple[Hospital, Records]:
    hospital = Hospital(tmp_path, *table(200, seed=0), approve="ask", seed="a")
    return hospital, Records(str(hospital.state))


def logged(records: Records, way: str) -> list[Mapping[str, Any]]:
    return [line for _, line in Audit(records.state).lines() if line["way"] == way]


def test_a_run_that_was_approved_in_advance_begins_and_says_by_whom(asking: tuple[Hospital, Records]) -> None:
    hospital, records = asking
    found = decide(records, comment="the board said yes")
    with hospital.run() as grid:
        assert isinstance(told(grid), Facts)
        assert train(grid) == ""
    [record] = records.runs()
    assert (record.decision, record.advance, record.open) == ("approved", found.number, True)
    [act], [rule] = logged(records, "act"), logged(records, "rule")
    assert "the board said yes" in act["act"]
    assert "anna" in act["act"]
    assert "anna, in advance (decision 1 of " in rule["decision"]
    require_whole(records.state)


OTHER: list[tuple[dict[str, str], dict[str, Value]]] = [
    ({"algorithm": "fedavg"}, {}),
    ({"problem": "bce"}, {}),
    ({"model": "mlp"}, {}),
    ({"rounds": "1"}, {}),
    ({}, {"rounds": 3}),
    ({}, {"algorithm": "coda-plus"}),
    ({"release": "0123456789ab"}, {}),
    ({"label": ""}, {}),
    ({"label": "marker_0"}, {}),
    ({"epsilon": "100"}, {}),
    ({"secure_aggregation": "yes"}, {}),
    ({"study_key": "ab" * 32}, {}),
]


@pytest.mark.parametrize(("named", "keys"), OTHER, ids=str)
def test_a_run_outside_one_limit_waits(
    asking: tuple[Hospital, Records], named: dict[str, str], keys: dict[str, Value]
) -> None:
    hospital, records = asking
    decide(records, **named)
    assert hospital.described(**keys) == WAITS
    assert [record.waits for record in records.runs()] == [True]


def test_no_more_runs_begin_than_were_approved_and_a_resumed_one_counts(asking: tuple[Hospital, Records]) -> None:
    hospital, records = asking
    decide(records, runs="2")
    with hospital.run() as grid:
        assert isinstance(begun(grid), Facts)
        assert train(grid, run=KEY) == ""
    with hospital.run() as grid:
        assert isinstance(begun(grid), Facts), "resumed"
        assert train(grid, run=KEY) == ""
    with hospital.run() as grid:
        assert begun(grid) == WAITS, "or a resumed run would have rounds without end"
        assert train(grid, run=KEY) == WAITS
        assert main(["approve", str(grid.contexts[0].run_id), "--state-dir", str(hospital.state)]) == 0
        assert isinstance(begun(grid), Facts)
    with hospital.run() as grid:
        assert isinstance(begun(grid), Facts), "what a person approved goes on as ever"
    assert hospital.described() == WAITS
    decide(records, runs="1")
    assert isinstance(hospital.described(), Facts), "another decision, another run"
    assert hospital.described() == WAITS


def test_a_thousand_runs_at_once_begin_no_more_than_were_approved(asking: tuple[Hospital, Records]) -> None:
    hospital, records = asking
    decide(records, runs="2")
    found = [hospital.described() for _ in range(6)]
    assert [answer == WAITS for answer in found] == [False] * 2 + [True] * 4


def test_a_run_that_waits_begins_once_it_is_approved_in_advance(asking: tuple[Hospital, Records]) -> None:
    hospital, _ = asking
    with hospital.run() as grid:
        assert told(grid) == WAITS
        number = str(grid.contexts[0].run_id)
        state = ["--state-dir", str(hospital.state)]
        assert main(["approve", number[:9], "--until", day(), "--runs", "1", *state]) == 0
        assert isinstance(told(grid), Facts), "its own terms are those of the decision"
    assert hospital.described() == WAITS


@pytest.mark.parametrize("in_advance", [False, True])
def test_a_run_that_waited_begins_in_no_folder_that_was_put_back_meanwhile(
    asking: tuple[Hospital, Records], monkeypatch: pytest.MonkeyPatch, in_advance: bool
) -> None:
    hospital, records = asking
    asked, require = list[object](), admission._require_log

    def counted(site: Any) -> None:
        asked.append(site)
        require(site)

    monkeypatch.setattr(admission, "_require_log", counted)
    with hospital.run() as grid:
        assert [told(grid), told(grid)] == [WAITS] * 2
        number = str(grid.contexts[0].run_id)
        assert len(asked) == 1, "to ask again whether a run may begin does not read the log"
        state = ["--state-dir", str(hospital.state)]
        assert main(["approve", number[:9], *state, *(["--until", day(), "--runs", "1"] if in_advance else [])]) == 0
        log = hospital.state / "audit.jsonl"
        text = log.read_bytes()
        log.unlink()
        log.write_bytes(text)
        assert "put back" in str(told(grid))
        assert not records.runs()[0].open
        assert main(["audit", "--acknowledge", *state]) == 0
        assert isinstance(told(grid), Facts)
        asked.clear()
        assert train(grid) == ""
        assert not asked, "nor does a message of an open run"


def test_a_decision_ends_by_itself_and_by_being_withdrawn(
    asking: tuple[Hospital, Records], monkeypatch: pytest.MonkeyPatch
) -> None:
    hospital, records = asking
    found, now = decide(records, runs="9"), time.time()
    with hospital.run() as grid:
        assert isinstance(told(grid), Facts)
        monkeypatch.setattr(time, "time", lambda: now + 10 * module.DAY)
        assert hospital.described() == WAITS
        monkeypatch.setattr(time, "time", lambda: now + 60)
        assert hospital.described() == WAITS, "the clock was put back, and a run has come since"
        monkeypatch.undo()
        assert train(grid) == "", "what has begun goes on"
    for record in records.runs():
        (records.folder / "runs" / f"{record.run}.json").unlink()
    assert isinstance(hospital.described(), Facts)
    assert withdraw(records, found.number, "berta", "here")
    assert hospital.described() == WAITS
    assert not withdraw(records, found.number, "anna", "here"), "the first withdrawal stands"
    assert "berta" in advances(records)[0].withdrawn


def test_a_run_that_changes_after_it_began_is_refused(asking: tuple[Hospital, Records]) -> None:
    hospital, records = asking
    decide(records, rounds="5")
    with hospital.run() as grid:
        assert isinstance(told(grid), Facts)
        grid.contexts[0].run_config = {**grid.contexts[0].run_config, "rounds": 5, "batch-size": 1}
        assert "has changed since the run began" in train(grid)
    with hospital.run() as grid:
        decide(records, algorithm="fedavg", runs="9")
        assert isinstance(told(grid), Facts)
        assert "round = 3: " in train(grid, round=3), "rounds are the run's own, not the limit's"


def test_a_decision_weakens_no_rule(tmp_path: Path) -> None:
    for number, (rules, says) in enumerate(
        [
            ({"algorithms": ["fedavg"]}, "this site allows"),
            ({"runs_per_day": 1}, "24 hours"),
            ({"fewest_training": 190}, "fewer than"),
            ({"ranges": {"batch-size": [32, 64]}}, "batch-size"),
        ]
    ):
        hospital = Hospital(tmp_path / str(number), *table(200, seed=0), approve="ask", seed="a", **rules)
        decide(Records(str(hospital.state)), runs="9")
        with hospital.run() as first:
            answers = [told(first), train(first)]
        with hospital.run() as grid:
            answers += [told(grid), train(grid)]
        assert [answer for answer in answers if says in str(answer)], rules


def test_a_refusal_in_advance_precedes_and_stays(asking: tuple[Hospital, Records]) -> None:
    hospital, records = asking
    decide(records, runs="9")
    found = decide(records, "refused", by="berta", problem="auc")
    with hospital.run() as grid:
        assert begun(grid) == train(grid, run=KEY) == REFUSED
    [record] = records.runs()
    assert (record.decision, record.advance) == ("refused", found.number)
    [rule] = logged(records, "rule")
    assert rule["refused"]
    assert "berta" in rule["decision"]
    records.decide(record, "approved", first=True)
    assert records.run(record.run).decision == "refused", "an approval at the same moment was the second"  # type: ignore[union-attr]
    withdraw(records, found.number, "berta", "here")
    with hospital.run() as grid:
        assert begun(grid) == REFUSED, "under its key it does not come back"
        assert isinstance(begun(grid, "another"), Facts)
    assert isinstance(hospital.described(), Facts)
    site_toml(hospital.folder, seed="a")
    decide(records, "refused", algorithm="codasca")
    assert hospital.described() == REFUSED, "where runs do not wait, too"


# ---------------------------------------------------------------------- signed runs


def asked(study: Study, job: RunConfig, seals: Seals | None) -> str:
    """Ask the first site for its facts; return its refusal, `WAITS`, or an empty text."""
    with SiteGrid(job, study.nodes) as grid:
        question = Message(RecordDict({"config": ConfigRecord({"app": fingerprint(), "run": "r"})}), 1, "query")
        if seals:
            seals.seal(question)
        [answer] = grid.send_and_receive([question])
    found: Any = answer.content.config_records
    return WAITS if "waiting" in found else error_in(found)


def test_a_key_is_that_of_who_has_signed(tmp_path: Path) -> None:
    study = Study(tmp_path)
    pinned = [study.digits("stranger.key"), study.digits("study.key")]
    for node in study.nodes:
        node["policy"] = site_toml(study.folder / str(node["site"]), study_keys=pinned, approve="ask", seed="tests")
    records = Records(str(study.nodes[0]["state-dir"]))
    decide(records, study_key=pinned[0], label="")
    job = study.signed()
    assert asked(study, job, study.seals(job)) == WAITS, "another pinned key has signed it"
    decide(records, study_key=pinned[1], label="")
    job = study.signed()
    assert asked(study, job, study.seals(job)) == ""
    assert records.runs()[-1].advance == 2
    node = study.nodes[0]
    node["policy"] = site_toml(study.folder / "open", approve="ask", seed="tests")
    assert asked(study, study.job(), None) == WAITS, "unsigned"
    job = study.signed()
    assert asked(study, job, study.seals(job)) == WAITS, "signed, and this site checks no ticket"


# ---------------------------------------------------------------------- privacy


def test_epsilon_is_of_all_runs_together_at_the_sites_own_delta(tmp_path: Path) -> None:
    privacy = {"epsilon": 50.0, "delta": 1e-6}
    hospital = Hospital(tmp_path, *table(200, seed=0), approve="ask", seed="a", privacy=privacy)
    records = Records(str(hospital.state))
    private: dict[str, Value] = {"dp.epsilon": 3.0, "dp.delta": 1e-6, "dp.clip": 1.0}
    assert hospital.described(**private) == WAITS
    cost = records.runs()[0].terms["epsilon"]
    assert 0 < cost <= 3.0
    decide(records, runs="9", label="")
    assert hospital.described(**private) == WAITS, "the decision names no privacy"
    decide(records, runs="9", epsilon=f"{1.5 * cost:.6f}", label="")
    assert isinstance(hospital.described(**private), Facts)
    assert hospital.described(**private) == WAITS, "two cost more than was approved"
    decide(records, runs="9", epsilon=f"{1.5 * cost:.6f}", label="")
    assert hospital.described(**{**private, "dp.delta": 5e-3}) == WAITS, "a large delta makes the same words of less"


# ---------------------------------------------------------------------- the command line


def test_everything_wrong_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "state").mkdir()
    state = ["--state-dir", str(tmp_path / "state")]
    wrong = ["--algorithm", "codsca", "--rounds", "0", "--runs", "1001", "--epsilon", "nan", "--release", "v1"]
    assert main(["approve", "--until", "2020-01-01", *wrong, *state]) == 2
    said = capsys.readouterr().err
    for key in (
        "codasca",
        "problem is missing",
        "model is missing",
        "rounds = ",
        "runs = ",
        "epsilon = ",
        "release = ",
    ):
        assert key in said, key
    assert "until = '2020-01-01'" in said
    assert main(["approve", "--until", day(400), *state]) == 2
    assert main(["approve", "--runs", "3", *state]) == 2
    assert main(["approve", *state]) == 2
    assert main(["withdraw", "1", *state]) == 1
    with pytest.raises(SystemExit):
        main(["refuse", "--until", day(), "--rounds", "3", *state])
    with pytest.raises(ConfigError):
        advance_of({"until": day(), "rounds": "3"}, "refused", "anna", 1)
    with pytest.raises(ConfigError):
        advance_of(texts(comment="a\x1bb"), "approved", "anna", 1)
    assert not list((tmp_path / "state").rglob("*.json"))
    assert main(["runs", *state]) == 0


def test_decisions_are_listed_and_withdrawn_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "state").mkdir()
    state = ["--state-dir", str(tmp_path / "state")]
    given = [part for key, text in texts().items() for part in (f"--{key}", text)]
    assert main(["approve", *given, *state]) == 0
    assert main(["refuse", "--until", day(), "--problem", "bce", "--comment", "no", *state]) == 0
    assert main(["runs", *state]) == 0
    printed = capsys.readouterr().out
    assert lines(printed, "decision 1", "0 of 2 runs", "codasca on auc")
    assert lines(printed, "decision 2", "refused")
    assert [main(["withdraw", "1", *state]) for _ in range(2)] == [0, 1]
    capsys.readouterr()
    assert main(["runs", *state]) == 0
    assert not lines(capsys.readouterr().out, "decision 1")
    records = Records(str(tmp_path / "state"))
    assert len(logged(records, "act")) == 3


def test_of_two_decisions_at_once_the_second_is_told(tmp_path: Path) -> None:
    records = Records(str(tmp_path))
    both = [advance_of(texts(), "approved", name, 1) for name in ("anna", "berta")]
    stood: list[bool] = []
    threads = [
        threading.Thread(target=lambda each=each: stood.append(decide_in_advance(records, each, "here")))
        for each in both
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(stood) == [False, True]
    assert len(advances(records)) == len(logged(records, "act")) == 1


DAMAGES = {
    "empty": "",
    "no keys": "{}",
    "no table": "[1]",
    "deep": "[" * 100_000,
    "no text": "\udcff",
    "more runs": '"runs": 3',
    "another day": '"until": 1e11',
    "no day": '"until": 1e300',
    "number": "7.json",
    "a copy": "1 (copy).json",
    "a folder": "",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_decision_is_named_and_decides_nothing_until_it_is_withdrawn(
    asking: tuple[Hospital, Records], damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hospital, records = asking
    decide(records)
    whole = decide(records)
    file, text, state = records.folder / "advance" / "1.json", DAMAGES[damage], ["--state-dir", str(hospital.state)]
    before = file.read_text()
    if text.endswith(".json"):
        file = file.rename(file.with_name(text))
    elif damage == "a folder":
        file.unlink()
        file.mkdir()
    elif text.startswith('"'):
        file.write_text(re.sub(text.partition(":")[0] + r": [\d.]+", text, before))
        assert file.read_text() != before
    else:
        file.write_bytes(text.encode(errors="surrogateescape"))
    assert hospital.described() == WAITS, "nor does a whole one: a refusal may be lost"
    assert [record.open for record in records.runs()] == [False]
    for words in (["runs"], ["approve", "--until", day()]):
        capsys.readouterr()
        assert main([*words, *state]) == 2
        [said] = [line for line in capsys.readouterr().err.splitlines() if "advance/" in line]
        assert f"advance/{file.name}" in said
        assert "withdraw" in said or "remove" in said
    waiting = records.runs()[0].run
    assert main(["approve", waiting, *state]) == 0, "a run by its number as ever"
    if damage == "a copy":
        file.unlink()
    else:
        assert main(["withdraw", file.stem, *state]) == 0
    assert main(["runs", *state]) == 0
    assert isinstance(hospital.described(), Facts)
    assert [record.advance for record in records.runs()] == [0, whole.number]
    assert decide(records).number == max(whole.number, int(file.stem) if file.stem.isdecimal() else 0) + 1


def test_where_runs_do_not_wait_a_damaged_decision_lets_none_begin(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path, *table(200, seed=0), seed="a")
    records = Records(str(hospital.state))
    decide(records, "refused", algorithm="fedavg")
    (records.folder / "advance" / "1.json").write_text("{")
    assert "advance/1.json" in str(hospital.described()), "it may have been a refusal of this run"
    (records.folder / "advance" / "1.withdrawn").touch()
    assert isinstance(hospital.described(), Facts)


def test_no_changed_byte_of_a_decision_is_read_as_one(tmp_path: Path) -> None:
    records = Records(str(tmp_path))
    decide(records, comment="as agreed")
    file, [meant] = records.folder / "advance" / "1.json", advances(records)
    before = file.read_bytes()
    for place in range(len(before)):
        for flip in (1, 4, 32):
            file.write_bytes(before[:place] + bytes([before[place] ^ flip]) + before[place + 1 :])
            found, damaged = read_advances(records)
            assert found == [meant] or (not found and len(damaged) == 1), file.read_text(errors="replace")
    file.write_bytes(before)
    file.with_suffix(".withdrawn").touch()
    assert advances(records)[0].withdrawn, "an empty file, as after a full disk, withdraws as well"


def test_a_decision_is_read_as_it_was_written(tmp_path: Path) -> None:
    records = Records(str(tmp_path))
    found = decide(records, study_key="ab" * 32, secure_aggregation="yes", epsilon="2.5", comment="<b>")
    [again] = advances(records)
    assert again == found
    assert again.secure_aggregation
    assert json.loads((records.folder / "advance" / "1.json").read_text())["study-key"] == "ab" * 32
    masked = Terms(algorithm="codasca", problem="auc", model="linear", label="label", study_key="ab" * 32)
    masked = Terms(
        **{**vars(masked), "release": fingerprint(), "rounds": 2, "epsilon": 1.0, "secure_aggregation": True}
    )
    assert again.covers(masked)
    assert not again.covers(Terms(**{**vars(masked), "secure_aggregation": False}))
