"""A run that was stopped goes on: the same bits as one that was not, and one clear line where it cannot."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from edelweiss.client_app.memory import positions
from edelweiss.common import Value, with_resumed
from edelweiss.config import RunConfig
from edelweiss.federation import Checkpoints, RunError
from edelweiss.federation.rounds import Rounds
from edelweiss.lab.cli import main
from edelweiss.models.storage import StoredTensors
from edelweiss.problems import PROBLEMS
from edelweiss.server_app import run_state, simulate
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import Result, coordinate
from edelweiss.server_app.local import LocalGrid, unused_run_id
from edelweiss.server_app.recorder import Recorder
from edelweiss.server_app.run_folder import RunFolder
from edelweiss.server_app.run_notes import ACTS, WARNINGS
from edelweiss.strategies import ALGORITHMS, can_solve
from tests.fitting import fitting
from tests.said import has, lines
from tests.server_app.sites import Elsewhere, images, job, run_at, saddle_job, site_job, write_table
from tests.server_app.sites import table as samples

pytestmark = pytest.mark.usefixtures("public_batches")

FEW_SHOTS = {"maml.ways": 2, "maml.queries": 2, "maml.test-tasks": 1, "batch-size": 5}
QUICK = ("codasca", "d-psgd", "fednest", "local-scgd", "fgda")  # memory, neighbours, phases, conditional, estimators


class StopError(Exception):
    """What ends a run here: as Ctrl-C, or a fault that nobody foresaw."""


def stop_at(when: tuple[str, int], patch: pytest.MonkeyPatch) -> None:
    """Stop the next run: after a round was trained, before it is noted, or when its messages have been answered."""
    kind, due = when
    trained, push = Recorder.trained, LocalGrid.push_messages

    def after(report: Recorder, server_round: int, *rest: Any) -> None:
        trained(report, server_round, *rest)
        if kind == "trained" and server_round == due:
            raise StopError

    def once_answered(grid: LocalGrid, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        found = messages[0].content.config_records["config"].get("round"), messages[0].metadata.message_type
        if found == (due, kind):
            patch.undo()  # so that the sites do their work: the coordinator does not hear of it
            grid.send_and_receive(messages)
            raise StopError
        return push(grid, messages)

    patch.setattr(Recorder, "trained", after)
    patch.setattr(LocalGrid, "push_messages", once_answered)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Value], tuple[str, int]], Path]:
    """Stop a run, and return its folder."""

    def at(keys: dict[str, Value], when: tuple[str, int], share: float = math.inf) -> Path:
        with monkeypatch.context() as patch:
            patch.setattr(run_state, "SHARE", share)
            stop_at(when, patch)
            with pytest.raises(StopError):
                simulate(keys | {"run-name": "stopped"})
        return Path(str(keys["runs-dir"])) / "stopped"

    return at


def untimed(text: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in json.loads(line).items() if "seconds" not in k} for line in text.splitlines()]


def assert_same(quiet: Result, resumed: Result, *more: str) -> None:
    """Compare models, lines and files, of which the resumed run has some more."""
    assert {*resumed.arrays} == {*quiet.arrays}
    assert all(np.array_equal(resumed.arrays[name], vector) for name, vector in quiet.arrays.items())
    lines = [untimed((result.folder / "metrics.jsonl").read_text()) for result in (quiet, resumed)]
    assert lines[0] == lines[1]
    assert [record["round"] for record in resumed.metrics] == [record["round"] for record in quiet.metrics]
    names = [{path.name for path in result.folder.iterdir()} for result in (quiet, resumed)]
    assert names[1] == names[0] | {ACTS, *more}
    model = [result.folder / "model.safetensors" for result in (quiet, resumed)]
    assert model[0].exists() == model[1].exists()
    assert not model[0].exists() or model[0].read_bytes() == model[1].read_bytes()


# ---------------------------------------------------------------------- the same bits


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in ALGORITHMS])
def test_every_algorithm_goes_on_with_the_same_bits(name: str, tmp_path: Path, stopped: Any) -> None:
    fit = [problem for problem in PROBLEMS if can_solve(ALGORITHMS[name], PROBLEMS[problem])]
    keys = saddle_job(tmp_path) if "saddle" in fit else job(tmp_path, problem=fit[0], rounds=4, **FEW_SHOTS)
    keys = {key: value for key, value in keys.items() if not key.startswith("local-sgda")}
    keys |= {"algorithm": name, "state-dir": str(tmp_path / "state")} | ({"min-replies": 3} if name == "cdma" else {})
    keys |= ({"local-steps": 1} if name == "npa" else {}) | fitting(name)
    quiet = simulate(keys)
    folder = stopped(keys, ("trained", 3))
    assert_same(quiet, simulate({"resume": str(folder)}))


@pytest.mark.parametrize("when", [("train", 3), ("evaluate", 4)])
def test_in_the_midst_of_a_round_and_when_all_rounds_are_over(
    tmp_path: Path, stopped: Any, when: tuple[str, int]
) -> None:
    keys = saddle_job(tmp_path, algorithm="codasca")
    keys = {key: value for key, value in keys.items() if not key.startswith("local-sgda")}
    quiet, folder = simulate(keys), stopped(keys, when)
    assert StoredTensors.read(folder / "state.safetensors").facts["round"] == (2 if when[0] == "train" else 4)
    assert_same(quiet, simulate({"resume": str(folder)}))


@pytest.mark.usefixtures("small_resnet")
def test_a_run_that_was_given_a_model_goes_on_with_y_and_buffers_of_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: dict[str, Value] = {"model": "resnet18", "sites": 2, "local_steps": 1, "batch_size": 4, "standardise": False}
    nodes = [images(tmp_path, site, 100) for site in range(2)]
    first = run_at(site_job(tmp_path, run_name="first", **keys), nodes)
    config = site_job(tmp_path, init_from=str(first.folder), rounds=3, **keys)
    begun: list[dict[str, Any]] = []
    begin = Rounds.__post_init__

    def noted(rounds: Rounds) -> None:
        begun.append(dict(rounds.start))
        begin(rounds)

    monkeypatch.setattr(Rounds, "__post_init__", noted)
    quiet = run_at(config, nodes)
    with monkeypatch.context() as patch:
        stop_at(("train", 3), patch)
        patch.setattr(run_state, "SHARE", math.inf)
        with pytest.raises(StopError):
            run_at(config.model_copy(update={"run_name": "stopped"}), nodes)
    again = RunConfig.parse(with_resumed({"resume": f"{config.runs_dir}/stopped"}))
    assert_same(quiet, run_at(again, nodes))
    assert len(begun) == 3
    for name in ("y", "buffers"):
        assert all(np.array_equal(each[name], first.arrays[name]) for each in begun)
        assert np.any(first.arrays[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "share", "when"),
    [(1, 0.0, when) for when in (("train", 1), ("train", 2), ("train", 4), ("trained", 4), ("evaluate", 4))]
    + [(2, math.inf, when) for when in (("train", 2), ("trained", 4), ("evaluate", 4))],
)
def test_wherever_it_was_stopped(
    tmp_path: Path, stopped: Any, when: tuple[str, int], workers: int, share: float
) -> None:
    """Whether each round has been written, or none before the stop: in the midst of a round sites are ahead of it."""
    keys = saddle_job(tmp_path, algorithm="codasca") | {"local-steps": 2, "workers": workers, "fraction": 0.75}
    keys = {key: value for key, value in keys.items() if not key.startswith("local-sgda.")}
    quiet = simulate(keys)
    folder = stopped(keys, when, share)
    assert json.loads((folder / "status.json").read_text())["status"] == "failed"
    assert_same(quiet, simulate({"resume": str(folder), "workers": 3 - workers}))
    assert json.loads((folder / "status.json").read_text())["status"] == "complete"


@pytest.mark.parametrize("output", ["average", "random"])
def test_the_iterate_that_is_returned_is_the_same(tmp_path: Path, stopped: Any, output: str) -> None:
    keys = saddle_job(tmp_path, output=output, rounds=6, seed=3)
    quiet = simulate(keys)
    assert_same(quiet, simulate({"resume": str(stopped(keys, ("train", 6)))}))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["codasca", "momentum-local-sgda"])  # with a memory of its own, and without
def test_rounding_errors_go_on(name: str, tmp_path: Path, stopped: Any) -> None:
    keys = job(tmp_path, algorithm=name, rounds=4, hidden=9, wire="bf16", wire_estimators="int8", fraction=0.7)
    quiet = simulate(keys)
    assert_same(quiet, simulate({"resume": str(stopped(keys, ("train", 4))), "workers": 2}))


@pytest.mark.slow
@pytest.mark.usefixtures("small_resnet")
@pytest.mark.parametrize("bn", ["average", "local"])
def test_batch_norm_statistics_go_on(tmp_path: Path, bn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: dict[str, Value] = {"model": "resnet18", "sites": 2, "local_steps": 1, "batch_size": 4, "bn": bn}
    config = site_job(tmp_path, algorithm="fedavg", problem="bce", standardise=False, rounds=3, **keys)
    nodes = [images(tmp_path, site, 100) for site in range(2)]
    quiet = run_at(config, nodes)
    with monkeypatch.context() as patch:
        stop_at(("train", 3), patch)
        with pytest.raises(StopError):
            run_at(config.model_copy(update={"run_name": "stopped"}), nodes)
    again = RunConfig.parse(with_resumed({"resume": f"{config.runs_dir}/stopped"}))
    assert_same(quiet, run_at(again, nodes))


@pytest.mark.slow
def test_it_can_be_stopped_again(tmp_path: Path, stopped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = saddle_job(tmp_path, algorithm="alone", rounds=6) | {"state-dir": str(tmp_path / "state")}
    quiet = simulate(keys)
    folder = stopped(keys, ("train", 3))
    for when in (("train", 4), ("trained", 5)):
        with monkeypatch.context() as patch:
            stop_at(when, patch)
            with pytest.raises(StopError):
                simulate({"resume": str(folder)})
    assert_same(quiet, simulate({"resume": str(folder)}))


@pytest.mark.slow
def test_with_too_little_time_to_write_it_goes_on_from_an_earlier_round(tmp_path: Path) -> None:
    keys = saddle_job(tmp_path, algorithm="alone", rounds=6)
    quiet = simulate(keys)

    class Killed(LocalGrid):
        """A coordinator that is gone at once: nothing is written at its end."""

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            if messages[0].content.config_records["config"].get("round") == 5:
                os._exit(9)
            if messages[0].content.config_records["config"].get("round") == 3:
                run_state.SHARE = 0.0  # from here on there is no time
            return super().push_messages(messages)

    pid = os.fork()
    if not pid:
        run_state.SHARE = math.inf
        config = RunConfig.parse(keys | {"run-name": "stopped"})
        with Killed(config, unused_run_id()) as grid:
            coordinate(config, grid, Progress(quiet=True))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    folder = tmp_path / "runs" / "stopped"
    assert len(untimed((folder / "metrics.jsonl").read_text())) == 3
    assert json.loads((folder / "status.json").read_text())["status"] == "running"
    assert {path.name for path in folder.glob("memory-*")} == {"memory-2.tar"}
    assert_same(quiet, simulate({"resume": str(folder)}))


# ---------------------------------------------------------------------- what sites keep meanwhile


class Watching(LocalGrid):
    """Notes how many memories of one site there are when messages leave."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.most = max(
            [getattr(self, "most", 0), *(len(positions(site)) for site in self.states.folder.glob("run-*/*"))]
        )
        return super().push_messages(messages)


