"""Problems over a network's score: what AUC and cross-entropy share."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch

from problems.base import Problem
from problems.metrics import histogram, ranking

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
    """A loss of the scores of one network with one output.

    x holds the network's parameters, then ``extra`` scalars of the problem; y holds ``dual`` scalars. A subclass
    writes the loss; gradients are PyTorch's.

    Parameters
    ----------
    network : FlatNetwork
        The model, on its device, with one output per sample.
    prior : float
        p, the share of positives over all sites, in (0, 1).
    amp : str
        ``"bf16"`` computes the forward pass in bfloat16 where PyTorch deems it safe; ``""`` does not.
    """

    extra: ClassVar[int] = 0
    dual: ClassVar[int] = 0

    def __init__(self, network: FlatNetwork, prior: float = 0.5, amp: str = "") -> None:
        self.network = network
        self.prior = prior
        start = network.vector()
        self.device, self.dtype = start.device, start.dtype
        self._autocast = torch.autocast(self.device.type, torch.bfloat16) if amp == "bf16" else contextlib.nullcontext()

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor) -> Tensor:
        """Return the objective on a batch, a scalar.

        Parameters
        ----------
        logits : Tensor
            Raw outputs of the network, shape (n,).
        labels : Tensor
            1 for positive, 0 for negative, shape (n,), of the logits' dtype.
        scalars : Tensor
            The last ``extra`` entries of x.
        y : Tensor
            The dual variable, shape (``dual``,).
        """

    def initial(self) -> Arrays:
        """Return the network's own initialisation, zeros for the scalars and the dual."""
        zeros = torch.zeros(self.extra + self.dual, device=self.device, dtype=self.dtype)
        arrays = {"x": torch.cat([self.network.vector(), zeros[: self.extra]])}
        if self.dual:
            arrays["y"] = zeros[self.extra :]
        return arrays

    def gradient(self, x: Tensor, y: Tensor | None, batch: Batch | None) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of the loss; see `Problem.gradient`."""
        assert batch is not None, "a network learns from batches"
        network = self.network
        network.bind(x)
        network.train(True)
        inputs, labels = batch
        with self._autocast:
            logits = network.forward(channels_last(inputs)).squeeze(1)
        logits = logits.to(self.dtype)
        if not self.extra and not self.dual:
            loss = self.loss(logits, labels.to(self.dtype), x, x)
            return network.gradient(loss)[0], None
        scalars = x[network.size :].detach().requires_grad_()
        y = y.detach().requires_grad_() if y is not None else x[:0]
        loss = self.loss(logits, labels.to(self.dtype), scalars, y)
        gx, g_scalars, gy = network.gradient(loss, (scalars, y))
        return torch.cat([gx, g_scalars]), gy

    @torch.no_grad()
    def logits(self, x: Tensor, data: Samples) -> Tensor:
        """Return the network's raw outputs on all samples, shape (n,), in evaluation mode."""
        self.network.bind(x)
        self.network.train(False)
        outputs = []
        for rows in torch.split(torch.arange(len(data), device=self.device), EVALUATION_BATCH):
            with self._autocast:
                inputs = channels_last(data.batch(rows)[0].to(self.dtype))
                outputs.append(self.network.forward(inputs).squeeze(1))
        return torch.cat(outputs).to(self.dtype) if outputs else x[:0]

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor | None, data: Samples | None) -> Metrics:
        """Return loss, AUROC, average precision, counts, and the two histograms that pooling needs."""
        assert data is not None, "a network is evaluated on samples"
        logits, labels = self.logits(x, data), data.targets().to(self.dtype)
        loss = self.loss(logits, labels, x[self.network.size :], y if y is not None else x[:0])
        scores, truth = logits.double().cpu().numpy(), labels.cpu().numpy()
        return {
            "loss": loss.item(),
            **ranking(truth, scores),
            "n": len(truth),
            "positives": int(truth.sum()),
            "positive-scores": histogram(scores[truth == 1]),
            "negative-scores": histogram(scores[truth == 0]),
        }

    def buffers(self) -> Tensor:
        """Return the batch-norm statistics as one flat vector."""
        return self.network.buffers()

    def load_buffers(self, flat: Tensor) -> None:
        """Set the batch-norm statistics."""
        self.network.load_buffers(flat)
