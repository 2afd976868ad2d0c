"""Personalised and decentralised methods: their equations, their limits, and the masks of DisPFL."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edelweiss.client_app.oracle import SiteOracle
from edelweiss.datasets import Samples, make_sampler
from edelweiss.federation import Differences, Oracle
from edelweiss.problems.cross_entropy import CrossEntropy
from edelweiss.strategies.d_psgd import DPSGD
from edelweiss.strategies.deprl import DePRL
from edelweiss.strategies.dispfl import DisPFL, erk, packed, unpacked
from edelweiss.strategies.ditto import Ditto
from edelweiss.strategies.fedavg import FedAvg
from edelweiss.strategies.fedrep import FedRep
from edelweiss.strategies.fedrod import FedRoD
from edelweiss.strategies.graphs import mixing_graph
from edelweiss.strategies.local_only import Alone
from edelweiss.strategies.local_sgda import LocalSGDA
from tests.problems.example import make
from tests.reference import algorithms
from tests.reference import personalised as reference
from tests.reference.games import RegressionGame, Vector
from tests.strategies.halves import Arrays, OpenOracle, drive
from tests.strategies.personalised import GAMES, LAYERS, PATH, PLAN, PRIMAL, RING, SPLIT, STAGES, held, setting
from tests.strategies.settings import ROUNDS, SOME, WEIGHTS, Everyone, K, share

SGD = {"decay": 0.9, "weight_decay": 0.02, "momentum": 0.6, "clip": 1.5}
by_game = pytest.mark.parametrize("name", GAMES)
# That it makes no difference who mixes is tested on the messages of whole runs.
by_mixing = pytest.mark.parametrize(("edges", "mixing", "sgd"), [("ring", "server", {}), ("path", "client", SGD)])
by_turnout = pytest.mark.parametrize(
    ("some", "weights", "sgd"),
    [(None, None, {}), (None, WEIGHTS, SGD), (SOME, WEIGHTS, SGD)],
    ids=["all", "all-weighted", "some-weighted"],
)


def agree(history: list[list[Arrays]], expected: list[reference.Models]) -> None:
    assert len(history) == len(expected) == ROUNDS
    for r, (models, wanted) in enumerate(zip(history, expected, strict=True), 1):
        for k, (model, (x, y)) in enumerate(zip(models, wanted, strict=True)):
            np.testing.assert_allclose(model["x"].numpy(), x, rtol=0, atol=1e-9, err_msg=f"x of {k} after round {r}")
            if len(y):
                np.testing.assert_allclose(model["y"].numpy(), y, rtol=0, atol=1e-9, err_msg=f"y of {k}, round {r}")
    moved = [max(np.abs(new[0] - old[0]).max() for new, old in zip(*pair, strict=True)) for pair in pairwise(expected)]
    assert min(moved) > 1e-6, "it stood still"
    assert np.abs(expected[-1][0][0] - expected[-1][2][0]).max() > 1e-3, "the clients' models differ"


# ---------------------------------------------------------------------- equations


def graph(name: str, folder: Path) -> tuple[dict[str, Any], np.ndarray]:
    """Return the fields for a graph, and its W."""
    if name == "ring":
        return {}, reference.metropolis(RING, K)
    (folder / "path.csv").write_text("".join(f"{i},{j}\n" for i, j in PATH), encoding="utf-8")
    return {"topology": "file", "graph_file": str(folder / "path.csv")}, reference.metropolis(PATH, K)


@pytest.mark.slow
@by_mixing
@by_game
def test_d_psgd(name: str, sgd: dict[str, float], edges: str, mixing: str, tmp_path: Path) -> None:
    game, x, y, start, oracles = setting(name)
    fields, w = graph(edges, tmp_path)
    strategy = DPSGD(**STAGES, **fields, **sgd, lr=0.03, lr_dual=0.05, mixing=mixing)
    expected = reference.d_psgd(game, x, y, PLAN, 0.03, 0.05, lambda _: w, reference.Sgd(**sgd))
    for wire in (False, True):
        agree(held(strategy, start, oracles, wire=wire), expected)


@pytest.mark.parametrize("mixing", ["server", "client"])
def test_d_psgd_on_a_graph_that_each_round_draws(mixing: str) -> None:
    """W of the mixing after round r is that of r, also in the last evaluation, whose mix no round begins with."""
    game, x, y, start, oracles = setting("minimisation")
    graphs = [mixing_graph("random", K, 7, 1.5, drawn=r).matrix() for r in range(ROUNDS + 1)]
    assert len({w.tobytes() for w in graphs}) > 3
    own = {"topology": "random", "mean_degree": 1.5, "regraph": "every-round", "seed": 7}
    strategy = DPSGD(**STAGES, **own, lr=0.03, mixing=mixing)
    expected = reference.d_psgd(game, x, y, PLAN, 0.03, 0, lambda r: graphs[r])
    for wire in (False, True):
        agree(held(strategy, start, oracles, wire=wire), expected)
    state = drive(strategy, start, oracles, ROUNDS, K)
    for r, (xs, w) in enumerate(zip(expected, graphs[1:], strict=True), 1):
        told = strategy.measures(state[r - 1], strategy.context(r, ROUNDS, "train", K))
        mean = np.mean([x for x, _ in xs], axis=0)
        assert told["consensus-error"] == pytest.approx(np.mean([np.square(x - mean).sum() for x, _ in xs]))
        assert told["spectral-gap"] == pytest.approx(1 - sorted(abs(np.linalg.eigvalsh(w)))[-2])


@pytest.mark.parametrize("sgd", [{}, SGD], ids=["plain", "sgd"])
@by_game
def test_alone(name: str, sgd: dict[str, float]) -> None:
    game, x, y, start, oracles = setting(name)
    strategy = Alone(**STAGES, **sgd, lr=0.03, lr_dual=0.05)
    expected = reference.d_psgd(game, x, y, PLAN, 0.03, 0.05, lambda _: np.eye(K), reference.Sgd(**sgd))
    agree(held(strategy, start, oracles), expected)


@by_turnout
def test_fedavg(sgd: dict[str, float], some: Everyone, weights: list[float] | None) -> None:
    game, x, y, start, oracles = setting("minimisation")
    strategy = FedAvg(**STAGES, **sgd, lr=0.03, fraction=share(some))
    _, expected = reference.ditto(game, x, y, PLAN, 0.03, 0, 0, weights or [1.0] * K, some, reference.Sgd(**sgd))
    states = drive(strategy, start, oracles, ROUNDS, K, weights=weights, participants=some)
    for state, (w, _) in zip(states, expected, strict=True):
        np.testing.assert_allclose(state["x"].numpy(), w, rtol=0, atol=1e-9)


UNITS = [("steps", "steps"), ("epochs", "steps"), ("steps", "epochs"), ("epochs", "epochs")]
by_unit = pytest.mark.parametrize(("head_unit", "body_unit"), UNITS)


def heads_of(oracles: OpenOracle) -> list[Vector]:
    """Return the sites' first heads, which differ."""
    heads = [oracles(k, 1).fresh()["head"].numpy() for k in range(K)]
    assert all((one != other).any() for one, other in pairwise(heads))
    return heads


