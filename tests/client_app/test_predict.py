"""What a site keeps to use after a run: its own model, or the common one, with a card; ``predict`` takes it."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from edelweiss.client_app import evidence as at_the_site
from edelweiss.client_app.cli import main
from edelweiss.client_app.memory import Memory
from edelweiss.client_app.policy.records import Records
from edelweiss.client_app.recalibration import fit_maps
from edelweiss.evidence.calibration import probability
from edelweiss.models import ModelError
from edelweiss.models.storage import StoredTensors, write_tensors
from edelweiss.problems.trained_model import TrainedModel
from edelweiss.server_app import simulate
from tests.said import has, lines
from tests.server_app.sites import FEATURES, STUDY, hospitals, images, run_at, site_job, table, with_study

MAP = ("intercept", "slope", "held-out", "positives")
NAMES = [f"marker_{number}" for number in range(FEATURES)]


def patients(folder: Path, rows: int = 6) -> tuple[Path, torch.Tensor]:
    """Write new patients; return the file, and what is in it."""
    features, _ = table(rows, seed=11)
    file = folder / "patients.csv"
    lines = [",".join([f"p{number}", *map(str, row)]) for number, row in enumerate(features.tolist())]
    file.write_text("\n".join([",".join(["case", *NAMES]), *lines]))
    return file, torch.from_numpy(features).float()


def with_states(folder: Path, *rows: tuple[int, ...]) -> list[dict]:
    """Describe hospitals that keep what they have."""
    return [{**node, "state-dir": str(folder / f"state-{node['site']}")} for node in hospitals(folder, *rows)]


def models(node: dict) -> list[Path]:
    """Return what a hospital has kept."""
    return sorted((Path(node["state-dir"]) / "models").glob("*"))


def scored(file: Path) -> list[float]:
    """Return the scores in a file."""
    with file.open(newline="") as stream:
        return [float(line["score"]) for line in csv.DictReader(stream)]


@pytest.mark.parametrize("state", ["", "state"])
def test_copies_of_simulated_sites_are_where_the_run_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], state: str
) -> None:
    folder = str(tmp_path / state) if state else ""
    small = {"sites": 2, "rounds": 1, "local-steps": 1, "hidden": 4, "workers": 1, "device": "cpu", "report": False}
    simulate({**small, "runs-dir": str(tmp_path / "runs"), "share-model": True, "state-dir": folder}, quiet=False)
    assert bool(lines(capsys.readouterr().out, tmp_path / "state" / "models")) == bool(state)
    assert len([*(tmp_path / "state").rglob("models/*.safetensors")]) == (2 if state else 0)


@pytest.mark.slow
def test_each_site_keeps_the_common_model_if_the_run_says_so(tmp_path: Path) -> None:
    nodes = with_states(tmp_path)
    nodes[0]["study"] = with_study(tmp_path)
    result = run_at(site_job(tmp_path, share_model=True), nodes)
    file, features = patients(tmp_path)
    common = TrainedModel.read(result.folder)
    for node in nodes:
        card, kept = models(node)
        assert TrainedModel.read(kept).scores(features).tolist() == common.scores(features).tolist()
        text = card.read_text()
        assert text.startswith("# The common model of 3 sites, of codasca on auc")
        assert all(f"| {name} |" in text for name in NAMES), "the site itself knows its columns"
        assert ("mmol/l" in text) == ("study" in node)
        out = tmp_path / f"{node['site']}.csv"
        assert main(["predict", str(file), "--state-dir", str(node["state-dir"]), "--to", str(out)]) == 0
        assert scored(out) == common.scores(features).tolist()
        [record] = Records(str(node["state-dir"])).runs()
        assert record.shown["keeps here"] == "the final model of all sites", "its operator can know"
    assert "marker" not in (result.folder / "model.safetensors").read_bytes().decode("latin-1"), "no name has left"


@pytest.mark.slow
def test_without_the_key_nothing_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [node, *_] = nodes = with_states(tmp_path)
    run_at(site_job(tmp_path), nodes)
    assert models(node) == []
    file, _ = patients(tmp_path)
    assert main(["predict", str(file), "--state-dir", str(node["state-dir"])]) == 1
    assert lines(capsys.readouterr().err, "share-model")


@pytest.mark.parametrize("algorithm", ["fedrep", "ditto", "alone"])
def test_a_site_predicts_with_its_own_model(tmp_path: Path, algorithm: str) -> None:
    nodes = with_states(tmp_path)
    run_at(site_job(tmp_path, algorithm=algorithm, model="mlp", share_model=True), nodes)
    file, features = patients(tmp_path)
    found = []
    for node in nodes:
        card, kept = models(node)
        assert card.read_text().startswith(f"# This site's own model, of {algorithm} on auc")
        out = tmp_path / f"{node['site']}.csv"
        assert main(["predict", str(file), "--model", str(kept), "--to", str(out)]) == 0
        x = StoredTensors.read(kept).tensors["x"]
        model = TrainedModel.read(kept)
        assert torch.equal(model.x, x)
        found.append(scored(out))
        assert found[-1] == model.scores(features).tolist()
    assert found[0] != found[1] != found[2]


def test_a_european_table_with_several_rows_of_a_patient(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Semicolons and decimal commas, the last row of each patient: from training to the scores of new patients."""

    def written(file: Path, rows: list[list[float]], *last: list[int]) -> None:
        """Write each row after one of the same patient that is far off."""
        file.parent.mkdir(exist_ok=True)
        twice = [
            [f"p{n}", *values]
            for n, row in enumerate(zip(*zip(*rows, strict=True), *last, strict=True))
            for values in ([*(value + 20 for value in row[:FEATURES]), *row[FEATURES:]], row)
        ]
        head = ["case", *NAMES, *["label"] * len(last)]
        text = "\n".join(";".join(str(cell).replace(".", ",") for cell in row) for row in [head, *twice])
        file.write_text(text, encoding="utf-8")

    study = with_study(tmp_path, f'patient = "case"\none-row = "last"\n{STUDY}')
    nodes = with_states(tmp_path)
    for node, rows in zip(nodes, (60, 40, 80), strict=True):
        features, labels = table(rows, seed=rows)
        written(Path(str(node["data-dir"])) / "data.csv", features.tolist(), labels.tolist())
        node["study"] = study
    run_at(site_job(tmp_path, share_model=True), nodes)
    features, _ = table(6, seed=11)
    written(tmp_path / "new.csv", features.tolist())
    _, kept = models(nodes[0])
    model = TrainedModel.read(kept)
    assert max(model.data_summary.shift) < 5, "the rows before the last are not trained on"
    out = tmp_path / "scores.csv"
    assert main(["predict", str(tmp_path / "new.csv"), "--model", str(kept), "--to", str(out)]) == 0
    said = capsys.readouterr()
    assert lines(said.out + said.err, "one-row = 'last'"), "each row has a score"
    assert scored(out)[1::2] == model.scores(torch.from_numpy(features).float()).tolist()
    with out.open(newline="") as stream:
        assert [line["case"] for line in csv.DictReader(stream)] == [f"p{n // 2}" for n in range(12)]


