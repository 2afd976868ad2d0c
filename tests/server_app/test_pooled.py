"""``pooled``: the same algorithm, data and evaluation, with all training samples in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edelweiss.config import ConfigError, RunConfig
from edelweiss.datasets import DataConfig, load_site
from edelweiss.datasets.evaluation_digest import fingerprints
from edelweiss.server_app import Result, simulate
from tests.said import has

WHOLE: dict[str, Any] = {"holdout-share": 0.0, "thin-share": 0.0, "evaluate-every": 0}


def run(folder: Path, **keys: Any) -> Result:
    made = {"model": "linear", "sites": 3, "rounds": 4, "local-steps": 3, "workers": 1, "device": "cpu"}
    return simulate(made | {"runs-dir": str(folder)} | {key.replace("_", "-"): value for key, value in keys.items()})


@pytest.mark.parametrize(
    ("algorithm", "problem"),
    [
        ("fedavg", "bce"),
        ("scaffold", "bce"),
        ("feddyn", "bce"),
        ("fedyogi", "bce"),
        ("codasca", "auc"),
        ("fcsg-m", "auprc"),
    ],
)
def test_a_pooled_run_is_that_of_one_site_with_all_samples(algorithm: str, problem: str, tmp_path: Path) -> None:
    """Whatever the sites are, of very different sizes, and their weights."""
    more: dict[str, Any] = {"algorithm": algorithm, "problem": problem} | WHOLE
    one = run(tmp_path, sites=1, **more)
    split = {"partition": "dirichlet", "concentration": 0.3, "weighting": "examples"} | more
    pooled = run(tmp_path, sites=4, pooled=True, **split)
    np.testing.assert_allclose(pooled.arrays["x"], one.arrays["x"], rtol=0, atol=2e-5)
    assert np.abs(run(tmp_path, sites=4, **split | {"partition": "iid"}).arrays["x"] - one.arrays["x"]).max() > 1e-4


def test_each_site_evaluates_on_the_samples_that_it_holds_out_and_nobody_trains_on_them() -> None:
    config = {"dataset": "breast-cancer", "partition": "dirichlet", "thin_share": 0.1}
    apart, pooled = (DataConfig(**config, pooled=pooled) for pooled in (False, True))  # type: ignore[arg-type]
    assert fingerprints(apart, 5) == fingerprints(pooled, 5), "runs with and without it can be compared"
    everything = sorted(row for k in range(5) for row in load_site(apart, k, 5).train.rows.tolist())
    for k in range(5):
        there = load_site(pooled, k, 5)
        assert sorted(there.train.rows.tolist()) == everything
        assert there.held_out.rows.tolist() == load_site(apart, k, 5).held_out.rows.tolist()
        assert not {*there.held_out.rows.tolist()} & {*everything}


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"dataset": "site"}, 'dataset = "site"'),
        ({"problem": "saddle", "algorithm": "local-sgda"}, "problem = 'saddle'"),
        ({"fraction": 0.5}, "fraction = 0.5"),
        ({"algorithm": "ditto"}, "algorithm = 'ditto'"),
        ({"algorithm": "alone"}, "algorithm = 'alone'"),
    ],
)
def test_hospitals_data_stay_where_they_are_and_sites_without_data_or_with_models_of_their_own_are_no_one_place(
    keys: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, check=has("pooled = true", named)):
        RunConfig.parse({"algorithm": "fedavg", "problem": "bce", "pooled": True} | keys)
