"""What a site keeps: whole or not at all, whatever happens to the process or the file, and nobody else's."""

from __future__ import annotations

import multiprocessing
import os
import stat
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from client_app.memory import Memory, Provenance, StateError
from models.storage import facts_in

CPU = torch.device("cpu")
FIRST = {"x": torch.full((50_000,), 1.0), "stage": torch.tensor([1])}
SECOND = {"x": torch.full((50_000,), 2.0), "stage": torch.tensor([2])}


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(str(tmp_path), 7, "north")


def test_what_is_saved_is_loaded_bit_for_bit(memory: Memory) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    memory.save({"x": x, "count": torch.tensor([3]), "part": x[::2]})
    loaded = memory.load(CPU)
    assert sorted(loaded) == ["count", "part", "x"]
    assert torch.equal(loaded["x"], x)
    assert torch.equal(loaded["part"], x[::2])
    assert loaded["count"].dtype == torch.int64


def test_nothing_saved_is_an_empty_memory(memory: Memory) -> None:
    assert memory.load(CPU) == {}
    memory.save({})
    assert not memory.path.exists()


def test_runs_and_sites_do_not_share(tmp_path: Path) -> None:
    Memory(str(tmp_path), 1, "north").save(FIRST)
    assert Memory(str(tmp_path), 2, "north").load(CPU) == {}
    assert Memory(str(tmp_path), 1, "south").load(CPU) == {}


@pytest.mark.parametrize("name", ["../../escaped", "/etc/passwd", "..", "a/b"])
def test_a_name_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    # The name comes with the coordinator's message.
    memory = Memory(str(tmp_path / "state"), 7, name)
    memory.save({"x": torch.ones(3)})
    assert memory.path.resolve().parent == (tmp_path / "state" / "run-7").resolve()
    assert torch.equal(memory.load(CPU)["x"], torch.ones(3))


def test_the_folder_is_private(memory: Memory) -> None:
    memory.save(FIRST)
    assert stat.S_IMODE(memory.path.parent.stat().st_mode) == 0o700


def _save_for_ever(memory: Memory) -> None:
    while True:
        memory.save(FIRST)
        memory.save(SECOND)


def test_a_process_killed_while_saving_leaves_a_whole_file(memory: Memory) -> None:
    memory.save(FIRST)
    for delay in (0.01, 0.02, 0.03, 0.04, 0.05):
        writer = multiprocessing.get_context("fork").Process(target=_save_for_ever, args=(memory,))
        writer.start()
        time.sleep(delay)
        assert writer.pid
        os.kill(writer.pid, 9)
        writer.join()
        loaded = memory.load(CPU)
        assert any(all(torch.equal(loaded[n], v) for n, v in whole.items()) for whole in (FIRST, SECOND))
    memory.forget()
    assert not memory.path.parent.exists()  # nor is half a file left


