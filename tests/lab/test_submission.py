"""`edelweiss submit`: who submits a run is told how it ended, in a line and by the exit code."""

from __future__ import annotations

import io
import re
import tomllib
import zipfile
from pathlib import Path
from typing import cast

import pytest
from flwr.cli.build import build_fab_from_disk

from edelweiss.common import flatten
from edelweiss.lab.cli import main
from edelweiss.lab.commands.submit import Connection
from edelweiss.lab.report.page import TEMPLATE
from edelweiss.lab.submission import REPO, Flower, Outcome, app_table, read_run_config, stage, state_of
from edelweiss.strategies import ALGORITHMS
from tests.said import lines


@pytest.mark.parametrize(
    ("details", "log", "why"),
    [
        (
            "No heartbeat received from the task",
            "round 1/3",
            "lost: finished:failed, No heartbeat received from the task",
        ),
        ("An exception: rounds = 0", "rounds = 0", "the run failed, see above"),
        ("", "", "finished:failed"),
    ],
)
def test_a_failure_is_explained_once(details: str, log: str, why: str) -> None:
    outcome = Outcome("finished:failed", details, log)
    assert not outcome.ok
    assert why in outcome.why


@pytest.mark.parametrize(
    ("status", "details", "code"),
    [
        ("finished:completed", "", 0),
        ("finished:failed", "An exception: rounds = 0", 1),
        ("finished:failed", "", 1),
        ("refused", "Flower did not start it", 1),
        ("finished:stopped", "", 3),
        ("finished:failed", "An exception: stopped: before its end", 3),
        ("finished:failed", "An exception: stopped: site 'north' still waits for approval", 3),
        ("finished:failed", "An exception: the site stopped: it has no data", 1),
        ("finished:failed", "lost: its process was killed by SIGKILL", 4),
        ("finished:failed", "No heartbeat received from the task", 4),
        ("unknown", "the SuperLink does not answer", 4),
        ("running", "", 4),
    ],
)
def test_the_exit_code_is_how_the_run_ended(status: str, details: str, code: int) -> None:
    assert Outcome(status, details, "").code == code


def test_a_run_that_a_superlink_has_forgotten_is_not_said_to_go_on() -> None:
    """As Flower answers whose database was put back."""
    answer = '{"success": false, "error-message": "Displaying run ID 7...\\n\\n[code: 16] Run ID not found."}'

    def flower(command: list[str]) -> list[str]:
        return ["Using SuperLink: deployment\n", answer] if "list" in command else []

    outcome = state_of("7", cast(Flower, flower))
    assert outcome.code == 4
    assert "does not know it" in outcome.why


def test_a_connection_is_encrypted_unless_it_is_said_not_to_be() -> None:
    def own(connection: Connection) -> dict[str, object]:
        found = tomllib.loads(connection.to_toml())["superlink"]
        return dict(found[found["default"]])

    secure = own(Connection("host:8000", "/certificates/ca.crt"))
    assert secure == {"address": "host:8000", "insecure": False, "root-certificates": "/certificates/ca.crt"}
    assert own(Connection("host:8000")) == {"address": "host:8000", "insecure": True}
    with pytest.raises(SystemExit):
        main(["submit", "--superlink", "host:8000"])


def test_a_mistake_in_the_run_config_is_told_before_anything_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "--superlink", "127.0.0.1:1", "--insecure", "--run-config", "ronds=3"]) == 2
    assert lines(capsys.readouterr().err, "ronds", "'rounds'")


def test_options_of_a_plug_in_are_checked_and_become_keys_of_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "elsewhere.py").write_text(
        "import edelweiss as ew\nfrom dataclasses import dataclass\nfrom edelweiss.strategies.fedavg import FedAvg\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Own(FedAvg):\n    mu: float = ew.Field(0.1, ge=0)\n",
        encoding="utf-8",
    )
    given = ['algorithm="elsewhere:Own" problem="bce"', "own.mu=-0.5"]
    assert main(["submit", "--superlink", "a:1", "--insecure", *(f"--run-config={each}" for each in given)]) == 2
    assert lines(capsys.readouterr().err, "own.mu", "-0.5", ">= 0")
    before = flatten(app_table()["config"])
    project = stage(tmp_path / "app", read_run_config([given[0], "own.mu=0.5"])) / "pyproject.toml"
    config = tomllib.loads(project.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    assert flatten(config) == before | {"own.mu": 0.5}
    del ALGORITHMS["own"]


@pytest.mark.slow
def test_without_a_superlink_it_fails(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "--superlink", "127.0.0.1:1", "--insecure"]) == 1
    assert lines(capfd.readouterr().err, "error: ", "refused")


def test_the_bundle_carries_all_that_the_app_has_and_the_report_s_template(tmp_path: Path) -> None:
    """As Flower builds it: what it carries is decided by the endings of names, too."""
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(stage(tmp_path)))) as bundle:
        assert bundle.read(f"edelweiss/{TEMPLATE.resolve().relative_to(REPO).as_posix()}") == TEMPLATE.read_bytes()
        packages = {Path(name).parts[-2] for name in bundle.namelist() if re.fullmatch(r"(\w+/){1,2}__init__.py", name)}
    assert packages == {path.parent.name for path in REPO.glob("*/__init__.py")} - {"tests", "bin", "benchmarks"}
    # As folders of the one package: none is looked for beside it.
    assert all(name.startswith(("edelweiss/", ".info/")) or "/" not in name for name in bundle.namelist())
