"""The interface between algorithms and problems."""

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

    from edelweiss.common import Value
    from edelweiss.datasets import Facts, Sampler
    from edelweiss.problems.papers import Paper

Arrays = dict[str, Tensor]
"""Named flat vectors ("x", "y", "cx", ...): one contiguous vector each, never a list of layers."""

Batch = tuple[Tensor, ...]
"""Inputs (n, *shape) float32 and labels (n,) int64 of one mini-batch, and weights (n,) if its sampler reweights."""

Metrics = dict[str, float | list[int] | bytes]
"""Aggregates of an evaluation: numbers, counts of each class, and histograms of scores (`problems.histogram`)."""


NO_BUFFERS = torch.empty(0)
RESERVED = {key_of(f.name) for f in fields(DataSummary)}
RESERVED |= {"amp", "data", "format", "head", "hidden", "model", "problem", "statistics", "y"}
"""Keys of a model's file that a problem's scalars must not use."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that a problem is built from except its own options.

    Attributes
    ----------
    data_summary : DataSummary
        The summary of all sites' data.
    architecture : Architecture
        The network; unused by closed-form problems.
    site, sites : int
        The index k of f_k, -1 at the coordinator, and the number of sites; only closed-form problems use them.
    seed : int
        Seed of the starting point.
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
    dtype : torch.dtype
        Dtype of all vectors; float64 is for checks.
    metrics : tuple of str
        Metrics from outside that an evaluation reports as well.
    """

    data_summary: DataSummary = field(default_factory=DataSummary)
    architecture: Architecture = field(default_factory=Architecture)
    site: int = -1
    sites: int = 1
    seed: int = 0
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    metrics: tuple[str, ...] = ()


