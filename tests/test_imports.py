"""Imports run one way, under one name, and starting an app is cheap."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Each may import what stands to its right, and itself.
ORDER = (
    "lab",
    "server_app",
    "client_app",
    "config",
    "strategies",
    "federation",
    "evidence",
    "problems",
    "models",
    "datasets",
    "web",
    "common",
)
DOORS = {"server_app/app.py", "server_app/simulation.py"}
"""Where a run is started: they hand the coordinator what is above it, the report."""

# torch alone costs over a second, and a SuperNode starts a process for every message.
OPERATORS = {"approve": ["1"], "refuse": ["1"], "audit": []}
HEAVY = {"matplotlib", "pandas", "ray", "scipy", "sklearn", "torch", "torchvision"}


def imported(source: str) -> set[str]:
    """Names of all packages that a file imports, at any depth, also for type checkers only; ours as in `ORDER`."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            modules |= set(whole) if node.module == "edelweiss" else {str(node.module)}
    return {name.removeprefix("edelweiss.").partition(".")[0] for name in modules}


def test_every_package_of_the_app_has_its_place_in_the_order() -> None:
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "bin", "benchmarks", "edelweiss"}
    assert found == set(ORDER)


def test_the_order_sees_imports() -> None:
    for package in ORDER[:-1]:  # the last imports none of ours
        below = set(ORDER[ORDER.index(package) + 1 :])
        assert any(imported(path.read_text(encoding="utf-8")) & below for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", ORDER)
def test_every_package_is_reached_under_the_one_name(package: str) -> None:
    link = ROOT / "edelweiss" / package
    assert link.is_symlink()
    assert link.readlink() == Path("..") / package, "relative: a checkout can be moved"


@pytest.mark.parametrize("package", ORDER)
def test_imports_run_one_way(package: str) -> None:
    forbidden = set(ORDER[: ORDER.index(package)])
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    wrong = {
        path.relative_to(ROOT).as_posix(): sorted(found)
        for path in files
        if path.relative_to(ROOT).as_posix() not in DOORS
        and (found := imported(path.read_text(encoding="utf-8")) & forbidden)
    }
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.parametrize("package", ORDER)
def test_no_file_of_the_app_imports_what_the_bundle_lacks(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        assert not imported(path.read_text(encoding="utf-8")) & {"tests", "benchmarks", "bin"}, path


def test_only_the_local_engine_calls_the_client_app() -> None:
    # Elsewhere the two are on different machines and know of each other what a message holds.
    calling = {path.name for path in (ROOT / "server_app").rglob("*.py") if "client_app" in imported(path.read_text())}
    # The last two: which clients can train side by side, and where on this machine's disk sites remember.
    assert calling == {"local.py", "worker.py", "memory_estimate.py", "site_states.py"}


def test_an_algorithm_knows_nothing_of_flower() -> None:
    # The loop and the wire are Flower's; an algorithm, and what it is written against, is arithmetic on vectors.
    against = [ROOT / "federation" / f"{name}.py" for name in ("algorithm", "average", "oracle", "stages")]
    for path in (*(ROOT / "strategies").glob("*.py"), *against):
        assert "flwr" not in imported(path.read_text(encoding="utf-8")), path


def test_the_lowest_package_needs_the_standard_library_and_the_validator_only() -> None:
    validator = {"annotated_types", "pydantic", "pydantic_core"}
    for path in (ROOT / "common").glob("*.py"):
        assert imported(path.read_text(encoding="utf-8")) <= sys.stdlib_module_names | validator | {"common"}, path


def test_no_test_file_imports_another() -> None:
    # What several need is in a helper module or in conftest.py: a file of tests can be renamed, thinned and removed.
    names = re.compile(r"^ *(?:from|import) (?:tests(?:\.\w+)* import |tests\.)(?:[\w., ]*\b)?test_\w+.*", re.MULTILINE)
    files = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    assert len(files) > 100
    assert {path.name: found for path, text in files.items() if (found := names.findall(text))} == {}


def at_import(body: Iterable[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that run when a module is loaded: not those within functions, nor those for type checkers."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from at_import(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in ("body", "orelse", "finalbody"):
                yield from at_import(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from at_import(handler.body)


def test_no_files_import_each_other_in_a_circle() -> None:
    files = {
        "edelweiss." + ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for package in ORDER
        for path in (ROOT / package).rglob("*.py")
    }
    modules = {name.removesuffix(".__init__"): path for name, path in files.items()}
    loads: dict[str, set[str]] = {}
    for module, path in modules.items():
        named: set[str] = set()
        for node in at_import(ast.parse(path.read_text(encoding="utf-8")).body):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            else:  # from edelweiss.common import fields loads a file of its own, ... import hyper the package
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                named |= {name if name in modules else str(node.module) for name in whole}
        loads[module] = named & modules.keys()
    assert sum(map(len, loads.values())) > len(modules), "there is something to look at"
    graphlib.TopologicalSorter(loads).prepare()  # raises CycleError, which names the files


IDLE = {
    "edelweiss.client_app.page.app, edelweiss.client_app.connection, edelweiss.client_app.notify.process",
    "edelweiss.server_app.executor, edelweiss.server_app.run_folder, edelweiss.server_app.superlink",
}
"""What a site's page and notifier and the coordinator's executor and SuperLink load, which wait for weeks."""


@pytest.mark.parametrize("modules", ["edelweiss.client_app.app", "edelweiss.server_app.app", *sorted(IDLE)])
def test_loading_an_app_imports_nothing_heavy(modules: str) -> None:
    code = f"import sys, {modules}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=600
    )
    assert sorted(HEAVY & set(done.stdout.split())) == []


def test_an_operator_decides_and_reads_the_log_without_waiting_for_torch(tmp_path: Path) -> None:
    words = [[command, *run, f"--state-dir={tmp_path}"] for command, run in OPERATORS.items()]
    code = "import sys; from edelweiss.client_app.cli import main\n"
    code += f"for words in {words}: main(words)\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stderr.count("no run that waits for you") == 2  # they did what they do
    assert sorted(HEAVY & set(done.stdout.splitlines()[-1].split())) == []
