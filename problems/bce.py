"""Binary cross-entropy: the standard objective of FedAvg, and the baseline for AUC methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from edelweiss.problems.network import NetworkProblem, mean

if TYPE_CHECKING:
    from torch import Tensor


class Bce(NetworkProblem):
    """Mean over the batch of -log σ(h) on positives and -log(1 - σ(h)) on negatives; no y.

    The objective is the same with every sampler: samplers that change the class shares reweight the classes.
    """

    name = "bce"
    kind = "minimisation"
    several = True
    optimises = "binary cross-entropy, the usual baseline"
    reports = ("auroc", "auprc")
    log_odds = True

    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the cross-entropy on the batch."""
        return mean(self.entropy(logits, labels), weights)

    def entropy(self, logits: Tensor, labels: Tensor, offsets: Tensor | None = None) -> Tensor:
        """Return the cross-entropy of each sample, in the shape of the logits.

        ``offsets`` are added to the logits 0 and h of both classes, shape (2,) or (2, L).
        """
        if offsets is not None:
            logits = logits + (offsets[1] - offsets[0])
        return binary_cross_entropy_with_logits(logits, labels, reduction="none")

    def of_class(self, values: Tensor, labels: Tensor) -> Tensor:
        """Return of two values, shape (2,) or (2, L), each label's own, in the shape of the labels."""
        return torch.lerp(values[0].expand_as(labels), values[1].expand_as(labels), labels)

    def class_shares(self) -> Tensor:
        """Return the shares of negatives and positives in the average over sites, shape (2,) or (2, L)."""
        data_summary = self.setting.data_summary
        share = data_summary.priors if self.labels else data_summary.prior
        p = torch.tensor(share, device=self.device, dtype=self.dtype)
        return torch.stack([1 - p, p])
