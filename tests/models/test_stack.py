"""Many copies of a network in one pass: values and first and second derivatives of a loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from models import FlatNetwork, ModelError, build
from models.stack import Stack

NETWORKS = [("linear", (6,)), ("mlp", (6,)), ("mlp", (2, 5, 5)), ("conv4", (2, 17, 19)), ("lenet5", (1, 16, 16))]
networks = pytest.mark.parametrize(("name", "shape"), NETWORKS)


def build_stack(name: str, shape: tuple[int, ...]) -> Stack:
    return Stack(FlatNetwork(build(name, shape, 3, hidden=4).double()))


def copies(stack: Stack, t: int) -> list[Tensor]:
    """Return parameters that differ from copy to copy."""
    random = torch.Generator().manual_seed(0)
    return [
        (
            p.detach().repeat(t, *[1] * p.ndim) + 0.1 * torch.randn(t, *p.shape, generator=random).double()
        ).requires_grad_()
        for p in stack.module.parameters()
    ]


def one_by_one(stack: Stack, parameters: list[Tensor], inputs: Tensor) -> Tensor:
    names = [name for name, _ in stack.module.named_parameters()]
    return torch.stack(
        [
            functional_call(stack.module, {name: p[k] for name, p in zip(names, parameters, strict=True)}, (z,))
            for k, z in enumerate(inputs)
        ]
    )


@networks
@pytest.mark.parametrize("t", [1, 3])
@pytest.mark.parametrize("twice", [True, False])
def test_it_is_a_loop_over_the_copies(name: str, shape: tuple[int, ...], t: int, twice: bool) -> None:
    stack = build_stack(name, shape)
    parameters = copies(stack, t)
    inputs = torch.randn(t, 5, *shape, generator=torch.Generator().manual_seed(1)).double()
    kept = inputs.clone()
    answers = []
    for outputs in (stack.forward(parameters, inputs, twice), one_by_one(stack, parameters, inputs)):
        slope = torch.autograd.grad(outputs.pow(3).sum(), parameters, create_graph=True)
        bend = torch.autograd.grad(sum((s.square().sum() for s in slope), torch.zeros(())), parameters)
        answers.append([outputs, *slope, *bend])
    for ours, theirs in zip(*answers, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    assert torch.equal(inputs, kept)


@networks
def test_a_vector_becomes_equal_copies_and_their_sum_is_a_vector(name: str, shape: tuple[int, ...]) -> None:
    stack = build_stack(name, shape)
    network = FlatNetwork(stack.module)
    x = torch.randn(network.size, generator=torch.Generator().manual_seed(2)).double()
    parameters = stack.parameters(x, 3)
    torch.testing.assert_close(stack.total(parameters), 3 * x)
    network.bind(x)
    inputs = torch.rand(4, *shape).double()
    torch.testing.assert_close(stack.forward(parameters, inputs.expand(3, 4, *shape))[1], network.forward(inputs))
    parameters[0].data.fill_(7.0)
    assert not (x == 7).any(), "memory of their own"


@pytest.mark.parametrize(
    ("name", "shape", "widest"),
    [("linear", (6,), 6), ("mlp", (3,), 4), ("conv4", (1, 28, 28), 784), ("conv4", (1, 17, 17), 4 * 81)],
)
def test_the_widest_layer(name: str, shape: tuple[int, ...], widest: int) -> None:
    assert build_stack(name, shape).widest(shape) == widest


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Flatten(), nn.Linear(4, 2), nn.Dropout()],
        [nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)],
    ],
)
def test_other_layers_are_refused(layers: list[nn.Module]) -> None:
    with pytest.raises(ModelError, match=r"(Dropout|BatchNorm2d) cannot be adapted.*such as conv4 or mlp"):
        Stack(FlatNetwork(nn.Sequential(*layers)))
