"""A run goes on from its own folder, whole and with its own run-config, or says in a line why not."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edelweiss.common import Value, to_toml, with_resumed
from edelweiss.common.files import marked
from edelweiss.config import MISTAKES, ConfigError, RunConfig
from edelweiss.config.resume import FREE, lasting
from edelweiss.federation import RunError
from edelweiss.lab.cli import main
from edelweiss.server_app import simulate
from edelweiss.server_app.coordinator import Result
from edelweiss.server_app.recorder import Recorder
from edelweiss.server_app.run_folder import RunFolder
from edelweiss.server_app.run_notes import ACTS, login, note_act, read_notes
from tests.said import has, lines
from tests.server_app.sites import saddle_job

REPLACED = {"about.json", "model.safetensors", ACTS}  # written anew, or on, whatever they held


def job(folder: Path, **keys: Value) -> dict[str, Value]:
    """A run whose sites remember something."""
    found = saddle_job(folder, algorithm="codasca", report=False, **keys)
    return {key: value for key, value in found.items() if not key.startswith("local-sgda")}


def stopped(keys: dict[str, Value], after: int) -> Path:
    """Stop a run after a round, and return its folder."""
    trained = Recorder.trained

    def interrupted(report: Recorder, server_round: int, *rest: Any) -> None:
        trained(report, server_round, *rest)
        if server_round == after:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edelweiss.server_app.run_state.SHARE", float("inf"))
        patch.setattr(Recorder, "trained", interrupted)
        with pytest.raises(KeyboardInterrupt):
            simulate(keys | {"run-name": "stopped"}, quiet=False)
    return Path(str(keys["runs-dir"])) / "stopped"


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return what lies in a folder; its status is written anew by each who tries."""
    return {
        path.name: path.read_bytes() if path.is_file() else None
        for path in folder.iterdir()
        if path.name != "status.json"
    }


def missing(file: Path, of_another: Path) -> None:
    file.unlink()


def a_folder(file: Path, of_another: Path) -> None:
    file.unlink()
    file.mkdir()


def a_pipe(file: Path, of_another: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def empty(file: Path, of_another: Path) -> None:
    file.write_bytes(b"")


def cut_off(file: Path, of_another: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def foreign(file: Path, of_another: Path) -> None:
    [other] = of_another.glob(file.name)
    shutil.copyfile(other, file)


WAYS: list[Callable[[Path, Path], None]] = [missing, a_folder, a_pipe, empty, cut_off, foreign]


@pytest.mark.parametrize("spoil", WAYS)
def test_whatever_becomes_of_a_file_a_run_goes_on_as_it_would_have_or_says_why_not(
    tmp_path: Path, spoil: Callable[[Path, Path], None]
) -> None:
    quiet = simulate(job(tmp_path))
    folder, other = stopped(job(tmp_path), 3), stopped(job(tmp_path / "other", seed=1), 3)
    names = sorted(path.name for path in folder.iterdir())
    assert {"config.toml", "status.json", "metrics.jsonl", "state.safetensors", "memory-2.tar", *REPLACED} == {*names}
    for name in names:
        case = shutil.copytree(folder, tmp_path / "cases" / name)
        spoil(case / name, other)
        before, result, said = contents(case), None, ""
        try:
            result = simulate({"resume": str(case)})
        except MISTAKES as error:
            said = str(error.problems[0] if isinstance(error, ConfigError) and len(error.problems) == 1 else error)
        what = f"{name}: {spoil.__name__}: {said}"
        if name in REPLACED and spoil not in (a_folder, a_pipe):
            assert result is not None, what
        fine = (name, spoil) in (("state.safetensors", missing), ("metrics.jsonl", cut_off))  # from its start; line 1
        if name not in REPLACED and not fine:
            assert result is None, what
        if result is not None:
            assert all(np.array_equal(result.arrays[each], vector) for each, vector in quiet.arrays.items()), what
            assert lines_of(result) == lines_of(quiet), what
            continue
        assert "\n" not in said, what
        assert any(word in said for word in (name, "state.safetensors", "run-config")), what
        assert contents(case) == before, what


def lines_of(result: Result) -> list[dict[str, Any]]:
    """Return the lines that a run wrote, but for its times."""
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if "seconds" not in k} for line in lines]


# ---------------------------------------------------------------------- bound to the run-config that it began with


def others(config: RunConfig) -> Iterator[tuple[str, dict[str, Value]]]:
    """Yield run-configs that can be, each with another value of one key of a run."""
    keys = config.written()
    for key, value in keys.items():
        candidates: list[Value] = [not value] if isinstance(value, bool) else ["b", "1", "file", "bf16", "float16"]
        if isinstance(value, int | float) and not isinstance(value, bool):
            candidates = [value + 1, value * 0.5, value - 1]
        for other in candidates:
            if type(other) is type(value) and other != value:
                try:
                    RunConfig.parse(keys | {key: other})
                except MISTAKES:
                    continue
                yield key, keys | {key: other}
                break


