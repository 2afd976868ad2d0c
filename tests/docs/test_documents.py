"""The documents say what the code does: links, quoted code, commands, and the tables of algorithms and problems."""

from __future__ import annotations

import inspect
import math
import re
import shlex
import tomllib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, get_origin, get_type_hints

import pytest
import torch
from flwr.serverapp.strategy import Strategy
from safetensors.torch import load_file
from strategies.hyper import hyper

from config import RunConfig, SiteConfig, flatten, read_overrides
from datasets import DATASETS, PARTITIONS, SAMPLERS
from models import MODELS
from problems import PROBLEMS
from server_app import simulate
from strategies import ALGORITHMS, FederatedStrategy, Oracle, Turn, can_solve
from strategies.dispfl import erk
from strategies.fedavg import FedAvg
from strategies.local_steps import descend
from tests.strategies.closed_form import build, objective
from tests.strategies.halves import Arrays, drive

REPO = Path(__file__).resolve().parents[2]
DOCUMENTS = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]
TEXTS = {path.relative_to(REPO).as_posix(): path.read_text(encoding="utf-8") for path in DOCUMENTS}
README, ADDING, HOSPITAL = (TEXTS[n] for n in ("README.md", "docs/add-an-algorithm.md", "docs/run-at-a-hospital.md"))


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def table(text: str, first: str) -> list[list[str]]:
    """Return the cells of a table, by the heading of its first column, without its two head lines."""
    lines = text[text.index(f"| {first} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip().strip("|").split(" |")] for line in lines]


def by_family(first: str) -> dict[str, dict[str, list[str]]]:
    """Return the rows of a table of the README by name, under the family that a bold row opens."""
    families: dict[str, dict[str, list[str]]] = {}
    for name, *cells in table(README, first):
        if name.startswith("**"):
            families[name.strip("*").lower().split()[0]] = rows = {}
        else:
            rows[name.strip("`")] = cells
    return families


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


def test_quoted_code_is_that_of_the_file() -> None:
    quotes = [block.split("\n", 1) for block in blocks(ADDING, "python") if block.startswith("# ")]
    assert len(quotes) >= 4
    for heading, code in quotes:
        path = REPO / heading.removeprefix("# ")
        assert code in path.read_text(encoding="utf-8"), f"{heading} has it no more:\n{code}"


@pytest.mark.parametrize("name", TEXTS)
def test_every_run_config_of_a_command_is_accepted(name: str) -> None:
    written = {block.split("\n", 1)[0].removeprefix("# "): block for block in blocks(TEXTS[name], "toml")}
    for block in blocks(TEXTS[name], "sh"):
        tokens = shlex.split(block.replace("$fold", "0"), comments=True)
        given = [after for token, after in pairwise(tokens) if token == "--run-config"]
        for text in given + [token.removeprefix("RUN_CONFIG=") for token in tokens if token.startswith("RUN_CONFIG=")]:
            if text in written:
                RunConfig.parse(flatten(tomllib.loads(written[text])))
            else:
                RunConfig.parse(read_overrides([str(REPO / text) if text.endswith(".toml") else text]))


def test_comments_of_pyproject_name_every_choice() -> None:
    lines = (REPO / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    registries: dict[str, Any] = {"algorithm": ALGORITHMS, "problem": PROBLEMS, "model": MODELS, "dataset": DATASETS}
    for key, names in (registries | {"partition": PARTITIONS, "sampler": SAMPLERS}).items():
        (comment,) = (line.partition("#")[2] for line in lines if line.startswith(f"{key} = "))
        assert set(names) <= set(re.findall(r"[\w-]+", comment)), key


# ---------------------------------------------------------------------- what an algorithm may use; what a site sends


def test_every_hook_and_class_variable_is_documented() -> None:
    hints = get_type_hints(FederatedStrategy)
    variables = {name for name, hint in hints.items() if get_origin(hint) is ClassVar} - {"__dataclass_fields__"}
    own = {name for name, member in vars(FederatedStrategy).items() if callable(member) or isinstance(member, property)}
    hooks = {name for name in own if not name.startswith("_")} - set(dir(Strategy)) - {"run", "stages", "turn"}
    # A row of a table, or a paragraph about it.
    missing = [n for n in variables | hooks if not re.search(rf"^(\| `{n}[(`]|`self\.{n}\()", ADDING, re.MULTILINE)]
    assert not missing
    for name, arguments in re.findall(r"^\| `(\w+)\(([^)]*)\)` \| (?:server|site|both)", ADDING, re.MULTILINE):
        taken = list(inspect.signature(getattr(FederatedStrategy, name)).parameters)[1:]
        assert taken == re.findall(r"\w+", arguments), name
    described = ADDING[ADDING.index("A `Turn` tells") : ADDING.index("Rules:")]
    assert not [name for name in Turn.__dataclass_fields__ if f"`{name}`" not in described]


def test_the_algorithm_that_is_written_down_only_there_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = (block for block in blocks(ADDING, "python") if block.startswith("@dataclass"))
    names = {"dataclass": dataclass, "FederatedStrategy": FederatedStrategy, "hyper": hyper, "descend": descend}
    exec(compile(source, "add-an-algorithm.md", "exec", flags=annotations.compiler_flag), names)
    method: Any = names["PFedMe"]
    # With ηλ = 1 and one step on θ for each on w, w takes the steps of θ: in the first round it is that of FedAvg.
    start, oracles, _ = objective(FedAvg, 3)
    own = drive(method(lr=0.1, lam=2.0, lr_common=0.5, own_steps=1, local_steps=4), start, oracles, 1, 3)
    assert torch.allclose(own[0]["x"], drive(FedAvg(lr=0.1, local_steps=4), start, oracles, 1, 3)[0]["x"])
    # The stronger the pull, the nearer a site's own model is to the common one.
    distances = []
    for lam in (0.1, 5.0):
        memories: list[dict[int, Arrays]] = []
        states = drive(method(lr=0.1, lam=lam, lr_common=0.1, local_steps=1), start, oracles, 20, 3, memories=memories)
        distances.append(float((memories[-1][0]["x"] - states[-1]["x"]).norm()))
    assert 0 < distances[1] < distances[0] / 2
    monkeypatch.setitem(ALGORITHMS, method.name, method)
    keys = {"problem": "bce", "sites": 2, "partition": "iid", "workers": 1, "device": "cpu", "rounds": 8}
    keys |= {"runs-dir": str(tmp_path), "state-dir": str(tmp_path / "state"), "algorithm": method.name}
    result = simulate(keys)
    assert result.metrics[-1]["loss"] < result.metrics[0]["loss"]
    models = [load_file(file)["x"] for file in sorted((tmp_path / "state" / "models").iterdir())]
    assert len(models) == 2
    assert not torch.equal(*models)


def test_the_hospital_page_names_every_algorithm_once_and_every_key_of_a_site() -> None:
    named = [name for row in table(HOSPITAL, "`algorithm`") for name in re.findall(r"`([\w-]+)`", row[0])]
    assert sorted(named) == sorted(ALGORITHMS)
    keys = {key for row in table(HOSPITAL, "key") for key in re.findall(r"`([\w-]+)`", row[0])}
    assert keys == {name.replace("_", "-") for name in SiteConfig.model_fields}


# ---------------------------------------------------------------------- the tables of the README

ROWS = {name: cells for rows in by_family("`algorithm`").values() for name, cells in rows.items()}


def test_the_tables_name_every_algorithm_and_every_problem() -> None:
    assert sorted(ROWS) == sorted(ALGORITHMS)
    assert sorted(name for rows in by_family("`problem`").values() for name in rows) == sorted(PROBLEMS)


def value(cell: str, **numbers: float) -> float:
    """Evaluate a sum such as "2d + p" or "4q - 2"."""
    total = 0.0
    for term in cell.replace("+ ", "").replace("- ", "-").split():
        sign, factor, letter = re.fullmatch(r"(-?)(\d*)([a-z]?)", term).groups()  # type: ignore[union-attr]
        total += (-1 if sign else 1) * int(factor or 1) * (numbers[letter] if letter else 1)
    return total


@pytest.mark.parametrize("name", ROWS)
def test_costs_are_those_of_a_round_in_the_middle_of_a_stage(name: str, tmp_path: Path) -> None:
    solved = [problem for problem in PROBLEMS if can_solve(ALGORITHMS[name], PROBLEMS[problem])]
    sites, q = 2, 1 if name == "npa" else 3
    keys: dict[str, Any] = {"algorithm": name, "problem": solved[0], "model": "mlp", "hidden": 4, "partition": "iid"}
    keys |= {"ways": 2, "queries": 2, "test-tasks": 1} if solved[0] == "maml" else {}
    keys |= {"sites": sites, "rounds": 3, "local-steps": q, "workers": 1, "device": "cpu", "runs-dir": str(tmp_path)}
    result = simulate(keys)
    record, d, p = result.metrics[1], len(result.arrays["x"]), len(result.arrays.get("y", ()))
    _, down, up, gradients, _, _ = ROWS[name]
    shapes = [(4, 30), (4, 4), (1, 4)]  # the weights, on breast-cancer
    kept = [round(share * math.prod(shape)) for share, shape in zip(erk(shapes, 0.5), shapes, strict=True)]
    lengths = {"d": d, "p": p, "b": d - (4 + 1 + 2)}  # the head: the last weights, a bias, and a and b of AUC
    lengths |= {"v": d - sum(map(math.prod, shapes)) + sum(kept), "m": (d // 8 + 1) / 4}
    assert [record["bytes-down"], record["bytes-up"]] == [4 * sites * value(cell, **lengths) for cell in (down, up)]
    assert record["gradients"] == sites * value(gradients, q=q)


@pytest.mark.parametrize("name", ROWS)
def test_who_remembers_and_who_needs_all_sites_is_in_the_table(name: str) -> None:
    algorithm = ALGORITHMS[name]
    remembered: set[str] = set()

    def noting(self: Any, sent: Arrays, memory: Arrays, oracle: Oracle, turn: Turn) -> tuple[Arrays, Arrays]:
        reply, new = algorithm.local_update(self, sent, memory, oracle, turn)
        remembered.update(new)
        return reply, new

    strategy = build(name, local_steps=1)
    object.__setattr__(strategy, "local_update", noting.__get__(strategy))
    start, oracles, _ = objective(algorithm, 3)
    drive(strategy, start, oracles, 3, 3)
    *_, remembers, partial = ROWS[name]
    assert bool(remembered) == (remembers != "nothing")
    assert partial == ("yes" if algorithm.partial else "no")


def test_problems_are_described_as_they_are() -> None:
    families = by_family("`algorithm`")
    for kind, rows in by_family("`problem`").items():
        for name, (_, data, reported, who) in rows.items():
            problem = PROBLEMS[name]
            assert problem.kind == kind, name
            assert problem.needs_data == (data not in ("none", "drawn")), name
            assert (problem.needs_data and not problem.multiclass) == (data == "two classes"), name
            assert ("AUROC" in reported) == (data == "two classes"), name
            able: set[str] = set()
            for part in who.split(", "):
                family, without = re.fullmatch(r"all (\w+)(?: but `(.+)`)?|`.+`", part).groups()  # type: ignore[union-attr]
                able |= set(families[family]) - {without} if family else {part.strip("`")}
            assert able == {a for a in ALGORITHMS if can_solve(ALGORITHMS[a], problem)}, name
