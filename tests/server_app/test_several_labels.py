"""Whole runs over hospitals with several labels, some of which they do not have or know of few patients."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from sklearn.metrics import average_precision_score, roc_auc_score

from edelweiss.client_app import evidence as at_the_site
from edelweiss.common import Value
from edelweiss.config import RunConfig
from edelweiss.federation import RunError
from edelweiss.problems.histogram import Histogram
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from tests.client_app.policies import site_toml
from tests.said import has, lines, warnings
from tests.server_app.sites import FEATURES, SiteGrid, run_at, site_job

pytestmark = pytest.mark.usefixtures("public_batches")

NAMES = ("Edema", "Effusion", "Nodule")
Node = dict[str, Value]


def write(folder: Path, rows: int, seed: int, lacks: tuple[str, ...] = (), rare: str = "") -> Path:
    """Write a table with three labels, some uncertain; of the rare one there are six positives."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, FEATURES))
    columns = {f"marker_{i}": features[:, i].round(4).astype(str) for i in range(FEATURES)}
    for place, name in enumerate(NAMES):
        sick = (features[:, place] + random.normal(size=rows) > 0.7).astype(int)
        if name == rare:
            sick = (np.arange(rows) < 6).astype(int)
        values = sick.astype(str).astype(object)
        values[random.random(rows) < 0.1] = "-1"
        columns[name] = np.full(rows, "") if name in lacks else values
    folder.mkdir(parents=True)
    lines = [",".join(columns), *map(",".join, zip(*columns.values(), strict=True))]
    (folder / "data.csv").write_text("\n".join(lines))
    return folder


def three(tmp_path: Path) -> list[Node]:
    """Return three hospitals, of which the last has no Nodule."""
    return [
        {"site": name, "data-dir": str(write(tmp_path / f"private-{name}", rows, seed, lacks))}
        for seed, (name, rows, lacks) in enumerate([("north", 90, ()), ("south", 60, ()), ("west", 70, ("Nodule",))])
    ]


def several(folder: Path, **keys: Value) -> RunConfig:
    own: dict[str, Value] = {"label": ",".join(NAMES), "uncertain": "Edema=ones,ignore", "holdout_share": 0.4}
    return site_job(folder, **{**own, **keys})


