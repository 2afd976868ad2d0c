"""The AUPRC objective against a double loop over pairs, its corner cases, and runs on the data of the paper's kind."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edelweiss.common import Value
from edelweiss.config import ConfigError, RunConfig
from edelweiss.datasets import SAMPLERS
from edelweiss.problems import auprc as module
from edelweiss.problems.auprc import Auprc
from edelweiss.server_app import simulate
from tests.problems.example import FEATURES, batch, make, point, samples
from tests.reference import losses
from tests.said import has
from tests.server_app.sites import hospitals, run_at, site_job, table, write_table

pytestmark = pytest.mark.usefixtures("public_batches")


def build(margin: float = 1.0, model: str = "linear", dtype: torch.dtype = torch.float64) -> Auprc:
    problem: Auprc = make("auprc", margin=margin, model=model, dtype=dtype)
    return problem


@pytest.mark.parametrize("margin", [0.1, 0.6, 1.0, 2.0])
@pytest.mark.parametrize(("positives", "negatives"), [(1, 9), (4, 12), (7, 1), (3, 0)])
def test_value_and_gradient_are_those_of_a_double_loop(margin: float, positives: int, negatives: int) -> None:
    problem = build(margin)
    x, _ = point(problem, 0)
    inputs, labels = batch(10, positives, negatives)

    def value(v: np.ndarray) -> float:
        return losses.double_loop(losses.sigmoid(inputs.numpy() @ v[:FEATURES] + v[FEATURES]), labels.numpy(), margin)

    gx, gy = problem.gradient(x, None, (inputs, labels))
    assert gy is None
    expected = losses.finite_differences(value, x.numpy())
    np.testing.assert_allclose(gx.numpy(), expected, rtol=1e-6, atol=1e-8)
    assert np.abs(expected).max() > 1e-3 or margin < 0.5 or not negatives
    assert problem.metrics(x, None, samples(inputs, labels))["loss"] == pytest.approx(value(x.numpy()), rel=1e-9)


def test_of_a_deeper_network_too() -> None:
    problem = build(0.6, "mlp")
    x, _ = point(problem, 3)
    inputs, labels = batch(7, 4, 12)
    held_out = samples(inputs, labels)
    scores = losses.sigmoid(problem.logits(x, held_out).numpy())
    assert problem.metrics(x, None, held_out)["loss"] == pytest.approx(losses.double_loop(scores, labels.numpy(), 0.6))
    gx, _ = problem.gradient(x, None, (inputs, labels))
    for seed in range(4):
        direction = torch.from_numpy(np.random.default_rng(seed).normal(size=len(x)))
        ends = [problem.metrics(x + step * direction, None, held_out)["loss"] for step in (1e-6, -1e-6)]
        slope = (float(str(ends[0])) - float(str(ends[1]))) / 2e-6
        assert float(gx @ direction) == pytest.approx(slope, rel=1e-5, abs=1e-8)


def logit_problem(margin: float, dtype: torch.dtype = torch.float32) -> tuple[Auprc, Tensor]:
    """Return a problem and the x that makes the first feature the logit."""
    return build(margin, dtype=dtype), torch.tensor([1.0, 0, 0, 0, 0], dtype=dtype)


def with_logits(logits: list[float]) -> Tensor:
    inputs = torch.zeros(len(logits), FEATURES)
    inputs[:, 0] = torch.tensor(logits)
    return inputs


@pytest.mark.parametrize("margin", [1e-30, 1e-3, 1.0])
@pytest.mark.parametrize("logits", [[0.0] * 4, [50.0, 50, -50, -50], [-1e4, 1e4, 1e4, 1e4], [200.0, -200, 0, 0]])
def test_it_is_finite_whatever_the_scores(margin: float, logits: list[float]) -> None:
    """In float32 the square of a margin of 1e-30 is zero: there a positive can be without any loss mass."""
    problem, x = logit_problem(margin)
    inputs = with_logits(logits)
    for labels in ([1, 0, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]):
        targets = torch.tensor(labels)
        gx, _ = problem.gradient(x, None, (inputs, targets))
        assert gx.isfinite().all()
        loss = float(str(problem.metrics(x, None, samples(inputs, targets))["loss"]))
        assert -1 <= loss <= 0


def test_a_positive_without_loss_mass_counts_as_perfectly_ranked_and_leaves_the_others_alone() -> None:
    problem, x = logit_problem(1e-30)
    labels = torch.tensor([1, 1, 0, 0])
    top = with_logits([3.0, -1.0, 1.0, 0.5])  # the first has none; the second is below both negatives
    gx, _ = problem.gradient(x, None, (top, labels))
    assert problem.metrics(x, None, samples(top, labels))["loss"] == pytest.approx(
        (-1 - among(-1.0, 3.0, 1.0, 0.5)) / 2
    )
    assert gx.abs().max() > 1e-3
    perfect = with_logits([3.0, 3.0, -1.0, 0.5])
    assert not problem.gradient(x, None, (perfect, labels))[0].any()


def among(own: float, positive: float, *negatives: float) -> float:
    """Return the precision at one positive with another above it, without a margin."""
    above = [max(losses.sigmoid(np.array(z)) - losses.sigmoid(np.array(own)), 0) ** 2 for z in (positive, *negatives)]
    return float(above[0] / sum(above))


def test_a_batch_without_positives_moves_nothing() -> None:
    problem = build()
    x, _ = point(problem, 0)
    inputs, labels = batch(0, 0, 5)
    assert not problem.gradient(x, None, (inputs, labels))[0].any()
    assert problem.metrics(x, None, samples(inputs, labels))["loss"] == 0


def test_a_negative_with_twice_the_weight_counts_as_two() -> None:
    problem = build()
    x, _ = point(problem, 0)
    inputs, labels = batch(0, 4, 6)
    weighted, _ = problem.gradient(x, None, (inputs, labels, torch.where(labels == 0, 2.0, 1.0).to(x.dtype)))
    two = torch.arange(len(labels)).repeat_interleave(2 - labels)
    written_out, _ = problem.gradient(x, None, (inputs[two], labels[two]))
    torch.testing.assert_close(weighted, written_out)
    assert not torch.allclose(weighted, problem.gradient(x, None, (inputs, labels))[0], rtol=1e-3)


def test_a_better_ranking_has_a_lower_loss() -> None:
    problem, x = logit_problem(0.5, torch.float64)
    labels = torch.tensor([1, 1, 0, 0, 0, 0])
    rankings = [[-2.0, -1, 0, 1, 2, 3], [0.0, 0, 0, 0, 0, 0], [3.0, -1, 0, 0, 0, 0], [4.0, 4, -4, -4, -4, -4]]
    values = [float(str(problem.metrics(x, None, samples(with_logits(r), labels))["loss"])) for r in rankings]
    assert values == sorted(values, reverse=True)
    assert values[1] == pytest.approx(-2 / 6)  # equal scores: the share of positives
    assert values[-1] < -0.99


def test_an_evaluation_in_blocks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A held-out set is compared block by block of positives, so that memory does not grow with their square."""
    problem = build(0.6, "mlp")
    x, _ = point(problem, 1)
    held_out = samples(*batch(3, 30, 70))
    whole = problem.metrics(x, None, held_out)["loss"]
    shapes: list[int] = []
    precision = problem.precision

    def noting(positives: Tensor, *others: Tensor) -> Tensor:
        shapes.append(len(positives))
        return precision(positives, *others)

    monkeypatch.setattr(problem, "precision", noting)
    monkeypatch.setattr(module, "PAIRS", 800)
    assert problem.metrics(x, None, held_out)["loss"] == pytest.approx(float(str(whole)), rel=1e-12)
    assert shapes == [8, 8, 8, 6]
    monkeypatch.setattr(module, "PAIRS", 1)
    assert problem.metrics(x, None, held_out)["loss"] == pytest.approx(float(str(whole)), rel=1e-12)