@pytest.mark.slow
@by_mixing
@by_game
def test_deprl(name: str, sgd: dict[str, float], edges: str, mixing: str, tmp_path: Path) -> None:
    game, x, y, start, oracles = setting(name)
    fields, w = graph(edges, tmp_path)
    lrs = (0.03, 0.04, 0.05)
    own = dict(zip(("lr_head", "lr_body", "lr_dual"), lrs, strict=True))
    strategy = DePRL(**STAGES, **fields, **own, **sgd, body_steps=2, mixing=mixing)
    expected = reference.head_and_body(
        game,
        x[:SPLIT],
        heads_of(oracles),
        y,
        PLAN,
        lrs,
        2,
        lambda bodies, _: reference.mixed(w, bodies),
        reference.Sgd(**{"decay": 0.96, "weight_decay": 1e-5, **sgd}),
    )
    for wire in (False, True):
        agree(held(strategy, start, oracles, wire=wire), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["regression-clipped", "minimisation"])
@by_unit
def test_deprl_in_epochs(name: str, head_unit: str, body_unit: str) -> None:
    game, x, y, start, oracles = setting(name)
    units = {"head_unit": head_unit, "body_unit": body_unit}
    strategy = DePRL(**STAGES, **SGD, **units, lr_head=0.03, lr_body=0.02, lr_dual=0.05)
    w = reference.metropolis(RING, K)
    expected = reference.head_and_body(
        game,
        x[:SPLIT],
        heads_of(oracles),
        y,
        PLAN,
        (0.03, 0.02, 0.05),
        1,
        lambda bodies, _: reference.mixed(w, bodies),
        reference.Sgd(**SGD),
        epochs=(head_unit == "epochs", body_unit == "epochs"),
    )
    agree(held(strategy, start, oracles), expected)


