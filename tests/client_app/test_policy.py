"""The hospital's own rules: what a policy says, and that it holds before anything is computed or sent."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from client_app.__main__ import main
from client_app.policy import Policy, PolicyError
from client_app.policy.records import Records
from datasets import Facts
from federation import pack
from federation.fingerprint import fingerprint
from keys import Value
from tests.client_app.policies import Hospital, site_toml, told
from tests.server_app.sites import FEATURES, SiteGrid, hospitals, run_at, saddle_job, site_job, table, write_table


def train(grid: SiteGrid, kind: str = "train", **facts: Value) -> str:
    """Send a message of round 1; return the refusal, if it is one."""
    import torch

    config: dict[str, Any] = {"app": fingerprint(), "shape": [FEATURES], "classes": 2, "prior": 0.3, "shift": []}
    config |= {"scale": [], "round": 1, "phase": "train", "site": 0, "name": "north", "evaluate": True, **facts}
    model = {"x": torch.linspace(-1, 1, FEATURES + 3), "y": torch.zeros(1)}
    content = RecordDict({"arrays": pack(model), "config": ConfigRecord(config)})
    answer = grid.ask(kind, 0, content)
    assert not answer.has_error(), answer.error.reason
    if "error" in answer.content.config_records:
        return str(answer.content.config_records["error"]["message"])
    return "" if answer.content.metric_records["metrics"] else "no evaluation"


# ---------------------------------------------------------------------- the file


def test_everything_wrong_with_a_policy_is_told_at_once(tmp_path: Path) -> None:
    path = site_toml(
        tmp_path, algorithms=["codsca"], folds=1, strickt=True, approve="maybe", releases=["v1"], fewest_training=0,
        ranges={"rouds": [1, 2], "seed": [3, 1]},
    )  # fmt: skip
    with pytest.raises(PolicyError) as caught:
        Policy.read(path)
    said = caught.value.problems
    assert len(said) == 8
    for part in ("Did you mean 'codasca'?", "folds = 1", "Did you mean 'strict'?", "'always' or 'ask'", "'rounds'",
                 "ranges.seed = [3, 1]", "releases.0 = 'v1'", "fewest-training = 0"):  # fmt: skip
        assert [line for line in said if part in line], part


@pytest.mark.parametrize("text", ["[policy", "policy = 3", "[policy]\nstrict = 1", None])
def test_a_site_without_a_readable_policy_refuses_everything(tmp_path: Path, text: str | None) -> None:
    hospital = Hospital(tmp_path, *table(60, seed=0))
    if text is None:
        Path(str(hospital.node["policy"])).unlink()
    else:
        Path(str(hospital.node["policy"])).write_text(text)
    with hospital.run() as grid:
        for said in (str(told(grid)), train(grid), train(grid, "evaluate")):
            assert said.startswith("the policy of this site cannot be used")
            assert str(tmp_path) not in said
    assert not hospital.state.exists()


def test_the_file_is_shared_with_other_readers(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text('superlink = "host:9092"\n[audit]\nx = 1\n')
    assert Policy.read(str(path)) == Policy.read("")
    defaults = Policy.read("")
    assert (defaults.fewest_training, defaults.fewest_held_out, defaults.fewest_of_each_class) == (20, 10, 5)


# ---------------------------------------------------------------------- what a run may be


REFUSED = [
    ({"algorithms": ["fedavg"]}, {}, "algorithm = 'codasca': this site allows 'fedavg'"),
    ({"problems": ["bce", "auprc"]}, {}, "problem = 'auc': this site allows 'auprc', 'bce'"),
    ({"models": ["mlp"]}, {}, "model = 'linear': this site allows 'mlp'"),
    ({"most_rounds": 1}, {}, "rounds = 2: this site allows at most 1"),
    ({"ranges": {"batch-size": [32, 64]}}, {}, "batch-size = 16: this site allows 32 to 64"),
    ({"ranges": {"local-steps": [5, 9]}}, {}, "local-steps = 3: this site allows 5 to 9"),
    ({"ranges": {"codasca.lr": [0, 0.01]}}, {}, "codasca.lr = 0.1: this site allows 0 to 0.01"),
    ({"releases": ["0123456789ab"]}, {}, "is none of the releases"),
    ({"strict": True}, {"holdout_share": 0.3}, "holdout-share = 0.3: this site allows 0.2"),
    ({}, {"folds": 4}, "it allows no cross-validation"),
]


@pytest.mark.parametrize(("policy", "keys", "said"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_run_that_is_not_allowed_gets_no_answer(
    tmp_path: Path, policy: dict[str, Any], keys: dict[str, Value], said: str
) -> None:
    hospital = Hospital(tmp_path, *table(60, seed=0), **policy)
    with hospital.run(**keys) as grid:
        for answer in (told(grid), train(grid), train(grid, "evaluate")):
            assert said in str(answer)
    assert not hospital.state.exists(), "nothing was done"


def test_a_run_that_is_allowed_gets_answers(tmp_path: Path) -> None:
    hospital = Hospital(
        tmp_path, *table(200, seed=0), algorithms=["codasca"], problems=["auc"], models=["linear"], most_rounds=2,
        ranges={"batch-size": [8, 64], "local-steps": [1, 9], "fedavg.lr": [0, 0]}, releases=[fingerprint()],
        strict=True, seed="a",
    )  # fmt: skip
    with hospital.run() as grid:
        assert isinstance(told(grid), Facts)
        assert train(grid) == ""


def test_runs_in_a_day_are_counted_in_the_state_folder(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path, *table(60, seed=0), runs_per_day=2)
    with hospital.run() as first:
        assert isinstance(told(first), Facts)
        assert isinstance(hospital.described(), Facts)
        assert "2 runs within 24 hours" in str(hospital.described())
        assert isinstance(told(first), Facts), "a run that has begun goes on"
    records = Records(str(hospital.state))
    for record in records.runs():
        records.note(type(record)(**{**vars(record), "began": record.began - 25 * 3600}))
    assert isinstance(hospital.described(), Facts)


def test_a_policy_holds_for_simulated_parts_too_but_its_minima_do_not(tmp_path: Path) -> None:
    def site(**policy: Any) -> dict[str, Value]:
        return {"partition-id": 0, "policy": site_toml(tmp_path, **policy), "state-dir": str(tmp_path / "state")}

    job = {"dataset": "breast-cancer", "sites": 1, "thin_share": 0.9, "holdout_share": 0.3}
    with SiteGrid(site_job(tmp_path, **job), [site(fewest_training=10_000)]) as grid:
        facts = told(grid)
        assert isinstance(facts, Facts)
        assert (facts.notes, (tmp_path / "state").exists()) == ((), False)
    with SiteGrid(site_job(tmp_path, **job), [site(most_rounds=1)]) as grid:
        assert "at most 1" in str(told(grid))
    saddle = run_config(saddle_job(tmp_path, sites=1))
    with SiteGrid(saddle, [site(models=["mlp"])]) as grid:
        assert isinstance(told(grid), Facts), "a problem without a network has no model to forbid"


def run_config(flat: dict[str, Value]) -> Any:
    from config import RunConfig

    return RunConfig.parse(flat)


# ---------------------------------------------------------------------- few patients


def test_too_few_to_train(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path, *table(19, seed=0), holdout_share=0.0)
    with hospital.run() as grid:
        for said in (str(told(grid)), train(grid), train(grid, "evaluate")):
            assert "fewer than 20 training samples" in said
            assert "19" not in said
    assert isinstance(Hospital(tmp_path / "b", *table(20, seed=0), holdout_share=0.0).described(), Facts)


def test_a_few_held_out_are_not_evaluated(tmp_path: Path) -> None:
    few = Hospital(tmp_path / "few", *table(30, seed=0), seed="a", holdout_share=0.15)
    facts = few.described()
    assert isinstance(facts, Facts)
    assert facts.held_out == 10
    assert facts.notes == ("no evaluation: fewer than 10 samples are held out here",)
    with few.run() as grid:
        assert train(grid) == train(grid, "evaluate") == "no evaluation"
    rare = Hospital(tmp_path / "rare", *table(120, seed=0, positives=12), seed="b")
    facts = rare.described()
    assert isinstance(facts, Facts)
    assert "no evaluation: of a class fewer than 5 samples are held out here" in facts.notes
    with rare.run() as grid:
        assert train(grid) == "no evaluation"
    many = Hospital(tmp_path / "many", *table(200, seed=0), seed="a")
    with many.run() as grid:
        assert train(grid) == train(grid, "evaluate") == ""


SMALL = [(0, 0), (1, 5), (4, 5), (5, 5), (6, 6), (56, 55), (59, 55), (60, 60)]


@pytest.mark.parametrize(("positives", "told_as"), SMALL)
def test_a_small_class_is_told_as_the_fewest(tmp_path: Path, positives: int, told_as: int) -> None:
    facts = Hospital(tmp_path, *table(60, seed=0, positives=positives), holdout_share=0.0).described()
    assert isinstance(facts, Facts)
    assert (facts.examples, facts.positives) == (60, told_as)
    assert bool(facts.notes) == (positives in (1, 4, 56, 59))


def test_counts_per_class_are_left_out_where_one_is_small(tmp_path: Path) -> None:
    features, _ = table(90, seed=0)
    small, large = np.minimum(np.arange(90) // 3, 2)[::-1], np.arange(90) % 3
    for name, labels in (("small", small), ("large", large)):
        facts = Hospital(tmp_path / name, features, labels, holdout_share=0.0).described(
            algorithm="fedavg", problem="cross-entropy"
        )
        assert isinstance(facts, Facts)
        assert facts.class_counts == (() if name == "small" else (30, 30, 30))


def test_sums_of_a_feature_that_few_have_are_left_out(tmp_path: Path) -> None:
    features, labels = table(60, seed=0)
    features[19:, 1] = np.nan
    facts = Hospital(tmp_path, features, labels, holdout_share=0.0).described()
    assert isinstance(facts, Facts)
    assert (facts.count, facts.missing) == ((60, 0, 60, 60), 60)
    assert facts.total[1] == facts.squares[1] == 0 != facts.total[0]


def test_sums_over_a_class_need_patients(tmp_path: Path) -> None:
    features, labels = table(60, seed=0, positives=3)
    hospital = Hospital(tmp_path, features, labels, holdout_share=0.0)
    assert "algorithm = 'coda' sends sums over the samples of each class" in str(hospital.described(algorithm="coda"))
    assert isinstance(hospital.described(algorithm="coda-plus"), Facts)


def test_a_run_goes_on_without_what_few_patients_keep_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = hospitals(tmp_path, rows=(200, 40, 25))
    for node, place in zip(nodes, "abc", strict=True):
        node |= {"policy": site_toml(tmp_path / place, seed="a")}
    result = run_at(site_job(tmp_path), nodes, quiet=False)
    out = capsys.readouterr().out
    assert "warning: site 'south': no evaluation: fewer than 10 samples are held out here" in out
    assert set(result.metrics[-1]["sites"]) == {"north"}
    assert result.metrics[-1]["pooled"]["n"] == result.metrics[-1]["sites"]["north"]["n"]


@pytest.mark.parametrize("rows", [(30, 60), (30, 30)])
def test_a_run_on_classes_goes_on_without_small_counts(tmp_path: Path, rows: tuple[int, int]) -> None:
    nodes = []
    for place, count in enumerate(rows):
        features, labels = table(count, seed=place)[0], np.arange(count) * 13 // count  # of 30 about 2 a class
        data = write_table(tmp_path / f"{place}", features, labels if count == 30 else labels % 3)
        nodes.append({"site": f"s{place}", "data-dir": str(data), "policy": site_toml(tmp_path, holdout_share=0.0)})
    job = site_job(tmp_path, sites=2, algorithm="fedavg", problem="cross-entropy")
    if rows == (30, 30):
        with pytest.raises(Exception, match="no site tells how many samples it has of each class"):
            run_at(job, nodes)
    else:
        assert len(run_at(job, nodes).metrics) == 2


# ---------------------------------------------------------------------- the data


def test_data_that_change_within_a_run_end_it_here(tmp_path: Path) -> None:
    features, labels = table(90, seed=0)
    hospital = Hospital(tmp_path, features, labels)
    with hospital.run() as grid:
        assert isinstance(told(grid), Facts)
        write_table(hospital.data, features[::-1], labels[::-1])  # the same patients in another order
        for kind in ("train", "evaluate"):
            assert "its data have changed since the run began" in train(grid, kind)
        write_table(hospital.data, features, labels)
        assert "changed" not in train(grid)


def test_a_run_that_skips_the_first_question_is_held_to_the_same(tmp_path: Path) -> None:
    features, labels = table(90, seed=0)
    hospital = Hospital(tmp_path, features[1:], labels[1:])
    with hospital.run() as grid:
        train(grid)
    write_table(hospital.data, features, labels)
    with hospital.run() as grid:
        assert "differ by fewer than" in train(grid)
        assert "differ by fewer than" in train(grid, "evaluate")


DOUBTS: list[tuple[str, Callable[[int], Any], str]] = [
    ("identifiers", lambda i: 4711 + i, "another whole number in each row"),
    ("dates", lambda i: 20240101 + i % 28, "hold dates (YYYYMMDD)"),
    ("the label", lambda i: 7 - 3 * (i < 15), "say the same as the label"),
    ("a constant", lambda i: 3.5, "one and the same value"),
    ("nothing", lambda i: np.nan, "hold no value"),
]


@pytest.mark.parametrize(("name", "value", "said"), DOUBTS, ids=[name for name, *_ in DOUBTS])
def test_what_may_be_a_mistake_is_warned_of_and_refused_if_strict(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, value: Callable[[int], Any], said: str
) -> None:
    features, labels = table(60, seed=0)
    features[:, 2] = [value(i) for i in range(60)]
    for strict in (False, True):
        hospital = Hospital(tmp_path / str(strict), features, labels, strict=strict, seed="a")
        with caplog.at_level(logging.WARNING):
            answer = hospital.described()
        assert [r for r in caplog.records if "'marker_2'" in r.getMessage() and said in r.getMessage()]
        caplog.clear()
    assert answer == f"data.csv: 1 columns {said}" or str(answer).startswith("data.csv: 1 columns hold")
    assert "marker" not in str(answer)


def test_a_good_table_raises_no_doubts_and_rows_that_repeat_do(tmp_path: Path) -> None:
    features, labels = table(60, seed=0)
    features[:, 1] = np.arange(60) % 7
    assert isinstance(Hospital(tmp_path / "a", features, labels, strict=True).described(), Facts)
    features[50:], labels[50:] = features[40:50], labels[40:50]
    assert Hospital(tmp_path / "b", features, labels, strict=True).described() == "10 rows repeat another one"


@pytest.mark.parametrize("names", [["63.0", "1.0", "145", "233"], ["63", "sex", "x", "y"], ["4", "2", "4", "2"]])
def test_a_table_without_a_header_does_not_tell_its_first_patient(tmp_path: Path, names: list[str]) -> None:
    hospital = Hospital(tmp_path, *table(60, seed=0))
    write_table(hospital.data, *table(60, seed=0), names=names)
    answer = str(hospital.described(label=names[1]))
    assert "the first line seems to hold values, not the names of the columns" in answer
    assert not [name for name in names if name in answer.replace("problems", "")[12:] and len(name) > 1]


def test_columns_that_are_counted_are_a_header(tmp_path: Path) -> None:
    for names in (["0", "1", "2", "3"], ["1", "2", "3", "4"]):
        hospital = Hospital(tmp_path / names[0], *table(60, seed=0))
        write_table(hospital.data, *table(60, seed=0), names=names)
        assert isinstance(hospital.described(), Facts)


def test_a_patient_column_is_no_feature(tmp_path: Path) -> None:
    features, labels = table(90, seed=0)
    features[:, 0] = np.arange(90) // 3
    hospital = Hospital(tmp_path, features, labels, patient="marker_0", seed="a", strict=True)
    facts = hospital.described()
    assert isinstance(facts, Facts)
    assert facts.shape == (FEATURES - 1,)
    assert facts.examples is not None
    assert facts.examples % 3 == 0
    wrong = Hospital(tmp_path / "b", features, labels, patient="pid").described()
    assert wrong == "data.csv: the patient column is not among its columns"


# ---------------------------------------------------------------------- approval


@pytest.fixture
def asking(tmp_path: Path) -> tuple[Hospital, Records]:
    """Open a hospital that wants to be asked."""
    hospital = Hospital(tmp_path, *table(200, seed=0), approve="ask", seed="a")
    return hospital, Records(str(hospital.state))


def deciding(records: Records, word: str) -> tuple[threading.Thread, list[str]]:
    """Decide about the first run that waits, from a shell of one's own; return the thread, and what `runs` shows."""
    seen: list[str] = []

    def operator() -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            for record in records.runs():
                if record.waits:
                    seen.extend([record.run, *record.shown.values()])
                    seen.append(str(main([word, record.run[:6], "--state-dir", str(records.folder.parent)])))
                    return
            time.sleep(0.02)

    thread = threading.Thread(target=operator)
    thread.start()
    return thread, seen


