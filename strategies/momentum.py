"""Momentum as an exponential moving average: (1-β) u + β g, of gradients or of anything else that is estimated."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def momentum(u: Tensor | None, fresh: Tensor, beta: float) -> Tensor:
    """Return (1-β) u + β fresh, in the place of ``fresh``; the average of nothing yet is ``fresh`` itself.

    Parameters
    ----------
    u : Tensor or None
        The average so far, any shape; not written to.
    fresh : Tensor
        The new estimate, of the same shape; it belongs to the caller, as gradients of an oracle do.
    beta : float
        β in (0, 1]; with 1 the result is ``fresh``, to the bit.
    """
    return fresh if u is None else fresh.lerp_(u, 1 - beta)
