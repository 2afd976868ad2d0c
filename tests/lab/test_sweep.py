"""`edelweiss sweep`: its file, its choice, runs that are stopped early, and what a kill leaves."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edelweiss.common.files import read_toml
from edelweiss.config import ConfigError, RunConfig, flatten
from edelweiss.lab.cli import main
from edelweiss.lab.compare.comparison import require_metrics
from edelweiss.lab.compare.runs import OUTCOME, PAUSE, held_out, paths
from edelweiss.lab.sweep.file import read
from edelweiss.lab.sweep.folder import finish, owned, winner
from edelweiss.lab.sweep.job import Job
from edelweiss.lab.sweep.jobs import Sweep
from edelweiss.lab.sweep.study import Study
from edelweiss.lab.sweep.workers import compute
from edelweiss.server_app import simulate
from tests import forks
from tests.lab.compared import COST
from tests.said import has
from tests.said import lines as lines_with

REPO = Path(__file__).resolve().parents[2]
FILE = """
seeds = [0, 1]
select = "central.distance-x"
grow = 0

[base]
problem = "saddle"
sites = 2
rounds = 4
local-steps = 2

[[compare]]
algorithm = "local-sgda"

[[compare]]
algorithm = "sagda"

[tune]
"local-sgda.lr local-sgda.lr-dual" = [0.01, 0.1]
"sagda.lr sagda.lr-dual" = [0.01, 0.1]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(FILE)
    return path


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes that start at once: this process has no threads."""
    forks = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: forks)


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return what a run measured, without how long that took."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if "seconds" not in key} for record in records]


# ---------------------------------------------------------------------- the file


def test_a_file_is_a_method_for_each_that_is_compared_with_the_points_of_its_own_keys(file: Path) -> None:
    study, _ = read(file)
    assert [method.label for method in study.methods] == ["local-sgda", "sagda"]
    for method in study.methods:
        names = (f"{method.algorithm}.lr", f"{method.algorithm}.lr-dual")
        assert method.grid == tuple(dict.fromkeys(names, lr) for lr in (0.01, 0.1))
    text = FILE.replace('[[compare]]\nalgorithm = "local-sgda"\n\n[[compare]]\n', "[compare]\nlocal-steps = [1, 2]\n")
    file.write_text(text.replace('algorithm = "sagda"', 'algorithm = ["sagda", "local-sgda"]'))
    study, _ = read(file)
    assert len(study.methods) == 4
    assert study.methods[0].label == "sagda, local-steps=1"


def test_a_base_may_be_a_file_beside_it_and_folds_are_repeated(file: Path) -> None:
    keys = 'dataset = "digits"\nfolds = 3\nworkers = 2\ndevice = "cpu"'
    (file.parent / "job.toml").write_text(f"{keys}\n[codasca]\nlr = 0.5\n")
    file.write_text('base = "job.toml"\n[tune]\nbatch-size = [8, 16]\n')
    study, _ = read(file)
    assert study.base == {"dataset": "digits", "folds": 3, "codasca.lr": 0.5}, "workers change nothing"
    assert study.place == {"device": "cpu"}
    assert study.repeat == {"seed": (0, 1, 2), "fold": (0, 1, 2)}
    assert [dict(point) for point in study.methods[0].grid] == [{"batch-size": 8}, {"batch-size": 16}]


def test_privacy_reaches_every_run_that_has_an_epsilon(file: Path) -> None:
    file.write_text("[base]\ndp.delta = 1e-4\n[compare]\ndp.epsilon = [0.0, 3.0]\n[tune]\ncodasca.lr = [0.01, 0.1]\n")
    sweep = Sweep(read(file)[0], file.parent / "runs")
    sweep.check()
    without, private = sweep.kinds()
    assert (without.dp_epsilon, private.dp_epsilon) == (0.0, 3.0)
    assert (without.dp_delta, private.dp_delta) == (1e-5, 1e-4), "nothing is private, so nothing has a δ"


def test_a_private_run_is_chosen_by_its_noised_histograms() -> None:
    private = {"pooled": {}, "noised": {"auroc": 0.7, "auroc.Edema": 0.6}}
    assert held_out(private, "pooled.auroc") == 0.7
    assert held_out(private, "pooled.auroc.Edema") == 0.6
    assert held_out({"pooled": {"auroc": 0.8}}, "pooled.auroc") == 0.8
    assert held_out(private, "over-sites.auroc.mean") is None


def test_ranges_are_drawn_from_whole_numbers_where_their_ends_are(file: Path) -> None:
    ranges = "draws = 6\n[tune]\nlocal-steps = {low = 2, high = 64}\n[tune.codasca.lr]\nlow = 0.01\nhigh = 1.0\n"
    file.write_text(ranges)
    study, _ = read(file)
    points = Sweep(study, file.parent).grid(study.methods[0])
    assert len(points) == 6
    assert points == Sweep(study, file.parent).grid(study.methods[0])
    assert all(type(point["local-steps"]) is int and 2 <= point["local-steps"] <= 64 for point in points)
    assert all(0.01 <= float(point["codasca.lr"]) <= 1.0 for point in points)


WRONG: dict[str, tuple[str, ...]] = {  # a file, and what the message names
    "an unknown key": ("[tune]\ncodasca.lrr = [0.1]", "'codasca.lrr'", "'codasca.lr'?"),
    "an unknown key of the base": ("[base]\nround = 3", "'round'", "'rounds'?"),
    "an unknown key of the file": ("seed = [1]", "'seed'", "'seeds'?", "[base]"),
    "an empty list": ("[tune]\ncodasca.lr = []", "tune.codasca.lr = []"),
    "a single value": ("[tune]\ncodasca.lr = 0.1", "tune.codasca.lr = 0.1"),
    "a value twice": ("[compare]\nlocal-steps = [4, 4]", "compare.local-steps = [4, 4]"),
    "a range without draws": ("[tune]\ncodasca.lr = {low = 0.1, high = 1}", "tune.codasca.lr", "draws"),
    "a search that is none": ('search = "grd"\n[tune]\ncodasca.lr = [0.1, 1.0]', "'grd'", "'grid'?"),
    "a model without draws": ('search = "tpe"\n[tune]\ncodasca.lr = [0.1, 1.0]', '"tpe"', "draws"),
    "draws of a grid": ('search = "grid"\ndraws = 3\n[tune]\ncodasca.lr = [0.1, 1.0]', '"grid"', "draws = 3"),
    "a range downwards": ("draws = 3\n[tune]\ncodasca.lr = {low = 1, high = 0.1}", "tune.codasca.lr", "low", "high"),
    "a table that no run has": ("[tune]\nfedavg.lr = [0.1, 1]", "tune.fedavg.lr", "codasca"),
    "seeds that choose and count": ("seeds = [100, 1]", "tuning-seed = 100"),
    "seeds twice": ("seeds = [1, 1]", "seeds = [1, 1]"),
    "a seed to compare": ("[compare]\nseed = [1, 2]", "compare.seed"),
    "an algorithm to tune": ('[tune]\nalgorithm = ["coda"]', "tune.algorithm", "[compare]"),
    "the machine": ("[tune]\nworkers = [1, 2]", "tune.workers"),
    "the test set": ('select = "central.auroc"', "'central.auroc'", "'pooled.auroc'?"),
    "a metric that no run has": (
        'select = "pooled.accuracy"\n[base]\nproblem = "bce"',
        "'pooled.accuracy'",
        "'bce'",
    ),
    "a metric that one of two lacks": (
        'select = "pooled.auroc"\n[[compare]]\nproblem = "bce"\n[[compare]]\nproblem = "fair"',
        "'pooled.auroc'",
        "'fair'",
        "pooled.loss",
    ),
    "a number of all sites that is not summed up": (
        'select = "over-sites.clean-loss.mean"\n[base]\nproblem = "robust"',
        "'over-sites.clean-loss.mean'",
        "'robust'",
    ),
    "a seed of the base": ("[base]\nseed = 0", "base.seed = 0"),
    "a fold of the base": ("[base]\nfolds = 3\nfold = 1", "base.fold = 1"),
    "the machine of the base": ("[base]\nworkers = 2", "base.workers = 2"),
    "folds to compare": ("[compare]\nfolds = [2, 3]", "compare.folds", "[base]"),
    "a metric that is none": ('select = "pooled.aurok"', "'pooled.aurok'", "'pooled.auroc'?"),
    "a key twice": ("[compare]\nlocal-steps = [1]\n[tune]\nlocal-steps = [2]", "local-steps", "[compare]", "[tune]"),
    "no table": ("base = 3", "base = 3"),
    "no base": ('base = "none.toml"', "base = 'none.toml'", "small.toml"),
    "too many points": (f"[tune]\nhidden = {[*range(1, 10002)]}", "[tune]", "10,001", "10,000;"),
    "rounds that are tuned": ("halving = 3\n[tune]\nrounds = [2, 9]", "tune.rounds", "halving"),
    "a number": ("halving = 1", "halving = 1"),
    "folds that are none": ('[base]\nfolds = "x"', "base.folds = 'x'"),
    "rounds that are none": ('halving = 3\n[base]\nrounds = "x"\n[tune]\nhidden = [1, 2]', "rounds = 'x': "),
    "a date": ("[base]\nhidden = 1979-05-27\n[tune]\nbatch-size = [1, 2]", "hidden = datetime.date"),
    "a refused value": ("[base]\nrounds = 0", "rounds = 0: "),
    "a refused point": ("[tune]\ncodasca.lr = [0.1, -1]", "codasca.lr = -1"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_gets_one_line_before_anything_starts(
    file: Path, mistake: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, *names = WRONG[mistake]
    file.write_text(text)
    monkeypatch.chdir(file.parent)
    assert main(["sweep", str(file), "--jobs", "1"]) == 2
    problems = capsys.readouterr().err.splitlines()
    assert len(problems) == 2, "a title, and one problem"
    assert lines_with(problems[1], *names)
    assert not (file.parent / "runs").exists()


BASES = {
    "saddle": {"problem": "saddle", "algorithm": "local-sgda"},
    "one label": {"dataset": "digits", "positive-classes": "3", "negative-classes": "8"},
    "own models": {"dataset": "digits", "positive-classes": "3", "negative-classes": "8", "algorithm": "fedrep"},
    "classes": {"dataset": "digits", "problem": "robust", "algorithm": "local-sgda", "thin-share": 0.0},
}


@pytest.mark.parametrize("name", BASES)
def test_metrics_that_a_run_has_are_known_before_it_and_others_refused(name: str, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"sites": 2, "rounds": 1, "local-steps": 1, "workers": 1, "runs-dir": str(tmp_path)}
    keys |= BASES[name]
    run, there = RunConfig.parse(keys), paths(simulate(keys).metrics[-1])
    require_metrics([run], there)
    with pytest.raises(ConfigError, check=has("--metric", "'pooled.aurok'")):
        require_metrics([run], [there[0], "pooled.aurok"])
    if name == "own models":
        with pytest.raises(ConfigError, check=has("central.auroc")):
            require_metrics([run], ["central.auroc"])
    if name == "saddle":
        with pytest.raises(ConfigError, check=has("'auroc'")):
            require_metrics([run], ["auroc"])


def test_a_metric_that_there_will_not_be_is_told_before_anything_starts(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    assert main(["sweep", str(file), "--jobs", "1", "--metric", "distance-z"]) == 2
    assert lines_with(capsys.readouterr().err, "--metric", "'distance-z'", " 'distance-")
    assert not (file.parent / "runs").exists()


def test_all_mistakes_are_told_at_once(file: Path) -> None:
    file.write_text("seeds = []\n[tune]\ncodasca.lrr = [1]\n[base]\nround = 3\n")
    with pytest.raises(ConfigError) as told:
        read(file)
    assert len(told.value.problems) == 3
    file.write_text("[base]\nrounds = 0\nhidden = 0\n[tune]\ncodasca.lr = [-1, 0.1, -2]\n")
    with pytest.raises(ConfigError) as told:
        Sweep(read(file)[0], file.parent).check()
    assert len(told.value.problems) == 4


# ---------------------------------------------------------------------- a search by a model


def modelled(file: Path, draws: int, name: str = "runs") -> Sweep[Study]:
    text = "[tune]\ncodasca.lr = {low = 1e-4, high = 1.0}\ncodasca.server-lr = [0.9, 1.0]\n"
    file.write_text(f'search = "tpe"\ndraws = {draws}\n[base]\nrounds = 1\n{text}')
    return Sweep(read(file)[0], file.parent / name)


def searched(sweep: Sweep[Study], order: int = 1) -> list[dict[str, Any]]:
    """Do all runs of a search whose best step size is 0.01, each batch in this order; return its points."""
    (method,) = sweep.study.methods
    while missing := [job for job in sweep.tuning(method) if sweep.outcome(job) is None]:
        for job in {job.name: job for job in missing[::order]}.values():
            pretend(sweep, job, 1 - abs(math.log10(float(job.point["codasca.lr"])) + 2) / 4)
    return [dict(job.point) for job in sweep.tuning(method)]


def test_a_model_draws_where_the_best_is_and_the_same_in_whatever_order_runs_end(file: Path) -> None:
    points = searched(modelled(file, 30))
    assert len(points) == 30
    off = [abs(math.log10(point["codasca.lr"]) + 2) for point in points]
    assert sum(off[-10:]) / 10 < 0.6 * sum(off[:10]) / 10, "the last points lie nearer to the best than the random ones"
    assert points == searched(modelled(file, 30, "backwards"), order=-1)
    assert points[:12] == searched(modelled(file, 12, "fewer")), "more draws only add some"


def test_a_search_that_is_taken_up_again_from_its_run_folders_is_where_it_was(file: Path) -> None:
    first = modelled(file, 16)
    points = searched(first)
    again = Sweep(first.study, first.folder)
    assert [dict(job.point) for job in again.tuning(again.study.methods[0])] == points
    assert again.choose(again.study.methods[0]) == first.choose(first.study.methods[0])


# ---------------------------------------------------------------------- runs that are stopped early


def halved(file: Path, values: list[float], rounds: int = 18, share: int = 3) -> tuple[Sweep[Study], list[Job]]:
    """Return a sweep of one method with a point for each value, which is its metric at any time."""
    steps = [round(0.01 * (place + 1), 2) for place in range(len(values))]
    file.write_text(f"grow = 0\nhalving = {share}\n[base]\nrounds = {rounds}\n[tune]\ncodasca.lr = {steps}\n")
    sweep = Sweep(read(file)[0], file.parent / "runs")
    return sweep, sweep.tuning(sweep.study.methods[0])


def pretend(sweep: Sweep[Study], job: Job, value: float | None, diverged: str = "", name: str = "auroc") -> None:
    """Leave a run that came to where its job ends."""
    folder, rounds = sweep.folder / job.name, job.until or int(job.settings["rounds"])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.jsonl").open("a+") as file:
        file.seek(0)
        for r in range(len(file.readlines()) + 1, rounds + 1):
            file.write(json.dumps({"round": r, **COST, "pooled": {name: value}}) + "\n")
    (folder / "config.toml").write_text(RunConfig.parse(job.settings).to_toml())
    end = OUTCOME if diverged or not job.until else PAUSE
    (folder / end).write_text(json.dumps({"diverged": diverged, "seconds": 1.0, "version": "1"}))


@pytest.mark.slow
def test_of_nine_points_three_go_on_and_of_these_one(file: Path) -> None:
    values = [0.5, 0.9, 0.6, 0.8, 0.7, 0.4, 0.3, 0.2, 0.1]
    sweep, jobs = halved(file, values)
    (method,) = sweep.study.methods
    assert {job.until for job in jobs} == {2}
    for place in (8, 1, 4, 0, 2, 3, 7, 6):  # in whatever order they end
        pretend(sweep, jobs[place], values[place])
        assert {job.until for job in sweep.tuning(method)} == {2}, "before all are there none goes on"
    pretend(sweep, jobs[5], values[5])
    jobs = sweep.tuning(method)
    assert [job.until for job in jobs] == [2, 6, 2, 6, 6, 2, 2, 2, 2]
    for place in (4, 3):
        pretend(sweep, jobs[place], values[place])
    pretend(sweep, jobs[1], 0.75)  # it is no longer ahead
    jobs = sweep.tuning(method)
    assert [job.until for job in jobs] == [2, 6, 2, 0, 6, 2, 2, 2, 2]
    assert sweep.choose(method) is None
    pretend(sweep, jobs[3], 0.1)
    assert sweep.choose(method) == jobs[3].point, "only a run to the end can be chosen"


@pytest.mark.parametrize("share", [2, 3])
@pytest.mark.parametrize("rounds", [1, 2, 4, 7, 8, 9, 18, 100])
def test_runs_are_looked_at_first_as_early_as_leaves_two_looks(rounds: int, share: int, file: Path) -> None:
    """After a share's share of the rounds, in whole ones: of few rounds after the first, of a single one never."""
    [first] = {job.until for job in halved(file, [0.1, 0.2, 0.3], rounds, share)[1]}
    if rounds == 1:
        assert first == 0
    else:
        assert first == 1 or first * share**2 <= rounds
        assert (first + 1) * share**2 > rounds


