"""Problems: an objective with its gradients and metrics. One file per family, one row per problem here."""

from __future__ import annotations

from typing import Any

from edelweiss.common import Registry, by_name, require_declared, require_kinds
from edelweiss.problems.auc import Auc, AucMargin
from edelweiss.problems.auprc import Auprc
from edelweiss.problems.base import Arrays, Batch, Metrics, Problem, Setting
from edelweiss.problems.bce import Bce
from edelweiss.problems.cross_entropy import CrossEntropy
from edelweiss.problems.errors import ProblemError
from edelweiss.problems.fair import Fair
from edelweiss.problems.imbalance import (
    BceAdjusted,
    BceFocal,
    BceWeighted,
    CrossEntropyAdjusted,
    CrossEntropyFocal,
    CrossEntropyWeighted,
)
from edelweiss.problems.invariant_logistic import InvariantLogistic
from edelweiss.problems.maml import Maml
from edelweiss.problems.network import NetworkProblem
from edelweiss.problems.partial_auc import PartialAuc
from edelweiss.problems.robust import Robust
from edelweiss.problems.saddle import Saddle

__all__ = ["KINDS", "PROBLEMS", "Arrays", "Batch", "Metrics", "Problem", "ProblemError", "Setting", "ranks"]


def _accept(name: str, thing: Any) -> tuple[str, type[Problem]]:
    """Check a problem from outside; it is called as its class says."""
    require_declared("problem", thing, Problem, "eq=False, kw_only=True", {"kind": '"minimisation"'})
    require_kinds("problem", thing, "kind", [thing.kind], KINDS)
    return thing.name, thing


_BUILT_IN = by_name(
    Auc,
    AucMargin,
    Bce,
    BceWeighted,
    BceAdjusted,
    BceFocal,
    CrossEntropy,
    CrossEntropyWeighted,
    CrossEntropyAdjusted,
    CrossEntropyFocal,
    Robust,
    Fair,
    Auprc,
    PartialAuc,
    InvariantLogistic,
    Maml,
    Saddle,
)
PROBLEMS: Registry[type[Problem]] = Registry("problem", _BUILT_IN, _accept)

KINDS = frozenset(problem.kind for problem in _BUILT_IN.values())


def ranks(problem: type[Problem]) -> bool:
    """Return whether a problem scores each sample, higher for positives (`NetworkProblem.logits`)."""
    return issubclass(problem, NetworkProblem) and not problem.multiclass
