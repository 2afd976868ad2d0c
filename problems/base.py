"""What is optimised: the one interface that every algorithm sees of a learning task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from datasets import Sampler, Samples

Arrays = dict[str, Tensor]
"""Named flat vectors ("x", "y", "cx", ...): one contiguous vector each, never a list of layers."""

Batch = tuple[Tensor, Tensor]
"""Inputs (n, *shape) float32 and labels (n,) int64 of one mini-batch."""

Metrics = dict[str, float | list[int]]
"""Aggregates of an evaluation; lists are histograms, see problems/metrics.py."""


class ProblemError(ValueError):
    """A problem was asked for something it cannot do; the message names the key, the value and the fix."""


class Problem(ABC):
    """``min over x, max over y of f(x, y; batch)`` at one site (a plain minimisation has no y).

    Attributes
    ----------
    name : str
        The value of the run-config key ``problem``.
    kind : str
        ``"minimisation"`` (no y), ``"minimax"``, or a word of its own that some algorithm lists in ``solves``.
    needs_data : bool
        False for problems given in closed form: they are run without a data set and without a model.
    multiclass : bool
        Whether labels are the data's own classes, 0 to C-1, and not 1 for positive and 0 for negative.
    offers : frozenset of str
        What it can do beyond gradients, for algorithms that need it: ``"closed-form-dual"`` (see `dual_terms`),
        ``"inner-function"`` (see `inner`), ``"head"`` (see `head`), ``"layers"`` (see `layers`), ``"balanced-loss"``
        (see `balanced_gradient`).
    sampler : str
        What draws its batches unless the run says otherwise, a name in ``datasets.SAMPLERS``.
    draws_ahead : int
        How many samples the oracle may draw at once for the batches to come, where a batch of 2n is two independent
        batches of n, as where samples come from a distribution; 0 where it is not.
    dimension : int
        d of a problem in closed form, unless the run says otherwise.
    device : torch.device
        Where x, y and the batches live.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    needs_data: ClassVar[bool] = True
    multiclass: ClassVar[bool] = False
    offers: ClassVar[frozenset[str]] = frozenset()
    sampler: ClassVar[str] = "uniform"
    draws_ahead: int = 0
    dimension: ClassVar[int] = 20
    device: torch.device

    @abstractmethod
    def initial(self) -> Arrays:
        """Return the starting point: ``{"x": (d,), "y": (p,)}``, y absent for a minimisation.

        A pure function of the seed that the problem was built with.
        """

    @property
    def head(self) -> int:
        """Where the head begins in x: x[:head] is the body, x[head:] the head and the problem's own scalars.

        Raises
        ------
        ProblemError
            Where x has no such parts.
        """
        raise ProblemError(f"problem {self.name!r} has no head")

    @property
    def layers(self) -> tuple[tuple[slice, tuple[int, ...]], ...]:
        """Where each of the network's parameters lies in x, and its shape; scalars of the problem are not among them.

        Raises
        ------
        ProblemError
            Where there is no network.
        """
        raise ProblemError(f"problem {self.name!r} has no layers")

    def fresh(self) -> Arrays:
        """Return what of the starting point a site keeps for itself: ``head``, and ``y``, where there are such.

        A pure function of the seed that the problem was built with, so that a head is never sent. It belongs to the
        problem.
        """
        return {name: vector for name, vector in self.initial().items() if name == "y"}

    def draw(
        self, samples: Samples | None, sampler: Sampler | None, generator: torch.Generator, size: int
    ) -> Batch | None:
        """Return a fresh mini-batch; a problem with inner samples, or without data, has its own way.

        Parameters
        ----------
        samples : Samples or None
            The site's training samples, on the problem's device.
        sampler : Sampler or None
            Draws positions in the samples, with ``generator``.
        generator : torch.Generator
            The random stream of this site in this round, on the CPU.
        size : int
            Samples in the batch; outer samples, where there are inner ones.
        """
        if samples is None or sampler is None:
            return None
        return samples.batch(sampler.draw(size).to(self.device, non_blocking=True))

    @abstractmethod
    def gradient(self, x: Tensor, y: Tensor | None, batch: Batch | None) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of f at any point, on any batch.

        Variance-reduced estimators ask twice on one batch, at two points.

        Parameters
        ----------
        x : Tensor
            Primal variable, shape (d,).
        y : Tensor or None
            Dual variable, shape (p,); None for a minimisation.
        batch : Batch or None
            A mini-batch; None for problems that need no data.

        Returns
        -------
        tuple[Tensor, Tensor | None]
            Gradients with the shapes of x and y. They belong to the caller: no later call overwrites them.
        """

    def project(self, y: Tensor) -> Tensor:
        """Return y projected onto its feasible set (here: all of R^p)."""
        return y

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
            Numerators, shape (j, p), and denominators, shape (j,).
        """
        raise ProblemError(f"problem {self.name!r} does not give its best y in closed form")

    def inner(self, x: Tensor, batch: Batch | None) -> Tensor:
        """Return g(x; batch), the estimate of the inner function of f(g(x)), where its size is fixed.

        An algorithm follows it by a running average s over its steps; with inner samples in the batch it is the mean
        over all of them. The gradient at s is `compositional_gradient`.

        Parameters
        ----------
        x : Tensor
            Primal variable, shape (d,).
        batch : Batch or None
            A mini-batch, as `draw` returns it.

        Returns
        -------
        Tensor
            Shape (k,), with the same k for every batch. It belongs to the caller.
        """
        raise ProblemError(f"problem {self.name!r} has no inner function of a fixed size")

    def compositional_gradient(self, x: Tensor, s: Tensor, batch: Batch | None) -> Tensor:
        """Return ∇g(x; batch)ᵀ ∇f(s; batch): the outer gradient is taken at s in place of g(x; batch).

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
        raise ProblemError(f"problem {self.name!r} has no inner function of a fixed size")

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
        raise ProblemError(f"problem {self.name!r} has no balanced loss")

    def lacks(self, counts: Sequence[int]) -> str:
        """Say what a set of samples lacks to be learnt from or judged by; empty: nothing.

        Parameters
        ----------
        counts : sequence of int
            How many samples there are of each class; asked of ``multiclass`` problems only.

        Returns
        -------
        str
            Continues "site 'north' has": what there is, what is needed, and the keys to change.
        """
        return ""

    @abstractmethod
    def metrics(self, x: Tensor, y: Tensor | None, data: Samples | None) -> Metrics:
        """Evaluate (x, y) on held-out samples; never anything per sample."""

    def reseed(self, seed: int) -> None:  # noqa: B027  a problem whose model draws nothing has nothing to do
        """Fix what the model itself draws in the gradients from here on: dropout. ``seed`` is in [0, 2^63)."""

    def buffers(self) -> Tensor:
        """Return what training changes besides x: batch-norm statistics, flat, often empty."""
        return torch.empty(0)

    def load_buffers(self, flat: Tensor) -> None:  # noqa: B027  a problem without statistics has nothing to do
        """Set the batch-norm statistics."""