@pytest.mark.slow
@pytest.mark.parametrize("every", [0, 1, 3])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_the_local_engine_keeps_one_memory_of_a_site_from_round_to_round(
    tmp_path: Path, every: int, fraction: float
) -> None:
    keys = saddle_job(tmp_path, algorithm="codasca", rounds=6, checkpoint_every=every, fraction=fraction)
    config = RunConfig.parse(keys)
    with Watching(config, unused_run_id()) as grid:
        coordinate(config, grid, Progress(quiet=True))
    assert grid.most == 1
    assert not list(grid.states.folder.glob("run-*"))


class Apart(Elsewhere):
    """Notes, whenever messages leave, the round behind which sites are told to forget all, and the one that is stored.

    Attributes
    ----------
    told : list of (int, int)
        Both, of each set of messages but the first.
    """

    def __init__(self, grid: LocalGrid, folder: Path) -> None:
        super().__init__(grid)
        self.state, self.told = folder / "state.safetensors", list[tuple[int, int]]()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        config = messages[0].content.config_records["config"]
        if messages[0].metadata.message_type == "train":
            assert int(str(config["committed"])) < int(str(config["round"])), "whoever is asked again has forgotten"
        if messages[0].metadata.message_type != "query":
            stored = int(StoredTensors.read(self.state).facts["round"]) if self.state.exists() else 0
            self.told.append((int(str(messages[0].content.config_records["config"]["committed"])), stored))
        return self._grid.push_messages(messages)


