"""Runs with differential privacy in the local engine: what they need, what they send, that they repeat."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edelweiss import load_run
from edelweiss.client_app.privacy.site import SitePrivacy
from edelweiss.common import ConfigError
from edelweiss.config import RunConfig
from edelweiss.config.privacy import COUNT_NOISE, price, require_private
from edelweiss.datasets import DataSummary, load_site
from edelweiss.evidence.summary import NOISED
from edelweiss.evidence.text import format_estimate
from edelweiss.federation.privacy_account import epsilon, spent
from edelweiss.federation.privacy_plan import total
from edelweiss.lab.compare.comparison import Comparison
from edelweiss.lab.compare.folders import read
from edelweiss.lab.report import write_report
from edelweiss.lab.report.private import TRUST
from edelweiss.models import Architecture
from edelweiss.models.storage import StoredTensors
from edelweiss.problems import PROBLEMS, Setting
from edelweiss.server_app.simulation import simulate
from tests.client_app.policies import site_toml
from tests.lab.read_page import Page
from tests.said import has
from tests.server_app.sites import run_at, site_job, write_table

BASE: dict[str, Any] = {
    "engine": "local",
    "workers": 1,
    "dataset": "breast-cancer",
    "sites": 2,
    "rounds": 2,
    "local-steps": 2,
    "batch-size": 8,
    "dp.epsilon": 8.0,
    "dp.delta": 1e-3,
}


def parsed(**keys: Any) -> RunConfig:
    return RunConfig.parse(BASE | {key.replace("__", ".").replace("_", "-"): value for key, value in keys.items()})


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"dp__epsilon": float("inf")}, "dp.epsilon"),
        ({"dp__epsilon": -1.0}, "dp.epsilon"),
        ({"dp__epsilon": 0.0, "dp__clip": 2.0}, "dp.clip"),
        ({"dp__clip": -1.0}, "dp.clip"),
        ({"dp__clip": 1e-9}, "dp.clip"),
        ({"dp__delta": 0.0}, "dp.delta"),
        ({"dp__delta": 1.0}, "dp.delta"),
        ({"dp__difference_clip": 1e-9}, "dp.difference-clip"),
        ({"problem": "auprc", "algorithm": "fcsg"}, "auprc"),
        ({"problem": "partial-auc", "algorithm": "fcsg"}, "partial-auc"),
        ({"problem": "saddle"}, "saddle"),
        ({"sampler": "fixed-positives"}, "uniform"),
        ({"pooled": True}, "pooled"),
    ],
)
def test_what_cannot_be_private_is_refused_with_the_way_out(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(**keys)
    assert any(named in line for line in caught.value.problems)


def test_the_noise_of_a_plan_costs_what_the_run_may_cost() -> None:
    run = parsed(algorithm="fmgda")
    cost = price(run, 2, 200)
    assert epsilon(cost.curve, run.dp_delta) <= run.dp_epsilon
    assert epsilon(cost.curve, run.dp_delta) > 0.98 * run.dp_epsilon
    assert (cost.curve >= spent(total(cost.plan), cost.noise)).all()
    with pytest.raises(ConfigError):
        price(run, 2, 1000)  # δ is 1/n
    with pytest.raises(ConfigError):
        price(parsed(dp__epsilon=0.01), 2, 200)


def test_smaller_sites_add_more_noise() -> None:
    run = parsed()
    noises = [price(run, 2, patients).noise for patients in (50, 200, 900)]
    assert noises == sorted(noises, reverse=True)


def run_of(folder: Path, **keys: Any) -> Any:
    return simulate(BASE | {"runs-dir": str(folder)} | keys, quiet=True)


def test_a_run_repeats_to_the_bit_with_any_number_of_workers_and_states_what_it_promises(tmp_path: Path) -> None:
    first = run_of(tmp_path / "1")
    again = run_of(tmp_path / "2", workers=2)
    assert all(np.array_equal(first.arrays[name], again.arrays[name]) for name in first.arrays)
    told = json.loads((Path(first.folder) / "about.json").read_text(encoding="utf-8"))["privacy"]
    assert (told["epsilon"], told["delta"]) == (8.0, 1e-3)
    assert 1 < told["clip"] == told["difference-clip"] < 2  # of auc, by the noised counts
    for site in told["sites"].values():
        assert site["noise"] > 0
        assert site["tight-epsilon"] < site["epsilon"] <= 8.0
    for line in first.metrics:
        assert not line.get("sites") or not any("auroc" in one for one in dict(line["sites"]).values())


def test_private_clients_are_taken_one_by_one_in_a_run_with_stacks(tmp_path: Path) -> None:
    assert [line["round"] for line in run_of(tmp_path, stack=2).metrics] == [1, 2]


@pytest.mark.slow
def test_another_clip_or_seed_is_another_question(tmp_path: Path) -> None:
    ends = [
        run_of(tmp_path / str(place), rounds=1, **keys).arrays["x"]
        for place, keys in enumerate([{}, {"dp.clip": 1.0 + 1e-6}, {"dp.delta": 1.1e-3}, {"seed": 1}])
    ]
    for i, one in enumerate(ends):
        for other in ends[:i]:
            assert np.linalg.norm(one - other) > 1e-3  # fresh noise, not a scaled one


def private(seed: int = 0, copies: int = 1) -> SitePrivacy:
    run = parsed(seed=seed)
    data = load_site(run.data(), 0, 2)
    rows = data.train.rows.repeat(copies)
    return SitePrivacy.simulated(run, replace(data, train=replace(data.train, rows=rows)), 0)


def test_counts_are_noised_once_and_nothing_else_of_the_rows_is_told() -> None:
    sites = [private(seed) for seed in range(60)]
    facts = [site.facts("north", 0) for site in sites]
    assert facts[0] == private(0).facts("north", 0)
    exact = [int(site.data.train.targets().sum()) for site in sites]
    off = np.array([one.positives - count for one, count in zip(facts, exact, strict=True)])  # type: ignore[operator]
    assert 6 < off.std() < 15  # COUNT_NOISE for each class, then scaled to n
    assert COUNT_NOISE == 10
    for one in facts:
        assert one.count == one.total == one.squares == ()
        assert one.missing == 0
        assert 0 < one.positives < one.examples  # type: ignore[operator]


def test_other_labels_are_counted_with_other_noise() -> None:
    """A run chooses the label column, and how blank labels count: a difference of two counts would be exact."""
    off = []
    for site in map(private, range(10)):
        labels = site.data.train.labels.clone()
        labels[site.data.train.rows[0]] = 1 - labels[site.data.train.rows[0]]
        other = replace(site.data, train=replace(site.data.train, labels=labels))
        pair = site, SitePrivacy.simulated(site.run, other, 0)
        off.append(np.subtract(*(int(one.counted_labels.sum()) for one in pair)))
    assert np.std(off) > 5


def test_rows_that_repeat_without_a_patient_column_are_refused() -> None:
    site = private()
    ids = np.zeros(len(site.data.train.inputs), np.uint64)
    with pytest.raises(ConfigError, check=has(keys=["patient"])):
        SitePrivacy.simulated(site.run, replace(site.data, patient_ids=ids, by_patient=False), 0)


def test_batch_norm_is_refused_before_anything_is_computed() -> None:
    given = DataSummary(shape=(1, 32, 32), prior=0.3)
    problem = PROBLEMS["auc"](Setting(data_summary=given, architecture=Architecture(model="conv4", hidden=2)))
    with pytest.raises(ConfigError) as caught:
        require_private(problem)
    assert any("batch norm" in line for line in caught.value.problems)


def test_the_end_of_a_run_is_judged_by_noised_histograms_alone(tmp_path: Path) -> None:
    run = run_of(tmp_path, **{"partition": "iid", "thin-share": 0.0, "rounds": 10, "holdout-share": 0.5})
    last = run.metrics[-1]
    assert not last["sites"]
    noised = last["noised"]
    assert 0 <= noised["auroc-low"] <= noised["auroc"] <= noised["auroc-high"] <= 1
    assert 0 < noised["auroc-noise"] < 1
    assert noised["auroc-low"] - 0.1 <= last["central"]["auroc"] <= noised["auroc-high"] + 0.1
    assert "noised" not in run.metrics[0]
    without = run_of(tmp_path / "without", evidence=False)
    assert "noised" not in without.metrics[-1]


ENDS = {"value": "", "low": "-low", "high": "-high", "noise": "-noise"}


def reported(folder: Path, **keys: Any) -> Any:
    run = run_of(folder, **keys)
    write_report(run.folder)
    return run


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run whose sites have enough held-out patients that the noise leaves something to see."""
    keys = {"partition": "iid", "thin-share": 0.0, "rounds": 10, "holdout-share": 0.5}
    return reported(tmp_path_factory.mktemp("judged"), **keys)


