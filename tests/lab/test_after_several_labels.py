"""Several labels, after training: evidence, report, comparison, trackers, and models to start from."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edelweiss.config import ConfigError, RunConfig
from edelweiss.federation import RunError
from edelweiss.lab.compare.comparison import Comparison
from edelweiss.lab.compare.folders import read
from edelweiss.lab.compare.runs import label_of, lower_is_better, metric
from edelweiss.lab.report import cards, drawing, write_report
from edelweiss.lab.report.content import Content
from edelweiss.lab.report.figures import estimate
from edelweiss.lab.report.page import CONSERVATIVE, drawings, html
from edelweiss.lab.sweep.file import read as read_sweep
from edelweiss.models import ModelError
from edelweiss.models.storage import StoredTensors, write_tensors
from edelweiss.server_app import simulate
from edelweiss.server_app.trackers import numbers
from tests.lab.read_page import Page
from tests.said import has
from tests.server_app.labelled import LABELS, folders, labelled


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hospitals."""
    return folders(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A run on three labels."""
    return simulate(labelled(tmp_path_factory.mktemp("several"), data)).folder


def evidence_in(folder: Path) -> dict[str, Any]:
    """Return what the file says."""
    found: dict[str, Any] = json.loads((folder / "evidence.json").read_text())
    return found


def parts(text: str) -> dict[str, str]:
    """Return what the page says in each label's part, and before the first and after the last."""
    before, *found = text.split("<details open ")
    *_, after = found[-1].split("</details>")
    return {name: part.split("</details>")[0] for name, part in zip(LABELS, found, strict=True)} | {"": before + after}


# ---------------------------------------------------------------------- evidence


@pytest.mark.slow
@pytest.mark.usefixtures("evidence")
def test_labels_that_are_copies_have_the_evidence_of_one(tmp_path: Path) -> None:
    names = ("A", "B")
    config = labelled(tmp_path, folders(tmp_path / "data", labels=names, copies=True), names, test_share=0.2)
    config |= {"algorithm": "fedavg", "problem": "bce"}
    first = simulate(config | {"rounds": 1}).folder / "model.safetensors"
    stored = StoredTensors.read(first)
    alike = {
        name: tensor[:1].expand_as(tensor).contiguous() if len(tensor) == 2 else tensor
        for name, tensor in stored.tensors.items()
    }
    write_tensors(first, alike, stored.facts)
    found = evidence_in(simulate(config | {"init-from": str(first)}).folder)

    assert found["labels"]["A"] == found["labels"]["B"]
    for key, kind in (("pooled", "auroc"), ("within-sites", "auroc"), ("common-test-set", "auroc")):
        for end in ("value", "low", "high"):
            assert found["mean"][key][kind][end] == pytest.approx(found["labels"]["A"][key][kind][end])


# ---------------------------------------------------------------------- the report


@pytest.mark.slow
@pytest.mark.usefixtures("unpainted")
def test_each_label_has_its_own_part_with_its_own_evidence(folder: Path) -> None:
    text = write_report(folder).read_text()
    page, evidence = Page(text), evidence_in(folder)
    assert not [target for target in page.fetched if not target.startswith("#")]
    assert "script" not in page.tags
    anchors = set(re.findall(r'<details open id="([^"]+)"', text))
    assert {target[1:] for target in page.fetched if target.startswith("#label")} == anchors
    assert len(anchors) == len(LABELS)
    said = parts(text)
    for name in LABELS:
        own, part = evidence["labels"][name], Page(said[name]).said
        assert said[name].count("<svg") == 6, "curves, ROC, precision and recall, each site, calibration, net benefit"
        for key in ("pooled", "common-test-set", "within-sites"):
            assert estimate(own[key]["auroc"]) in part
            assert estimate(own[key]["auroc"]) in Page(said[""]).said, "the table of labels"
        for site in own["sites"].values():
            assert estimate(site["auroc"]) in part
            assert estimate(site["auprc"]) in part
        assert estimate(own["pooled"]["calibration"]["slope"]) in part
    whole = Page(said[""]).said
    for key in ("pooled", "within-sites", "common-test-set"):
        assert estimate(evidence["mean"][key]["auroc"]) in whole
    assert "no narrower than it should be" in whole
    assert "AUROC, mean over labels" in whole, "and not that of the first"


@pytest.mark.usefixtures("unpainted")
def test_a_part_is_the_page_of_a_run_with_that_evidence_alone(folder: Path) -> None:
    run = Content.read(folder)
    for place, part in enumerate(run.parts, 1):
        assert part.evidence == evidence_in(folder)["labels"][part.label]
        config = RunConfig.parse(part.config.written() | {"label": part.label, "uncertain": "ignore"})
        alone = replace(part, config=config, label="")
        expected = re.split(r"<section><h2>Telling|<section><h2>What it cost", html(alone))[1]
        section = html(run).split(f'id="label-{place}-')[1].split("</details>")[0].split("<section><h3>Telling")[1]
        assert Page(section).said.split() == Page(expected).said.split()


def test_the_cards_name_all_labels_and_their_shares(folder: Path) -> None:
    run, evidence = Content.read(folder), evidence_in(folder)
    for text in (cards.card(run, name) for name in cards.TEMPLATES):
        for name, share in run.about["inputs"]["priors"].items():
            assert f"{name} {share:.1%}" in text
            assert estimate(evidence["labels"][name]["pooled"]["auroc"]) in text
        assert "An uncertain value (-1) of Edema counted as positive." in text.replace("positive;", "positive.")
        assert "no p.v 1/2" in text, "what alpha lacks"
        assert CONSERVATIVE in text


@pytest.mark.usefixtures("unpainted")
def test_a_label_of_one_class_and_one_of_nobody_are_shown_as_not_defined(folder: Path, tmp_path: Path) -> None:
    evidence = evidence_in(folder)
    del evidence["labels"][LABELS[2]]
    for one in (evidence["labels"][LABELS[1]][key] for key in ("pooled", "within-sites", "common-test-set")):
        one["auroc"] = {"value": None, "low": None, "high": None, "by": ""}
    run = replace(Content.read(folder), evidence=evidence)
    said = Page(html(run)).said
    assert drawing.as_svg(drawings(run)["labels"]).startswith("<svg")
    assert "no evaluated sample has this label" in said
    assert re.search(rf"{LABELS[1]}: AUROC all sites pooled -;", said)
    assert f"{LABELS[2]}: no evaluated sample has this label" in cards.card(run, cards.TEMPLATES[0])


@pytest.mark.usefixtures("unpainted")
def test_of_too_many_labels_there_are_numbers_and_it_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edelweiss.lab.report.page.MOST_DRAWN", 1)
    run = Content.read(folder)
    assert sum(name.startswith("label-") for name in drawings(run)) == 6
    assert html(run).count("there are too many labels") == 2


@pytest.mark.usefixtures("evidence", "unpainted")
@pytest.mark.parametrize("algorithm", ["ditto", "fedrep", "deprl"])
def test_models_of_their_own_have_means_over_sites_for_each_label(tmp_path: Path, data: Path, algorithm: str) -> None:
    config = labelled(tmp_path, data, algorithm=algorithm, problem="bce", model="mlp", rounds=1)
    result = simulate(config)
    run = Content.read(result.folder)
    over = run.records[-1]["over-sites"]
    for part in run.parts:
        name = f"auroc.{part.label}"
        sites = [site[name] for site in run.records[-1]["sites"].values() if site.get(name) is not None]
        assert part.records[-1]["auroc"] == over[name]["mean"] == pytest.approx(sum(sites) / len(sites))
    assert "auroc.Edema" not in run.records[-1], "a line's own are the means over labels"
    assert html(run).count("<svg") == 2 + 3 * 3, "curves and labels; of each label curves, calibration, each site"


@pytest.mark.slow
@pytest.mark.usefixtures("evidence", "unpainted")
def test_a_comparison_of_two_models_is_shown_label_by_label(folder: Path, data: Path, tmp_path: Path) -> None:
    found = simulate(labelled(tmp_path, data, rounds=3, compare_with=str(folder))).folder
    said = parts(html(Content.read(found)))
    for name, own in evidence_in(found)["labels"].items():
        assert (own["compared"]["pooled"]["n"], own["compared"]["pooled"]["auroc"]) == (
            own["pooled"]["n"],
            own["pooled"]["auroc"]["value"],
        )
        assert estimate(own["compared"]["pooled"]["difference"], signed=True) in said[name]
        assert estimate(own["compared"]["difference"], signed=True) in said[name]
        assert f"{own['compared']['common-test-set']['other']:.4f}" in said[name]
    assert "Compared with the other model" not in said[""]


# ---------------------------------------------------------------------- comparing, choosing, tracking


def test_runs_are_compared_by_the_mean_and_on_request_by_a_label(folder: Path) -> None:
    found, _ = read([str(folder)])
    comparison = Comparison.of(found, ["auroc", "auroc.Edema", f"pooled.auroc.{LABELS[2]}"])
    [heading, line] = comparison.lines()
    assert heading[2:5] == ["mean AUROC, test set", "AUROC of Edema, test set", f"AUROC of {LABELS[2]}, held out"]
    last = found[0].run.outcome.last
    expected = [last["central"]["auroc"], last["central"]["auroc.Edema"], last["pooled"][f"auroc.{LABELS[2]}"]]
    assert line[2:5] == [f"{value:.4f}" for value in expected]
    [row] = comparison.runs.to_dict("records")
    own = evidence_in(folder)
    assert row["central.auroc, low over patients"] == own["mean"]["common-test-set"]["auroc"]["low"]
    assert row["central.auroc.Edema, high over patients"] == own["labels"]["Edema"]["common-test-set"]["auroc"]["high"]
    assert all(not label_of(path) for path in Comparison.of(found).metrics), "nobody asked for a label"
    with pytest.raises(ConfigError, check=has("'auroc.Edena'", "'auroc.Edema'")):
        Comparison.of(found, ["auroc.Edena"])


@pytest.mark.slow
def test_runs_of_other_labels_are_not_compared(folder: Path, data: Path, tmp_path: Path) -> None:
    others = {
        "label": simulate(labelled(tmp_path, data, LABELS[::-1], uncertain="Edema=ones,ignore", rounds=1)).folder,
        "uncertain": simulate(labelled(tmp_path, data, uncertain="zeros", rounds=1)).folder,
    }
    for key, other in others.items():
        found, _ = read([str(folder), str(other)])
        with pytest.raises(ConfigError) as caught:
            Comparison.of(found)
        [problem] = caught.value.problems
        assert f"({key} = " in problem
        assert "leave it out" in problem


def test_a_path_leads_to_a_label_whose_name_has_dots() -> None:
    record = {"pooled": {"auroc": 0.5, "auroc.a.b": 0.6}, "over-sites": {"auroc.a.b": {"mean": 0.7}}}
    assert [metric(record, path) for path in ("pooled.auroc", "pooled.auroc.a.b", "over-sites.auroc.a.b.mean")] == [
        0.5,
        0.6,
        0.7,
    ]
    assert [label_of(path) for path in ("pooled.auroc", "pooled.auroc.a.b", "over-sites.auroc.a.b.mean")] == [
        "",
        "a.b",
        "a.b",
    ]
    assert not lower_is_better("pooled.auroc.loss")


def test_a_sweep_chooses_by_a_label(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    text = '[base]\ndataset = "site-folders"\nlabel = "Edema,Mass"\n[tune]\nbatch-size = [8, 16]\n'
    file.write_text('select = "pooled.auroc.Edema"\n' + text)
    assert read_sweep(file)[0].select == "pooled.auroc.Edema"
    file.write_text('select = "pooled.auroc.Edena"\n' + text)
    with pytest.raises(ConfigError, check=has("'pooled.auroc.Edema'")):
        read_sweep(file)


def test_trackers_hear_of_each_label_by_a_name_that_they_take(folder: Path) -> None:
    record = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    found = dict(numbers(record))
    assert found["pooled/auroc.Edema"] == record["pooled"]["auroc.Edema"]
    assert found["central/auroc"] == record["central"]["auroc"]
    assert "pooled/auroc.p.v_1_2" in found
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+", name) for name in found)
    assert not any(name.startswith("cost/au") for name in found)


def test_the_console_says_that_it_is_a_mean(folder: Path, data: Path, tmp_path: Path, capsys: Any) -> None:
    simulate(labelled(tmp_path, data, rounds=1), quiet=False)
    said = capsys.readouterr().out
    assert "mean AUROC" in said
    assert not re.search(r"(?<!mean )AUROC 0\.\d{4}", said)


# ---------------------------------------------------------------------- models to start from


def test_a_model_of_other_labels_gives_its_body_only(folder: Path, data: Path, tmp_path: Path) -> None:
    body = simulate(labelled(tmp_path, data, model="mlp", rounds=1)).folder
    config = labelled(tmp_path, data, LABELS[::-1], uncertain="ignore", model="mlp", rounds=1, init_from=str(body))
    with pytest.raises(ModelError) as caught:
        simulate(config)
    [line] = str(caught.value).splitlines()
    assert f"trained on the labels {', '.join(LABELS)}" in line
    assert 'take init-head = "fresh"' in line
    assert math.isfinite(simulate(config | {"init-head": "fresh"}).metrics[-1]["auroc"])


@pytest.mark.slow
def test_a_model_of_one_label_and_one_of_several_are_told_apart(tmp_path: Path) -> None:
    first = folders(tmp_path / "first", labels=("A",), copies=True)
    second = folders(tmp_path / "second", labels=("A", "B"), copies=True)
    one = simulate(labelled(tmp_path, first, ("A",), model="mlp", rounds=1)).folder
    two = simulate(labelled(tmp_path, second, ("A", "B"), model="mlp", rounds=1)).folder
    for key, other in (("init_from", "init-from"), ("compare_with", "compare-with")):
        with pytest.raises(ModelError, check=has(f"{other} = ", "A, B", key="labels")) as caught:
            simulate(labelled(tmp_path, second, ("A", "B"), model="mlp", rounds=1, **{key: str(one)}))
        assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(ModelError, check=has("A, B", key="labels")) as caught:
        simulate(labelled(tmp_path, first, ("A",), model="mlp", rounds=1, init_from=str(two)))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("evidence")
def test_a_run_that_was_stopped_goes_on_to_the_same_evidence(data: Path, tmp_path: Path) -> None:
    whole = simulate(labelled(tmp_path, data, rounds=3)).folder
    config = labelled(tmp_path, data, rounds=3, checkpoint_every=1) | {"run-name": "stopped"}
    place = tmp_path / "runs" / "stopped"
    line = "edelweiss.server_app.recorder.Recorder.evaluated"
    with pytest.MonkeyPatch.context() as patch:
        from edelweiss.server_app.recorder import Recorder

        before = Recorder.evaluated

        def stops(self: Recorder, number: int, sites: Any) -> None:
            before(self, number, sites)
            if number == 2:
                raise RunError("stopped by a test")

        patch.setattr(line, stops)
        with pytest.raises(RunError):
            simulate(config)
    simulate({"resume": str(place)})
    assert evidence_in(place) == evidence_in(whole)
