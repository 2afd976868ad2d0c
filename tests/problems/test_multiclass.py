"""Several classes, from a site's table to the last line of the report; and cross-entropy itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from edelweiss.client_app import site
from edelweiss.common import Value
from edelweiss.config import ConfigError, RunConfig
from edelweiss.datasets import Samples, load_site, load_test
from edelweiss.federation import RunError
from edelweiss.problems import Problem, Setting
from edelweiss.problems.metrics import class_metrics
from edelweiss.problems.pooling import pool
from edelweiss.server_app import Result, simulate
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from tests.problems.example import batch, make, point, samples
from tests.server_app.sites import SiteGrid, run_at, write_table


def job(folder: Path, **keys: Value) -> dict[str, Value]:
    base: dict[str, Value] = {
        "problem": "cross-entropy",
        "algorithm": "fedavg",
        "dataset": "digits",
        "model": "linear",
        "sites": 3,
        "rounds": 4,
        "workers": 1,
        "device": "cpu",
        "runs-dir": str(folder / "runs"),
    }
    return base | {key.replace("_", "-"): value for key, value in keys.items()}


# ---------------------------------------------------------------------- the loss and its metrics


def test_with_two_classes_it_is_that_of_one_logit() -> None:
    """softmax of (0, h) is the sigmoid of h."""
    two, one = make("cross-entropy", classes=2), make("bce")
    x, _ = point(one, 0)
    inputs, labels = batch(1, 5, 7)
    weights, bias = x[:-1], x[-1:]
    wide = torch.cat([torch.zeros_like(weights), weights, torch.zeros(1), bias]).to(x.dtype)
    g, expected = two.gradient(wide, None, (inputs, labels))[0], one.gradient(x, None, (inputs, labels))[0]
    features = len(weights)
    torch.testing.assert_close(g[features : 2 * features], expected[:-1])
    torch.testing.assert_close(g[:features], -expected[:-1])
    torch.testing.assert_close(g[-1], expected[-1])
    for problem, at in ((two, wide), (one, x)):
        assert problem.metrics(at, None, samples(inputs, labels))["loss"] == pytest.approx(
            one.metrics(x, None, samples(inputs, labels))["loss"]
        )


counts = st.integers(2, 5).flatmap(
    lambda classes: st.lists(
        st.lists(st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1)), max_size=15),
        min_size=1,
        max_size=4,
    ).map(lambda sites: (classes, sites))
)


@settings(max_examples=60, deadline=None)
@given(counts)
def test_pooled_accuracies_are_those_of_all_samples_together(case: tuple[int, Sequence[Any]]) -> None:
    classes, sites = case
    if not any(sites):
        return

    def evaluate(pairs: Sequence[tuple[int, int]]) -> dict[str, Any]:
        labels = torch.tensor([label for label, _ in pairs], dtype=torch.int64)
        logits = torch.nn.functional.one_hot(
            torch.tensor([answer for _, answer in pairs], dtype=torch.int64), classes
        ).double()
        return {"n": len(pairs), **class_metrics(labels, logits)}

    pooled = pool([evaluate(pairs) for pairs in sites])
    everybody = [pair for pairs in sites for pair in pairs]
    assert pooled["accuracy"] == pytest.approx(np.mean([label == answer for label, answer in everybody]))
    by_class = [
        np.mean([answer == c for label, answer in everybody if label == c])
        for c in range(classes)
        if any(label == c for label, _ in everybody)
    ]
    assert pooled["worst-class"] == pytest.approx(min(by_class))
    assert pooled["n"] == len(everybody)


# ---------------------------------------------------------------------- whole runs


@pytest.mark.slow
def test_digits_are_learned_as_a_central_model_learns_them(tmp_path: Path) -> None:
    result = simulate(job(tmp_path, rounds=20, sites=4))
    last = result.metrics[-1]
    train, test = (
        load_site(RunConfig.parse(job(tmp_path)).data(), 0, 1).train,
        load_test(RunConfig.parse(job(tmp_path)).data()),
    )
    assert test is not None
    (inputs, labels), (new, truth) = (part.batch(torch.arange(len(part))) for part in (train, test))
    central = LogisticRegression(max_iter=500).fit(inputs.flatten(1) / 16, labels)
    expected = central.score(new.flatten(1) / 16, truth)
    assert last["central"]["n"] == len(truth)
    assert abs(last["accuracy"] - expected) < 0.03
    assert last["accuracy"] > 0.93
    assert last["worst-class"] == last["central"]["worst-class"] < last["accuracy"]
    assert result.arrays["x"].shape == (65 * 10,)
    assert "class-counts" not in last["central"] | last["pooled"] | last["sites"]["site-0"]


def test_the_pooled_line_is_the_evaluation_of_all_held_out_samples(tmp_path: Path) -> None:
    keys = job(tmp_path, central_test=False, test_share=0.0, standardise=False, concentration=0.2)
    result, config = simulate(keys), RunConfig.parse(keys)
    x = torch.from_numpy(result.arrays["x"])
    parts = [load_site(config.data(), site, 3).held_out for site in range(3)]
    rows = torch.cat([part.rows for part in parts])
    inputs, labels = Samples(parts[0].inputs, parts[0].labels, rows).batch(torch.arange(len(rows)))
    answers = (inputs.flatten(1) @ x[:640].view(10, 64).T + x[640:]).argmax(1)
    pooled = result.metrics[-1]["pooled"]
    assert pooled["accuracy"] == pytest.approx((answers == labels).double().mean().item())
    assert pooled["n"] == len(rows)


@pytest.mark.slow
def test_mnist_from_a_folder(tmp_path: Path) -> None:
    root = os.environ.get("EDELWEISS_DATA")
    if not root:
        pytest.skip("EDELWEISS_DATA is not set: it names the folder with the real data sets")
    result = simulate(job(tmp_path, dataset="mnist", data_root=root, rounds=2, local_steps=30, batch_size=32))
    assert result.metrics[-1]["central"]["n"] == 10_000
    assert result.metrics[-1]["accuracy"] > 0.8
    assert result.arrays["x"].shape == (785 * 10,)


def clusters(folder: Path, classes: Sequence[int], seed: int) -> dict[str, Value]:
    """Write a hospital's table: 20 patients of each class, far apart; return its node-config."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(classes, 20)
    features = rng.normal(size=(len(labels), 4)) + 4 * np.eye(4)[labels]
    place = write_table(folder / f"private-{seed}", features, labels.tolist())
    return {"site": f"hospital-{seed}", "data-dir": str(place)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem",
    [pytest.param("cross-entropy", marks=pytest.mark.slow), pytest.param("robust", marks=pytest.mark.slow), "fair"],
)
def test_hospitals_that_each_lack_a_class_learn_all_of_them(tmp_path: Path, problem: str) -> None:
    """The first has never seen class 3, so its table alone would make a network of three outputs."""
    nodes = [clusters(tmp_path, classes, seed) for seed, classes in enumerate([(0, 1, 2), (1, 3), (0, 2, 3)])]
    algorithm = "fedavg" if problem == "cross-entropy" else "local-sgda"
    config = RunConfig.parse(job(tmp_path, dataset="site", problem=problem, algorithm=algorithm, rounds=15))
    result = run_at(config, nodes)
    assert len(result.arrays["x"]) == 5 * 4
    last = result.metrics[-1]
    assert "central" not in last
    assert last["accuracy"] > 0.9
    assert last["worst-class"] > 0.7
    assert last["pooled"]["n"] == sum(site["n"] for site in last["sites"].values())


