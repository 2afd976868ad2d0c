"""The partial area under the ROC curve, at low false-positive rates: ``partial-auc``.

arXiv:2203.00176
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from pydantic import Field

from edelweiss.problems import papers
from edelweiss.problems.auprc import PAIRS
from edelweiss.problems.network import NetworkProblem

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(eq=False, kw_only=True)
class PartialAuc(NetworkProblem):
    """One-way partial AUC in its soft form, with the squared hinge surrogate (SOPA-s; Zhu et al., ICML 2022).

    ℓ(z⁺, z⁻) = max(m - h(z⁺) + h(z⁻), 0)², h the sigmoid of the network's output, is the loss of a pair. The objective
    is the mean over the positives z⁺ of

        λ log E_{z⁻} exp(ℓ(z⁺, z⁻) / λ),

    the mean of ℓ under the worst weights of the negatives, at a price of λ for their KL divergence from equal weights.
    So the negatives near the top count most, which are the false positives of a high threshold. With λ → ∞ it is the
    mean over all pairs, a surrogate of the whole AUC; with λ → 0 each positive has to beat the worst negative.

    In a batch every positive is an outer sample, and the negatives are the inner samples of each. The logarithm of a
    batch's mean is too low on average, the more so the fewer the negatives and the smaller λ. Both means are within a
    class, so the share of positives in a batch does not matter.

    λ takes the place of a range of false-positive rates: the weights fall off softly, and no rate is the last. What is
    reported needs one: the partial AUROC up to a false-positive rate of 0.3, see `problems.roc.partial_auroc`.
    """

    name = "partial-auc"
    kind = "conditional"
    optimises = (
        "AUROC at low false-positive rates: the pairs of a positive and a negative, by the squared hinge, those with "
        "the highest negatives weighted most"
    )
    reports = ("partial-auroc", "auroc", "auprc")
    papers = (papers.SOPA,)
    sampler = "fixed-positives"

    margin: float = Field(1.0, gt=0, description="m: how far a positive should rank above a negative, in units of h")
    # Below, ℓ/λ has no digits left behind the point in float32; above, the loss has none.
    temperature: float = Field(
        0.5, ge=1e-6, le=1e6, description="λ, in units of ℓ: small for the worst negatives, large for all of them alike"
    )

    def unstackable_reason(self) -> str:
        """How many positives there are differs from batch to batch."""
        return f"problem = {self.name!r} picks the positives of a batch, and clients have different numbers of them"

    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the objective on a batch; zero, with zero gradient, where a class is missing."""
        h = torch.sigmoid(logits)
        positives, negatives = h[labels == 1], h[labels == 0]
        if not len(positives) or not len(negatives):
            return h.sum() * 0
        blocks = torch.split(positives, max(1, PAIRS // len(negatives)))
        return torch.cat([self.soft_worst(block, negatives) for block in blocks]).mean()

    def soft_worst(self, positives: Tensor, negatives: Tensor) -> Tensor:
        """Return λ log of the mean over the negatives of exp(ℓ/λ), for each positive, shape (p,)."""
        losses = (self.margin - positives[:, None] + negatives).relu().square()
        # From the largest loss down, and by expm1 and log1p: no overflow at a small λ, no digits lost at a large one.
        worst = losses.detach().amax(1)
        below = torch.expm1((losses - worst[:, None]) / self.temperature).mean(1)
        return worst + self.temperature * torch.log1p(below)
