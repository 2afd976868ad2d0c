"""The job that each engine does, in numpy alone: data, steps, the point it starts from, and what it has to report.

Every script beside this one runs in the Python of its own engine, where nothing of Edelweiss may be installed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Layers = list[tuple[Floats, Floats]]
"""Weight (out, in) and bias (out,) of each fully connected layer; a ReLU stands between two."""

STEPS, BATCH, LR = 10, 16, 0.1
WIDTHS = {"linear": (784, 10), "mlp": (784, 64, 64, 10)}


# Of FedProx; of FedAdam, whose means keep 0.9 and 0.99 of themselves.
MU, SERVER_LR, TAU = 0.1, 0.01, 1e-3


@dataclass(frozen=True)
class Job:
    """FedAvg, FedProx, SCAFFOLD or FedAdam on MNIST, with clients that all take part in every round.

    FedAvg is timed on two cores, with all images split evenly; the others on one, with clients that hold two classes.
    """

    model: str
    clients: int
    rounds: int
    algorithm: str = "fedavg"
    seed: int = 0
    lr: float = LR

    @property
    def alike(self) -> bool:
        """Whether clients hold all classes."""
        return self.algorithm == "fedavg"

    @property
    def cores(self) -> int:
        """Processes that train clients."""
        return 2 if self.alike else 1

    def rows(self, client: int) -> Ints:
        """Return a client's rows of the training set."""
        return dealt(client, self.clients) if self.alike else two_classes(client)


class Clock:
    """Called at the end of every round; the seconds of all rounds but the first lie between two calls."""

    def __init__(self) -> None:
        self.ended: list[float] = []

    def __call__(self) -> None:
        """Note that a round has ended."""
        self.ended.append(time.perf_counter())

    @property
    def seconds(self) -> list[float]:
        """Of the second round, the third, and so on."""
        return [after - before for before, after in pairwise(self.ended)]


@dataclass(frozen=True)
class Trained:
    """What comes of the job: the network, and the steps that a client took in a round, as the engine counted them.

    A run that its engine gave up, because it diverged, has no layers.
    """

    layers: Layers
    steps: float

    @property
    def diverged(self) -> bool:
        """Whether there is no network of finite numbers."""
        return not self.layers or not all(np.isfinite(part).all() for layer in self.layers for part in layer)


@lru_cache(maxsize=2)
def mnist(part: str = "train") -> tuple[Floats, Ints]:
    """Return standardised images (n, 784) and labels (n,) of the part ``train`` or ``t10k``."""
    root = Path(os.environ["EDELWEISS_DATA"])
    folders = [root / inside for inside in ("mnist/MNIST/raw", "MNIST/raw", "")]
    folder = next(one for one in folders if (one / "train-images-idx3-ubyte.gz").exists())
    images = np.frombuffer(gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
    labels = np.frombuffer(gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    return (images.reshape(-1, 784).astype(np.float32) - 33.3) / np.float32(78.6), labels.astype(np.int64)


def dealt(client: int, clients: int) -> Ints:
    """Return a client's rows of the training set."""
    return _shuffled(len(mnist()[1]))[client::clients]


def two_classes(client: int) -> Ints:
    """Return a client's rows, for up to 300 clients: as many as it takes in a round, of two classes."""
    labels, half = mnist()[1], STEPS * BATCH // 2
    parts = []
    for more in (0, 1):
        own = np.flatnonzero(labels == (client + more) % 10)
        start = (2 * (client // 10) + more) * half
        parts.append(own[start : start + half])
    return np.concatenate(parts)


@lru_cache(maxsize=1)
def _shuffled(samples: int) -> Ints:
    return np.random.default_rng(0).permutation(samples)


def batches(samples: int) -> Ints:
    """Return a client's batches of one round (STEPS, BATCH): each sample once per epoch, then in another order."""
    epochs = math.ceil(STEPS * BATCH / samples)
    order = np.concatenate([np.random.permutation(samples) for _ in range(epochs)])
    return order[: STEPS * BATCH].reshape(STEPS, BATCH)


def initial(model: str, seed: int = 0) -> Layers:
    """Return a random network, drawn as PyTorch draws its own."""
    rng, widths = np.random.default_rng(seed), WIDTHS[model]

    def drawn(bound: float, *shape: int) -> Floats:
        return rng.uniform(-bound, bound, shape).astype(np.float32)

    return [(drawn(n**-0.5, m, n), drawn(n**-0.5, m)) for n, m in pairwise(widths)]


def judged(layers: Layers) -> dict[str, float]:
    """Return parameters, the cross-entropy on all training samples, and the accuracy on the test set."""

    def log_probabilities(inputs: Floats) -> Floats:
        for i, (weight, bias) in enumerate(layers):
            inputs = np.maximum(inputs, 0) if i else inputs
            inputs = inputs @ weight.T + bias
        inputs = inputs - inputs.max(1, keepdims=True)
        scores: Floats = inputs - np.log(np.exp(inputs).sum(1, keepdims=True))
        return scores

    (inputs, labels), (test, truth) = mnist("train"), mnist("t10k")
    return {
        "parameters": sum(weight.size + bias.size for weight, bias in layers),
        "loss": float(-log_probabilities(inputs)[np.arange(len(labels)), labels].mean()),
        "accuracy": float((log_probabilities(test).argmax(1) == truth).mean()),
    }


def torch_network(model: str, seed: int = 0) -> Any:
    """Return `initial` as a PyTorch module."""
    import torch

    layers = []
    for weight, bias in initial(model, seed):
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data, layer.bias.data = torch.from_numpy(weight), torch.from_numpy(bias)
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def layers_of(parameters: Sequence[Any]) -> Layers:
    """Return layers from weight, bias, weight, bias, and so on, as PyTorch lists parameters."""
    arrays = [one.detach().numpy().copy() for one in parameters]
    return list(zip(arrays[::2], arrays[1::2], strict=True))


def answer(train: Callable[..., Trained], packages: Sequence[str], **more: Mapping[str, Any]) -> None:
    """Do the job that the command line names and print, as JSON in a last line, what `benchmarks.peers` asks for.

    Parameters
    ----------
    train : callable
        Does it with one engine, given the job, the clock and the further options.
    packages : sequence of str
        Those whose versions are stated.
    more
        Further options of the command line, as `argparse` wants them.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=WIDTHS)
    parser.add_argument("clients", type=int)
    parser.add_argument("rounds", type=int)
    parser.add_argument("--algorithm", default="fedavg", choices=("fedavg", "fedprox", "scaffold", "fedadam"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=LR)
    for name, how in more.items():
        parser.add_argument(f"--{name}", **how)
    options = vars(parser.parse_args())
    own = {name: options.pop(name) for name in ("model", "clients", "rounds", "algorithm", "seed", "lr")}
    job, clock = Job(**own), Clock()
    np.random.seed(job.seed)
    trained = train(job, clock, **options)
    found = {"steps": trained.steps, "seconds": clock.seconds, "diverged": trained.diverged}
    if not trained.diverged:
        found |= judged(trained.layers)
    print(json.dumps(found | {"versions": {name: version(name) for name in packages}}), flush=True)
