"""What is optimised: a value, its gradients, its metrics. One file per family, one row per problem here."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from problems.auc import Auc, AucMargin
from problems.base import Arrays, Batch, Metrics, Problem, ProblemError
from problems.bce import Bce
from problems.saddle import Saddle, saddle_coefficients

__all__ = ["PROBLEMS", "Arrays", "Batch", "Metrics", "Problem", "ProblemError", "Task", "build_problem"]

PROBLEMS: dict[str, type[Problem]] = {problem.name: problem for problem in (Auc, AucMargin, Bce, Saddle)}


@dataclass(frozen=True, kw_only=True)
class Task:
    """Everything that a problem is built from: the run's choices and the facts that the sites agreed on.

    Attributes
    ----------
    problem : str
        A name in `PROBLEMS`.
    seed : int
        Of the starting point.
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
    model, hidden : str, int
        A name in ``models.MODELS`` and the width of ``mlp``.
    shape : tuple of int
        Of one input: (features,) or (channels, height, width).
    classes : int
        C, the network's outputs where the problem is ``multiclass``.
    prior : float
        p, the share of positives over all sites, in (0, 1).
    amp, score, margin
        See `NetworkProblem`, `Auc` and `AucMargin`.
    site, sites : int
        Which f_k and of how many; site is -1 at the coordinator. Only ``saddle`` differs between sites.
    dimension, heterogeneity, saddle_file
        See `saddle_coefficients`.
    dtype : torch.dtype
        Of all vectors; float64 is for checks.
    """

    problem: str
    seed: int = 0
    device: str = "cpu"
    model: str = "mlp"
    hidden: int = 64
    shape: tuple[int, ...] = ()
    classes: int = 2
    prior: float = 0.5
    amp: str = ""
    score: str = "sigmoid"
    margin: float = 1.0
    site: int = -1
    sites: int = 1
    dimension: int = 20
    heterogeneity: float = 1.0
    saddle_file: str = ""
    dtype: torch.dtype = torch.float32


def build_problem(task: Task) -> Problem:
    """Build the problem of a task, its model on its device.

    Raises
    ------
    ProblemError
        For a file that cannot be used.
    models.ModelError
        For a model that cannot take inputs of this shape.
    """
    problem = PROBLEMS[task.problem]
    if issubclass(problem, Saddle):
        t, b = saddle_coefficients(task.sites, task.dimension, task.heterogeneity, task.seed, task.saddle_file)
        return problem(t, b, task.site, task.seed, task.device, task.dtype)
    from models import FlatNetwork, build

    outputs = task.classes if problem.multiclass else 1
    module = build(task.model, task.shape, outputs, hidden=task.hidden, seed=task.seed)
    network = FlatNetwork(module.to(task.device, task.dtype))
    if issubclass(problem, AucMargin):
        return problem(network, task.prior, task.amp, task.score, task.margin)
    if issubclass(problem, Auc):
        return problem(network, task.prior, task.amp, task.score)
    return Bce(network, task.prior, task.amp)