def test_each_key_that_lasts_is_refused_when_it_was_edited_and_no_other_is(tmp_path: Path) -> None:
    config = RunConfig.parse(saddle_job(tmp_path, algorithm="d-psgd") | {"d-psgd.lr": 0.3, "problem": "bce"})
    folder = RunFolder.new(config)
    folder.note("stopped")
    folder.close()
    file, tried = folder.path / "config.toml", set()
    for key, edited in others(config):
        file.write_text(marked(to_toml(edited)))
        again = RunConfig.parse(with_resumed({"resume": str(folder.path)}))
        tried.add(key)
        if key in FREE:
            RunFolder.again(again).close()
            continue
        with pytest.raises(ConfigError) as caught:
            RunFolder.again(again)
        assert f": {key} = {edited[key]!r} (was {config.written()[key]!r})." in str(caught.value)
    assert {"local-steps", "wire", "seed", "rounds", "d-psgd.lr", "workers", "wait-timeout"} <= tried
    assert len(tried & lasting(config).keys()) > 30


def test_another_algorithm_does_not_take_up_what_one_has_left(tmp_path: Path) -> None:
    keys = saddle_job(tmp_path, problem="bce", algorithm="fedavg", report=False)
    folder = stopped({key: value for key, value in keys.items() if "." not in key}, 2)
    file = folder / "config.toml"
    edited = RunConfig.parse(with_resumed({"resume": str(folder), "algorithm": "fedrep"}) | {"fedrep.body-steps": 1})
    file.write_text(edited.to_toml())
    with pytest.raises(ConfigError, check=has("algorithm = 'fedrep'", "'fedavg'", keys=["resume"])):
        simulate({"resume": str(folder)})


def test_a_state_of_another_run_is_refused_where_nothing_else_tells_them_apart(tmp_path: Path) -> None:
    """After one round, of sites that remember nothing."""
    folder, other = (stopped(saddle_job(tmp_path / name, report=False), 2) for name in ("one", "other"))
    foreign(folder / "state.safetensors", other)
    with pytest.raises(RunError, check=has(key="resume", value=folder / "state.safetensors")):
        simulate({"resume": str(folder)})


def test_an_interrupted_run_says_how_it_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = stopped(job(tmp_path), 2)
    [line] = lines(capsys.readouterr().out, "--run-config")
    assert main(shlex.split(line[line.index("--run-config") :])) == 0
    assert json.loads((folder / "status.json").read_text())["status"] == "complete"


def test_who_stopped_and_who_resumed_a_run_is_in_its_record(tmp_path: Path) -> None:
    keys = saddle_job(tmp_path, report=False, started_by="anna")
    folder = stopped(keys, 2)
    for refused in ({"rounds": 5}, {"local-sgda.lr": 0.5}):
        with pytest.raises(ConfigError):
            simulate({"resume": str(folder), **refused})
    note_act(folder, "stopped", f"rita\n\x1b[31m{'x' * 10**6}")  # as the page does
    simulate({"resume": str(folder), "started-by": "berta"})
    found = [(note["act"], note["by"]) for note in read_notes(folder / ACTS)]
    assert [act for act, _ in found] == ["stopped", "stopped", "resumed"]
    assert found[0][1] == login()
    assert found[1][1].startswith("rita ")
    assert found[1][1].isprintable()
    assert len(found[1][1]) < 200
    assert found[2][1] == "berta"
    assert "anna" in (folder / "config.toml").read_text(), "who started it stays"
    folder = stopped(saddle_job(tmp_path / "other", report=False, started_by="anna"), 2)
    note_act(folder, "stopped", "rita")
    opened = RunFolder.again(RunConfig.parse(with_resumed({"resume": str(folder)})))
    opened.note_act("stopped", "root")  # as the run does, after the page
    opened.note("stopped")
    opened.close()
    simulate({"resume": str(folder)})
    found = [(note["act"], note["by"]) for note in read_notes(folder / ACTS)]
    assert found == [("stopped", login()), ("stopped", "rita"), ("resumed", login())], "nor is who resumes who started"


def test_all_keys_that_differ_are_in_one_line(tmp_path: Path) -> None:
    folder = stopped(saddle_job(tmp_path), 2)
    with pytest.raises(ConfigError) as caught:
        simulate({"resume": str(folder), "rounds": 5, "local-sgda.lr": 0.5, "device": "auto", "wait-timeout": 5.0})
    [line] = caught.value.problems
    assert "rounds = 5 (was 4), local-sgda.lr = 0.5 (was 0.02)" in line
    with pytest.raises(ConfigError, check=has("sites = 8 (was 4)", "flwr run", keys=["resume"])):
        RunFolder.again(RunConfig.parse({"resume": str(folder)}))


def test_a_run_of_another_version_does_not_go_on(tmp_path: Path) -> None:
    file = (folder := stopped(saddle_job(tmp_path), 2)) / "status.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"app": "0123456789ab"}))
    with pytest.raises(ConfigError, check=has("0123456789ab", keys=["resume"])):
        simulate({"resume": str(folder)})
