"""Recursive momentum (STORM: Cutkosky & Orabona, NeurIPS 2019; arXiv:1905.10018): an estimator and its schedule.

The estimator follows the gradient along the path of x: what the previous one said, corrected by the change of the
gradient *on one batch* between two points, and pulled towards the fresh gradient by a weight::

    u ← gx(x; B) + (1 - weight) (u - gx(x_prev; B))

With weight 1 it is the plain stochastic gradient. With y, v estimates the gradient by y in the same way. FMGDA, FGDA
and AdaFGDA use both, Acc-FCSG-M uses u alone::

    u, v = initial_estimate(oracle, (x, y), self.initial_batch, context)
    u, v = corrected(oracle, (x, y), (x_prev, y_prev), (u, v), (weight, weight_dual))

    u, _ = initial_estimate(oracle, (x, None), self.initial_batch, context)  # without y
    u, _ = corrected(oracle, (x, None), (x_prev, None), (u, None), (weight, 1.0))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field

from edelweiss.federation import COUNT, LATER, FederatedStrategy, Oracle, Table, both, kept, step_size
from edelweiss.strategies.local_steps import GradientSteps

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.federation import RoundContext
    from edelweiss.problems import Arrays


def initial_estimate(
    oracle: Oracle, point: tuple[Tensor, Tensor | None], samples: int, context: RoundContext
) -> tuple[Tensor, Any]:
    """Return the estimators (u, v) to start with: mean gradients at (x, y).

    Over one batch of B = ``samples``, or, if that is 0, over q mini-batches: the size that the papers' theory asks for.
    """
    if samples:
        return oracle.gradient(*point, oracle.draw(samples))
    u, v = oracle.gradient(*point)
    for count in range(2, context.local_steps + 1):
        gx, gy = oracle.gradient(*point)
        u.add_(gx.sub_(u), alpha=1 / count)
        v = None if v is None else v.add_(gy.sub_(v), alpha=1 / count)
    return u, v


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
    weights : (float, float)
        Of the fresh gradients in u and v, in (0, 1]; the second is ignored without y.

    Returns
    -------
    tuple
        New vectors u and v; v is None without y.
    """
    weight, weight_dual = weights
    return oracle.difference(point, previous, (1 - weight, 1 - weight_dual), estimators)


def own_point(memory: Arrays, received: Arrays, context: RoundContext) -> tuple[Tensor, Any]:
    """Return (x_prev, y_prev) as the site remembers them; y_prev is None where it remembers no y.

    Lost, older than one round because the site missed one, or never there because it missed its first steps, they are
    the received point: the averaged estimators then move towards fresh gradients, without the correction for the last
    step.
    """
    if "x_prev" in memory and memory["round"].item() == context.round - 1:
        return memory["x_prev"], memory.get("y_prev")
    return received["x"], received.get("y")


def remembered(context: RoundContext, **point: Tensor) -> Arrays:
    """Return a memory for `own_point`: x_prev, and y_prev where there is a y."""
    return {**point, "round": torch.tensor([context.round])}


@dataclass(frozen=True, kw_only=True)
class RecursiveMomentum(FederatedStrategy):
    """What algorithms with recursive momentum share: the first estimate, and how steps and weights fall.

    In iteration t = 0, 1, ... step sizes are multiplied with η_t, and the estimator *after* that step has a weight that
    goes with η_t². Three schedules, with K sites::

        constant     η_t = 1,                                            weight as given
        cube-root    η_t = n K^{1/3} / (m + t)^{1/3},                    weight = min(1, c η_t²)
        corollary-1  η_t = n K^{2/3} / max(3/2 + t, 1728 q³ K²)^{1/3},   weight = min(1, c η_t²)

    ``cube-root`` is that of Theorem 1 of AdaFGDA. ``corollary-1`` is FMGDA's, with n = 1/L: η_t is n / (12 q) for the
    first 1728 q³ K² iterations, and falls after them. (The proof of FMGDA's Theorem 1 has 800 for 1728, and needs
    η_t ≤ 1 / (20 L q), which is 8000.) The FCSG paper has no schedule. While c η_t² is above 1 the estimator is the
    plain gradient; so a schedule is defined for all n, m, c > 0. t counts iterations of the whole run, over all stages;
    q is that of the stage. Stages shrink the steps further, and not the weights.
    """

    initial_batch: int = Field(
        0, ge=0, description="B: samples of the first estimator; 0: q mini-batches, as in theory"
    )
    schedule: Literal["constant", "cube-root", "corollary-1"] = Field(
        "constant", description="how step sizes and weights change over iterations"
    )
    schedule_n: float = Field(
        1.0, gt=0, description="n of a schedule, which η_t is proportional to; 1/L in FMGDA's theory"
    )
    schedule_m: float = Field(100.0, gt=0, description="m of cube-root: the larger, the later η_t begins to fall")

    def eta(self, context: RoundContext, step: int) -> float:
        """Return η_t of local step ``step`` of this round, t = turn.iteration + step; 1 without a schedule.

        A negative step is one of the round before, whose last estimator a client may form in this round.
        """
        if self.schedule == "constant":
            return 1.0
        t, sites = context.iteration + step, context.sites
        if self.schedule == "cube-root":
            return float(self.schedule_n * (sites / (self.schedule_m + t)) ** (1 / 3))
        return float(self.schedule_n * (sites**2 / max(1.5 + t, 1728 * context.local_steps**3 * sites**2)) ** (1 / 3))

    def weight(self, constant: float, c: float, eta: float) -> float:
        """Return the weight of a fresh gradient, in (0, 1]: ``constant``, or c η_t² but no more than 1."""
        return constant if self.schedule == "constant" else min(1.0, c * eta**2)


@dataclass(frozen=True, kw_only=True)
class RecursiveDescentAscent(RecursiveMomentum, GradientSteps):
    """The fields that FMGDA, FGDA and AdaFGDA have in common; their papers let all sites take part in every round.

    The papers do not agree on letters: α_t and c1 belong to u, the estimator for x, in FMGDA, and to v, that for y, in
    the other two. A key says which variable it is for; that of x has no suffix, that of y has ``-dual``.
    """

    solves = frozenset({"minimax"})
    messages = Table(
        both(x="d", y="p"),
        both(LATER, u="d", v="p", estimate=True, of="running estimates of both gradients"),
        kept(x_prev="d", y_prev="p", round=COUNT, of="the point of its last estimates"),
    )
    partial = False

    lr: float = step_size("step size of x; times η_t")
    lr_dual: float = step_size("step size of y; times η_t")
    fresh_weight: float
    fresh_weight_dual: float
    schedule_c: float
    schedule_c_dual: float

    def steps(self, context: RoundContext, step: int) -> tuple[float, float]:
        """Return the step sizes of x and y in local step ``step``."""
        scale = self.eta(context, step) * context.rate
        return self.lr * scale, self.lr_dual * scale

    def weights(self, context: RoundContext, step: int) -> tuple[float, float]:
        """Return the weights of fresh gradients in (u, v) after local step ``step``."""
        eta = self.eta(context, step)
        u, v = (self.fresh_weight, self.schedule_c), (self.fresh_weight_dual, self.schedule_c_dual)
        return self.weight(*u, eta), self.weight(*v, eta)
