"""A package from outside, installed at a coordinator and at hospitals: who allows it trains, the others say why not."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edelweiss.common import Value
from edelweiss.lab.submission import REPO
from tests.client_app.policies import site_toml
from tests.deployment.processes import deployment
from tests.server_app.sites import table, write_table

pytestmark = pytest.mark.deployments

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "outsider"
version = "1.0"
[project.entry-points."edelweiss.algorithms"]
proximal = "outsider.mine:Proximal"
[project.entry-points."edelweiss.problems"]
focal = "outsider.mine:Focal"
[project.entry-points."edelweiss.models"]
own-net = "outsider.mine:Net"
[project.entry-points."edelweiss.metrics"]
sensitivity = "outsider.mine:sensitivity"
"""
NAMES = ("proximal", "focal", "own-net", "sensitivity")
JOB: dict[str, Value] = {
    "algorithm": "proximal",
    "proximal.mu": 0.1,
    "problem": "focal",
    "focal.gamma": 1.0,
    "model": "own-net",
    "metrics": "sensitivity",
    "dataset": "site",
    "sites": 4,
    "rounds": 2,
}


def install(folder: Path) -> Path:
    """Install the example of docs/extend.md as a package, with data; it leaves a mark where it is imported."""
    project = folder / "project"
    (project / "outsider").mkdir(parents=True)
    (project / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    code = re.findall(r"```python\n(# mine.py\n.*?)```", (REPO / "docs" / "extend.md").read_text("utf-8"), re.DOTALL)[0]
    mark = "from pathlib import Path\nPath(__file__).parents[1].joinpath('imported').touch()\n"
    (project / "outsider" / "mine.py").write_text(code + mark, encoding="utf-8")
    (project / "outsider" / "__init__.py").touch()
    (project / "outsider" / "prices.json").write_text("[1]", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    place = folder / "coordinator"
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--target", str(place), str(project)], check=True)
    return place


def test_a_package_from_outside_trains_where_it_is_allowed_by_name_and_hash(tmp_path: Path) -> None:
    coordinator = install(tmp_path)
    places = {name: tmp_path / name for name in ("allows", "silent", "other-hash", "other-package", "lacks")}
    for name, place in places.items():
        if name != "lacks":
            shutil.copytree(coordinator, place)
    places["lacks"].mkdir()
    (places["other-package"] / "outsider" / "prices.json").write_text("[2]", encoding="utf-8")

    def hashed(place: Path) -> str:
        code = "from edelweiss.federation.fingerprint import package_hash as h; print(h('outsider'))"
        done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    hashes = {name: hashed(place) for name, place in places.items() if name != "lacks"} | {"other-hash": "0" * 64}
    hashes["lacks"] = hashes["allows"]
    assert hashes["allows"] == hashes["silent"] != hashes["other-package"]
    rules = {
        name: site_toml(tmp_path / f"of-{name}", plug_ins=[f"{each} sha256:{hashes[name]}" for each in NAMES])
        for name in places
    }
    site_toml(tmp_path / "of-silent")
    nodes: list[dict[str, Value]] = [
        {
            "site": name,
            "data-dir": str(write_table(tmp_path / f"of-{name}" / "data", *table(400, seed))),
            "state-dir": str(tmp_path / f"of-{name}" / "state"),
            "policy": rules[name],
            "label": "label",
        }
        for seed, name in enumerate(places)
    ]

    def log(name: str) -> str:
        return (tmp_path / f"site-{list(places).index(name)}.log").read_text(encoding="utf-8")

    job = JOB | {"sites": len(places), "runs-dir": str(tmp_path / "runs")}
    with deployment(tmp_path, nodes, installed=[coordinator, *places.values()]) as running:
        outcome = running.submit(job)
        assert not outcome.ok
        for name in ("silent", "other-hash", "other-package", "lacks"):
            assert re.search(rf"'{name}'[^\n]* refused: this site [^\n]+\n", outcome.log), (name, outcome.log)
            assert log(name).count("ERROR") == 1, log(name)
        assert "ERROR" not in log("allows")
        # Nothing was imported that the site does not allow. What it allows was, before the fingerprints differed.
        assert [name for name, place in places.items() if (place / "imported").exists()] == ["allows", "other-package"]
        for name in ("silent", "other-hash"):  # what the log says is what to write
            found = re.findall(r'"(\S+ sha256:\w{64})"', log(name))
            assert sorted(found) == sorted(f"{each} sha256:{hashes['allows']}" for each in NAMES)
            site_toml(tmp_path / f"of-{name}", plug_ins=found)
        outcome = running.submit(job | {"min-replies": 3})
        assert outcome.ok, outcome.log
    *_, folder = sorted((tmp_path / "runs").iterdir())
    *_, last = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    assert set(last["sites"]) == {"allows", "silent", "other-hash"}
    assert 0 <= last["pooled"]["sensitivity"] <= 1
