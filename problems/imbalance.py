"""Cross-entropy against class imbalance: weighted, logit-adjusted and focal, for two classes and for more.

doi:10.1093/oxfordjournals.pan.a004868, arXiv:2007.07314, arXiv:2209.00189, arXiv:1708.02002
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import torch
from pydantic import Field

from edelweiss.problems import papers
from edelweiss.problems.bce import Bce
from edelweiss.problems.cross_entropy import CrossEntropy
from edelweiss.problems.network import NetworkProblem, mean

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.problems.papers import Paper

ABSENT = 1e-30  # share of a class without samples: its logarithm is finite, and e to it nothing beside any score


class Entropy(NetworkProblem):
    """What the losses below have of `Bce` or `CrossEntropy`."""

    if TYPE_CHECKING:

        def entropy(self, logits: Tensor, labels: Tensor, offsets: Tensor | None = None) -> Tensor: ...
        def of_class(self, values: Tensor, labels: Tensor) -> Tensor: ...
        def class_shares(self) -> Tensor: ...


@dataclass(eq=False, kw_only=True)
class ByShares(Entropy):
    """A loss that depends on the shares π_c of the C classes: of all sites together, or of each site by itself.

    With ``by = "common"`` they are those of the data summary: with two classes the mean over sites of their shares, as
    for ``auc``; with more the shares among all samples. Otherwise each site trains with those of its own training
    samples, which it does not report for that. Losses that are reported are those of the common shares.
    """

    by: Literal["common", "site"] = Field("common", description="whose shares of the classes: of all sites, or its own")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.counts: Tensor | None = None
        self.shares = self.class_shares()

    def of_site(self, labels: Tensor) -> Self:
        """Return the loss with the shares of these labels, unless it is the same for all sites."""
        if self.by == "common":
            return self
        own, classes = copy(self), range(len(self.shares))
        counts = torch.stack([(labels == c).sum(0) for c in classes]).to(self.device, self.dtype)
        own.counts, own.shares = counts, counts / counts.sum(0).clamp(min=1)
        return own

    def differs_by_site(self, own_dual: bool) -> bool:
        """Return whether the shares are a site's own."""
        return self.by != "common"


@dataclass(eq=False, kw_only=True)
class Weighted(ByShares):
    """Each class weighs the same: mean over the batch of w_label times cross-entropy, w_c = 1 / (C π_c).

    The weights have mean 1, so that step sizes keep their meaning (King & Zeng 2001, equation 7, for equal shares of
    the classes in the population). A class without samples weighs nothing.
    """

    papers: ClassVar[tuple[Paper, ...]] = (papers.RARE_EVENTS,)
    log_odds = False

    @property
    def _weight(self) -> Tensor:
        return torch.where(self.shares > 0, 1 / (len(self.shares) * self.shares), 0)

    @property
    def usual_clip(self) -> float:
        """The root of the largest weight of a class, of several labels the mean: the weights' average is 1."""
        return float(self._weight.amax(0).sqrt().mean())

    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the weighted cross-entropy on the batch."""
        return mean(self.of_class(self._weight, labels) * self.entropy(logits, labels), weights)


@dataclass(eq=False, kw_only=True)
class Adjusted(ByShares):
    """Cross-entropy of h_c + τ log π_c: rare classes need a margin, and what is learned is h without it.

    That is the logit-adjusted loss of Menon et al. (2021, equation 10), consistent for the mean over the classes of
    their errors with τ = 1. With a site's own π it is the balanced softmax at each site, as in `FedRoD`. FedLC (Zhang
    et al. 2022, equation 9) has -τ n_c^(-1/4) in place of τ log π_c, n_c a site's samples of class c: ``by = "fedlc"``.
    Its formula leaves the label's own class out of the sum over the classes; here, as in code that is published for it,
    the loss is a cross-entropy.

    A class without samples has no part in the sum over the classes, so a site with a single class updates nothing.
    """

    papers: ClassVar[tuple[Paper, ...]] = (papers.LOGIT_ADJUSTMENT, papers.FEDLC)
    log_odds = False

    by: Literal["common", "site", "fedlc"] = Field(  # type: ignore[assignment]
        "common", description="whose shares of the classes: of all sites, or its own; fedlc: its counts to the -1/4"
    )
    tau: float = Field(1.0, ge=0, description="τ: how strongly logits are adjusted; 0: not at all")

    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the cross-entropy of the adjusted logits on the batch."""
        return mean(self.entropy(logits, labels, self.tau * self.offsets()), weights)

    def offsets(self) -> Tensor:
        """Return what is added to the logits of each class, for τ = 1: shape (C,), or (2, L) of several labels."""
        logarithms = self.shares.clamp(min=ABSENT).log()
        if self.by != "fedlc":
            return logarithms
        if self.counts is None:  # a margin is for training: it has no common value
            return torch.zeros_like(logarithms)
        return torch.where(self.counts > 0, -(self.counts.clamp(min=1) ** -0.25), logarithms)


