"""A site with several labels: what it keeps, what its operator is shown, a head of its own, and what doctor says."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
import torch

from edelweiss.client_app.cli import main
from edelweiss.client_app.connection import JoinConfig
from edelweiss.client_app.doctor import Finding, examine
from edelweiss.client_app.policy.records import Records
from edelweiss.common import Value
from edelweiss.models.storage import StoredTensors
from edelweiss.problems.trained_model import TrainedModel
from tests.server_app.labelled import LABELS, folders
from tests.server_app.sites import run_at, site_job


def nodes(data: Path, folder: Path, **more: Value) -> list[dict[str, Value]]:
    """Describe the hospitals."""
    return [
        {"site": name, "data-dir": str(data / name), "state-dir": str(folder / f"state-{name}"), **more}
        for name in ("alpha", "beta", "gamma")
    ]


def config(folder: Path, **keys: Value) -> object:
    """Describe a run at them."""
    rules: dict[str, Value] = {"label": ",".join(LABELS), "uncertain": "Edema=ones,ignore", "blank": "ignore"}
    return site_job(folder, **{**rules, "rounds": 2, "share_model": True, **keys})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "problem", "bn"),
    [
        ("codasca", "auc", "average"),
        ("fedrep", "bce", "local"),
        ("ditto", "bce", "average"),
        ("deprl", "bce", "average"),
    ],
)
def test_what_a_site_keeps_scores_each_label(
    tmp_path: Path, algorithm: str, problem: str, bn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = folders(tmp_path / "data")
    hospitals = nodes(data, tmp_path, policy="")  # rules that protect
    run_at(config(tmp_path, algorithm=algorithm, problem=problem, model="mlp", bn=bn), hospitals)  # type: ignore[arg-type]
    file = tmp_path / "new.csv"
    file.write_text("f0,f1,f2\n1,2,3\n0,,1\n")
    for node in hospitals:
        card, kept = sorted((Path(str(node["state-dir"])) / "models").glob("*"))
        out = tmp_path / f"{node['site']}.csv"
        assert main(["predict", str(file), "--model", str(kept), "--to", str(out)]) == 0
        with out.open(newline="") as stream:
            lines = list(csv.DictReader(stream))
        scores = TrainedModel.read(kept).scores(torch.tensor([[1, 2, 3], [0, torch.nan, 1]]))
        for place, label in enumerate(LABELS):
            assert [float(line[f"score.{label}"]) for line in lines] == scores[:, place].tolist()
        assert f"**Labels**: {', '.join(LABELS)}" in card.read_text()
        lacks = algorithm != "codasca" and node["site"] != "beta"
        assert ("do not rely on" in card.read_text()) == lacks, "its own model, on no sample"
        assert TrainedModel.read(kept).lacking == (LABELS[2],) * lacks
        [record] = Records(str(node["state-dir"])).runs()
        assert ("no p.v 1/2" in record.shown["labels"]) == (node["site"] != "beta")
        assert "for each label, the numbers of known and positive" in record.shown["sends once"]


@pytest.mark.slow
def test_a_new_hospital_trains_a_head_for_the_labels_that_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = folders(tmp_path / "data")
    folder = run_at(config(tmp_path, algorithm="fedrep", problem="bce", model="mlp"), nodes(data, tmp_path)).folder  # type: ignore[arg-type]
    own = ["--data-dir", str(data / "alpha"), "--state-dir", str(tmp_path / "new"), "--steps", "20"]
    assert main(["personalise", "--model", str(folder), *own]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^Edema: \d+ positive of \d+ to train on, \d+ unknown$", said, re.MULTILINE)
    assert re.search(f"^{LABELS[2]}: (?!\\d)", said, re.MULTILINE), "no counts"
    assert "mean auroc" in said
    assert re.search(r"auroc\.Edema +\d", said)
    [kept] = (tmp_path / "new" / "models").glob("*.safetensors")
    before, after = StoredTensors.read(folder / "model.safetensors").tensors, TrainedModel.read(kept)
    network = after.problem.network.state_dict(after.x)
    [weight] = [name for name, tensor in network.items() if tensor.ndim == 2 and len(tensor) == len(LABELS)]
    moved = (network[weight] != before[weight]).any(1).tolist()
    assert moved == [True, True, False]

    assert main(["personalise", "--model", str(folder), *own, "--label", "Edema"]) == 1
    assert "label" in capsys.readouterr().err
    assert main(["personalise", "--model", str(folder), *own, "--run-config", 'label="Edema,Effusion"']) == 1
    told = capsys.readouterr().err
    assert "--label" in told
    assert len(told.splitlines()) == 1


def test_doctor_counts_the_values_of_each_label(tmp_path: Path) -> None:
    data = folders(tmp_path / "data")
    options = {"superlink": "127.0.0.1:1", "insecure": True, "data-dir": str(data / "alpha"), "policy": ""}
    found: list[Finding] = list(examine(JoinConfig.read("", {**options, "label": ",".join(LABELS)})))
    labels = [finding for finding in found if finding.about == "label"]
    with (data / "alpha" / "data.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for finding, name in zip(labels, LABELS[:2], strict=False):
        counts = [sum(row[name] == value for row in rows) for value in ("1", "0", "-1", "")]
        said = [int(number) for number in re.findall(r"(\d+) (?:positive|negative|uncertain|blank)", finding.text)]
        assert (finding.level, finding.text.split(":")[0], said) == ("ok", name, counts)
    assert labels[2].text.startswith(f"{LABELS[2]}: blank in all rows")
    assert any("60 samples, 3 labels, 3 features" in finding.text for finding in found)
    [wrong] = [
        one for one in examine(JoinConfig.read("", {**options, "label": "Edema,Efusion"})) if one.about == "data"
    ]
    assert wrong.level == "error"
    assert "Did you mean 'Effusion'" in wrong.text
