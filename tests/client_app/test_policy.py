"""The hospital's own rules: what a policy says, and that it holds before anything is computed or sent."""

from __future__ import annotations

import json
import logging
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edelweiss.client_app.cli import main
from edelweiss.client_app.connection import JoinConfig
from edelweiss.client_app.policy import TRUST, admission
from edelweiss.client_app.policy.records import Records
from edelweiss.client_app.policy.rules import Policy, PolicyError, Secret
from edelweiss.common import Value
from edelweiss.datasets import Facts
from edelweiss.federation import RunError, Site
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.federation.wire import pack
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from edelweiss.server_app.data_summary import pooled
from tests.client_app.policies import WAITS, Hospital, site_toml, told, train
from tests.said import has, lines, warnings
from tests.server_app.sites import SiteGrid, hospitals, question, run_at, saddle_job, site_job, table, write_table

# ---------------------------------------------------------------------- the file


def test_the_value_of_a_secret_rule_is_never_said() -> None:
    class Stricter(Policy):
        pepper: Secret = ""

    before, after = (
        Stricter.model_validate({}),
        Stricter.model_validate({"pepper": "p", "seed": "s", "compare-patients": "c", "most-rounds": 7}),
    )
    [*secrets, rounds] = sorted(before.changes(after), key=lambda text: "most-rounds" in text)
    assert len(secrets) == 3
    assert not any("'" in text for text in secrets)
    assert "7" in rounds


def test_everything_wrong_with_a_policy_is_told_at_once(tmp_path: Path) -> None:
    path = site_toml(
        tmp_path,
        algorithms=["codsca"],
        folds=1,
        strickt=True,
        approve="maybe",
        releases=["v1"],
        fewest_training=0,
        ranges={"rouds": [1, 2], "seed": [3, 1]},
    )
    with pytest.raises(PolicyError) as caught:
        Policy.read(path)
    said = caught.value.problems
    assert len(said) == 8
    for part in (
        "Did you mean 'codasca'?",
        "folds = 1",
        "Did you mean 'strict'?",
        "'always' or 'ask'",
        "'rounds'",
        "ranges.seed = [3, 1]",
        "releases.0 = 'v1'",
        "fewest-training = 0",
    ):
        assert [line for line in said if part in line], part


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("[Policy]\nstrict = true", "Policy", "'policy'?"),
        ("[polcy]\nstrict = true\n[policy]\nmost-rounds = 5", "polcy", "'policy'?"),
        ("strict = true", "strict", "[policy]"),
        ("site = 'a'\nranges.seed = [1, 2]\n[policy]", "ranges", "[policy]"),
        ("[audit]\n[policy]", "audit", "privacy"),
        ("[join]\n[policy]", "join", "privacy"),
    ],
)
def test_a_rule_that_would_be_ignored_is_a_mistake(tmp_path: Path, text: str, key: str, said: str) -> None:
    path = tmp_path / "site.toml"
    path.write_text(text)
    with pytest.raises(PolicyError, check=has(said, keys=[key])):
        Policy.read(str(path))


@pytest.mark.slow
@given(st.text(min_size=1, max_size=12))
def test_no_table_but_one_of_a_known_name_is_passed_over(name: str) -> None:
    known = {"policy", *(f.alias or key for key, f in JoinConfig.model_fields.items())}
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
        file.write(f"[{json.dumps(name)}]\nstrict = true\n" if name.isprintable() else "[x]\nstrict = true\n")
        file.flush()
        with nullcontext() if name in known else pytest.raises(PolicyError):
            Policy.read(file.name)


@pytest.mark.parametrize("text", ["[policy", "policy = 3", "[policy]\nstrict = 1", "[polcy]", "strict = true", None])
def test_a_site_without_a_readable_policy_refuses_everything(tmp_path: Path, text: str | None) -> None:
    hospital = Hospital(tmp_path, *table(60, seed=0))
    if text is None:
        Path(str(hospital.node["policy"])).unlink()
    else:
        Path(str(hospital.node["policy"])).write_text(text)
    with hospital.run() as grid:
        for said in (str(told(grid)), train(grid), train(grid, "evaluate")):
            assert said.startswith("this site's policy is invalid")
            assert str(tmp_path) not in said
    assert [path.name for path in hospital.state.glob("[!a]*")] == [], "besides the audit log"