@pytest.mark.slow
def test_evidence_under_noise_is_wherever_a_reader_looks(judged: Any) -> None:
    folder, noised = Path(judged.folder), judged.metrics[-1]["noised"]
    evidence = load_run(folder).evidence
    assert evidence == json.loads((folder / "evidence.json").read_text(encoding="utf-8"))
    page = Page((folder / "report.html").read_text(encoding="utf-8")).said
    card, tripod = ((folder / name).read_text(encoding="utf-8") for name in ("model-card.md", "tripod-ai.md"))
    for kind in ("auroc", "auprc"):
        found = evidence["noised"][kind]
        assert {key: found[key] for key in ENDS} == {key: noised[f"{kind}{end}"] for key, end in ENDS.items()}
        sentence = f"{format_estimate(found)}, {found['noise']:.0%} of the interval's width is noise."
        assert all(sentence in text for text in (page, card, tripod))
    assert evidence["pooled"] is None
    assert not evidence["sites"]
    assert all(NOISED in text for text in (page, card, tripod))


def test_the_page_says_what_a_run_promises_and_with_how_much_noise(judged: Any) -> None:
    folder = Path(judged.folder)
    promised = json.loads((folder / "about.json").read_text(encoding="utf-8"))["privacy"]
    page, card = (Page((folder / name).read_text(encoding="utf-8")).said for name in ("report.html", "model-card.md"))
    for text in (page, card):
        assert f"ε = 8 at δ = 0.001 (clip = {promised['clip']:.3g})" in text
        assert TRUST not in text
        for site in promised["sites"].values():
            assert f"{site['noise']:.3g}" in text
    assert "seconds, and the round" not in page  # they are not sent


