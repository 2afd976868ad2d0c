"""Cross-entropy over any number of classes: the plain minimisation that multi-class baselines train."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.functional import cross_entropy

from problems.network import NetworkProblem

if TYPE_CHECKING:
    from torch import Tensor


class CrossEntropy(NetworkProblem):
    """Mean over the batch of -log softmax(h)_label; no y."""

    name = "cross-entropy"
    kind = "minimisation"
    multiclass = True

    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy on the batch."""
        return cross_entropy(logits, labels)