def averaged(weights: list[float] | None) -> Callable[[list[Vector], list[int]], list[Vector]]:
    """Return what the server makes of the vectors of those who took part."""
    return lambda vectors, chosen: [algorithms.weighted(vectors, [(weights or [1.0] * K)[k] for k in chosen])] * K


@pytest.mark.slow
@by_turnout
@by_game
def test_fedrep(name: str, sgd: dict[str, float], some: Everyone, weights: list[float] | None) -> None:
    game, x, y, start, oracles = setting(name)
    lrs = (0.03, 0.04, 0.05)
    strategy = FedRep(**STAGES, **sgd, lr_head=0.03, lr_body=0.04, lr_dual=0.05, fraction=share(some))
    expected = reference.head_and_body(
        game, x[:SPLIT], heads_of(oracles), y, PLAN, lrs, 1, averaged(weights), reference.Sgd(**sgd), some
    )
    options = {"weights": weights, "participants": some}
    for wire in (False, True):
        agree(held(strategy, start, oracles, wire=wire, **options), expected)


@by_turnout
@by_game
def test_ditto(name: str, sgd: dict[str, float], some: Everyone, weights: list[float] | None) -> None:
    game, x, y, start, oracles = setting(name)
    strategy = Ditto(**STAGES, **sgd, lr=0.03, lr_dual=0.05, lam=0.7, fraction=share(some))
    own_sgd = reference.Sgd(**sgd)
    expected, common = reference.ditto(game, x, y, PLAN, 0.03, 0.05, 0.7, weights or [1.0] * K, some, own_sgd)
    options = {"weights": weights, "participants": some}
    for wire in (False, True):
        agree(held(strategy, start, oracles, wire=wire, **options), expected)
    for state, (w, _) in zip(drive(strategy, start, oracles, ROUNDS, K, **options), common, strict=True):
        np.testing.assert_allclose(state["x"].numpy(), w, rtol=0, atol=1e-9)


@by_mixing
@by_game
def test_dispfl(name: str, sgd: dict[str, float], edges: str, mixing: str, tmp_path: Path) -> None:
    """From given first masks: those that the sites draw."""
    game, x, y, start, oracles = setting(name)
    fields, w = graph(edges, tmp_path)
    strategy = DisPFL(**STAGES, **fields, **sgd, lr=0.03, lr_dual=0.05, density=0.5, prune=0.6, mixing=mixing)
    masks = [strategy._drawn(PRIMAL, oracles(k, 1)).numpy() for k in range(K)]
    assert len({mask.tobytes() for mask in masks}) > 1, "each site draws its own"
    expected = reference.dispfl(game, x, y, PLAN, 0.03, 0.05, 0.6, LAYERS, masks, w, reference.Sgd(**sgd))
    for wire in (False, True):
        agree(held(strategy, start, oracles, wire=wire), expected)
    state = drive(strategy, start, oracles, ROUNDS, K)[-1]
    last = np.array([unpacked(state[f"mask-{k}"], torch.device("cpu")).numpy() for k in range(K)])
    assert (last[:, :6].sum(1) == masks[0][:6].sum()).all(), "the density stays"
    assert any((now != mask).any() for now, mask in zip(last, masks, strict=True)), "masks move"