def test_gradients_belong_to_the_caller() -> None:
    problem = build(model="mlp")
    x, data = problem.initial()["x"], batch(1, 3, 5)
    first, _ = problem.gradient(x, None, data)
    kept = first.clone()
    assert not torch.equal(problem.gradient(x + torch.arange(len(x)) / 10, None, data)[0], kept)
    assert torch.equal(first, kept)
    first.fill_(1e6)
    assert torch.equal(problem.gradient(x, None, data)[0], kept)
    assert not problem.gradient(x, None, data)[0].requires_grad


def test_bfloat16_changes_little_and_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edelweiss.models.architecture.supports_bf16", lambda kind: True)  # emulated, if need be
    whole, short = (make("auprc", model="mlp", hidden=8, amp=amp, dtype=torch.float32) for amp in ("", "bf16"))
    x, drawn = whole.initial()["x"], batch(6, 8, 24, torch.float32)
    exact, rough = (problem.gradient(x, None, drawn)[0] for problem in (whole, short))
    assert rough.dtype == torch.float32
    assert 0 < (rough - exact).norm() < 0.1 * exact.norm()


# ---------------------------------------------------------------------- in a run


def test_its_sampler_is_the_default_and_only_for_it() -> None:
    assert RunConfig.parse({"algorithm": "fcsg", "problem": "auprc"}).sampler == "fixed-positives"
    assert RunConfig.parse({"algorithm": "fedavg", "problem": "bce"}).sampler == "uniform"
    assert RunConfig.parse({"problem": "auc", "sampler": "auto"}).sampler == "auto", "as the sites' shares say"
    assert RunConfig.parse({"sampler": "fixed-positives"}).sampler == "fixed-positives"
    assert "auto" not in SAMPLERS
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse({"algorithm": "fcsg", "problem": "auprc", "sampler": "uniform"})
    assert caught.value.keys == ["sampler"]