@dataclass(eq=False)
class Problem(HasOptions, ABC):
    """``min over x, max over y of f(x, y; batch)`` at one site (a plain minimisation has no y).

    A subclass's fields are its options, declared with pydantic's ``Field``: the keys of the run-config table with the
    problem's ``name``. Example: ``Auc(setting, score="identity")``.

    Parameters
    ----------
    setting : Setting
        Everything except the options.

    Attributes
    ----------
    name : str
        The value of the run-config key ``problem``.
    kind : str
        ``"minimisation"`` (no y), ``"minimax"``, or another kind that some algorithm lists in ``solves``.
    optimises, reports, papers
        For the documentation: the objective in words; the metrics to report besides the loss, names in
        `problems.metrics.METRICS`, headed by the one that is optimised unless that is the loss; the sources.
    needs_data : bool
        False for closed-form problems, which run without a data set and a model.
    same_everywhere : bool
        For closed-form problems: whether all sites have the same f and differ only in their draws.
    multiclass : bool
        Whether labels are classes 0 to C-1, rather than 1 for positive and 0 for negative.
    several : bool
        Whether it supports several binary labels; it then optimises the mean of their objectives.
    sampler : str
        The default sampler, a name in ``datasets.SAMPLERS``, or ``"auto"``: fixed-positives where these are rare.
    mixes_patients : str
        Why the gradient of a batch is no sum over patients, each with a part of its own; empty: it is. Without such
        parts there is no differential privacy.
    dual_scalars : tuple of str
        Names of the entries of y in a model's file, if they have any.
    terms : int
        j of a `problems.capabilities.ClosedFormDual`.
    device, dtype
        Of x, y and the batches.

    Raises
    ------
    ProblemError
        If an option is out of range.
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
    mixes_patients: ClassVar[str] = ""
    sampler: ClassVar[str] = "uniform"
    dual_scalars: ClassVar[tuple[str, ...]] = ()
    terms: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if taken := RESERVED.intersection(self.scalar_names()):
            raise ProblemError(
                f"problem {self.name!r} names a scalar {', '.join(map(repr, sorted(taken)))}, a reserved key of model "
                "files: rename the scalar",
                key=next(iter(sorted(taken))),
            )
        if wrong := check_options(self, f"{self.name}."):
            raise ProblemError("\n".join(wrong), key=wrong[0].split(" = ")[0])
        self.device, self.dtype = torch.device(self.setting.device), self.setting.dtype

    @classmethod
    def usual_step(cls, options: Mapping[str, Value]) -> float:
        """Return the default step size of SGD on x and y, given options of the problem by key.

        It is that of algorithms which declare theirs by `federation.step_size`.
        """
        return 0.1

    @property
    def usual_clip(self) -> float:
        """The default norm at which a patient's gradient is clipped for privacy.

        It is the geometric mean of two: what patients weigh on average, beyond which noise grows, and what one of the
        heaviest class weighs, below which that class counts less than the loss says. A weight is how steep the loss is
        in the score, as a multiple of cross-entropy's.
        """
        return 1.0

    @classmethod
    def scalar_names(cls) -> tuple[str, ...]:
        """Return the names of the problem's scalars in x and y."""
        return cls.dual_scalars

    @abstractmethod
    def initial(self) -> Arrays:
        """Return the starting point ``{"x": (d,), "y": (p,)}``, without y for a minimisation.

        It depends only on the seed of the setting.
        """

    def fresh(self, site: int | None = None) -> Arrays:
        """Return the part of the starting point that is local to a site; here ``y``, if any. Read only.

        With ``site``, random parts are drawn for that site alone.
        """
        return {name: vector for name, vector in self.initial().items() if name == "y"}

    def of_site(self, labels: Tensor) -> Self:
        """Return the objective of a site by itself, sharing this network; here the common objective.

        Parameters
        ----------
        labels : Tensor
            Labels of the site's training samples, shape (n,) or (n, L), `datasets.labels.UNKNOWN` where unknown.
        """
        return self

    def differs_by_site(self, own_dual: bool) -> bool:
        """Return whether each site trains on an objective of its own, `of_site`.

        ``own_dual`` says whether y stays at the site, see `federation.Algorithm.own_dual`; here that is what decides.
        """
        return own_dual and type(self).of_site is not Problem.of_site

    @property
    def draws_ahead(self) -> int:
        """The number of samples that the oracle may draw ahead for coming batches; here 0.

        It saves calls where a batch of 2n equals two independent batches of n, as with samples from a distribution.
        """
        return 0

    def draw(
        self, samples: Samples | None, sampler: Sampler | None, generator: torch.Generator, size: int
    ) -> Batch | None:
        """Draw a mini-batch; problems with inner samples or without data override this.

        It may run in a thread and be undone, so it must not modify anything but its arguments.

        Parameters
        ----------
        samples : Samples or None
            The site's training samples, on the problem's device.
        sampler : Sampler or None
            Draws indices of samples, using ``generator``.
        generator : torch.Generator
            The random stream of this site and round, on the CPU.
        size : int
            Samples in the batch; outer samples, if there are inner ones.
        """
        if samples is None or sampler is None:
            return None
        inputs, labels = samples.batch(sampler.draw(size).to(samples.rows.device, non_blocking=True))
        weights = sampler.weights(labels)
        return (inputs, labels) if weights is None else (inputs, labels, weights.to(self.dtype))

    @abstractmethod
    def gradient(self, x: Tensor, y: Tensor | None, batch: Batch | None) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of f at a point, on a batch.

        Variance-reduced estimators call it at two points on the same batch.

        Parameters
        ----------
        x : Tensor
            Primal variable, shape (d,).
        y : Tensor or None
            Dual variable, shape (p,); None for a minimisation.
        batch : Batch or None
            A mini-batch; None for problems without data.

        Returns
        -------
        tuple[Tensor, Tensor | None]
            Gradients with the shapes of x and y, owned by the caller.
        """

    def project(self, y: Tensor) -> Tensor:
        """Project y onto its feasible set (here all of R^p)."""
        return y

    def unstackable_reason(self) -> str:
        """Return why the problem cannot be vectorised over clients (`problems.stacked.Stacked`); empty if it can.

        It can if `gradient`, or for a network's problem `problems.network.NetworkProblem.objective`, is the same pure
        function at all sites and supports PyTorch's ``vmap``.
        """
        return f"problem = {self.name!r} computes gradients for one client at a time"

    def gradients(self, x: Tensor, y: Tensor | None, batch: Batch | None) -> tuple[Tensor, Tensor | None]:
        """Compute the `gradient` of K clients at once, for a problem without data.

        Every argument and result has a leading axis of length K. The default vectorises `gradient` by ``vmap``;
        override it where a step is so cheap that the overhead of ``vmap`` dominates.
        """

        def of_one(x: Tensor, y: Tensor, *batch: Tensor) -> tuple[Tensor, Tensor]:
            gx, gy = self.gradient(x, None if nothing else y, batch or None)
            return gx, y if gy is None else gy

        nothing = y is None
        gx, gy = torch.vmap(of_one)(x, x[:, :0] if y is None else y, *(batch or ()))
        return gx, None if nothing else gy

    def shortfall(self, counts: Sequence[int]) -> str:
        """Return why a set of samples is too small to train or evaluate on; empty if it suffices.

        Parameters
        ----------
        counts : sequence of int
            Number of samples of each class; only called for ``multiclass`` problems.

        Returns
        -------
        str
            Continues "site 'north' has": what is there, what is needed, and the keys to change.
        """
        return ""

    @classmethod
    def idle(cls, facts: Facts) -> bool:
        """Return whether a site contributes nothing: f and its gradient are 0 whatever x is. Here never.

        It then has no weight in averages: the others' steps are not shortened by a site that takes none.
        """
        return False

    def inner_size(self, x: Tensor) -> int:
        """Return k, the length of the value of a `problems.capabilities.InnerFunction`; here the length of x."""
        return len(x)

    @abstractmethod
    def metrics(self, x: Tensor, y: Tensor | None, data: Samples | None) -> Metrics:
        """Evaluate (x, y) on held-out samples; returns aggregates only."""

    def example(self) -> Metrics:
        """Return an example evaluation: of the starting point, on two samples of zeros."""
        start, data = self.initial(), None
        if self.needs_data:
            data_summary, labels = self.setting.data_summary, torch.tensor([0, 1])
            if data_summary.labels:
                labels = labels[:, None].repeat(1, len(data_summary.labels))
            data = Samples(torch.zeros(2, *data_summary.shape), labels, torch.arange(2)).to(self.device)
        return self.metrics(start["x"], start.get("y"), data)

    def scalars_of(self, x: Tensor, y: Tensor | None) -> Mapping[str, float | list[float]]:
        """Return the problem's scalars in x and y by name, for a model's file."""
        if y is None:
            return {}
        return dict(zip(self.dual_scalars, y.tolist(), strict=True)) if self.dual_scalars else {"y": y.tolist()}

    def reseed(self, seed: int) -> None:
        """Fix what the model itself draws in the gradients from here on: dropout. ``seed`` is in [0, 2^63)."""

    def buffers(self) -> Tensor:
        """Return the flat batch-norm statistics, which training changes besides x; often empty."""
        return NO_BUFFERS

    def load_buffers(self, flat: Tensor) -> None:
        """Set the batch-norm statistics."""
