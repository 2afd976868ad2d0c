"""torchvision's weights from files that torchvision itself writes, on its networks as built here."""

from __future__ import annotations

import io
import re
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from edelweiss.datasets.vision import import_torchvision
from edelweiss.models import STEMS, FlatNetwork, ModelError, build
from edelweiss.models.pretrained import adapt_weights, read_weights

LARGE = (3, 66, 65)  # images that keep torchvision's first convolution


@cache
def published(name: str) -> nn.Module:
    """Return torchvision's network with random weights, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        module: nn.Module = import_torchvision().models.get_model(name.replace("-", "_"), weights=None).eval()
    return module


def saved(holding: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(holding, file, **options)
    return file.getvalue()


def loaded(name: str, shape: tuple[int, ...], outputs: int, module: nn.Module) -> tuple[nn.Module, list[str]]:
    """Return our network with the weights of torchvision's, and the deviations."""
    network = FlatNetwork(build(name, shape, outputs, seed=1))
    state, said = adapt_weights(name, network, read_weights(saved(module.state_dict())))
    x, buffers = network.flatten(state)
    network.bind(x)
    network.load_buffers(buffers)
    network.train(False)
    return network.module, said


def old_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a state as in DenseNet's old files: with dots in module names and without BatchNorm's counters."""
    renamed = {re.sub(r"(denselayer\d+\.(?:norm|conv))([12])", r"\1.\2", name): t for name, t in state.items()}
    return {name: tensor for name, tensor in renamed.items() if not name.endswith("num_batches_tracked")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name if name == "resnet18" else pytest.param(name, marks=pytest.mark.slow)
        for name in STEMS
        if name not in ("resnet50", "densenet161")
    ],
)
def test_with_the_same_outputs_it_is_torchvisions_network(name: str) -> None:
    theirs = published(name)
    ours, said = loaded(name, LARGE, 1000, theirs)
    assert said == []
    with torch.no_grad():
        images = torch.rand(2, *LARGE)
        torch.testing.assert_close(ours(images), theirs(images))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", pytest.param("densenet121", marks=pytest.mark.slow)])
def test_with_other_outputs_the_classifier_is_initialised_from_the_seed(name: str) -> None:
    theirs = published(name)
    ours, [said] = loaded(name, LARGE, 2, theirs)
    classifier = said.split()[0]
    drawn, given = build(name, LARGE, 2, seed=1).state_dict(), theirs.state_dict()
    for key, tensor in ours.state_dict().items():
        assert torch.equal(tensor, drawn[key] if key.startswith(f"{classifier}.") else given[key]), key


@pytest.mark.slow
def test_one_channel_is_equivalent_to_three_equal_ones() -> None:
    theirs = published("resnet18")
    ours, said = loaded("resnet18", (1, *LARGE[1:]), 1000, theirs)
    assert len(said) == 1
    grey = torch.rand(2, 1, *LARGE[1:])
    with torch.no_grad():
        torch.testing.assert_close(ours(grey), theirs(grey.expand(-1, 3, -1, -1)))


@pytest.mark.slow
def test_small_images_keep_their_initialised_first_convolution() -> None:
    theirs, shape = published("resnet18"), (1, 32, 32)
    ours, said = loaded("resnet18", shape, 1000, theirs)
    assert len(said) == 1
    state, drawn = ours.state_dict(), build("resnet18", shape, 1000, seed=1).state_dict()
    assert torch.equal(state["conv1.weight"], drawn["conv1.weight"])
    assert torch.equal(state["layer1.0.conv1.weight"], theirs.state_dict()["layer1.0.conv1.weight"])
    assert loaded("efficientnet-b0", (3, 32, 32), 1000, published("efficientnet-b0"))[1] == [], "3x3 there as well"


def test_an_old_densenet_file_is_read() -> None:
    """With old names, without counters, in the old format."""
    state = published("densenet121").state_dict()
    old = old_names(state)
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    network = FlatNetwork(build("densenet121", LARGE, 1000))
    weights = read_weights(saved(old, _use_new_zipfile_serialization=False))
    x, buffers = network.flatten(adapt_weights("densenet121", network, weights)[0])
    expected_x, expected_buffers = network.flatten(state)
    assert torch.equal(x, expected_x)
    assert torch.equal(buffers, expected_buffers)


@pytest.mark.slow
def test_another_architecture_or_number_of_channels_does_not_fit() -> None:
    network = FlatNetwork(build("resnet18", LARGE, 1000))
    state, _ = adapt_weights("resnet18", network, published("efficientnet-b0").state_dict())
    assert len(network.mismatches(state)) > 100
    network = FlatNetwork(build("resnet18", (2, *LARGE[1:]), 1000))
    state, said = adapt_weights("resnet18", network, published("resnet18").state_dict())
    assert (list(network.mismatches(state)), said) == (["conv1.weight"], [])


class Harmful:
    """Executes code when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('this was executed')",)


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (b"", "file"),
        (b"<html>not found</html>", "file"),
        (saved({"a": torch.zeros(9)})[:-90], "file"),
        (saved({"a": Harmful()}), "file"),
        (saved(torch.zeros(3)), "state"),
        (saved({"epoch": 3, "state_dict": {"a": torch.zeros(3)}}), "state"),
    ],
    ids=["empty", "a page", "cut off", "code", "a tensor", "a checkpoint"],
)
def test_other_files_are_refused(data: bytes, key: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_weights(data)
    assert caught.value.key == key
