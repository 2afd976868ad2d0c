"""What a new hospital's training starts from: the head that it was given or a fresh one, and batch-norm statistics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from edelweiss.client_app.cli import main
from edelweiss.client_app.personalise import personalise
from edelweiss.client_app.process_cache import cached_problem
from edelweiss.models import networks
from tests.client_app.newcomer import at_home, built, finished, in_order, newcomer
from tests.said import lines
from tests.server_app.sites import FEATURES, table, write_table


@pytest.mark.slow
def test_the_body_of_a_common_model_serves_too_with_its_head_to_start_from(tmp_path: Path) -> None:
    folder = finished(tmp_path, algorithm="codasca", problem="auc")
    given, data = at_home(folder, newcomer(tmp_path))
    outcome = personalise(given, data, steps=1, lr=1e-9, lr_dual=1e-9)
    network = in_order(given)
    assert torch.allclose(outcome.model["x"][:-2], network, atol=1e-6)
    assert outcome.model["x"][-2:].tolist() == pytest.approx([given.facts["a"], given.facts["b"]], abs=1e-6)
    assert outcome.model["y"].tolist() == pytest.approx([given.facts["alpha"]], abs=1e-6)


@pytest.mark.slow
def test_a_fresh_head_can_be_asked_for_whatever_head_the_model_has(tmp_path: Path) -> None:
    """With the start of y, its adversary; it is not the head that the body was trained with from the start."""
    folder = finished(tmp_path, algorithm="codasca", problem="auc")
    given, data = at_home(folder, newcomer(tmp_path))
    problem, sites = built(given), given.config.sites
    start, still = problem.fresh(sites), {"steps": 1, "lr": 1e-30, "lr_dual": 1e-30}
    fresh, trained, default = (personalise(given, data, **still, head=head) for head in ("fresh", "trained", ""))
    split = fresh.head
    assert torch.equal(fresh.model["x"][:split], in_order(given)[:split])
    assert torch.allclose(fresh.model["x"][split:], start["head"], rtol=0, atol=1e-20)
    assert torch.allclose(fresh.model["y"], start["y"], rtol=0, atol=1e-20)
    assert fresh.before != default.before == trained.before
    assert all(torch.equal(trained.model[name], default.model[name]) for name in default.model)
    others = [problem.initial()["x"][split:], *(problem.fresh(site)["head"] for site in range(sites))]
    assert not any(torch.equal(start["head"], other) for other in others), "nobody's"
    assert (trained.model["x"][split:] != others[0]).float().mean() > 0.5, "what is not is of a dead unit"
    arguments = [
        "--model",
        str(folder),
        "--data-dir",
        str(tmp_path / "private-new"),
        "--state-dir",
        str(tmp_path / "s"),
    ]
    small = ["--steps", "1", "--lr", "1e-30", "--lr-dual", "1e-30"]
    assert main(["personalise", *arguments, *small, "--head", "fresh"]) == 0
    [file] = (tmp_path / "s" / "models").glob("*.safetensors")
    assert torch.equal(load_file(file)["x"], fresh.model["x"])


def test_an_untrained_head_is_not_given_for_a_trained_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", str(finished(tmp_path)), "--data-dir", str(newcomer(tmp_path)), "--head", "trained"]
    assert main(["personalise", *arguments]) == 1
    assert lines(capsys.readouterr().err, "--head trained", "algorithm = 'fedrep'", "--head fresh")


@pytest.fixture
def mlp_with_statistics(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make "mlp" a small network with batch norm."""

    def normalised(name: str, shape: tuple[int, ...], outputs: int, hidden: int) -> nn.Module:
        return nn.Sequential(
            nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], hidden), nn.ReLU(), nn.Linear(hidden, outputs)
        )

    monkeypatch.setitem(networks.MODELS, "mlp", normalised)
    cached_problem.cache_clear()  # of networks that were built as usual
    yield
    cached_problem.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedrep", "fedavg"])
@pytest.mark.usefixtures("mlp_with_statistics")
def test_statistics_of_batch_norm_are_the_new_sites_own(algorithm: str, tmp_path: Path) -> None:
    """Where sites keep theirs, as ``bn = "local"`` has it, whether or not there is a common model."""
    folder = finished(tmp_path, algorithm=algorithm, problem="bce", standardise=False, bn="local")
    features, labels = table(80, seed=9)
    for place in (-3.0, 5.0):
        given, data = at_home(folder, write_table(tmp_path / f"private-{place}", features + place, labels))
        outcome = personalise(given, data, steps=1)
        assert np.isfinite(outcome.before["loss"])
        means = outcome.model["buffers"][:FEATURES]
        assert (means - place).abs().max() < 1, "estimated before the first step, which goes a tenth of the way"
