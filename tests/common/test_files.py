"""Files that others wrote: whatever lies in their place, they are read or refused in words, at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from edelweiss.common import ConfigError, flatten
from edelweiss.common.files import DEEPEST, as_path, is_file, json_in, read_file, toml_in, unwritable
from edelweiss.common.suggest import LONGEST, shown
from tests.said import has


def _link(file: Path, target: str) -> None:
    file.unlink()
    file.symlink_to(target)


SPOILS: dict[str, Callable[[Path], object]] = {
    "Is a directory": lambda file: (file.unlink(), file.mkdir()),
    "regular file": lambda file: (file.unlink(), os.mkfifo(file)),
    "regular": lambda file: _link(file, "/dev/zero"),
    "Too many levels": lambda file: _link(file, file.name),
    "No such file": lambda file: _link(file, "nowhere"),
    "1,000,000,000,000 bytes": lambda file: os.truncate(file, 10**12),
}


@pytest.mark.parametrize("said", SPOILS)
def test_what_is_no_file_of_its_size_is_refused_at_once(tmp_path: Path, said: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content")
    assert read_file(file) == b"content"
    SPOILS[said](file)
    with pytest.raises(OSError, check=has(said)):
        read_file(file)


@pytest.mark.parametrize(
    "path", ["a\0b", "~nobody-of-this-name/x", "x" * 5000, "\ud800", "x" * 256, "ä" * 128, "/".join(["x" * 200] * 15)]
)
def test_a_path_that_cannot_be_is_an_oserror_and_no_file(path: str) -> None:
    for take in (as_path, read_file):
        with pytest.raises(OSError, check=str) as told:
            take(path)
        assert len(str(told.value)) < 200
    assert not is_file(path)


@pytest.mark.parametrize("path", ["x" * 255, "ä" * 127, "/".join(["x" * 200] * 14), "/", ".", ""])
def test_below_a_path_that_can_be_a_name_can_be_looked_for(path: str) -> None:
    assert not (as_path(path) / "no such file, with the longest of names".ljust(255, "x")).exists()


def test_home_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of/mine")
    assert as_path("~/runs") == Path("/home/of/mine/runs")


def test_a_folder_that_cannot_be_written_is_told_before_it_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert unwritable(tmp_path / "new" / "folder") == ""
    assert unwritable(tmp_path / "file" / "x") == f"{tmp_path / 'file'} is not a folder"
    assert not (tmp_path / "new").exists()
    for name in ("a\0b", "a\nb", "a\u2028b"):
        assert "control characters" in unwritable(name)
    assert "~nobody-of-this-name" in unwritable("~nobody-of-this-name/x")


NESTED = st.recursive(
    st.integers() | st.text() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@pytest.mark.slow
@given(NESTED)
def test_json_without_end_is_refused_and_all_other_read(value: Any) -> None:
    import json

    assert json_in(json.dumps(value).encode()) == value
    for depth in (DEEPEST + 1, 10**5):
        with pytest.raises(ValueError, check=has("deeply")):
            json_in(b"[" * depth + b"]" * depth)


ENDLESS = ("x=" + "[" * 10**5, "x=" + "{a=" * 3000, ".".join("a" * 50_000) + "=1", "x=1" + "0" * 5000)


@pytest.mark.parametrize("text", ENDLESS, ids=["lists", "tables", "dots", "digits"])
def test_toml_that_no_parser_ends_with_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"too deeply|TOML"):
        toml_in(text.encode())


def _within_itself() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["a"] = found
    return found


@pytest.mark.parametrize("config", [None, [], "rounds=3", {1: 2}, {None: 1}, {"codasca": {1: 2}}, _within_itself()])
def test_what_is_no_table_of_keys_is_refused_in_a_line(config: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        flatten(config)
    assert len(refused.value.problems) == 1


@given(st.text() | st.integers() | st.floats() | st.lists(st.text()) | st.just(10**5000))
def test_any_value_is_shown_in_a_short_line(value: object) -> None:
    assert len(shown(value)) < 15 * LONGEST
    assert shown(value).isprintable()