def test_the_file_is_shared_with_other_readers(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text('superlink = "host:9092"\nsite = "north"\nstudy = "study.toml"\n')
    assert Policy.read(str(path)) == Policy.read("")
    defaults = Policy.read("")
    assert (defaults.fewest_training, defaults.fewest_held_out, defaults.fewest_of_each_class) == (20, 10, 5)
    assert (defaults.most_rounds, defaults.runs_per_day) == (200, 10)


@pytest.mark.parametrize(
    "release",
    [
        "",
        " ",
        "0123456789ab ",
        " 0123456789ab",
        "0123456789a",
        "0123456789abc",
        "0123456789AB",
        "0123456789ab\n",
        "0123 456789ab",
    ],
    ids=repr,
)
def test_a_release_is_twelve_digits_and_nothing_else(tmp_path: Path, release: str) -> None:
    """A policy that allows one that cannot be would allow none, and not say why."""
    with pytest.raises(PolicyError, check=has("releases")):
        Policy.read(site_toml(tmp_path, releases=["0123456789ab", release]))
    assert Policy.read(site_toml(tmp_path, releases=["0123456789ab"])).releases == ["0123456789ab"]


# ---------------------------------------------------------------------- what a run may be


REFUSED = [
    ({"algorithms": ["fedavg"]}, {}, "algorithm = 'codasca': this site allows 'fedavg'"),
    ({"problems": ["bce", "auprc"]}, {}, "problem = 'auc': this site allows 'auprc', 'bce'"),
    ({"models": ["mlp"]}, {}, "model = 'linear': this site allows 'mlp'"),
    ({"most_rounds": 1}, {}, "rounds = 2: this site allows at most 1"),
    ({"ranges": {"batch-size": [32, 64]}}, {}, "batch-size = 16: this site allows 32 to 64"),
    ({"ranges": {"local-steps": [5, 9]}}, {}, "local-steps = 3: this site allows 5 to 9"),
    ({"ranges": {"codasca.lr": [0, 0.01]}}, {}, "this site allows 0 to 0.01"),
    ({"releases": ["0123456789ab"]}, {}, "is not one of the releases"),
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
    assert [path.name for path in hospital.state.glob("[!a]*")] == [], "nothing was done but for the audit log"


def test_a_run_that_is_allowed_gets_answers(tmp_path: Path) -> None:
    hospital = Hospital(
        tmp_path,
        *table(200, seed=0),
        algorithms=["codasca"],
        problems=["auc"],
        models=["linear"],
        most_rounds=2,
        ranges={"batch-size": [8, 64], "local-steps": [1, 9], "fedavg.lr": [0, 0]},
        releases=[fingerprint()],
        strict=True,
        seed="a",
    )
    with hospital.run() as grid:
        assert isinstance(told(grid), Facts)
        assert train(grid) == ""


def test_runs_in_a_day_are_counted_in_the_state_folder(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path, *table(60, seed=0), runs_per_day=2)
    with hospital.run() as first:
        assert isinstance(told(first), Facts)
        for _ in range(2):
            with hospital.run() as another:
                assert isinstance(told(another), Facts)
                assert "24 hours" not in train(another)
        assert "2 runs within 24 hours" in str(hospital.described())
        assert "2 runs within 24 hours" in train(first), "nor does one begin to train that was told before"
        assert isinstance(told(first), Facts)
    records = Records(str(hospital.state))
    for record in records.runs():
        records.note(type(record)(**{**vars(record), "began": record.began - 25 * 3600}))
    assert isinstance(hospital.described(), Facts)


def test_runs_that_never_ask_for_a_round_have_a_limit_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another site refuses them: they take no place of those that train, and are not without limit."""
    monkeypatch.setattr(admission, "UNBEGUN", 3)
    hospital = Hospital(tmp_path, *table(60, seed=0), runs_per_day=1)
    for _ in range(3):
        assert isinstance(hospital.described(), Facts)
    assert "never asked for a round" in str(hospital.described())
    records = Records(str(hospital.state))
    (records.folder / "runs" / f"{records.runs()[0].run}.json").unlink()
    with hospital.run() as grid:
        assert isinstance(told(grid), Facts)
        assert "24 hours" not in train(grid)
    assert "1 runs within 24 hours" in str(hospital.described())


def test_a_run_that_another_site_refuses_takes_no_place_at_the_others(tmp_path: Path) -> None:
    north = Hospital(tmp_path / "north", *table(60, seed=0), runs_per_day=1)
    south = Hospital(tmp_path / "south", *table(60, seed=1), algorithms=["fedavg"])
    nodes = [north.node, south.node | {"site": "south"}]

    def run(algorithm: str, problem: str) -> None:
        keys = {"algorithm": algorithm, "problem": problem, "sites": 2, "rounds": 1, "workers": 1, "evaluate_every": 0}
        job = site_job(tmp_path, **keys, holdout_share=0.2)
        with SiteGrid(job, nodes) as grid:
            coordinate(job, grid, Progress(quiet=True))

    for _ in range(2):
        with pytest.raises(RunError, check=has("algorithm", "'codasca'", "'fedavg'", sites=("south",))):
            run("codasca", "auc")
    run("fedavg", "bce")
    with pytest.raises(RunError, check=has("runs-per-day", 1, 24, sites=("north",))):
        run("fedavg", "bce")


def test_a_policy_holds_for_simulated_parts_too_but_its_minima_do_not(tmp_path: Path) -> None:
    def site(**policy: Any) -> dict[str, Value]:
        return {"partition-id": 0, "policy": site_toml(tmp_path, **policy), "state-dir": str(tmp_path / "state")}

    job = {"dataset": "breast-cancer", "sites": 1, "holdout_share": 0.3}
    with SiteGrid(site_job(tmp_path, **job), [site(fewest_training=10_000)]) as grid:
        facts = told(grid)
        assert isinstance(facts, Facts)
        assert not [note for note in facts.notes if "fewer" in note]
        assert not (tmp_path / "state").exists()
    with SiteGrid(site_job(tmp_path, **job), [site(algorithms=["fedavg"])]) as grid:
        assert "this site allows 'fedavg'" in str(told(grid))
    with SiteGrid(site_job(tmp_path, rounds=1000, **job), [site(runs_per_day=1)]) as grid:
        assert isinstance(told(grid), Facts), "as many rounds and runs of public data as there may be"
    saddle = run_config(saddle_job(tmp_path, sites=1))
    with SiteGrid(saddle, [site(models=["mlp"])]) as grid:
        assert isinstance(told(grid), Facts), "a problem without a network has no model to forbid"


def run_config(flat: dict[str, Value]) -> Any:
    from edelweiss.config import RunConfig

    return RunConfig.parse(flat)


def test_what_was_asked_first_is_what_a_run_may_ask(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path, *table(90, seed=0))
    with hospital.run() as grid:
        assert isinstance(told(grid), Facts)
        assert "round = 3: " in train(grid, round=3)
        own = grid.contexts[0].run_config
        grid.contexts[0].run_config = {**own, "batch-size": 1}
        assert "the run-config has changed since the run began" in train(grid)
        grid.contexts[0].run_config = own
        assert train(grid) in ("", "no evaluation")


# ---------------------------------------------------------------------- few patients


def test_too_few_to_train(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path, *table(19, seed=0), holdout_share=0.0)
    with hospital.run() as grid:
        for said in (str(told(grid)), train(grid), train(grid, "evaluate")):
            assert "fewer than 20 training patients" in said
            assert "19" not in said
    assert isinstance(Hospital(tmp_path / "b", *table(20, seed=0), holdout_share=0.0).described(), Facts)


def test_a_few_held_out_are_not_evaluated(tmp_path: Path) -> None:
    few = Hospital(tmp_path / "few", *table(30, seed=0), seed="a", holdout_share=0.15)
    facts = few.described()
    assert isinstance(facts, Facts)
    assert facts.held_out == 10
    assert facts.notes == ("no evaluation: fewer than 10 patients are held out here",)
    with few.run() as grid:
        assert train(grid) == train(grid, "evaluate") == "no evaluation"
    rare = Hospital(tmp_path / "rare", *table(120, seed=0, positives=12), seed="b")
    facts = rare.described()
    assert isinstance(facts, Facts)
    assert "no evaluation: fewer than 5 held-out samples of a class here" in facts.notes
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
    assert "algorithm = 'coda' sends sums over each class" in str(hospital.described(algorithm="coda"))
    assert isinstance(hospital.described(algorithm="coda-plus"), Facts)


def test_a_run_goes_on_without_what_few_patients_keep_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = hospitals(tmp_path, rows=(200, 40, 25))
    for node, place in zip(nodes, "abc", strict=True):
        node |= {"policy": site_toml(tmp_path / place, seed="a")}
    result = run_at(site_job(tmp_path), nodes, quiet=False)
    assert warnings(capsys.readouterr().out, "'south'", "evaluation")
    assert set(result.metrics[-1]["sites"]) == {"north"}
    assert result.metrics[-1]["pooled"]["n"] == result.metrics[-1]["sites"]["north"]["n"]


def test_means_are_over_the_sites_that_send_sums(tmp_path: Path) -> None:
    every = [Hospital(tmp_path / name, *table(60, seed=seed)).described() for seed, name in enumerate("ab")]
    facts = [one for one in every if isinstance(one, Facts)]
    silent = replace(facts[1], count=(), total=(), squares=())
    config = site_job(tmp_path, sites=2)
    sites = [Site(place, name, place + 1) for place, name in enumerate("ab")]
    pairs = [[facts[0], facts[1]], [facts[0], silent]]
    summaries = [pooled(config, dict(zip(sites, pair, strict=True)), Progress(True)) for pair in pairs]
    alone = np.divide(facts[0].total, facts[0].count)
    np.testing.assert_allclose(summaries[1].shift, alone, rtol=1e-6)
    assert not np.allclose(summaries[0].shift, alone)
    none = replace(facts[0], count=(), total=(), squares=())
    assert pooled(config, dict(zip(sites, [none, silent], strict=True)), Progress(True)).shift == ()


@pytest.mark.parametrize("rows", [(30, 60), (30, 30)])
def test_a_run_on_classes_goes_on_without_small_counts(tmp_path: Path, rows: tuple[int, int]) -> None:
    nodes = []
    for place, count in enumerate(rows):
        features, labels = table(count, seed=place)[0], np.arange(count) * 13 // count  # of 30 about 2 a class
        data = write_table(tmp_path / f"{place}", features, labels if count == 30 else labels % 3)
        nodes.append({"site": f"s{place}", "data-dir": str(data), "policy": site_toml(tmp_path, holdout_share=0.0)})
    job = site_job(tmp_path, sites=2, algorithm="fedavg", problem="cross-entropy")
    if rows == (30, 30):
        with pytest.raises(RunError, check=has(key="classes")):
            run_at(job, nodes)
    else:
        assert len(run_at(job, nodes).metrics) == 2


# ---------------------------------------------------------------------- approval


@pytest.fixture
def asking(tmp_path: Path) -> tuple[Hospital, Records]:
    """Open a hospital that wants to be asked."""
    hospital = Hospital(tmp_path, *table(200, seed=0), approve="ask", seed="a")
    return hospital, Records(str(hospital.state))


def decided(records: Records, word: str) -> list[str]:
    """Decide about the only run that waits, as its operator does; return what `runs` shows, and the exit code."""
    [record] = [record for record in records.runs() if record.waits]
    code = main([word, record.run[:6], "--state-dir", str(records.folder.parent)])
    return [record.run, *record.shown.values(), str(code)]


@pytest.mark.parametrize("word", ["approve", "refuse"])
def test_a_run_waits_for_the_operator(
    asking: tuple[Hospital, Records], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hospital, records = asking
    with hospital.run() as grid:
        assert told(grid) == told(grid) == WAITS, "it is asked again, and others may be answered meanwhile"
        seen = decided(records, word)
        answer = told(grid)
        assert seen[-1] == "0"
        assert "codasca on auc, 2 rounds, linear" in seen
        assert TRUST in seen, "what no rule prevents is said before the decision"
        assert [text for text in seen if "control variates" in text]
        assert [text for text in seen if "examples = " in text and "three sums of each of 4 features" in text]
        if word == "approve":
            assert isinstance(answer, Facts)
            assert train(grid) == ""
            run = records.runs()[0].run
            assert main(["refuse", run, "--state-dir", str(hospital.state)]) == 0, "it may withdraw from a run"
            assert train(grid) == "its operator refused the run"
            assert main(["refuse", run, "--state-dir", str(hospital.state)]) == 1
        else:
            assert answer == train(grid) == "its operator refused the run"
    assert (TRUST in capsys.readouterr().out) == (word == "approve")
    assert main(["runs", "--state-dir", str(hospital.state)]) == 0
    assert [record for record in records.runs() if record.waits] == []
    [run] = {record.run for record in records.runs()}
    assert run not in capsys.readouterr().out
    assert main(["runs", "--all", "--state-dir", str(hospital.state)]) == 0
    assert run in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [{"shape": [3]}, {"scale": [1.0]}, {"classes": 1}])
def test_a_run_that_was_not_approved_learns_nothing_by_being_corrected(
    asking: tuple[Hospital, Records], wrong: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """What a message should have been tells how many columns the data have."""
    hospital, _ = asking
    with caplog.at_level(logging.ERROR, "edelweiss"), hospital.run() as grid:
        answer = grid.ask("train", 0, question(grid.config, **wrong))
    said = str(answer.content.config_records["error"]["message"])
    assert said == "a bad message of a run that has not begun here (see the site's own log)"
    assert f"{next(iter(wrong))} = " in caplog.text, "its operator can see it"


def test_a_run_that_was_not_approved_learns_no_length_of_a_model(
    asking: tuple[Hospital, Records], caplog: pytest.LogCaptureFixture
) -> None:
    """It follows from the number of columns."""
    hospital, _ = asking
    with caplog.at_level(logging.ERROR, "edelweiss"), hospital.run() as grid:
        content = question(grid.config)
        content["arrays"] = pack({"x": torch.zeros(2), "y": torch.zeros(1)})
        answer = grid.ask("train", 0, content)
    said = str(answer.content.config_records["error"]["message"])
    assert not set(said) & set("0123456789")
    assert "'x'" in caplog.text, "its operator can see it"


@pytest.mark.parametrize("wrong", [{"committed": 2}, {"phase": "none"}, {"site": 7}, {"name": "a/b"}, {"sites": 9}])
def test_a_message_is_checked_before_data_are_read(asking: tuple[Hospital, Records], wrong: dict[str, object]) -> None:
    """Or else a refusal about the data would answer whoever cannot write a message."""
    hospital, _ = asking
    for file in hospital.data.iterdir():
        file.unlink()
    with hospital.run() as grid:
        refusals = [grid.ask("train", 0, question(grid.config, **each)) for each in (wrong, {})]
    bad, sound = (str(answer.content.config_records["error"]["message"]) for answer in refusals)
    [key] = wrong
    assert f"{key} = " in bad
    assert f"{key} = " not in sound, "without the fault, it is the data that are missing"


def test_a_site_that_asks_needs_a_place_to_be_asked_at(asking: tuple[Hospital, Records]) -> None:
    hospital, _ = asking
    hospital.node["state-dir"] = ""
    assert 'state-dir is missing: with approve = "ask"' in str(hospital.described())


def test_a_run_that_nobody_approves_gets_no_answer(
    asking: tuple[Hospital, Records], capsys: pytest.CaptureFixture[str]
) -> None:
    hospital, records = asking
    assert hospital.described() == WAITS
    assert not list(records.folder.glob("told/*")), "it has told nothing"
    record = records.runs()[0]
    records.note(replace(record, until=time.time() - 1))
    assert main(["approve", record.run, "--state-dir", str(hospital.state)]) == 1, "it was asked too long ago"
    number = record.run
    assert lines(capsys.readouterr().err, f"'{number}'", "none")