def test_a_run_that_diverged_does_not_go_on_and_the_names_of_runs_do_not_depend_on_it(file: Path) -> None:
    sweep, jobs = halved(file, [0.1, 0.2, 0.3])
    pretend(sweep, jobs[2], 0.9, diverged="the run diverges")
    for job in jobs[:2]:
        pretend(sweep, job, 0.5)
    after = sweep.tuning(sweep.study.methods[0])
    assert [job.until for job in after] == [0, 2, 2]
    assert [job.name for job in after] == [job.name for job in jobs]


def test_a_loss_is_better_when_it_is_lower(file: Path) -> None:
    sweep, jobs = halved(file, [0.3, 0.1, 0.2])
    sweep = replace(sweep, study=replace(sweep.study, select="pooled.loss", halving=0))
    jobs = sweep.tuning(sweep.study.methods[0])
    for job, value in zip(jobs, (0.3, 0.1, 0.2), strict=True):
        pretend(sweep, job, value)
        path = sweep.folder / job.name / "metrics.jsonl"
        path.write_text(path.read_text().replace("auroc", "loss"))
    assert sweep.choose(sweep.study.methods[0]) == jobs[1].point
    assert sweep.chosen_by(sweep.study.methods[0]) == 0.1


@pytest.mark.parametrize(("name", "best"), [("auroc", "codasca"), ("loss", "coda")])
def test_the_winner_is_the_method_that_was_best_where_it_was_chosen(name: str, best: str, file: Path) -> None:
    reached = {"npa": (0.4, 0.6), "codasca": (0.9, 0.7), "coda": (0.3, 0.2)}
    axes = "\n".join(f"{method}.lr = [0.01, 0.1]" for method in reached)
    compared = "\n".join(f'[[compare]]\nalgorithm = "{method}"' for method in reached)
    file.write_text(f'grow = 0\nselect = "pooled.{name}"\n[base]\nrounds = 2\n{compared}\n[tune]\n{axes}\n')
    sweep = Sweep(read(file)[0], file.parent / "runs")
    assert winner(sweep) is None, "nothing is chosen before it has run"
    for method in sweep.study.methods:
        for job, value in zip(sweep.tuning(method), reached[method.label], strict=True):
            pretend(sweep, job, value, name=name)
    job = winner(sweep)
    assert job is not None
    assert job.method.label == best


