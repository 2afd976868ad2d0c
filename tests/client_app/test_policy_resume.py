"""A run that goes on after a stop is the same run; and no other run can pass for it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from edelweiss.client_app.cli import main
from edelweiss.client_app.policy import admission as gate
from edelweiss.client_app.policy.records import Records, RunRecord
from edelweiss.client_app.policy.rules import Policy
from edelweiss.client_app.privacy.ledger import Ledger
from edelweiss.common import Value, from_record
from edelweiss.config import RunConfig
from edelweiss.config.resume import FREE, lasting
from edelweiss.datasets import Facts
from edelweiss.federation import AwaitsApprovalError
from edelweiss.federation.errors import TooFewRepliesError
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from edelweiss.server_app.tickets import EXECUTOR_KEY
from tests.client_app.policies import WAITS, Hospital, error_in, site_toml, told, train
from tests.said import has
from tests.server_app.sites import FEATURES, SiteGrid, question, site_job, table
from tests.server_app.studies import Study

KEY = "0123abcd" * 4


def begun(grid: SiteGrid, run: str = KEY) -> Facts | str:
    """Ask a site to describe itself, as a coordinator does that says the run's key: its facts, or its refusal."""
    records: Any = grid.ask("query", 0, RecordDict({"config": ConfigRecord({"app": fingerprint(), "run": run})}))
    found = records.content.config_records
    return WAITS if "waiting" in found else error_in(found) or from_record(Facts, dict(found["facts"]))


@pytest.fixture
def hospital(tmp_path: Path) -> Hospital:
    return Hospital(tmp_path, *table(400, seed=0, positives=200), seed="a", runs_per_day=1, most_rounds=3)


@pytest.mark.parametrize(
    "keys", [{}, {"resume": "there", "min_replies": 1, "round_timeout": 5.0}], ids=["same", "free"]
)
def test_a_resumed_run_does_not_count_again(hospital: Hospital, keys: dict[str, Value]) -> None:
    with hospital.run() as grid:
        assert isinstance(begun(grid), Facts)
        assert not train(grid, run=KEY)
    with hospital.run(**keys) as grid:
        assert isinstance(begun(grid), Facts)
        assert not train(grid, run=KEY)
        assert not train(grid, run=KEY, round=2)
    assert "1 runs within 24 hours" in str(hospital.described())


def test_of_two_runs_with_one_key_the_later_one_goes_on(hospital: Hospital) -> None:
    """Or each would have the rounds, and the approval, of the first."""
    with hospital.run() as first, hospital.run() as second:
        assert isinstance(begun(first), Facts)
        assert isinstance(begun(second), Facts)
        assert "resumed under another number" in train(first, run=KEY)
        assert not train(second, run=KEY)
        assert "resumed under another number" in train(first, "evaluate", run=KEY)


