"""What is optimised: the one interface that every algorithm sees of a learning task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from edelweiss.common import HasOptions, check_options, key_of
from edelweiss.datasets import DataSummary, Samples
from edelweiss.models import Architecture
from edelweiss.problems.errors import ProblemError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edelweiss.datasets import Sampler
    from edelweiss.problems.papers import Paper

Arrays = dict[str, Tensor]
"""Named flat vectors ("x", "y", "cx", ...): one contiguous vector each, never a list of layers."""

Batch = tuple[Tensor, ...]
"""Inputs (n, *shape) float32 and labels (n,) int64 of one mini-batch; and weights (n,), where its sampler has some."""

Metrics = dict[str, float | list[int] | bytes]
"""Aggregates of an evaluation: numbers, counts of each class, and histograms of scores (`problems.histogram`)."""


RESERVED = {key_of(f.name) for f in fields(DataSummary)}
RESERVED |= {"amp", "data", "format", "head", "hidden", "model", "problem", "statistics", "y"}
"""What a model's file says besides the problem's own scalars."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a problem is built from besides its own options.

    Attributes
    ----------
    data_summary : DataSummary
        What the sites agreed on of their data.
    architecture : Architecture
        The network; a problem in closed form has none.
    site, sites : int
        Which f_k and of how many; site is -1 at the coordinator. Only closed forms differ between sites.
    seed : int
        Of the starting point.
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
    dtype : torch.dtype
        Of all vectors; float64 is for checks.
    """

    data_summary: DataSummary = field(default_factory=DataSummary)
    architecture: Architecture = field(default_factory=Architecture)
    site: int = -1
    sites: int = 1
    seed: int = 0
    device: str = "cpu"
    dtype: torch.dtype = torch.float32


@dataclass(eq=False)
class Problem(HasOptions, ABC):
    """``min over x, max over y of f(x, y; batch)`` at one site (a plain minimisation has no y).

    A subclass's fields are its options, declared with pydantic's ``Field``: the keys of the run-config's table with the
    problem's ``name``. It builds itself: ``Auc(setting, score="identity")``.

    Parameters
    ----------
    setting : Setting
        Everything else that a problem is built from.

    Attributes
    ----------
    name : str
        The value of the run-config key ``problem``.
    kind : str
        ``"minimisation"`` (no y), ``"minimax"``, or a word of its own that some algorithm lists in ``solves``.
    optimises, reports, papers
        What documents say of it: what is optimised, in words; the metrics to look at besides the loss, names in
        `problems.metrics.METRICS`, the first of them what is optimised unless that is the loss; where it is from.
    needs_data : bool
        False for problems given in closed form: they are run without a data set and without a model.
    same_everywhere : bool
        Of these: whether sites differ in nothing but what they draw. Else each has a problem of its own,
        ``setting.site``.
    multiclass : bool
        Whether labels are the data's own classes, 0 to C-1, and not 1 for positive and 0 for negative.
    several : bool
        Whether it can have several labels of two classes at once, the mean of whose objectives it then optimises.
    sampler : str
        What draws its batches unless the run says otherwise, a name in ``datasets.SAMPLERS``.
    dual_scalars : tuple of str
        What the entries of y are called in a model's file, where they have names of their own.
    terms : int
        j of a `problems.capabilities.ClosedFormDual`.
    device, dtype
        Of x, y and the batches.

    Raises
    ------
    ProblemError
        For an option that is out of its range.
    """

    setting: Setting = field(default_factory=Setting, repr=False)

    name: ClassVar[str]
    kind: ClassVar[str]
    optimises: ClassVar[str]
    reports: ClassVar[tuple[str, ...]] = ()
    papers: ClassVar[tuple[Paper, ...]] = ()
    needs_data: ClassVar[bool] = True
    same_everywhere: ClassVar[bool] = False
    multiclass: ClassVar[bool] = False
    several: ClassVar[bool] = False
    sampler: ClassVar[str] = "uniform"
    dual_scalars: ClassVar[tuple[str, ...]] = ()
    terms: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if taken := RESERVED.intersection(self.scalar_names()):
            raise ProblemError(
                f"problem {self.name!r} names a scalar {', '.join(map(repr, sorted(taken)))}, which has a meaning of "
                "its own in a model's file: call it something else"
            )
        if wrong := check_options(self, f"{self.name}."):
            raise ProblemError("\n".join(wrong))
        self.device, self.dtype = torch.device(self.setting.device), self.setting.dtype

    @classmethod
    def scalar_names(cls) -> tuple[str, ...]:
        """Return the names of the problem's own entries of x and y."""
        return cls.dual_scalars

    @abstractmethod
    def initial(self) -> Arrays:
        """Return the starting point: ``{"x": (d,), "y": (p,)}``, y absent for a minimisation.

        A pure function of the seed that the problem was built with.
        """

    def fresh(self, site: int | None = None) -> Arrays:
        """Return what of the starting point a site keeps for itself; here ``y``, where there is one. Read only.

        With ``site``, what is drawn of it is drawn for that site alone.
        """
        return {name: vector for name, vector in self.initial().items() if name == "y"}

    def of_site(self, labels: Tensor) -> Self:
        """Return the objective of a site that has y for itself; here it is that of all. They share a network.

        Parameters
        ----------
        labels : Tensor
            Of the site's training samples, shape (n,) or (n, L), `datasets.labels.UNKNOWN` where one is not known.
        """
        return self

    @property
    def draws_ahead(self) -> int:
        """How many samples the oracle may draw at once for the batches to come; here none.

        Where a batch of 2n is two independent batches of n, as where samples come from a distribution, it saves calls.
        """
        return 0

    def draw(
        self, samples: Samples | None, sampler: Sampler | None, generator: torch.Generator, size: int
    ) -> Batch | None:
        """Return a fresh mini-batch; a problem with inner samples, or without data, has its own way.

        It may be called in a thread, and what it drew be undone: it changes nothing but its arguments.

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
        inputs, labels = samples.batch(sampler.draw(size).to(samples.rows.device, non_blocking=True))
        weights = sampler.weights(labels)
        return (inputs, labels) if weights is None else (inputs, labels, weights.to(self.dtype))

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

    def unstackable_reason(self) -> str:
        """Say why many clients cannot be computed side by side (`problems.stacked.Stacked`); empty: they can.

        They can where `gradient` is one function for all sites, of its arguments alone, that PyTorch's ``vmap`` takes;
        of a network's problem that is said of `problems.network.NetworkProblem.objective`.
        """
        return f"problem = {self.name!r} has gradients of one client at a time"

    def gradients(self, x: Tensor, y: Tensor | None, batch: Batch | None) -> tuple[Tensor, Tensor | None]:
        """Return the `gradient` of K clients at once, from a problem without data.

        Every argument and result has a leading axis of length K. ``vmap`` makes it of `gradient`; to write it out pays
        where a step is so little work that ``vmap`` itself takes longer.
        """

        def of_one(x: Tensor, y: Tensor, *batch: Tensor) -> tuple[Tensor, Tensor]:
            gx, gy = self.gradient(x, None if nothing else y, batch or None)
            return gx, y if gy is None else gy

        nothing = y is None
        gx, gy = torch.vmap(of_one)(x, x[:, :0] if y is None else y, *(batch or ()))
        return gx, None if nothing else gy

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

    def inner_size(self, x: Tensor) -> int:
        """Return k, how long the value of a `problems.capabilities.InnerFunction` is; here as long as x."""
        return len(x)

    @abstractmethod
    def metrics(self, x: Tensor, y: Tensor | None, data: Samples | None) -> Metrics:
        """Evaluate (x, y) on held-out samples; never anything per sample."""

    def example(self) -> Metrics:
        """Return an evaluation of the starting point on two samples that are all zeros: what any one holds."""
        start, data = self.initial(), None
        if self.needs_data:
            data_summary, labels = self.setting.data_summary, torch.tensor([0, 1])
            if data_summary.labels:
                labels = labels[:, None].repeat(1, len(data_summary.labels))
            data = Samples(torch.zeros(2, *data_summary.shape), labels, torch.arange(2)).to(self.device)
        return self.metrics(start["x"], start.get("y"), data)

    def scalars_of(self, x: Tensor, y: Tensor | None) -> Mapping[str, float | list[float]]:
        """Return what a model's file says beside its state dict: the problem's own entries of x and y, by name."""
        if y is None:
            return {}
        return dict(zip(self.dual_scalars, y.tolist(), strict=True)) if self.dual_scalars else {"y": y.tolist()}

    def reseed(self, seed: int) -> None:
        """Fix what the model itself draws in the gradients from here on: dropout. ``seed`` is in [0, 2^63)."""

    def buffers(self) -> Tensor:
        """Return what training changes besides x: batch-norm statistics, flat, often empty."""
        return torch.empty(0)

    def load_buffers(self, flat: Tensor) -> None:
        """Set the batch-norm statistics."""
