"""The area under the precision-recall curve as a conditional expectation: ``auprc``.

arXiv:2104.08736, arXiv:2310.02524
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from pydantic import Field

from edelweiss.problems import papers
from edelweiss.problems.network import NetworkProblem

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.datasets import Facts

PAIRS = 2**22  # pairs compared at once: any batch fits, a held-out set is split into blocks of positives


@dataclass(eq=False, kw_only=True)
class Auprc(NetworkProblem):
    """Average precision with the squared hinge surrogate (FCSG 5.3; Qi et al., NeurIPS 2021).

    For a positive z⁺ the surrogate counts the samples ranked above it: ℓ(z⁺, z) = max(s - h(z⁺) + h(z), 0)², h the
    sigmoid of the network's output. Inner function: g = (mean_z ℓ 1[z positive], mean_z ℓ); outer: f(g) = -g₁/g₂, a
    smooth precision at z⁺. The objective is the mean of f over the positives z⁺; it lies in [-1, 0].

    In a batch every positive is an outer sample, and the whole batch, including z⁺, forms its inner samples: both come
    from all the data. ℓ(z⁺, z⁺) = s² keeps g₂ away from zero. ``fixed-positives`` oversamples positives and reweights
    both classes in the inner means; the published code of these methods uses the batch's share of positives instead.

    A site without positives has an empty mean, f = 0: it contributes nothing, and has no weight in averages (`idle`).

    With s ≥ 1 every pair has loss mass, because sigmoids differ by less than 1.
    """

    name = "auprc"
    kind = "conditional"
    several = True
    optimises = (
        "average precision: of each positive, the share of positives among those ranked above it, by the squared hinge"
    )
    reports = ("auprc", "auroc")
    papers = (papers.SOAP, papers.FCSG)
    sampler = "fixed-positives"
    mixes_patients = "each positive is ranked against all other patients, so a patient is in every term"

    margin: float = Field(1.0, gt=0, description="s: how far a positive should rank above others, in units of h")

    @classmethod
    def idle(cls, facts: Facts) -> bool:
        """Return whether a site has no positives to train on, of any label: its outer sum is empty."""
        return not any(facts.label_positives) if facts.label_counts else facts.positives == 0

    def unstackable_reason(self) -> str:
        """Explain that the number of positives differs from batch to batch."""
        return f"problem = {self.name!r} selects the positives of a batch, whose number differs between clients"

    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean of f over the positives of the batch; zero, with zero gradient, without positives."""
        if logits.ndim > 1:
            assert weights is not None, "weights mark the known labels"
            columns = zip(logits.T, labels.T, weights.T, strict=True)
            return torch.stack([self.loss(h, own, scalars, y, known) for h, own, known in columns])
        h = torch.sigmoid(logits)
        positives = h[labels == 1]
        if not len(positives):
            return h.sum() * 0
        blocks = torch.split(positives, max(1, PAIRS // len(h)))
        return -torch.cat([self.precision(block, h, labels, weights) for block in blocks]).mean()

    def precision(self, positives: Tensor, h: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """Return g₁/g₂ of each positive against all samples, shape (p,).

        A positive without loss mass (g₂ = 0, if s² underflows) has no sample near or above it: precision 1, gradient 0.
        """
        mass = (self.margin - positives[:, None] + h).relu().square()
        among_positives = mass @ (labels if weights is None else labels * weights)
        among_all = mass.sum(1) if weights is None else mass @ weights
        some = among_all > 0
        return torch.where(some, among_positives / torch.where(some, among_all, 1), 1)
