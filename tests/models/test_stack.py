"""Vectorised evaluation of many copies of a network: values, first and second derivatives as in a loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from edelweiss.models import FlatNetwork, ModelError, build
from edelweiss.models.stack import Stack

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
def test_it_matches_a_loop_over_the_copies(name: str, shape: tuple[int, ...], t: int, twice: bool) -> None:
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
def test_a_vector_becomes_equal_copies(name: str, shape: tuple[int, ...]) -> None:
    stack = build_stack(name, shape)
    network = FlatNetwork(stack.module)
    x = torch.randn(network.size, generator=torch.Generator().manual_seed(2)).double()
    parameters = stack.parameters(x, 3)
    torch.testing.assert_close(stack.total(parameters), 3 * x)
    network.bind(x)
    inputs = torch.rand(4, *shape).double()
    torch.testing.assert_close(stack.forward(parameters, inputs.expand(3, 4, *shape))[1], network.forward(inputs))
    parameters[0].data.fill_(7.0)
    assert not (x == 7).any(), "they must be copies"


@pytest.mark.parametrize(
    ("name", "shape", "largest_activation"),
    [("linear", (6,), 6), ("mlp", (3,), 4), ("conv4", (1, 28, 28), 784), ("conv4", (1, 17, 17), 4 * 81)],
)
def test_the_largest_activation(name: str, shape: tuple[int, ...], largest_activation: int) -> None:
    assert build_stack(name, shape).largest_activation(shape) == largest_activation


def test_rows_become_sets_of_parameters_without_copies() -> None:
    stack = build_stack("lenet5", (1, 16, 16))
    rows = torch.randn(3, FlatNetwork(stack.module).size + 2, dtype=torch.float64)  # with two scalars at the end
    for k, alone in enumerate(zip(*stack.from_rows(rows[:, :-2]), strict=True)):
        torch.testing.assert_close(torch.cat([p.flatten() for p in alone]), rows[k, :-2])
    stack.from_rows(rows[:, :-2])[0].data.fill_(7.0)
    assert (rows[:, 0] == 7).all()


FORMS = [
    [nn.ReLU(), nn.Linear(4, 2, bias=False)],
    [nn.Flatten(), nn.ReLU(), nn.Linear(4, 2)],
    [nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Flatten(), nn.ReLU(), nn.ReLU(), nn.Linear(3, 2)],
    [nn.MaxPool2d(1), nn.Flatten(), nn.Linear(4, 2)],
    [nn.Conv2d(1, 4, 2, bias=False), nn.ReLU(), nn.Flatten(), nn.Sequential(nn.Linear(4, 3), nn.ReLU()), nn.Flatten()],
]


@pytest.mark.parametrize("layers", FORMS)
def test_sequences_that_a_user_may_build(layers: list[nn.Module]) -> None:
    """Inputs are not modified, even by a ReLU as the first layer."""
    stack = Stack(FlatNetwork(nn.Sequential(*layers).double()))
    parameters, shape = copies(stack, 3), (1, 2, 2) if stack.images or isinstance(layers[0], nn.Flatten) else (4,)
    inputs = torch.randn(3, 5, *shape, generator=torch.Generator().manual_seed(1)).double()
    kept = inputs.clone()
    slopes = []
    for outputs in (stack.forward(parameters, inputs), one_by_one(stack, parameters, inputs)):
        slopes.append([outputs, *torch.autograd.grad(outputs.square().sum(), parameters)])
    for ours, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert torch.equal(inputs, kept)


def test_a_sample_may_be_a_matrix() -> None:
    stack = Stack(FlatNetwork(nn.Sequential(nn.Flatten(), nn.Linear(6, 2)).double()))
    parameters, inputs = copies(stack, 3), torch.randn(3, 5, 2, 3).double()
    torch.testing.assert_close(stack.forward(parameters, inputs), one_by_one(stack, parameters, inputs))


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda layer, inputs, output: 2 * output)
    return layer


@pytest.mark.parametrize(
    ("layers", "name"),
    [
        ([nn.Flatten(), nn.Linear(4, 2), nn.Dropout()], "Dropout"),
        ([nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)], "BatchNorm2d"),
        ([nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, affine=False, track_running_stats=False)], "BatchNorm2d"),
        ([nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(8, 2)], "Conv2d"),
        ([nn.Flatten(2), nn.Linear(4, 2)], "Flatten"),
        ([hooked(nn.Linear(4, 2))], "Linear"),
    ],
)
def test_other_layers_are_refused(layers: list[nn.Module], name: str) -> None:
    with pytest.raises(ModelError) as caught:
        Stack(FlatNetwork(nn.Sequential(*layers)))
    assert (caught.value.key, type(caught.value.value).__name__) == ("layer", name)


def test_shared_and_frozen_parameters_are_refused() -> None:
    shared = nn.Linear(4, 4)
    frozen = nn.Linear(4, 4)
    frozen.weight.requires_grad_(False)
    for layers in ([shared, nn.ReLU(), shared], [frozen, nn.Linear(4, 1)]):
        with pytest.raises(ModelError) as caught:
            Stack(FlatNetwork(nn.Sequential(*layers)))
        assert caught.value.key == "parameters"
