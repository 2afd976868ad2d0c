"""Small problems, networks, batches and samples that tests share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edelweiss.client_app.oracle import SiteOracle, stream
from edelweiss.config import RunConfig
from edelweiss.datasets import DataSummary, Samples
from edelweiss.models import Architecture, FlatNetwork
from edelweiss.problems import PROBLEMS, Problem, Setting
from edelweiss.problems.base import Batch
from edelweiss.problems.network import NetworkProblem
from edelweiss.problems.saddle import Saddle

FEATURES = 4

WITH_DATA: list[dict[str, Any]] = [
    {"name": "auc", "score": "sigmoid", "prior": 0.2},
    {"name": "auc", "score": "identity", "prior": 0.7},
    {"name": "auc-margin", "score": "sigmoid", "prior": 0.2, "margin": 1.0},
    {"name": "auc-margin", "score": "identity", "prior": 0.05, "margin": 0.4},
    {"name": "auc-margin", "score": "sigmoid", "prior": 0.5, "margin": 3.0},
    {"name": "bce", "prior": 0.2},
    {"name": "bce-weighted", "prior": 0.2},
    {"name": "bce-adjusted", "prior": 0.2, "tau": 0.7},
    {"name": "bce-focal", "prior": 0.2, "gamma": 1.5, "alpha": 0.3},
    {"name": "cross-entropy", "classes": 3},
    {"name": "cross-entropy-weighted", "classes": 3, "shares": (0.5, 0.3, 0.2)},
    {"name": "cross-entropy-adjusted", "classes": 3, "shares": (0.5, 0.3, 0.2), "tau": 0.7},
    {"name": "cross-entropy-focal", "classes": 3, "gamma": 1.5},
    {"name": "robust", "classes": 3, "radius": 1.0},
    {"name": "robust", "classes": 2, "radius": 0.5, "criterion": "squared"},
    {"name": "fair", "classes": 3, "shares": (0.5, 0.3, 0.2)},
]
"""Every problem that is a sum over samples, in every variant."""

BINARY_MINIMAX = ["auc", "auc-margin"]


def make(
    name: str,
    *,
    model: str | nn.Module = "linear",
    hidden: int = 3,
    head: str = "",
    amp: str = "",
    shape: tuple[int, ...] = (FEATURES,),
    classes: int = 2,
    prior: float = 0.5,
    shares: tuple[float, ...] = (),
    labels: tuple[str, ...] = (),
    priors: tuple[float, ...] = (),
    site: int = -1,
    sites: int = 1,
    seed: int = 1,
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> Any:
    """Build a problem over a small network, or over the given module; ``options`` are the problem's own.

    ``prior`` and the other facts of a `DataSummary` are what the sites agreed on.
    """
    data_summary = DataSummary(shape=shape, classes=classes, prior=prior, shares=shares, labels=labels, priors=priors)
    named = isinstance(model, str)
    own = {"model": model, "hidden": hidden} if named else {"module": model}
    architecture = (Architecture if named else Given)(head=head, amp=amp, **own)
    setting = Setting(
        data_summary=data_summary, architecture=architecture, site=site, sites=sites, seed=seed, dtype=dtype
    )
    return PROBLEMS[name](setting, **options)


@dataclass(frozen=True, kw_only=True)
class Given(Architecture):
    """A module of one's own, in place of a model by name."""

    module: nn.Module

    def network(self, shape: tuple[int, ...], outputs: int, **setting: Any) -> FlatNetwork:
        """Return the module as it is, whatever the seed."""
        return FlatNetwork(self.module.to(setting["dtype"]), self.head)


@dataclass(eq=False, kw_only=True)
class GivenSaddle(Saddle):
    """The saddle problem with coefficients of one's own."""

    t: Any
    b: Any

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Return them."""
        return self.t, self.b


def given_saddle(
    t: np.ndarray, b: np.ndarray, site: int = -1, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Saddle:
    """Build the saddle problem of given t (K,) and b (K, d), as one site or the coordinator has it."""
    return GivenSaddle(Setting(site=site, sites=len(t), seed=seed, dtype=dtype), dimension=b.shape[1], t=t, b=b)


def name_of(variant: dict[str, Any]) -> str:
    """Name a variant in a test's identifier."""
    return "-".join(str(value) for value in variant.values())


def build(variant: dict[str, Any], model: str = "linear", dtype: torch.dtype = torch.float64) -> NetworkProblem:
    """Build one of `WITH_DATA`."""
    problem: NetworkProblem = make(**variant, model=model, dtype=dtype)
    return problem


def point(problem: Problem, seed: int) -> tuple[Tensor, Tensor | None]:
    """Return a random point; a dual is taken from the feasible set."""
    random = np.random.default_rng(seed)
    start = problem.initial()
    x = torch.from_numpy(random.normal(0, 0.7, len(start["x"]))).to(problem.dtype)
    if "y" not in start:
        return x, None
    return x, problem.project(torch.from_numpy(random.normal(0, 1, len(start["y"]))).to(problem.dtype))


def batch(seed: int, positives: int, negatives: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return inputs and labels, in random order."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat([1, 0], [positives, negatives]))
    inputs = random.normal(0, 1, (len(labels), FEATURES)).astype(np.float32)  # as data sets hold them
    return torch.from_numpy(inputs).to(dtype), torch.from_numpy(labels)


def samples(inputs: Tensor, labels: Tensor) -> Samples:
    """Make a batch a set of samples."""
    return Samples(inputs.float(), labels, torch.arange(len(labels)))


def opened(problem: Problem, inputs: Tensor, labels: Tensor, **keys: Any) -> SiteOracle:
    """Return a site's oracle over these training samples, in its first round; ``keys`` are of the run-config.

    What it draws is float32, as in a run, so the problem should be.
    """
    config = RunConfig.parse({"batch-size": 8, **keys})
    return SiteOracle.open(config, problem, samples(inputs, labels), stream(0, 0, 1, 0))


def at_its_optimum(problem: NetworkProblem, data: Batch, shift: float) -> float:
    """Return f on the data at its best a, b and α, with ``shift`` added to all scores, which are the network's outputs.

    Of several labels the mean over them.
    """
    inputs, labels = data
    problem.network.bind(problem.initial()["x"])
    scores = (problem.outputs(inputs) + shift).detach()
    each = zip(scores.view(len(labels), -1).T, labels.view(len(labels), -1).T, strict=True)
    means = [[h[own == kind].nan_to_num().mean() for kind in (1, 0)] for h, own in each]  # those of a, and of b
    scalars = torch.stack([torch.stack(one) for one in zip(*means, strict=True)]).flatten().nan_to_num()

    def slope(y: Tensor) -> Tensor:
        y.requires_grad_()
        return torch.autograd.grad(problem.objective(scores, labels, scalars, y), y)[0]

    zero, one = torch.zeros(problem.dual, dtype=scores.dtype), torch.ones(problem.dual, dtype=scores.dtype)
    at_zero, at_one = slope(zero), slope(one)
    best = problem.project(torch.where(at_zero == at_one, 0, at_zero / (at_zero - at_one)))  # f is quadratic in α
    return problem.objective(scores, labels, scalars, best).item()


def changed_by_a_constant(problem: NetworkProblem, data: Batch) -> float:
    """Return by how much that changes f, up or down: α may be at its bound one way."""
    return max(abs(at_its_optimum(problem, data, shift) - at_its_optimum(problem, data, 0.0)) for shift in (-3.0, 3.0))
