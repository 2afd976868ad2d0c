"""SGD at a site: descent on x or a part of it, ascent on y, if any; and the hyper-parameters of all who do that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from pydantic import Field

from edelweiss.federation import Differences, FederatedStrategy, Oracle

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.federation import RoundContext
    from edelweiss.problems import Arrays, Batch

ALL = slice(None)
"""The part of x that is all of it."""


@dataclass(frozen=True, kw_only=True)
class GradientSteps(FederatedStrategy):
    """The base of the algorithms whose sites take steps of SGD on x: clipping, weight decay and momentum.

    Where the pseudo-code of an algorithm moves x by a step η against d (a gradient, or an estimate or correction of
    one), x moves by::

        v ← μ v + d + λ x;  x ← x - η v

    with v = 0 when a round begins: no velocity is kept or sent. Each gradient by x that a site evaluates is clipped
    first: g ← g min(1, c / ‖g‖). y has none of the three. With the defaults, x ← x - η d.
    """

    weight_decay: float = Field(0.0, ge=0, description="λ: weight decay of x, with all its parts")
    momentum: float = Field(0.0, ge=0, lt=1, description="μ: momentum of x (heavy ball), from zero in each round")
    clip: float = Field(0.0, ge=0, description="c: largest norm of a gradient by x; larger ones are scaled; 0: any")

    def rate(self, context: RoundContext) -> float:
        """Return what step sizes are multiplied with in this round."""
        return context.rate

    def descent(self, context: RoundContext) -> Descent:
        """Return what takes the steps of this round on one x."""
        return Descent(self.rate(context), self.weight_decay, self.momentum)

    def clipped(self, oracle: Oracle) -> Oracle:
        """Return the oracle with clipped gradients."""
        return cast("Oracle", Clipped(oracle, self.clip)) if self.clip else oracle


@dataclass(frozen=True, kw_only=True)
class LocalSteps(GradientSteps):
    """The base of the personalised algorithms and of their baselines, so that all can be given the same SGD.

    In round r (from 1) all step sizes are their values times decay^(r-1).
    """

    decay: float = Field(1.0, gt=0, le=1, description="what step sizes are multiplied with from round to round")

    def rate(self, context: RoundContext) -> float:
        """Return what step sizes are multiplied with in this round."""
        return context.rate * self.decay ** (context.round - 1)


class Clipped(Differences):
    """An oracle whose gradients by x, a row for each client where there are several, have at most a given norm.

    Parameters
    ----------
    oracle : Oracle
        Evaluates the gradients, and everything else.
    norm : float
        c > 0.
    """

    def __init__(self, oracle: Oracle, norm: float) -> None:
        self._oracle, self._norm = oracle, norm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._oracle, name)

    def gradient(self, x: Tensor, y: Tensor | None = None, batch: Batch | None = None) -> tuple[Tensor, Any]:
        """Return (gx, gy), gx clipped."""
        gx, gy = self._oracle.gradient(x, y, batch)
        return self._clip(gx), gy

    def full_gradient(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Any]:
        """Return (gx, gy) over all samples, gx clipped."""
        gx, gy = self._oracle.full_gradient(x, y)
        return self._clip(gx), gy

    def balanced_gradient(self, x: Tensor, batch: Batch | None) -> Tensor:
        """Return the gradient of the balanced loss, clipped."""
        return self._clip(self._oracle.balanced_gradient(x, batch))

    def _clip(self, g: Tensor) -> Tensor:
        # In float64: squares of a float32 may overflow.
        norm = g.norm(dim=-1, keepdim=True, dtype=torch.float64)
        return g.mul_((self._norm / norm.clamp(min=self._norm)).to(g.dtype))


@dataclass
class Descent:
    """Steps on one x, or on parts of it, in one round.

    Attributes
    ----------
    rate : float
        What step sizes are multiplied with.
    weight_decay, momentum : float
        λ and μ, of `GradientSteps`.
    """

    rate: float = 1.0
    weight_decay: float = 0.0
    momentum: float = 0.0
    _velocity: Tensor | None = field(default=None, init=False)

    def step(
        self,
        x: Tensor,
        y: Tensor | None,
        oracle: Oracle,
        lr: float,
        lr_dual: float,
        *,
        part: slice = ALL,
        mask: Tensor | None = None,
        pull: float = 0.0,
        towards: Tensor | None = None,
        batch: Batch | None = None,
    ) -> Tensor | None:
        """Move x by gx + pull (x - towards), in place, with both gradients from the old point; return P(y + ηy gy).

        Parameters
        ----------
        x : Tensor
            Primal variable, shape (d,); changed.
        y : Tensor or None
            Dual variable, shape (p,); None for a minimisation, and then so is what is returned.
        oracle : Oracle
            Of this site.
        lr, lr_dual : float
            ηx and ηy, before ``rate``. With ηy = 0 y stays where it is.
        part, mask
            See `move`.
        pull : float
            ≥ 0, of a proximal term.
        towards : Tensor, optional
            Where that pulls x to, shape (d,); default: there is no such term.
        batch : Batch, optional
            To take the gradients on; default: a fresh one.
        """
        gx, gy = oracle.gradient(x, y, batch)
        if pull and towards is not None:
            gx.add_(x, alpha=pull).sub_(towards, alpha=pull)
        self.move(x, gx, lr, part=part, mask=mask)
        return y if y is None or not lr_dual else oracle.project(y + lr_dual * self.rate * gy)

    def move(self, x: Tensor, gx: Tensor, lr: float, *, part: slice = ALL, mask: Tensor | None = None) -> None:
        """v ← μ v + gx + λ x;  x ← x - η v, in the place of x.

        Parameters
        ----------
        x : Tensor
            Shape (d,); changed.
        gx : Tensor
            Of the same shape.
        lr : float
            η, before ``rate``.
        part : slice
            What of x moves.
        mask : Tensor, optional
            What of that moves: 1 or 0 for each entry of x, of its type.
        """
        moved = x if part is ALL else x[..., part]  # a view takes as long as a step of a short vector
        moved.sub_(self.direction(x, gx, part=part, mask=mask), alpha=lr * self.rate)

    def direction(self, x: Tensor, d: Tensor, *, part: slice = ALL, mask: Tensor | None = None) -> Tensor:
        """v ← μ v + d + λ x; return v, or of it the part: what x moves against, times the step size.

        With the defaults that is d itself. Neither x nor d is changed; v is not the caller's.
        """
        by = d if part is ALL else d[..., part]
        if self.weight_decay:
            by = by.add(x[..., part], alpha=self.weight_decay)
        if mask is not None:
            by = by * mask[part]
        if self.momentum:
            if self._velocity is None:
                self._velocity = torch.zeros_like(x)
            by = self._velocity[..., part].mul_(self.momentum).add_(by)
        return by

    def reach(self, steps: int) -> float:
        """Return how far as many steps of size 1 against one and the same d lead: q, and more with momentum.

        It is Σ_t (1 - μ^t) / (1 - μ): a path is that many times the mean of the directions, in which momentum weighs
        the early ones more.
        """
        kept = self.momentum
        return (steps - kept * (1 - kept**steps) / (1 - kept)) / (1 - kept) if kept else float(steps)


def existing(**vectors: Tensor | None) -> Arrays:
    """Return the vectors that there are, by name, for a memory or a reply."""
    return {name: vector for name, vector in vectors.items() if vector is not None}
