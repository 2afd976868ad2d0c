"""Dropout: its law, and that a seed alone decides its masks."""

from __future__ import annotations

import torch
from torch import Tensor

from models import FlatNetwork, build
from models.dropout import Dropout

INPUTS = torch.randn(16, 30, generator=torch.Generator().manual_seed(0))


def outputs(network: FlatNetwork, seed: int) -> Tensor:
    network.reseed(seed)
    with torch.no_grad():
        return network.forward(INPUTS)


def test_a_share_p_is_dropped_and_the_mean_is_kept() -> None:
    layer = Dropout(0.2)
    layer.stream.manual_seed(1)
    values = layer(torch.ones(1000, 100))
    assert set(values.unique().tolist()) == {0.0, 1.25}
    assert abs(float((values == 0).float().mean()) - 0.2) < 0.005
    assert torch.equal(layer.eval()(values), values)


def test_gradients_pass_where_values_do() -> None:
    layer = Dropout(0.5)
    inputs = torch.ones(8, 8, requires_grad=True)
    values = layer(inputs)
    (gradient,) = torch.autograd.grad(values.sum(), inputs)
    assert torch.equal(gradient, values.detach())


def test_a_seed_decides_the_masks_and_the_global_state_plays_no_part() -> None:
    network = FlatNetwork(build("dnn", (30,), 5))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = outputs(network, 7)
    assert torch.equal(torch.get_rng_state(), before), "the global state is not touched"
    torch.manual_seed(2)
    assert not torch.equal(outputs(network, 8), first)
    assert torch.equal(outputs(network, 7), first)
    assert torch.equal(outputs(FlatNetwork(build("dnn", (30,), 5)), 7), first), (
        "nor does another network of the process"
    )


def test_the_layers_of_a_network_share_a_stream_and_draw_different_masks() -> None:
    module = build("dnn", (30,), 5)
    layers = [layer for layer in module.modules() if isinstance(layer, Dropout)]
    network = FlatNetwork(module)
    network.reseed(0)
    first, second = (layer(torch.ones(64, 64)) for layer in layers[:2])
    assert not torch.equal(first, second)
    network.reseed(0)
    assert torch.equal(layers[1](torch.ones(64, 64)), first)


def test_evaluation_drops_nothing() -> None:
    network = FlatNetwork(build("dnn", (30,), 5))
    network.train(False)
    assert torch.equal(outputs(network, 7), outputs(network, 8))


def test_a_network_without_dropout_has_nothing_to_reseed() -> None:
    network = FlatNetwork(build("mlp", (30,), 5))
    assert torch.equal(outputs(network, 7), outputs(network, 8))