@pytest.mark.parametrize("algorithm", ["sagda", "local-sgda"])
def test_a_run_that_was_paused_has_the_bits_of_one_that_was_not(tmp_path: Path, algorithm: str) -> None:
    job = {"problem": "saddle", "sites": 2, "rounds": 6, "local-steps": 2, "algorithm": algorithm, "evaluate-every": 2}
    folder = tmp_path / "paused"
    for until, rounds, end in ((2, 2, PAUSE), (4, 4, PAUSE), (0, 6, OUTCOME)):
        assert compute(job, folder, until) == ""
        assert len(lines(folder)) == rounds
        assert (folder / end).exists()
        assert not (folder / (OUTCOME if end == PAUSE else PAUSE)).exists()
    straight = simulate({**job, "workers": 1, "runs-dir": str(tmp_path), "run-name": "straight"}).folder
    assert lines(folder) == lines(straight)
    assert (folder / "model.safetensors").read_bytes()[-200:] == (straight / "model.safetensors").read_bytes()[-200:]


def test_a_paused_run_without_what_it_could_go_on_from_begins_anew_and_comes_to_the_same(tmp_path: Path) -> None:
    job = {"problem": "saddle", "sites": 2, "rounds": 4, "local-steps": 2, "algorithm": "sagda", "evaluate-every": 1}
    for name in ("whole", "forgotten"):
        compute(job, tmp_path / name, 2)
    (tmp_path / "forgotten" / "state.safetensors").unlink()
    for name in ("whole", "forgotten"):
        assert compute(job, tmp_path / name) == ""
    assert lines(tmp_path / "whole") == lines(tmp_path / "forgotten")


