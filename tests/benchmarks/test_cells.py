"""The study of when training for AUROC pays: its data, its equal budgets, its intervals, and its page."""

from __future__ import annotations

import csv
import math
import multiprocessing
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from benchmarks import cells, reproduce
from benchmarks.cells import Runs, Sweep, Table, expected, step_of
from benchmarks.rare import REGIMES, file_of
from benchmarks.rare import Table as Rows
from benchmarks.studies import REPO
from benchmarks.studies.when_auc_pays import (
    ARMS,
    CELLS,
    DRAWS,
    KINDS,
    NAME,
    SEEDS,
    TUNING_SEED,
    WIDTH,
    Cell,
    protocol,
)
from edelweiss.lab.compare.runs import OUTCOME
from edelweiss.lab.sweep.job import parsed
from tests import forks

# ---------------------------------------------------------------------- the data


@pytest.mark.parametrize("regime", REGIMES)
def test_a_table_has_the_shares_of_positives_that_it_names_and_every_seed_other_patients(regime: str) -> None:
    rows = Rows(regime, (0.01, 0.5), 20_000)
    first, again, other = (rows.draw(seed) for seed in (0, 0, 1))
    labels, owner = first["classes"].numpy(), first["owner"].numpy()
    for site, share in enumerate(rows.shares):
        ill = labels[owner == site]
        assert abs(ill.mean() - share) < 4 * np.sqrt(share * (1 - share) / len(ill))
    assert abs(labels.sum() - rows.positives) < 300
    assert all((first[key] == again[key]).all() for key in first)
    assert not (first["inputs"] == other["inputs"]).all(1).any()


def _best_linear(regime: str) -> tuple[float, float]:
    """Return the AUROC of logistic regression, and of the direction that the regime moves positives along."""
    drawn = Rows(regime, (0.1,) * 4, 40_000).draw(0)
    x, y = drawn["inputs"].numpy(), drawn["classes"].numpy()
    useful = x[:, :2] @ [1.0, 1.0]
    return roc_auc_score(y, LogisticRegression().fit(x, y).decision_function(x)), roc_auc_score(y, useful)


def test_cross_entropy_is_misled_where_the_study_says_that_a_linear_model_is_misspecified() -> None:
    fitted, useful = _best_linear("clean")
    assert fitted > useful
    for regime in ("hard", "miscoded"):
        fitted, useful = _best_linear(regime)
        assert useful > fitted + 0.01, regime


def test_a_shift_moves_all_patients_of_a_site_alike() -> None:
    plain, shifted = (Rows("clean", (0.05,) * 4, 8_000, shift=shift).draw(0) for shift in (0.0, 3.0))
    spread = {
        key: np.std([drawn["inputs"][drawn["owner"] == site].mean(0).numpy() for site in range(4)])
        for key, drawn in (("plain", plain), ("shifted", shifted))
    }
    assert spread["plain"] < 0.2
    assert spread["shifted"] > 1


def test_a_draw_is_written_once(tmp_path: Path) -> None:
    rows = Rows("clean", (0.5,), 100)
    file = file_of(rows, 3, tmp_path)
    written = file.stat().st_mtime_ns
    assert file_of(rows, 3, tmp_path) == file
    assert file.stat().st_mtime_ns == written
    assert file_of(rows, 4, tmp_path) != file
    assert file_of(replace(rows, rows=200), 3, tmp_path) != file


# ---------------------------------------------------------------------- the protocol


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.slug)
def test_every_arm_of_a_cell_is_a_run_and_all_have_the_same_budget(cell: Cell, tmp_path: Path) -> None:
    direct, warm = (
        cell.study([arm for arm in ARMS if bool(arm.after) == after], DRAWS, SEEDS) for after in (False, True)
    )
    first = cell.first_stage(0.1, SEEDS)
    steps: dict[str, int] = {}
    places = cell.quantiles(DRAWS)
    assert [int(place * DRAWS) for place in places] == list(range(DRAWS)), "one in each part"
    for study in (direct, warm, first):
        sweep = Sweep(study, tmp_path, cell=cell)
        for method in study.methods:
            job = sweep.reported(method, method.grid[0])[0]
            parsed(job.settings)
            steps[method.label] = job.settings["rounds"] * job.settings["local-steps"]
            if study is not first:
                (low,) = (arm.low for arm in ARMS if arm.label == method.label)
                drawn = [math.log(step_of(point) / low, WIDTH) for point in method.grid]
                assert drawn == pytest.approx(places, abs=2e-3), "all arms try the same places of their ranges"
    halves = steps.pop("first stage") + steps.pop("warm start")
    assert set(steps.values()) == {halves}
    assert {repeat for study in (direct, warm) for repeat in study.repeat["seed"]} == set(range(SEEDS))
    assert first.repeat["seed"] == (direct.tuning_seed, *range(SEEDS))


def test_the_study_is_as_large_as_it_was_to_be() -> None:
    assert len(CELLS) >= 24
    assert len({cell.slug for cell in CELLS}) == len(CELLS)
    assert len(ARMS) >= 10
    assert SEEDS >= 6
    assert {cell.kind for cell in CELLS} == set(KINDS)
    assert TUNING_SEED not in range(SEEDS)


# ---------------------------------------------------------------------- the intervals


def table(pairs: dict[tuple[str, str], list[float]]) -> Table:
    """A table of given differences, by cell and arm."""
    by_seed = {place: {str(seed): value for seed, value in enumerate(values)} for place, values in pairs.items()}
    return Table("", "", tuple(dict.fromkeys(arm for _, arm in pairs)), by_seed)


