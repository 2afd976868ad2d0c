"""torchvision's weights from a file, on its networks as they are built here. torchvision itself makes the files."""

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
from edelweiss.models.pretrained import fitted, read_weights

LARGE = (3, 66, 65)  # images that keep torchvision's first convolution


@cache
def published(name: str) -> nn.Module:
    """Return torchvision's own network, with random weights, for evaluation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        module: nn.Module = import_torchvision().models.get_model(name.replace("-", "_"), weights=None).eval()
    return module


def saved(holding: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(holding, file, **options)
    return file.getvalue()


def loaded(name: str, shape: tuple[int, ...], outputs: int, module: nn.Module) -> tuple[nn.Module, list[str]]:
    """Return a network of ours with the weights of torchvision's, and what was said."""
    network = FlatNetwork(build(name, shape, outputs, seed=1))
    state, said = fitted(name, network, read_weights(saved(module.state_dict())))
    x, buffers = network.flatten(state)
    network.bind(x)
    network.load_buffers(buffers)
    network.train(False)
    return network.module, said


def old_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a state as published for DenseNet before modules lost their points, and BatchNorm had no counters."""
    renamed = {re.sub(r"(denselayer\d+\.(?:norm|conv))([12])", r"\1.\2", name): t for name, t in state.items()}
    return {name: tensor for name, tensor in renamed.items() if not name.endswith("num_batches_tracked")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [  # but for those that are as others
        name if name == "resnet18" else pytest.param(name, marks=pytest.mark.slow)
        for name in STEMS
        if name not in ("resnet50", "densenet161")
    ],
)
def test_with_the_files_classifier_it_is_torchvisions_network(name: str) -> None:
    theirs = published(name)
    ours, said = loaded(name, LARGE, 1000, theirs)
    assert said == []
    with torch.no_grad():
        images = torch.rand(2, *LARGE)
        torch.testing.assert_close(ours(images), theirs(images))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", pytest.param("densenet121", marks=pytest.mark.slow)])
def test_another_classifier_is_drawn_by_the_seed_and_the_body_is_the_files(name: str) -> None:
    theirs = published(name)
    ours, [said] = loaded(name, LARGE, 2, theirs)
    classifier = said.removesuffix(" drawn anew")
    drawn, given = build(name, LARGE, 2, seed=1).state_dict(), theirs.state_dict()
    for key, tensor in ours.state_dict().items():
        assert torch.equal(tensor, drawn[key] if key.startswith(f"{classifier}.") else given[key]), key


@pytest.mark.slow
def test_one_channel_sees_what_three_equal_ones_would() -> None:
    theirs = published("resnet18")
    ours, said = loaded("resnet18", (1, *LARGE[1:]), 1000, theirs)
    assert said == ["conv1 summed over the colours"]
    grey = torch.rand(2, 1, *LARGE[1:])
    with torch.no_grad():
        torch.testing.assert_close(ours(grey), theirs(grey.expand(-1, 3, -1, -1)))


@pytest.mark.slow
def test_small_images_have_a_first_convolution_of_their_own() -> None:
    theirs, shape = published("resnet18"), (1, 32, 32)
    ours, said = loaded("resnet18", shape, 1000, theirs)
    assert said == ["conv1 drawn anew, which for images of this size is 3x3"]
    state, drawn = ours.state_dict(), build("resnet18", shape, 1000, seed=1).state_dict()
    assert torch.equal(state["conv1.weight"], drawn["conv1.weight"])
    assert torch.equal(state["layer1.0.conv1.weight"], theirs.state_dict()["layer1.0.conv1.weight"])
    assert loaded("efficientnet-b0", (3, 32, 32), 1000, published("efficientnet-b0"))[1] == [], "3x3 there as well"


def test_a_file_of_densenets_time_is_read() -> None:
    """With old names, without counters, in the format of then."""
    state = published("densenet121").state_dict()
    old = old_names(state)
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    network = FlatNetwork(build("densenet121", LARGE, 1000))
    weights = read_weights(saved(old, _use_new_zipfile_serialization=False))
    x, buffers = network.flatten(fitted("densenet121", network, weights)[0])
    expected_x, expected_buffers = network.flatten(state)
    assert torch.equal(x, expected_x)
    assert torch.equal(buffers, expected_buffers)


@pytest.mark.slow
def test_the_network_of_another_name_or_other_channels_does_not_fit() -> None:
    network = FlatNetwork(build("resnet18", LARGE, 1000))
    state, _ = fitted("resnet18", network, published("efficientnet-b0").state_dict())
    assert len(network.misfits(state)) > 100
    network = FlatNetwork(build("resnet18", (2, *LARGE[1:]), 1000))
    state, said = fitted("resnet18", network, published("resnet18").state_dict())
    assert (list(network.misfits(state)), said) == (["conv1.weight"], [])


class Harmful:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('this was executed')",)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it is damaged, or holds more than tensors"),
        (b"<html>not found</html>", "it is damaged, or holds more than tensors"),
        (saved({"a": torch.zeros(9)})[:-90], "it is damaged, or holds more than tensors"),
        (saved({"a": Harmful()}), "it is damaged, or holds more than tensors"),
        (saved(torch.zeros(3)), "it holds no state dict"),
        (saved({"epoch": 3, "state_dict": {"a": torch.zeros(3)}}), "it holds no state dict"),
    ],
    ids=["empty", "a page", "cut off", "code", "a tensor", "a checkpoint"],
)
def test_what_is_no_file_of_weights_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        read_weights(data)