def test_a_run_that_was_killed_after_a_pause_is_done_anew(tmp_path: Path) -> None:
    job = {"problem": "saddle", "sites": 2, "rounds": 4, "local-steps": 2, "algorithm": "sagda", "evaluate-every": 1}
    folder = tmp_path / "run"
    compute(job, folder, 2)
    kept = lines(folder)
    (folder / PAUSE).unlink()  # as a run that goes on does first
    (folder / "metrics.jsonl").write_text('{"round": 1, "cen')
    assert compute(job, folder, 2) == ""
    assert lines(folder) == kept


# ---------------------------------------------------------------------- what it ends with


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize(
    ("chosen", "reached"),
    [((0.9, 0.8), (0.9, 0.8)), ((0.9, 0.8), (0.7, 0.8)), ((0.8, 0.9), (0.9, 0.8)), ((0.9, 0.9), (0.5, 0.5))],
)
def test_what_was_chosen_is_told_with_its_seed_and_never_called_better_than_the_table_has_it(
    file: Path, chosen: tuple[float, ...], reached: tuple[float, ...], lower: bool
) -> None:
    """Whatever the seed that chooses and those that are compared say of two algorithms."""
    name, sign = ("loss", -1) if lower else ("auroc", 1)
    lines = '[[compare]]\nalgorithm = "codasca"\n[[compare]]\nalgorithm = "local-sgda"\n'
    tune = "[tune]\ncodasca.lr = [0.01, 0.1, 1.0]\nlocal-sgda.lr = [0.02, 0.2, 2.0]\n"
    file.write_text(f'seeds = [5, 6]\ngrow = 0\nselect = "pooled.{name}"\n[base]\nrounds = 1\n{lines}{tune}')
    sweep = Sweep(read(file)[0], file.parent / "runs")
    for method, best in zip(sweep.study.methods, chosen, strict=True):
        for place, job in enumerate(sweep.tuning(method)):
            pretend(sweep, job, best - sign * 0.1 * (place != 1), name=name)
    for job in sweep.chosen():
        value = reached[[method.label for method in sweep.study.methods].index(job.method.label)]
        pretend(sweep, job, value + 0.01 * (job.repeat["seed"] == 6), name=name)
    told = finish(sweep, file.parent, [f"pooled.{name}"], []).markdown()
    heading, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in told.splitlines() if "|" in line)
    table = {row[0]: dict(zip(heading, row, strict=True)) for row in rows}
    assert [row["chosen"] for row in table.values()] == ["lr=0.1", "lr=0.2"], "the middle one"
    assert [float(row[f"pooled.{name}, seed 100"]) for row in table.values()] == list(chosen)
    column = next(each for each in heading if "held out" in each)
    means = {label: sign * float(row[column].split()[0]) for label, row in table.items()}
    (sentence,) = (line for line in told.splitlines() if line.startswith("winner.toml has "))
    winner = read_toml(file.parent / "winner.toml")["algorithm"]
    assert f"winner.toml has {winner}, lr=" in sentence
    assert "at seed 100" in sentence
    assert f"With seeds 5, 6 it reached {column} {table[winner][column]}" in sentence
    if means[winner] == max(means.values()):
        assert "not the best" not in sentence
    else:
        best_of_table = max(means, key=lambda label: means[label])
        assert f"not the best of the table: {best_of_table} reached {table[best_of_table][column]}" in sentence


