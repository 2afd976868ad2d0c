"""MAML: exact second-order gradients, tasks, evaluation, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from edelweiss.config import ConfigError, RunConfig
from edelweiss.datasets import PARTITIONS, DataSummary, Samples
from edelweiss.datasets.partition import NATURAL
from edelweiss.federation import RunError
from edelweiss.models import ModelError
from edelweiss.problems import ProblemError
from edelweiss.problems.maml import Maml, sample_tasks
from edelweiss.server_app import simulate
from tests.datasets.helpers import write_zips
from tests.problems import example

SHAPE = (1, 17, 17)
SMALL: dict[str, Any] = {"model": "conv4", "shape": SHAPE, "ways": 3, "shots": 2, "queries": 4, "test_tasks": 12}


def make(**changes: Any) -> Maml:
    problem: Maml = example.make("maml", **(SMALL | changes))
    return problem


def drawings(classes: int = 7, each: int = 9, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> Samples:
    """Noise around one image per class, in random order."""
    random = np.random.default_rng(seed)
    labels = torch.from_numpy(random.permutation(np.repeat(np.arange(classes), each)))
    prototypes = torch.from_numpy(random.normal(size=(classes, *shape))).float()
    inputs = prototypes[labels] + 0.5 * torch.from_numpy(random.normal(size=(len(labels), *shape))).float()
    return Samples(inputs, labels, torch.arange(len(labels)))


def drawn(problem: Maml, tasks: int = 5, seed: int = 0, **kind: Any) -> tuple[Tensor, Tensor]:
    batch = problem.draw(drawings(**kind), None, torch.Generator().manual_seed(seed), tasks)
    assert batch is not None
    return batch


def by_hand(problem: Maml, x: Tensor, inputs: Tensor, labels: Tensor, steps: int, second: bool = True) -> Tensor:
    """Return the mean query loss after adaptation: a loop over tasks, as the paper prints it."""
    module, support = problem.network.module, problem.ways * problem.shots
    names, shapes = zip(*((name, p.shape) for name, p in module.named_parameters()), strict=True)
    losses = []
    for z, truth in zip(inputs.double(), labels, strict=True):
        pieces = x.split([shape.numel() for shape in shapes])
        at = {name: piece.view(shape) for name, piece, shape in zip(names, pieces, shapes, strict=True)}
        for _ in range(steps):
            inner = cross_entropy(functional_call(module, at, (z[:support],)), truth[:support])
            slopes = torch.autograd.grad(inner, list(at.values()), create_graph=second, materialize_grads=True)
            at = {name: p - problem.inner_lr * g for (name, p), g in zip(at.items(), slopes, strict=True)}
        losses.append(cross_entropy(functional_call(module, at, (z[support:],)), truth[support:]))
    return torch.stack(losses).mean()


# ---------------------------------------------------------------------- gradients


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(("model", "shape"), [("conv4", SHAPE), ("mlp", (6,)), ("lenet5", (1, 16, 16))])
def test_the_gradient_is_that_of_finite_differences(model: str, shape: tuple[int, ...], steps: int) -> None:
    """Through the inner steps and, in conv4, batch norm, in float64, along the gradient and random directions."""
    problem = make(model=model, shape=shape, inner_steps=steps, inner_lr=0.1)
    x = problem.initial()["x"] + 0.05 * torch.randn(
        problem.network.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    batch = drawn(problem, shape=shape)
    g, gy = problem.gradient(x, None, batch)
    assert gy is None
    random = torch.Generator().manual_seed(1)
    for direction in (g, *torch.randn(3, len(x), dtype=torch.float64, generator=random)):
        direction = direction / direction.norm()

        def value(size: float, direction: Tensor = direction) -> float:
            return by_hand(problem, (x + size * direction).requires_grad_(), *batch, steps).item()

        slope = (value(1e-7) - value(-1e-7)) / 2e-7  # short: a kink of ReLU makes the inner step jump
        assert float(g @ direction) == pytest.approx(slope, rel=1e-5, abs=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [1, 5, 11])
@pytest.mark.parametrize("steps", [1, 3])
def test_tasks_at_once_are_a_loop_over_tasks(tasks: int, steps: int) -> None:
    problem = make(inner_steps=steps)
    x, batch = problem.initial()["x"], drawn(problem, tasks)
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(by_hand(problem, leaf, *batch, steps), leaf)
    for block in (1, 4, 100):
        problem.block = block
        torch.testing.assert_close(problem.gradient(x, None, batch)[0], expected, rtol=1e-9, atol=1e-11)


def test_second_derivatives_matter() -> None:
    problem = make()
    x, batch = problem.initial()["x"], drawn(problem)
    leaf = x.clone().requires_grad_()
    (first_order,) = torch.autograd.grad(by_hand(problem, leaf, *batch, 1, second=False), leaf)
    exact, _ = problem.gradient(x, None, batch)
    assert (exact - first_order).norm() > 0.05 * exact.norm()


def test_a_gradient_belongs_to_the_caller_and_depends_on_nothing_else() -> None:
    problem = make()
    x, batch = problem.initial()["x"], drawn(problem)
    before = [x.clone(), *(values.clone() for values in batch)]
    first = problem.gradient(x, None, batch)[0]
    kept = first.clone()
    problem.gradient(x + 1, None, batch)
    problem.metrics(x + 1, None, drawings())
    assert torch.equal(first, kept)
    assert not first.requires_grad
    first.fill_(9.0)
    assert torch.equal(problem.gradient(x, None, batch)[0], kept)
    assert all(map(torch.equal, before, (x, *batch)))
    assert torch.equal(make().gradient(x, None, batch)[0], kept)


def test_bfloat16_changes_little_and_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edelweiss.models.architecture.supports_bf16", lambda kind: True)  # emulated, if need be
    whole, short = make(dtype=torch.float32, hidden=8), make(dtype=torch.float32, hidden=8, amp="bf16")
    x, batch = whole.initial()["x"], drawn(whole)
    exact, rough = (problem.gradient(x, None, batch)[0] for problem in (whole, short))
    assert rough.dtype == torch.float32
    assert 0 < (rough - exact).norm() < 0.5 * exact.norm()
    for taken in (problem.inner(x, batch) for problem in (whole, short)):
        assert taken.dtype == torch.float32
    assert whole.metrics(x, None, drawings()) == short.metrics(x, None, drawings()), "it is evaluated in float32"
    assert torch.equal(short.gradient(x, None, batch)[0], rough), "and goes on in bfloat16"


# ---------------------------------------------------------------------- as a composition


@pytest.mark.parametrize("steps", [1, 2])
def test_the_inner_function_is_the_mean_adapted_vector(steps: int) -> None:
    problem = make(inner_steps=steps)
    x, (inputs, labels) = problem.initial()["x"], drawn(problem)
    adapted = []
    for z, truth in zip(inputs, labels, strict=True):
        at = x
        for _ in range(steps):
            problem.network.bind(at.clone())
            inner = cross_entropy(problem.network.forward(z[:6].double()), truth[:6])
            at = at - problem.inner_lr * problem.network.gradient(inner)[0]
        adapted.append(at)
    torch.testing.assert_close(problem.inner(x, (inputs, labels)), torch.stack(adapted).mean(0), rtol=1e-9, atol=1e-12)


def test_with_one_task_the_composition_has_the_gradient_of_the_objective() -> None:
    problem = make(inner_steps=2)
    x, batch = problem.initial()["x"], drawn(problem, tasks=1)
    composed = problem.compositional_gradient(x, problem.inner(x, batch), batch)
    torch.testing.assert_close(composed, problem.gradient(x, None, batch)[0], rtol=1e-9, atol=1e-12)


def test_the_compositional_gradient_is_that_of_f_at_s_along_the_mean_of_g() -> None:
    """Jᵀ∇f(s) by finite differences of ∇f(s)ᵀ g(x): g is the mean over the tasks."""
    problem = make()
    x, batch = problem.initial()["x"], drawn(problem)
    s = x + 0.1 * torch.randn(len(x), dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    outer = torch.zeros_like(x)
    for z, truth in zip(*batch, strict=True):
        problem.network.bind(s)
        outer += problem.network.gradient(cross_entropy(problem.network.forward(z[6:].double()), truth[6:]))[0] / 5
    composed = problem.compositional_gradient(x, s, batch)
    for seed in range(3):
        direction = torch.randn(len(x), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        moved = problem.inner(x + 1e-6 * direction, batch) - problem.inner(x - 1e-6 * direction, batch)
        assert float(composed @ direction) == pytest.approx(float(outer @ moved) / 2e-6, rel=1e-5, abs=1e-8)
    # Not the mean of the products: the tasks differ in both factors.
    alone = [problem.compositional_gradient(x, s, (z[None], truth[None])) for z, truth in zip(*batch, strict=True)]
    assert not torch.allclose(composed, torch.stack(alone).mean(0), rtol=1e-3)


# ---------------------------------------------------------------------- tasks


def test_a_task_holds_different_classes_and_different_samples_of_each() -> None:
    labels = drawings(classes=7, each=9).labels
    rows = sample_tasks(labels, 50, 4, 9, torch.Generator().manual_seed(0))
    assert rows.shape == (50, 9, 4)
    classes = labels[rows]
    assert (classes == classes[:, :1]).all(), "one class along the drawings"
    assert all(len(set(task[0].tolist())) == 4 for task in classes)
    assert all(len(set(task.flatten().tolist())) == 36 for task in rows)


def test_classes_and_samples_are_drawn_uniformly_and_short_classes_never() -> None:
    labels = torch.tensor([0] * 4 + [1] * 2 + [2] * 8 + [3] * 3 + [5] * 3)
    rows = sample_tasks(labels, 6000, 2, 3, torch.Generator().manual_seed(0))
    hits = torch.zeros(len(labels)).scatter_add_(0, rows.flatten(), torch.ones(rows.numel()))
    expected = {0: 3 / 4, 1: 0.0, 2: 3 / 8, 3: 1.0, 5: 1.0}  # of a class that was chosen; half the tasks choose it
    wanted = torch.tensor([6000 / 2 * expected[label] for label in labels.tolist()])
    assert ((hits - wanted).abs() < 5 * wanted.clamp(min=1).sqrt()).all()
    assert not hits[labels == 1].any()


def test_the_batch_has_the_support_sets_first_and_numbers_for_labels() -> None:
    problem = make(ways=3, shots=2, queries=4)
    samples = drawings(shape=(1, 17, 17))
    samples = replace(samples, inputs=samples.labels[:, None, None, None].float().expand(-1, 1, 17, 17).contiguous())
    batch = problem.draw(samples, None, torch.Generator().manual_seed(0), 8)
    assert batch is not None
    inputs, labels = batch
    assert inputs.shape == (8, 18, 1, 17, 17)
    assert labels.tolist() == [[0, 1, 2] * 6] * 8
    characters = inputs[:, :, 0, 0, 0]
    for number in range(3):
        assert (characters[:, number::3] == characters[:, number : number + 1]).all()
    assert len({tuple(task[:3].tolist()) for task in characters}) > 1


def test_tasks_are_a_function_of_the_generator() -> None:
    problem = make()
    one, same, other = (drawn(problem, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one[0], same[0])
    assert not torch.equal(one[0], other[0])


# ---------------------------------------------------------------------- evaluation


@pytest.mark.slow
def test_an_evaluation_adapts_by_its_own_number_of_steps() -> None:
    """Loss and accuracy of the tasks that the seed draws, by hand."""
    samples = drawings()
    for steps in (1, 3):
        problem = make(test_inner_steps=steps, inner_lr=0.2)
        x = problem.initial()["x"]
        metrics = problem.metrics(x, None, samples)
        assert metrics == make(test_inner_steps=steps, inner_lr=0.2).metrics(x, None, samples)
        seed = int(np.random.SeedSequence([1, 7]).generate_state(1, np.uint64)[0])
        problem.block = 5
        generator = torch.Generator().manual_seed(seed)
        total = 0.0
        for tasks in (5, 5, 2):
            batch = problem.draw(samples, None, generator, tasks)
            assert batch is not None
            total += tasks * by_hand(problem, x.clone().requires_grad_(), *batch, steps).item()
        assert problem.metrics(x, None, samples)["loss"] == pytest.approx(total / 12, rel=1e-9)
        assert metrics["n"] == len(samples)


def test_three_steps_adapt_further_than_none_would() -> None:
    """On classes that are easy to tell apart a start that knows nothing of them gets most queries right."""
    problem = make(hidden=8, test_inner_steps=3, test_tasks=30)
    accuracy = problem.metrics(problem.initial()["x"], None, drawings())["accuracy"]
    assert isinstance(accuracy, float)
    assert accuracy > 0.6  # chance: 1/3


@pytest.mark.slow
def test_training_helps_on_classes_that_were_never_seen() -> None:
    problem = make(dtype=torch.float32, hidden=8, shots=1, queries=5, test_tasks=60, model="mlp", shape=(12,))
    # Classes differ in four of twelve features; the others are noise, which a good start ignores.
    random = np.random.default_rng(0)

    def world(classes: int) -> Samples:
        labels = torch.arange(classes).repeat_interleave(12)
        inputs = torch.from_numpy(random.normal(size=(len(labels), 12)) * 2).float()
        inputs[:, :4] = torch.from_numpy(random.normal(size=(classes, 4))).float()[labels] * 2
        return Samples(inputs, labels, torch.arange(len(labels)))

    train, unseen = world(40), world(30)
    x = problem.initial()["x"]
    before = problem.metrics(x, None, unseen)
    generator = torch.Generator().manual_seed(0)
    for _ in range(150):
        g, _ = problem.gradient(x, None, problem.draw(train, None, generator, 8))
        x.add_(g, alpha=-0.1)
    after = problem.metrics(x, None, unseen)
    assert float(str(after["accuracy"])) > float(str(before["accuracy"])) + 0.1
    assert float(str(after["loss"])) < float(str(before["loss"]))


def test_samples_that_make_no_task_are_not_evaluated() -> None:
    problem = make()
    x = problem.initial()["x"]
    assert problem.metrics(x, None, drawings(classes=2)) == {}
    assert problem.metrics(x, None, drawings(each=5)) == {}
    assert problem.metrics(x, None, drawings(classes=3, each=6))["n"] == 18


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("counts", [[6, 6], [6, 6, 5], []])
def test_a_sites_shortfall_is_described(counts: list[int]) -> None:
    problem = make()
    text = problem.shortfall(counts)
    assert f"{sum(c >= 6 for c in counts)} classes with at least 6 samples" in text
    assert all(key in text for key in ("shots = 2", "queries = 4", "ways = 3"))
    assert problem.shortfall([6, 0, 6, 6]) == ""


@pytest.mark.slow
def test_a_network_that_shares_statistics_is_refused() -> None:
    batch_norm = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(450, 3))
    for model in ("resnet18", batch_norm):
        with pytest.raises(ModelError) as caught:
            make(model=model)
        assert caught.value.key == "model"


def test_options_below_their_minimum_are_refused() -> None:
    least = {"ways": 2, "shots": 1, "queries": 1, "inner-steps": 1, "test-inner-steps": 1, "test-tasks": 1}
    for key, value in [("inner-lr", 0.0), *((key, least[key] - 1) for key in least)]:
        with pytest.raises(ConfigError) as refusal:
            RunConfig.parse({"algorithm": "fcsg", "problem": "maml", f"maml.{key}": value})
        assert refusal.value.keys == [f"maml.{key}"]
        with pytest.raises(ProblemError) as caught:
            make(**{key.replace("-", "_"): value})
        assert caught.value.key == f"maml.{key}"


# ---------------------------------------------------------------------- whole runs


def job(folder: Path, **keys: Any) -> dict[str, Any]:
    write_zips(folder / "data" / "omniglot", characters=12, drawings=6)
    base = {"problem": "maml", "algorithm": "fcsg", "model": "conv4", "hidden": 4, "dataset": "omniglot"}
    base |= {"data-root": str(folder / "data"), "partition": "by-group", "sites": 3, "rounds": 2, "local-steps": 2}
    base |= {"batch-size": 2, "holdout-share": 0.4, "maml.ways": 3, "maml.shots": 1, "maml.queries": 3}
    base |= {"maml.test-tasks": 5}
    base |= {"workers": 1, "device": "cpu", "runs-dir": str(folder / "runs"), "seed": 3}
    return base | {key.replace("_", "-"): value for key, value in keys.items()}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDELWEISS_CACHE", str(tmp_path / "cache"))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fcsg", pytest.param("local-scgdm", marks=pytest.mark.slow)])
def test_a_run_over_characters(tmp_path: Path, algorithm: str) -> None:
    result = simulate(job(tmp_path, algorithm=algorithm))
    for record in result.metrics:
        assert record["central"].keys() == {"loss", "accuracy", "n"}
        assert all(site.keys() == {"loss", "accuracy", "n"} for site in record["sites"].values())
        assert 0 <= record["accuracy"] <= 1
    assert result.metrics[0]["gradients"] == 6
    assert set(result.arrays) == {"x"}, "batch norm keeps no statistics"
    again = simulate(job(tmp_path, algorithm=algorithm))
    assert np.array_equal(result.arrays["x"], again.arrays["x"])
    assert json.loads((result.folder / "metrics.jsonl").read_text().splitlines()[-1])["round"] == 2


def test_sites_that_cannot_make_a_task_are_named_before_training(tmp_path: Path) -> None:
    with pytest.raises(RunError) as refusal:
        simulate(job(tmp_path, **{"maml.queries": 9}))
    lines = str(refusal.value).splitlines()
    assert [line[:15] for line in lines] == [f"site 'site-{k}' h" for k in range(3)]
    assert all("0 classes with at least 10 samples" in line and "queries = 9" in line for line in lines)


def test_sites_with_too_few_characters_are_named_before_training(tmp_path: Path) -> None:
    """Three of twelve are for testing; each site has three, holds one out, and trains on two in four turns."""
    with pytest.raises(RunError) as refusal:
        simulate(job(tmp_path, **{"maml.ways": 9}))
    assert str(refusal.value).splitlines() == [
        f"site 'site-{k}' has too few training samples: 8 classes with at least 4 samples (maml.shots = 1, "
        "maml.queries = 3), and a task needs maml.ways = 9: lower these keys, or give each site more of the data "
        "(fewer sites)"
        for k in range(3)
    ]
    assert simulate(job(tmp_path, **{"maml.ways": 8}, rounds=1)).metrics, "the advice works"


@pytest.mark.parametrize("partition", [name for name in PARTITIONS if name not in ("by-group", *NATURAL)])
def test_characters_are_dealt_whole_or_not_at_all(partition: str) -> None:
    keys: dict[str, Any] = {"algorithm": "fcsg", "problem": "maml", "dataset": "omniglot"}
    with pytest.raises(ConfigError) as refusal:
        RunConfig.parse(keys | {"partition": partition})
    [text] = refusal.value.problems
    assert text.startswith(f"partition = {partition!r} ")
    assert text.endswith('take partition = "by-group"')
    assert RunConfig.parse(keys | {"partition": "by-group"})


@pytest.mark.slow
def test_a_network_that_cannot_be_vectorised_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        simulate(job(tmp_path, model="resnet18"))
    assert caught.value.key == "model"


def test_training_adapts_by_one_step_and_testing_by_three() -> None:
    config = RunConfig.parse({"algorithm": "fcsg", "problem": "maml"})
    problem = config.build_problem(config.setting(DataSummary(shape=(6,), classes=9), "cpu"))
    assert isinstance(problem, Maml)
    assert (problem.inner_steps, problem.test_inner_steps) == (1, 3)


def test_a_site_that_cannot_be_evaluated_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = simulate(job(tmp_path, **{"maml.ways": 5}, holdout_share=0.2, rounds=1))
    assert all("loss" not in site for site in result.metrics[0].get("sites", {}).values())
    assert "central" in result.metrics[0]