@pytest.mark.usefixtures("evidence")
def test_without_a_test_set_no_section_is_empty_and_runs_are_compared_under_noise(judged: Any, tmp_path: Path) -> None:
    alone = reported(tmp_path, **{"central-test": False, "rounds": 1, "seed": 1, "holdout-share": 0.5})
    page = Page((Path(alone.folder) / "report.html").read_text(encoding="utf-8")).said
    assert "under noise" in page
    assert "Are the probabilities right?" not in page
    assert "Telling positives from negatives" not in page
    found, _ = read([str(judged.folder)])
    row = Comparison.of(found, ["noised.auroc"]).runs.iloc[0]
    noised = judged.metrics[-1]["noised"]
    assert row["noised.auroc"] == noised["auroc"]
    for end in ("low", "high"):
        assert row[f"noised.auroc, {end} over patients"] == noised[f"auroc-{end}"]


@pytest.mark.usefixtures("evidence")
def test_scores_of_different_models_are_not_ranked_together_under_noise(tmp_path: Path) -> None:
    keys = {"algorithm": "ditto", "problem": "bce", "partition": "iid", "thin-share": 0.0, "holdout-share": 0.5}
    run = reported(tmp_path, **keys)
    noised = load_run(run.folder).evidence["noised"]  # type: ignore[index]
    assert {*noised} == {"auroc"}
    assert "auroc" in run.metrics[-1]["noised"]
    assert not [name for name in run.metrics[-1]["noised"] if name.startswith("auprc")]
    assert "Average precision" not in Page((Path(run.folder) / "report.html").read_text(encoding="utf-8")).said


