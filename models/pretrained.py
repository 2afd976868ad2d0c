"""Weights as torchvision publishes them, from a file on this machine: nothing is ever downloaded."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from edelweiss.models.errors import ModelError
from edelweiss.models.flat import FlatNetwork
from edelweiss.models.torchvision import STEMS

# DenseNet's file is of a time when a module's name could hold a point: "denselayer1.norm.1.weight".
_OLD_NAME = re.compile(r"(\.denselayer\d+\.(?:norm|conv))\.([12]\.)")


def read_weights(data: bytes) -> dict[str, Tensor]:
    """Return the state dict in a file that ``torch.save`` wrote, under today's names.

    Raises
    ------
    ModelError
        When there is none, or more than that: what else a pickle may hold is not executed.
    """
    try:
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception:  # whatever a damaged pickle leads to; PyTorch's words advise to execute it
        raise ModelError("it is damaged, or holds more than tensors") from None
    if not isinstance(found, Mapping) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise ModelError("it holds no state dict, which is tensors by their names")
    return {_OLD_NAME.sub(r"\1\2", str(name)): tensor.detach() for name, tensor in found.items()}


def fitted(name: str, network: FlatNetwork, weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Fit torchvision's weights to one of its networks as it is built here.

    A network of other outputs keeps the classifier, its last layer, that was drawn for it. A first convolution that
    sees one channel gets the sum over the colours: for a grey image that is what the file's makes of three copies. One
    of another size, as images of 64 pixels or fewer have, stays as it was drawn.

    Parameters
    ----------
    name : str
        The network's, in `STEMS`.
    network : FlatNetwork
        Freshly initialised; it is not changed.
    weights : mapping
        What `read_weights` returned.

    Returns
    -------
    tuple
        The state dict, for `FlatNetwork.flatten` to check, and what of it is not the file's, in words.
    """
    own, said = network.state_dict(network.vector()), []
    # Older files lack the counters of batch norm, which have no place in a vector.
    state = {**weights, **{key: tensor for key, tensor in own.items() if not tensor.is_floating_point()}}
    classifier = list(network.layers())[-1]
    last = {key: own[key] for key in (f"{classifier}.weight", f"{classifier}.bias")}
    if any(key not in weights or weights[key].shape != tensor.shape for key, tensor in last.items()):
        state |= last
        said.append(f"{classifier} drawn anew")
    first = f"{STEMS[name]}.weight"
    theirs, ours = weights.get(first, own[first]), own[first]
    channels, sides = ours.shape[1], ours.shape[2:]
    if theirs.shape[:2] == (len(ours), 3) and theirs.shape[2:] != sides:
        state[first] = ours
        said.append(f"{STEMS[name]} drawn anew, which for images of this size is {'x'.join(map(str, sides))}")
    elif theirs.shape == (len(ours), 3, *sides) and channels == 1:
        state[first] = theirs.sum(1, keepdim=True)
        said.append(f"{STEMS[name]} summed over the colours")
    return state, said
