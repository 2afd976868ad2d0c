"""evidence.json of whole runs, against the scores that the sites did not send."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message
from scipy.stats import t
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

from edelweiss.client_app import evidence as at_the_site
from edelweiss.client_app.app import answer
from edelweiss.common import Value
from edelweiss.config import ConfigError, RunConfig
from edelweiss.evidence.calibration import probability
from edelweiss.evidence.text import format_estimate
from edelweiss.lab.compare.comparison import Comparison
from edelweiss.lab.compare.folders import read
from edelweiss.models import ModelError
from edelweiss.problems.metrics import shown
from edelweiss.server_app import simulate
from edelweiss.server_app.coordinator import Result
from edelweiss.server_app.evidence import in_words
from edelweiss.server_app.local import LocalGrid
from tests.client_app.policies import site_toml
from tests.reference.delong import delong
from tests.said import has
from tests.server_app.sites import FEATURES, hospitals, job, run_at, site_job, write_table

Scored = tuple[np.ndarray, np.ndarray]
REAL = pytest.mark.skipif(not os.environ.get("EDELWEISS_DATA"), reason="needs EDELWEISS_DATA")
JOBS = {
    "breast cancer": {"dataset": "breast-cancer", "sites": 4},
    "probabilities": {"dataset": "breast-cancer", "sites": 3, "algorithm": "fedavg", "problem": "bce"},
    "one class at most sites": {"dataset": "breast-cancer", "sites": 6, "concentration": 0.05},
    "average precision": {"sites": 3, "problem": "auprc", "algorithm": "fcsg", "partition": "iid"},
    "heart": {"dataset": "heart-disease", "sites": 4, "partition": "sites", "thin-share": 0.0},
    "digits": {"dataset": "digits", "sites": 4, "positive-classes": "3", "negative-classes": "8"},
    "mnist": {"dataset": "mnist", "sites": 3, "positive-classes": "3", "negative-classes": "8", "model": "linear"},
}
MARKS = {name: [REAL] for name in ("heart", "mnist")}


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> dict[str, Scored]:
    """Note what the sites compute and do not send: scores and labels, by name."""
    found, real = {}, at_the_site._scored

    def noting(site: Any, request: Any, model: Any) -> Scored:
        scores, labels = real(site, request, model)
        found[request.name] = scores[:, 0], labels[:, 0]
        return scores, labels

    monkeypatch.setattr(at_the_site, "_scored", noting)
    return found


def left_by(result: Result) -> dict[str, Any]:
    return dict(json.loads((result.folder / "evidence.json").read_text()))


def together(sites: Mapping[str, Scored]) -> Scored:
    return np.concatenate([s for s, _ in sites.values()]), np.concatenate([y for _, y in sites.values()])


def degrees(labels: np.ndarray) -> float:
    return float(min(labels.sum(), (1 - labels).sum())) - 1


def quantile(labels: np.ndarray) -> float:
    return float(t.ppf(0.975, degrees(labels)))


def is_delong(estimate: Mapping[str, Any], labels: np.ndarray, scores: np.ndarray, error: float) -> None:
    """Check an AUROC and its interval: on the logit scale by the variance of all pairs, and Student's t."""
    assert estimate["value"] == pytest.approx(roc_auc_score(labels, scores), abs=error)
    if estimate["by"] == "DeLong":
        [value], [[variance]] = delong(labels, scores)
        margin = quantile(labels) * np.sqrt(variance) / (value * (1 - value))
        ends = np.log(value / (1 - value)) + np.array([-1, 1]) * margin
        assert (estimate["low"], estimate["high"]) == pytest.approx(tuple(probability(ends)), abs=max(error, 1e-4))


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in JOBS])
def test_what_is_pooled_is_what_all_scores_together_would_give(
    name: str, tmp_path: Path, scored: dict[str, Scored], evidence: None
) -> None:
    found = left_by(simulate(job(tmp_path, **{"rounds": 2, **JOBS[name]})))  # type: ignore[arg-type]
    scores, labels = together(scored)
    pooled = found["pooled"]
    assert (pooled["n"], pooled["positives"], pooled["grouped"]) == (len(labels), labels.sum(), False)
    is_delong(pooled["auroc"], labels, scores, 1e-9)
    precision = average_precision_score(labels, scores)
    assert pooled["auprc"]["value"] == pytest.approx(precision, abs=1e-9)
    assert pooled["auprc"]["low"] <= pooled["auprc"]["value"] <= pooled["auprc"]["high"]
    if name == "probabilities":
        assert found["probabilities"]["by"] == "none"
        brier = brier_score_loss(labels, probability(scores))
        assert pooled["calibration"]["brier"] == pytest.approx(brier, abs=1e-6)
    else:
        assert found["probabilities"]["by"] == "platt"
    both = {site: own for site, own in scored.items() if 0 < own[1].sum() < len(own[1])}
    for site, (own, truth) in both.items():
        is_delong(found["sites"][site]["auroc"], truth, own, 1e-9)
    assert set(found["sites"]) == set(scored)
    assert found["within-sites"]["sites"] == len(both)
    mean = np.mean([roc_auc_score(truth, own) for own, truth in both.values()])
    assert found["within-sites"]["auroc"]["value"] == pytest.approx(mean, abs=1e-9)


