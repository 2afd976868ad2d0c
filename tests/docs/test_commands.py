"""What the pages tell a reader to type is what the commands take; one page's deployment is started by its words."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from bin.run import REPO, free_port
from edelweiss.client_app.cli import COMMANDS
from edelweiss.client_app.cli import main as client
from edelweiss.lab import cli as server
from edelweiss.lab.importers import IMPORTERS
from edelweiss.lab.submission import flower_environment, stage

PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (REPO / "docs").glob("*.md"))]


def blocks(page: str, language: str, after: str = "") -> list[str]:
    """Return the fenced blocks of a language, on the whole page or after a heading."""
    _, _, text = (REPO / page).read_text(encoding="utf-8").partition(after or "# ")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def typed(page: str) -> list[list[str]]:
    """Return the command and the arguments of each call of ours in the shell blocks of a page."""
    lines = "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    calls = [match[1] for line in lines if (match := re.search(r"(?:^|/|then |do )(edelweiss(?:-site)? .*)", line))]
    return [shlex.split(re.sub(r" >.*", "", call), comments=True) for call in calls]


@pytest.mark.parametrize("page", [page for page in PAGES if typed(page)])
def test_every_command_is_one_that_is_taken(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object) -> int:
        return 0

    sides: list[ModuleType] = [import_module(f"edelweiss.client_app.commands.{name}") for name in COMMANDS]
    for module in sides:
        monkeypatch.setattr(module, "run", nothing)
        monkeypatch.setattr(module, "state_folder", str, raising=False)  # there is none here
    for command in server.COMMANDS.values():
        monkeypatch.setattr(command, "main", nothing)
    monkeypatch.setattr(server, "run", nothing)
    monkeypatch.setattr(server, "load_plug_ins", nothing)
    monkeypatch.setitem(IMPORTERS, "brax", IMPORTERS["padchest"])  # which a reader of extend.md adds
    monkeypatch.setattr(server.signal, "signal", nothing)  # the tests' process keeps its own
    for command_name, *arguments in typed(page):
        try:
            assert (client if command_name == "edelweiss-site" else server.main)(arguments) == 0
        except SystemExit:
            pytest.fail(f"{page}: {command_name} {shlex.join(arguments)} is not taken")


@pytest.mark.deployments
def test_the_deployment_on_one_machine_can_be_followed(tmp_path: Path) -> None:
    """Its shell blocks in one shell, in a copy of the app; with ports that are free here."""
    page = "docs/run-at-a-hospital.md"
    section = "## Try it on one machine, without containers"
    [file] = blocks(page, "python", section)
    start, runs, later = blocks(page, "sh", section)
    stage(tmp_path)
    (tmp_path / "playground").mkdir()
    name, source = file.split("\n", 1)
    (tmp_path / name.removeprefix("# ")).write_text(source, encoding="utf-8")
    ready = "until grep -q 'Uvicorn running' playground/superlink.log; do sleep 0.2; done\n"
    script = start + ready + runs + later
    script = script.replace(". .venv/bin/activate", f'export PATH="{Path(sys.executable).parent}:$PATH"')
    fleet, control = free_port(), free_port()
    script = script.replace("9092", str(fleet)).replace("8000", str(control))
    script = script.replace("flower-superlink ", f"flower-superlink --port {control} ")
    environment = flower_environment(tmp_path / "home")
    command = ["bash", "-mc", script]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            said, _ = shell.communicate(timeout=900)
        finally:
            subprocess.run(["pkill", "-KILL", "--session", str(shell.pid)], check=False)
    finished = sorted(path.parent.name for path in tmp_path.glob("runs/*/metrics.jsonl"))
    assert len(finished) == 3, said
    assert "personal" in finished
    for folder in finished:
        assert json.loads((tmp_path / "runs" / folder / "status.json").read_text())["status"] == "complete"
    assert all(list((tmp_path / "playground" / "state" / place / "models").glob("*.safetensors")) for place in "abcd")
    assert "the model is in playground/state/d/models/personal-hospital-d.safetensors" in said
