"""A network's draws depend on a seed alone, for any layer and any other draws of the process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

from edelweiss.datasets.vision import import_torchvision
from edelweiss.models import MODELS, FlatNetwork, build, networks
from edelweiss.models.dropout import Dropout
from edelweiss.models.stream import may_draw


class Functional(nn.Module):
    """A layer that draws by calling a function, invisible in the module tree."""

    def __init__(self, function: Callable[[Tensor], Tensor], always: bool = False) -> None:
        super().__init__()
        self.function, self.always = function, always

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs) if self.training or self.always else inputs


class Attention(nn.MultiheadAttention):
    def forward(self, inputs: Tensor) -> Tensor:  # type: ignore[override]
        outputs: Tensor = super().forward(inputs, inputs, inputs)[0]
        return outputs


class Recurrent(nn.GRU):
    def forward(self, inputs: Tensor) -> Tensor:  # type: ignore[override]
        outputs: Tensor = super().forward(inputs)[0]
        return outputs


def stochastic_depth() -> nn.Module:
    layer: nn.Module = import_torchvision().ops.StochasticDepth(0.5, "row")
    return layer


def hooked() -> nn.Module:
    layer = nn.Linear(6, 6)
    layer.register_forward_hook(lambda layer, inputs, outputs: dropout(outputs, training=layer.training))
    return layer


def between(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), layer, nn.Linear(6, 6))


TABLE, LINES, IMAGES, VOLUMES = ((16, 6), (16, 5, 6), (16, 3, 5, 6), (16, 2, 3, 5, 6))
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Dropout": (nn.Dropout, TABLE),
    "Dropout1d": (nn.Dropout1d, LINES),
    "Dropout2d": (nn.Dropout2d, IMAGES),
    "Dropout3d": (nn.Dropout3d, VOLUMES),
    "AlphaDropout": (nn.AlphaDropout, TABLE),
    "FeatureAlphaDropout": (nn.FeatureAlphaDropout, LINES),
    "RReLU": (lambda: nn.RReLU(), TABLE),
    "StochasticDepth": (stochastic_depth, TABLE),
    "Attention": (lambda: Attention(6, 2, dropout=0.5), LINES),
    "GRU": (lambda: Recurrent(6, 6, 2, dropout=0.5), LINES),
    "functional": (lambda: Functional(dropout), TABLE),
    "noise": (lambda: Functional(lambda z: z + torch.randn_like(z)), TABLE),
    "permutation": (lambda: Functional(lambda z: z[torch.randperm(len(z))]), TABLE),
    "in evaluation too": (lambda: Functional(dropout, always=True), TABLE),
    "checkpoint": (lambda: Functional(lambda z: checkpoint(dropout, z, use_reentrant=False)), TABLE),
    "hook": (hooked, TABLE),
    "ours": (lambda: Dropout(0.5), TABLE),
}
NETWORKS = {name: (lambda make=make: between(make()), shape) for name, (make, shape) in LAYERS.items()} | {
    "dnn": (lambda: build("dnn", (6,)), TABLE),
    "efficientnet-b0": (lambda: build("efficientnet-b0", (1, 18, 18)), (2, 1, 18, 18)),
    "efficientnet_b0": (lambda: import_torchvision().models.efficientnet_b0(num_classes=1), (2, 3, 33, 33)),
}
# Each must be recognised as drawing; the treatment is the same for all.
every_network = pytest.mark.parametrize("name", NETWORKS)
some_networks = pytest.mark.parametrize("name", ["Dropout", "in evaluation too", "efficientnet-b0"])


def opened(name: str) -> tuple[FlatNetwork, Tensor]:
    """Return a network and inputs for it."""
    make, shape = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return FlatNetwork(make()), torch.randn(shape)


def steps(network: FlatNetwork, inputs: Tensor, count: int = 2) -> list[Tensor]:
    """Return outputs and gradients of consecutive training passes; restores the statistics."""
    network.train(True)
    before, found = network.buffers(), []
    for _ in range(count):
        outputs = network.forward(inputs)
        found += [outputs.detach(), *network.gradient(outputs.square().sum())]
    network.load_buffers(before)
    return found


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


@pytest.mark.slow
@every_network
def test_the_seed_alone_determines_the_draws(name: str) -> None:
    network, inputs = opened(name)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    network.reseed(7)
    first = steps(network, inputs)
    assert torch.equal(torch.get_rng_state(), before), "the global state must not change"
    torch.manual_seed(2)
    network.reseed(8)
    assert not same(steps(network, inputs), first)
    network.reseed(7)
    assert same(steps(network, inputs), first)
    assert not torch.equal(first[0], first[2]), "consecutive passes must differ"
    again, inputs = opened(name)
    again.reseed(7)
    assert same(steps(again, inputs), first), "also in another network of the process"


@pytest.mark.slow
@some_networks
def test_draws_between_passes_have_no_effect(name: str) -> None:
    network, inputs = opened(name)
    network.reseed(7)
    alone = steps(network, inputs, 3)
    other, _ = opened(name)
    network.reseed(7)
    mixed = []
    for seed in range(3):
        mixed += steps(network, inputs, 1)
        other.reseed(seed)
        steps(other, inputs)
        network.train(False)
        network.forward(inputs)
        torch.rand(5)
    assert same(mixed, alone)


@some_networks
def test_evaluation_is_deterministic(name: str) -> None:
    network, inputs = opened(name)
    network.train(False)
    outputs = []
    for seed in range(2):
        network.reseed(seed)
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        outputs.append(network.forward(inputs))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(*outputs)


def test_a_failed_pass_restores_the_global_state() -> None:
    network, inputs = opened("Dropout")
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError):
        network.forward(inputs[:, 1:])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_networks_of_plain_layers_need_no_stream() -> None:
    """Their passes are so short that switching the generators' state would cost time."""
    plain = {"linear", "mlp", "lenet5", "cnn-mnist", "cnn-cifar", "cnn7", "conv4"}
    with torch.device("meta"):
        built = {name: networks.MODELS[name](name, (3, 32, 32), 1, 4) for name in MODELS}
    assert {name for name, module in built.items() if not may_draw(module)} == plain


