"""What a run-config names on this machine is looked for before anything starts: said once, with its path."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edelweiss.common import Value, files_named
from edelweiss.common.options import suffixes
from edelweiss.config import MISTAKES, ConfigError, RunConfig
from edelweiss.config.tables import tables
from edelweiss.federation import RunError
from edelweiss.problems import PROBLEMS
from edelweiss.server_app import simulate
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from edelweiss.server_app.local import LocalGrid, unused_run_id
from edelweiss.strategies import ALGORITHMS
from tests.said import has
from tests.server_app.sites import Elsewhere, job, saddle_job, table, write_table

BCE: dict[str, Value] = {"algorithm": "fedavg", "problem": "bce", "model": "linear"}
TABLE: dict[str, Value] = {**BCE, "dataset": "table", "thin-share": 0.0, "partition": "iid"}
NAMED: dict[str, dict[str, Value]] = {
    "data-file": TABLE,
    "data-root": {**BCE, "dataset": "heart-disease"},
    "study": {**TABLE, "data-file": "DATA"},
    "init-from": BCE,
    "pretrained": {**BCE, "model": "resnet18", "dataset": "digits"},
    "compare-with": BCE,
    "resume": BCE,
}
"""Keys that name what must be there, and a run that each goes with."""


def files_of_tables() -> Iterator[tuple[str, dict[str, Value]]]:
    """Yield the keys of algorithms and problems that name a file, and a run that each goes with."""
    for name in tables():
        owner: Any = ALGORITHMS.get(name) or PROBLEMS[name]
        for key in files_named(owner, dict.fromkeys(["file", "graph-file"], "x")):
            if name in PROBLEMS:
                yield f"{name}.{key}", {"problem": name, "algorithm": "local-sgda"}
            else:
                yield f"{name}.{key}", {**BCE, "algorithm": name, f"{name}.topology": "file"}


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No site is asked anything."""

    def asked(*_: object) -> None:
        raise AssertionError("a site was asked")

    monkeypatch.setattr(LocalGrid, "push_messages", asked)


CASES = [*NAMED.items(), *files_of_tables()]


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(("key", "keys"), CASES, ids=[key for key, _ in CASES])
def test_what_a_key_names_and_is_not_there_is_said_once_before_anything_starts(
    tmp_path: Path, key: str, keys: dict[str, Value], capfd: pytest.CaptureFixture[str]
) -> None:
    table_there = write_table(tmp_path, *table(40, seed=0)) / "data.csv"
    keys = {k: str(table_there) if value == "DATA" else value for k, value in keys.items()}
    field = next((f for name in tables() for full, f in tables()[name].items() if f"{name}.{full}" == key), None)
    gone = tmp_path / f"nowhere{suffixes(field)[0] if field else '.csv'}"
    with pytest.raises(MISTAKES) as caught:
        simulate(job(tmp_path) | keys | {key: str(gone)}, quiet=False)
    said = str(caught.value)
    assert str(gone) in said
    if key not in ("data-file", "data-root"):  # of which what is missing says where it was looked for
        assert key in said
    assert len(said.splitlines()) <= 1 + isinstance(caught.value, ConfigError)
    assert not (tmp_path / "runs").exists()
    assert "nowhere" not in "".join(capfd.readouterr())


@pytest.mark.usefixtures("silent")
def test_a_table_is_looked_for_whatever_engine_plays_the_sites(tmp_path: Path) -> None:
    config = RunConfig.parse(job(tmp_path) | TABLE | {"data-file": str(tmp_path / "nowhere.csv")})
    with LocalGrid(config, unused_run_id()) as grid, pytest.raises(MISTAKES, check=has("nowhere.csv")):
        coordinate(config, Elsewhere(grid), Progress(quiet=True))  # type: ignore[arg-type]
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("silent")
def test_all_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    keys = {"data-file": f"{tmp_path}/no.csv", "init-from": f"{tmp_path}/no-run", "compare-with": f"{tmp_path}/none"}
    with pytest.raises(RunError) as caught:
        simulate(job(tmp_path) | TABLE | keys | {"runs-dir": str(tmp_path / "a-file")})
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    for name in ("no.csv", "no-run", "none", "a-file"):
        assert sum(f"{tmp_path}/{name}" in line for line in lines) == 1


@pytest.mark.usefixtures("silent")
def test_what_is_wrong_in_a_table_is_said_before_anything_starts(tmp_path: Path) -> None:
    file = write_table(tmp_path, *table(40, seed=0)) / "data.csv"
    file.write_text(file.read_text().replace("marker_1", "label", 1))
    with pytest.raises(MISTAKES, check=has("'label'")):
        simulate(job(tmp_path) | TABLE | {"data-file": str(file)})
    assert not (tmp_path / "runs").exists()


def test_a_socket_is_no_table(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "x.csv"))
        with pytest.raises(MISTAKES, check=has("x.csv")):
            simulate(saddle_job(tmp_path) | TABLE | {"algorithm": "fedavg", "data-file": str(tmp_path / "x.csv")})
