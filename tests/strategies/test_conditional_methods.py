"""FCSG, FCSG-M, Acc-FCSG-M, Local-SCGD and Local-SCGDM: their equations, their limits, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edelweiss.client_app.oracle import SiteOracle
from edelweiss.config import ConfigError, RunConfig
from edelweiss.federation import Differences, FederatedStrategy
from edelweiss.lab.cli import main
from edelweiss.problems import Batch, Setting
from edelweiss.problems.invariant_logistic import InvariantLogistic
from edelweiss.server_app import simulate
from edelweiss.strategies import (
    ALGORITHMS,
    acc_fcsg_m,
    adafgda,
    fcsg,
    fgda,
    fmgda,
    local_scgd,
    momentum,
    momentum_sgda,
    recursive_momentum,
)
from edelweiss.strategies.acc_fcsg_m import AccFCSGM
from edelweiss.strategies.fcsg import FCSG, FCSGM
from edelweiss.strategies.fedavg import FedAvg
from edelweiss.strategies.local_scgd import LocalSCGD, LocalSCGDM
from tests.reference import conditional as reference
from tests.reference.conditional import CompositionGame
from tests.reference.games import RegressionGame
from tests.strategies.halves import Arrays, RegressionOracle, drive, regression_oracles

K, ROUNDS, STEPS = 4, 5, 3
EQUAL, WEIGHTS = [1.0] * K, [1.0, 5.0, 2.0, 0.5]
SOME = [(0, 1), (2, 3), (0, 2), (1, 3), (0, 3)]
weighting = pytest.mark.parametrize("weights", [EQUAL, WEIGHTS], ids=["uniform", "weighted"])
participation = pytest.mark.parametrize("some", [None, SOME], ids=["all", "some"])


class CompositionOracle(Differences):
    """One client of a `CompositionGame` in one round, in torch; every derivative is autograd's."""

    def __init__(self, game: CompositionGame, site: int, server_round: int) -> None:
        self.game, self.site, self.round, self.step = game, site, server_round, 0
        self.tables = [
            torch.from_numpy(table[site]) for table in (game.matrices, game.curves, game.targets, game.scales)
        ]

    def draw(self, size: int | None = None) -> Batch:
        outer, inner = self.game.rows(self.site, self.round, self.step, size or self.game.outer)
        self.step += 1
        return torch.from_numpy(inner), torch.from_numpy(outer)

    def values(self, x: Tensor, inner: Tensor) -> Tensor:
        matrices, curves, _, _ = self.tables
        return matrices[inner] @ x + x @ x / 2 * curves[inner]

    def loss(self, s: Tensor, outer: Tensor) -> Tensor:
        _, _, targets, scales = self.tables
        return (scales[outer] * (s - targets[outer]).square() / 2).sum(1).mean()

    def gradient(self, x: Tensor, y: Tensor | None = None, batch: Batch | None = None) -> tuple[Tensor, None]:
        inner, outer = batch if batch is not None else self.draw()
        x = x.clone().requires_grad_()
        return torch.autograd.grad(self.loss(self.values(x, inner).mean(1), outer), x)[0], None

    def inner(self, x: Tensor, batch: Batch | None) -> Tensor:
        assert batch is not None
        return self.values(x, batch[0]).mean((0, 1))

    def compositional_gradient(self, x: Tensor, s: Tensor, batch: Batch | None) -> Tensor:
        assert batch is not None
        inner, outer = batch
        s, x = s.clone().requires_grad_(), x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.loss(s, outer), s)
        return torch.autograd.grad(self.values(x, inner).mean((0, 1)), x, slope)[0]

    def project(self, y: Tensor) -> Tensor:
        return y


def run(
    strategy: FederatedStrategy,
    game: CompositionGame,
    weights: Sequence[float] = EQUAL,
    some: Sequence[Collection[int]] | None = None,
    lost: Collection[tuple[int, int]] = (),
) -> list[Arrays]:
    """Drive a strategy over the game."""
    start = {"x": torch.from_numpy(game.x.copy())}
    oracles = lambda site, r: CompositionOracle(game, site, r)  # noqa: E731
    options: dict[str, Any] = {"weights": weights, "participants": some, "lost": lost, "wire": True}
    return drive(strategy, start, oracles, ROUNDS, K, **options)  # type: ignore[arg-type]


