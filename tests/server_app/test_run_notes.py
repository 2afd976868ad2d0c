"""What a run warned of stays in its folder: in order, on one line each, the newest; it stops no run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edelweiss.common import Value
from edelweiss.server_app import run_notes, simulate
from edelweiss.server_app.console import Progress
from edelweiss.server_app.run_notes import ACTS, LONGEST, WARNINGS, RunWarnings, read_notes

HOSTILE = "\x1b[2J<script>alert(1)</script>\r\nwarning: \u202eforged"


class Heard(Progress):
    """Remembers what is printed."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.heard: list[str] = []

    def _show_warning(self, text: str) -> None:
        self.heard.append(text)


def leaky(file: Path) -> Path:
    """Write a table one of whose columns is all but the label."""
    rows = [f"{n % 7},{n % 3 == 0},{int(n % 3 == 0) * 5 + n % 2}" for n in range(300)]
    file.write_text("\n".join(["a,died,leak", *rows]))
    return file


def texts(folder: Path) -> list[str]:
    return [note["text"] for note in read_notes(folder / WARNINGS)]


def test_what_a_run_warns_of_stays_in_its_folder(tmp_path: Path) -> None:
    heard = Heard()
    keys: dict[str, Value] = {"algorithm": "fedavg", "problem": "bce", "model": "linear", "rounds": 1, "sites": 3}
    keys |= {"dataset": "table", "data-file": str(leaky(tmp_path / "t.csv")), "label": "died", "report": False}
    result = simulate(keys | {"runs-dir": str(tmp_path / "runs"), "workers": 1}, progress=heard)
    assert heard.heard
    assert texts(result.folder) == [" ".join(text.split("\n")) for text in heard.heard]


def test_a_flood_leaves_the_newest_on_one_line_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_notes, "MOST", 10)
    for _ in range(3):  # of a run that is resumed
        warnings = RunWarnings(tmp_path)
        for number in range(17):
            warnings.keep(f"{number} {HOSTILE} {'x' * 10**5}")
    found = texts(tmp_path)
    assert 10 <= len(found) <= 20
    assert [text.split()[0] for text in found[-10:]] == [*map(str, range(7, 17))]
    assert all(text.isprintable() and len(text) < LONGEST + 10 for text in found)
    assert [*tmp_path.iterdir()] == [tmp_path / WARNINGS]


def test_a_flood_of_what_takes_most_bytes_is_still_read(tmp_path: Path) -> None:
    warnings = RunWarnings(tmp_path)
    warnings.keep("\ud800")
    for _ in range(2 * run_notes.MOST - 1):
        warnings.keep("\N{GRINNING FACE}" * 2 * LONGEST)
    found = texts(tmp_path)
    assert (len(found), found[0]) == (2 * run_notes.MOST, "\N{REPLACEMENT CHARACTER}")
    assert found[-1] == "\N{GRINNING FACE}" * LONGEST + "..."


def test_what_somebody_wrote_into_it_is_left_out(tmp_path: Path) -> None:
    RunWarnings(tmp_path).keep("first")
    with (tmp_path / WARNINGS).open("ab") as file:
        file.write(b'\xff\n[]\n{"text": "no time"}\n{"at": "now"}\n' + b"[" * 10**5 + b'\n{"at": 1, "te')
    assert texts(tmp_path) == ["first"]
    (tmp_path / ACTS).mkdir()
    assert read_notes(tmp_path / ACTS) == []


def test_a_folder_that_takes_no_warning_stops_no_run(tmp_path: Path) -> None:
    (tmp_path / WARNINGS).mkdir()
    RunWarnings(tmp_path).keep("first")
    os.rmdir(tmp_path / WARNINGS)
    RunWarnings(tmp_path / "gone").keep("second")
    (tmp_path / ACTS).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        run_notes.note_act(tmp_path, "stopped", "anna")
    assert not (tmp_path / "elsewhere").exists()
