"""Cross-entropy against class imbalance: whose shares it takes, what it becomes at a limit, and what it is for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edelweiss.problems.imbalance import Adjusted, Focal, Weighted
from edelweiss.problems.network import NetworkProblem
from edelweiss.server_app import simulate
from tests.problems.example import batch, make, point, samples
from tests.reference import losses

SHARES = (0.5, 0.3, 0.2)
KINDS = {"bce": {"prior": 0.2}, "cross-entropy": {"classes": 3, "shares": SHARES}}
kinds = pytest.mark.parametrize("kind", KINDS)


def built(kind: str, variant: str, **options: Any) -> Any:
    return make(f"{kind}-{variant}" if variant else kind, **KINDS[kind], **options)  # type: ignore[arg-type]


def gradient(problem: NetworkProblem, positives: int = 3, negatives: int = 5, seed: int = 0) -> Tensor:
    """Return the gradient on a batch; of three classes, the third one of which is there, too."""
    inputs, labels = batch(seed, positives, negatives)
    if problem.multiclass and positives > 1:
        labels = labels.clone()
        labels[labels.nonzero()[0]] = 2
    return problem.gradient(point(problem, 0)[0], None, (inputs, labels))[0]


@kinds
@pytest.mark.parametrize(("variant", "options"), [("adjusted", {"tau": 0.0}), ("focal", {"gamma": 0.0})])
def test_without_adjustment_or_focus_they_are_cross_entropy(kind: str, variant: str, options: dict[str, float]) -> None:
    one, other = gradient(built(kind, variant, **options)), gradient(built(kind, ""))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert (gradient(built(kind, variant)) - other).abs().max() > 1e-3


@pytest.mark.parametrize("gamma", [0.3, 1.0])
def test_the_slope_of_the_focal_loss_is_finite_where_a_sample_is_perfectly_classified(gamma: float) -> None:
    problem = built("bce", "focal", gamma=gamma)
    logits = torch.tensor([0.0, 40.0, 400.0], dtype=torch.float64, requires_grad=True)
    loss = problem.loss(logits, torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64), logits[:0], logits[:0])
    (slopes,) = torch.autograd.grad(loss, logits)
    assert slopes.isfinite().all()
    assert slopes[0] < -0.01
    assert slopes[1:].abs().max() < 1e-4


@kinds
def test_all_classes_weigh_the_same_in_a_sample_with_the_common_shares(kind: str) -> None:
    """At equal scores the weighted loss is log C, and each class contributes the same."""
    problem = built(kind, "weighted")
    counts = [8, 2] if kind == "bce" else [5, 3, 2]
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    logits = torch.zeros(10, *([] if kind == "bce" else [3]), dtype=torch.float64, requires_grad=True)
    cast, nothing = problem.cast_labels(labels), logits[:0]
    loss = problem.loss(logits, cast, nothing, nothing)
    assert loss.item() == pytest.approx(math.log(len(counts)))
    (slopes,) = torch.autograd.grad(loss, logits)
    assert slopes.sum(0).abs().max() < 1e-12, "no class outweighs another"


@kinds
def test_where_the_adjusted_loss_is_least_the_scores_know_nothing_of_the_shares(kind: str) -> None:
    """Without features the best adjusted logits are the logarithms of the shares: h itself is level (τ = 1)."""
    problem = built(kind, "adjusted")
    counts = [8, 2] if kind == "bce" else [5, 3, 2]
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    logits = torch.zeros(10, *([] if kind == "bce" else [3]), dtype=torch.float64, requires_grad=True)
    loss = problem.loss(logits, problem.cast_labels(labels), logits[:0], logits[:0])
    (slopes,) = torch.autograd.grad(loss, logits)
    assert slopes.sum(0).abs().max() < 1e-12


# ---------------------------------------------------------------------- a site's own shares


def site_labels(kind: str) -> Tensor:
    return torch.tensor([0] * 6 + [1] * 4 if kind == "bce" else [0] * 2 + [1] * 7 + [2])


@kinds
@pytest.mark.parametrize("variant", ["weighted", "adjusted"])
def test_the_shares_are_common_unless_the_run_asks_for_a_sites_own(kind: str, variant: str) -> None:
    labels = site_labels(kind)
    common, own = built(kind, variant), built(kind, variant, by="site")
    assert common.of_site(labels) is common
    for own_dual in (False, True):
        assert not common.differs_by_site(own_dual)
        assert own.differs_by_site(own_dual)
    shares = {"prior": 0.4} if kind == "bce" else {"shares": (0.2, 0.7, 0.1)}
    there = make(f"{kind}-{variant}", **KINDS[kind] | shares)  # type: ignore[arg-type]
    torch.testing.assert_close(gradient(own.of_site(labels)), gradient(there), rtol=1e-12, atol=1e-12)
    assert (gradient(there) - gradient(common)).abs().max() > 1e-3


@kinds
def test_fedlc_takes_a_sites_counts_to_the_minus_one_fourth(kind: str) -> None:
    labels = site_labels(kind)
    counts = labels.bincount().numpy()
    problem = built(kind, "adjusted", by="fedlc", tau=0.6).of_site(labels)
    # The same as shares whose logarithms are those margins, but for a constant that all classes have.
    shares = np.exp(-(counts**-0.25))
    shares = shares / shares.sum()
    variant = {"prior": float(shares[1])} if kind == "bce" else {"classes": 3, "shares": tuple(shares.tolist())}
    inputs, batch_labels = batch(4, 3, 5)
    x = point(problem, 0)[0]
    gx = problem.gradient(x, None, (inputs, batch_labels))[0].numpy()
    given = {"name": f"{kind}-adjusted", "tau": 0.6, **variant}
    expected = losses.finite_differences(
        lambda v: losses.value(given, v, np.zeros(0), inputs.numpy(), batch_labels.numpy()), x.numpy()
    )
    np.testing.assert_allclose(gx, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("by", ["site", "fedlc"])
@pytest.mark.parametrize("only", [0, 1])
def test_a_site_with_a_single_class_updates_nothing_by_the_adjusted_loss(by: str, only: int) -> None:
    problem = built("bce", "adjusted", by=by).of_site(torch.full((7,), only))
    gx = gradient(problem, *((5, 0) if only else (0, 5)))
    assert gx.abs().max() < 1e-20
    inputs, labels = batch(1, 2, 2)
    assert math.isfinite(float(str(problem.metrics(point(problem, 0)[0], None, samples(inputs, labels))["loss"])))


@pytest.mark.parametrize("variant", ["weighted", "adjusted"])
def test_each_of_several_labels_has_its_own_shares_at_a_site_too(variant: str) -> None:
    names = ("one", "two", "three")
    problem = make(f"bce-{variant}", labels=names, priors=(0.1, 0.3, 0.6), by="site")
    truth = torch.tensor([[1, 0, -1], [0, 1, -1], [0, 1, -1], [0, -1, -1]])
    own = problem.of_site(truth)
    torch.testing.assert_close(own.shares[1], torch.tensor([1 / 4, 2 / 3, 0.0], dtype=torch.float64))
    x = point(problem, 0)[0]
    gx = own.gradient(x, None, (batch(3, 2, 2)[0], truth))[0]
    assert gx.isfinite().all()
    third = x.view(-1)[-1:].shape  # its bias is the last parameter: nobody knows the label
    assert gx[-1:].abs().max() == 0, third


def test_their_scores_are_no_log_odds() -> None:
    """So probabilities are made by Platt scaling, in a run's evidence and in the model's file."""
    assert built("bce", "").log_odds
    for cls in (Weighted, Adjusted, Focal):
        assert not cls.log_odds


# ---------------------------------------------------------------------- in runs


@pytest.mark.parametrize("problem", ["bce-weighted", "bce-adjusted", "cross-entropy-adjusted"])
def test_sites_train_with_their_own_shares_and_report_the_common_loss(problem: str, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"algorithm": "fedavg", "problem": problem, "model": "linear", "sites": 3, "rounds": 1}
    keys |= {"local-steps": 3, "workers": 1, "device": "cpu", "runs-dir": str(tmp_path), "central-test": False}

    def run(by: str, lr: float) -> tuple[np.ndarray, list[float]]:
        result = simulate(keys | {f"{problem}.by": by, "fedavg.lr": lr})
        return result.arrays["x"], [site["loss"] for site in result.metrics[-1]["sites"].values()]

    common, own = run("common", 0.1), run("site", 0.1)
    assert np.abs(common[0] - own[0]).max() > 1e-5
    common, own = run("common", 1e-9), run("site", 1e-9)  # the same model
    np.testing.assert_allclose(common[1], own[1], rtol=1e-6)