def agree(states: Sequence[Arrays], expected: Sequence[np.ndarray], tolerance: float = 1e-9) -> None:
    assert len(states) == len(expected) == ROUNDS
    for r, (state, x) in enumerate(zip(states, expected, strict=True), 1):
        np.testing.assert_allclose(state["x"].numpy(), x, rtol=0, atol=tolerance, err_msg=f"x after round {r}")
    assert min(np.abs(b - a).max() for a, b in pairwise(expected)) > 1e-4, "nothing moved"
    assert np.abs(expected[-1]).max() < 10


# ---------------------------------------------------------------------- equations


@weighting
@participation
@pytest.mark.parametrize("first", [1, 7])
def test_fcsg(first: int, some: Any, weights: list[float]) -> None:
    game = CompositionGame(K)
    strategy = FCSG(local_steps=STEPS, lr=0.05, fraction=1.0 if some is None else 0.5, initial_batch=first)
    expected = reference.fcsg_m(game, ROUNDS, STEPS, 0.05, 1.0, weights, some, first=first)
    agree(run(strategy, game, weights, some), expected)


@weighting
@participation
@pytest.mark.parametrize(("beta", "first"), [(0.2, 7), (0.9, 1)])
def test_fcsg_m(beta: float, first: int, some: Any, weights: list[float]) -> None:
    game = CompositionGame(K)
    share = 1.0 if some is None else 0.5
    strategy = FCSGM(local_steps=STEPS, lr=0.05, beta=beta, fraction=share, initial_batch=first)
    expected = reference.fcsg_m(game, ROUNDS, STEPS, 0.05, beta, weights, some, first=first)
    agree(run(strategy, game, weights, some), expected)


def test_unless_its_samples_are_given_the_first_estimator_is_the_mean_over_q_mini_batches() -> None:
    game, context = CompositionGame(1), AccFCSGM(local_steps=3).context(1, 1, "train", 1)
    x = torch.from_numpy(game.x)
    u, _ = recursive_momentum.initial_estimate(CompositionOracle(game, 0, 1), (x, None), 0, context)  # type: ignore[arg-type]
    np.testing.assert_allclose(u, np.mean([game.gradient(0, game.x, 1, i, game.outer) for i in range(3)], axis=0))