@pytest.mark.parametrize("share", [0.0, math.inf])
def test_sites_forget_nothing_that_the_run_may_go_back_to(
    tmp_path: Path, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Flower's engines: whether there is time to store each round or none of them; the last one always is."""
    monkeypatch.setattr(run_state, "SHARE", share)
    config = RunConfig.parse(saddle_job(tmp_path, run_name="apart"))
    with LocalGrid(config, unused_run_id()) as grid:
        apart = Apart(grid, tmp_path / "runs" / "apart")
        coordinate(config, apart, Progress(quiet=True))  # type: ignore[arg-type]
    *rounds, last = apart.told
    assert all(forgotten <= stored for forgotten, stored in rounds)
    assert [stored for _, stored in rounds] == ([0] * 4 if share == 0 else [0, 1, 2, 3])
    assert last == (4, 4)


@pytest.mark.parametrize("algorithm", ["local-sgda", "alone"], ids=["without memories", "with memories"])
def test_a_checkpoint_that_does_not_fit_on_the_disk_costs_no_run(
    algorithm: str, tmp_path: Path, stopped: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = saddle_job(tmp_path, algorithm=algorithm, rounds=5)
    quiet = simulate(keys)
    write, tried = run_state.write_tensors, []

    def full(path: Path, tensors: Any, facts: Any) -> None:
        tried.append(facts["round"])
        if len(tried) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, tensors, facts)

    with monkeypatch.context() as patch:
        patch.setattr(run_state, "write_tensors", full)
        folder = stopped(keys, ("trained", 4))
    assert tried[:3] == [1, 2, 3], "it goes on, and tries again"
    assert {path.name for path in folder.glob("memory-*")} <= {"memory-1.tar"}, "none of a round that is not stored"
    assert_same(quiet, simulate({"resume": str(folder)}), WARNINGS)
    assert "No space left on device" in (folder / WARNINGS).read_text()


@pytest.mark.parametrize("every", [0, 1])
def test_no_site_is_told_to_forget_what_it_may_be_asked_for_again(tmp_path: Path, every: int) -> None:
    """In the midst of a round an answer may be lost: the site does its part again, from where it began."""
    config = RunConfig.parse(saddle_job(tmp_path, run_name="apart", checkpoint_every=every))
    with LocalGrid(config, unused_run_id()) as grid:
        apart = Apart(grid, tmp_path / "runs" / "apart")
        coordinate(config, apart, Progress(quiet=True))  # type: ignore[arg-type]
    assert len(apart.told) == 5
    assert all(0 <= Checkpoints().committed(r) < r for r in range(1, 5))


# ---------------------------------------------------------------------- what cannot be


def test_a_complete_run_and_a_folder_of_something_else_are_answered_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = simulate(saddle_job(tmp_path)).folder
    for place in (folder, tmp_path):
        assert main(["--run-config", f'resume="{place}"']) == 2
        assert lines(capsys.readouterr().err, "resume = ")


def test_two_processes_cannot_share_a_folder(tmp_path: Path, stopped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stopped(saddle_job(tmp_path), ("trained", 2))
    trained = Recorder.trained

    def meanwhile(*arguments: Any) -> None:
        trained(*arguments)
        monkeypatch.undo()
        with pytest.raises(RunError, check=has(key="resume", value=folder)):
            simulate({"resume": str(folder)})

    monkeypatch.setattr(Recorder, "trained", meanwhile)
    simulate({"resume": str(folder)})


def test_a_worker_that_outlives_its_coordinator_does_not_hold_the_folder(tmp_path: Path) -> None:
    config = RunConfig.parse(saddle_job(tmp_path))
    folder = RunFolder.new(config)
    (there, told), worker = os.pipe(), os.fork()
    if not worker:
        os.write(told, b".")
        time.sleep(60)
        os._exit(0)
    os.read(there, 1)  # before that it is not there yet
    folder.close()  # as its end does it
    RunFolder.again(config.model_copy(update={"resume": str(folder.path)})).close()
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)


def test_a_site_whose_data_changed_is_named(tmp_path: Path, stopped: Any) -> None:
    table = write_table(tmp_path, *samples(60, seed=1)) / "data.csv"
    keys = job(tmp_path, dataset="table", data_file=str(table), thin_share=0.0, partition="iid")
    folder = stopped(keys, ("trained", 2))
    write_table(tmp_path, *samples(60, seed=2))
    with pytest.raises(RunError, check=has(sites=("site-0", "site-1", "site-2"))):
        simulate({"resume": str(folder)})


def _flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("name", ["state.safetensors", "memory-*.tar"])
def test_a_state_that_is_not_what_was_written_is_refused_and_left(tmp_path: Path, stopped: Any, name: str) -> None:
    folder = stopped(job(tmp_path), ("trained", 3))
    [file] = folder.glob(name)
    _flipped(file)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != "status.json"}
    with pytest.raises(RunError, check=has(key="resume", value=file)):
        simulate({"resume": str(folder)})
    assert before == {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != "status.json"}


def test_the_config_of_the_folder_is_beneath_what_is_given(tmp_path: Path) -> None:
    folder = simulate(saddle_job(tmp_path)).folder
    keys = with_resumed({"resume": str(folder), "workers": 3})
    assert (keys["problem"], keys["workers"], keys["rounds"]) == ("saddle", 3, 4)
    assert with_resumed({"rounds": 3}) == {"rounds": 3}