def test_a_site_tells_counts_and_sums_and_nothing_else(tmp_path: Path) -> None:
    """Of several classes: one count per class in place of the positives, and no histogram of scores."""
    config = RunConfig.parse(job(tmp_path, dataset="site", sites=1))
    with SiteGrid(config, [clusters(tmp_path, (0, 1, 2), 0)]) as grid:
        coordinate(config, grid, Progress(quiet=True))
    facts = dict(grid.answers[0].content.config_records["facts"])
    counts = {"examples", "held-out", "classes", "missing"}
    by_class = {"class-counts", "held-out-counts"}
    assert np.add(facts["class-counts"], facts["held-out-counts"]).tolist() == [20, 20, 20]
    assert facts["examples"] + facts["held-out"] == 60
    rest = {"notes", "name", "partition-id", "shape", "columns", "count", "total", "squares"}
    rest |= {"label-counts", "label-positives", "patients", "warnings"}
    assert facts.keys() == counts | by_class | rest
    for answer in grid.answers[2:]:
        assert answer.content["metrics"].keys() == {
            *("loss", "n", "accuracy", "worst-class"),
            *("class-correct", "class-counts"),
        }


@pytest.mark.parametrize(
    "labels", [["mild", "severe", "mild", "absent"] * 5, [0, 1.5, 2, 1] * 5, [-1, 1, 0, 1] * 5, [0, 1, 2, 40_000] * 5]
)
def test_labels_that_are_not_classes_are_refused(tmp_path: Path, labels: list[Any]) -> None:
    node = {"site": "north", "data-dir": str(write_table(tmp_path / "north", np.ones((20, 4)), labels))}
    config = RunConfig.parse(job(tmp_path, dataset="site", sites=2))
    with pytest.raises(RunError) as caught:
        run_at(config, [node, clusters(tmp_path, (0, 1), 0)])
    assert "north" in str(caught.value)


def test_one_class_everywhere_is_refused(tmp_path: Path) -> None:
    nodes = [clusters(tmp_path, (2,), seed) for seed in (0, 1)]
    with pytest.raises(RunError):
        run_at(RunConfig.parse(job(tmp_path, dataset="site", sites=2)), nodes)


@pytest.mark.parametrize("problem", ["cross-entropy", "robust", "fair"])
def test_options_for_two_classes_are_refused(problem: str) -> None:
    algorithm = "fedavg" if problem == "cross-entropy" else "local-sgda"
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse(
            {"problem": problem, "algorithm": algorithm, "sampler": "fixed-positives", "positive-classes": "5-9"}
        )
    assert sorted(caught.value.keys) == ["positive-classes", "sampler"]
    RunConfig.parse({"problem": problem, "algorithm": algorithm})


def test_the_shares_of_the_classes_are_those_of_all_training_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They reach the sites' problems: `fair` weighs with them."""
    seen: list[tuple[float, ...]] = []
    build_at_site = site.cached_problem

    def noting(name: str, setting: Setting, options: Any) -> Problem:
        seen.append(setting.data_summary.shares)
        return build_at_site(name, setting, options)

    monkeypatch.setattr(site, "cached_problem", noting)
    keys = job(tmp_path, problem="fair", algorithm="local-sgda", rounds=1, concentration=0.1)
    result: Result = simulate(keys)
    parts = [load_site(RunConfig.parse(keys).data(), k, 3).train.targets() for k in range(3)]
    counts = torch.cat(parts).bincount(minlength=10)
    assert len(set(seen)) == 1
    assert seen[0] == pytest.approx((counts / counts.sum()).tolist())
    assert result.arrays["y"].shape == (10,)
    assert result.arrays["y"].sum() == pytest.approx(1)
