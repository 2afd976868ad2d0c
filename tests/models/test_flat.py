"""One flat vector for a whole network: views, gradients, buffers and state dicts."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close  # the two layouts of images round differently

from edelweiss.models import FlatNetwork, ModelError, build

CASES = [("mlp", (30,)), ("cnn-mnist", (1, 28, 28)), ("resnet18", (1, 16, 16))]
cases = pytest.mark.parametrize(("name", "shape"), CASES)


def batch(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(4, *shape, generator=torch.Generator().manual_seed(seed))


def bound(name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[FlatNetwork, Tensor]:
    network = FlatNetwork(build(name, shape, 2).to(dtype))
    x = network.vector()
    network.bind(x)
    return network, x


class Tied(nn.Module):
    """An autoencoder whose decoder is the encoder's weight, with a frozen scale and two kinds of buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(5, 5, bias=False)
        self.norm = nn.BatchNorm1d(5)
        self.scale = nn.Parameter(torch.tensor([3.0]), requires_grad=False)
        self.decoder = nn.Linear(5, 5)
        self.decoder.weight = self.encoder.weight
        self.register_buffer("passing", torch.ones(4), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.decoder(self.norm(self.encoder(inputs))) * self.scale
        return outputs


@pytest.mark.parametrize(("name", "shape"), [*CASES[:-1], pytest.param(*CASES[-1], marks=pytest.mark.slow)])
def test_the_gradient_is_the_parameters_gradients_in_order(name: str, shape: tuple[int, ...]) -> None:
    plain = build(name, shape, 2).double()
    plain(batch(shape).double()).square().mean().backward()
    expected = torch.cat([p.grad.flatten() for p in plain.parameters() if p.grad is not None])
    network, _ = bound(name, shape, torch.float64)
    (gradient,) = network.gradient(network.forward(batch(shape).double()).square().mean())
    assert_close(gradient, expected, rtol=1e-9, atol=1e-9)
    assert gradient.abs().sum() > 0


@pytest.mark.usefixtures("small_resnet")  # the real one is compared above
@cases
def test_steps_on_the_vector_are_steps_of_sgd(name: str, shape: tuple[int, ...]) -> None:
    plain = build(name, shape, 2).double()
    sgd = torch.optim.SGD(plain.parameters(), lr=0.05)
    network, x = bound(name, shape, torch.float64)
    for step in range(3):
        sgd.zero_grad()
        outputs = plain(batch(shape, step).double())
        outputs.square().mean().backward()
        sgd.step()
        flat_outputs = network.forward(batch(shape, step).double())
        assert_close(flat_outputs, outputs, rtol=1e-9, atol=1e-9)
        x.sub_(network.gradient(flat_outputs.square().mean())[0], alpha=0.05)
    assert_close(x, torch.cat([p.detach().flatten() for p in plain.parameters()]), rtol=1e-9, atol=1e-9)


def test_binding_copies_nothing_and_follows_the_vector() -> None:
    network, x = bound("mlp", (30,))
    inputs = batch((30,))
    first = network.forward(inputs)
    other = torch.zeros(network.size + 2)  # plus two scalars of a problem
    network.bind(other)
    assert not network.forward(inputs).any()
    other[network.size - 2 : network.size] = torch.tensor([5.0, 6.0])  # the bias of the head
    assert network.forward(inputs).tolist() == [[5.0, 6.0]] * 4
    assert len(network.vector()) == network.size
    x_before = x.clone()
    other.fill_(1.0)
    assert torch.equal(x, x_before)
    network.bind(x)
    assert torch.equal(network.forward(inputs), first)


def test_a_vector_that_requires_a_gradient_can_be_bound() -> None:
    network, x = bound("mlp", (30,))
    network.bind(x.requires_grad_())
    (gradient,) = network.gradient(network.forward(batch((30,))).sum())
    assert not gradient.requires_grad
    assert not network.vector().requires_grad
    assert not any(t.requires_grad for t in network.state_dict(x).values())


@pytest.mark.parametrize("module", [nn.Linear(3, 1, bias=False), build("mlp", (3,))], ids=["one", "several"])
def test_vectors_and_gradients_are_copies(module: nn.Module) -> None:
    network = FlatNetwork(module)
    first, second = (network.gradient(network.forward(batch((3,), seed)).square().sum())[0] for seed in (0, 1))
    vector = network.vector()
    kept = second.clone(), vector.clone(), network.vector()
    first.fill_(-1.0)
    assert torch.equal(second, kept[0])
    assert not torch.equal(second, first)
    kept[2].fill_(-1.0)
    assert torch.equal(network.vector(), kept[1])


def test_extra_gradients_follow_and_unused_ones_are_zero() -> None:
    network, _ = bound("mlp", (30,))
    a, unused = torch.tensor(2.0, requires_grad=True), torch.ones(3, requires_grad=True)
    outputs = network.forward(batch((30,)))
    gradient, by_a, by_unused = network.gradient((a * outputs).sum(), (a, unused))
    assert torch.equal(by_a, outputs.detach().sum())
    assert by_unused.tolist() == [0.0] * 3
    assert len(gradient) == network.size
    (nothing,) = network.gradient((a * a).sum())
    assert not nothing.any()
    assert len(nothing) == network.size


def test_a_shared_parameter_counts_once_and_a_frozen_one_not() -> None:
    plain = Tied()
    network = FlatNetwork(Tied())
    assert network.size == 25 + 5 + 5 + 5
    assert list(network.spans) == ["encoder.weight", "norm.weight", "norm.bias", "decoder.bias"]
    assert network.buffer_size == 10  # without the counter and the non-persistent buffer
    state = network.state_dict(network.vector(), network.buffers())
    plain.load_state_dict(state, strict=True)
    x, buffers = network.flatten(plain.state_dict())
    assert torch.equal(x, network.vector())
    assert torch.equal(buffers, network.buffers())
    network.bind(x)
    plain(batch((5,))).square().sum().backward()
    (gradient,) = network.gradient(network.forward(batch((5,))).square().sum())
    assert plain.encoder.weight.grad is not None
    assert torch.equal(gradient[:25], plain.encoder.weight.grad.flatten())


@cases
def test_the_vector_is_the_parameters_in_order_and_spans_cut_it_into_them(name: str, shape: tuple[int, ...]) -> None:
    module = build(name, shape)
    expected = {key: parameter.detach().clone().flatten() for key, parameter in module.named_parameters()}
    network = FlatNetwork(module)
    x = network.vector()
    assert torch.equal(torch.cat([x[span] for span in network.spans.values()]), x)
    assert len(x) == network.size
    assert list(network.spans) == list(expected)
    assert all(torch.equal(x[network.spans[key]], values) for key, values in expected.items())


def test_binding_keeps_the_vector_alive() -> None:
    network = FlatNetwork(build("mlp", (30,)))
    x = network.vector()
    address, alive = x.data_ptr(), weakref.ref(x)
    network.bind(x)
    del x
    assert alive() is not None
    assert next(network.module.parameters()).data_ptr() == address
    network.bind(network.vector())
    assert alive() is None, "the old vector must be freed when another is bound"


@pytest.mark.parametrize("name", ["resnet18", pytest.param("densenet121", marks=pytest.mark.slow)])
def test_buffers_round_trip_and_evaluation_uses_them(name: str) -> None:
    shape = (1, 16, 16)
    network, _ = bound(name, shape)
    start = network.buffers()
    assert len(start) == network.buffer_size > 0
    network.train(True)
    with torch.no_grad():
        network.forward(batch(shape))
    moved = network.buffers()
    assert not torch.equal(moved, start), "a training pass moves the running statistics"
    network.train(False)
    with torch.no_grad():
        after = network.forward(batch(shape, 1))
        network.load_buffers(start)
        assert torch.equal(network.buffers(), start)
        assert not torch.equal(network.forward(batch(shape, 1)), after)
        network.load_buffers(moved)
        assert torch.equal(network.forward(batch(shape, 1)), after)
        assert torch.equal(network.buffers(), moved), "evaluation does not move them"
        kept = moved.clone()
        network.load_buffers(torch.zeros_like(moved))
    assert torch.equal(moved, kept), "what buffers() returned is a copy"


def test_a_network_without_buffers_has_an_empty_buffer_vector() -> None:
    network, _ = bound("mlp", (30,))
    assert network.buffer_size == 0
    assert network.buffers().shape == (0,)
    network.load_buffers(network.buffers())
    assert network.flatten(network.module.state_dict())[1].shape == (0,)


@pytest.mark.slow
@cases
def test_a_state_dict_makes_the_same_network(name: str, shape: tuple[int, ...]) -> None:
    network, x = bound(name, shape)
    with torch.no_grad():
        for seed in range(3):
            network.forward(batch(shape, seed))  # moves batch-norm statistics and counters
    x.mul_(1.1)
    state = network.state_dict(x)
    assert list(state) == list(network.module.state_dict())
    assert all(t.is_contiguous() and not t.requires_grad for t in state.values())
    fresh = build(name, shape, 2, seed=9)
    fresh.load_state_dict(state, strict=True)
    counters = [key for key in state if key.endswith("num_batches_tracked")]
    assert bool(counters) == (name == "resnet18")
    assert all(state[key] == 3 for key in counters)
    fresh.eval()
    network.train(False)
    with torch.no_grad():
        assert_close(fresh(batch(shape)), network.forward(batch(shape)))

    again, buffers = network.flatten(fresh.state_dict())
    assert torch.equal(again, x)
    assert torch.equal(buffers, network.buffers())
    frozen = {key: value.clone() for key, value in state.items()}
    x.zero_()
    network.load_buffers(torch.zeros_like(buffers))
    assert all(torch.equal(state[key], frozen[key]) for key in state), "a state dict is made of copies"
    assert again.any()


@pytest.mark.slow
def test_a_state_dict_can_be_made_of_any_vectors() -> None:
    network, bound_x = bound("resnet18", (1, 16, 16))
    before = bound_x.clone(), network.buffers()
    x, statistics = torch.rand(network.size + 2), torch.rand(network.buffer_size)
    again, buffers = network.flatten(network.state_dict(x, statistics))
    assert torch.equal(again, x[: network.size])
    assert torch.equal(buffers, statistics)
    assert torch.equal(network.vector(), before[0]), "neither direction changes the network"
    assert torch.equal(network.buffers(), before[1])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 9), st.integers(1, 4), st.integers(0, 3))
