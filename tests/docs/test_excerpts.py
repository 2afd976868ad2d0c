"""What pages show of a run is what it prints today: after a new default, they had the numbers of the old one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from edelweiss.common import read_overrides
from edelweiss.lab import cli
from edelweiss.lab.recommend import DRAWS, SEEDS, prepared, sweep_file
from edelweiss.lab.sweep.file import read as read_file
from edelweiss.lab.sweep.study import drawn
from edelweiss.server_app import simulate
from tests.docs.excerpts import REPO, excerpts, stale


def test_a_line_is_stale_if_a_number_or_a_word_of_it_is_not_printed() -> None:
    printed = "round  2/40  AUROC 0.9805  0.11 s  333.4 kB\n3 rounds in 2.0 s; results in here/runs/20261129-042813-a\n"
    assert stale("...\nround  2/40  AUROC 0.9801  9.99 s  333.4 kB\n", printed) == []
    assert stale("3 rounds in 7.1 s; results in .../runs/20260101-000000-a", printed) == []
    for wrong in ("round  2/40  AUROC 0.9589  0.11 s  333.4 kB", "round  3/40  AUROC 0.9805  0.11 s  333.4 kB"):
        assert stale(wrong, printed) == [wrong]
    assert stale("mean 0.942  std 0.070", "mean 0.953  std 0.071") != []
    assert stale("slope 2.66 (0.79 to 4.52)", "slope 2.44 (0.86 to 4.03)") != []


@pytest.mark.slow
@pytest.mark.usefixtures("evidence")
def test_the_first_run_is_that_of_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--run-config", "thin-share=0.1 workers=1"]) == 0
    printed = capsys.readouterr().out
    reading, comparing, *_ = excerpts("docs/quickstart.md")
    for shown in (*excerpts("README.md"), excerpts("docs/evidence.md")[0], reading):
        assert stale(shown, printed) == []
    [file] = tmp_path.glob("runs/*/metrics.jsonl")
    last = json.loads(file.read_text(encoding="utf-8").splitlines()[-1])
    [line] = [line for line in comparing.splitlines() if line.startswith("codasca  seed 0")]
    assert stale(line, f"codasca  seed 0  AUROC {last['auroc']:.4f}  AUPRC {last['auprc']:.4f}") == []
    said = " ".join((REPO / "docs" / "data-and-models.md").read_text(encoding="utf-8").split())
    [reached] = re.findall(r"40 rounds of CODASCA alone reach (0\.\d+)\.", said)
    assert float(reached) == pytest.approx(last["auroc"], abs=2e-3)


@pytest.mark.slow
def test_the_first_run_of_the_page_about_rare_outcomes_at_each_site_is_that_of_the_page(tmp_path: Path) -> None:
    page = (REPO / "docs" / "personalised.md").read_text(encoding="utf-8")
    [source] = re.findall(r"^job = (\{.*thin-share.*\})$", page, re.MULTILINE)
    keys = {**json.loads(source), "algorithm": "codasca", "seed": 0, "workers": 1, "runs-dir": str(tmp_path)}
    found = simulate(keys).metrics[-1]["over-sites"]["auroc"]
    lines = "".join(excerpts("docs/personalised.md")).splitlines()
    [line] = [line for line in lines if line.startswith("codasca seed 0")]
    shown = {name: float(value) for name, value in re.findall(r"([a-z-]+) (\d\.\d+)", line)}
    assert shown == pytest.approx({name: found[name] for name in shown}, abs=0.02)  # a pair at a small site is as much


def test_recommend_draws_the_step_sizes_of_the_page_and_the_sentence_fits_the_table(tmp_path: Path) -> None:
    """Its 44 runs are too many for a test."""
    page = (REPO / "docs" / "compare.md").read_text(encoding="utf-8")
    [command] = re.findall(r"^\.venv/bin/edelweiss recommend --run-config '(.*)'$", page, re.MULTILINE)
    family, base = prepared(read_overrides([command]), SEEDS)
    file = tmp_path / "recommend.toml"
    file.write_text(sweep_file(family, base, DRAWS, SEEDS, family.select), encoding="utf-8")
    study, _ = read_file(file)
    [shown] = [shown for shown in excerpts("docs/compare.md") if "over-sites.auroc.mean" in shown]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines() if line.startswith("| ")]
    *_, sentence = shown.splitlines()
    worse, _, unclear = sentence.partition("No difference was shown: ")
    for method, (name, chosen, *_, difference) in zip(study.methods, rows[2:], strict=True):
        points = [{key.partition(".")[2]: value for key, value in p.items()} for p in drawn(method, DRAWS)]
        assert chosen in [", ".join(f"{key}={value:g}" for key, value in point.items()) for point in points], name
        if method is not study.methods[0]:
            _, low, high = map(float, re.findall(r"[+-]\d\.\d+", difference))
            assert f"{method.label} {difference}" in (unclear if low < 0 < high else worse)
