"""What a problem may offer beyond gradients, each capability once: a problem inherits it, an algorithm ``needs`` it.

`federation.oracle.Oracle` passes them on to the client half of an algorithm.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.problems.base import Arrays, Batch


class ClosedFormDual(Protocol):
    """The y that maximises the mean objective at x is known: a ratio of sums over all sites."""

    @abstractmethod
    def dual_terms(self, x: Tensor, batch: Batch | None) -> tuple[Tensor, Tensor]:
        """Return what a site contributes to the y that maximises the mean objective at x.

        The maximiser is Σ_j (numerators summed over sites)_j / (denominators summed over sites)_j; for AUC that is
        E[h|-] - E[h|+], from the sums of scores and the counts of both classes.

        Parameters
        ----------
        x : Tensor
            Primal variable, shape (d,).
        batch : Batch or None
            A large batch.

        Returns
        -------
        tuple[Tensor, Tensor]
            Numerators, shape (j, p), and denominators, shape (j,), which add up to the number of samples, or to 1; or
            of shape (j, p), where each entry of y has samples of its own.
        """
        ...


class InnerFunction(Protocol):
    """The objective is f(g(x)), with an inner function g of fixed size."""

    @abstractmethod
    def inner(self, x: Tensor, batch: Batch | None) -> Tensor:
        """Return g(x; batch), the estimate of the inner function.

        An algorithm follows it by a running average s over its steps; with inner samples in the batch it is the mean
        over all of them. The gradient at s is `compositional_gradient`.

        Parameters
        ----------
        x : Tensor
            Primal variable, shape (d,).
        batch : Batch or None
            A mini-batch, as `Problem.draw` returns it.

        Returns
        -------
        Tensor
            Shape (k,), with the same k for every batch. It belongs to the caller.
        """
        ...

    @abstractmethod
    def compositional_gradient(self, x: Tensor, s: Tensor, batch: Batch | None) -> Tensor:
        """Return ∇g(x; batch)ᵀ ∇f(s; batch): the outer gradient is taken at s instead of g(x; batch).

        With s = ``inner(x, batch)`` it is the gradient of f(g(x; batch); batch).

        Parameters
        ----------
        x : Tensor
            Primal variable, shape (d,).
        s : Tensor
            An estimate of g(x), shape (k,).
        batch : Batch or None
            The mini-batch that ``inner`` was asked about.

        Returns
        -------
        Tensor
            Shape (d,). It belongs to the caller.
        """
        ...


class Layers(Protocol):
    """The parameters x are a network's: layer after layer, a body and a head."""

    @property
    @abstractmethod
    def layers(self) -> tuple[tuple[slice, tuple[int, ...]], ...]:
        """Where each of the network's parameters lies in x, and its shape; the problem's scalars are not among them."""
        ...

    @property
    @abstractmethod
    def head(self) -> int:
        """Where the head begins in x: x[:head] is the body, x[head:] the head and the problem's own scalars."""
        ...

    @abstractmethod
    def fresh(self) -> Arrays:
        """Return what of the starting point a site keeps for itself: ``head``, and ``y`` where there is one.

        The head is the one for all, of `Problem.initial`, or one that is drawn for the site in the same way
        (`Algorithm.own_heads`). It follows from the run's seed and the site's number, so that a head is never sent. It
        belongs to the problem: read only.
        """
        ...


class BalancedLoss(Protocol):
    """The loss has a form that treats all classes as equally frequent."""

    @abstractmethod
    def balanced_gradient(self, x: Tensor, batch: Batch | None, counts: Tensor) -> Tensor:
        """Return the gradient of the loss as if the site had equally many samples of each class.

        Parameters
        ----------
        x : Tensor
            Primal variable, shape (d,).
        batch : Batch or None
            A mini-batch.
        counts : Tensor
            The site's training samples of each class, shape (C,).

        Returns
        -------
        Tensor
            Shape (d,). It belongs to the caller.
        """
        ...


def in_words(capability: type) -> str:
    """Return a capability's name as it reads in a sentence: "closed form dual"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", capability.__name__).lower()
