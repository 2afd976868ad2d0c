"""Weights as torchvision publishes them, from a file on this machine: nothing is ever downloaded."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from models.errors import ModelError
from models.flat import FlatNetwork
from models.networks import STEMS

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

    A network of other outputs keeps its own classifier, the last layer. A first convolution that sees one channel gets
    the sum over the colours, which gives for a grey image what the file's gives for its three copies. One of another
    size, as for images of 64 pixels or fewer, stays as it was drawn.

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
    own = network.state_dict(network.vector())
    stem, classifier = f"{STEMS[name]}.weight", list(network.layers())[-1]
    # Older files lack the counters of batch norm, which have no place in a vector.
    state = {**weights, **{key: tensor for key, tensor in own.items() if not tensor.is_floating_point()}}
    said = []
    if weights.get(f"{classifier}.weight", own[stem]).shape != own[f"{classifier}.weight"].shape:
        state |= {key: own[key] for key in (f"{classifier}.weight", f"{classifier}.bias")}
        said.append(f"{classifier} drawn anew")
    theirs, ours = weights.get(stem, own[stem]), own[stem]
    if theirs.shape[2:] != ours.shape[2:]:
        state[stem] = ours
        said.append(f"{STEMS[name]} drawn anew, which for images of this size is {'x'.join(map(str, ours.shape[2:]))}")
    elif theirs.shape != ours.shape and ours.shape[1] == 1:
        state[stem] = theirs.sum(1, keepdim=True)
        said.append(f"{STEMS[name]} summed over the colours")
    return state, said
