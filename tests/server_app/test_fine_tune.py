"""``fine-tune``: each site ends with the common model, trained on its own samples, and evaluates that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edelweiss.client_app.oracle import SiteOracle
from edelweiss.config import ConfigError, RunConfig
from edelweiss.datasets import Facts, load_site
from edelweiss.models.storage import StoredTensors
from edelweiss.server_app import Result, simulate
from tests.client_app.policies import Hospital, told, train
from tests.said import has
from tests.server_app.sites import table as hospital_table

SITES, STEPS, RATE = 3, 7, 0.3
JOB: dict[str, Any] = {"algorithm": "fedavg", "problem": "bce", "model": "linear", "sites": SITES, "rounds": 3}
JOB |= {"local-steps": 2, "workers": 1, "device": "cpu", "batch-size": 10_000, "standardise": False}


def run(folder: Path, name: str, **keys: Any) -> tuple[Result, list[torch.Tensor]]:
    """Run on features from 0 to 1; return what came of it, and x of each site's own model."""
    own = {key.replace("_", "-"): value for key, value in keys.items()}
    result = simulate(JOB | table(folder) | {"runs-dir": str(folder / "runs"), "state-dir": str(folder / name)} | own)
    files = sorted((folder / name).rglob("models/*.safetensors"))
    return result, [StoredTensors.read(file).tensors["x"] for file in files]


def table(folder: Path) -> dict[str, Any]:
    """Write a table of three features, a label and a ward, once; return the keys that name it."""
    path = folder / "patients.csv"
    if not path.exists():
        random, rows = np.random.default_rng(0), 180
        features, wards = random.uniform(0, 1, (rows, 3)), random.integers(0, SITES, rows)
        labels = features @ [2, -3, 1] + 0.5 * wards + random.normal(0, 0.5, rows) > 0.5
        columns = np.column_stack([features, labels, wards])
        np.savetxt(path, columns, fmt=["%.6f"] * 3 + ["%d"] * 2, delimiter=",", header="a,b,c,label,ward", comments="")
    return {"data-file": str(path), "dataset": "table", "group-column": "ward", "partition": "sites"}


def test_each_site_takes_steps_from_the_common_model_on_its_own_samples(tmp_path: Path) -> None:
    """Logistic regression on whole batches, in NumPy."""
    common, none = run(tmp_path, "common")
    tuned, models = run(tmp_path, "tuned", fine_tune=STEPS, fine_tune_lr=RATE)
    assert not none
    assert len(models) == SITES
    np.testing.assert_array_equal(tuned.arrays["x"], common.arrays["x"])  # what the server has is the common one
    data = RunConfig.parse(JOB | table(tmp_path)).data()
    for k, model in enumerate(models):
        train = load_site(data, k, SITES).train
        inputs = train.batch(torch.arange(len(train)))[0].double().numpy()
        design, labels = np.column_stack([inputs, np.ones(len(inputs))]), train.targets().numpy()
        x = common.arrays["x"].astype(np.float64)
        for _ in range(STEPS):
            x = x - RATE * design.T @ (1 / (1 + np.exp(-design @ x)) - labels) / len(labels)
        np.testing.assert_allclose(model.numpy(), x, rtol=0, atol=1e-5)
        assert np.abs(x - common.arrays["x"]).max() > 0.01


def test_the_last_evaluation_is_of_the_sites_own_models_and_the_rounds_are_as_without(tmp_path: Path) -> None:
    (common, _), (tuned, _) = run(tmp_path, "common"), run(tmp_path, "tuned", fine_tune=300, fine_tune_lr=1.0)
    for one, other in zip(common.metrics[:-1], tuned.metrics[:-1], strict=True):
        assert one["pooled"] == other["pooled"]
    assert "central" in common.metrics[-1]
    assert not any("central" in record for record in tuned.metrics), "no model is common"
    assert tuned.metrics[-1]["over-sites"]["loss"]["mean"] < common.metrics[-1]["over-sites"]["loss"]["mean"] - 0.05


def test_the_head_alone_can_be_trained(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"model": "mlp", "hidden": 4}
    common, _ = run(tmp_path, "common", **keys)
    _, models = run(tmp_path, "tuned", fine_tune=STEPS, fine_tune_part="head", **keys)
    head = 4 + 1
    for model in models:
        np.testing.assert_array_equal(model[:-head], common.arrays["x"][:-head])
        assert np.abs(model[-head:].numpy() - common.arrays["x"][-head:]).max() > 1e-4


@pytest.mark.parametrize(
    ("algorithm", "problem"), [("codasca", "auc"), ("scaffold", "bce-adjusted"), ("fcsg-m", "auprc"), ("fair", "")]
)
def test_after_any_algorithm_with_a_common_model(algorithm: str, problem: str, tmp_path: Path) -> None:
    """Those that remember something, have a y of their own, shares of their own."""
    keys: dict[str, Any] = {"algorithm": algorithm, "problem": problem}
    if algorithm == "fair":
        keys = {"algorithm": "local-sgda", "problem": "fair"}
    if problem == "bce-adjusted":
        keys["bce-adjusted.by"] = "site"
    result, models = run(tmp_path, "tuned", fine_tune=5, **keys)
    assert len(models) == SITES
    assert all((model - torch.from_numpy(result.arrays["x"])).abs().max() > 1e-5 for model in models)


def test_a_model_that_diverges_is_not_kept(tmp_path: Path) -> None:
    result, models = run(tmp_path, "tuned", fine_tune=50, fine_tune_lr=1e38, model="mlp")
    assert all(torch.equal(model, torch.from_numpy(result.arrays["x"])) for model in models)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"fine-tune": 5, "algorithm": "ditto"}, "algorithm = 'ditto'"),
        ({"fine-tune": 5, "algorithm": "local-sgda", "problem": "saddle"}, "problem = 'saddle'"),
        ({"fine-tune": 5, "pooled": True}, "pooled = true"),
        ({"fine-tune-lr": 0.1}, "fine-tune-lr = 0.1"),
        ({"fine-tune-part": "head"}, "fine-tune-part = 'head'"),
    ],
)
def test_where_nothing_can_be_tuned_the_run_is_refused(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, check=has(named)):
        RunConfig.parse({"algorithm": "fedavg", "problem": "bce"} | keys)


def test_whom_a_batch_holds_at_a_hospital_follows_from_its_own_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from the run's seed, which the coordinator knows."""
    opened, seeds = SiteOracle.open, list[int]()

    def noted(run: Any, problem: Any, samples: Any, random: torch.Generator, *rest: Any, **more: Any) -> Any:
        seeds.append(random.initial_seed())
        return opened(run, problem, samples, random, *rest, **more)

    monkeypatch.setattr(SiteOracle, "open", noted)
    features, labels = hospital_table(600, seed=3, positives=300)
    for name in ("first", "second"):
        site = Hospital(tmp_path / name, features, list(labels), runs_per_day=0)
        with site.run(problem="auc", algorithm="local-sgda", rounds=1, local_steps=1, fine_tune=2, seed=7) as grid:
            assert isinstance(told(grid), Facts)
            assert train(grid, "evaluate", round=1) == ""
    assert len(set(seeds)) == 2
