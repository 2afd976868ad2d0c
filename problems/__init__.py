"""What is optimised: a value, its gradients, its metrics. One file per family, one row per problem here."""

from __future__ import annotations

from keys import by_name
from problems.auc import Auc, AucMargin
from problems.auprc import Auprc
from problems.base import Arrays, Batch, Metrics, Problem, Setting
from problems.bce import Bce
from problems.cross_entropy import CrossEntropy
from problems.errors import ProblemError
from problems.fair import Fair
from problems.invariant_logistic import InvariantLogistic
from problems.maml import Maml
from problems.network import NetworkProblem
from problems.partial_auc import PartialAuc
from problems.robust import Robust
from problems.saddle import Saddle

__all__ = ["PROBLEMS", "Arrays", "Batch", "Metrics", "Problem", "ProblemError", "Setting", "ranks"]

PROBLEMS: dict[str, type[Problem]] = by_name(
    Auc,
    AucMargin,
    Bce,
    CrossEntropy,
    Robust,
    Fair,
    Auprc,
    PartialAuc,
    InvariantLogistic,
    Maml,
    Saddle,
)


def ranks(problem: type[Problem]) -> bool:
    """Return whether a problem gives each sample one score, higher for positives (`NetworkProblem.logits`)."""
    return issubclass(problem, NetworkProblem) and not problem.multiclass