def test_a_config_that_was_written_and_read_is_the_same() -> None:
    config = RunConfig.parse({"algorithm": "fcsg-m", "problem": "auprc", "fcsg-m.beta": 0.3})
    assert RunConfig.parse(config.flat()) == config


@pytest.mark.parametrize("fraction", [1.0, 0.75])
@pytest.mark.parametrize("problem", ["auprc", "partial-auc"])
def test_a_site_without_positives_contributes_nothing(problem: str, fraction: float, tmp_path: Any) -> None:
    """The others' run is the same to the bit with and without it, and it is evaluated and named."""
    random = np.random.default_rng(0)
    site = np.repeat(list("abcd"), 30)
    label = random.integers(0, 2, 120) * (site != "d")
    features = random.normal(size=(120, 2)) + label[:, None]
    rows = [f"{a:.4f},{b:.4f},{s},{y}\n" for (a, b), s, y in zip(features, site, label, strict=True)]
    job = {"algorithm": "fcsg-m", "problem": problem, "dataset": "table", "group-column": "site", "partition": "sites"}
    job |= {"standardise": False, "rounds": 3, "workers": 1, "device": "cpu", "report": False, "evidence": False}
    job |= {"central-test": False, "test-share": 0.0, "runs-dir": str(tmp_path / "runs"), "model": "linear"}
    found = []
    for name, kept, sites in (("all", rows, 4), ("others", rows[:90], 3)):
        (file := tmp_path / f"{name}.csv").write_text("x,z,site,label\n" + "".join(kept), encoding="utf-8")
        result = simulate(job | {"data-file": str(file), "sites": sites, "fraction": fraction if sites == 4 else 1.0})
        found.append(result)
    whole, others = found
    assert np.array_equal(whole.arrays["x"], others.arrays["x"])
    assert sorted(whole.metrics[-1]["sites"]) == list("abcd")
    assert whole.metrics[-1]["sites"]["d"]["positives"] == 0