def test_the_common_test_set_is_evaluated_with_the_model_that_the_run_returns(tmp_path: Path, evidence: None) -> None:
    result = simulate(job(tmp_path))
    test = left_by(result)["common-test-set"]
    central = result.metrics[-1]["central"]
    assert (test["n"], test["positives"]) == (central["n"], central["positives"])
    assert test["auroc"]["value"] == pytest.approx(central["auroc"], abs=1e-9)
    assert test["auprc"]["value"] == pytest.approx(central["auprc"], abs=1e-9)
    assert test["roc"]["band"]["low"] <= test["roc"]["band"]["high"]


def test_models_of_their_own_are_not_ranked_together(tmp_path: Path, scored: dict[str, Scored], evidence: None) -> None:
    result = simulate(job(tmp_path, algorithm="fedrep"))
    found = left_by(result)
    assert (found["model"], found["pooled"], found["common-test-set"]) == ("own", None, None)
    for site, (own, truth) in scored.items():
        assert found["sites"][site]["auroc"]["value"] == pytest.approx(delong(truth, own)[0][0], abs=1e-9)
    assert found["within-sites"]["auroc"]["value"] == pytest.approx(result.metrics[-1]["auroc"])
    assert any("optimistic" in note for note in found["notes"])


@pytest.mark.parametrize("keys", [{"evidence": False}, {"problem": "cross-entropy", "algorithm": "fedavg"}], ids=str)
def test_without_it_nothing_is_asked_or_written(keys: dict[str, Value], tmp_path: Path, evidence: None) -> None:
    result = simulate(job(tmp_path, rounds=1, sites=2, partition="iid", **keys))
    assert not (result.folder / "evidence.json").exists()


def test_it_changes_no_bit_of_what_is_trained(tmp_path: Path, evidence: None) -> None:
    runs = [simulate(job(tmp_path, sites=2, evidence=one, run_name=str(one))) for one in (True, False)]
    assert all((runs[0].arrays[name] == runs[1].arrays[name]).all() for name in runs[1].arrays)
    lines = [[{k: v for k, v in one.items() if "seconds" not in k} for one in run.metrics] for run in runs]
    assert str(lines[0]) == str(lines[1])


