"""What is optimised: a value, its gradients, its metrics. One file per family, one row per problem here."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from problems.auc import Auc, AucMargin
from problems.auprc import Auprc
from problems.base import Arrays, Batch, Metrics, Problem, ProblemError
from problems.bce import Bce
from problems.cross_entropy import CrossEntropy
from problems.fair import Fair
from problems.invariant_logistic import InvariantLogistic
from problems.maml import Maml
from problems.network import NetworkProblem
from problems.robust import Robust
from problems.saddle import Saddle, saddle_coefficients

__all__ = ["PROBLEMS", "Arrays", "Batch", "Metrics", "Problem", "ProblemError", "Task", "build_problem"]

PROBLEMS: dict[str, type[Problem]] = {
    problem.name: problem
    for problem in (Auc, AucMargin, Bce, CrossEntropy, Robust, Fair, Auprc, InvariantLogistic, Maml, Saddle)
}


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
    head : str
        The layer that the head begins with, see `FlatNetwork`.
    shape : tuple of int
        Of one input: (features,) or (channels, height, width).
    classes : int
        C, the network's outputs where the problem is ``multiclass``.
    prior : float
        p, the share of positives over all sites, in (0, 1).
    shares : tuple of float
        p_1 to p_C of a ``multiclass`` problem, over all sites; empty: all equal.
    ways, shots, queries, inner_lr, inner_steps, test_inner_steps, test_tasks
        See `Maml`.
    amp, score, margin
        See `NetworkProblem`, `Auc`, and `AucMargin` and `Auprc`.
    robust_loss, radius
        See `Robust`.
    inner_samples, sigma_ratio
        m of a conditional problem; see `InvariantLogistic`.
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
    head: str = ""
    shape: tuple[int, ...] = ()
    classes: int = 2
    prior: float = 0.5
    shares: tuple[float, ...] = ()
    ways: int = 5
    shots: int = 1
    queries: int = 15
    inner_lr: float = 0.4
    inner_steps: int = 1
    test_inner_steps: int = 3
    test_tasks: int = 100
    amp: str = ""
    score: str = "sigmoid"
    margin: float = 1.0
    robust_loss: str = "cross-entropy"
    radius: float = 1.0
    site: int = -1
    sites: int = 1
    inner_samples: int = 10
    sigma_ratio: float = 1.0
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
    if issubclass(problem, InvariantLogistic):
        return problem(task.inner_samples, task.dimension, task.sigma_ratio, task.seed, task.device, task.dtype)
    from models import FlatNetwork, ModelError, build

    outputs = task.ways if issubclass(problem, Maml) else task.classes if problem.multiclass else 1
    module = build(task.model, task.shape, outputs, hidden=task.hidden, seed=task.seed)
    try:
        network = FlatNetwork(module.to(task.device, task.dtype), task.head)
    except ModelError as error:
        raise ModelError(f"model = {task.model!r}, {error}") from None
    if issubclass(problem, AucMargin):
        return problem(network, task.prior, task.amp, task.score, task.margin)
    if issubclass(problem, Auprc):
        return problem(network, task.prior, task.amp, task.margin)
    if issubclass(problem, Auc):
        return problem(network, task.prior, task.amp, task.score)
    if issubclass(problem, Robust):
        return problem(network, task.shape, task.amp, task.robust_loss, task.radius)
    if issubclass(problem, Fair):
        return problem(network, task.shares or (1 / task.classes,) * task.classes, task.amp)
    if issubclass(problem, Maml):
        form = (task.ways, task.shots, task.queries)
        steps = (task.inner_lr, task.inner_steps, task.test_inner_steps)
        try:
            return problem(network, task.shape, task.amp, *form, *steps, task.test_tasks, task.seed)
        except ModelError as error:
            raise ModelError(f"model = {task.model!r}: {error}") from None
    assert issubclass(problem, NetworkProblem), "a closed form is built above"
    return problem(network, task.prior, task.amp)
