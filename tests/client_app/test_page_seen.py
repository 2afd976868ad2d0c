"""What the page has read: as good as all of it, at the price of what is new."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from edelweiss.client_app.audit import Audit
from edelweiss.client_app.page import seen
from edelweiss.client_app.page.seen import Log, Runs
from edelweiss.client_app.policy.records import Records, RunRecord


def grown(folder: Path, lines: int) -> Log:
    """Return a log that was read when it had so many lines."""
    for number in range(lines):
        Audit(folder).operator(f"did {number}", "1")
    return Log(folder).fresh()


def altered(folder: Path) -> None:
    """Change a line of the past, and let the site write another."""
    file = folder / "audit.jsonl"
    with file.open("r+b") as stream:
        stream.write(file.read_bytes().replace(b"did 1", b"did 7"))
    Audit(folder).operator("did more", "1")


def test_a_log_that_grows_is_read_on(tmp_path: Path) -> None:
    log = grown(tmp_path, 5)
    before = log.rows["1"]
    for number in range(5):
        Audit(tmp_path).operator(f"goes on {number}", "2" if number else "1")
        log.fresh()
    assert (log.problem, log.lines, log.last) == ("", 10, Audit(tmp_path).head()[1])
    assert {run: len(rows) for run, rows in log.rows.items()} == {"1": 6, "2": 4}
    assert len(before) == 5, "what somebody is looking at does not change"
    assert log.rows == Log(tmp_path).fresh().rows


def test_what_was_written_while_it_was_read_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor when only the seal follows: a site that trains writes all the time, and a log has thousands of lines."""
    log, read, counts = grown(tmp_path, 5), seen.read_into, []

    def reading(rows: Any, hashes: list[str], folder: Path, **more: Any) -> None:
        if len(counts) < 3:
            Audit(tmp_path).operator("did more", "1")
        read(rows, hashes, folder, **more)
        counts.append(len(hashes))

    monkeypatch.setattr(seen, "read_into", reading)
    Audit(tmp_path).operator("goes on", "1")
    for _ in range(3):
        log.fresh()
        seal = tmp_path / "audit.seal"
        seal.write_bytes(seal.read_bytes())
    log.fresh()
    assert counts == [2, 1, 1, 0]
    assert (log.problem, log.lines) == ("", 9)


def test_a_past_that_was_changed_is_found_when_the_log_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is verified at times, beside what is new."""
    monkeypatch.setattr(seen, "WHOLE", (0.0, 0.0))
    log = grown(tmp_path, 5)
    altered(tmp_path)
    deadline = time.monotonic() + 600
    while not log.fresh().problem:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["replaced", "shorter", "in place", "torn"])
def test_any_other_change_is_read_whole(tmp_path: Path, how: str) -> None:
    log, file = grown(tmp_path, 5), tmp_path / "audit.jsonl"
    text = file.read_bytes()
    if how == "replaced":
        file.unlink()
        file.write_bytes(text.replace(b"did 1", b"did 7") + b"{}\n")
    elif how == "shorter":
        file.write_bytes(b"".join(text.splitlines(keepends=True)[:3]))
    elif how == "in place":
        file.write_bytes(text.replace(b"did 1", b"did 7"))
    else:
        file.write_bytes(text[:-10])
    assert log.fresh().problem
    file.write_bytes(text)
    assert not log.fresh().problem
    assert log.lines == 5


def test_a_record_is_read_when_it_or_its_decision_has_changed(tmp_path: Path) -> None:
    records = Records(str(tmp_path))
    runs = Runs(records)
    assert runs.all() == []
    record = RunRecord(run="1", began=2.0, asked="x", until=time.time() + 60, shown={})
    records.note(record)
    records.note(RunRecord(run="2", began=1.0, asked="x", shown={}))
    assert [one.run for one in runs.all()] == ["2", "1"]
    assert runs.all()[1].waits
    records.decide(record, "approved")
    assert runs.all()[1].decision == "approved"
    records.note(RunRecord(run="2", began=1.0, asked="x", shown={}, rounds=3))
    assert [one.rounds for one in runs.all()] == [3, 0]
    (records.folder / "runs" / "2.json").unlink()
    assert [one.run for one in runs.all()] == ["1"]
    assert runs.all() == records.runs()
