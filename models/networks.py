"""The built-in networks, sized from the shape of one input."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, partial
from math import prod
from typing import Any

import torch
from torch import nn

from edelweiss.common import PlugInError, Registry, shown
from edelweiss.common.identity import name_of
from edelweiss.common.memory import shortage
from edelweiss.models.dropout import Dropout
from edelweiss.models.errors import ModelError
from edelweiss.models.layout import statistics
from edelweiss.models.shapes import SMALLEST_IMAGE, Shape, image
from edelweiss.models.torchvision import densenet, densenet_gn, efficientnet, resnet, resnet_gn

Builder = Callable[[str, Shape, int, int], nn.Module]
"""Builds a network: its name, the shape of an input, outputs, hidden."""

_FRAME = 32  # pixels; vgg11, alexnet and cnn7 pad smaller images to this size
_ANY = (3, 32, 32)  # a shape that every model accepts


def _body_and_head(body: list[nn.Module], width: int, outputs: int) -> nn.Module:
    return nn.Sequential(OrderedDict(body=nn.Sequential(*body), head=nn.Linear(width, outputs)))


def _dense(before: int, *rows: float) -> list[nn.Module]:
    """Build fully connected layers: an int is the width of a layer with ReLU, a float the rate of a dropout."""
    layers: list[nn.Module] = []
    for row in rows:
        if isinstance(row, int):
            layers += [nn.Linear(before, row), nn.ReLU()]
            before = row
        else:
            layers.append(Dropout(row))
    return layers


def _linear(name: str, shape: Shape, outputs: int, hidden: int) -> nn.Module:
    """One layer on any shape, flattened."""
    return _body_and_head([nn.Flatten()], prod(shape), outputs)


def _mlp(name: str, shape: Shape, outputs: int, hidden: int) -> nn.Module:
    """Two layers of ``hidden`` units on any shape, flattened."""
    body: list[nn.Module] = [nn.Flatten(), *_dense(prod(shape), hidden, hidden)]
    if name.endswith("-bn"):  # between each layer and its ReLU
        body[2:2], body[5:5] = [nn.BatchNorm1d(hidden)], [nn.BatchNorm1d(hidden)]
    return _body_and_head(body, hidden, outputs)


def _dnn(name: str, shape: Shape, outputs: int, hidden: int) -> nn.Module:
    """DePRL's network for HARBox (Xiong et al. 2024, Table 6), on any shape, flattened; 900 features there."""
    rows = (512, 0.05, 256, 0.05, 128, 0.05, 64)
    return _body_and_head([nn.Flatten(), *_dense(prod(shape), *rows)], 64, outputs)


def _cnn(
    name: str,
    shape: Shape,
    outputs: int,
    hidden: int,
    *,
    channels: tuple[int, ...],
    padding: tuple[int, ...],
    widths: tuple[int, ...],
) -> nn.Module:
    """Blocks of a 5 x 5 convolution and a 2 x 2 pooling, then fully connected layers."""
    smallest = 1
    for pad in reversed(padding):
        smallest = 2 * smallest + 4 - 2 * pad
    before, height, width = image(name, shape, smallest)
    layers: list[nn.Module] = []
    for after, pad in zip(channels, padding, strict=True):
        # ReLU is monotone, so it commutes with the maximum; after pooling it has a quarter of the work.
        layers += [nn.Conv2d(before, after, 5, padding=pad), nn.MaxPool2d(2), nn.ReLU()]
        before, height, width = after, (height + 2 * pad - 4) // 2, (width + 2 * pad - 4) // 2
    layers += [nn.Flatten(), *_dense(before * height * width, *widths)]
    return _body_and_head(layers, widths[-1], outputs)


def _lenet5(name: str, shape: Shape, outputs: int, hidden: int) -> nn.Module:
    """LeNet-5 (LeCun et al. 1998) in its modern form: max-pooling and ReLU. Images under 32 pixels are padded by 2.

    AdaFGDA's network for MNIST (Huang et al. 2024, section 6.2), which gives no details.
    """
    # The original padded digits of 28 pixels to 32.
    padding = (2 if min(shape[1:], default=0) < 32 else 0, 0)
    return _cnn(name, shape, outputs, hidden, channels=(6, 16), padding=padding, widths=(120, 84))