@pytest.mark.parametrize("word", ["approve", "refuse"])
def test_a_run_waits_for_the_operator(
    asking: tuple[Hospital, Records], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hospital, records = asking
    thread, seen = deciding(records, word)
    with hospital.run() as grid:
        answer = told(grid)
        thread.join()
        assert seen[-1] == "0"
        assert "codasca on auc, 2 rounds, linear" in seen
        assert [text for text in seen if "control variates" in text]
        assert [text for text in seen if "examples = " in text and "three sums of each of 4 features" in text]
        if word == "approve":
            assert isinstance(answer, Facts)
            assert train(grid) == ""
        else:
            assert answer == train(grid) == "its operator refused the run"
    assert main(["runs", "--state-dir", str(hospital.state)]) == 0
    assert "no run waits for you" in capsys.readouterr().out


def test_a_run_that_nobody_approves_gets_no_answer(
    asking: tuple[Hospital, Records], capsys: pytest.CaptureFixture[str]
) -> None:
    hospital, records = asking
    assert "did not approve the run within round-timeout = 0.3 s" in str(hospital.described(round_timeout=0.3))
    assert not list(records.folder.glob("told/*")), "it has told nothing"
    assert main(["approve", records.runs()[0].run, "--state-dir", str(hospital.state)]) == 1
    assert "0 of the runs that wait for you: none" in capsys.readouterr().err