@dataclass(eq=False, kw_only=True)
class Focal(Entropy):
    """Samples that are well classified count less: mean of -(1 - p_t)^γ log p_t, p_t the probability of the label.

    (Lin et al. 2017, equation 4.) With γ = 0 it is cross-entropy.
    """

    papers: ClassVar[tuple[Paper, ...]] = (papers.FOCAL,)
    log_odds = False

    gamma: float = Field(2.0, ge=0, description="γ: how little well-classified samples count; 0: as much as others")

    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the focal loss on the batch."""
        return mean(self.focal(logits, labels), weights)

    def focal(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each sample, in the shape of the labels."""
        entropy = self.entropy(logits, labels)
        # 1 - p_t, and not 0, where the slope of a power below 1 is infinite.
        missing = (-torch.expm1(-entropy)).clamp(min=torch.finfo(entropy.dtype).tiny)
        return missing**self.gamma * entropy if self.gamma else entropy


# ---------------------------------------------------------------------- two classes


@dataclass(eq=False, kw_only=True)
class BceWeighted(Weighted, Bce):
    """`Weighted` binary cross-entropy; of several labels each has weights of its own."""

    name = "bce-weighted"
    optimises = "binary cross-entropy in which both classes weigh the same"


@dataclass(eq=False, kw_only=True)
class BceAdjusted(Adjusted, Bce):
    """`Adjusted` binary cross-entropy: that of h + τ log(π₁ / π₀); of several labels each has its own."""

    name = "bce-adjusted"
    optimises = "binary cross-entropy of logits that are adjusted by the shares of the classes"


@dataclass(eq=False, kw_only=True)
class BceFocal(Focal, Bce):
    """`Focal` binary cross-entropy, with Lin et al.'s α (equation 5): positives weigh α, negatives 1 - α."""

    name = "bce-focal"
    optimises = "binary cross-entropy in which well-classified samples count less"

    alpha: float = Field(
        0.5, gt=0, lt=1, description="α: weight of positives, 1 - α of negatives; the paper has 0.25 with γ = 2"
    )

    def focal(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each sample, weighted by 2α or 2 (1 - α): with α = 0.5 not at all."""
        both = torch.tensor([2 - 2 * self.alpha, 2 * self.alpha], device=self.device, dtype=self.dtype)
        return self.of_class(both, labels) * super().focal(logits, labels)


# ---------------------------------------------------------------------- several classes


@dataclass(eq=False, kw_only=True)
class CrossEntropyWeighted(Weighted, CrossEntropy):
    """`Weighted` cross-entropy."""

    name = "cross-entropy-weighted"
    optimises = "cross-entropy in which all classes weigh the same"


@dataclass(eq=False, kw_only=True)
class CrossEntropyAdjusted(Adjusted, CrossEntropy):
    """`Adjusted` cross-entropy."""

    name = "cross-entropy-adjusted"
    optimises = "cross-entropy of logits that are adjusted by the shares of the classes"


@dataclass(eq=False, kw_only=True)
class CrossEntropyFocal(Focal, CrossEntropy):
    """`Focal` cross-entropy."""

    name = "cross-entropy-focal"
    optimises = "cross-entropy in which well-classified samples count less"
