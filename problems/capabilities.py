"""Optional capabilities of problems beyond gradients: a problem inherits one, an algorithm ``needs`` it.

`federation.oracle.Oracle` provides them to the client half of an algorithm.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.problems.base import Arrays, Batch, Problem


class ClosedFormDual(Protocol):
    """The maximising y of the mean objective has a closed form: a ratio of sums over all sites."""

    @abstractmethod
    def dual_terms(self, x: Tensor, batch: Batch | None) -> tuple[Tensor, Tensor]:
        """Return a site's terms of the y that maximises the mean objective at x.

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
            Numerators, shape (j, p), and denominators, shape (j,), which sum to the number of samples, or to 1; of
            shape (j, p) if each entry of y has its own samples.
        """
        ...


class InnerFunction(Protocol):
    """The objective is a composition f(g(x)), with an inner function g of fixed size."""

    @abstractmethod
    def inner(self, x: Tensor, batch: Batch | None) -> Tensor:
        """Return g(x; batch), the estimate of the inner function.

        Algorithms track it by a running average s over steps; inner samples of the batch are averaged. The gradient at
        s is `compositional_gradient`.

        Parameters
        ----------
        x : Tensor
            Primal variable, shape (d,).
        batch : Batch or None
            A mini-batch, as `Problem.draw` returns it.

        Returns
        -------
        Tensor
            Shape (k,), with the same k for every batch; owned by the caller.
        """
        ...

    @abstractmethod
    def compositional_gradient(self, x: Tensor, s: Tensor, batch: Batch | None) -> Tensor:
        """Return ∇g(x; batch)ᵀ ∇f(s; batch), with the outer gradient at s instead of g(x; batch).

        For s = ``inner(x, batch)`` this is the gradient of f(g(x; batch); batch).

        Parameters
        ----------
        x : Tensor
            Primal variable, shape (d,).
        s : Tensor
            An estimate of g(x), shape (k,).
        batch : Batch or None
            The mini-batch passed to ``inner``.

        Returns
        -------
        Tensor
            Shape (d,), owned by the caller.
        """
        ...


class Layers(Protocol):
    """x holds a network's parameters, layer by layer, as a body and a head."""

    @property
    @abstractmethod
    def layers(self) -> tuple[tuple[slice, tuple[int, ...]], ...]:
        """The position in x and the shape of each network parameter, without the problem's scalars."""
        ...

    @property
    @abstractmethod
    def head(self) -> int:
        """The index in x where the head begins: x[:head] is the body, x[head:] the head and the problem's scalars."""
        ...

    @property
    @abstractmethod
    def norms(self) -> Tensor:
        """The positions in x of all scales and shifts of batch norm, shape (n,) int64, ascending; often none."""
        ...

    @abstractmethod
    def fresh(self) -> Arrays:
        """Return the part of the starting point that is local to a site: ``head``, and ``y`` if any. Read only.

        The head is the common one of `Problem.initial`, or one drawn for the site (`Algorithm.own_heads`). The run's
        seed and the site's index determine it, so that heads are never sent.
        """
        ...


class BalancedLoss(Protocol):
    """The loss has a variant that treats all classes as equally frequent."""

    @abstractmethod
    def balanced(self, counts: Tensor) -> Problem:
        """Return the problem as if a site had equal numbers of samples of each class; it shares the network.

        Parameters
        ----------
        counts : Tensor
            Number of the site's training samples of each class, shape (C,).
        """
        ...


def readable(capability: type) -> str:
    """Return a capability's name for use in a sentence: "closed form dual"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", capability.__name__).lower()
