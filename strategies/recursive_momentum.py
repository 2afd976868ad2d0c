"""Recursive momentum (STORM: Cutkosky & Orabona, NeurIPS 2019; arXiv:1905.10018): an estimator and its schedule.

The estimator follows the gradient along the path of x: what the previous one said, corrected by the change of the
gradient *on one batch* between two points, and pulled towards the fresh gradient by a weight α::

    u ← gx(x; B) + (1 - α) (u - gx(x_prev; B))

With α = 1 it is the plain stochastic gradient. With y, v estimates the gradient by y in the same way, with weight β.
FMGDA, FGDA and AdaFGDA use both, Acc-FCSG-M uses u alone::

    u, v = initial_estimate(oracle, (x, y), self.initial_batch)
    u, v = corrected(oracle, (x, y), (x_prev, y_prev), (u, v), (alpha, beta))

    u, _ = initial_estimate(oracle, (x, None), self.initial_batch)  # without y
    u, _ = corrected(oracle, (x, None), (x_prev, None), (u, None), (alpha, 1.0))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from federation import FederatedStrategy, Oracle
from keys import choice, hyper

if TYPE_CHECKING:
    from torch import Tensor

    from federation import Turn


def initial_estimate(oracle: Oracle, point: tuple[Tensor, Tensor | None], size: int) -> tuple[Tensor, Any]:
    """Return the estimators (u, v) to start with: the gradients at (x, y) on a batch of B = ``size`` samples."""
    return oracle.gradient(*point, oracle.draw(size))


def corrected(
    oracle: Oracle,
    point: tuple[Tensor, Tensor | None],
    previous: tuple[Tensor, Tensor | None],
    estimators: tuple[Tensor, Tensor | None],
    weights: tuple[float, float],
) -> tuple[Tensor, Any]:
    """Return the estimators (u, v) at ``point``, from those at ``previous``: two gradients on one fresh batch.

    Parameters
    ----------
    oracle : Oracle
        Draws the batch and evaluates the gradients.
    point, previous : (x, y)
        Where the estimators are wanted, and where the given ones are from; y is None for a minimisation.
    estimators : (u, v)
        Shapes of x and y; v is None without y. Not written to.
    weights : (α, β)
        Of the fresh gradients, in (0, 1]; β is ignored without y.

    Returns
    -------
    tuple
        New vectors u and v; v is None without y.
    """
    (u, v), (alpha, beta) = estimators, weights
    batch = oracle.draw()
    # The old point first: a network is still bound to it, and its batch-norm statistics end at the new one.
    px, py = oracle.gradient(*previous, batch)
    gx, gy = oracle.gradient(*point, batch)
    # The gradients are ours: g + (1 - α)(u - p) needs no further vector, and leaves u as it was.
    gx.sub_(px.sub_(u), alpha=1 - alpha)
    return gx, gy if v is None else gy.sub_(py.sub_(v), alpha=1 - beta)


@dataclass(frozen=True, kw_only=True)
class RecursiveMomentum(FederatedStrategy):
    """What algorithms with recursive momentum share: the first batch, and how step and weights fall.

    In iteration t = 0, 1, ... step sizes are multiplied with η_t, and the estimator *after* that step has the weight
    α_t. The schedule ``constant`` has η_t = 1 and α_t = α. The schedule ``cube-root`` has::

        η_t = n K^{1/3} / (m + t)^{1/3},   α_t = min(1, c η_t²)

    with K sites. While c η_t² is above 1 the estimator is the plain gradient; so the schedule is defined for all n, m,
    c > 0. t counts iterations of the whole run, over all stages. Stages shrink the steps further, and not the weights.
    """

    initial_batch: int = hyper(64, "B: samples of the first estimator", low=1)
    schedule: str = choice("constant", "how step sizes and weights change over iterations", "constant", "cube-root")
    schedule_n: float = hyper(1.0, "n of cube-root: η_t = n K^{1/3} / (m + t)^{1/3}", above=0.0)
    schedule_m: float = hyper(100.0, "m of cube-root: the larger, the later η_t begins to fall", above=0.0)

    def eta(self, turn: Turn, step: int) -> float:
        """Return η_t of local step ``step`` of this round, t = turn.iteration + step; 1 without a schedule.

        A negative step is one of the round before, whose last estimator a client may form in this round.
        """
        if self.schedule == "constant":
            return 1.0
        return float(self.schedule_n * (turn.sites / (self.schedule_m + turn.iteration + step)) ** (1 / 3))

    def weight(self, constant: float, c: float, eta: float) -> float:
        """Return α_t in (0, 1]: ``constant``, or c η_t² but no more than 1."""
        return constant if self.schedule == "constant" else min(1.0, c * eta**2)


@dataclass(frozen=True, kw_only=True)
class RecursiveDescentAscent(RecursiveMomentum):
    """The fields that FMGDA, FGDA and AdaFGDA have in common; their papers let all sites take part in every round."""

    solves = frozenset({"minimax"})
    partial = False

    lr: float = hyper(0.1, "γ: step size of x; times η_t", above=0.0)
    lr_dual: float = hyper(0.1, "λ: step size of y; times η_t", above=0.0)
    alpha: float = hyper(0.1, "α: weight of the fresh gradient in u, constant schedule", above=0.0, high=1.0)
    beta: float = hyper(0.1, "β: weight of the fresh gradient in v, constant schedule", above=0.0, high=1.0)
    schedule_c: float = hyper(1.0, "c1 of cube-root: α_t = c1 η_t², at most 1", above=0.0)
    schedule_c_dual: float = hyper(1.0, "c2 of cube-root: β_t = c2 η_t², at most 1", above=0.0)

    def steps(self, turn: Turn, step: int) -> tuple[float, float]:
        """Return the step sizes of x and y in local step ``step``."""
        scale = self.eta(turn, step) * turn.rate
        return self.lr * scale, self.lr_dual * scale

    def weights(self, turn: Turn, step: int) -> tuple[float, float]:
        """Return (α_t, β_t) of the estimators after local step ``step``."""
        eta = self.eta(turn, step)
        return self.weight(self.alpha, self.schedule_c, eta), self.weight(self.beta, self.schedule_c_dual, eta)