def test_a_gpus_generator_is_covered_and_our_dropout_draws_the_same_there() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    network, inputs = FlatNetwork(between(nn.Dropout()).cuda()), torch.ones(TABLE, device="cuda")
    before = torch.cuda.get_rng_state()
    network.reseed(7)
    first = steps(network, inputs)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    torch.cuda.manual_seed(3)
    network.reseed(7)
    assert same(steps(network, inputs), first)
    masks = []
    for device in ("cpu", "cuda"):
        ours = FlatNetwork(nn.Sequential(nn.Linear(6, 6), Dropout(0.5)).to(device))
        ours.reseed(7)
        masks.append((ours.forward(torch.ones(TABLE, device=device)) == 0).cpu())
    assert torch.equal(*masks)


# ---------------------------------------------------------------------- the dropout of the built-in networks


def test_dropout_preserves_the_mean() -> None:
    layer = Dropout(0.2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        values = layer(torch.ones(1000, 100))
    assert set(values.unique().tolist()) == {0.0, 1.25}
    assert abs(float((values == 0).float().mean()) - 0.2) < 0.005
    assert torch.equal(layer.eval()(values), values)


def test_gradients_pass_where_values_pass() -> None:
    layer = Dropout(0.5)
    inputs = torch.ones(8, 8, requires_grad=True)
    values = layer(inputs)
    (gradient,) = torch.autograd.grad(values.sum(), inputs)
    assert torch.equal(gradient, values.detach())


def test_the_layers_of_a_network_draw_different_masks() -> None:
    network = FlatNetwork(nn.Sequential(nn.Linear(64, 64), Dropout(0.5), Dropout(0.5)))
    network.bind(torch.cat([torch.zeros(64 * 64), torch.ones(64)]))
    outputs = network.forward(torch.ones(64, 64))
    assert set(outputs.unique().tolist()) == {0.0, 4.0}
    assert abs(float((outputs > 0).float().mean()) - 0.25) < 0.05, "equal masks would leave half"
