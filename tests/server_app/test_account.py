"""Nothing is done to rows in silence: what removes, leaves out, reads otherwise or deals them is told in numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edelweiss.common import Value
from edelweiss.config import RunConfig
from edelweiss.datasets import DataConfig, load_site, load_test
from edelweiss.server_app import simulate
from tests.said import lines
from tests.server_app.sites import job

pytestmark = pytest.mark.usefixtures("public_batches")

LABELS = 180  # rows of a table, half of them positive


def table(folder: Path, extra: str = "", values: Callable[[int], str] = lambda row: "") -> dict[str, Value]:
    """Write a table whose label is 1 in every other row, with a column more."""
    rng = np.random.default_rng(0)
    lines = [f"{row % 2 + rng.normal():.3f},{row % 2}{values(row)}" for row in range(LABELS)]
    (folder / "t.csv").write_text("\n".join([f"marker,label{extra}", *lines]))
    return {"dataset": "table", "data-file": str(folder / "t.csv"), "partition": "iid"}


def images(folder: Path, cells: Callable[[int], str], bad: int = 0) -> dict[str, Value]:
    """Write two hospitals' folders with twelve images each, of which some in each are damaged."""
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        place = folder / "data" / name
        place.mkdir(parents=True)
        lines = []
        for row in range(12):
            Image.fromarray(rng.integers(0, 255, (8, 8)).astype(np.uint8)).save(place / f"{row}.png")
            lines.append(f"{row}.png,{cells(row)}")
        for row in range(bad):
            (place / f"{row}.png").write_bytes(b"\x89PNG\r\n\x1a\n damaged")
        (place / "labels.csv").write_text("\n".join(["path,label,view", *lines]))
    return {"dataset": "site-folders", "data-root": str(folder / "data"), "partition": "sites", "sites": 2}


def thinned(folder: Path) -> tuple[dict[str, Value], list[str]]:
    own = {**table(folder), "thin-share": 0.1, "holdout-share": 0.0, "test-share": 0.0, "sites": 1}
    return own, ["80 of 90 positive training samples are removed"]  # 10 of 100 are left


def other_classes(folder: Path) -> tuple[dict[str, Value], list[str]]:
    test = load_test(DataConfig(dataset="digits", binary=False, test_share=0.5))
    assert test is not None
    out = 1797 - int(np.isin(test.labels.numpy(), (3, 8)).sum())
    own = {"dataset": "digits", "positive-classes": "3", "negative-classes": "8"}
    return own, [f"{out:,} of 1,797 samples are left out"]


def views(folder: Path) -> tuple[dict[str, Value], list[str]]:
    data = images(folder, lambda row: f"{row % 2},{'AP' if row < 8 else 'LL'}")
    return data | {"views": "AP", "model": "linear"}, ["8 of 24 rows are left out by views = 'AP'"]


def bad_images(folder: Path) -> tuple[dict[str, Value], list[str]]:
    data = images(folder, lambda row: f"{row % 2},AP", bad=2)
    return data | {"bad-images": 0.3, "model": "linear"}, ["4 of 24 images cannot be used"]


def uncertain_labels(folder: Path) -> tuple[dict[str, Value], list[str]]:
    data = images(folder, lambda row: f"{'-1' if row < 3 else '' if row < 5 else row % 2},AP")
    told = [
        "6 of 24 values of labels are uncertain (-1), and read as 1",
        "4 of 24 values of labels are blank",
        "4 of 24 samples are left out",
    ]
    return data | {"uncertain": "ones", "blank": "ignore", "model": "linear"}, told


def boxes(folder: Path) -> tuple[dict[str, Value], list[str]]:
    data = images(folder, lambda row: f"{row % 2},AP\n{row}.png,{row % 2},AP" if row < 3 else f"{row % 2},AP")
    return data | {"model": "linear"}, ["6 of 30 rows repeat an image"]


def a_personal_test(folder: Path) -> tuple[dict[str, Value], list[str]]:
    return {**table(folder), "personal-test": True}, ["the 44 samples of the common test set are split"]


def patients(folder: Path) -> tuple[dict[str, Value], list[str]]:
    return table(folder, ",patient", lambda row: f",p{row // 4}"), ["180 samples belong to 45 patients"]


@pytest.mark.usefixtures("curves", "unpainted")
@pytest.mark.parametrize(
    "what", [thinned, other_classes, views, bad_images, boxes, uncertain_labels, a_personal_test, patients]
)
def test_it_is_told_at_the_beginning_in_the_report_on_the_card_and_in_the_table(
    what: Callable[[Path], tuple[dict[str, Value], list[str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, lines = what(tmp_path)
    folder = simulate({**job(tmp_path, rounds=1), **own}, quiet=False).folder
    said = capsys.readouterr().out
    told = {file: (folder / file).read_text() for file in ("report.html", "model-card.md", "tripod-ai.md")}
    told["report.html"] = unescape(re.sub(r"<[^>]*>", "", told["report.html"]))
    [preparation] = [line for line in told["tripod-ai.md"].splitlines() if "| Data preparation |" in line]
    before, _, _ = said.partition("round 1/1")
    for line in lines:
        assert before.count(line) == 1, "once, not once for each site"
        for text in (told["report.html"], told["model-card.md"], preparation):
            assert line[1:] in text
        assert told["report.html"].count(line[1:]) == 1


@pytest.mark.parametrize("name", ["breast-cancer", "digits", "table", "site-folders", "site"])
def test_nothing_is_removed_unless_a_run_asks(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file: dict[str, Value] = {"data-file": "t.csv"} if name == "table" else {}
    assert RunConfig.parse({"dataset": name, **file}).data().thin_share == 0
    if name != "table":
        return
    config = RunConfig.parse(table(tmp_path)).data()
    parts = [load_site(config, site, 3) for site in range(3)]
    test = load_test(config)
    assert test is not None
    every = [rows for part in parts for rows in (part.train, part.held_out)] + [test]
    assert sum(int(rows.targets().sum()) for rows in every) == LABELS / 2
    assert sum(map(len, every)) == LABELS
    simulate({**job(tmp_path, rounds=1), **table(tmp_path), "report": False}, quiet=False)
    said = capsys.readouterr().out
    assert said.startswith("codasca on auc"), "and so there is nothing to tell"
    assert said.splitlines()[-1].startswith("1 round in ")


def test_what_is_asked_in_vain_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own: dict[str, Value] = {"problem": "cross-entropy", "algorithm": "fedavg", "dataset": "digits", "thin-share": 0.1}
    simulate({**job(tmp_path, rounds=1, report=False), **own}, quiet=False)
    assert lines(capsys.readouterr().out, "thin-share = 0.1")
