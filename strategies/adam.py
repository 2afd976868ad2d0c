"""Adam's direction (Kingma & Ba, ICLR 2015, Algorithm 1; arXiv:1412.6980), for local steps that follow it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Adam:
    """Running means of a gradient and of its squares, both zero at first.

    Parameters
    ----------
    x : Tensor
        What the gradients are of, shape (d,): it gives shape, dtype and device, and is not changed.
    beta1, beta2 : float
        β1 and β2 in [0, 1): what m and v keep of themselves.
    eps : float
        ε > 0, added to the root of v.
    """

    def __init__(self, x: Tensor, beta1: float, beta2: float, eps: float) -> None:
        self.beta1, self.beta2, self.eps = beta1, beta2, eps
        self.m, self.v, self.t = torch.zeros_like(x), torch.zeros_like(x), 0

    def direction(self, g: Tensor) -> Tensor:
        """Return m̂ / (√v̂ + ε) after the gradient g, shape (d,): what x moves against, times the step size.

        m ← β1 m + (1 - β1) g and v ← β2 v + (1 - β2) g²; m̂ and v̂ are they over 1 - β1^t and 1 - β2^t, which makes up
        for the zeros of the start.
        """
        self.t += 1
        self.m.lerp_(g, 1 - self.beta1)
        self.v.lerp_(g.square(), 1 - self.beta2)
        m, v = self.m / (1 - self.beta1**self.t), self.v / (1 - self.beta2**self.t)
        return m.div_(v.sqrt_().add_(self.eps))
