"""Personalised and decentralised methods: their equations, their limits, what is sent, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from safetensors.torch import load_file

from client_app.memory import Memory
from client_app.oracle import SiteOracle
from config import ConfigError, RunConfig
from datasets import Samples, make_sampler
from federation import FederatedStrategy, Oracle, Site, StrategyError, unpack
from models import ModelError
from problems.cross_entropy import CrossEntropy
from server_app import simulate
from server_app.console import Progress
from server_app.coordinator import coordinate
from server_app.local import LocalGrid, unused_run_id
from strategies import ALGORITHMS
from strategies.alone import Alone
from strategies.d_psgd import DPSGD
from strategies.decentralised import Decentralised
from strategies.deprl import DePRL
from strategies.dispfl import DisPFL, erk, packed, unpacked
from strategies.ditto import Ditto
from strategies.fedavg import FedAvg
from strategies.fedrep import FedRep
from strategies.fedrod import FedRoD
from strategies.local_sgda import LocalSGDA
from tests.problems.example import make
from tests.reference import algorithms
from tests.reference import personalised as reference
from tests.reference.games import RegressionGame, SaddleGame, Vector
from tests.strategies.halves import Arrays, Layers, OpenOracle, drive, parted, regression_oracles, saddle_oracles

K, ROUNDS = 4, 8
STAGES: dict[str, Any] = {
    "local_steps": 2,
    "stage_iterations": 6,
    "stage_decay": 2.0,
    "stage_growth": 2.0,
    "stage_steps_growth": 2.0,
}
PLAN = algorithms.plan(ROUNDS, 2, 6, decay=2, growth=2, steps_growth=2)
WEIGHTS = [1.0, 5.0, 2.0, 0.5]
SOME = [(0, 1), (2, 3), (0, 2), (0, 1), (1, 3), (0, 2), (1, 2), (0, 3)]
PRIMAL, SPLIT = 12, 7
LAYERS: Layers = ((slice(0, 6), (2, 3)), (slice(6, 8), (2,)), (slice(8, 12), (2, 2)))
GAMES = ["saddle", "regression", "regression-clipped", "minimisation"]
PATH = {(0, 1), (1, 2), (1, 3)}  # another graph than the ring
RING = {(0, 1), (1, 2), (2, 3), (0, 3)}


def setting(name: str, head: int = SPLIT) -> tuple[Any, Vector, Vector, Arrays, OpenOracle]:
    """Return a game, its start in NumPy and in torch, and the product's oracles of the same objective."""
    random = np.random.default_rng(5)
    if name == "saddle":
        slopes, offsets = random.uniform(0, 2, K), random.normal(0, 3, (K, PRIMAL))
        game: Any = SaddleGame(slopes, offsets)
        x, y = random.normal(size=PRIMAL), random.normal(size=PRIMAL)
        oracles = saddle_oracles(slopes, offsets)
    else:
        game = RegressionGame(K, clip=name.endswith("clipped"), primal=PRIMAL)
        x, y, oracles = game.x, game.y if name != "minimisation" else np.zeros(0), regression_oracles(game)
    start = {"x": torch.from_numpy(x.copy())} | ({"y": torch.from_numpy(y.copy())} if len(y) else {})
    return game, x, y, start, parted(oracles, start, head, LAYERS)


def everybody(weights: Sequence[float] | None = None) -> list[Site]:
    return [Site(k, f"site-{k}", k + 1, 1.0 if weights is None else weights[k]) for k in range(K)]


def held(
    strategy: FederatedStrategy,
    start: Arrays,
    oracles: OpenOracle,
    rounds: int = ROUNDS,
    sites: int = K,
    **options: Any,
) -> list[list[Arrays]]:
    """Return the model of each site after each round: what it would evaluate."""
    memories: list[dict[int, Arrays]] = []
    states = drive(strategy, start, oracles, rounds, sites, memories=memories, **options)
    history = []
    for r, (state, memory) in enumerate(zip(states, memories, strict=True), 1):
        turn = strategy.turn(r, rounds, "train", sites)
        after = [strategy.broadcast(state, turn, Site(k, "", k + 1)) for k in range(sites)]
        fresh = [oracles(k, r).fresh() for k in range(sites)]
        history.append([strategy.personal(after[k], memory[k], fresh[k]) for k in range(sites)])
    return history


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