def test_stages_divide_the_step_and_leave_the_momentum() -> None:
    game = CompositionGame(K)
    stages = {"stage_iterations": 2 * STEPS, "stage_decay": 2.0}
    strategy = FCSGM(local_steps=STEPS, lr=0.05, beta=0.3, **stages)  # type: ignore[arg-type]
    expected = reference.fcsg_m(game, ROUNDS, STEPS, 0.05, 0.3, EQUAL, shrink=lambda r: 0.5 ** ((r - 1) // 2))
    agree(run(strategy, game), expected)


@pytest.mark.parametrize("kind", [FCSG, FCSGM, AccFCSGM, LocalSCGD, LocalSCGDM])
def test_a_stage_with_half_the_rate_takes_the_steps_of_half_the_step_size(kind: Any) -> None:
    game, ends = CompositionGame(K), []
    for lr, rate in ((0.04, 0.5), (0.02, 1.0), (0.04, 1.0)):
        strategy = kind(local_steps=STEPS, lr=lr)
        context = replace(strategy.context(1, ROUNDS, "train", K), rate=rate)
        sent = {"x": torch.from_numpy(game.x.copy())}
        ends.append(strategy.local_update(sent, {}, CompositionOracle(game, 0, 1), context)[0]["x"])
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


@pytest.mark.slow
@weighting
@pytest.mark.parametrize("beta", [0.15, 0.8])
@pytest.mark.parametrize("first", [1, 7])
def test_acc_fcsg_m(first: int, beta: float, weights: list[float]) -> None:
    game = CompositionGame(K)
    strategy = AccFCSGM(local_steps=STEPS, lr=0.05, beta=beta, initial_batch=first)
    states = run(strategy, game, weights)
    agree(states, reference.acc_fcsg_m(game, ROUNDS, STEPS, 0.05, beta, first, weights))


def test_acc_fcsg_m_goes_on_from_the_received_point_where_a_client_lost_its_own() -> None:
    game, lost = CompositionGame(K), {(2, 1), (3, 0), (5, 2)}
    strategy = AccFCSGM(local_steps=STEPS, lr=0.05, beta=0.3, initial_batch=5)
    states = run(strategy, game, lost=lost)
    agree(states, reference.acc_fcsg_m(game, ROUNDS, STEPS, 0.05, 0.3, 5, EQUAL, lost))
    undisturbed = run(strategy, game)
    assert (states[-1]["x"] - undisturbed[-1]["x"]).abs().max() > 1e-4


def test_acc_fcsg_m_with_the_cube_root_schedule() -> None:
    game = CompositionGame(K)
    strategy = AccFCSGM(
        local_steps=STEPS, lr=0.05, initial_batch=5, schedule="cube-root", schedule_n=1.3, schedule_m=4, schedule_c=0.5
    )
    states = run(strategy, game)
    falling = reference.acc_fcsg_m(
        game, ROUNDS, STEPS, 0.05, 0.0, 5, EQUAL, eta=lambda t: 1.3 * math.cbrt(K) / math.cbrt(4 + t), c=0.5
    )
    agree(states, falling)


@weighting
@participation
@pytest.mark.parametrize("beta", [0.2, 0.9])
def test_local_scgd(beta: float, some: Any, weights: list[float]) -> None:
    game = CompositionGame(K)
    strategy = LocalSCGD(local_steps=STEPS, lr=0.05, beta=beta, fraction=1.0 if some is None else 0.5)
    states = run(strategy, game, weights, some)
    agree(states, reference.local_scgd(game, ROUNDS, STEPS, 0.05, beta, weights, some))
    assert all(state.keys() == {"x"} for state in states), "the inner state stays with the client"


def test_local_scgd_starts_anew_where_a_client_lost_its_inner_state() -> None:
    game, lost = CompositionGame(K), {(2, 1), (3, 0), (5, 2)}
    strategy = LocalSCGD(local_steps=STEPS, lr=0.05, beta=0.2)
    states = run(strategy, game, lost=lost)
    agree(states, reference.local_scgd(game, ROUNDS, STEPS, 0.05, 0.2, EQUAL, lost=lost))
    assert (states[-1]["x"] - run(strategy, game)[-1]["x"]).abs().max() > 1e-4


@weighting
@participation
@pytest.mark.parametrize(("beta", "mu"), [(0.2, 0.6), (0.9, 0.3)])
def test_local_scgdm(beta: float, mu: float, some: Any, weights: list[float]) -> None:
    game = CompositionGame(K)
    strategy = LocalSCGDM(local_steps=STEPS, lr=0.05, beta=beta, mu=mu, fraction=1.0 if some is None else 0.5)
    states = run(strategy, game, weights, some)
    agree(states, reference.local_scgdm(game, ROUNDS, STEPS, 0.05, beta, mu, weights, some))


# ---------------------------------------------------------------------- degenerate cases


def same(one: Sequence[Arrays], other: Sequence[Arrays], tolerance: float = 1e-12) -> None:
    agree(one, [state["x"].numpy() for state in other], tolerance)


def test_beta_one_makes_fcsg_m_fcsg() -> None:
    game = CompositionGame(K)
    same(run(FCSGM(local_steps=STEPS, lr=0.05, beta=1.0), game), run(FCSG(local_steps=STEPS, lr=0.05), game), 0.0)


def test_beta_one_makes_acc_fcsg_m_fcsg() -> None:
    game = CompositionGame(K)
    accelerated = AccFCSGM(local_steps=STEPS, lr=0.05, beta=1.0, initial_batch=game.outer)
    same(run(accelerated, game), run(FCSG(local_steps=STEPS, lr=0.05), game))


def test_with_one_inner_sample_that_all_share_the_composition_is_fcsgs() -> None:
    """With one η and β = 1, s is what FCSG has inside f; so are both gradients. μ = 1 takes the momentum away."""
    game = CompositionGame(K, outer=1)
    plain = run(FCSG(local_steps=STEPS, lr=0.05), game)
    same(run(LocalSCGD(local_steps=STEPS, lr=0.05, beta=1.0), game), plain)
    same(run(LocalSCGDM(local_steps=STEPS, lr=0.05, beta=1.0, mu=1.0), game), plain)


class Identity(RegressionOracle):
    """The regression game as a composition: f is its loss, g(x) = x."""

    def inner(self, x: Tensor, batch: Batch | None) -> Tensor:
        return x.clone()

    def compositional_gradient(self, x: Tensor, s: Tensor, batch: Batch | None) -> Tensor:
        return self.gradient(s, None, batch)[0]


@pytest.mark.parametrize(
    "strategy",
    [
        FCSG(local_steps=STEPS, lr=0.05),
        FCSGM(local_steps=STEPS, lr=0.05, beta=1.0),
        AccFCSGM(local_steps=STEPS, lr=0.05, beta=1.0, initial_batch=6),
        LocalSCGD(local_steps=STEPS, lr=0.05, beta=1.0),
        LocalSCGDM(local_steps=STEPS, lr=0.05, beta=1.0, mu=1.0),
    ],
    ids=lambda strategy: strategy.name,
)
def test_with_the_identity_inside_it_is_fedavg(strategy: FederatedStrategy) -> None:
    game = RegressionGame(K)
    start = {"x": torch.from_numpy(game.x)}
    composed = drive(strategy, start, lambda site, r: Identity(game, site, r), ROUNDS, K)  # type: ignore[return-value]
    same(composed, drive(FedAvg(local_steps=STEPS, lr=0.05), start, regression_oracles(game), ROUNDS, K))


def test_one_momentum_and_one_recursive_momentum_serve_all_methods() -> None:
    """No second copy: the minimax methods take theirs from the same two files."""
    assert all(user.momentum is momentum.momentum for user in (fcsg, local_scgd, momentum_sgda))  # type: ignore[attr-defined]
    assert issubclass(adafgda.AdaFgda, fgda.Fgda)
    for user in (acc_fcsg_m, fmgda, fgda):
        assert user.corrected is recursive_momentum.corrected  # type: ignore[attr-defined]
        assert user.initial_estimate is recursive_momentum.initial_estimate  # type: ignore[attr-defined]


def test_momentum_and_correction_matter_where_beta_is_below_one() -> None:
    game = CompositionGame(K)
    plain = run(FCSG(local_steps=STEPS, lr=0.05), game)[-1]["x"]
    others = [FCSGM(local_steps=STEPS, lr=0.05), AccFCSGM(local_steps=STEPS, lr=0.05, initial_batch=game.outer)]
    ends = [plain, *(run(strategy, game)[-1]["x"] for strategy in others)]
    assert all((a - b).abs().max() > 1e-3 for a, b in ((ends[0], ends[1]), (ends[0], ends[2]), (ends[1], ends[2])))


class SameOuter(InvariantLogistic):
    """Draws the same outer samples whatever m is: each batch has a stream of its own, and they come first in it."""

    batches = 0
    draws_ahead = 0

    def draw(self, samples: None, sampler: None, generator: torch.Generator, size: int) -> Batch | None:
        self.batches += 1
        return super().draw(samples, sampler, torch.Generator().manual_seed(self.batches), size)


@pytest.mark.parametrize("name", ["fcsg", "fcsg-m", "acc-fcsg-m"])
def test_with_ever_more_inner_samples_the_path_is_that_of_the_exact_inner_expectation(name: str) -> None:
    def end(inner: int, ratio: float) -> Tensor:
        problem = SameOuter(Setting(dtype=torch.float64), inner_samples=inner, dimension=4, sigma_ratio=ratio)
        strategy = ALGORITHMS[name](local_steps=STEPS, lr=0.5)  # type: ignore[call-arg]
        oracle = SiteOracle(problem, None, None, torch.Generator(), 4)
        return drive(strategy, problem.initial(), lambda site, r: oracle, ROUNDS, 2)[-1]["x"]

    exact = end(1, 0.0)
    distances = [float((end(m, 1.0) - exact).norm()) for m in (10, 300, 9000)]
    assert distances[0] > 3 * distances[1] > 9 * distances[2]  # the noise falls like 1/√m
    assert distances[2] < 0.02 * float(exact.norm())


# ---------------------------------------------------------------------- in a run


JOB: dict[str, Any] = {"problem": "invariant-logistic", "sites": 3, "rounds": 2, "local-steps": 3, "workers": 1}


@pytest.mark.parametrize(
    ("algorithm", "vectors_down", "vectors_up", "gradients"),
    [("fcsg", (1, 1), (1, 1), (3, 3)), ("fcsg-m", (1, 2), (2, 2), (3, 3)), ("acc-fcsg-m", (1, 2), (2, 2), (7, 6))],
)
def test_what_is_exchanged_and_computed_is_what_the_paper_says(
    algorithm: str,
    vectors_down: tuple[int, int],
    vectors_up: tuple[int, int],
    gradients: tuple[int, int],
    tmp_path: Path,
) -> None:
    """In the first round and in the second; a vector is ten numbers of four bytes, and there are three sites."""
    records = simulate(JOB | {"algorithm": algorithm, "batch-size": 2, "runs-dir": str(tmp_path)}).metrics
    assert tuple(record["bytes-down"] for record in records) == tuple(3 * 40 * n for n in vectors_down)
    assert tuple(record["bytes-up"] for record in records) == tuple(3 * 40 * n for n in vectors_up)
    assert tuple(record["gradients"] for record in records) == tuple(3 * n for n in gradients)
    assert records[0]["samples"] == 3 * 2 * gradients[0], "two outer samples each"


@pytest.mark.parametrize(("algorithm", "down", "up"), [("local-scgd", (1, 1), (1, 1)), ("local-scgdm", (1, 3), (3, 3))])
def test_the_inner_state_travels_only_where_it_is_averaged(
    algorithm: str, down: tuple[int, int], up: tuple[int, int], tmp_path: Path
) -> None:
    """Of maml it is as long as x. A gradient and the inner value that it is taken at count once; samples are tasks."""
    keys = {"problem": "maml", "dataset": "digits", "partition": "iid", "model": "linear"}
    keys |= {"maml.ways": 3, "maml.queries": 4}
    keys |= {"algorithm": algorithm, "batch-size": 2, "evaluate-every": 0, "runs-dir": str(tmp_path)}
    result = simulate(JOB | keys)
    vector = 4 * len(result.arrays["x"])
    assert tuple(record["bytes-down"] for record in result.metrics) == tuple(3 * vector * n for n in down)
    assert tuple(record["bytes-up"] for record in result.metrics) == tuple(3 * vector * n for n in up)
    assert [(record["gradients"], record["samples"]) for record in result.metrics] == [(3 * 3, 3 * 3 * 2)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fcsg", "fcsg-m", "acc-fcsg-m"])
def test_invariant_logistic_regression_is_learned(algorithm: str, tmp_path: Path) -> None:
    keys = {"algorithm": algorithm, f"{algorithm}.lr": 0.05, "rounds": 25, "local-steps": 20, "runs-dir": str(tmp_path)}
    records = simulate(JOB | keys | {"batch-size": 4}).metrics
    assert records[-1]["accuracy"] > 0.97
    assert records[-1]["loss"] < 0.7 * records[0]["loss"]


# ---------------------------------------------------------------------- bad input


def refused(keys: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse({"algorithm": "fcsg", "problem": "invariant-logistic", **keys})
    return "\n".join(caught.value.problems)


@pytest.mark.parametrize("algorithm", ["local-scgd", "local-scgdm"])
@pytest.mark.parametrize("problem", ["invariant-logistic", "auprc"])
def test_scgd_refuses_a_problem_without_a_fixed_inner_function(algorithm: str, problem: str) -> None:
    text = refused({"algorithm": algorithm, "problem": problem})
    assert text.startswith(
        f"algorithm = {algorithm!r} cannot solve problem = {problem!r}, a conditional problem that offers no "
        "inner function: take algorithm acc-fcsg-m or "
    )
    assert text.endswith(", or problem maml")


def test_m_and_b_are_at_least_one() -> None:
    for value in (0, -1, 1.5):
        assert refused({"batch-size": value}).startswith(f"batch-size = {value}: ")
        said = f"invariant-logistic.inner-samples = {value}: must be an integer >= 1"
        assert refused({"invariant-logistic.inner-samples": value}).startswith(said)


LOGISTIC = 'problem="invariant-logistic" algorithm="fcsg"'
MAML = 'problem="maml" algorithm="local-scgdm" dataset="digits" partition="iid"'


@pytest.mark.parametrize(
    ("job", "code", "said"),
    [
        (f"{MAML} maml.ways=11 maml.queries=5", 1, ["10 classes with at least 6 samples", "ways = 11: lower"]),
        (f"{MAML} maml.queries=500", 1, ["0 classes with at least 501", "queries = 500", "ways = 5: lower"]),
        (f"{MAML} maml.shots=0", 2, ["shots = 0: ", ">= 1"]),
        ('problem="auprc" algorithm="local-scgd"', 2, ["algorithm = 'local-scgd'", "problem maml"]),
        ('problem="invariant-logistic" algorithm="local-scgdm"', 2, ["algorithm = 'local-scgdm'", "problem maml"]),
        (f"{LOGISTIC} invariant-logistic.inner-samples=0", 2, ["inner-samples = 0: ", ">= 1"]),
        (f"{LOGISTIC} batch-size=0", 2, ["batch-size = 0: "]),
    ],
)
def test_a_user_reads_one_message_and_no_traceback(
    job: str, code: int, said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--run-config", f'workers=1 device="cpu" runs-dir="{tmp_path}/runs"', "--run-config", job]) == code
    out, err = capsys.readouterr()
    assert [part for part in said if part not in err] == []
    assert err.startswith("error: " if code == 1 else "1 problem in the run-config:")
    assert "Traceback" not in out + err
    assert not list(tmp_path.glob("runs/*/metrics.jsonl")), "before anything is trained"