def test_a_metric_that_is_defined_in_no_run_chooses_nothing_and_that_is_told(file: Path) -> None:
    file.write_text("seeds = [5]\ngrow = 0\n[base]\nrounds = 1\n[tune]\ncodasca.lr = [0.01, 0.1]\n")
    sweep = Sweep(read(file)[0], file.parent / "runs")
    for job in sweep.tuning(sweep.study.methods[0]):
        pretend(sweep, job, None)
    for job in sweep.chosen():
        pretend(sweep, job, 0.9)
    told = finish(sweep, file.parent, [], []).markdown()
    assert "not defined in any of these runs, and the smallest step size was taken: codasca" in told


@pytest.mark.slow
def test_the_counter_never_runs_backwards_and_compare_takes_what_a_sweep_left(
    file: Path, forked: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """With runs that were stopped early, and go on; a number with the seed that chose is in no table."""
    to = file.parent / "out"
    file.write_text("halving = 2\n" + FILE.replace("rounds = 4", "rounds = 8").replace("0.01, 0.1", "0.01, 0.03, 0.1"))
    assert main(["sweep", str(file), "--to", str(to), "--jobs", "1"]) == 0
    told = capsys.readouterr()
    counted = [(int(done), int(total)) for done, total in re.findall(r"^\[(\d+)/(\d+)\]", told.err, re.MULTILINE)]
    assert [done for done, _ in counted] == list(range(1, len(counted) + 1))
    assert all(done <= total for done, total in counted)
    assert counted[-1][0] == counted[-1][1]
    assert list(to.glob(f"runs/*/{PAUSE}"))
    assert main(["compare", str(to / "runs" / "*")]) == 0
    compared = capsys.readouterr().out
    assert "stopped early" in compared
    assert "by which their sweep chose" in compared

    def reached(text: str) -> dict[str, str]:
        lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line]
        return {line[0]: line[lines[0].index("‖x-x*‖²")] for line in lines[2:]}

    assert reached(compared) == reached(told.out)


