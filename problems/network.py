"""The base of problems over a network's outputs."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from edelweiss.common import Stream
from edelweiss.models.stack import unstackable_reason
from edelweiss.problems.base import Problem
from edelweiss.problems.capabilities import Layers
from edelweiss.problems.errors import ProblemError
from edelweiss.problems.metrics import PARTIAL, class_metrics, merge_labels, ranked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

    from edelweiss.datasets import Samples
    from edelweiss.models import FlatNetwork
    from edelweiss.problems.base import Arrays, Batch, Metrics

EVALUATION_BATCH = 1024
EVALUATION_VALUES = 2**22  # limits the samples of large images


def evaluation_batch(shape: Sequence[int]) -> int:
    """Return the number of inputs of a shape that are evaluated at once."""
    return max(1, min(EVALUATION_BATCH, EVALUATION_VALUES // prod(shape)))


def mean(terms: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean of terms over samples, weighted as in `NetworkProblem.loss`; one mean per label."""
    return (terms if weights is None else terms * weights).mean(0)


def channels_last(inputs: Tensor) -> Tensor:
    """Convert images to channels-last, the fastest layout for convolutions; tables are unchanged."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs


@dataclass(eq=False)
class NetworkProblem(Problem, Layers):
    """A problem over a network's outputs: one score per sample, or one per class (``multiclass``).

    x holds the network's parameters followed by the problem's ``scalars``; y has ``dual`` entries. A subclass defines
    the loss; gradients are PyTorch's.

    A problem with ``several`` labels has a score, scalars and a dual variable for each of L labels, and optimises the
    mean of their losses. Each loss is a mean over the batch's samples with a known label; it is zero without any, so
    that a site without a label does not affect its parameters.
    """

    scalars: ClassVar[tuple[str, ...]] = ()
    """Names of the entries of x after the network's, such as ``("a", "b")``; with several labels all of ``a``, then all
    of ``b``."""
    log_odds: ClassVar[bool] = False
    """Whether the scores are the log-odds of a positive."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.setting.data_summary.shape:
            return  # options alone, as `edelweiss.simulate` is given: there are no data yet to build a network for
        self.network = self._built(self.setting.seed)
        start = self.network.vector()
        self.device, self.dtype = start.device, start.dtype
        self._head = self._head_of(self.network)
        self._autocast = self.setting.architecture.autocast(self.device)

    def _built(self, seed: int) -> FlatNetwork:
        """Return the network, initialised from a seed."""
        setting = self.setting
        return setting.architecture.network(
            setting.data_summary.shape, self.width, seed=seed, device=setting.device, dtype=setting.dtype
        )

    def _head_of(self, network: FlatNetwork) -> Tensor:
        start = network.vector()
        return torch.cat([start[network.head :], start.new_zeros(len(self.scalars) * self.scalar_size)])

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The names of several labels; empty for one."""
        return self.setting.data_summary.labels if self.several else ()

    @property
    def scalar_size(self) -> int:
        """The number of entries of a scalar: L, or 1."""
        return max(1, len(self.labels))

    @classmethod
    def scalar_names(cls) -> tuple[str, ...]:
        """Return the names of the problem's scalars in x and y."""
        return (*cls.scalars, *cls.dual_scalars)

    @property
    def width(self) -> int:
        """The number of the network's outputs: one score, one per class, or one per label."""
        return self.setting.data_summary.classes if self.multiclass else self.scalar_size

    @property
    def dual(self) -> int:
        """The length of y, 0 for none: the number of ``dual_scalars`` times `scalar_size`."""
        return len(self.dual_scalars) * self.scalar_size

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the objective on a batch, a scalar.

        Parameters
        ----------
        logits : Tensor
            Raw outputs of the network, shape (n,) or (n, C); with ``several`` labels (n, L).
        labels : Tensor
            Shape (n,): 1 for positive and 0 for negative, of the logits' dtype, or classes 0 to C-1, int64. With
            several labels (n, L), unknown labels being 0 with weight 0.
        scalars : Tensor
            The last entries of x, one for each name in ``scalars`` and each label.
        y : Tensor
            The dual variable, shape (``dual``,).
        weights : Tensor, optional
            Shape (n,), with mean 1: sample weights that undo the sampler's change of class shares. With several labels
            (n, L), with mean 1 for each label that is known for some sample.

        Returns
        -------
        Tensor
            A scalar; with several labels the loss of each on its own, shape (L,).
        """

    def objective(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor, *weights: Tensor) -> Tensor:
        """Return the objective, a scalar: the loss, or the mean of several labels' losses over known labels.

        ``labels`` and ``weights`` are those of a batch, with `datasets.labels.UNKNOWN` for unknown labels.
        """
        if not self.labels:
            return self._loss((), logits, self.cast_labels(labels), scalars, y, *weights)
        known = labels >= 0
        each = known.to(self.dtype)
        for weight in weights:
            each = each * weight[:, None]
        total = each.sum(0)
        each = each * (len(labels) / torch.where(total > 0, total, 1))
        losses = self._loss(total.shape, logits, (labels == 1).to(self.dtype), scalars, y, each)
        return torch.where(total > 0, losses, 0).mean()

    def _loss(self, shape: tuple[int, ...], *arguments: Tensor) -> Tensor:
        """Return the loss; raise ProblemError if it has not this shape."""
        loss = self.loss(*arguments)
        if (found := getattr(loss, "shape", None)) != shape:
            returned = f"one {type(loss).__name__}" if found is None else f"a tensor of shape {tuple(found)}"
            raise ProblemError(
                f"problem = {self.name!r}: `loss` of class {type(self).__name__} returned {returned}: must be a tensor "
                f"of shape {tuple(shape)}, the mean over the samples"
            )
        return loss

    def reported_loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor) -> Tensor:
        """Return the loss that an evaluation reports: the objective."""
        return self.objective(logits, labels, scalars, y)

    def patient_part(self, outputs: Tensor, labels: Tensor, scalars: Tensor, y: Tensor) -> Tensor:
        """Return the objective on a sample, given as a batch of one; less `public_part` it is a patient's own part.

        With several labels it is the mean over all of them, unknown ones counting 0: a label counts by how many know
        it.
        """
        if self.labels:
            labels, weights = (labels == 1).to(self.dtype), (labels >= 0).to(self.dtype)
        else:
            labels, weights = self.cast_labels(labels), torch.ones_like(labels, dtype=self.dtype)
        return self.loss(outputs, labels, scalars, y, weights).mean()

    def public_part(self, scalars: Tensor, y: Tensor) -> Tensor:
        """Return the part of the objective that no sample plays a part in: the loss at weight 0."""
        outputs = self.squeeze_outputs(scalars.new_zeros(1, self.width))
        labels = torch.zeros(outputs.shape if self.labels else (1,), dtype=torch.int64, device=outputs.device)
        cast = labels.to(self.dtype) if self.labels else self.cast_labels(labels)
        return self.loss(outputs, cast, scalars, y, torch.zeros_like(cast, dtype=self.dtype)).mean()

    def initial(self) -> Arrays:
        """Return the network's initialisation, zeros for the scalars, and the initial y."""
        zeros = torch.zeros(len(self.scalars) * self.scalar_size, device=self.device, dtype=self.dtype)
        return {"x": torch.cat([self.network.vector(), zeros])} | self.dual_start()

    def dual_start(self) -> Arrays:
        """Return the initial ``y``, here zeros; empty without one."""
        return {"y": torch.zeros(self.dual, device=self.device, dtype=self.dtype)} if self.dual else {}

    def model(self) -> Arrays:
        """Return the initial model: x, and the batch-norm statistics if any."""
        buffers = self.buffers()
        return {"x": self.initial()["x"]} | ({"buffers": buffers} if buffers.numel() else {})

    @property
    def head(self) -> int:
        """The index in x where the head begins."""
        return self.network.head

    @property
    def layers(self) -> tuple[tuple[slice, tuple[int, ...]], ...]:
        """The position in x and the shape of each parameter."""
        return tuple(parameter for layer in self.network.layers().values() for parameter in layer)

    @property
    def norms(self) -> Tensor:
        """The positions in x of all scales and shifts of batch norm."""
        return self.network.norms()

    def fresh(self, site: int | None = None) -> Arrays:
        """Return the initial head, common or drawn for a site, and the initial y."""
        head = self._head
        if site is not None:
            seed = np.random.SeedSequence([self.setting.seed, Stream.HEADS, site]).generate_state(1, np.uint64)
            head = self._head_of(self._built(int(seed[0])))
        return {"head": head} | self.dual_start()

    def scalars_of(self, x: Tensor, y: Tensor | None) -> Mapping[str, float | list[float]]:
        """Return the problem's scalars in x and y by name; `problems.scalars.restore_scalars` reads them."""
        if not self.labels:
            own = x[self.network.size :].tolist()
            return {**dict(zip(self.scalars, own, strict=True)), **super().scalars_of(x, y)}
        values = x[self.network.size :] if y is None else torch.cat([x[self.network.size :], y.to(x)])
        return dict(zip(self.scalar_names(), values.reshape(-1, self.scalar_size).tolist(), strict=True))

    def gradient(self, x: Tensor, y: Tensor | None, batch: Batch | None) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of the loss; see `Problem.gradient`."""
        assert batch is not None, "a network learns from batches"
        network = self.network
        network.bind(x)
        network.train(True)
        nothing = x[:0]
        scalars = x[network.size :].detach().requires_grad_() if self.scalars else nothing
        dual = nothing if y is None else y.detach().requires_grad_()
        loss = self.value(batch, scalars, dual)
        gx, *others = network.gradient(loss, [vector for vector in (scalars, dual) if vector.requires_grad])
        if self.scalars:  # they follow the network's parameters
            gx = torch.cat([gx, others.pop(0)])
        return gx, others.pop() if others else None

    def value(self, batch: Batch, scalars: Tensor, y: Tensor) -> Tensor:
        """Return the objective with its graph to the bound parameters; see `loss` and `outputs`."""
        inputs, labels, *weights = batch
        return self.objective(self.outputs(self.transform(inputs, y)), labels, scalars, y, *weights)

    def transform(self, inputs: Tensor, y: Tensor) -> Tensor:
        """Transform inputs (n, *shape) before the network; for K clients with y (K, p), inputs (K, n, *shape)."""
        return inputs

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return the network's raw outputs, shape (n,), (n, C) or (n, L)."""
        with self.forward_precision():
            return self.squeeze_outputs(self.network.forward(channels_last(inputs)))

    def squeeze_outputs(self, outputs: Tensor) -> Tensor:
        """Return outputs (..., width) in the form that `loss` expects: a single score without the last axis."""
        return (outputs if self.multiclass or self.labels else outputs.squeeze(-1)).to(self.dtype)

    def forward_precision(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass: evaluation and prediction use float32.

        In bfloat16 many patients would have equal scores.
        """
        return self._autocast if self.network.module.training else nullcontext()

    def cast_labels(self, labels: Tensor) -> Tensor:
        """Return labels with the dtype that `loss` expects."""
        return labels if self.multiclass else labels.to(self.dtype)

    @torch.no_grad()
    def logits(self, x: Tensor, data: Samples, offset: Tensor | float = 0.0) -> Tensor:
        """Return the network's raw outputs on all samples, shape (n,), (n, C) or (n, L), in evaluation mode.

        ``offset`` is added to every input.
        """
        self.network.bind(x)
        self.network.train(False)
        blocks = torch.split(torch.arange(len(data), device=self.device), evaluation_batch(data.shape))
        outputs, done = x[:0], 0
        for rows in blocks:
            block = self.outputs(data.batch(rows)[0].to(self.dtype).add_(offset))
            if not done:  # one allocation: small tensors between large ones would fragment memory
                outputs = block.new_empty(len(data), *block.shape[1:])
            outputs[done : done + len(block)] = block
            done += len(block)
        return outputs

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor | None, data: Samples | None) -> Metrics:
        """Return the loss, AUROC and average precision or accuracy, and the counts for pooling."""
        assert data is not None, "a network is evaluated on samples"
        logits, labels = self.logits(x, data), data.targets()
        loss = self.reported_loss(logits, labels, x[self.network.size :], x[:0] if y is None else y)
        if self.multiclass:
            return {"loss": loss.item(), "n": len(labels), **class_metrics(labels, logits)}
        scores, cast_labels = logits.double().cpu().numpy(), labels.cpu().numpy()
        own = self.setting.metrics
        if not self.labels:
            return {"loss": loss.item(), **ranked(cast_labels, scores, partial=PARTIAL in self.reports, own=own)}
        each = zip(self.labels, cast_labels.T, scores.T, strict=True)
        by_label = {name: ranked(of[of >= 0], scored[of >= 0], own=own) for name, of, scored in each}
        return {"loss": loss.item(), "n": len(cast_labels), **merge_labels(by_label)}

    def unstackable_reason(self) -> str:
        """Return why not: layers that `Stack` does not support, or overridden gradients."""
        names = ("gradient", "value", "outputs")
        if any(getattr(type(self), name) is not getattr(NetworkProblem, name) for name in names):
            return super().unstackable_reason()
        return unstackable_reason(self.network)

    def reseed(self, seed: int) -> None:
        """Fix the masks of dropout."""
        self.network.reseed(seed)

    def buffers(self) -> Tensor:
        """Return the batch-norm statistics as one flat vector."""
        return self.network.buffers()

    def load_buffers(self, flat: Tensor) -> None:
        """Set the batch-norm statistics."""
        self.network.load_buffers(flat)