def test_intervals_of_a_cell_are_corrected_for_its_comparisons() -> None:
    rng = np.random.default_rng(0)
    drawn = {("cell", f"arm {number}"): rng.normal(0.01, 0.01, 6).tolist() for number in range(10)}
    found = table(drawn)
    for place, values in drawn.items():
        low, high = ttest_1samp(values, 0).confidence_interval(1 - 0.05 / 10)
        assert found.half(place) == pytest.approx((high - low) / 2)
        assert found.sign(place) == int(low > 0) - int(high < 0)


def test_where_nothing_differs_a_cell_seldom_shows_anything() -> None:
    """Ten comparisons one by one would show something in 40 % of cells."""
    rng, shown, trials = np.random.default_rng(1), 0, 300
    for _ in range(trials):
        found = table({("cell", f"arm {number}"): rng.normal(0, 0.01, 6).tolist() for number in range(10)})
        shown += any(found.sign(place) for place in found.pairs)
    assert shown / trials < 0.09


def test_marks_say_which_corrections_a_difference_outlasts() -> None:
    steady, weak, none = [0.05 + 1e-4 * n for n in range(6)], [0.01, 0.02, 0.03, 0.03, 0.02, 0.025], [0.01, -0.01] * 3
    noise = {(f"cell {n}", "noise"): none for n in range(100)}
    found = table({("cell", "steady"): steady, ("cell", "weak"): weak, **noise})
    assert found.entry(("cell", "steady")).endswith("\\*\\*")
    assert found.entry(("cell", "weak")).endswith("\\*")
    assert not found.entry(("cell", "weak")).endswith("\\*\\*")
    assert "*" not in found.entry(("cell 3", "noise"))
    assert found.entry(("elsewhere", "steady")) == "–"


def test_a_mean_over_cells_is_of_the_seeds_that_all_have() -> None:
    found = table({("one", "arm"): [0.1, 0.2, 0.3], ("two", "arm"): [0.3, 0.2]})
    assert found.over(["one", "two", "three"], "arm") == pytest.approx([0.2, 0.2])
    assert found.over(["three"], "arm") == []


# ---------------------------------------------------------------------- the command


SMALL = Cell(
    "small, linear",
    Rows("hard", (0.2,) * 4, 400),
    {"model": "linear", "rounds": 2, "local-steps": 2, "batch-size": 16, "positives-per-batch": 4},
)


@pytest.mark.slow
def test_the_command_runs_a_cell_once_and_writes_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: forks.FORK)  # which start at once
    monkeypatch.setattr(cells, "CELLS", (SMALL,))
    folder, results = tmp_path / "runs", tmp_path / "results"
    command = [NAME, "--jobs", "1", "--draws", "2", "--seeds", "2", "--data-root", ""]
    command += ["--runs-dir", str(folder), "--results-dir", str(results)]
    assert reproduce.main(command) == 0
    there = {path: path.stat().st_mtime_ns for path in folder.rglob(OUTCOME)}
    assert len(there) == expected(2, 2)
    page = (results / f"{NAME}.md").read_text()
    assert protocol(2, 2) in page
    assert "Not run" not in page
    assert re.search(r"^\| small, linear \| 0\.\d{4} ± \S+ \| [+-]0\.\d{4} ±", page, re.MULTILINE)
    assert reproduce.main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in folder.rglob(OUTCOME)} == there
    assert (results / f"{NAME}.md").read_text() == page
    with (results / f"{NAME}.csv").open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    assert len(lines) == len(ARMS) * (2 + 2)
    # The choice is by the tuning seed alone, and the warm start goes on from the model of its own seed.
    runs = Runs(SMALL, folder / NAME, 2, 2)
    for label, arm in runs.arms.items():
        best = max((line for line in lines if line["use"] == "tuning" and line["method"] == label), key=by_pooled)
        assert float(best["step size"]) == arm.step
    _, (first, _), (warm, _) = runs.sweeps()
    (job, *_) = (job for job in warm.chosen() if job.repeat["seed"] == 1)
    assert warm.place(job, "")["init-from"] == str(first.folder / first.at(1).name)
    assert step_of(first.study.methods[0].grid[0]) == runs.arms["cross-entropy"].step


def by_pooled(line: dict[str, str]) -> float:
    return float(line["AUROC, pooled"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([NAME, "--draws", "0"], "--draws must be from 1"),
        ([NAME, "--seeds", "1"], "--seeds must be from 2"),
        ([NAME, "--seeds", "101"], "--seeds must be from 2 to 100"),
        ([NAME, "--full"], "--draws and --seeds make it larger"),
        (["saddle", "--draws", "9"], "--draws and --seeds are for when-auc-pays"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        reproduce.main(arguments)
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


def test_a_cell_whose_data_are_not_there_is_left_out(tmp_path: Path) -> None:
    there, left_out = cells.available(str(tmp_path))
    assert {cell.needs for cell in left_out} == {"mnist", "fashion-mnist", "cifar10", "heart_disease"}
    assert len(there) >= 24
    (tmp_path / "mnist").mkdir()
    assert {cell.needs for cell in left_out} - {cell.needs for cell in cells.available(str(tmp_path))[1]} == {"mnist"}


def test_the_published_page_has_the_protocol_of_the_command() -> None:
    page = (REPO / "docs" / "results" / f"{NAME}.md").read_text(encoding="utf-8")
    assert protocol(DRAWS, SEEDS) in page
