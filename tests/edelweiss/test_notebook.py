"""In a live kernel: what a run shows while it goes on and afterwards, and the model that it exports."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
CELLS = {
    "data": """
import numpy as np
import edelweiss as ew
rng = np.random.default_rng(0)
def site(n):
    x = rng.normal(size=(n, 3)).astype(np.float32)
    return x, (x[:, 0] + rng.normal(size=n) > 1).astype(int)
data = {"<b>north & co": site(120), "south": site(90)}
quick = dict(model="linear", rounds=3, local_steps=2, seed=0)
""",
    "run": 'run = ew.simulate("codasca", "auc", data, **quick)',
    "shown": "run",
    "printed": "print(run)",
    "silent": 'again = ew.simulate("codasca", "auc", data, **quick, progress=False)',
    "workers": 'two = ew.simulate("codasca", "auc", data, **quick, workers=2, threads=1)',
    "warned": """
rare = {"<i>a": (site(60)[0], np.arange(60) % 30 == 0), "b": (site(60)[0], np.zeros(60, int))}
warned = ew.simulate("fedavg", "bce", rare, **quick)
""",
    "personal": 'ew.simulate("fedrep", "bce", data, **quick | {"model": "mlp"})',
    "refused": 'ew.simulate("codasca", "auc", data, **quick | {"rounds": 0})',
    "diverged": 'ew.simulate(ew.FedAvg(lr=1e30), "bce", data, **quick)',
    "exported": "path = run.export(); str(path.relative_to(run.folder))",
    "elsewhere": 'str(run.export("mine.onnx"))',
    "twice": "run.export()",
    "scores": """
import onnxruntime
x = site(5)[0]
session = onnxruntime.InferenceSession(path)
[first, *_] = session.run(None, {session.get_inputs()[0].name: x})
bool(np.allclose(np.ravel(first), run.predict(x), atol=1e-5))
""",
}
FAIL = {"refused": "ConfigError", "diverged": "DivergedError", "twice": "ModelError"}


class Tags(HTMLParser):
    """The tags of a page, with their attributes, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Run all cells by a kernel; the outputs of each, by its name."""
    nbformat, client = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in CELLS.values()])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "jupyter"))
        resources = {"metadata": {"path": str(folder)}}
        client.NotebookClient(notebook, timeout=900, allow_errors=True, resources=resources).execute()
    return {name: cell.outputs for name, cell in zip(CELLS, notebook.cells, strict=True)}


def page(outputs: list[Any]) -> Tags:
    """The only output of a cell, as HTML."""
    [output] = outputs
    return Tags(output["data"]["text/html"])


def bar(shown: Tags) -> dict[str, str | None]:
    [found] = [attributes for tag, attributes in shown.tags if tag == "progress"]
    return found


@pytest.mark.slow
def test_only_what_should_fail_does(cells: dict[str, list[Any]]) -> None:
    failed = {name: out["ename"] for name, each in cells.items() for out in each if out["output_type"] == "error"}
    assert failed == FAIL
    assert [out for each in cells.values() for out in each if out.get("name") == "stderr"] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "workers", "warned"])
def test_a_run_is_one_output_that_ends_with_a_full_bar_and_the_last_metrics(
    cells: dict[str, list[Any]], name: str
) -> None:
    shown = page(cells[name])
    assert bar(shown) == {"value": "3", "max": "3"}
    assert re.search(r"\d", "".join(shown.texts).partition("3/3")[2])


@pytest.mark.slow
def test_what_data_are_called_is_text_and_no_markup(cells: dict[str, list[Any]]) -> None:
    for name in ("run", "shown", "warned", "personal"):
        for output in cells[name]:
            shown = Tags(output["data"].get("text/html", ""))
            assert not [tag for tag, _ in shown.tags if tag in ("i", "script")]
    assert "<b>north & co" in page(cells["shown"]).texts


@pytest.mark.slow
def test_a_run_is_shown_as_a_table_of_its_sites(cells: dict[str, list[Any]]) -> None:
    shown = page(cells["shown"])
    rows = [tag for tag, _ in shown.tags if tag == "tr"]
    assert len(rows) == 1 + 4, "the heads, the common test set, all sites' samples, and two sites"
    assert {"auroc", "loss", "south"} <= set(shown.texts)
    [printed] = cells["printed"]
    assert printed["text"].startswith("Run(")


@pytest.mark.slow
def test_without_progress_nothing_is_shown(cells: dict[str, list[Any]]) -> None:
    assert cells["silent"] == []


@pytest.mark.slow
def test_a_run_that_breaks_leaves_its_bar(cells: dict[str, list[Any]]) -> None:
    kinds = [output["output_type"] for output in cells["diverged"]]
    assert kinds == ["display_data", "error"]


@pytest.mark.slow
def test_a_model_is_exported_where_one_says_and_scores_alike(cells: dict[str, list[Any]]) -> None:
    values = {name: cells[name][-1]["data"]["text/plain"] for name in ("exported", "elsewhere", "scores")}
    assert values == {"exported": "'model.onnx'", "elsewhere": "'mine.onnx'", "scores": "True"}
