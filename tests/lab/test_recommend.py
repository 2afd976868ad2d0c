"""`edelweiss recommend`: recipes tuned alike, compared at other seeds; the first one stays unless another wins."""

from __future__ import annotations

import csv
import multiprocessing
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edelweiss.common.files import read_toml
from edelweiss.config import ConfigError, RunConfig, flatten, read_overrides
from edelweiss.lab.cli import main
from edelweiss.lab.compare.comparison import Comparison
from edelweiss.lab.compare.groups import half_width
from edelweiss.lab.compare.runs import OUTCOME
from edelweiss.lab.recommend import MORE_CLASSES, TWO_CLASSES, Family, prepared, recommend
from edelweiss.problems import PROBLEMS
from edelweiss.strategies import ALGORITHMS, can_solve
from tests.said import has

SMALL = {"model": "linear", "sites": 3, "local-steps": 4, "batch-size": 8, "partition": "iid"}
SEEDS = 3


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes that start at once: this process has no threads."""
    forks = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: forks)


def recommended(folder: Path, **more: Any) -> tuple[Comparison, tuple[str, str]]:
    """Return the comparison, and the recipe in winner.toml."""
    how = {key: more.pop(key) for key in ("draws", "select") if key in more}
    _, comparison = recommend({**SMALL, **more}, folder, 2, seeds=SEEDS, **how)
    winner = flatten(read_toml(folder / "winner.toml"))
    assert "runs-dir" not in winner, "what depends on this machine"
    assert RunConfig.parse(winner).sites == 3, "it can be run"
    return comparison, (str(winner["algorithm"]), str(winner["problem"]))


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_recipes_have_equal_draws_and_are_compared_at_other_seeds(tmp_path: Path) -> None:
    comparison, winner = recommended(tmp_path / "found", rounds=3, draws=2)
    with (tmp_path / "found" / "choice.csv").open() as file:
        tried = list(csv.DictReader(file))
    assert set(Counter(line["method"] for line in tried).values()) == {2}
    chosen = {line["folder"] for line in tried}
    assert len(comparison.groups) == len(TWO_CLASSES.recipes)
    for each in comparison.found:
        assert (each.path / OUTCOME).exists()
        assert each.path.name not in chosen
        assert each.run.repeat["seed"] in range(SEEDS)
    signs = [comparison.difference(group).sign for group in comparison.groups[1:]]
    assert winner == TWO_CLASSES.recipes[0] or max(signs) > 0, "cross-entropy, unless another is shown to be better"


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_the_winner_is_shown_to_be_better(tmp_path: Path) -> None:
    """Weight decay keeps the models of two recipes at nothing, so the losses of the two others are lower."""
    how = {"draws": 1, "select": "over-sites.loss.mean"}
    comparison, winner = recommended(tmp_path / "found", rounds=8, **{"fedavg.weight-decay": 5.0}, **how)
    labels = [group.label for group in comparison.groups]
    signs = dict(zip(TWO_CLASSES.recipes, map(comparison.difference, comparison.groups), strict=True))
    assert signs[winner].sign < 0, labels
    assert signs["fedavg", "bce-weighted"].sign >= 0
    assert winner[0] in comparison.notes[-1]


@pytest.mark.parametrize("family", [TWO_CLASSES, MORE_CLASSES])
def test_recipes_are_of_pairs_that_work_and_report_what_chooses(family: Family) -> None:
    for algorithm, problem in family.recipes:
        assert can_solve(ALGORITHMS[algorithm], PROBLEMS[problem])
        assert family.select.split(".")[1] in PROBLEMS[problem].reports
    assert len(set(family.recipes)) == len(family.recipes)


def test_what_does_not_differ_is_seldom_shown_to() -> None:
    """With as many comparisons as recipes one in twenty tries shows an order, at most."""
    comparisons, tries = 3, 400
    values = np.random.default_rng(0).normal(size=(tries, comparisons, 6))
    wrong = sum(any(abs(pairs.mean()) > half_width(list(pairs), comparisons) for pairs in each) for each in values)
    alone = sum(any(abs(pairs.mean()) > half_width(list(pairs)) for pairs in each) for each in values)
    assert wrong <= 0.05 * tries + 3 * (0.05 * 0.95 * tries) ** 0.5
    assert alone > 0.1 * tries, "without the correction it is one in seven"


def test_at_real_sites_it_lists_the_runs_to_submit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = 'dataset="site" sites=3 min-replies=2 problem="cross-entropy"'
    assert main(["recommend", "--run-config", keys, "--to", str(tmp_path / "a list"), "--seeds", "2"]) == 0
    *submits, compare = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    runs = [RunConfig.parse(read_overrides([line[-1]])) for line in submits]
    assert Counter((run.algorithm, run.problem) for run in runs) == dict.fromkeys(MORE_CLASSES.recipes, 2)
    assert {run.seed for run in runs} == {0, 1}
    assert {(run.dataset, run.min_replies) for run in runs} == {("site", 2)}
    assert [f"{run.runs_dir}/{run.run_name}" for run in runs] == compare[-len(runs) :]
    assert len({run.run_name for run in runs}) == len(runs)
    assert compare[1] == "compare"
    (tmp_path / "file").touch()
    assert main(["recommend", "--run-config", keys, "--to", str(tmp_path / "file")]) == 2
    assert "--to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"problem": "saddle"}, ["saddle"]),
        ({"seed": 3}, ["seed"]),
        ({"rouds": 3}, ["rouds", "rounds"]),
        ({"problem": "saddle", "seed": 3}, ["saddle", "seed"]),
    ],
)
def test_what_cannot_be_recommended_for_is_refused_before_any_run(
    keys: dict[str, Any], names: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, check=has(*names)):
        recommend(keys, tmp_path / "none", 1)
    with pytest.raises(ConfigError, check=has("--seeds")):
        prepared({}, 1)
    with pytest.raises(ConfigError, check=has("--draws")):
        recommend({}, tmp_path / "none", 1, draws=0)
    assert not (tmp_path / "none").exists()
