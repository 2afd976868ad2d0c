"""The area under the ROC curve as a minimax problem: ``auc`` and ``auc-margin``.

NIPS 29:451-459, arXiv:2005.02426, arXiv:2012.03173
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch.linalg import vecdot

from edelweiss.problems import papers
from edelweiss.problems.capabilities import ClosedFormDual
from edelweiss.problems.network import NetworkProblem, mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from edelweiss.common import Value
    from edelweiss.problems.base import Batch
    from edelweiss.problems.papers import Paper


def weighted_squares(h: Tensor, positive: Tensor, prior: float | Tensor, scalars: Tensor) -> Tensor:
    """(1-p)(h-a)² on positives, p(h-b)² on negatives, per sample: the part that both objectives share."""
    a, b = scalars.view(2, *h.shape[1:]).unbind()
    return (1 - prior) * positive * (h - a).square() + prior * (1 - positive) * (h - b).square()


def score_gap(h: Tensor, positive: Tensor, prior: float | Tensor) -> Tensor:
    """P h on negatives, minus (1-p) h on positives, per sample; its expectation is p(1-p)(E[h|-] - E[h|+])."""
    return h * (prior - positive)


@dataclass(eq=False, kw_only=True)
class Auc(NetworkProblem, ClosedFormDual):
    """AUC maximisation with the square surrogate (Ying et al. 2016; Guo et al. 2020; CODASCA, eq. 2; FMGDA, eq. 4).

    f = (1-p)(h-a)² 1[+] + p(h-b)² 1[-] + 2(1+α)(p h 1[-] - (1-p) h 1[+]) - p(1-p)α², averaged over the batch.
    x = (network, a, b), y = α. For fixed scores the optimum is a = E[h|+], b = E[h|-], α = E[h|-] - E[h|+] and
    the value is p(1-p) E[(1 - h⁺ + h⁻)²] - p(1-p).

    With ``score = "sigmoid"`` h is the sigmoid of the network's output, as in the published code; with ``"identity"``
    it is the output itself.

    p is the share of positives in the average over sites: mean_k p_k with uniform weights, the pooled share with
    ``weighting = "examples"``. With any other p the terms in α would not cancel, and adding a constant to all scores
    would change the objective. So if each site has its own α (`federation.Algorithm.own_dual`), p is the share among
    the site's training samples. A site with a single class has nothing to rank: p is 0 or 1, and f and its gradients
    are 0.

    What is trained is f / (4p(1-p)), unless ``normalise`` is false: a step size then means the same at every p, and at
    p = 1/2 as in the papers. Each of several labels, and each site with its own p, is divided by its own constant, so
    that they count the same in what they share. An evaluation reports f.
    """

    name = "auc"
    kind = "minimax"
    several = True
    optimises = "AUROC, by the square surrogate"
    reports = ("auroc", "auprc")
    papers: ClassVar[tuple[Paper, ...]] = (papers.SOLAM, papers.CODA)
    scalars = ("a", "b")
    sampler = "auto"
    terms = 2
    dual_scalars = ("alpha",)

    prior: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="p: share of positives; 0: that of the average over sites, or of a site with its own α",
    )
    score: Literal["sigmoid", "identity"] = Field("sigmoid", description="h: the score, given the network's output")
    normalise: bool = Field(
        True,
        description="divide f by 4p(1-p), so that a step size means the same at every p; false: the papers' scale",
    )

    @classmethod
    def usual_step(cls, options: Mapping[str, Value]) -> float:
        """Return 0.3, which loses least over data, shares and models; outputs as scores have steeper losses: 0.1."""
        return 0.3 if options.get("score", cls.declared["score"].default) == "sigmoid" else 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        data_summary = self.setting.data_summary
        self.p: float | Tensor = self.prior or data_summary.prior
        if self.labels and not self.prior:
            self.p = torch.tensor(data_summary.priors, dtype=self.dtype, device=self.device)
        self.unit = self._unit()

    def _unit(self) -> float | Tensor:
        """Return what f is divided by: 4p(1-p), or 1 if that is 0."""
        unit = 4 * self.p * (1 - self.p) if self.normalise else 1.0
        return unit + (unit == 0)

    @property
    def usual_clip(self) -> float:
        """√(1 / 2p), or √(1 / 2(1-p)) if that is more; of several labels the mean."""
        p = torch.as_tensor(self.p)
        clips = (2 * torch.maximum(p, 1 - p) * 4 * p * (1 - p)).sqrt() / self.unit
        return float(torch.where(clips > 0, clips, 1).mean())

    def of_site(self, labels: Tensor) -> Self:
        """Return the objective with p of these labels, unless the option ``prior`` sets p."""
        if self.prior:
            return self
        own, known = copy(self), (labels >= 0).sum(0)
        shares = (labels == 1).sum(0).double() / known.clamp(min=1)
        own.p = shares.to(self.device, self.dtype) if self.labels else shares.item()
        own.unit = own._unit()
        return own

    def h(self, logits: Tensor) -> Tensor:
        """Return the scores."""
        return torch.sigmoid(logits) if self.score == "sigmoid" else logits.clone()

    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return f on the batch, divided by `unit`."""
        return self.f(logits, labels, scalars, y, weights) / self.unit

    def reported_loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor) -> Tensor:
        """Return f itself, whatever it is divided by in training."""
        papers_own = copy(self)
        papers_own.unit = 1.0
        return papers_own.objective(logits, labels, scalars, y)

    def f(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        """Return f on the batch. With a single class the other terms are zero."""
        h, p, alpha = self.h(logits), self.p, y.view(logits.shape[1:])
        terms = weighted_squares(h, labels, p, scalars) + 2 * (1 + alpha) * score_gap(h, labels, p)
        return mean(terms, weights) - p * (1 - p) * alpha.square()

    @torch.no_grad()
    def dual_terms(self, x: Tensor, batch: Batch | None) -> tuple[Tensor, Tensor]:
        """Return sums of scores and counts for each label: the optimal α is E[h|-] - E[h|+]."""
        assert batch is not None, "a network learns from batches"
        self.network.bind(x)
        self.network.train(False)  # as in prediction, batch norm uses its running statistics
        inputs, labels, *weights = batch
        h = self.h(self.outputs(inputs))
        negative, positive = ((labels == kind).to(self.dtype) for kind in (0, 1))
        for weight in weights:
            weight = weight.view(-1, *[1] * (h.ndim - 1))
            negative, positive = negative * weight, positive * weight
        sums = torch.stack([vecdot(h, negative, dim=0), -vecdot(h, positive, dim=0)])
        return sums.view(2, -1), torch.stack([negative.sum(0), positive.sum(0)])


@dataclass(eq=False, kw_only=True)
class AucMargin(Auc):
    """AUC with a margin (Yuan et al., ICCV 2021; the loss of CODASCA's published code).

    f = (1-p)(h-a)² 1[+] + p(h-b)² 1[-] + 2α( p(1-p)m + p h 1[-] - (1-p) h 1[+] ) - p(1-p)α², with α ≥ 0. With m = 1
    and α replaced by 1 + α it is ``auc`` up to a constant. p is as for ``auc``.
    """

    name = "auc-margin"
    optimises = "AUROC, by the square surrogate with a margin, and α ≥ 0"
    reports = ("auroc", "auprc")
    papers: ClassVar[tuple[Paper, ...]] = (papers.AUC_MARGIN,)

    margin: float = Field(1.0, gt=0, description="m: how far apart positives and negatives are pushed, in units of h")

    def f(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        """Return f on the batch."""
        h, p, alpha = self.h(logits), self.p, y.view(logits.shape[1:])
        gap = p * (1 - p) * self.margin + score_gap(h, labels, p)
        terms = weighted_squares(h, labels, p, scalars) + 2 * alpha * gap
        return mean(terms, weights) - p * (1 - p) * alpha.square()

    def dual_terms(self, x: Tensor, batch: Batch | None) -> tuple[Tensor, Tensor]:
        """Return sums of scores and counts: the optimal α is m + E[h|-] - E[h|+], clipped at zero."""
        sums, counts = super().dual_terms(x, batch)
        return sums + self.margin * torch.stack([counts[0], counts[1] * 0]).view_as(sums), counts

    def project(self, y: Tensor) -> Tensor:
        """Clip α at zero."""
        return y.clamp(min=0)