# ---------------------------------------------------------------------- the command


@pytest.mark.slow
def test_a_sweep_ends_with_a_comparison_and_the_winner_and_goes_on_with_more_seeds(
    file: Path, forked: None, capsys: pytest.CaptureFixture[str]
) -> None:
    to = file.parent / "out"
    assert main(["sweep", str(file), "--to", str(to), "--jobs", "1"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"^\| local-sgda \| lr=0\.1, lr-dual=0\.1 \| \S+ \| 2 \|", told, re.MULTILINE)
    assert re.search(r"^\| sagda \| lr=0\.1, lr-dual=0\.1 \| \S+ \| 2 \|", told, re.MULTILINE)
    files = {"choice.csv", "curves-rounds.pdf", "curves-rounds.png", "runs", "runs.csv", "sweep.toml", "table.md"}
    assert {path.name for path in to.iterdir()} == files | {"table.tex", "winner.toml"}
    written = flatten(read_toml(to / "winner.toml"))
    assert written["seed"] == 0
    assert written[f"{written['algorithm']}.lr"] == 0.1, "0.01 has hardly begun to move"
    best = RunConfig.parse(written)
    assert (best.rounds, best.options["heterogeneity"]) == (4, 1.0)
    kept = {path: path.stat().st_mtime_ns for path in to.glob(f"runs/*/{OUTCOME}")}
    assert len(kept) == 2 * 2 + 2 * 2
    file.write_text(FILE.replace("seeds = [0, 1]", "seeds = [0, 1, 2]"))
    assert main(["sweep", str(file), "--to", str(to), "--jobs", "1"]) == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert len(list(to.glob(f"runs/*/{OUTCOME}"))) == len(kept) + 2
    assert re.search(r"^\| sagda \|.*\| 3 \|", capsys.readouterr().out, re.MULTILINE)
    # Another file has no business there, nor has a sweep beside other things.
    file.write_text(FILE.replace("rounds = 4", "rounds = 5"))
    assert main(["sweep", str(file), "--to", str(to), "--jobs", "1"]) == 2
    assert lines_with(capsys.readouterr().err, "base", "--to")
    file.write_text(FILE.replace("seeds = [0, 1]", "seeds = [0, 1, 2]"))
    with owned(to):
        assert main(["sweep", str(file), "--to", str(to), "--jobs", "1"]) == 2
    assert main(["sweep", str(file), "--to", str(file.parent), "--jobs", "1"]) == 2
    assert lines_with(capsys.readouterr().err, "--to", file.parent)


LONGER = "halving = 2\n" + FILE.replace("rounds = 4", "rounds = 8").replace("0.01, 0.1", "0.01, 0.03, 0.1")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that nobody killed."""
    file = tmp_path_factory.mktemp("undisturbed") / "small.toml"
    file.write_text(LONGER)
    done = forks.python(["-m", "edelweiss", "sweep", str(file), "--to", str(file.parent / "one"), "--jobs", "1"], REPO)
    assert done.returncode == 0, done.stderr
    return file.parent / "one"


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [False, True])
def test_a_script_without_a_guard_is_told_so(guarded: bool, tmp_path: Path) -> None:
    study: dict[str, Any] = {
        "base": {"algorithm": "local-sgda", "problem": "saddle", "sites": 2, "rounds": 1},
        "seeds": [0],
    }
    study["select"] = "central.distance-x"
    call = f"ew.sweep({study}, to={str(tmp_path / 'sweep')!r}, jobs=1)"
    script = tmp_path / "script.py"
    guard = "if __name__ == '__main__': "
    script.write_text(f"import edelweiss as ew\n{guard if guarded else ''}{call}\n")
    place = os.environ | {"PYTHONPATH": str(REPO)}
    done = subprocess.run([sys.executable, script], env=place, capture_output=True, text=True, timeout=600)
    assert done.returncode == (0 if guarded else 1), done.stderr
    assert done.stderr.count("Traceback") == (0 if guarded else 1)  # none of a worker's
    assert ("if __name__ == '__main__'" in done.stderr) is not guarded
    assert "memory" not in done.stderr


@pytest.mark.deployments
@pytest.mark.parametrize("arguments", [["--jobs", "2"], ["--jobs", "2", "--engine", "ray"]], ids=["processes", "ray"])
def test_a_sweep_that_is_killed_goes_on_and_ends_like_any_other(
    file: Path, undisturbed: Path, arguments: list[str]
) -> None:
    file.write_text(LONGER)
    killed = file.parent / "killed"
    command = ["-m", "edelweiss", "sweep", str(file), "--to", str(killed), *arguments]
    with forks.begun(command, REPO) as process:
        deadline = time.monotonic() + 600
        while len(list(killed.glob("runs/*/*.json"))) < 8 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.ended().returncode == -signal.SIGKILL
    kept = {path: path.stat().st_mtime_ns for path in killed.glob(f"runs/*/{OUTCOME}")}
    done = forks.python(command, REPO)
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert {path.name: lines(path) for path in (killed / "runs").iterdir()} == {
        path.name: lines(path) for path in (undisturbed / "runs").iterdir()
    }
    assert (killed / "choice.csv").read_text() == (undisturbed / "choice.csv").read_text()
    assert (killed / "winner.toml").read_text() == (undisturbed / "winner.toml").read_text()
