"""``fair``: the simplex, the objective as the sum over classes, and what it is for."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edelweiss.config import RunConfig
from edelweiss.problems.fair import Fair, project_simplex
from tests.problems.example import FEATURES, make, point, samples
from tests.server_app.sites import run_at, write_table

SHARES = (0.5, 0.3, 0.2)
vectors = st.integers(1, 6).flatmap(lambda n: st.lists(st.floats(-1e3, 1e3), min_size=n, max_size=n))


def problem(shares: tuple[float, ...] = SHARES) -> Fair:
    built: Fair = make("fair", classes=len(shares), shares=shares)
    return built


def drawn(seed: int, counts: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(len(counts)), counts))
    return torch.from_numpy(random.normal(size=(len(labels), FEATURES)).astype(np.float32)).double(), torch.from_numpy(
        labels
    )


# ---------------------------------------------------------------------- the simplex


def nearest(entries: list[float]) -> list[float]:
    """The projection by brute force: on each face the nearest point is known; the best feasible one of all faces.

    In exact arithmetic: beside a large entry, distances that differ by little are equal in floating point.
    """
    y = [Fraction(entry) for entry in entries]
    found = []
    for size in range(1, len(y) + 1):
        for face in itertools.combinations(range(len(y)), size):
            shift = (sum(y[i] for i in face) - 1) / size
            p = [y[i] - shift if i in face else Fraction(0) for i in range(len(y))]
            if min(p) >= 0:
                found.append((sum((a - b) ** 2 for a, b in zip(p, y, strict=True)), p))
    return [float(entry) for entry in min(found)[1]]


@settings(max_examples=50, deadline=None)
@given(vectors)
def test_the_projection_is_that_of_brute_force(entries: list[float]) -> None:
    y = torch.tensor(entries, dtype=torch.float64)
    p = project_simplex(y)
    np.testing.assert_allclose(p.numpy(), nearest(entries), atol=1e-9)
    assert float(p.sum()) == pytest.approx(1)
    torch.testing.assert_close(project_simplex(p), p, atol=1e-12, rtol=0)


@settings(max_examples=100, deadline=None)
@given(vectors, st.floats(-1e3, 1e3))
def test_the_projection_follows_shifts_and_permutations(entries: list[float], shift: float) -> None:
    y = torch.tensor(entries, dtype=torch.float64)
    p = project_simplex(y)
    torch.testing.assert_close(project_simplex(y + shift), p, atol=1e-9, rtol=0)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(len(y)))
    torch.testing.assert_close(project_simplex(y[order]), p[order], atol=1e-12, rtol=0)


def test_known_projections() -> None:
    for y, expected in (
        ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
        ([2.0, 0.0, 0.0], [1.0, 0.0, 0.0]),
        ([0.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]),
        ([1.0, 1.0, -5.0], [0.5, 0.5, 0.0]),
        ([1e6, 1e6 - 0.5, 0.0], [0.75, 0.25, 0.0]),  # in float32 the last digit is 1/16
        ([7.0], [1.0]),
    ):
        torch.testing.assert_close(project_simplex(torch.tensor(y)), torch.tensor(expected), atol=1e-6, rtol=0)


def test_large_entries_lose_no_digit_in_float32() -> None:
    y = 1e5 + torch.randn(100, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(project_simplex(y), project_simplex(y.double()).float(), atol=1e-6, rtol=0)


def test_the_projection_of_a_thousand_classes_in_float32_sums_to_one() -> None:
    y = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    p = project_simplex(y)
    assert p.dtype == torch.float32
    assert float(p.sum()) == pytest.approx(1, abs=1e-5)
    assert float(p.min()) >= 0


# ---------------------------------------------------------------------- the objective


def test_on_data_of_the_given_shares_it_is_the_weighted_sum_of_the_classes_mean_losses() -> None:
    fair, plain = problem(), make("cross-entropy", classes=3)
    x, y = point(fair, 2)
    assert y is not None
    inputs, labels = drawn(0, (10, 6, 4))
    losses = [
        float(str(plain.metrics(x, None, samples(inputs[labels == c], labels[labels == c]))["loss"])) for c in range(3)
    ]
    assert fair.metrics(x, y, samples(inputs, labels))["loss"] == pytest.approx(
        float(y @ torch.tensor(losses).double())
    )
    _, gy = fair.gradient(x, y, (inputs, labels))
    torch.testing.assert_close(gy, torch.tensor(losses, dtype=torch.float64), rtol=1e-6, atol=0)  # linear in y


def test_batches_estimate_it_without_bias() -> None:
    """The mean over all batches of three is the whole; most of them lack a class."""
    fair = problem()
    x, y = point(fair, 3)
    inputs, labels = drawn(1, (5, 3, 2))
    whole = fair.gradient(x, y, (inputs, labels))
    batches = [list(rows) for rows in itertools.combinations(range(10), 3)]
    parts = [fair.gradient(x, y, (inputs[rows], labels[rows])) for rows in batches]
    for one, many in zip(whole, zip(*parts, strict=True), strict=True):
        torch.testing.assert_close(one, torch.stack([g for g in many if g is not None]).mean(0))


def test_at_uniform_weights_with_equal_shares_it_is_cross_entropy() -> None:
    fair, plain = problem((0.25,) * 4), make("cross-entropy", classes=4)
    x, _ = point(plain, 1)
    start = fair.initial()["y"]
    torch.testing.assert_close(start, torch.full((4,), 0.25, dtype=torch.float64))
    assert torch.equal(fair.initial()["x"], plain.initial()["x"])
    data = drawn(2, (3, 3, 2, 1))
    torch.testing.assert_close(fair.gradient(x, start, data)[0], plain.gradient(x, None, data)[0])


def test_a_class_without_training_samples_has_no_part() -> None:
    fair = problem((0.6, 0.4, 0.0))
    x, _ = point(fair, 1)
    inputs, labels = drawn(3, (3, 2, 2))  # held out, there are some
    y = fair.initial()["y"]
    assert torch.isfinite(torch.tensor(float(str(fair.metrics(x, y, samples(inputs, labels))["loss"]))))
    gx, gy = fair.gradient(x, y, (inputs, labels))
    assert gy is not None
    assert gy[2] == 0
    assert gy[:2].min() > 0
    assert gx.isfinite().all()


# ---------------------------------------------------------------------- what it is for


def overlapping(counts: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes in a row, closer than they are wide: no model tells all of them apart."""
    inputs, labels = drawn(4, counts)
    return inputs + 1.5 * labels[:, None] * torch.tensor([1.0, 0, 0, 0]).double(), labels