def _plain_deep(
    name: str,
    shape: Shape,
    outputs: int,
    hidden: int,
    *,
    blocks: tuple[tuple[int, ...], ...],
    stride: int,
    side: int,
    rows: tuple[float, ...],
) -> nn.Module:
    """Blocks of 3 x 3 convolutions, each followed by a 2 x 2 pooling, then ``rows`` of `_dense`.

    The first convolution has the stride. A 32 x 32 image gives ``side`` x ``side`` features; the first convolution pads
    smaller images to that size, adaptive pooling reduces larger ones. Convolutions are initialised as in He et al.
    2015: without normalisation, PyTorch's default shrinks the signal by a factor of 2.4 per layer.
    """
    before, *sides = image(name, shape, SMALLEST_IMAGE)
    padding = tuple(1 + max(0, _FRAME - length + 1) // 2 for length in sides)
    layers: list[nn.Module] = []
    for block in blocks:
        for after in block:
            form = (1, 1) if layers else (stride, padding)
            convolution = nn.Conv2d(before, after, 3, *form)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]  # not None here
            layers += [convolution, nn.ReLU()]
            before = after
        layers[-1:] = [nn.MaxPool2d(2), nn.ReLU()]  # they commute, as in `_cnn`
    widths = [before * side * side, *(row for row in rows if isinstance(row, int))]
    layers += [nn.AdaptiveAvgPool2d(side), nn.Flatten(), *_dense(widths[0], *rows)]
    return _body_and_head(layers, widths[-1], outputs)


def _vgg11(name: str, shape: Shape, outputs: int, hidden: int) -> nn.Module:
    """DePRL's network for CIFAR-10 (Xiong et al. 2024, Table 4), after Simonyan & Zisserman 2015.

    The third convolution has 128 channels there, not 256. One line of the table is inconsistent: its first fully
    connected layer takes 4096 features, which no square image gives with 512 channels. The table's five poolings leave
    one pixel of a 32 x 32 image, so the layer takes 512 here. All else is as printed.
    """
    blocks, rows = ((64,), (128, 128), (256, 256), (512, 512), (512,)), (0.2, 512, 512, 0.2)
    return _plain_deep(name, shape, outputs, hidden, blocks=blocks, stride=1, side=1, rows=rows)


def _alexnet(name: str, shape: Shape, outputs: int, hidden: int) -> nn.Module:
    """DePRL's network for Fashion-MNIST (Xiong et al. 2024, Table 5), after Krizhevsky et al. 2012.

    Where a layer's weight and bias in the table disagree on its width (second to fourth convolution, first two fully
    connected layers), the weight is used, since the next layer agrees with it. The table assumes three channels and
    32 x 32 pixels, which give its 1024 features: images of 28 pixels are padded, and a grey image keeps its one
    channel, which is equivalent to three equal ones.
    """
    blocks, rows = ((64,), (192,), (384, 256, 256)), (0.2, 4096, 0.2, 4096)
    return _plain_deep(name, shape, outputs, hidden, blocks=blocks, stride=2, side=2, rows=rows)


def _conv4(name: str, shape: Shape, outputs: int, hidden: int) -> nn.Module:
    """The few-shot network of MAML on Omniglot (Finn et al. 2017, after Vinyals et al. 2016).

    Four 3 x 3 convolutions of ``hidden`` channels (64 there) with stride 2 rather than pooling, each with batch norm
    and ReLU, then the mean over the image. Batch norm uses the batch's statistics, in evaluation as well, and tracks
    none. FCSG (Wu et al. 2023, section 5.2) also uses this network, but lists ReLU first, unlike the paper it cites.
    """
    before = image(name, shape, 17)[0]  # leaves 2 x 2 pixels after the four strides, so that batch norm can train
    layers: list[nn.Module] = []
    for _ in range(4):
        convolution = nn.Conv2d(before, hidden, 3, stride=2, padding=1, bias=False)  # batch norm has one
        layers += [convolution, nn.BatchNorm2d(hidden, track_running_stats=False), nn.ReLU()]
        before = hidden
    return _body_and_head([*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()], hidden, outputs)


_BUILT_IN: dict[str, Builder] = {
    "linear": _linear,
    "mlp": _mlp,
    "mlp-bn": _mlp,
    "dnn": _dnn,
    "lenet5": _lenet5,
    # The widths of Caffe's LeNet (Jia et al. 2014).
    "cnn-mnist": partial(_cnn, channels=(20, 50), padding=(0, 0), widths=(500,)),
    # The CNN of FedAvg (McMahan et al. 2017).
    "cnn-cifar": partial(_cnn, channels=(32, 64), padding=(2, 2), widths=(512,)),
    "conv4": _conv4,
    # AdaFGDA's network for CIFAR-10 has 7 layers (Huang et al. 2024, section 6.2, without details): our choice.
    "cnn7": partial(_plain_deep, blocks=((32, 32), (64, 64), (128, 128)), stride=1, side=4, rows=()),
    "alexnet": _alexnet,
    "vgg11": _vgg11,
    # He et al. 2016. DePRL's Table 3 omits the strides of 2 between stages and has a redundant bias before batch norm.
    "resnet18": resnet,
    "resnet50": resnet,
    "densenet121": densenet,  # Huang et al. 2017
    "densenet161": densenet,
    # Wu & He 2018: with group norm a sample's outputs do not depend on the others of its batch.
    "resnet18-gn": resnet_gn,
    "resnet50-gn": resnet_gn,
    "densenet121-gn": densenet_gn,
    "densenet161-gn": densenet_gn,
    "efficientnet-b0": efficientnet,  # Tan & Le 2019: dropout and stochastic depth
}