@pytest.mark.parametrize("mixing", ["server", "client"])
@pytest.mark.parametrize("edges", ["ring", "path"])
@pytest.mark.parametrize("name", GAMES)
def test_d_psgd(name: str, edges: str, mixing: str, tmp_path: Path) -> None:
    game, x, y, start, oracles = setting(name)
    fields, w = graph(edges, tmp_path)
    strategy = DPSGD(**STAGES, **fields, lr=0.03, lr_dual=0.05, mixing=mixing)
    expected = reference.d_psgd(game, x, y, PLAN, 0.03, 0.05, w)
    for wire in (False, True):
        agree(held(strategy, start, oracles, wire=wire), expected)


@pytest.mark.parametrize("mixing", ["server", "client"])
@pytest.mark.parametrize("edges", ["ring", "path"])
@pytest.mark.parametrize("name", GAMES)
def test_deprl(name: str, edges: str, mixing: str, tmp_path: Path) -> None:
    game, x, y, start, oracles = setting(name)
    fields, w = graph(edges, tmp_path)
    lrs, others = (0.03, 0.04, 0.05), {"body_steps": 2, "decay": 0.9, "weight_decay": 0.01}
    own = dict(zip(("lr_head", "lr_body", "lr_dual"), lrs, strict=True))
    strategy = DePRL(**STAGES, **fields, **own, **others, mixing=mixing)
    expected = reference.head_and_body(
        game, x, y, PLAN, SPLIT, lrs, 2, lambda bodies, _: reference.mixed(w, bodies), 0.9, 0.01
    )
    for wire in (False, True):
        agree(held(strategy, start, oracles, wire=wire), expected)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])
@pytest.mark.parametrize("some", [None, SOME], ids=["all", "some"])
@pytest.mark.parametrize("name", GAMES)
def test_fedrep(name: str, some: list[tuple[int, int]] | None, weights: list[float] | None) -> None:
    game, x, y, start, oracles = setting(name)
    lrs = (0.03, 0.04, 0.05)
    strategy = FedRep(**STAGES, lr_head=0.03, lr_body=0.04, lr_dual=0.05, fraction=1.0 if some is None else 0.5)

    def averaged(bodies: list[Vector], chosen: list[int]) -> list[Vector]:
        return [algorithms.weighted(bodies, [(weights or [1.0] * K)[k] for k in chosen])] * K

    expected = reference.head_and_body(game, x, y, PLAN, SPLIT, lrs, 1, averaged, participants=some)
    options = {"weights": weights, "participants": some}
    for wire in (False, True):
        agree(held(strategy, start, oracles, wire=wire, **options), expected)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])
@pytest.mark.parametrize("some", [None, SOME], ids=["all", "some"])
@pytest.mark.parametrize("name", GAMES)
def test_ditto(name: str, some: list[tuple[int, int]] | None, weights: list[float] | None) -> None:
    game, x, y, start, oracles = setting(name)
    strategy = Ditto(**STAGES, lr=0.03, lr_dual=0.05, lam=0.7, fraction=1.0 if some is None else 0.5)
    expected, common = reference.ditto(game, x, y, PLAN, 0.03, 0.05, 0.7, weights or [1.0] * K, some)
    options = {"weights": weights, "participants": some}
    for wire in (False, True):
        agree(held(strategy, start, oracles, wire=wire, **options), expected)
    for state, (w, _) in zip(drive(strategy, start, oracles, ROUNDS, K, **options), common, strict=True):
        np.testing.assert_allclose(state["x"].numpy(), w, rtol=0, atol=1e-9)


