"""The interface between an algorithm's client half and its site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from edelweiss.problems.capabilities import ClosedFormDual, InnerFunction, Layers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from contextlib import AbstractContextManager

    import torch
    from torch import Tensor

    from edelweiss.problems import Batch


Point = tuple["Tensor", "Tensor | None"]
"""x, and y where there is one."""


class Oracle(ClosedFormDual, InnerFunction, Layers, Protocol):
    """A problem bound to one site's data and random stream of a round; see ``client_app.oracle``.

    All algorithms may use batches, gradients and projections. An algorithm that uses a capability names it in
    ``needs``.
    """

    def draw(self, size: int | None = None) -> Batch | None:
        """Return a fresh mini-batch (of ``size`` samples; default: the run's batch size)."""
        ...

    def epoch(self) -> Iterator[Batch | None]:
        """Yield the mini-batches of one pass over the site's training samples."""
        ...

    def gradient(self, x: Tensor, y: Tensor | None = None, batch: Batch | None = None) -> tuple[Tensor, Any]:
        """Return (gx, gy) at any point, on the given batch or on a fresh one; gy is None without a y."""
        ...

    def difference(
        self, here: Point, before: Point, weights: tuple[float, float] = (1.0, 1.0), estimates: Point | None = None
    ) -> tuple[Tensor, Any]:
        """Return g(here) - weight g(before), both on one fresh batch; see `Differences`."""
        ...

    def full_gradient(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Any]:
        """Return (gx, gy) over all of the site's training samples, block by block; counted as one gradient."""
        ...

    def dual_terms(self, x: Tensor, batch: Batch | None = None) -> tuple[Tensor, Tensor]:
        """Return the terms of a `problems.capabilities.ClosedFormDual`; without a batch, over all training samples."""
        ...

    def balanced_gradient(self, x: Tensor, batch: Batch | None) -> Tensor:
        """Return the gradient of a `problems.capabilities.BalancedLoss`, balanced by this site's class counts."""
        ...

    @property
    def generator(self) -> torch.Generator:
        """This site's random stream of this round, on the CPU; it also draws the batches."""
        ...

    def aside(self) -> AbstractContextManager[None]:
        """Take gradients of the common model, with all sites' objective (`Algorithm.own_dual`).

        The site's batch-norm statistics are left unchanged.
        """
        ...

    def project(self, y: Tensor) -> Tensor:
        """Return y projected onto its feasible set."""
        ...


NOT_PRIVATE = {
    InnerFunction: "it follows the inner value of a composition, in which a batch's patients are one; take fedavg",
}


def not_private(needs: Collection[type]) -> str:
    """Return why an algorithm with these ``needs`` sees patients other than by gradients; empty if it does not."""
    return next((why for kind, why in NOT_PRIVATE.items() if kind in needs), "")


class Differences:
    """Differences of two gradients on one batch, for an oracle that draws batches and takes gradients.

    A site under differential privacy clips and noises them as one answer, with a clip of their own: a difference is
    small where the points are near, or the weight is.
    """

    draw: Callable[[], Batch | None]
    gradient: Callable[..., tuple[Tensor, Any]]

    def difference(
        self, here: Point, before: Point, weights: tuple[float, float] = (1.0, 1.0), estimates: Point | None = None
    ) -> tuple[Tensor, Any]:
        """Return g(here) - weight (g(before) - estimate) by x and by y, on one fresh batch: two gradients.

        Parameters
        ----------
        here, before : (x, y)
            Points; y is None for a minimisation.
        weights : (float, float)
            Weights of the gradients at ``before`` by x and by y, in [0, 1].
        estimates : (u, v), optional
            What the gradients at ``before`` are corrected by; default: nothing. Not written to.
        """
        batch = self.draw()
        # The old point first: a network is still bound to it, and its batch-norm statistics end at the new one.
        old = self.gradient(*before, batch)
        new = self.gradient(*here, batch)
        # The gradients are ours: g - weight (p - u) needs no further vector, and leaves u as it was.
        for gradient, previous, weight, estimate in zip(new, old, weights, estimates or (None, None), strict=True):
            if gradient is not None:
                gradient.sub_(previous if estimate is None else previous.sub_(estimate), alpha=weight)
        return new
