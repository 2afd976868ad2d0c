"""Step sizes that are likely off are reported, and seldom others."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from edelweiss.config import RunConfig
from edelweiss.lab.report.content import Content
from edelweiss.server_app import simulate
from edelweiss.server_app.training_warnings import oscillates, outliers, steps_too_short, training_warnings
from edelweiss.strategies.fedavg import FedAvg
from tests.server_app.sites import job

ROUNDS = 40
DRAWS = 400
TIME = np.arange(ROUNDS) / (ROUNDS - 1)  # as a share of the run


@pytest.mark.parametrize("constants", [1e-4, 0.01, 0.1, 0.5])
@pytest.mark.parametrize("noise", [0.0, 0.3], ids=["clean", "noisy"])
def test_a_run_shorter_than_its_time_constant_is_too_short(constants: float, noise: float) -> None:
    falls = -np.diff(np.exp(-constants * TIME))
    rng = np.random.default_rng(0)
    values = 1 - np.concatenate([[0.0], np.cumsum(falls * (1 + noise * rng.normal(size=len(falls))))])
    factor = steps_too_short(values)
    assert factor > 3, "3 time constants are needed, and less than 1 is over"
    if not noise:
        assert factor <= 3.1 / constants, "no more than is known"
    assert steps_too_short(1000 * values + 5) == pytest.approx(factor), "whatever the objective's scale"


@pytest.mark.parametrize("constants", [1.2, 3.0, 10.0, 100.0])
def test_a_run_that_converges_is_not(constants: float) -> None:
    values = np.exp(-constants * TIME)
    assert steps_too_short(values) == 0.0
    assert not oscillates(values, 0.0)


@pytest.mark.parametrize("moves", [True, False])
def test_an_objective_that_does_not_move_at_all(moves: bool) -> None:
    records = [{"round": place, "loss": 0.7 + moves * math.exp(-10 * time)} for place, time in enumerate(TIME)]
    assert len(training_warnings(FedAvg(), records)) == (not moves)
    assert not training_warnings(FedAvg(), records[:5]), "too few evaluations to judge"
    assert not training_warnings(FedAvg(), [{**record, "loss": math.nan} for record in records])


@pytest.mark.parametrize("walks", [False, True], ids=["white noise", "random walk"])
def test_chance_alone_seldom_warns(walks: bool) -> None:
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(DRAWS, ROUNDS))
    series = noise.cumsum(1) if walks else noise
    allowed = 0.025 * DRAWS + 3 * math.sqrt(0.025 * 0.975 * DRAWS)  # for both: a fall, and one that does not slow down
    assert sum(steps_too_short(values) > 0 for values in series) <= allowed


def test_changes_as_large_as_all_that_was_gained_oscillate() -> None:
    rng = np.random.default_rng(2)
    noise = rng.normal(size=ROUNDS)
    fallen = np.exp(-10 * TIME)
    assert oscillates(fallen + noise, 0.1)
    assert not oscillates(fallen + 0.05 * noise, 0.01), "training has gained much more"
    assert not oscillates(0.05 * noise, 0.1), "a model that was good at the start: other patients would change it more"
    assert not oscillates(0.2 + 0.3 * TIME, 0.01), "it overfits, which is another matter"


@pytest.mark.parametrize("lr", [1e-6, 0.1], ids=str)
def test_a_run_with_short_steps_says_so(lr: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = {"algorithm": "fedavg", "problem": "bce", "sites": 3, "rounds": 12, "fedavg.lr": lr, "local-steps": 10}
    result = simulate(job(tmp_path, **keys), quiet=False)  # type: ignore[arg-type]
    said = " ".join(capsys.readouterr().out.split())
    found = json.loads((result.folder / "status.json").read_bytes()).get("warnings", [])
    assert len(found) == (lr < 0.1)
    for text in found:
        assert f"warning: {text}" in said
        assert FedAvg(lr=lr).step_sizes in text, "the key to change, with its value"
        assert text in Content.read(result.folder).notes, "for the report and the model card"


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        ([4], "in round 4 ("),
        ([1, 2, 3, 7, 9, 10], "in rounds 1-3, 7, 9-10 ("),
        (range(1, 11, 2), "in rounds 1, 3, 5, 7, 9 ("),
        (range(1, 14, 2), "in rounds 1, 3, 5, 7, 9, 2 more spans ("),
    ],
    ids=["one", "spans", "as many as fit", "more"],
)
def test_an_outlier_s_rounds_are_named_in_spans(rounds: Sequence[int], said: str) -> None:
    config = RunConfig.parse({"aggregation": "mean"})
    records = [{"round": r, "outliers": {"north": 40.0 + r}} for r in rounds]
    [line] = outliers(config, [{"round": 20}, *records])
    assert said in line
    assert f"up to {40 + rounds[-1]} times" in line