def test_a_refusal_holds_that_comes_while_a_message_is_at_hand(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site notes how far the run is after the operator has refused it."""
    followed = gate._advance

    def meanwhile(record: RunRecord, *rest: Any) -> RunRecord:
        assert main(["refuse", record.run, "--state-dir", str(hospital.state)]) == 0
        monkeypatch.setattr(gate, "_advance", followed)
        return followed(record, *rest)

    with hospital.run() as grid:
        assert isinstance(begun(grid), Facts)
        monkeypatch.setattr(gate, "_advance", meanwhile)
        train(grid, run=KEY)
        assert "its operator refused the run" in train(grid, run=KEY, round=2)


def test_a_run_that_is_stopped_again_and_again_counts_at_last(hospital: Hospital) -> None:
    """Or it would ask about as many models as it liked."""
    said: list[object] = []
    for _ in range(4):
        with hospital.run() as grid:
            said.append(begun(grid))
            if isinstance(said[-1], Facts):
                assert [train(grid, run=KEY), train(grid, run=KEY, round=2)] == ["", ""]
    assert [isinstance(one, Facts) for one in said] == [True, True, False, False]
    assert "1 runs within 24 hours" in str(said[-1])


@pytest.mark.parametrize(("most", "counts"), [(2, True), (3, False)])
def test_a_run_that_has_had_all_its_rounds_begins_anew(tmp_path: Path, most: int, counts: bool) -> None:
    """It asks for as many rounds as a run may have, is stopped, and comes back: that is one more run."""
    hospital = Hospital(tmp_path, *table(400, seed=0, positives=200), seed="a", runs_per_day=1, most_rounds=most)
    with hospital.run() as grid:
        assert isinstance(begun(grid), Facts)
        assert [train(grid, run=KEY), train(grid, run=KEY, round=2)] == ["", ""]
    with hospital.run() as grid:
        assert ("1 runs within 24 hours" in str(begun(grid))) == counts


@pytest.mark.parametrize("when", ["before its first round", "after its rounds"])
def test_a_run_that_was_refused_once_does_not_come_back(tmp_path: Path, when: str) -> None:
    """Whatever else has been played under its key, and however many rounds more than until it was refused."""
    hospital = Hospital(tmp_path, *table(400, seed=0, positives=200), seed="a", most_rounds=2)
    with hospital.run() as grid:
        assert isinstance(begun(grid), Facts)
        assert [train(grid, run=KEY), train(grid, run=KEY, round=2)] == ["", ""]
    with hospital.run() as grid:
        assert isinstance(begun(grid), Facts)
        for server_round in (1, 2) if when == "after its rounds" else ():
            assert not train(grid, run=KEY, round=server_round)
        number = grid.contexts[0].run_id
        assert main(["refuse", str(number), "--state-dir", str(hospital.state)]) == 0
    for _ in range(2):
        with hospital.run() as grid:
            assert "its operator refused the run" in str(begun(grid))
            assert "its operator refused the run" in train(grid, run=KEY)


def test_a_resumed_run_is_approved_once(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path, *table(400, seed=0, positives=200), seed="a", approve="ask")
    with hospital.run() as grid:
        assert begun(grid) == WAITS
        record = Records(str(hospital.state)).runs()[0]
        Records(str(hospital.state)).decide(record, "approved")
        assert isinstance(begun(grid), Facts)
    with hospital.run() as grid:
        assert isinstance(begun(grid), Facts)
        assert not train(grid, run=KEY)
    with hospital.run() as grid:
        assert begun(grid, "another") == WAITS
    assert main(["refuse", Records(str(hospital.state)).begun_as(KEY).run, "--state-dir", str(hospital.state)]) == 0  # type: ignore[union-attr]
    with hospital.run() as grid:
        assert begun(grid) == "its operator refused the run", "who withdrew from it has withdrawn from the rest, too"


def test_another_run_cannot_take_the_key_of_a_run(tmp_path: Path) -> None:
    """And with it what the site remembers: control variates, a model of its own."""
    hospital = Hospital(tmp_path, *table(400, seed=0, positives=200), seed="a")
    with hospital.run() as grid:
        assert isinstance(begun(grid), Facts)
        assert not train(grid, run=KEY)
    for kind in ("train", "evaluate"):
        with hospital.run(batch_size=32) as grid:  # of the same algorithm, problem and model
            assert "with another run-config" in str(begun(grid))
            assert "with another run-config" in train(grid, kind, run=KEY)
            assert not train(grid, run="another")
    with hospital.run() as grid:
        assert isinstance(begun(grid, "a-third"), Facts)
        assert "has changed since the run began" in train(grid, run=KEY)
    with hospital.run() as grid:
        assert not train(grid, run=KEY), "without the first question, too"


@pytest.mark.parametrize("key", ["a/b", "..", "a b", "x" * 65, "\u00e4"])
def test_two_keys_never_lead_to_one_memory(tmp_path: Path, key: str) -> None:
    hospital = Hospital(tmp_path, *table(400, seed=0, positives=200), seed="a")
    with hospital.run() as grid:
        assert "run = " in train(grid, run=key)


def test_nothing_is_written_of_a_run_that_was_refused(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path, *table(400, seed=0, positives=200), seed="a", runs_per_day=1)
    with hospital.run() as grid:
        assert not train(grid)
    before = sorted(hospital.state.glob("policy/*/*"))
    for number in range(3):
        with hospital.run() as grid:
            assert "within 24 hours" in train(grid, run=f"key-{number}")
    assert sorted(hospital.state.glob("policy/*/*")) == before


def test_a_coordinator_says_the_key_from_the_first_question_on(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path, *table(400, seed=0, positives=200), seed="a", approve="ask")
    waits = has(key="approval-timeout", sites=("north",))
    with hospital.run(approval_timeout=0.1) as grid, pytest.raises(AwaitsApprovalError, check=waits):
        coordinate(grid.config, grid, Progress(quiet=True))
    (record,), (status,) = Records(str(hospital.state)).runs(), (tmp_path / "runs").glob("*/status.json")
    assert record.key == json.loads(status.read_text())["run"]


def test_a_run_stops_that_nobody_has_approved_and_resumes_when_somebody_has(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path, *table(400, seed=0, positives=200), seed="a", approve="ask")
    with hospital.run(approval_timeout=0.1, run_name="it") as grid, pytest.raises(AwaitsApprovalError):
        coordinate(grid.config, grid, Progress(quiet=True))
    folder = tmp_path / "runs" / "it"
    assert json.loads((folder / "status.json").read_text())["status"] == "stopped"
    [record] = Records(str(hospital.state)).runs()
    assert record.waits, "the hospital may decide although nobody asks now"
    Records(str(hospital.state)).decide(record, "approved")
    with hospital.run(resume=str(folder), run_name="it", approval_timeout=0.1) as grid:
        assert len(coordinate(grid.config, grid, Progress(quiet=True)).metrics) == grid.config.rounds
    with hospital.run(resume=str(folder), batch_size=9) as grid:
        assert "with another run-config" in str(begun(grid, record.key)), "another run has not been approved by that"


def test_a_hospital_that_waits_holds_up_neither_a_run_that_can_do_without_it_nor_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Days to decide, by a clock that goes on only while the coordinator waits; it is told for whom."""
    asks, other = (
        Hospital(tmp_path / name, *table(400, seed=seed, positives=200), seed="a", approve=approve)
        for seed, (name, approve) in enumerate({"asks": "ask", "other": "always"}.items())
    )
    nodes, clock = [other.node | {"site": "south"}, asks.node], [0.0]
    own = SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda seconds: clock.append(clock.pop() + 3000 * seconds))
    monkeypatch.setattr("edelweiss.federation.delivery.time", own)
    keys: dict[str, Value] = {"sites": 2, "holdout_share": 0.2, "workers": 1, "rounds": 2}

    class Heard(Progress):
        def say(self, text: str, style: str = "") -> None:
            said.append(text)

    said: list[str] = []
    job = site_job(tmp_path, **keys, min_replies=1)
    with SiteGrid(job, nodes) as grid:
        assert len(coordinate(job, grid, Heard(quiet=True)).metrics) == 2
    assert any("'north' waits for its operator" in text for text in said)
    assert clock[0] < job.approval_timeout, "it does not wait for days"
    assert [record.waits for record in Records(str(asks.state)).runs()] == [True]
    with other.run() as grid:
        assert coordinate(grid.config, grid, Progress(quiet=True)).metrics, "nor is another run held up"
    assert job.approval_timeout >= 2 * gate.DAY
    needs_all, clock[0] = site_job(tmp_path, **keys, approval_timeout=3e4), 0.0
    waits = has(key="approval-timeout", sites=("north",))
    with SiteGrid(needs_all, nodes) as grid, pytest.raises(AwaitsApprovalError, check=waits):
        coordinate(needs_all, grid, Progress(quiet=True))
    assert clock[0] >= needs_all.approval_timeout, "it waits that long, longer than for a silent site, and no longer"