def own_map(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Fit Platt's map to samples by another solver, with his targets; return intercept and slope."""
    p, n = labels.sum(), (1 - labels).sum()
    targets = np.where(labels == 1, (p + 1) / (p + 2), 1 / (n + 2))

    def loss(weights: np.ndarray) -> float:
        odds = weights[0] + weights[1] * scores
        return float((targets * np.logaddexp(0, -odds) + (1 - targets) * np.logaddexp(0, odds)).sum())

    return np.asarray(minimize(loss, [0.0, 1.0], method="BFGS", tol=1e-10).x)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["codasca", pytest.param("fedrep", marks=pytest.mark.slow)])
def test_after_training_for_auc_a_site_has_probabilities_of_its_own(
    algorithm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    real = at_the_site._scored

    def noting(site: Any, request: Any, model: Any) -> tuple[np.ndarray, np.ndarray]:
        scores, labels = real(site, request, model)
        seen[request.name] = scores[:, 0], labels[:, 0]
        return scores, labels

    monkeypatch.setattr(at_the_site, "_scored", noting)
    nodes = with_states(tmp_path, (300, 240, 60))
    result = run_at(site_job(tmp_path, algorithm=algorithm, model="mlp", rounds=12, share_model=True), nodes)
    file, features = patients(tmp_path)
    for node in nodes[:2]:
        card, kept = models(node)
        scores, labels = seen[str(node["site"])]
        model = TrainedModel.read(kept)
        intercept, slope = own_map(scores, labels)
        wanted = probability(intercept + slope * model.scores(features).numpy())
        assert model.probabilities(model.scores(features)).numpy() == pytest.approx(wanted, abs=1e-4)
        out = tmp_path / f"{node['site']}.csv"
        assert main(["predict", str(file), "--state-dir", str(node["state-dir"]), "--to", str(out)]) == 0
        with out.open(newline="") as stream:
            told = [float(line["probability"]) for line in csv.DictReader(stream)]
        assert told == pytest.approx(wanted, abs=1e-4)
        for told_where in (capsys.readouterr().out, card.read_text()):
            assert lines(told_where, "Platt", f"{labels.sum():.0f} of {len(labels)} positive")
    assert b"platt" not in (result.folder / "model.safetensors").read_bytes(), "it stays at the site"
    assert not np.allclose(*(own_map(*seen[str(node["site"])]) for node in nodes[:2]))
    few = TrainedModel.read(models(nodes[2])[1])
    assert not few.has_probabilities
    assert "this site has fitted no recalibration" in few.describe_scores()


def test_a_map_is_fitted_to_enough_samples_that_are_ranked_better_than_by_chance() -> None:
    scores, labels = np.arange(40.0)[:, None], (np.arange(40) > 25).astype(float)[:, None]
    [map_] = fit_maps(scores, labels)
    assert map_ is not None
    assert (map_["held-out"], map_["positives"]) == (40, 14)
    assert fit_maps(-scores, labels) == [None]
    assert fit_maps(scores, np.where(np.arange(40)[:, None] > 30, labels, 0.0)) == [None], "9 positives"
    assert fit_maps(scores, np.ones((40, 1))) == [None]
    unknown = np.where(np.arange(40)[:, None] < 3, -1.0, labels)
    [first, second] = fit_maps(np.hstack([scores, scores]), np.hstack([labels, unknown]))
    assert first == map_
    assert second is not None
    assert (second["held-out"], second["positives"]) == (37, 14)


def test_probabilities_after_bce_need_no_map(tmp_path: Path) -> None:
    nodes = with_states(tmp_path)
    run_at(site_job(tmp_path, algorithm="fedavg", problem="bce", share_model=True), nodes)
    kept = models(nodes[0])[1]
    assert "platt" not in StoredTensors.read(kept).facts
    assert TrainedModel.read(kept).has_probabilities


@pytest.mark.slow
@pytest.mark.parametrize("maps", [[], [1], [{"slope": 1}], [{**dict.fromkeys(MAP, 1.0), "slope": "1"}], {}], ids=str)
def test_a_map_that_is_none_is_named(maps: Any, tmp_path: Path) -> None:
    nodes = with_states(tmp_path)
    run_at(site_job(tmp_path, rounds=1, share_model=True), nodes)
    kept = models(nodes[0])[1]
    stored = StoredTensors.read(kept)
    write_tensors(kept, stored.tensors, {**stored.facts, "platt": maps})
    with pytest.raises(ModelError, check=has(key="platt")):
        TrainedModel.read(kept)


def test_a_kept_model_is_a_site_s_own_and_of_the_size_of_its_network(tmp_path: Path) -> None:
    nodes = with_states(tmp_path)
    result = run_at(site_job(tmp_path, rounds=1, share_model=True), nodes)
    kept = models(nodes[0])[1]
    assert "this site has fitted no recalibration" in TrainedModel.read(kept).describe_scores()
    assert "this site" not in TrainedModel.read(result.folder).describe_scores()
    stored = StoredTensors.read(kept)
    for x in (stored.tensors["x"][:3], stored.tensors["x"][None]):
        write_tensors(kept, {**stored.tensors, "x": x}, stored.facts)
        with pytest.raises(ModelError, check=has(key="x")):
            TrainedModel.read(kept)


def test_a_model_of_many_classes_is_kept_and_its_card_says_that_predict_takes_none(tmp_path: Path) -> None:
    nodes = with_states(tmp_path)
    run_at(site_job(tmp_path, algorithm="fedavg", problem="cross-entropy", share_model=True), nodes)
    card, kept = models(nodes[0])
    assert "not with `predict`" in card.read_text()
    assert "more than two classes" in card.read_text()
    assert StoredTensors.read(kept).intact


@pytest.mark.slow
def test_a_new_hospital_predicts_with_the_head_that_it_trained(tmp_path: Path) -> None:
    nodes = with_states(tmp_path)
    folder = run_at(site_job(tmp_path, algorithm="fedrep", model="mlp"), nodes).folder
    state = tmp_path / "state-new"
    own = ["--data-dir", str(nodes[0]["data-dir"]), "--state-dir", str(state), "--steps", "5"]
    assert main(["personalise", "--model", str(folder), *own]) == 0
    file, features = patients(tmp_path)
    assert main(["predict", str(file), "--state-dir", str(state), "--to", str(tmp_path / "out.csv")]) == 0
    [kept] = (state / "models").glob("*.safetensors")
    assert scored(tmp_path / "out.csv") == TrainedModel.read(kept).scores(features).tolist()
    assert len(StoredTensors.read(kept).facts["platt"]) == 1, "fitted here, too, or none"


@pytest.mark.slow
def test_the_model_that_was_kept_last_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = with_states(tmp_path)
    for _ in range(2):
        run_at(site_job(tmp_path, share_model=True), nodes)
    first, last = sorted((Path(nodes[0]["state-dir"]) / "models").glob("*.safetensors"))
    os.utime(first, ns=(10, 10))
    file, _ = patients(tmp_path)
    assert main(["predict", str(file), "--state-dir", str(nodes[0]["state-dir"]), "--to", str(tmp_path / "o.csv")]) == 0
    assert lines(capsys.readouterr().out, last)


@pytest.mark.slow
@pytest.mark.usefixtures("small_resnet")
@pytest.mark.parametrize("bn", ["average", "local"])
def test_the_common_model_has_statistics(tmp_path: Path, bn: str) -> None:
    nodes = [{**images(tmp_path, site, 90), "state-dir": str(tmp_path / f"state-{site}")} for site in range(3)]
    result = run_at(site_job(tmp_path, model="resnet18", bn=bn, share_model=True), nodes)
    pixels = torch.randint(0, 256, (4, 1, 16, 16), dtype=torch.uint8)
    found = [TrainedModel.read(models(node)[1]).scores(pixels).tolist() for node in nodes]
    if bn == "local":
        assert found[0] != found[1], "each with its own"
        with pytest.raises(ModelError, check=has(key="statistics")):
            TrainedModel.read(result.folder)
    else:
        assert found == [TrainedModel.read(result.folder).scores(pixels).tolist()] * 3


def test_what_was_kept_is_no_larger_than_the_model(tmp_path: Path) -> None:
    [node, *_] = nodes = with_states(tmp_path)
    result = run_at(site_job(tmp_path, share_model=True), nodes)
    [kept] = Path(str(node["state-dir"])).glob("models/*.safetensors")
    stored = StoredTensors.read(kept).tensors
    assert {name: len(vector) for name, vector in stored.items()} == {n: len(v) for n, v in result.arrays.items()}
    assert not list(Memory(str(node["state-dir"]), "key", "north").folder.parent.glob("*")), "the run is forgotten"