def test_any_vector_survives_the_state_dict(seed: int, d: int, hidden: int, outputs: int, more: int) -> None:
    network = FlatNetwork(build("mlp", (d,), outputs, hidden=hidden))
    x = torch.randn(network.size + more, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(network.flatten(network.state_dict(x))[0], x[: network.size])


def test_the_mode_is_switched_only_if_it_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    network, _ = bound("resnet18", (1, 16, 16))
    modes: list[bool] = []
    switch = network.module.train

    def recorded(mode: bool = True) -> nn.Module:
        modes.append(mode)
        return switch(mode)

    monkeypatch.setattr(network.module, "train", recorded)
    for mode in (True, True, False, False, True):
        network.train(mode)
    assert modes == [False, True]


@pytest.mark.usefixtures("small_resnet")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_vectors_are_of_the_modules_dtype(dtype: torch.dtype) -> None:
    network = FlatNetwork(build("resnet18", (1, 16, 16)).to(dtype))
    assert network.vector().dtype == network.buffers().dtype == dtype
    for other in (torch.float32, torch.float64):
        x, buffers = network.flatten(build("resnet18", (1, 16, 16)).to(other).state_dict())
        assert x.dtype == buffers.dtype == dtype


def test_flatten_reports_all_mismatches_at_once() -> None:
    network, _ = bound("resnet18", (1, 16, 16))
    state = network.module.state_dict()
    del state["bn1.running_mean"], state["bn1.num_batches_tracked"]
    state["fc.weight"] = state["fc.weight"].T
    state["head"] = torch.zeros(1)
    with pytest.raises(ModelError) as caught:
        network.flatten(state)
    assert caught.value.value.keys() == {"bn1.running_mean", "bn1.num_batches_tracked", "head", "fc.weight"}


@pytest.mark.parametrize(
    "change",
    [lambda x: x[1:], lambda x: x.double(), lambda x: x.view(1, -1), lambda x: x.to("meta")],
    ids=["too short", "dtype", "shape", "device"],
)
def test_an_unsuitable_vector_is_refused_and_the_old_one_stays(change: Callable[[Tensor], Tensor]) -> None:
    network = FlatNetwork(build("linear", (30,)))
    x = network.vector()
    with pytest.raises(ModelError) as caught:
        network.bind(change(x))
    assert caught.value.key == "x"
    assert torch.equal(network.vector(), x)


def test_wrong_lengths_are_refused() -> None:
    network, x = bound("resnet18", (1, 16, 16))
    calls: list[tuple[str, Callable[[], object]]] = [
        ("buffers", lambda: network.load_buffers(torch.ones(1))),  # would be broadcast
        ("buffers", lambda: network.state_dict(x, torch.ones(9601))),
        ("x", lambda: network.state_dict(x[1:])),
    ]
    for key, call in calls:
        with pytest.raises(ModelError) as caught:
            call()
        assert caught.value.key == key


@pytest.mark.parametrize(
    ("module", "key"), [(nn.ReLU(), "parameters"), (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1).double()), "dtype")]
)
def test_a_module_that_no_vector_can_hold_is_refused(module: nn.Module, key: str) -> None:
    with pytest.raises(ModelError) as caught:
        FlatNetwork(module)
    assert caught.value.key == key


def test_the_head_includes_its_layers_statistics() -> None:
    layers = [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 1)]
    names = {name for name in nn.Sequential(*layers).state_dict() if name[0] in "234"}
    assert len(names) == 1 + 5 + 2
    assert FlatNetwork(nn.Sequential(*layers), "2").head_names() == names


def test_a_single_sample_is_refused_in_training_only() -> None:
    network = FlatNetwork(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    network.train(True)
    with pytest.raises(ModelError) as caught:
        network.forward(torch.zeros(1, 3))
    assert (caught.value.key, caught.value.value) == ("batch-size", 1)
    assert network.forward(torch.zeros(2, 3)).shape == (2, 4)
    network.train(False)
    assert network.forward(torch.zeros(1, 3)).shape == (1, 4)