class SoftmaxOracle(Differences):
    """A client of a `SoftmaxGame`, with the product's own cross-entropy on a network of two layers."""

    def __init__(self, game: reference.SoftmaxGame, problem: CrossEntropy, site: int, server_round: int) -> None:
        self.game, self.problem, self.site, self.round, self.step = game, problem, site, server_round, 0
        self.head, self.counts = problem.head, torch.from_numpy(game.labels[site]).bincount()

    def draw(self, size: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.game.rows(self.site, self.round, self.step)
        self.step += 1
        return torch.from_numpy(self.game.inputs[self.site][rows]), torch.from_numpy(self.game.labels[self.site][rows])

    def gradient(self, x: torch.Tensor, y: None, batch: Any) -> Any:
        return self.problem.gradient(x, y, batch)

    def balanced_gradient(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
        return self.problem.balanced(self.counts).gradient(x, None, batch)[0]

    def fresh(self) -> Arrays:
        return self.problem.fresh()


@by_turnout
def test_fedrod(sgd: dict[str, float], some: Everyone, weights: list[float] | None) -> None:
    """With the network, its balanced loss and its head; sites lack classes, the last one too."""
    game = reference.SoftmaxGame(K)
    body = torch.nn.Sequential(torch.nn.Linear(game.features, game.hidden), torch.nn.ReLU())
    module = torch.nn.Sequential(body, torch.nn.Linear(game.hidden, game.classes))
    problem = make("cross-entropy", model=module, classes=game.classes)
    assert problem.head == game.split
    strategy = FedRoD(**STAGES, **sgd, lr=0.1, lr_head=0.2, fraction=share(some))
    expected = reference.fedrod(game, PLAN, 0.1, 0.2, weights or [1.0] * K, some, reference.Sgd(**sgd))

    def oracles(site: int, server_round: int) -> Oracle:
        return SoftmaxOracle(game, problem, site, server_round)  # type: ignore[return-value]

    start = {"x": torch.from_numpy(game.x.copy())}
    for wire in (False, True):
        history = held(strategy, start, oracles, weights=weights, participants=some, wire=wire)
        agree(history, [[(x, np.zeros(0)) for x in models] for models in expected])


# ---------------------------------------------------------------------- one algorithm is another at its limit


def same(one: list[list[Arrays]], other: list[list[Arrays]], atol: float = 1e-10) -> None:
    assert len(one) == len(other) > 1
    for models, others in zip(one, other, strict=True):
        for model, twin in zip(models, others, strict=True):
            assert model.keys() == twin.keys()
            assert all(torch.allclose(model[name], twin[name], rtol=0, atol=atol) for name in model)
    assert float((one[-1][0]["x"] - one[0][0]["x"]).abs().max()) > 1e-4, "nothing moved"


@pytest.mark.parametrize("steps", [1, 3])
def test_on_a_full_graph_d_psgd_is_fedavg(steps: int) -> None:
    """With one local step that is parallel SGD; it holds for any number, as all weights are 1/K."""
    _, _, _, start, oracles = setting("minimisation")
    models = held(DPSGD(local_steps=steps, lr=0.03, topology="full"), start, oracles)
    common = drive(FedAvg(local_steps=steps, lr=0.03), start, oracles, ROUNDS, K)
    same(models, [[{"x": state["x"]}] * K for state in common])


def test_deprl_without_a_head_is_d_psgd() -> None:
    """Steps on the head change nothing then; batches differ from step to step, so there is one, on the same batch."""
    game, _, _, start, oracles = setting("minimisation", head=PRIMAL)
    game.rows = lambda client, round, step: RegressionGame.rows(game, client, round, 0)
    deprl = DePRL(local_steps=1, body_steps=3, lr_body=0.03, decay=1.0, weight_decay=0.0)
    same(held(deprl, start, oracles), held(DPSGD(local_steps=3, lr=0.03), start, oracles))


def test_on_a_full_graph_deprl_is_fedrep() -> None:
    _, _, _, start, oracles = setting("regression")
    lrs = {"local_steps": 3, "lr_head": 0.03, "lr_body": 0.04, "lr_dual": 0.05}
    deprl = DePRL(**lrs, topology="full", decay=1.0, weight_decay=0.0)
    same(held(deprl, start, oracles), held(FedRep(**lrs), start, oracles))


@by_game
def test_ditto_without_a_pull_is_alone_and_its_common_model_is_that_of_local_sgda(name: str) -> None:
    _, _, _, start, oracles = setting(name)
    steps = {"local_steps": 3, "lr": 0.03, "lr_dual": 0.05}
    for sgd in ({}, SGD):
        same(held(Ditto(**steps, **sgd, lam=0.0), start, oracles), held(Alone(**steps, **sgd), start, oracles), atol=0)
    plain = LocalSGDA(**steps) if "y" in start else FedAvg(local_steps=3, lr=0.03)
    for lam in (0.0, 2.0):
        states = zip(*(drive(s, start, oracles, 4, K) for s in (Ditto(**steps, lam=lam), plain)), strict=True)
        assert all(torch.equal(one[n], other[n]) for one, other in states for n in start)


def test_with_batch_norm_too_ditto_without_a_pull_is_alone_wherever_the_common_model_goes() -> None:
    """Not only x: the statistics that v is evaluated with are of its own forward passes."""
    ends = []
    for strategy in (Ditto(lr=0.3, lam=0.0, local_steps=10), Alone(lr=0.3, local_steps=10)):
        torch.manual_seed(0)
        body = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU())
        problem = make("cross-entropy", model=torch.nn.Sequential(body, torch.nn.Linear(4, 2)), dtype=torch.float32)
        inputs = torch.randn(64, 3)
        samples = Samples(inputs, (inputs[:, 0] > 0).long(), torch.arange(64))
        start, memory = problem.initial()["x"].clone(), {}
        for r in range(1, 4):
            generator = torch.Generator().manual_seed(r)
            sampler = make_sampler("uniform", samples.targets(), 16, 0, generator)
            oracle = SiteOracle(problem, samples, sampler, generator, 16)
            _, memory = strategy.local_update(
                {"x": start + (r > 1)}, memory, oracle, strategy.context(r, 3, "train", 1)
            )
        ends.append((memory["x"], problem.buffers()))
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])