def test_the_same_seed_gives_the_same_file(tmp_path: Path, evidence: None) -> None:
    files = [simulate(job(tmp_path, sites=2, run_name=f"run-{n}")).folder / "evidence.json" for n in range(2)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_lines_at_the_end_name_the_intervals(tmp_path: Path, evidence: None) -> None:
    found = left_by(simulate(job(tmp_path, sites=2)))
    lines = list(in_words(found))
    auroc = found["pooled"]["auroc"]
    assert lines[0].startswith(f"pooled AUROC {auroc['value']:.2f} ({auroc['low']:.2f} to {auroc['high']:.2f})")
    assert "calibration slope" in lines[1]


def hospital(folder: Path, name: str, seed: int, **policy: Any) -> dict[str, Value]:
    """A hospital with 300 patients, whose marker_0 is 0 or 1, and a policy of its own."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(300) < 0.3).astype(int)
    features = rng.normal(size=(300, FEATURES)) + labels[:, None]
    features[:, 0] = rng.random(300) < 0.5
    data = write_table(folder / name, features, labels)
    return {"site": name, "data-dir": str(data), "policy": site_toml(folder / name, seed=name, **policy)}


def test_hospitals_tell_of_groups_and_the_file_says_so(
    tmp_path: Path, scored: dict[str, Scored], evidence: None
) -> None:
    sites = [hospital(tmp_path, f"h{n}", n, holdout_share=0.5) for n in range(3)]
    found = left_by(run_at(site_job(tmp_path), sites))
    scores, labels = together(scored)
    assert found["pooled"]["grouped"]
    assert found["pooled"]["n"] == len(labels)
    assert any("groups" in note for note in found["notes"])
    assert found["pooled"]["auroc"]["value"] == pytest.approx(delong(labels, scores)[0][0], abs=0.05)


@pytest.mark.slow
def test_of_groups_no_digit_is_shown_anywhere_that_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], evidence: None, curves: None, public_batches: None
) -> None:
    """In the line of a round, the table, the lines at the end, the report, the card, and where runs are compared."""
    sites = [hospital(tmp_path, f"h{n}", n, holdout_share=0.5) for n in range(3)]
    result = run_at(site_job(tmp_path, report=True), sites, quiet=False)
    found, last = left_by(result), result.metrics[-1]
    found_runs, notes = read([str(result.folder)])
    table = Comparison.of(found_runs, notes=notes, metrics=["auroc", "auprc"]).markdown()
    said = " ".join(
        [
            capsys.readouterr().out,
            table,
            *((result.folder / name).read_text() for name in ("report.html", "model-card.md", "tripod-ai.md")),
        ]
    )
    said = re.sub(r"<svg.*?</svg>", "", said, flags=re.DOTALL)  # whose coordinates are digits, too
    for kind in ("auroc", "auprc"):
        assert last["pooled"][f"{kind}-ties"] == pytest.approx(found["pooled"][kind]["ties"])
        assert format_estimate(found["pooled"][kind], "") in said
        for told in (last["pooled"], *last["sites"].values()):
            assert told[f"{kind}-ties"] > 0.005, "else it would not matter"
            assert f"{told[kind]:.4f}" not in said
            assert shown(told[kind], told[f"{kind}-ties"]) in said
    within = f"{found['within-sites']['auroc']['value']:.2f}"
    assert not re.search(rf"(?<!to ){re.escape(within)} \(", said), "a range of its own may end with it"


def test_where_two_models_cannot_be_compared_it_says_so(tmp_path: Path, evidence: None) -> None:
    sites = [hospital(tmp_path, f"h{n}", n, holdout_share=0.5) for n in range(2)]
    first = run_at(site_job(tmp_path, sites=2, rounds=1), sites)
    found = left_by(run_at(site_job(tmp_path, sites=2, rounds=1, compare_with=str(first.folder)), sites))
    assert found["compared"] is None
    [said] = [line for line in in_words(found) if "not compared" in line]
    assert said in found["notes"]
    assert not any("not compared" in note for note in left_by(first)["notes"])


def test_open_hospitals_are_exact_and_others_beside_them_are_not(tmp_path: Path, evidence: None) -> None:
    sites = [*hospitals(tmp_path, (60, 40)), hospital(tmp_path, "h", 1, holdout_share=0.5)]
    found = left_by(run_at(site_job(tmp_path), sites))
    assert {name: site["grouped"] for name, site in found["sites"].items()} == {
        "h": True,
        "north": False,
        "south": False,
    }


STUDY = """subgroups = ["marker_0", "marker_1"]
[label]
column = "label"
negative = [0]
positive = [1]
[columns.marker_0]
codes = {"0.0" = 0, "1.0" = 1}
[columns.marker_1]
bands = [0.5]
[columns.marker_2]
[columns.marker_3]
"""


@pytest.mark.slow
@pytest.mark.parametrize("fewest", [1, 5])
def test_subgroups_of_the_columns_that_the_study_names(
    fewest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evidence: None, public_batches: None
) -> None:
    seen: list[tuple[np.ndarray, ...]] = []
    real = at_the_site.subgroups

    def noting(site: Any, which: np.ndarray, scores: np.ndarray, labels: np.ndarray, patients: Any) -> Any:
        seen.append((site.data().held_out.inputs[site.data().held_out.rows].numpy(), scores, labels))
        return real(site, which, scores, labels, patients)

    monkeypatch.setattr(at_the_site, "subgroups", noting)
    (tmp_path / "study.toml").write_text(STUDY)
    sites = [
        hospital(tmp_path, f"h{n}", n, holdout_share=0.5, fewest_of_each_class=fewest)
        | {"study": str(tmp_path / "study.toml")}
        for n in range(3)
    ]
    found = left_by(run_at(site_job(tmp_path), sites))["subgroups"]
    assert {column: sorted(groups) for column, groups in found.items()} == {
        "marker_0": ["0.0", "1.0"],
        "marker_1": ["0.5 or more", "below 0.5"],
    }
    older = [(x[:, 1] >= 0.5, scores, labels) for x, scores, labels in seen]
    own = [(scores[among], labels[among]) for among, scores, labels in older]
    pairs = [labels.sum() * (1 - labels).sum() for _, labels in own]
    wanted = np.average([delong(labels, scores)[0][0] for scores, labels in own], weights=pairs)
    group, error = found["marker_1"]["0.5 or more"], 1e-9 if fewest == 1 else 0.1
    assert group["auroc"]["value"] == pytest.approx(wanted, abs=error)
    assert group["auroc"]["low"] < group["auroc"]["value"] < group["auroc"]["high"]
    assert group["n"] == pytest.approx(sum(len(labels) for _, labels in own), abs=6 * (fewest - 1))
    right = np.zeros((2, 2))  # of positives and negatives: how many are told right, and how many there are
    for among, scores, labels in older:
        lowest = min(at for at in scores[labels == 0] if (scores[labels == 0] <= at).mean() >= 0.9)
        for kind, told_right in enumerate((scores > lowest, scores <= lowest)):
            of_class = among & (labels == 1 - kind)
            right[kind] += (told_right & of_class).sum(), of_class.sum()
    for key, (hits, count) in zip(("sensitivity", "specificity"), right, strict=True):
        assert group[key]["value"] == pytest.approx(hits / count, abs=1e-9 if fewest == 1 else 0.1)
        assert group[key]["low"] < group[key]["value"] < group[key]["high"]
    for told in (group for groups in found.values() for group in groups.values()):
        assert told["sites"] == 3
        assert (told["n"] % fewest, told["positives"] % fewest) == (0, 0)
        hits = told["sensitivity"]["value"] * told["positives"]
        assert hits % fewest == pytest.approx(0, abs=1e-6) or hits % fewest == pytest.approx(fewest)


def test_two_models_are_compared_on_the_same_patients(tmp_path: Path, evidence: None, monkeypatch: Any) -> None:
    first = simulate(job(tmp_path, algorithm="fedavg", problem="bce", rounds=1, run_name="first"))
    seen: dict[str, list[np.ndarray]] = {}
    real = at_the_site._scored

    def noting(site: Any, request: Any, model: Any) -> Scored:
        found = real(site, request, model)
        if not request.merged:
            seen.setdefault(request.name, [found[1]]).append(found[0])
        return found

    monkeypatch.setattr(at_the_site, "_scored", noting)
    found = left_by(simulate(job(tmp_path, compare_with=str(first.folder), rounds=2)))
    compared, differences, variances, free = found["compared"], [], [], 0.0
    for name, (labels, own, other) in seen.items():
        if 1 < labels.sum() < len(labels) - 1:
            values, covariance = delong(labels, own, other)
            differences.append(values[0] - values[1])
            variances.append(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
            free += degrees(labels)
            told = compared["by-site"][name]
            assert (told["auroc"], told["other"]) == pytest.approx(tuple(values), abs=1e-9)
            assert told["difference"]["value"] == pytest.approx(differences[-1], abs=1e-9)
    assert compared["sites"] == len(differences) > 1
    within, spread = compared["difference"], np.sqrt(sum(variances)) / len(variances)
    assert within["value"] == pytest.approx(np.mean(differences), abs=1e-9)
    assert within["high"] - within["low"] == pytest.approx(2 * t.ppf(0.975, free) * spread, rel=1e-5)
    assert compared["p"] == pytest.approx(2 * t.sf(abs(np.mean(differences)) / spread, free), rel=1e-6)
    test = compared["common-test-set"]
    assert test["auroc"] == pytest.approx(found["common-test-set"]["auroc"]["value"])
    assert test["other"] == pytest.approx(first.metrics[-1]["central"]["auroc"])
    assert any("compared with the other model" in line for line in in_words(found))


PAIRS = {
    "breast cancer": {"dataset": "breast-cancer", "sites": 4},
    "one class at most sites": {"dataset": "breast-cancer", "sites": 6, "concentration": 0.05},
    "digits": {"dataset": "digits", "sites": 4, "positive-classes": "3", "negative-classes": "8"},
    "heart": {"dataset": "heart-disease", "sites": 4, "partition": "sites", "thin-share": 0.0, "holdout-share": 0.5},
    "mnist": JOBS["mnist"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in PAIRS])
def test_two_models_are_compared_on_all_sites_patients_ranked_together(
    name: str, tmp_path: Path, evidence: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: dict[str, Any] = {"rounds": 1, "model": "mlp", "local-steps": 2, **PAIRS[name]}
    first = simulate(job(tmp_path, **keys, algorithm="fedavg", problem="bce", run_name="first"))
    seen: dict[str, list[np.ndarray]] = {}
    real = at_the_site._scored

    def noting(site: Any, request: Any, model: Any) -> Scored:
        found = real(site, request, model)
        if not request.merged:
            seen.setdefault(request.name, [found[1][:, 0]]).append(found[0][:, 0])
        return found

    monkeypatch.setattr(at_the_site, "_scored", noting)
    found = left_by(simulate(job(tmp_path, **keys, compare_with=str(first.folder))))
    labels, own, other = (np.concatenate(parts) for parts in zip(*seen.values(), strict=True))
    values, covariance = delong(labels, own, other)
    spread = np.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    error, pooled = 1e-9, found["compared"]["pooled"]
    assert (pooled["sites"], pooled["n"], pooled["positives"]) == (len(seen), len(labels), labels.sum())
    assert (pooled["auroc"], pooled["other"]) == pytest.approx(tuple(values), abs=error)
    assert pooled["auroc"] == found["pooled"]["auroc"]["value"]
    difference = pooled["difference"]
    assert difference["value"] == pytest.approx(values[0] - values[1], abs=error)
    assert difference["high"] - difference["low"] == pytest.approx(2 * quantile(labels) * spread, abs=max(error, 1e-6))
    p = 2 * t.sf(abs(values[0] - values[1]) / spread, degrees(labels))
    assert pooled["p"] == pytest.approx(p, abs=2e-2, rel=1e-6)


@pytest.mark.slow
def test_a_model_compared_with_itself_does_not_differ(tmp_path: Path, small_resnet: None, evidence: None) -> None:
    """Of images, with statistics of batch norm, which the other model brings along."""
    keys: dict[str, Value] = {
        "dataset": "mnist",
        "model": "resnet18",
        "sites": 2,
        "rounds": 1,
        "positive-classes": "3",
        "negative-classes": "8",
        "local-steps": 1,
    }
    if not os.environ.get("EDELWEISS_DATA"):
        pytest.skip("needs EDELWEISS_DATA")
    first = simulate(job(tmp_path, **keys, run_name="first"))  # type: ignore[arg-type]
    found = left_by(simulate(job(tmp_path, **keys, compare_with=str(first.folder))))["compared"]  # type: ignore[arg-type]
    assert [one["difference"]["value"] for one in found["by-site"].values()] == [0, 0]
    assert found["common-test-set"]["difference"]["value"] == 0
    both = (found["pooled"], found)
    assert [(one["difference"]["value"], one["difference"]["high"], one["p"]) for one in both] == [(0, None, None)] * 2


def test_models_of_their_own_are_compared_within_sites_only(tmp_path: Path, evidence: None) -> None:
    keys: dict[str, Any] = {"sites": 2, "rounds": 1, "model": "mlp"}
    first = simulate(job(tmp_path, **keys, run_name="first"))
    found = left_by(simulate(job(tmp_path, **keys, algorithm="fedrep", compare_with=str(first.folder))))["compared"]
    assert found["pooled"] is None
    assert found["by-site"]


def test_of_a_site_that_does_not_tell_the_rest_no_pooled_difference_is_made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evidence: None
) -> None:
    def failing(message: Message, context: Context) -> Message:
        if "merged" in message.content.config_records["config"] and message.metadata.dst_node_id == 2:
            return Message(Error(0, "it broke"), reply_to=message)
        return answer(message, context)

    first = simulate(job(tmp_path, sites=3, rounds=1, run_name="first"))
    monkeypatch.setattr("edelweiss.client_app.app.answer", failing)
    found = left_by(simulate(job(tmp_path, sites=3, rounds=1, seed=0, compare_with=str(first.folder))))["compared"]
    assert found["pooled"] is None
    assert found["sites"] > 1


@pytest.mark.parametrize(
    ("first", "second", "key"),
    [
        ({"hidden": 4}, {}, "hidden"),
        ({"seed": 1}, {}, "standardise"),
        ({"standardise": False}, {}, "standardise"),
        ({}, {"model": "linear"}, "model"),
    ],
    ids=str,
)
def test_a_model_that_cannot_be_compared_is_refused(
    first: dict[str, Value], second: dict[str, Value], key: str, tmp_path: Path
) -> None:
    folder = simulate(job(tmp_path, **{"rounds": 1, "sites": 2, "run_name": "first", **first})).folder
    with pytest.raises(ModelError, check=has("compare-with = ", key=key)):
        simulate(job(tmp_path, **{"rounds": 1, "sites": 2, "compare_with": str(folder), **second}))


def test_without_evidence_there_is_nothing_to_compare() -> None:
    with pytest.raises(ConfigError, check=has("evidence", keys=["compare-with"])):
        RunConfig.parse({"compare-with": "a", "evidence": False})
    with pytest.raises(ConfigError, check=has("compare-with = 'a'", "AUROC")):
        RunConfig.parse({"compare-with": "a", "problem": "fair"})


@pytest.mark.slow
@pytest.mark.parametrize("few", ["patients", "positives", "negatives"])
def test_a_column_with_few_patients_in_a_subgroup_is_not_told_of(few: str, tmp_path: Path, evidence: None) -> None:
    """What is told of the many would say the rest of it; nor is one whose subgroup has few of a class."""
    (tmp_path / "study.toml").write_text(STUDY)
    labels = np.arange(300) % 3 // 2
    features = np.random.default_rng(0).normal(size=(300, FEATURES))
    first = np.arange(300) < 12  # 8 negatives and 4 positives
    features[:, 0] = {"patients": first, "positives": first | (labels == 0), "negatives": first | (labels == 1)}[few]
    found = {}
    for fewest in (1, 5 if few == "patients" else 9):
        data = write_table(tmp_path / f"rare-{fewest}", features, labels)
        policy = site_toml(tmp_path / f"rare-{fewest}", seed="a", holdout_share=0.5, fewest_of_each_class=fewest)
        node = {"site": "h", "data-dir": str(data), "policy": policy, "study": str(tmp_path / "study.toml")}
        found[fewest] = left_by(run_at(site_job(tmp_path, sites=1, run_name=f"run-{fewest}"), [node]))["subgroups"]
    one = found.pop(1)["marker_0"]["1.0"]
    count = {"patients": one["n"], "positives": one["positives"], "negatives": one["n"] - one["positives"]}
    [(fewest, told)] = found.items()
    assert 0 < count[few] < 2 * fewest
    assert few == "patients" or 0 < count.pop(few) < fewest < min(count.values()), "few of one class only"
    assert set(told) == {"marker_1"}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["codasca", "local-sgda"])
def test_a_run_that_was_stopped_between_two_answers_goes_on(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evidence: None
) -> None:
    keys = job(tmp_path, sites=2, rounds=2, algorithm=algorithm)
    keys["compare-with"] = str(simulate(job(tmp_path, sites=2, rounds=1, run_name="other")).folder)
    quiet, push = simulate(keys | {"run-name": "quiet"}), LocalGrid.push_messages

    def stopping(grid: LocalGrid, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        if "merged" in messages[0].content.config_records["config"]:
            raise KeyboardInterrupt
        return push(grid, messages)

    with monkeypatch.context() as patch:
        patch.setattr(LocalGrid, "push_messages", stopping)
        with pytest.raises(KeyboardInterrupt):
            simulate(keys | {"run-name": "stopped"})
    folder = tmp_path / "runs" / "stopped"
    assert not (folder / "evidence.json").exists()
    resumed = simulate({"resume": str(folder)})
    assert (resumed.folder / "evidence.json").read_bytes() == (quiet.folder / "evidence.json").read_bytes()