def test_without_differential_privacy_the_page_says_what_a_coordinator_can_compute(tmp_path: Path) -> None:
    run = reported(tmp_path, **{"dp.epsilon": 0.0, "dp.delta": 1e-5, "rounds": 1})
    for name in ("report.html", "model-card.md"):
        assert TRUST in Page((Path(run.folder) / name).read_text(encoding="utf-8")).said


# ---------------------------------------------------------------------- at hospitals: what inputs are standardised by

COLUMNS = """\
[label]
column = "label"
negative = ["0"]
positive = ["1"]
[columns.stated]
mean = 100.0
deviation = 20.0
range = [0, 1000]
[columns.ranged]
range = [0, 12]
[columns.coded]
codes = { no = 0, yes = 1 }
[columns.bare]
"""


def test_hospitals_inputs_are_standardised_by_what_the_study_file_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random, study = np.random.default_rng(0), tmp_path / "study.toml"
    study.write_text(COLUMNS)
    nodes: list[dict[str, Any]] = []
    for name in ("north", "south"):
        labels = random.integers(0, 2, 200)
        columns = random.normal(100, 20, 200), random.uniform(0, 12, 200), random.random(200) < 0.5, random.random(200)
        table = [",".join(["stated", "ranged", "coded", "bare", "label"])]
        table += [f"{a},{b},{'yes' if c else 'no'},{d},{e}" for a, b, c, d, e in zip(*columns, labels, strict=True)]
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.csv").write_text("\n".join(table))
        policy = site_toml(tmp_path / name, privacy={"epsilon": 8.0})
        own = {"site": name, "data-dir": str(tmp_path / name), "state-dir": str(tmp_path / f"{name}-state")}
        nodes.append({**own, "policy": policy, "study": str(study)})
    job = site_job(tmp_path, sites=2, study=str(study), report=False, **{"dp.epsilon": 2.0, "dp.delta": 1e-4})
    folder = run_at(job, nodes, quiet=False).folder
    facts = StoredTensors.read(folder / "model.safetensors").facts
    summary = DataSummary.of_file(facts)
    assert summary.shift == pytest.approx([0.0, 0.5, 6.0, 100.0])  # by name: bare, coded, ranged, stated
    assert summary.scale == pytest.approx([1.0, 0.5, 12 / 12**0.5, 20.0])
    assert "'bare'" in capsys.readouterr().out


def test_a_column_of_large_numbers_drowns_the_others_unless_the_study_file_has_its_range(tmp_path: Path) -> None:
    """What `doctor` advises: with that line the run learns, and without it does not."""
    found = {}
    for advice in ("", "range = [0, 3e6]"):
        place = tmp_path / str(len(found))
        nodes: list[dict[str, Any]] = []
        for seed, name in enumerate(("north", "south")):
            random = np.random.default_rng(seed)
            labels = (random.random(800) < 0.3).astype(int)
            features = random.normal(size=(800, 4)) + 1.5 * labels[:, None]
            features[:, 0] = 1e6 + 2e5 * features[:, 0]
            data = write_table(place / name, features, labels, ["platelets", "a", "b", "c"])
            policy = site_toml(place / name, privacy={"epsilon": 20.0})
            nodes.append({"site": name, "data-dir": str(data), "state-dir": str(place / f"{name}-state")})
            nodes[-1] |= {"policy": policy, "study": str(place / "study.toml")}
        label = '[label]\ncolumn = "label"\nnegative = ["0"]\npositive = ["1"]\n'
        others = "\n".join(f"[columns.{name}]" for name in ("a", "b", "c"))
        (place / "study.toml").write_text(f"{label}[columns.platelets]\n{advice}\n{others}\n")
        keys: dict[str, Any] = {"study": str(place / "study.toml"), "algorithm": "fedavg", "problem": "bce"}
        keys |= {"sites": 2, "rounds": 3, "local-steps": 5, "batch-size": 64, "fedavg.lr": 0.5, "report": False}
        run = run_at(site_job(place, **keys, **{"dp.epsilon": 8.0, "dp.delta": 1e-4}), nodes)
        found[advice] = run.metrics[-1]["noised"].get("auroc", 0.5)
    raw, standardised = found.values()
    assert raw < 0.7, found
    assert standardised > 0.8, found
