"""SGD at a site: descent on x or a part of it, ascent on y, if any; and the hyper-parameters of all who do that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from pydantic import Field

from edelweiss.federation import FederatedStrategy

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.federation import Oracle, RoundContext
    from edelweiss.problems import Arrays, Batch


@dataclass(frozen=True, kw_only=True)
class LocalSteps(FederatedStrategy):
    """The base of the personalised algorithms and of their baselines, so that all can be given the same SGD.

    In round r (from 1) all step sizes are their values times decay^(r-1). A step on x, or on a part of it, is::

        v ← μ v + g + λ x;  x ← x - η v

    with v = 0 when a round begins: no velocity is kept or sent. y has neither weight decay nor momentum. With the
    defaults, x ← x - η g.
    """

    decay: float = Field(1.0, gt=0, le=1, description="what step sizes are multiplied with from round to round")
    weight_decay: float = Field(0.0, ge=0, description="λ: weight decay of x, with all its parts")
    momentum: float = Field(0.0, ge=0, lt=1, description="μ: momentum of x (heavy ball), from zero in each round")

    def descent(self, context: RoundContext) -> Descent:
        """Return what takes the steps of this round on one x."""
        return Descent(context.rate * self.decay ** (context.round - 1), self.weight_decay, self.momentum)


@dataclass
class Descent:
    """Steps on one x, or on parts of it, in one round.

    Attributes
    ----------
    rate : float
        What step sizes are multiplied with.
    weight_decay, momentum : float
        λ and μ, of `LocalSteps`.
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
        part: slice = slice(None),
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

    def move(self, x: Tensor, gx: Tensor, lr: float, *, part: slice = slice(None), mask: Tensor | None = None) -> None:
        """v ← μ v + gx + λ x;  x ← x - η v, in place.

        Parameters
        ----------
        x : Tensor
            Shape (d,); changed.
        gx : Tensor
            Of the same shape; it belongs to the caller, as gradients of an oracle do, and is changed.
        lr : float
            η, before ``rate``.
        part : slice
            What of x moves.
        mask : Tensor, optional
            What of that moves: 1 or 0 for each entry of x, of its type.
        """
        moving, by = x[..., part], gx[..., part]  # views: a step on one is a step on x
        if self.weight_decay:
            by.add_(moving, alpha=self.weight_decay)
        if mask is not None:
            by.mul_(mask[part])
        if self.momentum:
            if self._velocity is None:
                self._velocity = torch.zeros_like(x)
            by = self._velocity[..., part].mul_(self.momentum).add_(by)
        moving.sub_(by, alpha=lr * self.rate)


def existing(**vectors: Tensor | None) -> Arrays:
    """Return the vectors that there are, by name, for a memory or a reply."""
    return {name: vector for name, vector in vectors.items() if vector is not None}
