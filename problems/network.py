"""Problems over a network's outputs: what AUC, cross-entropy and their relatives share."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from edelweiss.common import Stream
from edelweiss.models.stack import unstackable_reason
from edelweiss.problems.base import Problem
from edelweiss.problems.capabilities import Layers
from edelweiss.problems.metrics import PARTIAL, correct_by_class, of_labels, ranked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

    from edelweiss.datasets import Samples
    from edelweiss.models import FlatNetwork
    from edelweiss.problems.base import Arrays, Batch, Metrics

EVALUATION_BATCH = 1024
EVALUATION_VALUES = 2**22  # of larger images fewer samples


def rows_at_once(shape: Sequence[int]) -> int:
    """Return how many inputs of a shape are evaluated at once."""
    return max(1, min(EVALUATION_BATCH, EVALUATION_VALUES // prod(shape)))


def mean(terms: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean of terms per sample, weighted as `NetworkProblem.loss` says; of several labels that of each."""
    return (terms if weights is None else terms * weights).mean(0)


def channels_last(inputs: Tensor) -> Tensor:
    """Lay out images with the channels innermost, which convolutions are fastest on; tables stay as they are."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs


@dataclass(eq=False)
class NetworkProblem(Problem, Layers):
    """A loss of a network's outputs: one score per sample, or one per class (``multiclass``).

    x holds the network's parameters, then the problem's ``scalars``; y holds ``dual`` numbers. A subclass writes the
    loss; gradients are PyTorch's.

    A problem of ``several`` labels has a score, scalars and a dual variable for each of L, and optimises the mean of
    the labels' losses. Each is a mean over those samples of the batch of which its label is known; where there is none
    it is zero, so that the loss of a site which lacks a label moves nothing of it.

    Attributes
    ----------
    scalars : tuple of str
        Names of the entries of x behind the network's, such as ``("a", "b")``; of several labels first all that ``a``
        has, then all of ``b``.
    scalar_size : int
        How many entries each of them has: L, or 1.
    dual : int
        How long y is, 0 for none; where ``dual_scalars`` name its entries, their number, times L.
    network : FlatNetwork
        The model, on its device.
    width : int
        Outputs of the network: one score, one per class, or one per label.
    labels : tuple of str
        The names of several labels; empty for one.
    """

    scalars: ClassVar[tuple[str, ...]] = ()
    log_odds: ClassVar[bool] = False
    """Whether the scores are the log-odds of a positive, and not just higher for positives."""

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

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of several labels; empty for one."""
        return self.setting.data_summary.labels if self.several else ()

    @property
    def scalar_size(self) -> int:
        """How many entries a scalar has: L, or 1."""
        return max(1, len(self.labels))

    @classmethod
    def scalar_names(cls) -> tuple[str, ...]:
        """Return the names of the problem's own entries of x and y."""
        return (*cls.scalars, *cls.dual_scalars)

    @property
    def width(self) -> int:
        """How many outputs the network has."""
        return self.setting.data_summary.classes if self.multiclass else self.scalar_size

    @property
    def dual(self) -> int:
        """How long y is; 0 where there is none."""
        return len(self.dual_scalars) * self.scalar_size

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the objective on a batch, a scalar.

        Parameters
        ----------
        logits : Tensor
            Raw outputs of the network, shape (n,), or (n, C). Of ``several`` labels (n, L).
        labels : Tensor
            Shape (n,): 1 for positive and 0 for negative, of the logits' dtype, or classes 0 to C-1, int64. Of several
            labels (n, L), 0 also where one is not known, which then has no weight.
        scalars : Tensor
            The last entries of x, one for each name in ``scalars``, and label.
        y : Tensor
            The dual variable, shape (``dual``,).
        weights : Tensor, optional
            Shape (n,), of mean 1: how samples of two classes count where the sampler has changed the classes' shares.
            Of several labels (n, L), and of mean 1 for each label that is known of any.

        Returns
        -------
        Tensor
            A scalar. Of several labels the loss of each, shape (L,), as if it were the only one.
        """

    def objective(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor, *weights: Tensor) -> Tensor:
        """Return what is optimised, a scalar: the loss, or the mean of several labels' losses where they are known.

        ``labels`` and ``weights`` are a batch's own, with `datasets.labels.UNKNOWN` where a label is not known.
        """
        if not self.labels:
            return self.loss(logits, self.truth(labels), scalars, y, *weights)
        known = labels >= 0
        each = known.to(self.dtype)
        for of_sample in weights:
            each = each * of_sample[:, None]
        total = each.sum(0)
        each = each * (len(labels) / torch.where(total > 0, total, 1))
        losses = self.loss(logits, (labels == 1).to(self.dtype), scalars, y, each)
        return torch.where(total > 0, losses, 0).mean()

    def initial(self) -> Arrays:
        """Return the network's own initialisation, zeros for the scalars, and the dual's start."""
        zeros = torch.zeros(len(self.scalars) * self.scalar_size, device=self.device, dtype=self.dtype)
        return {"x": torch.cat([self.network.vector(), zeros])} | self.dual_start()

    def dual_start(self) -> Arrays:
        """Return the ``y`` to start from, here zeros; nothing where there is none."""
        return {"y": torch.zeros(self.dual, device=self.device, dtype=self.dtype)} if self.dual else {}

    def model(self) -> Arrays:
        """Return what is evaluated, as it starts: x, and the statistics of batch norm where there are any."""
        buffers = self.buffers()
        return {"x": self.initial()["x"]} | ({"buffers": buffers} if buffers.numel() else {})

    @property
    def head(self) -> int:
        """Where the head begins in x."""
        return self.network.head

    @property
    def layers(self) -> tuple[tuple[slice, tuple[int, ...]], ...]:
        """Where each parameter lies in x, and its shape."""
        return tuple(parameter for layer in self.network.layers().values() for parameter in layer)

    def fresh(self, site: int | None = None) -> Arrays:
        """Return the head that the network was built with, or one drawn like it for a site, and the dual's start."""
        head = self._head
        if site is not None:
            seed = np.random.SeedSequence([self.setting.seed, Stream.HEADS, site]).generate_state(1, np.uint64)
            head = self._head_of(self._built(int(seed[0])))
        return {"head": head} | self.dual_start()

    def scalars_of(self, x: Tensor, y: Tensor | None) -> Mapping[str, float | list[float]]:
        """Return the problem's own entries of x and y, by their names; `problems.scalars.restored` reads them."""
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
        if self.scalars:  # they stand behind the network's own
            gx = torch.cat([gx, others.pop(0)])
        return gx, others.pop() if others else None

    def value(self, batch: Batch, scalars: Tensor, y: Tensor) -> Tensor:
        """Return the objective, with a graph that leads to the bound parameters; see `loss` and `outputs`."""
        inputs, labels, *weights = batch
        return self.objective(self.outputs(self.seen(inputs, y)), labels, scalars, y, *weights)

    def seen(self, inputs: Tensor, y: Tensor) -> Tensor:
        """Return what the network sees of inputs (n, *shape); of K clients, whose y is (K, p), of (K, n, *shape)."""
        return inputs

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return the network's raw outputs, shape (n,), (n, C) or (n, L)."""
        with self.forward_precision():
            return self.shaped(self.network.forward(channels_last(inputs)))

    def shaped(self, outputs: Tensor) -> Tensor:
        """Return outputs (..., width) as `loss` wants them: of one score without the last axis."""
        return (outputs if self.multiclass or self.labels else outputs.squeeze(-1)).to(self.dtype)

    def forward_precision(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass: what is told of a model, or predicted, is computed in float32.

        In bfloat16 many patients would have the same score.
        """
        return self._autocast if self.network.module.training else nullcontext()

    def truth(self, labels: Tensor) -> Tensor:
        """Return labels as `loss` wants them."""
        return labels if self.multiclass else labels.to(self.dtype)

    @torch.no_grad()
    def logits(self, x: Tensor, data: Samples, offset: Tensor | float = 0.0) -> Tensor:
        """Return the network's raw outputs on all samples, shape (n,), (n, C) or (n, L), in evaluation mode.

        ``offset`` is added to every input.
        """
        self.network.bind(x)
        self.network.train(False)
        blocks = torch.split(torch.arange(len(data), device=self.device), rows_at_once(data.shape))
        outputs, done = x[:0], 0
        for rows in blocks:
            block = self.outputs(data.batch(rows)[0].to(self.dtype).add_(offset))
            if not done:  # all in one: small tensors between large ones keep the memory of these from being used again
                outputs = block.new_empty(len(data), *block.shape[1:])
            outputs[done : done + len(block)] = block
            done += len(block)
        return outputs

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor | None, data: Samples | None) -> Metrics:
        """Return the loss, counts, and AUROC and average precision, or accuracy; and the counts that pooling needs."""
        assert data is not None, "a network is evaluated on samples"
        logits, labels = self.logits(x, data), data.targets()
        loss = self.objective(logits, labels, x[self.network.size :], x[:0] if y is None else y)
        if self.multiclass:
            return {"loss": loss.item(), "n": len(labels), **correct_by_class(labels, logits)}
        scores, truth = logits.double().cpu().numpy(), labels.cpu().numpy()
        if not self.labels:
            return {"loss": loss.item(), **ranked(truth, scores, partial=PARTIAL in self.reports)}
        each = zip(self.labels, truth.T, scores.T, strict=True)
        by_label = {name: ranked(own[own >= 0], scored[own >= 0]) for name, own, scored in each}
        return {"loss": loss.item(), "n": len(truth), **of_labels(by_label)}

    def unstackable_reason(self) -> str:
        """Say why not: layers that `Stack` does not take; or a gradient of another kind than this class's."""
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
