"""Problems over a network's outputs: what AUC, cross-entropy and their relatives share."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch

from problems.base import Problem
from problems.metrics import correct_by_class, histogram, ranking

if TYPE_CHECKING:
    from torch import Tensor

    from datasets import Samples
    from models import FlatNetwork
    from problems.base import Arrays, Batch, Metrics

EVALUATION_BATCH = 1024


def channels_last(inputs: Tensor) -> Tensor:
    """Lay out images with the channels innermost, which convolutions are fastest on; tables stay as they are."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs


class NetworkProblem(Problem):
    """A loss of a network's outputs: one score per sample, or one per class (``multiclass``).

    x holds the network's parameters, then ``extra`` scalars of the problem; y holds ``dual`` scalars. A subclass
    writes the loss; gradients are PyTorch's.

    Parameters
    ----------
    network : FlatNetwork
        The model, on its device, with one output, or one per class.
    prior : float
        p, the share of positives over all sites, in (0, 1).
    amp : str
        ``"bf16"`` computes the forward pass in bfloat16 where PyTorch deems it safe; ``""`` does not.
    """

    offers = frozenset({"head", "layers"})
    extra: ClassVar[int] = 0
    dual: int = 0

    def __init__(self, network: FlatNetwork, prior: float = 0.5, amp: str = "") -> None:
        self.network = network
        self.prior = prior
        start = network.vector()
        self.device, self.dtype = start.device, start.dtype
        self._head = torch.cat([start[network.head :], start.new_zeros(self.extra)])
        self._autocast = torch.autocast(self.device.type, torch.bfloat16) if amp == "bf16" else contextlib.nullcontext()

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor) -> Tensor:
        """Return the objective on a batch, a scalar.

        Parameters
        ----------
        logits : Tensor
            Raw outputs of the network, shape (n,), or (n, C).
        labels : Tensor
            Shape (n,): 1 for positive and 0 for negative, of the logits' dtype, or classes 0 to C-1, int64.
        scalars : Tensor
            The last ``extra`` entries of x.
        y : Tensor
            The dual variable, shape (``dual``,).
        """

    def initial(self) -> Arrays:
        """Return the network's own initialisation, zeros for the scalars, and the dual's start."""
        zeros = torch.zeros(self.extra, device=self.device, dtype=self.dtype)
        return {"x": torch.cat([self.network.vector(), zeros])} | self.dual_start()

    def dual_start(self) -> Arrays:
        """Return the ``y`` to start from, here zeros; nothing where there is none."""
        return {"y": torch.zeros(self.dual, device=self.device, dtype=self.dtype)} if self.dual else {}

    @property
    def head(self) -> int:
        """Where the head begins in x; see `Problem.head`."""
        return self.network.head

    @property
    def layers(self) -> tuple[tuple[slice, tuple[int, ...]], ...]:
        """Where each parameter lies in x, and its shape."""
        return tuple(parameter for layer in self.network.layers().values() for parameter in layer)

    def fresh(self) -> Arrays:
        """Return the head that the network was built with, and the dual's start; see `Problem.fresh`."""
        return {"head": self._head} | self.dual_start()

    def gradient(self, x: Tensor, y: Tensor | None, batch: Batch | None) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of the loss; see `Problem.gradient`."""
        assert batch is not None, "a network learns from batches"
        network = self.network
        network.bind(x)
        network.train(True)
        if not self.extra and not self.dual:
            return network.gradient(self.value(batch, x, x))[0], None
        scalars = x[network.size :].detach().requires_grad_()
        y = y.detach().requires_grad_() if y is not None else x[:0]
        loss = self.value(batch, scalars, y)
        if not self.extra:  # nothing to put behind the network's own
            gx, gy = network.gradient(loss, (y,))
            return gx, gy
        gx, g_scalars, gy = network.gradient(loss, (scalars, y))
        return torch.cat([gx, g_scalars]), gy

    def value(self, batch: Batch, scalars: Tensor, y: Tensor) -> Tensor:
        """Return the objective at the bound parameters, with a graph that leads to them; see `loss`."""
        inputs, labels = batch
        return self.loss(self.outputs(inputs), self.truth(labels), scalars, y)

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return the network's raw outputs, shape (n,), or (n, C)."""
        with self._autocast:
            outputs = self.network.forward(channels_last(inputs))
        return (outputs if self.multiclass else outputs.squeeze(1)).to(self.dtype)

    def truth(self, labels: Tensor) -> Tensor:
        """Return labels as `loss` wants them."""
        return labels if self.multiclass else labels.to(self.dtype)

    @torch.no_grad()
    def logits(self, x: Tensor, data: Samples, offset: Tensor | float = 0.0) -> Tensor:
        """Return the network's raw outputs on all samples, shape (n,), or (n, C), in evaluation mode.

        ``offset`` is added to every input.
        """
        self.network.bind(x)
        self.network.train(False)
        blocks = torch.split(torch.arange(len(data), device=self.device), EVALUATION_BATCH)
        outputs = [self.outputs(data.batch(rows)[0].to(self.dtype).add_(offset)) for rows in blocks]
        return torch.cat(outputs) if outputs else x[:0]

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor | None, data: Samples | None) -> Metrics:
        """Return the loss, counts, and AUROC and average precision, or accuracy; and the counts that pooling needs."""
        assert data is not None, "a network is evaluated on samples"
        logits, labels = self.logits(x, data), data.targets()
        loss = self.loss(logits, self.truth(labels), x[self.network.size :], y if y is not None else x[:0])
        if self.multiclass:
            return {"loss": loss.item(), "n": len(labels), **correct_by_class(labels, logits)}
        scores, truth = logits.double().cpu().numpy(), labels.cpu().numpy()
        return {
            "loss": loss.item(),
            **ranking(truth, scores),
            "n": len(truth),
            "positives": int(truth.sum()),
            "positive-scores": histogram(scores[truth == 1]),
            "negative-scores": histogram(scores[truth == 0]),
        }

    def reseed(self, seed: int) -> None:
        """Fix the masks of dropout."""
        self.network.reseed(seed)

    def buffers(self) -> Tensor:
        """Return the batch-norm statistics as one flat vector."""
        return self.network.buffers()

    def load_buffers(self, flat: Tensor) -> None:
        """Set the batch-norm statistics."""
        self.network.load_buffers(flat)
