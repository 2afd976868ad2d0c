"""The documents say what the code does: links, quoted code, commands, and what they tell of algorithms and problems."""

from __future__ import annotations

import inspect
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import Field
from safetensors import safe_open
from safetensors.torch import load_file

from benchmarks.cluster import counted
from bin import docs
from edelweiss.common import flatten, read_overrides
from edelweiss.config import RunConfig
from edelweiss.datasets import Facts
from edelweiss.federation import Algorithm, AlgorithmInfo, Reply, RoundContext, Site, Table, both, kept
from edelweiss.lab.compare import samples
from edelweiss.lab.sweep.file import SweepFile
from edelweiss.models import MODELS
from edelweiss.problems import PROBLEMS, capabilities, papers
from edelweiss.server_app import simulate
from edelweiss.strategies import ALGORITHMS, can_solve
from edelweiss.strategies.dispfl import erk
from edelweiss.strategies.fedavg import FedAvg
from edelweiss.strategies.local_steps import LocalSteps
from tests import forks
from tests.fitting import fitting

REPO = Path(__file__).resolve().parents[2]
DOCUMENTS = [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md"))]
TEXTS = {path.relative_to(REPO).as_posix(): path.read_text(encoding="utf-8") for path in DOCUMENTS}
ADDING, EXTENDING, HOSPITAL, ARCHITECTURE = (
    TEXTS[f"docs/{name}.md"] for name in ("add-an-algorithm", "extend", "run-at-a-hospital", "architecture")
)

PACKAGES = {path.parent.name for path in REPO.glob("*/__init__.py")} - {"tests"}

IMAGE = r"!\[[^\]]*\]\(([^)\s]+)\)"

Arrays = dict[str, torch.Tensor]


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def table(text: str, first: str) -> list[list[str]]:
    """Return the cells of a table, by the heading of its first column, without its two head lines."""
    lines = text[text.index(f"| {first} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip().strip("|").split(" |")] for line in lines]


# ---------------------------------------------------------------------- links, code, commands


def anchors(text: str) -> set[str]:
    """Return what headings are called in links, as GitHub does it."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", TEXTS)
def test_relative_links_lead_somewhere(name: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", TEXTS[name]):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = ((REPO / name).parent / file).resolve() if file else REPO / name
        assert target.exists(), f"{name}: {link}"
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), f"{name}: {link}"


def test_every_picture_is_shown() -> None:
    shown = {
        ((REPO / name).parent / link).resolve() for name, text in TEXTS.items() for link in re.findall(IMAGE, text)
    }
    pictures = {path for kind in ("*.png", "*.svg") for path in (REPO / "docs").rglob(kind)}
    assert pictures - shown == set()


def test_quoted_code_is_that_of_the_file() -> None:
    quotes = [block.split("\n", 1) for block in blocks(ADDING, "python") if block.startswith("# ")]
    assert len(quotes) >= 4
    for heading, code in quotes:
        path = REPO / heading.removeprefix("# ")
        assert code in path.read_text(encoding="utf-8"), f"{heading} no longer has:\n{code}"


def run_configs(text: str) -> list[str]:
    """Return every run-config that a command of a page gives."""
    written = [re.sub(r"\$(fold|seed)", "0", block) for block in blocks(text, "sh")]
    tokens = [token for block in written for token in shlex.split(block, comments=True)]
    given = [after for token, after in pairwise(tokens) if token == "--run-config"]
    return given + [token.removeprefix("RUN_CONFIG=") for token in tokens if token.startswith("RUN_CONFIG=")]


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "docs/extend.md"])  # that one adds names of its own
def test_every_run_config_of_a_command_is_accepted(name: str) -> None:
    written = {block.split("\n", 1)[0].removeprefix("# "): block for block in blocks(TEXTS[name], "toml")}
    for text in run_configs(TEXTS[name]):
        if text in written:
            RunConfig.parse(flatten(tomllib.loads(written[text])))
        else:
            RunConfig.parse(read_overrides([str(REPO / text) if text.endswith(".toml") else text]))


def test_what_the_code_decides_is_written_by_make_docs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bin/docs.py", "--check"])
    assert docs.main() == 0, capsys.readouterr().err


def test_table_and_diagram_name_every_package_in_the_order_of_imports() -> None:
    packages = [row[0].strip("`/") for row in table(ARCHITECTURE, "package")]
    assert set(packages) == PACKAGES
    drawing = (REPO / "docs" / "architecture.svg").read_text(encoding="utf-8")
    assert [package for package in packages if f">{package}/<" not in drawing] == []
    assert " → ".join(packages[::-1]) in drawing
    imported = {
        package: set(re.findall(r"^from edelweiss\.(\w+)", text, re.MULTILINE))
        for package in packages
        for text in ["\n".join(path.read_text(encoding="utf-8") for path in (REPO / package).rglob("*.py"))]
    }
    for place, package in enumerate(packages):
        assert imported[package] & set(packages[place + 1 :]) == set()
    assert sum(map(len, imported.values())) > 30


def test_the_architecture_page_names_files_that_exist() -> None:
    named = set(re.findall(r"`((?:[\w-]+/)+[\w.-]+\.(?:py|md|toml|svg))`", ARCHITECTURE))
    assert len(named) > 20
    assert [name for name in named if not (REPO / name).exists()] == []


# ---------------------------------------------------------------------- what an algorithm may use; what a site sends


def test_every_hook_and_class_variable_is_documented() -> None:
    variables = {name for name, hint in Algorithm.__annotations__.items() if str(hint).startswith("ClassVar")}
    assert variables
    own = {name for name, member in vars(Algorithm).items() if callable(member) or isinstance(member, property)}
    own |= {name for name, member in vars(Algorithm).items() if isinstance(member, classmethod)}
    hooks = {name for name in own if not name.startswith("_")} - {"context", "position", "log_hyper_parameters"}
    # A row of a table, or a paragraph about it.
    missing = [n for n in variables | hooks if not re.search(rf"^(\| `{n}[(`]|`self\.{n}\()", ADDING, re.MULTILINE)]
    assert not missing
    for name, arguments in re.findall(r"^\| `(\w+)\(([^)]*)\)` \| (?:server|site|both)", ADDING, re.MULTILINE):
        taken = [name for name in inspect.signature(getattr(Algorithm, name)).parameters if name not in ("self", "cls")]
        assert taken == re.findall(r"\w+", arguments), name
    described = ADDING[ADDING.index("A `RoundContext` tells") : ADDING.index("Rules:")]
    assert not [name for name in RoundContext.__dataclass_fields__ if f"`{name}`" not in described]


def test_capabilities_are_offered_by_whom_the_page_says() -> None:
    rows = {row[0].strip("`"): row[2] for row in table(ADDING, "capability")}
    assert rows.keys() == {need.__name__ for algorithm in ALGORITHMS.values() for need in algorithm.needs}
    for name, said in rows.items():
        offering = {key for key, problem in PROBLEMS.items() if getattr(capabilities, name) in problem.__mro__}
        if said == "all with a network":
            assert offering == {key for key, problem in PROBLEMS.items() if problem.needs_data}
        else:
            assert offering == set(re.findall(r"`([\w-]+)`", said))


class Bowl:
    """½ ‖x - center‖² at a site, without noise: what of `federation.Oracle` a method without y needs."""

    def __init__(self, center: float) -> None:
        self.center = center

    def draw(self) -> None:
        return None

    def gradient(self, x: torch.Tensor, y: None = None, batch: None = None) -> tuple[torch.Tensor, None]:
        return x - self.center, None


def played(algorithm: Any, rounds: int) -> tuple[Arrays, dict[int, Arrays]]:
    """Play rounds with three sites; return the server's state and the sites' memories."""
    sites = [Site(k, f"site-{k}", k) for k in range(3)]
    state: Arrays = {"x": torch.zeros(4, dtype=torch.float64)}
    memories: dict[int, Arrays] = {k: {} for k in range(3)}
    for r in range(1, rounds + 1):
        context = algorithm.context(r, rounds, "train", 3)
        replies = []
        for site in sites:
            sent = algorithm.broadcast(state, context, site)
            reply, memories[site.index] = algorithm.local_update(sent, memories[site.index], Bowl(site.index), context)
            replies.append(Reply(site, reply))
        state = algorithm.aggregate(state, replies, context)
    return state, memories


@pytest.mark.slow
def test_the_algorithm_that_is_written_down_only_there_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = (block for block in blocks(ADDING, "python") if block.startswith("@dataclass"))
    names = {"dataclass": dataclass, "LocalSteps": LocalSteps, "AlgorithmInfo": AlgorithmInfo, "Field": Field}
    names |= {"Table": Table, "both": both, "kept": kept}
    exec(compile(source, "add-an-algorithm.md", "exec", flags=annotations.compiler_flag), names)
    method: Any = names["PFedMe"]
    # With ηλ = 1 and one step on θ for each on w, w takes the steps of θ: in the first round it is that of FedAvg.
    own, _ = played(method(lr=0.1, lam=2.0, lr_common=0.5, own_steps=1, local_steps=4), 1)
    assert torch.allclose(own["x"], played(FedAvg(lr=0.1, local_steps=4), 1)[0]["x"])
    # In the end w is the mean of the centres, 1, and θ of the site at 0 lies between: 1 - θ = 1 / (1 + λ).
    for lam in (0.1, 5.0):
        state, memories = played(method(lr=0.1, lam=lam, lr_common=0.1 / lam, local_steps=1), 1000)
        assert torch.allclose(state["x"], torch.ones(4, dtype=torch.float64), atol=1e-3)
        assert torch.allclose(state["x"] - memories[0]["x"], state["x"] / (1 + lam), atol=1e-3)
    monkeypatch.setitem(ALGORITHMS, method.name, method)
    keys = {"problem": "bce", "sites": 2, "partition": "iid", "workers": 1, "device": "cpu", "rounds": 8}
    keys |= {"runs-dir": str(tmp_path), "state-dir": str(tmp_path / "state"), "algorithm": method.name}
    result = simulate(keys)
    assert result.metrics[-1]["loss"] < result.metrics[0]["loss"]
    models = [load_file(file)["x"] for file in sorted((tmp_path / "state" / "models").iterdir())]
    assert len(models) == 2
    assert not torch.equal(*models)


def test_the_hospital_page_has_every_fact_that_leaves_before_a_run() -> None:
    told = {fact for row in table(HOSPITAL, "sent") for fact in re.findall(r"`([\w-]+)`", row[0])}
    assert told == {name.replace("_", "-") for name in Facts.__dataclass_fields__}


# ---------------------------------------------------------------------- what the page about extensions says to do


def edit(root: Path, diff: str) -> None:
    """Do what a diff without line numbers says: each hunk's old lines are in their file exactly once."""
    for part in re.split(r"^--- ", diff, flags=re.MULTILINE)[1:]:
        name, hunks = part.split("\n", 1)
        text = (root / name).read_text(encoding="utf-8")
        for hunk in re.split(r"^@@\n", hunks, flags=re.MULTILINE):
            lines = hunk.splitlines(keepends=True)
            old = "".join(line[1:] for line in lines if line[0] in " -")
            assert text.count(old) == 1, f"{name} has {text.count(old)} times:\n{old}"
            text = text.replace(old, "".join(line[1:] for line in lines if line[0] in " +"))
        (root / name).write_text(text, encoding="utf-8")


@pytest.mark.deployments
@pytest.mark.usefixtures("curves", "evidence")
def test_the_page_about_extensions_can_be_followed_to_the_letter(tmp_path: Path) -> None:
    for name in [*sorted(PACKAGES), "bin", "docs", "README.md", "pyproject.toml"]:
        if (REPO / name).is_dir():
            shutil.copytree(REPO / name, tmp_path / name, symlinks=True)  # those of edelweiss/ lead to what is edited
        else:
            shutil.copy(REPO / name, tmp_path / name)
    commands = []
    _, _, inside = EXTENDING.partition("## In the repository")  # what is before it: tests/edelweiss/test_installed.py
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", inside, re.DOTALL | re.MULTILINE):
        if language == "python":
            heading, source = block.split("\n", 1)
            file = tmp_path / heading.removeprefix("# ")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source, encoding="utf-8")
        elif language == "diff":
            edit(tmp_path, block)
        else:
            commands += block.splitlines()
    said = ""
    for command in commands:
        real = command.replace("make docs", ".venv/bin/python bin/docs.py")
        real = real.replace("make test PYTEST=", ".venv/bin/python -m pytest -p no:cacheprovider -p no:xdist ")
        real = real.replace(".venv/bin/edelweiss ", ".venv/bin/python -m edelweiss ")
        python, *arguments = shlex.split(real)
        assert python == ".venv/bin/python"
        done = forks.python(arguments, tmp_path, {*PACKAGES, "bin", "benchmarks", "tests"})
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        said += done.stdout
    assert "1 passed" in said
    assert "Brier score" in said
    assert "neyman-pearson.bound" in (tmp_path / "docs" / "keys.md").read_text(encoding="utf-8")
    config = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    assert config["neyman-pearson"]["price"] == 10.0
    (run,) = (tmp_path / "runs").iterdir()
    first, *_, last = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    assert last["auroc"] > first["auroc"]
    assert 0 < last["brier"] < 1
    with safe_open(run / "model.safetensors", "pt") as file:
        assert {"slack", "multiplier"} <= json.loads(file.metadata()["edelweiss"]).keys()


# ---------------------------------------------------------------------- what cards and problems say of themselves


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_pages_say_what_a_round_moves_and_computes(name: str, tmp_path: Path) -> None:
    algorithm = ALGORITHMS[name]
    solved = [problem for problem in PROBLEMS if can_solve(algorithm, PROBLEMS[problem])]
    sites, q = 2, 1 if name == "npa" else 3
    keys: dict[str, Any] = {"algorithm": name, "problem": solved[0], "model": "mlp", "hidden": 4, "partition": "iid"}
    keys |= {"maml.ways": 2, "maml.queries": 2, "maml.test-tasks": 1} if solved[0] == "maml" else {}
    keys |= {"sites": sites, "rounds": 3, "local-steps": q, "workers": 1, "device": "cpu", "runs-dir": str(tmp_path)}
    result = simulate(keys | fitting(name))
    record, d, p = result.metrics[1], len(result.arrays["x"]), len(result.arrays.get("y", ()))
    shapes = [(4, 30), (4, 4), (1, 4)]  # the weights, on breast-cancer
    kept = [round(share * math.prod(shape)) for share, shape in zip(erk(shapes, 0.5), shapes, strict=True)]
    lengths = {"d": d, "p": p, "b": d - (4 + 1 + 2)}  # the head: the last weights, a bias, and a and b of AUC
    lengths |= {"v": d - sum(map(math.prod, shapes)) + sum(kept), "m": (d // 8 + 1) / 4, "i": d}
    moved = [4 * sites * counted(docs.numbers(algorithm, way), **lengths) for way in ("down", "up")]
    moved[0] += 4 * sites * len(result.arrays.get("buffers", ()))  # for a site that is new, with bn = "local"
    assert [record["bytes-down"], record["bytes-up"]] == moved
    assert record["gradients"] == sites * counted(algorithm.info.gradients, q=q)


@pytest.mark.parametrize("cls", [*ALGORITHMS.values(), *PROBLEMS.values()])
def test_a_file_names_its_papers(cls: Any) -> None:
    source = Path(inspect.getfile(cls)).read_text(encoding="utf-8")
    cited = cls.info.papers if issubclass(cls, Algorithm) else cls.papers
    assert [paper.link for paper in cited if paper.link not in source] == []


def test_every_paper_of_an_algorithm_or_a_problem_is_found_by_a_number() -> None:
    every = [paper for paper in vars(papers).values() if isinstance(paper, papers.Paper)]
    assert [paper.title for paper in every if not paper.link] == [papers.FMGDA.title]  # a submission without one


def test_the_pages_name_every_model() -> None:
    assert [name for name in MODELS if f"`{name}`" not in TEXTS["docs/data-and-models.md"]] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_reports_what_it_says(name: str, tmp_path: Path) -> None:
    problem = PROBLEMS[name]
    solvers = [a for a in ALGORITHMS if can_solve(ALGORITHMS[a], problem)]
    keys: dict[str, Any] = {"algorithm": solvers[0], "problem": name, "hidden": 4, "partition": "iid", "sites": 2}
    keys |= {"maml.ways": 2, "maml.queries": 2, "maml.test-tasks": 1} if name == "maml" else {}
    keys |= {"rounds": 1, "workers": 1, "device": "cpu", "runs-dir": str(tmp_path)}
    record = simulate(keys).metrics[-1]
    assert set(problem.reports) <= record["pooled"].keys()


def called(block: str) -> list[list[str]]:
    """Return the arguments of each call of our command that a shell would make, as those of Python."""
    script = "called() { printf '%s\\0' \"$@\" ''; }\n" + block.replace(".venv/bin/edelweiss", "called -m edelweiss")
    done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, check=True)
    return [call.split("\0") for call in done.stdout.removesuffix("\0\0").split("\0\0")]


@pytest.mark.deployments
@pytest.mark.usefixtures("curves", "evidence")
def test_the_page_about_comparisons_can_be_followed_to_the_letter(tmp_path: Path) -> None:
    page = TEXTS["docs/compare.md"]
    for block in blocks(page, "toml"):
        (tmp_path / block.split("\n", 1)[0].removeprefix("# ")).write_text(block, encoding="utf-8")
    for block in blocks(page, "sh"):
        for arguments in called(block):
            fewer = ["--draws", "2", "--seeds", "2"] if "recommend" in arguments else []  # 16 runs, not 44
            done = forks.python([*arguments, *fewer], tmp_path)
            assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    shown = page.partition("on two cores:\n\n```\n")[2].partition("```")[0].splitlines()
    assert len(shown) == 4
    said = (tmp_path / "runs" / "digits" / "table.md").read_text(encoding="utf-8").splitlines()
    number = r"\d+\.\d{4}"
    for here, there in zip(shown, said, strict=False):
        cells, counted = here.split(" | ")[:6], there.split(" | ")[:6]
        assert [re.sub(number, "", cell) for cell in cells] == [re.sub(number, "", cell) for cell in counted]
        # Processors add in other orders: the last digits are those of the page's machine.
        values, found = ([float(n) for n in re.findall(number, " ".join(row))] for row in (cells, counted))
        assert found == pytest.approx(values, abs=1e-3)
    sentence = page.partition("and, at the end:\n\n```\n")[2].partition("\n```")[0]
    assert re.sub(number, "", sentence) in re.sub(number, "", "\n".join(said))
    assert (tmp_path / "playground" / "first" / "curves-bytes.pdf").exists()
    assert (tmp_path / "runs" / "recommend" / "winner.toml").exists()


def test_the_page_about_comparisons_has_every_key_of_a_sweep_and_of_what_must_be_equal() -> None:
    page = TEXTS["docs/compare.md"]
    assert {row[0].strip("`") for row in table(page, "key")} == {*SweepFile.keys()} - {"base", "compare", "tune"}
    told = {key for row in table(page, "metric") for key in re.findall(r"`([\w-]+)`", row[1])}
    assert {*samples.OF_SITES} - told == {"positive-classes", "negative-classes"}