@by_game
def test_dispfl_at_density_1_is_d_psgd(name: str) -> None:
    _, _, _, start, oracles = setting(name)
    steps = {"local_steps": 3, "lr": 0.03, "lr_dual": 0.05}
    same(held(DisPFL(**steps, density=1.0), start, oracles), held(DPSGD(**steps), start, oracles))


@pytest.mark.parametrize("topology", ["ring", "star", "full", "random"])
def test_one_worker_is_alone(topology: str) -> None:
    _, _, _, start, oracles = setting("regression")
    steps = {"local_steps": 3, "lr": 0.03, "lr_dual": 0.05}
    for mixing in ("server", "client"):
        one = held(DPSGD(**steps, topology=topology, mixing=mixing), start, oracles, sites=1)
        same(one, held(Alone(**steps), start, oracles, sites=1), atol=0)


# ---------------------------------------------------------------------- masks


@pytest.mark.parametrize("density", [0.05, 0.3, 0.5, 0.9, 1.0])
def test_erk_spreads_the_density_by_shape(density: float) -> None:
    shapes = [(64, 3, 3, 3), (128, 64, 3, 3), (512, 2048), (10, 512)]
    sizes, got = np.array([np.prod(s) for s in shapes]), np.array(erk(shapes, density))
    assert float(got @ sizes) == pytest.approx(density * sizes.sum())
    assert ((got > 0) & (got <= 1 + 1e-12)).all()
    sparse = got < 1 - 1e-9
    raw = np.array([sum(s) for s in shapes]) / sizes
    ratios = got[sparse] / raw[sparse]
    assert sparse.all() == (density == 0.05) or not sparse.all()
    if sparse.any():
        np.testing.assert_allclose(ratios, ratios[0])
        assert all(raw[~sparse] * ratios[0] >= 1 - 1e-9), "what is dense would be more than that"


def test_no_layer_is_without_weights() -> None:
    """However low the density, and through all rounds; biases are there always."""
    _, _, _, start, oracles = setting("minimisation")
    for state in drive(DisPFL(local_steps=2, lr=0.03, density=1e-6), start, oracles, 4, K):
        for k in range(K):
            mask = unpacked(state[f"mask-{k}"], torch.device("cpu"))
            assert [int(mask[span].sum()) for span, _ in LAYERS] == [1, 2, 1]


@pytest.mark.parametrize("size", [1, 7, 8, 9, 64, 331])
def test_a_mask_is_packed_into_bits_and_back(size: int) -> None:
    torch.manual_seed(size)
    for mask in (torch.rand(size) < 0.5, torch.zeros(size, dtype=torch.bool), torch.ones(size, dtype=torch.bool)):
        code = packed(mask)
        assert code.dtype == torch.uint8
        assert len(code) == size // 8 + 1
        assert torch.equal(unpacked(code, torch.device("cpu")), mask)