def test_a_silent_hospital_takes_no_time_from_the_operator_of_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three are enough: one answers, one never does, of one the operator decides when the silent one is late."""
    names = {"asks": "ask", "other": "always", "silent": "always"}
    asks, *others = (
        Hospital(tmp_path / name, *table(400, seed=seed, positives=200), seed="a", approve=approve)
        for seed, (name, approve) in enumerate(names.items())
    )
    south, west = (each.node | {"site": name} for each, name in zip(others, ("south", "west"), strict=True))
    nodes = [south, asks.node, west]  # who answers is asked first: the local engine drops what waits when it asks again
    clock, decides_at = [0.0], [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += 1000 * seconds
        if 0 < decides_at[0] < clock[0]:
            decides_at[0] = 0.0
            for record in (records := Records(str(asks.state))).runs():
                records.decide(record, "approved")

    monkeypatch.setattr("edelweiss.federation.delivery.time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))

    class Silent(SiteGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            return [each for each in super().pull_messages(message_ids) if each.metadata.src_node_id != 3]

    def run(**keys: Value) -> int:
        clock[0] = 0.0
        job = site_job(tmp_path, sites=3, holdout_share=0.2, workers=1, rounds=1, evaluate_every=0, **keys)
        with Silent(job, nodes) as grid:
            return len(coordinate(job, grid, Progress(quiet=True)).metrics)

    times: dict[str, Value] = {"round_timeout": 3600.0, "approval_timeout": 3e4}
    with pytest.raises(TooFewRepliesError):
        run(**times)
    assert clock[0] < 3e4, "no approval brings the third answer"
    with pytest.raises(AwaitsApprovalError):
        run(**times, min_replies=2)
    assert clock[0] >= 3e4
    decides_at[0] = 1e4
    assert run(**times, min_replies=2) == 1


def test_under_masks_a_run_stops_that_one_hospital_has_not_approved_and_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EXECUTOR_KEY, str(tmp_path / "executor.key"))
    study = Study(tmp_path, ("east", "north", "south"), peers=True)
    with Path(str(study.nodes[1]["policy"])).open("r+") as rules:
        text = rules.read().replace("[policy]\n", '[policy]\napprove = "ask"\n')
        rules.seek(0)
        rules.write(text)
    job = study.signed(secure_aggregation=True, approval_timeout=0.1, run_name="masked")
    with SiteGrid(job, study.nodes) as grid, pytest.raises(AwaitsApprovalError):
        coordinate(job, grid, Progress(quiet=True))
    [record] = Records(str(study.nodes[1]["state-dir"])).runs()
    Records(str(study.nodes[1]["state-dir"])).decide(record, "approved")
    again = study.signed(secure_aggregation=True, approval_timeout=0.1, resume=str(Path(job.runs_dir) / "masked"))
    with SiteGrid(again, study.nodes) as grid:
        assert len(coordinate(again, grid, Progress(quiet=True)).metrics) == again.rounds


def test_a_run_goes_on_as_soon_as_its_operator_has_approved_it(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path, *table(400, seed=0, positives=200), seed="a", approve="ask")
    records = Records(str(hospital.state))

    class Approving(Progress):
        def say(self, text: str, style: str = "") -> None:
            said.append(text)
            if text == "site 'north' waits for its operator's approval":
                records.decide(records.runs()[0], "approved")

    said: list[str] = []
    with hospital.run(round_timeout=0.5) as grid:
        assert coordinate(grid.config, grid, Approving(quiet=True)).metrics
    assert said.index("site 'north' waits for its operator's approval") < said.index(
        "the operator of site 'north' has decided"
    )


def test_what_stays_of_a_run_config(tmp_path: Path) -> None:
    run = RunConfig.parse({"batch-size": 8})
    assert lasting(run) == lasting(RunConfig.parse({"batch-size": 8, "resume": "x", "workers": 2, "device": "cpu"}))
    assert lasting(run) != lasting(RunConfig.parse({"batch-size": 9}))
    assert set(run.written()) - set(lasting(run)) == FREE


def test_a_policy_that_asks_may_change(hospital: Hospital) -> None:
    with hospital.run() as grid:
        assert isinstance(begun(grid), Facts)
    site_toml(hospital.folder, seed="a", approve="ask")
    with hospital.run() as grid:
        assert isinstance(begun(grid), Facts), "it was approved as all were then"


EARLIER = """began asked data decision over open said place question key lasting rounds until shown"""
"""What release 0.1 wrote of a run, besides its number."""


def test_a_state_folder_of_an_earlier_release_is_read_and_one_of_a_later_refused(hospital: Hospital) -> None:
    """In one line that names the file and the way out, and nothing is asked of the operator again."""
    with hospital.run() as grid:
        assert isinstance(told(grid), Facts)
        [file] = (hospital.state / "policy" / "runs").glob("*.json")
        now = json.loads(file.read_text())
        file.write_text(json.dumps({"run": now["run"], **{key: now[key] for key in EARLIER.split()}}))
        assert isinstance(told(grid), Facts)
        file.write_text(json.dumps({**now, "newer": 1}))
        assert "damaged" not in (refused := str(told(grid)))
        assert "newer" in refused
        assert file.name in refused
    assert file.exists()


# ---------------------------------------------------------------------- under differential privacy


PRIVATE: dict[str, Value] = {
    "algorithm": "fedavg", "problem": "bce", "rounds": 2, "local_steps": 2, "batch_size": 32,
    "dp.epsilon": 1.5, "dp.delta": 1e-4,
}  # fmt: skip


def private_hospital(folder: Path, epsilon: float) -> Hospital:
    return Hospital(folder, *table(200, seed=3), approve="ask", privacy={"epsilon": epsilon, "delta": 1e-4})


def spent_by(hospital: Hospital) -> float:
    records, budget = Records(hospital.state), Policy.read(hospital.node["policy"]).budget
    assert budget is not None
    return Ledger(records.folder, records.secret, budget).spent("training")


def answered(grid: SiteGrid, number: int, model: float) -> str:
    """Ask for a round from a model of equal numbers; return the refusal, if it is one."""
    content = question(grid.config, "train", {"x": torch.full((FEATURES + 1,), model)}, run=KEY, round=number)
    return error_in(grid.ask("train", 0, content).content.config_records)


def test_one_approval_lets_resumed_runs_spend_no_more_than_the_run_was_to_cost(tmp_path: Path) -> None:
    """Else who was allowed one run would have the whole budget, by resuming it with other models."""
    hospital, refused = private_hospital(tmp_path, 8.0), []
    for run in range(6):
        with hospital.run(**PRIVATE) as grid:
            if not run:
                assert begun(grid) == WAITS
                [waiting] = Records(hospital.state).runs()
                Records(hospital.state).decide(waiting, "approved")
            assert isinstance(begun(grid), Facts)
            refused += [answered(grid, number, 0.1 * run + 0.01 * number) for number in (1, 2)]
    assert not any(refused[:2]), "the run that was approved"
    assert all("was to cost" in said for said in refused[2:])
    assert 1.2 < spent_by(hospital) < 1.51
    with hospital.run(**PRIVATE) as grid:
        assert isinstance(begun(grid), Facts)
        assert not answered(grid, 1, 0.01), "it was paid for"
    log = [json.loads(line) for line in (hospital.state / "audit.jsonl").read_text().splitlines()]
    decisions = [line["decision"] for line in log if line["way"] == "rule"]
    assert decisions[0] == "its operator"
    assert decisions[1] == f"its operator, as run {waiting.run}, which it resumes"
    assert all(said.startswith("its operator, as run ") for said in decisions[1:])


def test_a_resumed_run_needs_room_for_what_is_left_of_it(tmp_path: Path) -> None:
    hospital = private_hospital(tmp_path, 1.6)
    with hospital.run(**PRIVATE) as grid:
        assert begun(grid) == WAITS
        Records(hospital.state).decide(Records(hospital.state).runs()[0], "approved")
        assert isinstance(begun(grid), Facts)
        assert not answered(grid, 1, 0.1)
    with hospital.run(**PRIVATE) as grid:
        assert isinstance(begun(grid), Facts), "another whole run would not fit"
        assert not answered(grid, 2, 0.2)
