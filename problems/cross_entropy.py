"""Cross-entropy over any number of classes: the objective of multi-class baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy, pad

from edelweiss.problems.capabilities import BalancedLoss
from edelweiss.problems.network import NetworkProblem, mean

if TYPE_CHECKING:
    from torch import Tensor


def mean_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean of -log softmax(h)_label over samples, weighted as in `NetworkProblem.loss`."""
    if weights is None:
        return cross_entropy(logits, labels)
    return mean(cross_entropy(logits, labels, reduction="none"), weights)


class CrossEntropy(NetworkProblem, BalancedLoss):
    """Mean over the batch of -log softmax(h)_label; no y."""

    name = "cross-entropy"
    kind = "minimisation"
    optimises = "cross-entropy over all classes of the data"
    reports = ("accuracy", "worst-class")
    multiclass = True

    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the cross-entropy on the batch."""
        return mean_cross_entropy(logits, labels, weights)

    def entropy(self, logits: Tensor, labels: Tensor, offsets: Tensor | None = None) -> Tensor:
        """Return the cross-entropy of each sample, shape (n,); ``offsets`` (C,) are added to the logits."""
        return cross_entropy(logits if offsets is None else logits + offsets, labels, reduction="none")

    def of_class(self, values: Tensor, labels: Tensor) -> Tensor:
        """Return of a value for each class, shape (C,), each label's own, shape (n,)."""
        return values[labels]

    def class_shares(self) -> Tensor:
        """Return the share of each class among the training samples of all sites, shape (C,)."""
        shares = self.setting.data_summary.shares or (1 / self.width,) * self.width
        return torch.tensor(shares, device=self.device, dtype=self.dtype)

    def balanced(self, counts: Tensor) -> BalancedSoftmax:
        """Return the problem with the balanced softmax (Ren et al. 2020)."""
        return BalancedSoftmax(self, counts)


class BalancedSoftmax(CrossEntropy):
    """Mean over the batch of -log (n_label e^h_label / Σ_c n_c e^h_c), over the network of another problem.

    A class without samples contributes e^-inf to the sum.

    Parameters
    ----------
    problem : CrossEntropy
        Whose network it has.
    counts : Tensor
        n, shape (C,) or shorter: the last classes may be missing at the site.
    """

    def __init__(self, problem: CrossEntropy, counts: Tensor) -> None:
        self.__dict__.update(problem.__dict__)
        self._offsets = pad(counts, (0, self.width - len(counts))).to(self.device, self.dtype).log()

    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the balanced loss on the batch."""
        return mean_cross_entropy(logits + self._offsets, labels, weights)
