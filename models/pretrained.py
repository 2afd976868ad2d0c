"""torchvision's published weights, from a local file; nothing is downloaded."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from edelweiss.models.errors import ModelError
from edelweiss.models.flat import FlatNetwork
from edelweiss.models.torchvision import STEMS

# DenseNet's file dates from a time when module names could contain dots: "denselayer1.norm.1.weight".
_OLD_NAME = re.compile(r"(\.denselayer\d+\.(?:norm|conv))\.([12]\.)")


def read_weights(data: bytes) -> dict[str, Tensor]:
    """Read a state dict written by ``torch.save``, with current names.

    Raises
    ------
    ModelError
        If the file does not hold a state dict and nothing else; other content of a pickle is not executed.
    """
    try:
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception:  # anything a damaged pickle raises; PyTorch's message would advise executing it
        raise ModelError("the file is damaged, or holds more than tensors", key="file") from None
    if not isinstance(found, Mapping) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise ModelError("the file must hold a state dict, a mapping from names to tensors", key="state")
    return {_OLD_NAME.sub(r"\1\2", str(name)): tensor.detach() for name, tensor in found.items()}


def adapt_weights(
    name: str, network: FlatNetwork, weights: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Adapt torchvision's weights to one of its networks as built here.

    With a different number of outputs the classifier, the last layer, keeps its random initialisation. A first
    convolution with one channel gets the sum over the colours, equivalent to a grey image repeated three times. A first
    convolution of another size, as for images of up to 64 pixels, keeps its random initialisation.

    The network is freshly initialised and not modified; `weights` is from `read_weights`. Returns the state dict, for
    `FlatNetwork.flatten` to check, and descriptions of its deviations from the file.
    """
    own, deviations = network.state_dict(network.vector()), []
    # Older files lack the counters of batch norm, which are not part of the vector anyway.
    state = {**weights, **{key: tensor for key, tensor in own.items() if not tensor.is_floating_point()}}
    classifier = list(network.layers())[-1]
    last = {key: own[key] for key in (f"{classifier}.weight", f"{classifier}.bias")}
    if any(key not in weights or weights[key].shape != tensor.shape for key, tensor in last.items()):
        state |= last
        deviations.append(f"{classifier} randomly initialised")
    first = f"{STEMS[name]}.weight"
    theirs, ours = weights.get(first, own[first]), own[first]
    channels, sides = ours.shape[1], ours.shape[2:]
    if theirs.shape[:2] == (len(ours), 3) and theirs.shape[2:] != sides:
        state[first] = ours
        size = "x".join(map(str, sides))
        deviations.append(f"{STEMS[name]} (here {size}) randomly initialised")
    elif theirs.shape == (len(ours), 3, *sides) and channels == 1:
        state[first] = theirs.sum(1, keepdim=True)
        deviations.append(f"{STEMS[name]} summed over the colours")
    return state, deviations
