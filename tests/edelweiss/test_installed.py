"""What a user does outside the repository: README, docs/extend.md, and a package that offers names by entry points."""

from __future__ import annotations

import re

import pytest

from tests.installed import REPO, Installed

pytestmark = pytest.mark.deployments

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "outsider"
version = "1.0"
[project.entry-points."edelweiss.algorithms"]
half-step = "outsider:HalfStep"
fedavg = "outsider.trap:FedAvg"
[project.entry-points."edelweiss.models"]
tiny = "outsider:Tiny"
mlp = "outsider.trap:Mlp"
[project.entry-points."edelweiss.metrics"]
caught = "outsider:caught"
"""

CODE = """
from torch import nn
import edelweiss as ew

class HalfStep(ew.Algorithm):
    name = "half-step"
    solves = frozenset({"minimisation"})
    info = ew.AlgorithmInfo(gradients="q")

    def local_update(self, sent, memory, oracle, context):
        x = sent["x"].clone()
        for _ in range(context.local_steps):
            x = x - 0.5 * oracle.gradient(x)[0]
        return {"x": x}, {}

class Tiny(nn.Sequential):
    def __init__(self, shape, outputs):
        super().__init__(nn.Flatten(), nn.Linear(shape[0], 3), nn.Tanh(), nn.Linear(3, outputs))

def caught(labels, scores, weights=None):
    weights = labels * 0.0 + 1 if weights is None else weights
    return (weights * ((scores > 0) & (labels == 1))).sum() / (weights * (labels == 1)).sum()
"""

PATIENTS = """
import numpy as np, pandas as pd
draws = np.random.default_rng(0)
patients = pd.DataFrame(draws.normal(size=(300, 4)).round(3), columns=list("abcd"))
patients.head(5).to_csv("new.csv", index=False)
patients["died"] = (patients.a + draws.normal(size=300) > 0.8).astype(int)
patients["clinic"] = draws.choice(["north", "south"], 300)
patients.to_csv("patients.csv", index=False)
"""

RUN = """
import sys, edelweiss as ew
assert not any(name.startswith("outsider") for name in sys.modules)
if __name__ == "__main__":
    data = ew.table("patients.csv", sites="clinic", label="died")
    more = dict(rounds=2, workers=2, threads=2, report=False, run_name="called", metrics=["caught"])
    run = ew.simulate("half-step", "bce", data, model="tiny", **more)
    print(run.metrics[-1]["caught"], "outsider.trap" in sys.modules)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel, and a package that offers an algorithm, a model and a metric, two under names that are taken."""
    place = tmp_path_factory.mktemp("installed")
    package = place / "project" / "outsider"
    package.mkdir(parents=True)
    (package.parent / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (package / "__init__.py").write_text(CODE, encoding="utf-8")
    (package / "trap.py").write_text("raise SystemExit('it was imported')", encoding="utf-8")
    found = Installed.of(place, package.parent)
    (found.folder / "patients.py").write_text(PATIENTS, encoding="utf-8")
    found.run("python", "patients.py")
    return found


def test_an_installed_package_is_named_from_shell_and_python_and_its_runs_are_used(installed: Installed) -> None:
    folder = installed.folder
    (folder / "run.py").write_text(RUN, encoding="utf-8")
    assert installed.run("python", "run.py").split()[-1] == "False"
    keys = 'algorithm="half-step" problem="bce" model="tiny" metrics="caught" rounds=2 report=false'
    keys += ' dataset="table" data-file="patients.csv" label="died" group-column="clinic" partition="sites" sites=2'
    installed.run("edelweiss", "--run-config", f'{keys} run-name="named"')
    lines = [(folder / "runs" / name / "metrics.jsonl").read_text() for name in ("named", "called")]
    named, called = ([float(found) for found in re.findall(r'"(?:auroc|caught)": ([\d.e-]+)', each)] for each in lines)
    assert named == pytest.approx(called, abs=1e-6)
    installed.run("edelweiss", "--run-config", keys, "--run-config", 'run-name="other" model="mlp"')
    assert "tiny" in installed.run("edelweiss", "compare", "runs/named", "runs/other")
    installed.run("edelweiss", "predict", "runs/named", "new.csv")
    assert len((folder / "scores.csv").read_text().splitlines()) == 6
    installed.run("edelweiss", "export", "runs/named", "--onnx")
    assert (folder / "model.onnx").is_file()


@pytest.fixture(scope="module")
def followed(installed: Installed) -> Installed:
    """README's snippet, then docs/extend.md up to what is done in the repository: files, commands, and files again."""
    page = (REPO / "docs" / "extend.md").read_text(encoding="utf-8").partition("## In the repository")[0]
    readme = re.findall(r"^```python\n(.*?)^```", (REPO / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.M)
    (installed.folder / "readme.py").write_text(readme[0], encoding="utf-8")
    installed.run("python", "readme.py")
    files = []
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", page, re.DOTALL | re.M):
        if language == "python":
            name = block.partition("\n")[0].removeprefix("# ")
            (installed.folder / name).write_text(block, encoding="utf-8")
            files.append(name)
            if name != "mine.py":
                assert installed.run("python", name)
        elif language == "sh":
            installed.shell(block)
    assert files == ["mine.py", "run_mine.py", "later.py"]
    return installed


def test_the_pages_can_be_followed(followed: Installed) -> None:
    assert (followed.folder / "runs" / "mine" / "report.html").is_file()


@pytest.mark.parametrize("command", [["report"], ["compare"], ["predict", "new.csv"], ["export", "--onnx"]])
def test_a_run_of_what_is_not_here_is_refused_with_what_to_do(followed: Installed, command: list[str]) -> None:
    name, *rest = command
    said = followed.run("edelweiss", name, "runs/mine", *rest, fails=True)
    assert "--plug-in" in said
    assert "mine:" in said
    assert "Did you mean" not in said
    assert (followed.folder / "mine.py").is_file(), "it lies beside, and was not imported"
