"""Weight decay, momentum and clipping: the same in every minimax method as torch's own, where nothing else differs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from edelweiss.federation import StrategyError
from edelweiss.strategies import ALGORITHMS
from edelweiss.strategies.local_steps import GradientSteps
from tests.strategies.halves import SideBySide, drive
from tests.strategies.jobs import Job, Path, saddle
from tests.strategies.optimum import REACHED, codasca, distances
from tests.strategies.settings import points

Q, ROUNDS, LR, LR_DUAL = 5, 4, 0.04, 0.04
# With one site and exact gradients each takes the steps of Local SGDA, given these options.
FRESH: dict[str, Any] = {"fresh_weight": 1.0, "fresh_weight_dual": 1.0, "initial_batch": 1, "lr_dual": LR_DUAL}
ALIKE: dict[str, dict[str, Any]] = {
    "local-sgda": {"lr_dual": LR_DUAL},
    "fess-gda": {"lr_dual": LR_DUAL, "smoothing": 0.0},
    "coda-plus": {"gamma": 0.0},
    "codasca": {"gamma": 0.0},
    "sagda": {"lr_dual": LR_DUAL},
    "cdma": {"lr_dual": LR_DUAL, "alpha": 1.0},
    "fedgda-gt": {"lr_dual": LR_DUAL},
    "fmgda": FRESH,
    "fgda": FRESH,
}
KINDS: list[dict[str, float]] = [
    {"weight_decay": 0.3},
    {"momentum": 0.6},
    {"clip": 12.0},
    {"weight_decay": 0.3, "momentum": 0.6, "clip": 12.0},
]
REFUSING = ("npa", "momentum-local-sgda", "momentum-local-sgda-plus")
by_kind = pytest.mark.parametrize("sgd", KINDS, ids=["decay", "momentum", "clip", "all"])


def by_torch(job: Job, weight_decay: float = 0.0, momentum: float = 0.0, clip: float = 0.0) -> Path:
    """Descent by torch's SGD, whose velocity starts anew in each round, and ascent on y."""
    x, y = torch.nn.Parameter(job.start["x"].clone()), job.start["y"].clone()
    path, clipped = [], 0
    for r in range(1, ROUNDS + 1):
        sgd, oracle = torch.optim.SGD([x], LR, momentum, weight_decay=weight_decay), job.oracles(0, r)
        for _ in range(Q):
            x.grad, gy = oracle.gradient(x.detach(), y)
            if clip:
                clipped += bool(torch.nn.utils.clip_grad_norm_([x], clip) > clip)
            sgd.step()
            y = y + LR_DUAL * gy
        path.append((x.detach().numpy().copy(), y.numpy()))
    assert not clip or 0 < clipped < Q * ROUNDS, "some gradients are clipped, others are not"
    return path


@by_kind
@pytest.mark.parametrize("name", ALIKE)
def test_one_site_takes_the_steps_of_torchs_sgd(name: str, sgd: dict[str, float]) -> None:
    job = saddle(sites=1)
    strategy = ALGORITHMS[name](local_steps=Q, lr=LR, **ALIKE[name], **sgd)
    states = drive(strategy, job.start, job.oracles, ROUNDS, 1, wire=True)
    until = ROUNDS - (name == "coda-plus")  # its last round is the stage's average
    for (x, y), (wanted_x, wanted_y) in list(zip(points(states), by_torch(job, **sgd), strict=True))[:until]:
        # torch adds 1e-6 to the norm that it divides by.
        np.testing.assert_allclose(x, wanted_x, rtol=0, atol=1e-5 if "clip" in sgd else 1e-10)
        np.testing.assert_allclose(y, wanted_y, rtol=0, atol=1e-5 if "clip" in sgd else 1e-10)


@by_kind
@pytest.mark.parametrize("name", [name for name, kind in ALGORITHMS.items() if kind.solves == {"minimax"}])
def test_every_method_takes_them_into_account(name: str, sgd: dict[str, float]) -> None:
    """Or refuses them: nothing is ignored in silence."""
    kind, job = ALGORITHMS[name], saddle()
    assert issubclass(kind, GradientSteps)
    steps = {"local_steps": 1 if name == "npa" else Q, "lr": 0.001 if name == "adafgda" else LR}
    if "momentum" in sgd and name in REFUSING:
        with pytest.raises(StrategyError, check=lambda error: error.key == f"{name}.momentum"):
            kind(**steps, **sgd)
        return
    plain, changed = (job.run(kind(**steps, **own), rounds=3)[-1][0] for own in ({}, sgd))
    assert np.abs(plain - changed).max() > 1e-6


def test_codasca_with_momentum_still_reaches_the_saddle_point() -> None:
    assert max(distances(codasca(momentum=0.9, lr=0.01), rounds=150)[-1]) < REACHED


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_control_variates_are_gradients_and_not_the_steps_that_momentum_has_lengthened(momentum: float) -> None:
    strategy, g = codasca(momentum=momentum, local_steps=7), torch.arange(3, dtype=torch.float64)
    oracle: Any = SimpleNamespace(gradient=lambda x, y: (g.clone(), g[:1].clone()), project=lambda y: y)
    start = {"x": torch.ones_like(g), "y": g[:1].clone()}
    reply, _ = strategy.local_update(start, {}, oracle, strategy.context(1, 2, "train", 1))
    torch.testing.assert_close(reply["cx"], g, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(reply["cy"], g[:1], rtol=1e-12, atol=1e-12)


def test_a_stack_clips_each_clients_gradient_by_its_own_norm() -> None:
    strategy, random = codasca(clip=12.0), np.random.default_rng(3)
    together = SideBySide(random.uniform(0, 2, 3), random.normal(0, 9, (3, 6)))
    start = {name: torch.from_numpy(random.normal(size=6)) for name in ("x", "y")}
    alone, stacked = (points(drive(strategy, start, way, ROUNDS, 3)) for way in (together.alone, together))
    for one, other in zip(alone, stacked, strict=True):
        np.testing.assert_allclose(one[0], other[0], rtol=0, atol=1e-12)