def _accept(name: str, make: Any) -> tuple[str, Builder]:
    """Check a network from outside: a class or a function that returns an ``nn.Module``, from arguments by name."""
    if isinstance(make, nn.Module) or not callable(make):
        raise PlugInError(
            f"model {shown(make)}: must be a class or a function that returns an nn.Module, so that each process "
            "builds it from the run's seed"
        )
    return name or name_of(make), partial(_own, make)


def _own(make: Callable[..., Any], name: str, shape: Shape, outputs: int, hidden: int) -> nn.Module:
    """Build a network of somebody's own, giving it those arguments that it names."""
    offered = {"shape": shape, "outputs": outputs, "hidden": hidden}
    wanted = inspect.signature(make).parameters.values()
    needed = [p.name for p in wanted if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if strange := [each for each in needed if each not in offered]:
        raise ModelError(
            f"model {name!r} needs {', '.join(map(repr, strange))}: it is given those of shape, outputs and hidden "
            "that it names; give all others a default"
        )
    module = make(**{p.name: offered[p.name] for p in wanted if p.name in offered})
    if not isinstance(module, nn.Module):
        raise ModelError(f"model {name!r} returned {type(module).__name__}, and must return an nn.Module")
    return module


def _require_outputs(name: str, module: nn.Module, shape: Shape, outputs: int) -> None:
    """Check what a network of somebody's own returns for two inputs."""
    try:
        with torch.no_grad():
            found = module.eval()(torch.zeros(2, *shape))
    except Exception as error:
        raise ModelError(
            f"model {name!r} cannot take inputs of shape (n, {', '.join(map(str, shape))}): {error}"
        ) from error
    module.train()
    if not isinstance(found, torch.Tensor) or tuple(found.shape) != (2, outputs):
        got = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise ModelError(
            f"model {name!r} returns {got} for two inputs of shape {shape}: it must return (n, {outputs}); end it "
            "with a layer of as many outputs as its argument `outputs` says"
        )


MODELS: Registry[Builder] = Registry("model", _BUILT_IN, _accept)


def build(name: str, shape: tuple[int, ...], outputs: int = 1, *, hidden: int = 64, seed: int = 0) -> nn.Module:
    """Build an initialised network on the CPU.

    Parameters
    ----------
    name : str
        A name in `MODELS`.
    shape : tuple of int
        The shape of one input: (features,) or (channels, height, width), each at least 1.
    outputs : int
        At least 1: the network maps (n, \\*shape) to (n, outputs), without a final activation.
    hidden : int
        At least 1: the width of ``mlp``, the channels of ``conv4``; ignored by other networks.
    seed : int
        Determines the initialisation, PyTorch's or torchvision's default. Global random states are neither read nor
        changed.

    Returns
    -------
    nn.Module
        In float32 and training mode. Its last registered module is the head, an ``nn.Linear``.

    Raises
    ------
    ModelError
        For an unknown name, an unsuitable shape, outputs or hidden below 1, or too little memory.
    """
    if name not in MODELS:
        raise ModelError(MODELS.missing(name), key="model", value=name, allowed=[*MODELS])
    if not shape or min(*shape, outputs, hidden) < 1:
        raise ModelError(
            f"model {name!r} cannot have shape {shape}, outputs {outputs} and hidden {hidden}: the shape is "
            "(features,) or (channels, height, width), and every number is at least 1",
            key="shape",
            value=(*shape, outputs, hidden),
            allowed=1,
        )
    own = name in MODELS.given  # its code may need numbers
    if not own and (
        text := shortage(
            8 * parameters(name, tuple(shape), outputs, hidden),  # float32, plus the flat vector
            f"model {name!r} on inputs of shape {tuple(shape)} with hidden = {hidden} and {outputs} outputs",
            "choose a smaller one",
        )
    ):
        raise ModelError(text, key="model", value=name)
    # Only the CPU's generator: torch.manual_seed would also reseed the GPUs, which this fork does not restore.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        module = MODELS[name](name, tuple(shape), outputs, hidden)
        if own:
            _require_outputs(name, module, tuple(shape), outputs)
        return module


def parameters(name: str, shape: Shape, outputs: int, hidden: int) -> int:
    """Return the number of parameters of a built-in model, found on the meta device."""
    return _parameters(MODELS[name], name, shape, outputs, hidden)


@lru_cache
def _parameters(builder: Builder, name: str, shape: Shape, outputs: int, hidden: int) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in builder(name, shape, outputs, hidden).parameters())


def tracks_statistics(name: str) -> bool:
    """Return whether a model has running statistics, found on the meta device, as far as it can be built there."""
    return _tracks_statistics(MODELS[name], name)


@lru_cache
def _tracks_statistics(builder: Builder, name: str) -> bool:
    try:
        with torch.device("meta"):
            return bool(statistics(builder(name, _ANY, 1, 1)))
    except Exception:
        if name in MODELS.built_in:
            raise
        return False  # a user's own network, which may need another shape, or numbers
