"""FedBN: batch norm's scale and shift stay at the sites, everything else is averaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edelweiss.config import ConfigError, RunConfig
from edelweiss.models import build
from edelweiss.models.flat import FlatNetwork
from edelweiss.models.storage import StoredTensors
from edelweiss.server_app import simulate
from edelweiss.strategies.fedbn import FedBN
from tests.reference.games import RegressionGame
from tests.said import has
from tests.strategies.halves import Arrays, RegressionOracle, drive
from tests.strategies.settings import K, torched

OWN = [1, 3]  # which of five parameters are batch norm's


class WithNorms(RegressionOracle):
    """A game's oracle, some of whose parameters are batch norm's."""

    norms = torch.tensor(OWN)

    def fresh(self) -> Arrays:
        raise AssertionError("what it starts with is sent")


def reference(
    game: RegressionGame, rounds: int, steps: int, eta: float, lost: set[tuple[int, int]]
) -> list[np.ndarray]:
    """Li et al. 2021, Algorithm 1, parameter by parameter; return each client's model after the last round."""
    common, own = game.x.copy(), [game.x.copy() for _ in range(game.clients)]
    for r in range(1, rounds + 1):
        for k in range(game.clients):
            if (r, k) in lost:
                own[k] = game.x.copy()
            for i in range(len(common)):
                if i not in OWN:
                    own[k][i] = common[i]
            for t in range(steps):
                own[k] = own[k] - eta * game.gradients(k, own[k], np.zeros(0), r, t)[0]
        for i in range(len(common)):
            if i not in OWN:
                common[i] = sum(model[i] for model in own) / len(own)
    for model in own:
        for i in range(len(common)):
            if i not in OWN:
                model[i] = common[i]
    return own


@pytest.mark.parametrize("lost", [set(), {(3, 1), (5, 0)}], ids=["kept", "lost"])
def test_the_equations(lost: set[tuple[int, int]]) -> None:
    game, strategy, memories = RegressionGame(K), FedBN(local_steps=4, lr=0.05), list[dict[int, Arrays]]()
    states = drive(
        strategy,
        torched(game.x),
        lambda k, r: WithNorms(game, k, r),
        6,
        K,
        lost=lost,
        wire=True,
        memories=memories,  # type: ignore[arg-type, return-value]
    )
    expected = reference(game, 6, 4, 0.05, lost)
    for k in range(K):
        found = strategy.personal(states[-1], memories[-1][k], dict)["x"]
        np.testing.assert_allclose(found.numpy(), expected[k], rtol=0, atol=1e-12)
    assert np.ptp([model[OWN[0]] for model in expected]) > 0.1, "the sites differ in what is their own"
    np.testing.assert_allclose(states[-1]["x"][OWN].numpy(), game.x[OWN], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("model", "shape"), [("mlp-bn", (7,)), ("resnet18", (3, 32, 32)), ("mlp", (7,)), ("conv4", (1, 28, 28))]
)
def test_a_network_knows_where_its_batch_norm_is(model: str, shape: tuple[int, ...]) -> None:
    """By the names in its state dict: what has running statistics has a scale and a shift."""
    network = FlatNetwork(build(model, shape, 1, hidden=4, seed=0))
    marked = torch.zeros(network.size)
    marked[network.norms()] = 1
    state = network.state_dict(marked)
    layers = {name.removesuffix(".running_mean") for name in state if name.endswith(".running_mean")}
    for name, values in state.items():
        layer, _, kind = name.rpartition(".")
        if kind in ("weight", "bias"):
            assert bool(values.bool().all() if layer in layers else not values.bool().any()), name
    assert bool(layers) == (model in ("mlp-bn", "resnet18"))


def own_models(folder: Path) -> list[Tensor]:
    return [StoredTensors.read(file).tensors["x"] for file in sorted(folder.rglob("models/*.safetensors"))]


def test_in_a_run_the_sites_models_differ_in_batch_norm_alone(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"algorithm": "fedbn", "problem": "bce", "model": "mlp-bn", "hidden": 5, "bn": "local"}
    keys |= {
        "sites": 3,
        "rounds": 5,
        "workers": 1,
        "device": "cpu",
        "partition": "iid",
        "runs-dir": str(tmp_path / "runs"),
    }
    result = simulate(keys | {"state-dir": str(tmp_path / "state")})
    models = torch.stack(own_models(tmp_path / "state"))
    network = FlatNetwork(build("mlp-bn", (30,), 1, hidden=5, seed=0))
    norms = torch.zeros(network.size, dtype=torch.bool)
    norms[network.norms()] = True
    assert int(norms.sum()) == 4 * 5
    assert (models[:, ~norms] == models[0, ~norms]).all()
    assert (models[:, norms] != models[0, norms]).any(0).float().mean() > 0.9
    first, *_, last = result.metrics
    assert last["over-sites"]["loss"]["mean"] < first["over-sites"]["loss"]["mean"]


@pytest.mark.parametrize("model", ["mlp", "linear", "conv4", "resnet18-gn"])
def test_a_network_without_batch_norm_is_refused(model: str) -> None:
    with pytest.raises(ConfigError, check=has(f"model = {model!r}", "'fedbn'", "resnet18", "mlp-bn")):
        RunConfig.parse({"algorithm": "fedbn", "problem": "bce", "model": model, "bn": "local"})
