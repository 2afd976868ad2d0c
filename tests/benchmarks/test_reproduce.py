"""The sweep around a study: it runs what is missing, reads what is there, and chooses without the test set."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import reproduce
from benchmarks.reproduce import OUTCOME, Job, Sweep, compute
from benchmarks.studies import REPO, STUDIES, Study, method
from benchmarks.tables import gather, markdown, write

TOML = """
dataset = "digits"
partition = "iid"
sites = 2
rounds = 4
local-steps = 2
evaluate-every = 1
hidden = 4

[local-sgda]
lr = 0.5
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Two methods, two step sizes, two seeds; on data that need no download."""
    (tmp_path / "small.toml").write_text(TOML, encoding="utf-8")
    return Study(
        name="small",
        title="small",
        experiment=tmp_path / "small.toml",
        methods=(
            method("fedavg", 0.1, 0.01, settings={"problem": "bce"}),
            method("codasca", 0.1, 0.01),
        ),
        report={"central.auroc": "AUROC"},
        compare={"local-steps": (2, 4)},
        repeat={"seed": (0, 1)},
        reference="fedavg",
    )


@pytest.fixture
def sweep(study: Study, tmp_path: Path) -> Sweep:
    return Sweep(study, False, tmp_path / "runs")


def runs(sweep: Sweep) -> list[Job]:
    jobs = [job for m in sweep.study.methods for job in sweep.tuning(m)]
    return jobs + [job for m in sweep.study.methods for job in sweep.reported(m, sweep.grid(m)[0])]


def pretend(sweep: Sweep, job: Job, *, held_out: float, test: float = 0.5, diverged: str = "") -> None:
    """Leave behind what a run leaves behind."""
    folder = sweep.folder / job.name
    folder.mkdir(parents=True)
    cost = {"bytes-down": 3e6, "bytes-up": 1e6, "gradients": 8.0, "samples": 160.0}
    line = {"round": 1, **cost, "pooled": {"auroc": held_out}, "central": {"auroc": test}}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    (folder / "config.toml").write_text(reproduce.parsed(job.settings).to_toml())
    (folder / OUTCOME).write_text(json.dumps({"diverged": diverged, "seconds": 1.0, "version": "1"}))


def test_the_table_of_another_algorithm_is_no_part_of_a_run(sweep: Sweep) -> None:
    for job in runs(sweep):
        assert {key for key in job.settings if "." in key} == {f"{job.method.algorithm}.lr"}


def test_runs_have_names_of_their_own_that_do_not_change(sweep: Sweep) -> None:
    names = [job.name for job in runs(sweep)]
    assert len(set(names)) == len(names) == 2 * 2 + 2 * 4
    assert names == [job.name for job in runs(sweep)]
    # A path or the number of processes makes no other run.
    elsewhere = replace(sweep, changes={"data-root": "/elsewhere", "workers": 2})
    assert names == [job.name for job in runs(elsewhere)]
    assert not set(names) & {job.name for job in runs(replace(sweep, changes={"hidden": 5}))}


def test_the_choice_is_the_best_on_the_held_out_samples(sweep: Sweep) -> None:
    fedavg = sweep.study.methods[0]
    first, second = sweep.tuning(fedavg)
    assert sweep.choose(fedavg) is None
    pretend(sweep, first, held_out=0.6, test=0.9)
    assert sweep.choose(fedavg) is None
    pretend(sweep, second, held_out=0.7, test=0.1)
    assert sweep.choose(fedavg) == {"fedavg.lr": 0.01}


@pytest.mark.parametrize("failure", [{"diverged": "the run diverges"}, {"held_out": None}])
def test_a_run_that_diverged_or_has_no_value_is_not_chosen(sweep: Sweep, failure: dict[str, Any]) -> None:
    fedavg = sweep.study.methods[0]
    first, second = sweep.tuning(fedavg)
    pretend(sweep, first, **{"held_out": 0.99} | failure)
    pretend(sweep, second, held_out=0.6)
    assert sweep.choose(fedavg) == {"fedavg.lr": 0.01}


def test_equal_points_go_to_the_first(sweep: Sweep) -> None:
    fedavg = sweep.study.methods[0]
    for job in sweep.tuning(fedavg):
        pretend(sweep, job, held_out=0.6)
    assert sweep.choose(fedavg) == {"fedavg.lr": 0.1}


def test_a_default_that_changed_makes_it_another_run(sweep: Sweep) -> None:
    job = runs(sweep)[0]
    pretend(sweep, job, held_out=0.6)
    config = sweep.folder / job.name / "config.toml"
    text = config.read_text()
    assert sweep.outcome(job) is not None
    config.write_text("a-key-of-another-version = 1\n" + text)
    assert sweep.outcome(job) is not None
    config.write_text(text.replace("batch-size = 16", "batch-size = 17"))
    assert sweep.outcome(job) is None


def test_a_run_that_diverged_is_a_result(sweep: Sweep) -> None:
    job = sweep.tuning(sweep.study.methods[0])[0]
    settings = {**job.settings, "fedavg.lr": 1e30}
    assert compute(settings, sweep.folder / job.name) == ""
    outcome = sweep.outcome(replace(job, settings=settings))
    assert outcome is None or outcome.diverged  # under the name of other settings
    assert json.loads((sweep.folder / job.name / OUTCOME).read_text())["diverged"]


def test_a_run_that_cannot_be_done_says_why_and_is_no_result(sweep: Sweep) -> None:
    job = sweep.tuning(sweep.study.methods[0])[0]
    wrong = compute({**job.settings, "dataset": "heart-disease", "data-root": "/nowhere"}, sweep.folder / job.name)
    assert "heart" in wrong
    assert sweep.outcome(job) is None


def test_columns_at_equal_cost(sweep: Sweep) -> None:
    fedavg, codasca = sweep.study.methods
    for each in (fedavg, codasca):
        for job in sweep.tuning(each):
            pretend(sweep, job, held_out=0.6)
        for job in sweep.reported(each, sweep.grid(each)[0]):
            folder = sweep.folder / job.name
            pretend(sweep, job, held_out=0.6)
            moved = 1e6 if each is fedavg else 2e6
            lines = [
                {
                    "round": r,
                    "bytes-down": moved,
                    "bytes-up": 0,
                    "gradients": 4,
                    "samples": 64,
                    "central": {"auroc": r / 10},
                }
                for r in (1, 2, 3, 4)
            ]
            (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    row = next(iter(gather(sweep).values()))[1]
    # Two sites: 2 MB per site for FedAvg in all, and CODASCA spends 1 MB a round.
    assert row.spent("megabytes") == pytest.approx(4.0)
    assert row.within("central.auroc", "megabytes", 2.0) == pytest.approx(0.2)
    assert row.within("central.auroc", "samples", 128.0) == pytest.approx(0.4)
    assert row.within("central.auroc", "megabytes", 0.5) is None
    line = next(line for line in markdown(sweep, gather(sweep)).splitlines() if line.startswith("| codasca"))
    assert line == "| codasca | 0.1 | 0.4000 ± 0.0000 | 8 | 128 | 4 | 0.4000 | 0.2000 |"
    for target, cell in ((0.25, "3"), (0.5, "not in 2 of 2 runs")):
        aimed = replace(sweep, study=replace(sweep.study, target=target))
        lines = markdown(aimed, gather(aimed)).splitlines()
        assert any(f" | rounds to AUROC {target} | " in line for line in lines)
        assert next(line for line in lines if line.startswith("| codasca | 0.1 |")).split(" | ")[3] == cell


def test_workers_that_each_have_a_part_of_the_test_set_do_not_choose_by_it(sweep: Sweep, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text("personal-test = true\n" + TOML, encoding="utf-8")
    for each in sweep.study.methods:
        assert not any(reproduce.parsed(job.settings).personal_test for job in sweep.tuning(each))
        assert all(reproduce.parsed(job.settings).personal_test for job in sweep.reported(each, {}))


def test_missing_and_diverged_runs_are_named(sweep: Sweep) -> None:
    fedavg, codasca = sweep.study.methods
    for job in (*sweep.tuning(fedavg), *sweep.tuning(codasca)):
        pretend(sweep, job, held_out=0.6, diverged="the run diverges" if job.method is codasca else "")
    first, second = [job for job in sweep.reported(fedavg, sweep.grid(fedavg)[0]) if job.cell["local-steps"] == 2]
    pretend(sweep, first, held_out=0.6, test=0.75)
    text = markdown(sweep, gather(sweep))
    assert "| fedavg (1 of 2 runs missing) | 0.1 | 0.7500 |" in text
    assert "| codasca | every point of the grid diverged | diverged |" in text
    assert "| fedavg |  | not run |" in text  # with the other number of local steps
    pretend(sweep, second, held_out=0.6, diverged="the run diverges")
    assert "| fedavg (1 of 2 runs diverged) | 0.1 | 0.7500 |" in markdown(sweep, gather(sweep))


def test_several_keys_make_one_table_with_a_row_per_value_and_method(sweep: Sweep) -> None:
    keys = {"local-steps": (2, 4), "concentration": (0.5, 1.0, 2.0)}
    sweep = replace(sweep, study=replace(sweep.study, compare=keys))
    fedavg, codasca = sweep.study.methods
    for each in (fedavg, codasca):
        for job in sweep.tuning(each):
            pretend(sweep, job, held_out=0.6)
        for job in sweep.reported(each, sweep.grid(each)[0]):
            # The reference has no run in one cell.
            if each is codasca or job.cell != {"local-steps": 4, "concentration": 2.0}:
                test = job.cell["local-steps"] / 10 + job.cell["concentration"] / 100 + (each is codasca) / 5  # type: ignore[operator]
                pretend(sweep, job, held_out=0.6, test=test)
    lines = [line for line in markdown(sweep, gather(sweep)).splitlines() if line.startswith("|")]
    assert lines[0].startswith("| local-steps | concentration | method | step sizes | AUROC |")
    assert len(lines) == 2 + 2 * 3 * 2
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| 2 | 0.5 | fedavg | 0.1 | 0.2050 ± 0.0000 |")
    assert lines[3].startswith("| 2 | 0.5 | codasca | 0.1 | 0.4050 ± 0.0000 |")
    assert lines[3].endswith("| 0.4050 | 0.4050 |")
    assert lines[-2].startswith("| 4 | 2 | fedavg |  | not run |")
    assert lines[-1].startswith("| 4 | 2 | codasca | 0.1 | 0.6200 ± 0.0000 |")
    assert lines[-1].endswith("| – | – |"), "nothing to compare with"


def test_a_picture_of_two_keys_has_a_line_of_panels_per_value_of_the_first(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    keys = {"local-steps": (2, 4), "concentration": (0.5, 1.0, 2.0)}
    sweep = replace(sweep, study=replace(sweep.study, compare=keys))
    for each in sweep.study.methods:
        for job in (*sweep.tuning(each), *sweep.reported(each, sweep.grid(each)[0])):
            pretend(sweep, job, held_out=0.6)
    figures: list[Figure] = []
    save = Figure.savefig

    def noting(figure: Figure, *arguments: Any, **keys: Any) -> None:
        figures.append(figure)
        save(figure, *arguments, **keys)

    monkeypatch.setattr(Figure, "savefig", noting)
    write(sweep, tmp_path / "results")
    [figure] = figures
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [f"local-steps={q}, concentration={c}" for q in (2, 4) for c in ("0.5", "1", "2")]
    assert {(spec.rowspan.start, spec.colspan.start) for axes in figure.axes if (spec := axes.get_subplotspec())} == {
        (line, column) for line in (0, 1) for column in (0, 1, 2)
    }


@pytest.mark.slow
def test_a_sweep_runs_once_whatever_the_number_of_processes(sweep: Sweep, tmp_path: Path) -> None:
    one_method = replace(sweep.study, methods=sweep.study.methods[:1], compare={})
    sweep = replace(sweep, study=one_method)
    reproduce.run(sweep, 2, "")
    text = write(sweep, tmp_path / "results")
    assert {path.name for path in (tmp_path / "results").iterdir()} == {"small.csv", "small.md", "small.png"}
    assert (tmp_path / "results" / "small.png").stat().st_size < 200_000
    rows = (tmp_path / "results" / "small.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 + 2
    kept = {path: path.stat().st_mtime_ns for path in sweep.folder.glob(f"*/{OUTCOME}")}
    # One was cut off: it alone is run again.
    lost = min(kept)
    lost.unlink()
    reproduce.run(sweep, 1, "")
    again = {path: path.stat().st_mtime_ns for path in sweep.folder.glob(f"*/{OUTCOME}")}
    assert {path for path in kept if again[path] != kept[path]} == {lost}
    assert len(list(sweep.folder.iterdir())) == len(kept)
    one = replace(sweep, folder=tmp_path / "one")
    reproduce.run(one, 1, "")
    assert write(one, tmp_path / "other") == text
    assert (tmp_path / "other" / "small.csv").read_text().splitlines() == rows


@pytest.mark.slow
def test_ctrl_c_keeps_finished_runs_and_leaves_nothing_behind(tmp_path: Path) -> None:
    before = in_shared_memory()
    command = [sys.executable, "-m", "benchmarks.reproduce", "saddle", "--jobs", "2", "--set", "rounds=40"]
    command += ["--runs-dir", str(tmp_path / "runs"), "--results-dir", str(tmp_path / "results")]
    process = subprocess.Popen(command, cwd=REPO, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: len(list(tmp_path.glob(f"runs/saddle/*/{OUTCOME}"))) >= 2)
    assert process.poll() is None
    finished, theirs = list(tmp_path.glob(f"runs/saddle/*/{OUTCOME}")), in_shared_memory() - before
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert errors.splitlines()[-1].startswith("interrupted; finished runs are kept")
    assert all(path.exists() for path in finished)
    assert not (tmp_path / "results").exists()
    wait_until(lambda: not alive(process.pid))
    wait_until(lambda: not theirs & in_shared_memory())


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def in_shared_memory() -> set[Path]:
    """Folders of runs in the local engine, anybody's."""
    return set(Path("/dev/shm").glob("edelweiss-*"))


def alive(group: int) -> set[int]:
    """Processes of a group that have not ended; one that nobody has asked about since is a zombie, and has."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it has just ended
            continue
        if int(pgrp) == group and state != "Z":
            found.add(int(path.parent.name))
    return found


def test_published_tables_are_not_replaced_by_a_trial(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        reproduce.main(["saddle", "--set", "rounds=2"])
    assert stop.value.code == 2
    assert "--results-dir" in capsys.readouterr().err


def test_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(STUDIES)
