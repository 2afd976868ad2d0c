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

    from edelweiss.datasets import Facts


@dataclass(eq=False, kw_only=True)
class PartialAuc(NetworkProblem):
    """One-way partial AUC in its soft form, with the squared hinge surrogate (SOPA-s; Zhu et al., ICML 2022).

    The loss of a pair is ℓ(z⁺, z⁻) = max(m - h(z⁺) + h(z⁻), 0)², h the sigmoid of the network's output. The objective
    is the mean over the positives z⁺ of

        λ log E_{z⁻} exp(ℓ(z⁺, z⁻) / λ),

    the mean of ℓ under the worst weights of the negatives, penalised by λ times their KL divergence from equal weights.
    So the highest negatives, the false positives at a high threshold, weigh most. With λ → ∞ it is the mean over all
    pairs, a surrogate of the whole AUC; with λ → 0 each positive is compared with the worst negative.

    In a batch every positive is an outer sample, with the negatives as its inner samples. The logarithm of a batch mean
    is biased downwards, more with fewer negatives and smaller λ. Both means are within a class, so the share of
    positives in a batch does not matter.

    λ replaces a range of false-positive rates: the weights decay softly, without a cut-off. The reported metric has
    one: the partial AUROC up to a false-positive rate of 0.3, see `problems.roc.partial_auroc`.
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
    mixes_patients = "each positive is ranked against all negatives, so a patient is in every term"

    margin: float = Field(1.0, gt=0, description="m: how far a positive should rank above a negative, in units of h")
    # Outside this range ℓ/λ, or the loss, loses all precision in float32.
    temperature: float = Field(
        0.5, ge=1e-6, le=1e6, description="λ, in units of ℓ: small weighs the worst negatives most, large all equally"
    )

    @classmethod
    def idle(cls, facts: Facts) -> bool:
        """Return whether a site has only one class to train on: there is no pair."""
        return facts.positives in (0, facts.examples)

    def unstackable_reason(self) -> str:
        """Explain that the number of positives differs from batch to batch."""
        return f"problem = {self.name!r} selects the positives of a batch, whose number differs between clients"

    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the objective on a batch; zero, with zero gradient, if a class is missing."""
        h = torch.sigmoid(logits)
        positives, negatives = h[labels == 1], h[labels == 0]
        if not len(positives) or not len(negatives):
            return h.sum() * 0
        blocks = torch.split(positives, max(1, PAIRS // len(negatives)))
        return torch.cat([self.soft_worst(block, negatives) for block in blocks]).mean()

    def soft_worst(self, positives: Tensor, negatives: Tensor) -> Tensor:
        """Return λ log mean exp(ℓ/λ) over the negatives, for each positive, shape (p,)."""
        losses = (self.margin - positives[:, None] + negatives).relu().square()
        # Relative to the largest loss, by expm1 and log1p: no overflow for small λ, no cancellation for large λ.
        worst = losses.detach().amax(1)
        below = torch.expm1((losses - worst[:, None]) / self.temperature).mean(1)
        return worst + self.temperature * torch.log1p(below)
