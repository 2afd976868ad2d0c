"""A run that diverges stops with the round, the site and what to lower; it never goes on with nonsense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edelweiss.common import Value
from edelweiss.config import ConfigError
from edelweiss.federation import DivergedError
from edelweiss.server_app import simulate
from edelweiss.strategies import ALGORITHMS
from edelweiss.strategies.local_sgda import LocalSGDA
from tests.said import has
from tests.server_app.sites import job, saddle_job

if TYPE_CHECKING:
    from edelweiss.federation import RoundContext
    from edelweiss.problems import Arrays

# A step of x multiplies the distance by |1 - 10 lr| = 9, so its square grows by 9^4 = 6561 in a round of two steps.
TOO_LARGE: dict[str, Value] = {"local-sgda.lr": 1.0, "rounds": 50}
ADVICE = ("local-sgda.lr = 1", "local-sgda.lr-dual = 0.02")


def folder_of(path: Path) -> Path:
    [folder] = (path / "runs").iterdir()
    return folder


@pytest.mark.parametrize(("bound", "stops_in"), [(1e6, 2), (1e3, 1), (1e10, 3)])
def test_a_loss_above_the_bound_ends_the_run(tmp_path: Path, bound: float, stops_in: int) -> None:
    fields = {"round": stops_in, "key": "distance-x", "allowed": bound, "sites": ()}
    with pytest.raises(DivergedError, check=has(*ADVICE, f"loss-bound = {bound:g}", **fields)):
        simulate(saddle_job(tmp_path) | TOO_LARGE | {"loss-bound": bound})
    lines = (folder_of(tmp_path) / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(1, stops_in + 1)), "what was reached is kept"


def test_without_evaluations_it_stops_when_numbers_overflow(tmp_path: Path) -> None:
    sites = tuple(f"site-{k}" for k in range(4))
    with pytest.raises(DivergedError, check=has(*ADVICE, "1e+18", "'x'", sites=sites)):
        simulate(saddle_job(tmp_path) | TOO_LARGE | {"evaluate-every": 0})


def test_a_final_model_beyond_the_bound_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, check=has(*ADVICE, round=5, sites=())):
        simulate(saddle_job(tmp_path) | TOO_LARGE | {"rounds": 5, "evaluate-every": 0})
    assert (folder_of(tmp_path) / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("where_evaluated", "at_sites"), [({"central-test": False}, True), ({"holdout-share": 0.0}, False)]
)
def test_a_network_that_diverges_names_its_loss(
    tmp_path: Path, where_evaluated: dict[str, Value], at_sites: bool
) -> None:
    """Whoever evaluates it; server-lr throws the model far out in one step, where gradients are still finite."""
    keys: dict[str, Value] = {"problem": "auc", "auc.score": "identity", "loss-bound": 10.0}
    keys |= {"algorithm": "codasca", "codasca.server-lr": 30.0} | where_evaluated
    with pytest.raises(DivergedError, check=has("loss", "codasca.lr = 0.1", "codasca.server-lr = 30")) as caught:
        simulate(job(tmp_path, rounds=30) | keys)
    assert ("site-0" in caught.value.sites) == at_sites


def test_a_final_model_that_only_sites_evaluate_is_held_against_the_bound(tmp_path: Path) -> None:
    keys: dict[str, Value] = {"problem": "auc", "auc.score": "identity", "loss-bound": 10.0, "central-test": False}
    keys |= {"algorithm": "codasca", "codasca.server-lr": 30.0, "evaluate-every": 0}
    with pytest.raises(DivergedError, check=has("'site-0'", round=6)):
        simulate(job(tmp_path, rounds=6) | keys)


def test_a_loss_that_is_no_number_is_beyond_every_bound(tmp_path: Path) -> None:
    """So far out that squares overflow, and the loss is a difference of infinities."""
    keys: dict[str, Value] = {"problem": "auc", "auc.score": "identity", "loss-bound": 1e38, "holdout-share": 0.0}
    keys |= {"algorithm": "codasca", "codasca.server-lr": 1e16}
    with pytest.raises(DivergedError, check=has("nan", key="loss", sites=())):
        simulate(job(tmp_path, rounds=1) | keys)


def test_the_bound_must_be_positive() -> None:
    with pytest.raises(ConfigError, check=has(keys=["loss-bound"])):
        simulate({"loss-bound": 0.0})


class Measuring(LocalSGDA):
    """Local SGDA that reports the norm of the server's y."""

    name = "measuring"

    def measures(self, state: Arrays, context: RoundContext) -> dict[str, float]:
        return {"norm-y": state["y"].norm().item()}


def test_what_an_algorithm_measures_is_in_the_rounds_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "measuring", Measuring)
    result = simulate({k: v for k, v in saddle_job(tmp_path, algorithm="measuring").items() if "." not in k})
    lines = (folder_of(tmp_path) / "metrics.jsonl").read_text().splitlines()
    norms = [json.loads(line)["norm-y"] for line in lines]
    assert norms == [record["norm-y"] for record in result.metrics]
    # The optimum is 0, so at the last round the norm is the root of the distance that the problem reports.
    assert norms[-1] ** 2 == pytest.approx(result.metrics[-1]["distance-y"], rel=1e-4)
