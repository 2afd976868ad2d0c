"""The built-in networks: published sizes, shapes, seeds and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from edelweiss.models import MODELS, FlatNetwork, ModelError, build, networks, tracks_statistics
from edelweiss.models.dropout import Dropout
from edelweiss.models.torchvision import STEMS

VECTOR, GREY, COLOUR = (30,), (1, 28, 28), (3, 32, 32)
CNNS = ("lenet5", "cnn-mnist", "cnn-cifar")
PLAIN = ("alexnet", "vgg11", "cnn7")
DEEP = ("resnet18", "resnet50", "densenet121", "efficientnet-b0")
SMALLEST = {name: 17 if name == "efficientnet-b0" else 16 for name in (*PLAIN, *DEEP)}
TWINS = ("resnet50", "densenet161")  # built as resnet18 and densenet121 are, in two or three times the time
HEAVY = ("alexnet", "densenet121", "efficientnet-b0")  # each as much as all others


def some(*names: str) -> list[Any]:
    """Return the names as parameters, the heavy ones marked slow."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in HEAVY else name for name in names]


DISTINCT = some(*(name for name in MODELS if name not in TWINS))


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def outlined(name: str, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a network on the meta device, which is fast to build."""
    with torch.device("meta"):
        return networks.MODELS[name](name, shape, outputs, 64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "outputs", "published"),
    [
        ("linear", VECTOR, 1, 31),
        ("mlp", VECTOR, 1, 30 * 64 + 64 + 64 * 64 + 64 + 64 + 1),
        ("lenet5", GREY, 10, 61_706),  # the count usually given for LeNet-5 with a full second convolution
        ("lenet5", (1, 32, 32), 10, 61_706),  # the frame is the padding
        ("cnn-mnist", GREY, 1, 426_571),
        ("cnn-mnist", GREY, 10, 431_080),  # Caffe's LeNet
        ("cnn-cifar", GREY, 10, 1_663_370),  # McMahan et al. 2017, section 3
        ("resnet18", COLOUR, 10, 11_173_962),  # the usual form for CIFAR-10
        ("resnet18", (3, 224, 224), 1000, 11_689_512),  # torchvision's pages
        ("resnet50", (3, 224, 224), 1000, 25_557_032),
        ("densenet121", (3, 224, 224), 1000, 7_978_856),
        ("densenet161", (3, 224, 224), 1000, 28_681_000),
        ("efficientnet-b0", (3, 224, 224), 1000, 5_288_548),
    ],
)
def test_parameter_counts_are_the_published_ones(
    name: str, shape: tuple[int, ...], outputs: int, published: int
) -> None:
    assert size(outlined(name, shape, outputs)) == published


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, shape) for name in ("linear", "mlp", "dnn") for shape in (VECTOR, GREY, COLOUR)]
    + [(name, shape) for name in (*CNNS, "conv4", *PLAIN) for shape in (GREY, COLOUR)]
    + [("lenet5", (2, 12, 17)), ("cnn-mnist", (2, 16, 23)), ("cnn-cifar", (2, 4, 7))]
    + [(name, shape) for name in DEEP if name not in TWINS for shape in (COLOUR, (1, 65, 69))],
)
def test_forward_maps_a_batch_to_outputs(name: str, shape: tuple[int, ...]) -> None:
    with torch.no_grad():
        scores = build(name, shape, 3)(torch.rand(2, *shape))
    assert scores.shape == (2, 3)
    assert scores.isfinite().all()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(CNNS), st.integers(1, 3), st.integers(1, 70), st.integers(1, 70))
def test_every_image_is_accepted_or_refused_when_the_network_is_built(name: str, c: int, h: int, w: int) -> None:
    try:
        module = build(name, (c, h, w))
    except ModelError:
        assert min(h, w) < 16
    else:
        with torch.no_grad():
            assert module(torch.rand(2, c, h, w)).shape == (2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", some(*DEEP))
def test_one_smallest_image_is_a_training_batch(name: str) -> None:
    shape = (1, SMALLEST[name], SMALLEST[name])
    module = build(name, shape).train()
    with torch.no_grad():
        assert module(torch.rand(1, *shape)).isfinite().all()


@pytest.mark.parametrize(("side", "stride"), [(64, 1), (65, 2)])
@pytest.mark.parametrize("name", some(*DEEP))
def test_the_first_convolution_halves_only_images_of_more_than_64_pixels(name: str, side: int, stride: int) -> None:
    """Both sides count: an image with one short side is small."""
    for shape in ((3, side, side), (3, side, 2 * side), (3, 2 * side, side)):
        assert outlined(name, shape, 1).get_submodule(STEMS[name]).stride == (stride, stride)


@pytest.mark.parametrize("name", DISTINCT)
def test_the_head_is_the_end_of_the_vector(name: str) -> None:
    """The head is linear and applied last: twice the tail of the vector is twice the output."""
    module = build(name, COLOUR, 2)
    head = list(module.modules())[-1]
    assert isinstance(head, nn.Linear)
    network = FlatNetwork(module)
    network.train(False)
    x = network.vector()
    network.bind(x)
    inputs = torch.rand(2, *COLOUR)
    with torch.no_grad():
        before = network.forward(inputs)
        x[-(head.weight.numel() + head.bias.numel()) :] *= 2
        torch.testing.assert_close(network.forward(inputs), 2 * before)


@pytest.mark.parametrize("name", CNNS)
def test_pooling_before_relu_is_the_same_function(name: str) -> None:
    body = build(name, COLOUR).get_submodule("body")
    assert isinstance(body, nn.Sequential)
    layers = list(body)
    order = [0, 2, 1, 3, 5, 4, *range(6, len(layers))]  # convolution, ReLU, pooling, as the papers print it
    swapped = nn.Sequential(*[layers[i] for i in order])
    assert [type(layer) for layer in list(swapped)[:3]] == [nn.Conv2d, nn.ReLU, nn.MaxPool2d]
    inputs = torch.randn(2, *COLOUR)
    assert torch.equal(body(inputs), swapped(inputs))


@pytest.mark.slow
@pytest.mark.parametrize("name", DISTINCT)
def test_the_initialisation_depends_on_the_seed_alone(name: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    module = build(name, COLOUR, seed=7)
    assert module.training
    assert all(p.dtype == torch.float32 and p.requires_grad for p in module.parameters())
    first = module.state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.initial_seed() == 1
    torch.manual_seed(2)
    second = build(name, COLOUR, seed=7).state_dict()
    other = build(name, COLOUR, seed=8).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    weights = [key for key in first if key.endswith("weight") and first[key].ndim > 1]
    assert not any(torch.equal(first[key], other[key]) for key in weights)


def test_no_other_generator_is_reseeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with GPUs, torch.manual_seed reseeds each of them."""
    reseeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", reseeded.append)
    build("linear", VECTOR, seed=7)
    assert not reseeded


def test_hidden_is_the_width_of_mlp() -> None:
    assert size(build("mlp", VECTOR, hidden=5)) == 30 * 5 + 5 + 5 * 5 + 5 + 5 + 1
    assert size(build("cnn-mnist", GREY, hidden=5)) == 426_571


def test_conv4_is_the_few_shot_network() -> None:
    """Four strided convolutions of `hidden` channels; batch norm uses the batch's statistics, in evaluation as well."""
    module = build("conv4", GREY, 5, hidden=64)
    assert size(module) == 9 * 64 + 3 * 9 * 64**2 + 4 * 2 * 64 + 64 * 5 + 5
    assert not list(module.buffers())
    images = torch.rand(6, *GREY, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        training = module.train()(images)
        assert torch.equal(module.eval()(images), training)
        assert not torch.allclose(module(images[:3]), training[:3], rtol=1e-3), "others in the batch matter"
        sides = [layer.stride for layer in module.modules() if isinstance(layer, torch.nn.Conv2d)]
    assert sides == [(2, 2)] * 4


def test_conv4_trains_on_a_single_smallest_image() -> None:
    with torch.no_grad():
        assert build("conv4", (1, 17, 17))(torch.rand(1, 1, 17, 17)).isfinite().all()
    with pytest.raises(ModelError) as caught:
        build("conv4", (1, 16, 28))
    assert caught.value.allowed == 17


@pytest.mark.parametrize(
    ("name", "shape", "allowed"),
    [
        ("lenet5", VECTOR, 12),
        ("lenet5", (1, 28, 11), 12),
        ("cnn-mnist", (1, 15, 28), 16),
        ("cnn-cifar", (28, 28), 4),
        ("cnn-cifar", (1, 3, 28), 4),
        ("conv4", VECTOR, 17),
        ("conv4", (1, 28, 16), 17),
        *((name, (3, n - 1, 40), n) for name, n in SMALLEST.items()),
        ("vgg11", VECTOR, 16),
        ("mlp", (), 1),
        ("mlp", (1, 0, 28), 1),
    ],
)
def test_an_unsuitable_shape_is_refused(name: str, shape: tuple[int, ...], allowed: int) -> None:
    with pytest.raises(ModelError) as caught:
        build(name, shape)
    assert (caught.value.key, caught.value.allowed) == ("shape", allowed)
    assert repr(name) in str(caught.value)
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize(("name", "meant"), [("resnet81", "resnet18"), ("cnn_mnist", "cnn-mnist"), ("xyz", "linear")])
def test_an_unknown_model_is_refused_with_a_suggestion(name: str, meant: str) -> None:
    with pytest.raises(ModelError) as caught:
        build(name, COLOUR)
    assert (caught.value.key, caught.value.value) == ("model", name)
    assert meant in str(caught.value)


@pytest.mark.slow
def test_models_that_track_statistics_are_known() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    distinct = set(MODELS) - set(TWINS)
    found = {name for name in distinct if tracks_statistics(name)}
    assert torch.equal(torch.get_rng_state(), before)
    for name in distinct:
        layers = outlined(name, COLOUR, 1).modules()
        assert (name in found) == any(getattr(layer, "track_running_stats", False) for layer in layers), name
    for name in ("vgg11", "conv4", "resnet18"):
        assert (name in found) == (FlatNetwork(build(name, COLOUR)).buffer_size > 0), name


@pytest.mark.parametrize("wrong", [{"outputs": 0}, {"hidden": 0}])
def test_widths_are_at_least_one(wrong: dict[str, int]) -> None:
    with pytest.raises(ModelError) as caught:
        build("mlp", VECTOR, **wrong)
    assert caught.value.allowed == 1


# ---------------------------------------------------------------------- the networks of DePRL

# Tables 4 to 6, row by row: (inputs, outputs, stride) of a 3 x 3 convolution with padding 1, (inputs, outputs) of a
# fully connected layer, the rate of a dropout. `_vgg11` and `_alexnet` say which rows contradict themselves.
TABLE_4 = [
    *[(3, 64, 1), "pool", (64, 128, 1), (128, 128, 1), "pool", (128, 256, 1), (256, 256, 1), "pool"],
    *[(256, 512, 1), (512, 512, 1), "pool", (512, 512, 1), "pool"],
    *[0.2, (512, 512), (512, 512), 0.2, (512, 100)],
]
TABLE_5 = [
    *[(3, 64, 2), "pool", (64, 192, 1), "pool", (192, 384, 1), (384, 256, 1), (256, 256, 1), "pool"],
    *[0.2, (1024, 4096), 0.2, (4096, 4096), (4096, 10)],
]
TABLE_6 = [(900, 512), 0.05, (512, 256), 0.05, (256, 128), 0.05, (128, 64), (64, 5)]


def rows(module: nn.Module) -> list[object]:
    """Return a network in the form of these tables."""
    found: list[object] = []
    for layer in module.modules():
        match layer:
            case nn.Conv2d(kernel_size=(3, 3), padding=(1, 1)):
                found.append((layer.in_channels, layer.out_channels, layer.stride[0]))
            case nn.Linear():
                found.append((layer.in_features, layer.out_features))
            case nn.MaxPool2d(kernel_size=2, stride=2, padding=0):
                found.append("pool")
            case Dropout():
                found.append(layer.p)
            case nn.ReLU() | nn.Flatten() | nn.Sequential() | nn.AdaptiveAvgPool2d():
                pass
            case _:
                found.append(layer)
    return found


@pytest.mark.parametrize(
    ("name", "shape", "printed", "parameters"),
    [
        (
            "vgg11",
            COLOUR,
            TABLE_4,
            9 * (3 * 64 + 64 * 128 + 128 * 128 + 128 * 256 + 256 * 256 + 256 * 512 + 512 * 512 + 512 * 512)
            + (64 + 128 + 128 + 256 + 256 + 512 + 512 + 512)
            + (512 * 512 + 512 + 512 * 512 + 512 + 512 * 100 + 100),
        ),
        (
            "alexnet",
            COLOUR,
            TABLE_5,
            9 * (3 * 64 + 64 * 192 + 192 * 384 + 384 * 256 + 256 * 256)
            + (64 + 192 + 384 + 256 + 256)
            + (1024 * 4096 + 4096 + 4096 * 4096 + 4096 + 4096 * 10 + 10),
        ),
        ("dnn", (900,), TABLE_6, 900 * 512 + 512 + 512 * 256 + 256 + 256 * 128 + 128 + 128 * 64 + 64 + 64 * 5 + 5),
    ],
)
def test_deprls_networks_match_its_tables(
    name: str, shape: tuple[int, ...], printed: list[object], parameters: int
) -> None:
    last = printed[-1]
    assert isinstance(last, tuple)
    module = build(name, shape, last[1])
    assert rows(module) == printed
    assert size(module) == parameters
    weighted = sum(isinstance(row, tuple) for row in printed)
    assert sum(isinstance(layer, nn.ReLU) for layer in module.modules()) == weighted - 1, "after all but the head"


@pytest.mark.slow
def test_a_grey_image_of_28_pixels_is_padded_to_the_tables_size() -> None:
    """The paper uses AlexNet for Fashion-MNIST, but its table assumes 32 pixels."""
    module = build("alexnet", GREY, 10).eval()
    assert size(module) == size(build("alexnet", (1, 32, 32), 10))
    framed = build("alexnet", (1, 32, 32), 10).eval()
    framed.load_state_dict(module.state_dict())
    image = torch.rand(2, *GREY)
    with torch.no_grad():
        torch.testing.assert_close(module(image), framed(nn.functional.pad(image, (2, 2, 2, 2))))


def test_cnn7_has_seven_layers_with_weights() -> None:
    counted = [isinstance(layer, nn.Conv2d | nn.Linear) for layer in build("cnn7", COLOUR).modules()]
    assert sum(counted) == 7


def widths(module: nn.Module) -> list[int]:
    """Return the input widths of the fully connected layers, and the output width of the last."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    return [layer.in_features for layer in layers] + [layers[-1].out_features]


@pytest.mark.parametrize("name", PLAIN)
def test_deep_networks_without_normalisation_start_at_the_scale_of_their_inputs(name: str) -> None:
    """With PyTorch's default initialisation features shrink to a thousandth of the inputs, and training stalls."""
    inputs = torch.randn(16, *COLOUR, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = build(name, COLOUR).get_submodule("body")(inputs)
    assert 0.05 < features.square().mean().sqrt() < 5


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(st.sampled_from(PLAIN), st.integers(1, 3), st.integers(12, 70), st.integers(12, 70))
def test_images_of_every_size_fit_the_same_classifier(name: str, c: int, h: int, w: int) -> None:
    try:
        module = build(name, (c, h, w)).eval()
    except ModelError:
        assert min(h, w) < 16
    else:
        assert widths(module) == widths(build(name, COLOUR))
        with torch.no_grad():
            assert module(torch.rand(1, c, h, w)).shape == (1, 1)