@pytest.mark.slow
def test_at_the_saddle_point_the_classes_that_count_are_equally_bad_and_no_other_is_worse() -> None:
    """Simultaneous descent and ascent on all data; and the worst class is better off than with cross-entropy."""
    counts = (120, 20, 60)
    fair, plain = problem(tuple(count / 200 for count in counts)), make("cross-entropy", classes=3)
    data = overlapping(counts)

    def losses(x: torch.Tensor) -> torch.Tensor:
        one = torch.eye(3, dtype=torch.float64)
        return torch.stack([fair.loss(plain.logits(x, samples(*data)), data[1], x, unit) for unit in one])

    start = fair.initial()
    x, y, baseline = start["x"], start["y"], start["x"].clone()
    for _ in range(1000):
        gx, gy = fair.gradient(x, y, data)
        assert gy is not None
        x, y = x - 0.9 * gx, fair.project(y + 0.09 * gy)
        baseline -= 0.9 * plain.gradient(baseline, None, data)[0]
    final = losses(x)
    counting = y > 1e-6
    assert counting.sum() >= 2
    worst = final.max()
    torch.testing.assert_close(final[counting], worst.expand(int(counting.sum())), rtol=0.01, atol=0)
    assert worst < 0.7 * losses(baseline).max()
    assert final.min() > losses(baseline).min()  # at a price for the class that was best off


@pytest.mark.slow
def test_in_a_run_it_lifts_the_class_that_cross_entropy_gives_up(tmp_path: Path) -> None:
    nodes = []
    for seed, name in enumerate(("north", "south")):
        rng = np.random.default_rng(seed)
        labels = np.repeat([0, 1, 2], (960, 120, 480))
        features = rng.normal(size=(len(labels), 4))
        features[:, 0] += 1.5 * labels
        nodes.append({"site": name, "data-dir": str(write_table(tmp_path / name, features, labels.tolist()))})
    base = {"dataset": "site", "model": "linear", "sites": 2, "rounds": 25, "workers": 1, "device": "cpu"}
    base |= {"runs-dir": str(tmp_path / "runs"), "evaluate-every": 0}

    def last(**keys: object) -> dict[str, Any]:
        config = RunConfig.parse(base | {key.replace("_", "-"): value for key, value in keys.items()})  # type: ignore[arg-type]
        return run_at(config, nodes).metrics[-1]

    plain = last(problem="cross-entropy", algorithm="fedavg")
    fair = last(problem="fair", algorithm="local-sgda", **{"local-sgda.lr-dual": 0.03})
    assert plain["worst-class"] < 0.2
    assert fair["worst-class"] > 0.4
    assert fair["accuracy"] < plain["accuracy"]