@pytest.mark.parametrize("mixing", ["server", "client"])
@pytest.mark.parametrize("edges", ["ring", "path"])
@pytest.mark.parametrize("name", GAMES)
def test_dispfl(name: str, edges: str, mixing: str, tmp_path: Path) -> None:
    """From given first masks: those that the sites draw."""
    game, x, y, start, oracles = setting(name)
    fields, w = graph(edges, tmp_path)
    strategy = DisPFL(**STAGES, **fields, lr=0.03, lr_dual=0.05, density=0.5, prune=0.6, mixing=mixing)
    masks = [strategy._drawn(PRIMAL, oracles(k, 1)).numpy() for k in range(K)]
    assert len({mask.tobytes() for mask in masks}) > 1, "each site draws its own"
    expected = reference.dispfl(game, x, y, PLAN, 0.03, 0.05, 0.6, LAYERS, masks, w)
    for wire in (False, True):
        agree(held(strategy, start, oracles, wire=wire), expected)
    state = drive(strategy, start, oracles, ROUNDS, K)[-1]
    last = np.array([unpacked(state[f"mask-{k}"], torch.device("cpu")).numpy() for k in range(K)])
    assert (last[:, :6].sum(1) == masks[0][:6].sum()).all(), "the density stays"
    assert any((now != mask).any() for now, mask in zip(last, masks, strict=True)), "masks move"


class SoftmaxOracle:
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
        return self.problem.balanced_gradient(x, batch, self.counts)

    def fresh(self) -> Arrays:
        return self.problem.fresh()


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["uniform", "weighted"])
@pytest.mark.parametrize("some", [None, SOME], ids=["all", "some"])
def test_fedrod(some: list[tuple[int, int]] | None, weights: list[float] | None) -> None:
    """With the network, its balanced loss and its head; sites lack classes, the last one too."""
    game = reference.SoftmaxGame(K)
    body = torch.nn.Sequential(torch.nn.Linear(game.features, game.hidden), torch.nn.ReLU())
    module = torch.nn.Sequential(body, torch.nn.Linear(game.hidden, game.classes))
    problem = make("cross-entropy", model=module, classes=game.classes)
    assert problem.head == game.split
    strategy = FedRoD(**STAGES, lr=0.1, lr_head=0.2, fraction=1.0 if some is None else 0.5)
    expected = reference.fedrod(game, PLAN, 0.1, 0.2, weights or [1.0] * K, some)

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


@pytest.mark.parametrize("name", GAMES)
def test_ditto_without_a_pull_is_alone_and_its_common_model_is_that_of_local_sgda(name: str) -> None:
    _, _, _, start, oracles = setting(name)
    steps = {"local_steps": 3, "lr": 0.03, "lr_dual": 0.05}
    same(held(Ditto(**steps, lam=0.0), start, oracles), held(Alone(**steps), start, oracles), atol=0)
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
            _, memory = strategy.local_update({"x": start + (r > 1)}, memory, oracle, strategy.turn(r, 3, "train", 1))
        ends.append((memory["x"], problem.buffers()))
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])


@pytest.mark.parametrize("name", GAMES)
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


# ---------------------------------------------------------------------- what is sent

DECENTRALISED: list[Decentralised] = [
    DPSGD(local_steps=2, lr=0.03),
    DePRL(local_steps=2, lr_head=0.03, lr_body=0.03),
    DisPFL(local_steps=2, lr=0.03, prune=0.6),
]


@pytest.mark.parametrize("strategy", DECENTRALISED, ids=lambda s: s.name)
@pytest.mark.parametrize("topology", ["ring", "star", "random"])
def test_a_worker_is_sent_only_what_its_neighbours_vectors_give(strategy: Decentralised, topology: str) -> None:
    """Whatever strangers have, its message stays the same, to the bit; whatever a neighbour has, it does not."""
    sites = 7
    start, oracles = {"x": torch.randn(PRIMAL, dtype=torch.float64)}, None
    for mixing in ("server", "client"):
        half = replace(strategy, topology=topology, mean_degree=2.0, mixing=mixing)
        game = RegressionGame(sites, primal=PRIMAL)
        oracles = parted(regression_oracles(game), start, SPLIT, LAYERS)
        [*_, state] = drive(half, start, oracles, 3, sites)
        turn = half.turn(4, 5, "train", sites)
        adjacent = half._row(state, sites, 0).keys() - {0}
        assert 0 < len(adjacent) < sites - 1 or topology == "star"
        for site in range(sites):
            mine = half._row(state, sites, site).keys()
            before = half.broadcast(state, turn, Site(site, "", site + 1))
            for other in range(sites):
                changed = {f"{name}-{other}": vector for name in half.shares for vector in [state[f"{name}-{other}"]]}
                name = f"{half.shares[-1]}-{other}"
                changed[name] = changed[name] + 1
                after = half.broadcast(state | changed, turn, Site(site, "", site + 1))
                equal = before.keys() == after.keys() and all(torch.equal(before[n], after[n]) for n in before)
                told = other in mine and (mixing == "server" or other != site)
                assert equal != told, (site, other, mixing)
            if mixing == "client":
                expected = {f"{name}-{j}" for name in half.shares for j in mine} | {"weights"}
                assert set(before) == expected
                assert not any(before[f"{name}-{site}"].numel() for name in half.shares), "its own it has"


