"""What is installed: pinned versions, the wheel, and copies of the sources without symbolic links."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from edelweiss.federation.fingerprint import fingerprint
from edelweiss.lab.submission import stage
from tests import forks
from tests.installed import Installed, quiet

REPO = Path(__file__).resolve().parents[1]
INSTALLED_BY_CI = "edelweiss[test,lint,docs]"

EVERYTHING = """
import importlib, pathlib, sys
import edelweiss.strategies
here = pathlib.Path(edelweiss.__file__).parent
root = pathlib.Path(edelweiss.strategies.__file__).parents[1]
files = [*here.glob("*.py"), *(path for path in root.glob("*/**/*.py") if path.parent != here)]
parts = {path.relative_to(here if path.parent == here else root).with_suffix("").parts for path in files}
names = {".".join(("edelweiss", *words)).removesuffix(".__init__") for words in parts if words[-1] != "__main__"}
for name in sorted(names):
    importlib.import_module(name)
bare = {name.partition(".")[0] for name in sys.modules} & {words[0] for words in parts if len(words) > 1}
from edelweiss.federation.fingerprint import fingerprint
print(len(names), sorted(bare), fingerprint(), here)
"""
"""Imports every module under the one name; prints how many, what was imported by its bare name, and the fingerprint."""


def canonical(name: str) -> str:
    """Return a distribution's name as an index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_installed_requirement_is_pinned_at_its_version() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (REPO / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonical(line.partition("==")[0]): line.partition("==")[2] for line in lines if "==" in line}
    waiting, seen, unpinned = [Requirement(INSTALLED_BY_CI)], set[tuple[str, str]](), {}
    while waiting:
        requirement = waiting.pop()
        name = canonical(requirement.name)
        for extra in {"", *requirement.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            if name == "edelweiss":  # from this file: what is installed may be older
                needs = project["optional-dependencies"][extra] if extra else project["dependencies"]
            else:
                try:
                    found = metadata.distribution(name)
                except metadata.PackageNotFoundError:
                    continue
                version = found.version.partition("+")[0]  # torch's CPU build is the same release
                if pinned.get(name) != version:
                    unpinned[name] = f"{version}, pinned: {pinned.get(name)}"
                needs = found.requires or []
            for need in map(Requirement, needs):
                if need.marker is None or need.marker.evaluate({"extra": extra}):
                    waiting.append(need)
    assert unpinned == {}
    assert len(seen) > 100


def parsed(said: str) -> tuple[int, str, str, Path]:
    """Return what `EVERYTHING` printed."""
    count, rest = said.strip().split(" ", 1)
    bare, mark, place = rest.rsplit(" ", 2)
    return int(count), bare, mark, Path(place)


def imported(folder: Path, python: str) -> tuple[int, str, str, Path]:
    """Import every module of the package, in a new interpreter."""
    done = subprocess.run([python, "-c", EVERYTHING], cwd=folder, capture_output=True, text=True, env=quiet(folder))
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


def checkout_without_links(target: Path) -> Path:
    """Copy the sources as git does where it cannot create links: a text file with the link's target in its place."""
    for package in [path.parent for path in REPO.glob("*/__init__.py") if path.parent.name != "tests"]:
        copy = target / package.name
        shutil.copytree(package, copy, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        for path in [path for path in copy.iterdir() if path.is_symlink()]:
            link = path.readlink()
            path.unlink()
            path.write_text(str(link), encoding="utf-8")
    return target


@pytest.mark.slow
@pytest.mark.parametrize("copy", [checkout_without_links, stage])
def test_a_copy_without_links_imports_everything_under_the_one_name(
    copy: Callable[[Path], Path], tmp_path: Path
) -> None:
    copied = copy(tmp_path)
    assert not [path for path in copied.rglob("*") if path.is_symlink()]
    (tmp_path / "everything.py").write_text(EVERYTHING, encoding="utf-8")
    done = forks.python(["everything.py"], tmp_path, {"edelweiss"})
    assert done.returncode == 0, done.stderr
    count, bare, mark, place = parsed(done.stdout)
    assert count > 250
    assert bare == "[]", "imported by its bare name"
    assert mark == fingerprint()
    assert place == copied / "edelweiss"


@pytest.mark.deployments
def test_the_wheel_runs_where_there_is_no_checkout(tmp_path: Path) -> None:
    """Build it, install it into a new environment, and run both commands from an empty folder."""
    installed = Installed.of(tmp_path)
    home, empty, packages, run = installed.home, installed.folder, installed.packages, installed.run
    version = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    names = {path.name for path in packages.iterdir()}
    assert {name for name in names if "edelweiss" in name} == {
        "edelweiss",
        f"edelweiss-{version}.dist-info",
    }
    assert not {"datasets", "models", "config", "docs", "tests"} & names
    count, bare, mark, place = imported(empty, str(home / "bin" / "python"))
    assert (bare, mark, place) == ("[]", fingerprint(), packages / "edelweiss")
    assert count > 250

    run("edelweiss", "--run-config", 'rounds=1 sites=2 run-name="first"')
    assert (empty / "runs" / "first" / "model.safetensors").is_file()
    assert (empty / "runs" / "first" / "report.html").is_file()
    assert "--run-config" in run("edelweiss", "submit", "--help")
    assert "doctor" in run("edelweiss-site", "--help")
    assert "--run-config" in run("python", "-m", "edelweiss", "--help")
    staged = 'from pathlib import Path; from edelweiss.lab.submission import stage; print(stage(Path("app")))'
    run("python", "-c", staged)
    assert imported(empty / "app", str(home / "bin" / "python"))[2] == fingerprint()


@pytest.mark.parametrize(("old", "new"), [("server_app", "edelweiss"), ("client_app", "edelweiss-site")])
def test_a_command_of_before_names_the_new_one(old: str, new: str) -> None:
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(REPO / old / "__main__.py"), run_name="__main__")
    assert re.search(rf"python -m {old}\b.* {new} ", str(end.value.code)), "a text, so the exit code is 1"
