"""The page about using a model: whoever follows it gets what it says."""

from __future__ import annotations

import csv
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edelweiss.client_app import cli as site_cli
from edelweiss.lab import cli
from edelweiss.models.storage import StoredTensors
from edelweiss.problems import onnx_export as exported
from edelweiss.problems.metrics import ranking
from edelweiss.problems.trained_model import TrainedModel
from edelweiss.server_app import simulate
from tests.server_app.sites import job

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "use-a-model.md").read_text(encoding="utf-8")
COMMANDS = {".venv/bin/edelweiss": cli.main, ".venv/bin/edelweiss-site": site_cli.main}


def commands() -> Iterator[list[str]]:
    """Yield the words of each command of the page."""
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        yield from map(shlex.split, block.splitlines())


def lines(file: str) -> list[dict[str, str]]:
    """Return the lines of a table by column."""
    with open(file, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.deployments
def test_the_page_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = []
    for words in commands():
        if words[0] == "mkdir":
            Path(words[-1]).mkdir()
            for file, code in re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
                Path(file).write_text(code, encoding="utf-8")
            continue
        command, *arguments = words
        ran.append(" ".join([Path(command).name, *arguments[:1]]))
        if command == ".venv/bin/python":
            runpy.run_path(arguments[1].replace(".", "/") + ".py")
        elif "export" not in arguments or not exported.missing_packages():
            assert COMMANDS[command](arguments) == 0, words
    assert ran[-4:] == ["edelweiss --run-config", "edelweiss predict", "edelweiss export", "edelweiss-site predict"]

    scores = lines("playground/scores.csv")
    assert list(scores[0])[:4] == ["case", "clinic", "outcome", "score"]
    assert [row["case"] for row in scores] == [f"p{number}" for number in range(10)]
    truth = np.array([int(row["outcome"] == "died") for row in scores])
    assert ranking(truth, np.array([float(row["score"]) for row in scores]))["auroc"] > 0.6
    ours = lines("playground/ours.csv")
    assert [row["score"] for row in ours] == [row["score"] for row in scores], "the common model, at a site"
    assert TrainedModel.read("runs/own").model_schema.features == ("age", "lactate", "sex")
    card = next(Path("playground/state/models").glob("*.md")).read_text(encoding="utf-8")
    assert "| sex |  | female, male |" in card
    assert "positive: died; negative: alive" in card


def test_the_page_names_what_a_model_s_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = StoredTensors.read(simulate(job(tmp_path, rounds=1)).folder / "model.safetensors").facts
    said = set(re.findall(r"`([\w.]+)`", PAGE[PAGE.index("| entry |") : PAGE.index("**Column names.**")]))
    entries = {name for name in facts if name not in ("a", "b", "alpha", "classes", "data")}
    entries |= {f"data.{name}" for name in facts["data"] if name != "dataset"}
    assert entries <= said