JOB: dict[str, Any] = {"problem": "auprc", "workers": 1, "device": "cpu", "thin-share": 0.2, "partition": "iid"}


def test_a_simulated_site_without_positives_is_named(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    job = JOB | {"algorithm": "fcsg", "partition": "dirichlet", "thin-share": 0.1, "runs-dir": str(tmp_path)}
    simulate(job | {"rounds": 1}, quiet=False)
    [line] = [line for line in capsys.readouterr().out.splitlines() if "'auprc'" in line and "contributes" in line]
    assert "'site-4'" in line


@pytest.mark.slow
def test_hospitals_with_tables_of_their_own(tmp_path: Any) -> None:
    job = site_job(tmp_path, problem="auprc", algorithm="fcsg-m", rounds=10, local_steps=10)
    first, *_, last = run_at(job, hospitals(tmp_path)).metrics
    assert list(last["sites"]) == ["north", "south", "west"]
    assert "central" not in last
    assert last["auprc"] == last["pooled"]["auprc"] > 0.9
    assert last["loss"] < first["loss"] - 0.02


def test_hospitals_without_positives_are_evaluated(tmp_path: Any) -> None:
    nodes = hospitals(tmp_path)
    for name in ("south", "west"):
        write_table(tmp_path / f"private-{name}", *table(40, seed=1, positives=0))
    keys: dict[str, Value] = {"problem": "auprc", "algorithm": "fcsg", "rounds": 2}
    result = run_at(site_job(tmp_path, **keys), nodes)
    assert list(result.metrics[-1]["sites"]) == ["north", "south", "west"]
    alone = run_at(site_job(tmp_path, **keys, sites=1, standardise=False), nodes[:1])
    together = run_at(site_job(tmp_path, **keys, standardise=False), nodes)
    assert np.array_equal(alone.arrays["x"], together.arrays["x"])


@pytest.mark.parametrize(
    ("wrong", "key", "said"),
    [
        ({"positives-per-batch": 0}, "positives-per-batch", ">= 1"),
        ({"batch-size": 0}, "batch-size", ">= 1"),
        ({"batch-size": 4}, "positives-per-batch", "batch-size = 4"),
        ({"auprc.margin": 0.0}, "auprc.margin", "> 0"),
    ],
)
def test_outer_and_inner_samples_are_at_least_one(wrong: dict[str, Value], key: str, said: str) -> None:
    """b is positives-per-batch, m is batch-size."""
    with pytest.raises(ConfigError, check=has(said, keys=[key])):
        RunConfig.parse({"algorithm": "fcsg", "problem": "auprc", **wrong})


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "lr"), [("fcsg", 0.5), ("fcsg-m", 0.5), ("acc-fcsg-m", 0.1)])
def test_average_precision_rises_on_breast_cancer(algorithm: str, lr: float, tmp_path: Any) -> None:
    job = JOB | {"algorithm": algorithm, "sites": 4, "rounds": 12, "runs-dir": str(tmp_path), f"{algorithm}.lr": lr}
    _, _, early, *_, last = simulate(job | {"evaluate-every": 3}).metrics
    assert last["auprc"] > 0.95
    assert last["loss"] < early["loss"]


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("EDELWEISS_DATA"), reason="EDELWEISS_DATA names no folder with heart_disease/")
def test_average_precision_rises_on_heart_disease_at_its_four_hospitals(tmp_path: Any) -> None:
    job = JOB | {
        "algorithm": "acc-fcsg-m",
        "dataset": "heart-disease",
        "data-root": os.environ["EDELWEISS_DATA"],
        "partition": "sites",
        "thin-share": 0.0,
        "sites": 4,
        "rounds": 20,
        "evaluate-every": 4,
        "runs-dir": str(tmp_path),
        "acc-fcsg-m.lr": 0.1,
    }
    _, _, _, early, *_, last = simulate(job).metrics
    assert last["auprc"] > early["auprc"]
    assert last["auprc"] > 0.75
    assert math.isfinite(last["loss"])
