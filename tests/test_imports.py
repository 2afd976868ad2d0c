"""Imports run one way, and starting an app is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Each may import what stands to its right, and itself.
ORDER = ("server_app", "client_app", "config", "strategies", "problems", "models", "datasets")

# torch alone costs over a second, and a SuperNode starts a process for every message.
HEAVY = {"matplotlib", "pandas", "ray", "scipy", "sklearn", "torch", "torchvision"}


def imported(source: str) -> set[str]:
    """Top-level names of all modules that a file imports, at any depth, also for type checkers only."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names.add((node.module or "").partition(".")[0])
    return names


def test_every_package_of_the_app_has_its_place_in_the_order() -> None:
    found = {path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name not in ("tests", "bin")}
    assert found == set(ORDER)


@pytest.mark.parametrize("package", ORDER)
def test_imports_run_one_way(package: str) -> None:
    forbidden = set(ORDER[: ORDER.index(package)])
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    wrong = {
        path.relative_to(ROOT).as_posix(): sorted(found)
        for path in files
        if (found := imported(path.read_text(encoding="utf-8")) & forbidden)
    }
    assert wrong == {}


@pytest.mark.parametrize("package", ORDER)
def test_no_file_of_the_app_imports_what_the_bundle_lacks(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        assert not imported(path.read_text(encoding="utf-8")) & {"tests", "benchmarks", "bin"}, path


def test_an_algorithm_knows_nothing_of_flower() -> None:
    # The loop and the wire are Flower's; an algorithm is arithmetic on vectors.
    plumbing = {"base.py", "exchange.py", "wire.py"}
    for path in (ROOT / "strategies").glob("*.py"):
        if path.name not in plumbing:
            assert "flwr" not in imported(path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("module", ["client_app.app", "server_app.app"])
def test_loading_an_app_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    assert sorted(HEAVY & set(done.stdout.split())) == []