class Noting(SiteGrid):
    """Notes every question, too."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.asked = list(messages)
        return super().push_messages(self.asked)


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found: dict[str, Any] = {}
    real = at_the_site._scored

    def noting(site: Any, request: Any, model: Any) -> Any:
        found[request.name] = real(site, request, model)
        return found[request.name]

    monkeypatch.setattr(at_the_site, "_scored", noting)
    return found


OTHERS = {"problem": "auprc", "algorithm": "fcsg"}, {"algorithm": "fedrep", "model": "mlp"}


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, *OTHERS])
def test_evidence_of_each_label_is_that_of_its_known_samples(
    keys: dict[str, Value], tmp_path: Path, scored: dict[str, Any], evidence: None
) -> None:
    result = run_at(several(tmp_path, **keys), three(tmp_path))
    found = json.loads((result.folder / "evidence.json").read_text())
    assert list(found["labels"]) == list(NAMES)
    values = []
    for place, name in enumerate(NAMES):
        own = found["labels"][name]
        parts = {site: (s[y[:, place] >= 0, place], y[y[:, place] >= 0, place]) for site, (s, y) in scored.items()}
        parts = {site: part for site, part in parts.items() if len(part[0])}
        assert set(own["sites"]) == set(parts)
        assert ("west" in parts) == (name != "Nodule")
        for site, (scores, truth) in parts.items():
            assert own["sites"][site]["n"] == len(truth)
            assert own["sites"][site]["auroc"]["value"] == pytest.approx(roc_auc_score(truth, scores), abs=1e-9)
        if found["model"] == "common":
            scores, truth = (np.concatenate([part[i] for part in parts.values()]) for i in (0, 1))
            assert own["pooled"]["auroc"]["value"] == pytest.approx(roc_auc_score(truth, scores), abs=1e-9)
            assert own["pooled"]["auprc"]["value"] == pytest.approx(average_precision_score(truth, scores), abs=1e-9)
            values.append(own["pooled"]["auroc"])
    if values:
        mean = found["mean"]["pooled"]["auroc"]
        for end in ("value", "low", "high"):
            assert mean[end] == pytest.approx(np.mean([value[end] for value in values]))
    assert found["mean"]["within-sites"]["labels"] == 3


def test_no_site_knows_a_label(tmp_path: Path) -> None:
    nodes = [{"site": f"h{k}", "data-dir": str(write(tmp_path / f"{k}", 60, k, lacks=("Nodule",)))} for k in range(3)]
    with pytest.raises(RunError, check=has(key="label", value="Nodule")):
        run_at(several(tmp_path), nodes)


@pytest.mark.slow
def test_columns_may_be_called_otherwise_at_a_site(tmp_path: Path) -> None:
    """The operator names them, in the run's order; what -1 stands for follows the run's names."""
    nodes = three(tmp_path)
    file = Path(str(nodes[0]["data-dir"])) / "data.csv"
    before = run_at(several(tmp_path, run_name="before"), nodes).metrics
    file.write_text(file.read_text().replace("Edema,Effusion,Nodule", "A_oedem,B_erguss,C_rundherd"))
    nodes[0]["label"] = "A_oedem,B_erguss,C_rundherd"
    after = run_at(several(tmp_path, run_name="after"), nodes).metrics
    assert after[-1]["pooled"] == before[-1]["pooled"]


def guarded(tmp_path: Path, rare: str = "Nodule") -> list[Node]:
    policy = site_toml(tmp_path, fewest_training=20, fewest_of_each_class=5, holdout_share=0.4, seed="one")
    return [
        {
            "site": f"h{k}",
            "policy": str(policy),
            "state-dir": str(tmp_path / f"state-{k}"),
            "data-dir": str(write(tmp_path / f"private-{k}", 120, k, rare=rare if not k else "")),
        }
        for k in range(3)
    ]


@pytest.mark.slow
def test_of_a_label_with_few_patients_a_hospital_tells_nothing_but_that(tmp_path: Path, evidence: None) -> None:
    """Six positives, of whom some are held out: no histogram of theirs leaves, and what is told before is rounded."""
    run = several(tmp_path, workers=1)
    with SiteGrid(run, guarded(tmp_path)) as grid:
        coordinate(run, grid, Progress(quiet=True))
        facts = [dict(answer.content["facts"]) for answer in grid.answers if "facts" in answer.content]
        evaluations = [answer.content["metrics"] for answer in grid.answers if "evidence-0" in answer.content]
    own = next(record for record in facts if record["name"] == "h0")
    assert own["label-positives"][2] in (5, 6)
    assert any("no evaluation of 1 of 3 labels" in note for note in own["notes"])
    [told] = [record for record in evaluations if record["n.Nodule"] == 0]
    assert told["positive-scores.Nodule"] == told["negative-scores.Nodule"] == b""
    assert np.isnan(told["auroc.Nodule"])
    for record in evaluations:
        for name in NAMES:
            for kind in ("positive-scores", "negative-scores"):
                assert Histogram.unpacked(record[f"{kind}.{name}"]).at_least(5)


def test_sites_that_have_patients_in_common_are_named_where_their_rules_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing of it is kept."""
    nodes = three(tmp_path)
    for k, node in enumerate(nodes):
        rules = {
            "patient": "who",
            "compare-patients": "salt" if k < 2 else "",
            "fewest-of-each-class": 1,
            "fewest-in-update": 1,
            "seed": "tests",
        }
        policy = site_toml(tmp_path / f"rules-{k}", **rules)
        file = Path(str(node["data-dir"])) / "data.csv"
        header, *rows = file.read_text().splitlines()
        # North has patients 0 to 29, south 25 to 54: five of them are the same.
        own = [f"{row},MRN-{25 * k + number % 30}" for number, row in enumerate(rows)]
        file.write_text("\n".join([f"{header},who", *own]))
        node |= {"policy": policy, "state-dir": str(tmp_path / f"state-{k}")}
    run = several(tmp_path, rounds=1)
    folder = run_at(run, nodes, quiet=False).folder
    shown = capsys.readouterr().out
    assert warnings(shown, "'north'", "'south'", 5)
    assert lines(shown, "'west'", "patients")
    told = json.loads((folder / "about.json").read_text())
    assert not any(site.get("patients") for site in told["sites"].values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"merged": [b""] * 12}, "'merged' is an unknown key"),
        ({"labels": ["Edema", "Effusion", "Mass"]}, "must be those of the run"),
        ({"priors": [0.1, 0.2]}, "priors"),
        ({"priors": [0.1, 0.2, 1.5]}, "priors"),
    ],
)
def test_a_site_checks_what_it_is_asked_of_labels(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    run = several(tmp_path, rounds=1, workers=1)
    with Noting(run, three(tmp_path)) as grid:
        coordinate(run, grid, Progress(quiet=True))
        last = grid.asked[-1]
        config = {**dict(last.content["config"]), **changed}
        config = {key: value for key, value in config.items() if value is not None}
        content = RecordDict({**last.content, "config": ConfigRecord(config)})
        answer = grid.ask("evaluate", int(str(config["site"])), content)
    assert said in str(answer.content["error"]["message"])