@pytest.mark.parametrize("damage", ["cut short", "empty", "garbage", "folder"])
def test_a_damaged_file_is_an_empty_memory_and_a_warning(
    memory: Memory, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory.save(FIRST)
    if damage == "cut short":
        memory.path.write_bytes(memory.path.read_bytes()[:-100])
    elif damage == "empty":
        memory.path.write_bytes(b"")
    elif damage == "garbage":
        memory.path.write_bytes(os.urandom(1000))
    else:
        memory.path.unlink()
        memory.path.mkdir()
    assert memory.load(CPU) == {}
    assert "starts without its memory" in caplog.text
    if damage != "folder":
        memory.save(SECOND)
        assert torch.equal(memory.load(CPU)["x"], SECOND["x"])


def test_forgetting_removes_the_file_and_an_empty_folder(tmp_path: Path) -> None:
    north, south = (Memory(str(tmp_path), 7, name) for name in ("north", "south"))
    north.save(FIRST)
    south.save(SECOND)
    north.forget()
    assert north.load(CPU) == {}
    assert torch.equal(south.load(CPU)["x"], SECOND["x"])
    south.forget()
    south.forget()  # nothing left to forget is no error
    assert list(tmp_path.iterdir()) == []


def test_an_empty_memory_is_no_memory(tmp_path: Path) -> None:
    memory = Memory(str(tmp_path), 1, "a")
    memory.save({"c": torch.ones(3)})
    memory.save({})
    assert memory.load(torch.device("cpu")) == {}


# ---------------------------------------------------------------------- whose it is


MINE: Provenance = {"algorithm": "codasca", "problem": "auc", "model": "mlp", "d": 50_000}


@pytest.mark.parametrize(
    ("key", "other"), [("algorithm", "alone"), ("problem", "auc-margin"), ("model", "linear"), ("d", 50_001)]
)
def test_the_state_of_another_algorithm_or_model_is_refused_named_and_left_as_it_is(
    tmp_path: Path, key: str, other: str | int
) -> None:
    theirs = Memory(str(tmp_path), 7, "north", {**MINE, key: other})
    theirs.save(FIRST)
    theirs.keep(FIRST, {})
    before = theirs.path.read_bytes(), theirs.model_path.read_bytes()
    mine = Memory(str(tmp_path), 7, "north", MINE)
    with pytest.raises(StateError) as loading:
        mine.load(CPU)
    with pytest.raises(StateError) as keeping:
        mine.keep(SECOND, {})
    for caught, path in ((loading, mine.path), (keeping, mine.model_path)):
        for text in (str(caught.value), caught.value.public):
            assert path.name in text
            assert f"{key} = {other!r}" in text
            assert f"{key} = {MINE[key]!r}" in text
            assert "untouched" in text
        assert str(path) in str(caught.value)
        assert str(tmp_path) not in caught.value.public
    assert before == (theirs.path.read_bytes(), theirs.model_path.read_bytes())
    assert torch.equal(theirs.load(CPU)["x"], FIRST["x"]), "whom it belongs to can read it"


def test_a_file_that_does_not_say_whose_it_is_is_refused(tmp_path: Path) -> None:
    memory = Memory(str(tmp_path), 7, "north", MINE)
    memory.path.parent.mkdir()
    for said in (None, {"format": "pt"}, {"edelweiss": "no JSON"}, {"edelweiss": "[1]"}):
        save_file(FIRST, memory.path, said)
        before = memory.path.read_bytes()
        with pytest.raises(StateError, match="does not say whose state it holds"):
            memory.load(CPU)
        assert memory.path.read_bytes() == before


def test_equal_states_give_equal_bytes(tmp_path: Path) -> None:
    files = set()
    for _ in range(5):
        memory = Memory(str(tmp_path), 7, "north", MINE)
        memory.save(FIRST)
        files.add(memory.path.read_bytes())
    assert len(files) == 1


# ---------------------------------------------------------------------- the site's own model


def test_a_kept_model_outlives_the_memory_and_says_what_it_takes_to_use_it(tmp_path: Path) -> None:
    memory = Memory(str(tmp_path), 7, "a/b", MINE)
    memory.save(FIRST)
    path = memory.keep(SECOND, {"shape": (3, 2), "prior": 0.25})
    memory.forget()
    assert path == tmp_path / "models" / "7-a_b.safetensors"
    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")] == ["models", f"models/{path.name}"]
    assert torch.equal(load_file(path)["x"], SECOND["x"])
    assert facts_in(path.read_bytes()) == {**MINE, "shape": [3, 2], "prior": 0.25}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    memory.keep(FIRST, {})  # a new one takes its place
    assert torch.equal(load_file(path)["x"], FIRST["x"])


def _keep_for_ever(memory: Memory) -> None:
    while True:
        memory.keep(FIRST, {})
        memory.keep(SECOND, {})


def test_a_process_killed_while_keeping_leaves_a_whole_model(tmp_path: Path) -> None:
    memory = Memory(str(tmp_path), 7, "north", MINE)
    memory.keep(FIRST, {})
    for delay in (0.01, 0.03, 0.05):
        writer = multiprocessing.get_context("fork").Process(target=_keep_for_ever, args=(memory,))
        writer.start()
        time.sleep(delay)
        assert writer.pid
        os.kill(writer.pid, 9)
        writer.join()
        model = load_file(memory.model_path)
        assert any(all(torch.equal(model[n], v) for n, v in whole.items()) for whole in (FIRST, SECOND))
