"""Binary cross-entropy: the standard objective of FedAvg, and the baseline for AUC methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
        return mean(binary_cross_entropy_with_logits(logits, labels, reduction="none"), weights)
