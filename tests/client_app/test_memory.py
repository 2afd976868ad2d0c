"""What a site keeps: whole or not at all, whatever happens to the process or the file, and nobody else's."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import stat
import tempfile
import time
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from edelweiss.client_app.memory import Memory, Position, Provenance, StateError, path_of, positions
from edelweiss.client_app.state_folder import state_folder
from edelweiss.common import ConfigError
from edelweiss.models.storage import StoredTensors
from tests.said import has

CPU = torch.device("cpu")
LAST = (99, 0)
FIRST = {"x": torch.full((50_000,), 1.0), "stage": torch.tensor([1])}
SECOND = {"x": torch.full((50_000,), 2.0), "stage": torch.tensor([2])}


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(str(tmp_path), "7", "north")


def test_what_is_saved_is_loaded_bit_for_bit(memory: Memory) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    memory.save({"x": x, "count": torch.tensor([3]), "part": x[::2]}, (1, 0), 0)
    loaded = memory.load(CPU, LAST)
    assert sorted(loaded) == ["count", "part", "x"]
    assert torch.equal(loaded["x"], x)
    assert torch.equal(loaded["part"], x[::2])
    assert loaded["count"].dtype == torch.int64


def test_nothing_saved_is_an_empty_memory(memory: Memory) -> None:
    assert memory.load(CPU, LAST) == {}
    memory.save({}, (1, 0), 0)
    assert not memory.folder.exists()


def test_runs_and_sites_do_not_share(tmp_path: Path) -> None:
    Memory(str(tmp_path), "1", "north").save(FIRST, (1, 0), 0)
    assert Memory(str(tmp_path), "2", "north").load(CPU, LAST) == {}
    assert Memory(str(tmp_path), "1", "south").load(CPU, LAST) == {}


@pytest.mark.parametrize("name", ["../../escaped", "/etc/passwd", "..", "a/b"])
def test_a_name_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    # The name comes with the coordinator's message.
    memory = Memory(str(tmp_path / "state"), "7", name)
    memory.save({"x": torch.ones(3)}, (1, 0), 0)
    assert memory.folder.resolve().parent == (tmp_path / "state" / "run-7").resolve()
    assert torch.equal(memory.load(CPU, LAST)["x"], torch.ones(3))


def test_the_folder_is_private(memory: Memory) -> None:
    memory.save(FIRST, (1, 0), 1)
    assert {stat.S_IMODE(place.stat().st_mode) for place in (memory.folder, memory.folder.parent)} == {0o700}


def _save_for_ever(memory: Memory) -> None:
    while True:
        memory.save(FIRST, (1, 0), 1)
        memory.save(SECOND, (1, 0), 1)


@pytest.mark.slow
def test_a_process_killed_while_saving_leaves_a_whole_file(memory: Memory) -> None:
    memory.save(FIRST, (1, 0), 1)
    for delay in (0.01, 0.02, 0.03, 0.04, 0.05):
        writer = multiprocessing.get_context("fork").Process(target=_save_for_ever, args=(memory,))
        writer.start()
        time.sleep(delay)
        assert writer.pid
        os.kill(writer.pid, 9)
        writer.join()
        loaded = memory.load(CPU, LAST)
        assert any(all(torch.equal(loaded[n], v) for n, v in whole.items()) for whole in (FIRST, SECOND))
    memory.forget()
    assert not memory.folder.parent.exists()  # nor is half a file left


@pytest.mark.parametrize("damage", ["cut short", "empty", "garbage", "folder"])
def test_a_damaged_file_is_an_empty_memory_and_a_warning(
    memory: Memory, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory.save(FIRST, (1, 0), 1)
    file = path_of(memory.folder, (1, 0))
    if damage == "cut short":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "garbage":
        file.write_bytes(os.urandom(1000))
    else:
        file.unlink()
        file.mkdir()
    assert memory.load(CPU, LAST) == {}
    assert "starts without its memory" in caplog.text
    if damage != "folder":
        memory.save(SECOND, (2, 0), 2)
        assert torch.equal(memory.load(CPU, LAST)["x"], SECOND["x"])


def test_forgetting_removes_the_file_and_an_empty_folder(tmp_path: Path) -> None:
    north, south = (Memory(str(tmp_path), "7", name) for name in ("north", "south"))
    north.save(FIRST, (1, 0), 0)
    south.save(SECOND, (1, 0), 0)
    north.forget()
    assert north.load(CPU, LAST) == {}
    assert torch.equal(south.load(CPU, LAST)["x"], SECOND["x"])
    south.forget()
    south.forget()  # nothing left to forget is no error
    assert list(tmp_path.iterdir()) == []


def test_an_empty_memory_is_no_memory(tmp_path: Path) -> None:
    memory = Memory(str(tmp_path), "1", "a")
    for committed in (0, 2):
        memory.save({"c": torch.ones(3)}, (1, 0), 0)
        memory.save({}, (2, 0), committed)
        assert memory.load(CPU, LAST) == {}
    assert positions(memory.folder) == []


# ---------------------------------------------------------------------- going back


def test_a_site_can_be_asked_again_from_where_the_coordinator_goes_back_to(memory: Memory) -> None:
    """Whatever it has done since, that the coordinator does not know of."""
    value = iter(range(100))
    after: dict[Position, float] = {(0, 0): -1.0}

    def asked(at: Position, committed: int) -> float:
        """Answer as a site does: what it remembered before, and from then on a new number."""
        before = memory.load(CPU, at).get("n", torch.tensor(-1.0)).item()
        after[at] = float(next(value))
        memory.save({"n": torch.tensor(after[at])}, at, committed)
        return before

    rounds = [(r, p) for r in (1, 2, 3) for p in (0, 1)]
    for place, before in zip(rounds, [(0, 0), *rounds[:-1]], strict=True):
        assert asked(place, 0) == after[before]
        assert asked(place, 0) == after[before], "the answer was lost"
    # All of round 1 and on were for nothing: none was stored.
    assert asked((1, 0), 0) == -1
    assert positions(memory.folder) == [(1, 0)], "what came later is void"
    assert asked((1, 1), 0) == after[1, 0]
    assert asked((2, 0), 1) == after[1, 1]
    assert asked((3, 0), 1) == after[2, 0], "it was not asked for the second phase"
    assert asked((2, 0), 1) == after[1, 1], "a state of the end of round 1 is what the coordinator has"
    for r in range(3, 9):
        assert asked((r, 0), r - 1) == after[r - 1, 0]
        assert len(positions(memory.folder)) == 2
    assert asked((9, 0), 9) == after[8, 0]
    assert positions(memory.folder) == [(9, 0)], "nobody goes back, nothing else is kept"


def test_a_phase_that_remembers_nothing_ends_what_was_remembered(memory: Memory) -> None:
    memory.save(FIRST, (1, 0), 0)
    memory.save({}, (1, 1), 0)
    assert memory.load(CPU, (2, 0)) == {}
    assert torch.equal(memory.load(CPU, (1, 1))["x"], FIRST["x"]), "asked for the second phase again"


# ---------------------------------------------------------------------- whose it is


MINE: Provenance = {"algorithm": "codasca", "problem": "auc", "model": "mlp", "d": 50_000}


@pytest.mark.parametrize(
    ("key", "other"), [("algorithm", "alone"), ("problem", "auc-margin"), ("model", "linear"), ("d", 50_001)]
)
def test_the_state_of_another_algorithm_or_model_is_refused_named_and_left_as_it_is(
    tmp_path: Path, key: str, other: str | int
) -> None:
    theirs = Memory(str(tmp_path), "7", "north", {**MINE, key: other})
    theirs.save(FIRST, (1, 0), 1)
    theirs.save_own_model(FIRST, {})
    file = path_of(theirs.folder, (1, 0))
    before = file.read_bytes(), theirs.model_path.read_bytes()
    mine = Memory(str(tmp_path), "7", "north", MINE)
    with pytest.raises(StateError) as loading:
        mine.load(CPU, LAST)
    with pytest.raises(StateError) as keeping:
        mine.save_own_model(SECOND, {})
    for caught, path in ((loading, file), (keeping, mine.model_path)):
        for text in (str(caught.value), caught.value.public):
            assert path.name in text
            assert f"{key} = {other!r}" in text
            assert f"{key} = {MINE[key]!r}" in text
            assert "unchanged" in text
        assert str(path) in str(caught.value)
        assert str(tmp_path) not in caught.value.public
    assert before == (file.read_bytes(), theirs.model_path.read_bytes())
    assert torch.equal(theirs.load(CPU, LAST)["x"], FIRST["x"]), "whom it belongs to can read it"


def test_a_file_that_does_not_say_whose_it_is_is_refused(tmp_path: Path) -> None:
    memory = Memory(str(tmp_path), "7", "north", MINE)
    file = path_of(memory.folder, (1, 0))
    file.parent.mkdir(parents=True)
    for said in (None, {"format": "pt"}, {"edelweiss": "no JSON"}, {"edelweiss": "[1]"}):
        save_file(FIRST, file, said)
        before = file.read_bytes()
        with pytest.raises(StateError, check=has(file, value={})):
            memory.load(CPU, LAST)
        assert file.read_bytes() == before


@pytest.mark.parametrize("change", [{"x": torch.zeros(50_000)}, {"x": torch.ones(1)}, {"more": torch.ones(3)}])
def test_a_memory_that_is_not_what_was_written_is_refused_and_left(
    tmp_path: Path, change: dict[str, torch.Tensor]
) -> None:
    memory = Memory(str(tmp_path), "7", "north", MINE)
    memory.save(FIRST, (1, 0), 1)
    file = path_of(memory.folder, (1, 0))
    with safe_open(file, "pt") as opened:
        facts = opened.metadata()
    save_file(FIRST | change, file, facts)
    before = file.read_bytes()
    with pytest.raises(StateError, check=has(file)) as caught:
        memory.load(CPU, LAST)
    assert caught.value.value == caught.value.allowed, "it is this run's, and damaged"
    assert file.read_bytes() == before


def test_equal_states_give_equal_bytes(tmp_path: Path) -> None:
    files = set()
    for _ in range(5):
        memory = Memory(str(tmp_path), "7", "north", MINE)
        memory.save(FIRST, (1, 0), 1)
        files.add(path_of(memory.folder, (1, 0)).read_bytes())
    assert len(files) == 1


# ---------------------------------------------------------------------- the site's own model


def test_a_kept_model_outlives_the_memory_and_says_what_it_takes_to_use_it(tmp_path: Path) -> None:
    memory = Memory(str(tmp_path), "7", "a/b", MINE)
    memory.save(FIRST, (1, 0), 1)
    path = memory.save_own_model(SECOND, {"shape": (3, 2), "prior": 0.25})
    memory.forget()
    assert path == tmp_path / "models" / "7-a_b.safetensors"
    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")] == ["models", f"models/{path.name}"]
    assert torch.equal(load_file(path)["x"], SECOND["x"])
    assert StoredTensors.read(path).facts == {**MINE, "run": "7", "site": "a/b", "shape": [3, 2], "prior": 0.25}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    memory.save_own_model(FIRST, {})  # a new one takes its place
    assert torch.equal(load_file(path)["x"], FIRST["x"])


def test_a_model_of_another_run_is_not_overwritten_and_not_taken_for_its_own(tmp_path: Path) -> None:
    """Where two runs and sites make one name of a file."""
    first, second = Memory(str(tmp_path), "7", "north-b", MINE), Memory(str(tmp_path), "7-north", "b", MINE)
    path = first.save_own_model(FIRST, {})
    assert path == second.model_path
    for touch in (lambda: second.save_own_model(SECOND, {}), lambda: second.own_model(torch.device("cpu"))):
        with pytest.raises(StateError, check=has("run = '7'", "run = '7-north'")):
            touch()
    assert torch.equal(load_file(path)["x"], FIRST["x"])


@pytest.mark.parametrize("how", ["theirs", "a link", "for all"])
def test_a_folder_that_somebody_else_made_is_no_private_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Names below /tmp can be foretold, and who makes the folder first could read the site's secret."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = state_folder("")
    assert state_folder("") == own
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    if how == "theirs":
        another = os.getuid() + 1
        monkeypatch.setattr(os, "getuid", lambda: another)
        own.rename(own.with_name(f"edelweiss-{another}"))
    elif how == "a link":
        own.rename(tmp_path / "elsewhere")
        own.symlink_to(tmp_path / "elsewhere")
    else:
        own.chmod(0o777)
    with pytest.raises(ConfigError, check=has("state-dir")) as told:
        state_folder("")
    assert str(tmp_path) not in str(told.value)


def _keep_for_ever(memory: Memory) -> None:
    while True:
        memory.save_own_model(FIRST, {})
        memory.save_own_model(SECOND, {})


def test_a_process_killed_while_keeping_leaves_a_whole_model(tmp_path: Path) -> None:
    memory = Memory(str(tmp_path), "7", "north", MINE)
    memory.save_own_model(FIRST, {})
    for delay in (0.01, 0.03, 0.05):
        writer = multiprocessing.get_context("fork").Process(target=_keep_for_ever, args=(memory,))
        writer.start()
        time.sleep(delay)
        assert writer.pid
        os.kill(writer.pid, 9)
        writer.join()
        model = load_file(memory.model_path)
        assert any(all(torch.equal(model[n], v) for n, v in whole.items()) for whole in (FIRST, SECOND))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whoever_is_asked_again_begins_with_what_was_remembered_before(tmp_path: Path, data: st.DataObject) -> None:
    """Its answer was lost, or the coordinator goes back to the last round that it has stored; rounds have two phases.

    It may miss messages. At the end of a round that is stored, or not: what is committed is an earlier one then.
    """
    memory = Memory(str(tmp_path / secrets.token_hex(4)), "run", "north")
    remembered: dict[Position, float] = {}
    committed, asked, at = 0, 0, (1, 0)
    for step in range(data.draw(st.integers(1, 15))):
        if at[0] > asked:  # in a new round
            committed = data.draw(st.sampled_from([committed, *range(max(committed, asked), at[0])]))
        before = [remembered[place] for place in sorted(remembered) if place < at]
        found = memory.load(CPU, at)
        assert [float(vector) for vector in found.values()] == before[-1:]
        memory.save({"n": torch.tensor(float(step))}, at, committed)
        remembered = {place: value for place, value in remembered.items() if place < at} | {at: float(step)}
        asked = at[0]
        later = [(asked, 1), (asked + 1, 0), (asked + 2, 0)] if at[1] == 0 else [(asked + 1, 0), (asked + 1, 1)]
        at = data.draw(st.sampled_from([at, (committed + 1, 0), *later]))
