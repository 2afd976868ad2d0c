"""The notebooks run from top to bottom, in an empty folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((REPO / "docs" / "notebooks").glob("*.ipynb"))
LEFT = {
    "first-steps": ["comparison/table.md", "runs/codasca-1/evidence.json"],
    "hospital-table": ["clinics.onnx", "runs/clinics/report.html"],
}
"""Files that each leaves."""


def executed(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a notebook by a kernel of this interpreter; raises what a cell raises."""
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "jupyter"))
    notebook = nbformat.read(path, as_version=4)
    client.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = executed(path, tmp_path, monkeypatch)
    assert [name for name in LEFT[path.stem] if not (tmp_path / name).is_file()] == []
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = {kind for output in outputs for kind in output.get("data", {})}
    assert {"text/html", "image/png"} <= shown
    assert [output for output in outputs if output.get("name") == "stderr"] == []


def test_notebooks_are_stored_without_output() -> None:
    assert len(NOTEBOOKS) == len(LEFT)
    nbformat = pytest.importorskip("nbformat")
    cells = [cell for path in NOTEBOOKS for cell in nbformat.read(path, as_version=4).cells]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