class Wire(LocalGrid):
    """The local engine; it notes the vectors of every message and answer, and what sites remember."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config, unused_run_id())
        self.seen: list[tuple[str, int, Arrays]] = []
        self.heads: list[torch.Tensor] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        for message in messages:
            self._note("down", message.metadata.dst_node_id - 1, message)
        self._remembered()
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        answers = list(super().pull_messages(message_ids))
        for answer in answers:
            self._note("up", answer.metadata.src_node_id - 1, answer)
        return answers

    def _note(self, way: str, site: int, message: Message) -> None:
        for record in message.content.array_records.values():
            self.seen.append((way, site, {n: v.clone() for n, v in unpack(record).items()}))

    def _remembered(self) -> None:
        folder = Path(self.contexts[0].node_config["state-dir"])
        for path in sorted(folder.glob("run-*/*.safetensors")):
            self.heads += [vector for name, vector in load_file(path).items() if name == "head"]


def run(folder: Path, algorithm: str, **keys: Any) -> tuple[Wire, Any]:
    """Run on breast-cancer with a small network; keys of the algorithm itself have no dot."""
    own = {f"{algorithm}.{key[4:].replace('_', '-')}": value for key, value in keys.items() if key.startswith("own_")}
    others = {key.replace("_", "-"): value for key, value in keys.items() if not key.startswith("own_")}
    common: dict[str, Any] = {"problem": "auc", "model": "mlp", "hidden": 4, "sites": 4, "rounds": 4, "local-steps": 2}
    common |= {"workers": 1, "device": "cpu", "runs-dir": str(folder / "runs"), "partition": "iid"}
    config = RunConfig.parse({"algorithm": algorithm, **common, **others, **own})
    torch.set_num_threads(1)
    with Wire(config) as grid:
        result = coordinate(config, grid, Progress(quiet=True))
    return grid, result


@pytest.mark.parametrize("mixing", ["server", "client"])
@pytest.mark.parametrize("algorithm", ["d-psgd", "deprl", "dispfl"])
def test_each_message_of_a_run_is_made_of_the_neighbours_last_answers(
    algorithm: str, mixing: str, tmp_path: Path
) -> None:
    """Read off the wire, the last evaluation too: on a ring of five everybody has two strangers."""
    sites, rounds = 5, 3
    grid, _ = run(tmp_path, algorithm, sites=sites, rounds=rounds, own_mixing=mixing)
    down, up = ([(k, arrays) for way, k, arrays in grid.seen if way == wanted and arrays] for wanted in ("down", "up"))
    assert len(down) == sites * (rounds + 1)
    assert len(up) == sites * rounds
    answers = dict(up[:sites])
    start = next(iter(down[0][1]))
    assert all(set(arrays) == {start} and torch.equal(arrays[start], down[0][1][start]) for _, arrays in down[:sites])
    for r in range(1, rounds + 1):
        for k, sent in down[sites * r : sites * (r + 1)]:
            near = sorted({(k - 1) % sites, k, (k + 1) % sites})
            if mixing == "client":
                assert sent.pop("weights").tolist() == pytest.approx([1 / 3] * 3)
                whole = {f"{name}-{j}": answers[j][name] for j in near for name in answers[j]}
                expected = {name: vector[:0] if name.endswith(f"-{k}") else vector for name, vector in whole.items()}
            elif algorithm == "dispfl":
                masks = [unpacked(answers[j]["mask"], torch.device("cpu")) for j in near]
                total, own = torch.zeros(len(masks[0])), masks[near.index(k)]
                for j, mask in zip(near, masks, strict=True):
                    total[mask] += answers[j]["values"]
                expected = {"mask": answers[k]["mask"], "values": (total / torch.stack(masks).sum(0))[own]}
            else:
                expected = {name: torch.stack([answers[j][name] for j in near]).mean(0) for name in answers[k]}
            assert sent.keys() == expected.keys()
            assert all(torch.allclose(sent[name], expected[name], rtol=0, atol=1e-6) for name in sent), (r, k)
        answers = dict(up[sites * r : sites * (r + 1)])


def entries(vector: torch.Tensor) -> set[int]:
    """Return the bits of the numbers in a vector, zeros aside."""
    return set(vector[vector != 0].float().numpy().view(np.uint32).tolist())


@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        ("deprl", {}),
        ("deprl", {"own_mixing": "client"}),
        ("deprl", {"head": "body.3"}),
        ("deprl", {"problem": "cross-entropy"}),
        ("fedrep", {}),
        ("fedrep", {"problem": "auprc"}),
        ("fedrod", {"problem": "cross-entropy"}),
    ],
    ids=str,
)
def test_heads_never_leave_the_site(algorithm: str, keys: dict[str, Any], tmp_path: Path) -> None:
    """No number of a trained head is in any message, or in any file of the run; nor is there room for one."""
    grid, result = run(tmp_path, algorithm, **keys)
    own = set().union(*map(entries, grid.heads))
    assert len(own) > 4 * 3 * 5, "four heads of at least five numbers, after three rounds"
    bodies = 0
    for way, site, arrays in grid.seen:
        for name, vector in arrays.items():
            assert not entries(vector) & own, (way, site, name)
        bodies += "body" in arrays
        if algorithm != "fedrod":
            assert all(name.partition("-")[0] in ("body", "weights") for name in arrays)
    d, head = len(result.arrays["x"]), len(grid.heads[0])
    if algorithm != "fedrod":
        sizes = {v.numel() for _, _, arrays in grid.seen for n, v in arrays.items() if n != "weights"}
        assert sizes - {0} == {d - head}, "bodies, whole, and nothing else"
    for path in (tmp_path / "runs").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            pairs = {
                h.numpy()[i : i + 2].tobytes() for h in grid.heads for i in range(len(h) - 1) if h[i : i + 2].all()
            }
            assert not any(pair in data for pair in pairs), path


@pytest.mark.parametrize("algorithm", ["d-psgd", "deprl", "dispfl"])
def test_it_makes_no_difference_who_mixes(algorithm: str, tmp_path: Path) -> None:
    """To the bit, through messages, memories and the last evaluation; but more bytes come down."""
    runs = [run(tmp_path, algorithm, own_mixing=mixing, seed=3) for mixing in ("server", "client")]
    (server, one), (client, other) = runs
    assert [record["sites"] for record in one.metrics] == [record["sites"] for record in other.metrics]
    assert all(np.array_equal(one.arrays[name], other.arrays[name]) for name in one.arrays)
    ups = [[a for way, _, a in grid.seen if way == "up" and a] for grid in (server, client)]
    assert len(ups[0]) == len(ups[1]) == 16
    for first, second in zip(*ups, strict=True):
        assert all(torch.equal(first[name], second[name]) for name in first)
    down, more = (record["bytes-down"] for record in (one.metrics[-1], other.metrics[-1]))
    assert 1.8 * down < more < 2.3 * down


@pytest.mark.parametrize("algorithm", ["d-psgd", "deprl", "fedrep", "ditto", "fedrod"])
def test_the_bytes_of_a_round_are_those_of_the_vectors(algorithm: str, tmp_path: Path) -> None:
    _, result = run(tmp_path, algorithm, problem="cross-entropy")
    head = 4 * 2 + 2
    d = len(result.arrays["x"])
    sent = d if algorithm in ("d-psgd", "ditto", "fedrod") else d - head
    assert all(record["bytes-down"] == record["bytes-up"] == 4 * 4 * sent for record in result.metrics)


def test_the_bytes_of_dispfl_are_values_and_bits(tmp_path: Path) -> None:
    _, result = run(tmp_path, "dispfl", own_density=0.25)
    d, weights = len(result.arrays["x"]), 30 * 4 + 4 * 4 + 4
    kept = (d - weights) + 0.25 * weights
    for record in result.metrics:
        assert record["bytes-up"] == pytest.approx(4 * (4 * kept + d // 8 + 1), abs=4 * 4 * 2)  # rounded in each layer
    assert result.metrics[0]["bytes-down"] == 4 * 4 * d
    assert result.metrics[2]["bytes-down"] == result.metrics[1]["bytes-up"]


def test_the_consensus_error_is_that_of_what_workers_begin_with(tmp_path: Path) -> None:
    for algorithm in ("d-psgd", "deprl", "dispfl"):
        grid, result = run(tmp_path, algorithm, rounds=3)
        strategy = RunConfig.parse({"algorithm": algorithm}).strategy()
        assert isinstance(strategy, Decentralised)
        for r in (1, 2):
            downs = [arrays for way, _, arrays in grid.seen if way == "down" and arrays][4 * r : 4 * r + 4]
            x = np.stack([strategy.whole(arrays).double().numpy() for arrays in downs])
            error = np.square(x - x.mean(0)).sum(1).mean()
            assert result.metrics[r - 1]["consensus-error"] == pytest.approx(error, rel=1e-5)
            assert error > 0
        assert result.metrics[0]["spectral-gap"] == pytest.approx(2 / 3)
    _, full = run(tmp_path, "d-psgd", own_topology="full")
    assert full.metrics[-1]["consensus-error"] == 0
    assert full.metrics[-1]["spectral-gap"] == pytest.approx(1)


@pytest.mark.parametrize("algorithm", ["d-psgd", "deprl", "fedrep"])
def test_new_sites_get_the_mean_body_and_the_first_head(algorithm: str, tmp_path: Path) -> None:
    grid, result = run(tmp_path, algorithm)
    problem = make("auc", model="mlp", hidden=4, shape=(30,), seed=0, dtype=torch.float32)
    first, split = problem.initial()["x"], problem.head
    answers = [arrays for way, _, arrays in grid.seen if way == "up" and arrays][-4:]
    bodies = [next(iter(arrays.values()))[:split] for arrays in answers]
    np.testing.assert_allclose(result.arrays["x"][:split], torch.stack(bodies).mean(0).numpy(), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(result.arrays["x"][split:], first[split:].numpy())


# ---------------------------------------------------------------------- sites that are missing, or forget


@pytest.mark.parametrize("strategy", DECENTRALISED, ids=lambda s: s.name)
def test_a_worker_stands_in_for_a_neighbour_that_has_never_answered(strategy: Decentralised) -> None:
    """W_ii grows by W_ij, so that the weights still sum to 1; who never answered is sent the start."""
    _, _, _, start, oracles = setting("minimisation")
    for mixing in ("server", "client"):
        half = replace(strategy, mixing=mixing)
        [state] = drive(half, start, oracles, 1, K, silent={(1, 1)})
        turn = half.turn(2, 3, "train", K)
        row = half._row(state, K, 0)
        assert {j: weight for j, (weight, _) in row.items()} == pytest.approx({0: 2 / 3, 3: 1 / 3})
        sent = half.broadcast(state, turn, Site(1, "", 2))
        assert set(sent) == {"body" if half.name == "deprl" else "x"}
        assert torch.equal(*(v[: len(sent[n])] for n, v in [*sent.items(), *[(n, start["x"]) for n in sent]]))


@pytest.mark.parametrize("strategy", DECENTRALISED, ids=lambda s: s.name)
def test_the_last_answer_stands_for_one_that_is_missing(strategy: Decentralised) -> None:
    _, _, _, start, oracles = setting("minimisation")
    states = drive(strategy, start, oracles, 2, K, silent={(2, 1)})
    for name in strategy.shares:
        assert torch.equal(states[0][f"{name}-1"], states[1][f"{name}-1"])
    assert any(not torch.equal(states[0][f"{n}-2"], states[1][f"{n}-2"]) for n in strategy.shares)


@pytest.mark.parametrize("strategy", DECENTRALISED, ids=lambda s: s.name)
def test_who_lost_its_part_of_the_mix_takes_that_of_its_neighbours(strategy: Decentralised) -> None:
    _, _, _, start, oracles = setting("minimisation")
    half = replace(strategy, mixing="client")
    [*_, state] = drive(half, start, oracles, 2, K)
    sent = half.broadcast(state, half.turn(3, 3, "train", K), Site(0, "", 1))
    vectors = half._vectors
    alone = half.mix({j: (0.5, vectors(state, j)) for j in (1, 3)}, -1)
    got = half.received(sent, {})
    assert all(torch.allclose(got[name], alone[name], rtol=0, atol=1e-12) for name in alone)
    reply, memory = half.local_update(sent, {}, oracles(0, 3), half.turn(3, 3, "train", K))
    assert all(vector.isfinite().all() for vector in reply.values())
    assert set(half.shares) <= set(memory)
    if half.name == "dispfl":
        x = half.personal(sent, {}, {})["x"]
        one, other = (half.whole(vectors(state, j)) for j in (1, 3))
        masks = [unpacked(state[f"mask-{j}"], torch.device("cpu")) for j in (1, 3)]
        assert torch.allclose(x, (one + other) / torch.stack(masks).sum(0).clamp(min=1), rtol=0, atol=1e-12)
        mask = unpacked(reply["mask"], torch.device("cpu"))
        assert int(mask.sum()) == len(vectors(state, 0)["values"]), "no denser than before"


@pytest.mark.parametrize("algorithm", ["deprl", "fedrep"])
def test_a_site_that_lost_its_head_begins_with_the_first_one(algorithm: str) -> None:
    _, _, _, start, oracles = setting("regression")
    strategy = ALGORITHMS[algorithm]()
    body = torch.zeros(SPLIT, dtype=torch.float64)
    model = strategy.personal({"body": body}, {}, oracles(0, 1).fresh())
    assert torch.equal(model["x"], torch.cat([body, start["x"][SPLIT:]]))
    assert torch.equal(model["y"], start["y"])


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


# ---------------------------------------------------------------------- the head


def test_where_the_head_begins() -> None:
    d = 30 * 4 + 4 + 4 * 4 + 4 + 4 + 1
    for head, start in [("", d - 5), ("head", d - 5), ("body.3", d - 5 - 20), ("body.1", 0), ("body", 0)]:
        problem = make("auc", model="mlp", hidden=4, shape=(30,), head=head, dtype=torch.float32)
        assert problem.head == start
        fresh = problem.fresh()
        assert torch.equal(fresh["head"], problem.initial()["x"][start:]), "a, b behind the last layer belong to it"
        assert len(fresh["head"]) == d + 2 - start
        problem.gradient(torch.zeros(d + 2), torch.zeros(1), (torch.ones(2, 30), torch.tensor([0, 1])))
        assert torch.equal(problem.fresh()["head"], fresh["head"]), "whatever the network is bound to"


def test_a_head_that_does_not_exist_is_refused_with_the_models_layers(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model = 'mlp', head = 'hed': no such layer.*body\.1, body\.3, head"):
        simulate({"algorithm": "deprl", "head": "hed", "rounds": 1, "workers": 1, "runs-dir": str(tmp_path)})


@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        ("deprl", {"model": "linear"}),
        ("deprl", {"head": "body"}),
        ("fedrep", {"model": "linear"}),
        ("fedrep", {"head": "body"}),
        ("fedrod", {"model": "linear", "problem": "cross-entropy"}),
    ],
    ids=str,
)
def test_a_model_without_a_body_has_no_separable_head(algorithm: str, keys: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(StrategyError, match=f"algorithm = '{algorithm}'.*no separable head"):
        simulate({"algorithm": algorithm, **keys, "rounds": 1, "workers": 1, "runs-dir": str(tmp_path)})


def test_problems_without_a_network_are_refused() -> None:
    for algorithm, need in [("deprl", "layers"), ("fedrep", "layers"), ("dispfl", "layers")]:
        with pytest.raises(ConfigError, match=f"'{algorithm}' cannot solve problem = 'saddle'.*offers no {need}"):
            RunConfig.parse({"algorithm": algorithm, "problem": "saddle"})


# ---------------------------------------------------------------------- other bad input

PERSONALISED = ["d-psgd", "deprl", "dispfl", "fedrep", "ditto", "fedrod"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dispfl.density": 0.0, "algorithm": "dispfl"}, r"dispfl\.density = 0\.0: must be .* > 0 and <= 1"),
        ({"dispfl.density": 1.5, "algorithm": "dispfl"}, r"dispfl\.density = 1\.5: must be .* > 0 and <= 1"),
        ({"deprl.topology": "line"}, r"deprl\.topology = 'line': allowed are 'ring', 'random', 'full', 'star', 'file'"),
        ({"deprl.topology": "file"}, r"deprl\.topology = 'file', deprl\.graph-file = '': topology \"file\" needs"),
        ({"deprl.graph-file": "g.csv"}, r"deprl\.topology = 'ring', deprl\.graph-file = 'g\.csv'.* no other has one"),
        ({"deprl.graph-file": "g.txt"}, r"deprl\.graph-file = 'g\.txt': must name a file with \.toml or \.csv"),
        ({"weighting": "examples"}, r"weighting = 'examples'.*deprl.*the graph says"),
        ({"fraction": 0.5}, r"fraction = 0\.5: deprl needs all sites"),
        ({"head": "body.3", "algorithm": "fedrod", "problem": "cross-entropy"}, r"head = 'body\.3'.*last layer"),
    ],
)
def test_what_does_not_go_together_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig.parse({"algorithm": "deprl", **keys})


@pytest.mark.parametrize("algorithm", PERSONALISED)
def test_batch_norm_statistics_stay_at_the_sites_and_only_the_last_model_is_there(algorithm: str) -> None:
    keys = {"algorithm": algorithm, "problem": "cross-entropy", "dataset": "mnist"}
    for model in ("resnet18", "efficientnet-b0"):
        with pytest.raises(ConfigError, match=rf"bn = 'average'.*'{model}' belong to each site's own.*bn = \"local\""):
            RunConfig.parse(keys | {"model": model})
    RunConfig.parse(keys | {"model": "resnet18", "bn": "local"})
    RunConfig.parse(keys | {"model": "lenet5"})
    with pytest.raises(ConfigError, match=r"output = 'average'.*take \"last\""):
        RunConfig.parse(keys | {"output": "average"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1\n2,3\n", r"graph-file = '.*graph\.csv': .*falls into 2 components of sites: 0, 1; 2, 3\."),
        ("0,1\n1,5\n", r"graph-file = '.*graph\.csv' is a graph of 6 sites or more, and the run has sites = 4"),
        ("", r"mean-degree = 1: a connected graph of 4 sites needs at least 1\.5 neighbours"),
    ],
)
def test_a_graph_that_does_not_fit_ends_the_run_before_anything_is_sent(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "graph.csv").write_text(text, encoding="utf-8")
    keys = {"own_topology": "file", "own_graph_file": str(tmp_path / "graph.csv")}
    with pytest.raises(StrategyError, match=rf"^deprl\.{message}"):
        run(tmp_path, "deprl", **(keys if text else {"own_topology": "random", "own_mean_degree": 1.0}))
    assert not list((tmp_path / "runs").rglob("metrics.jsonl"))


def test_a_file_of_edges_that_changed_is_read_anew(tmp_path: Path) -> None:
    """By the next run in the same process."""
    keys = {"own_topology": "file", "own_graph_file": str(tmp_path / "graph.csv"), "rounds": 1}
    gaps = []
    for text in ("0,1\n1,2\n2,3\n3,0\n", "0,1\n1,2\n2,3\n"):
        (tmp_path / "graph.csv").write_text(text, encoding="utf-8")
        gaps.append(run(tmp_path, "d-psgd", **keys)[1].metrics[-1]["spectral-gap"])
    assert gaps == pytest.approx(
        [2 / 3, 1 - np.sort(np.linalg.eigvalsh(reference.metropolis({(0, 1), (1, 2), (2, 3)}, 4)))[-2]]
    )


def test_the_memory_of_a_site_is_its_head_and_its_y(tmp_path: Path) -> None:
    """And nothing that the server has anyway."""
    for algorithm, names in [
        ("d-psgd", {"y"}),
        ("deprl", {"head", "y"}),
        ("dispfl", {"y"}),
        ("fedrep", {"head", "y"}),
        ("ditto", {"x", "y"}),
    ]:
        _, _, _, start, oracles = setting("regression")
        memories: list[dict[int, Arrays]] = []
        drive(ALGORITHMS[algorithm](), start, oracles, 2, K, memories=memories)
        assert all(set(memory) == names for memory in memories[-1].values()), algorithm
    assert Memory(str(tmp_path), 1, "site").load(torch.device("cpu")) == {}
