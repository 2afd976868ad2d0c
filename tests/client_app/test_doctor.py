"""What ``doctor`` says of a site's data; the way to a coordinator is tried in tests/deployment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from edelweiss.client_app.audit import Audit
from edelweiss.client_app.connection import JoinConfig
from edelweiss.client_app.doctor import Finding, examine
from edelweiss.client_app.policy import TRUST
from tests.client_app.policies import site_toml
from tests.server_app.sites import table, write_table

ROOT = Path(__file__).resolve().parents[2]
STUDY = """[label]
column = "label"
negative = [0]
positive = [1, 2, 3, 4]
[columns.marker_0]
"""


def found(folder: Path, labels: list[int], policy: str = "", **keys: str) -> dict[str, Finding]:
    """Examine a site with these labels; nobody listens where it looks for its coordinator."""
    data = write_table(folder / "data", table(len(labels), seed=0)[0], labels)
    options = {"superlink": "127.0.0.1:1", "insecure": True, "data-dir": str(data), "policy": policy, **keys}
    return {finding.about: finding for finding in examine(JoinConfig.read("", options))}


def test_classes_are_no_error_and_a_study_makes_them_two(tmp_path: Path) -> None:
    labels = [row % 5 for row in range(60)]
    kept = found(tmp_path / "kept", labels, label="label")
    assert (kept["data"].level, kept["labels"].level) == ("ok", "warning")
    assert kept["privacy"].text == TRUST
    assert "60 samples, 5 classes, 4 features" in kept["data"].text
    assert 'positive = ["1"]' in kept["labels"].text
    (tmp_path / "study.toml").write_text(STUDY)
    mapped = found(tmp_path / "mapped", labels, study=f"{tmp_path}/study.toml")
    assert mapped["labels"].text.startswith("12 negative"), "too few to hold out five"
    assert "60 samples, 48 positive, 1 features" in mapped["data"].text
    assert found(tmp_path / "bad", [-7, 2] * 30, label="label")["data"].level == "error"


def test_a_study_file_that_cannot_be_used_is_an_error_though_the_table_is_read_without_it(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(f'file = "../data.csv"\n{STUDY}')
    said = found(tmp_path / "site", [0, 1] * 30, study=f"{tmp_path}/study.toml", label="label")["data"]
    assert said.level == "error"
    assert "file = '../data.csv'" in said.text


@pytest.mark.parametrize(("strict", "level"), [(False, "warning"), (True, "error")])
def test_a_label_that_nobody_names_is_for_runs_to_choose(tmp_path: Path, strict: bool, level: str) -> None:
    said = found(tmp_path, [0, 1] * 30, policy=site_toml(tmp_path, strict=strict))
    assert said["rules"].level == level
    assert "each run chooses the column" in said["rules"].text
    assert found(tmp_path, [0, 1] * 30, label="label")["rules"].level == "ok"


def test_memory_is_compared_with_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = found(tmp_path, [0, 1] * 30, label="label")["needed"]
    assert said.level == "ok"
    assert "about 0.4 GB for a run" in said.text
    monkeypatch.setattr("edelweiss.common.memory.free_memory", lambda: 4e8)
    assert found(tmp_path, [0, 1] * 30, label="label")["needed"].level == "warning"
    monkeypatch.setattr("edelweiss.datasets.site.formats.free_memory", lambda: 5e3)
    said = found(tmp_path, [0, 1] * 30, label="label")
    assert said["needed"].level == "error"
    assert "data" not in said, "a table that will not fit is not read"


def test_with_a_budget_few_of_a_class_keep_no_site_from_sending_an_evaluation(tmp_path: Path) -> None:
    labels = [1] * 6 + [0] * 54
    assert found(tmp_path / "plain", labels, label="label")["labels"].text.startswith("6 positive")
    rules = site_toml(tmp_path, privacy={"epsilon": 3.0})
    assert "labels" not in found(tmp_path / "noised", labels, rules, label="label")
    assert found(tmp_path / "none", [0] * 60, rules, label="label")["labels"].level == "warning"


def test_with_a_budget_columns_that_no_run_could_bring_to_one_scale_are_named(tmp_path: Path) -> None:
    features = table(60, seed=0)[0]
    features[:, 1] *= 1e6
    data = write_table(tmp_path / "data", features, [0, 1] * 30)
    rules = site_toml(tmp_path, privacy={"epsilon": 3.0})
    study = STUDY.replace("positive = [1, 2, 3, 4]", "positive = [1]")
    (tmp_path / "bare.toml").write_text(f"{study}[columns.marker_1]\n")
    (tmp_path / "full.toml").write_text(f"{study}[columns.marker_1]\nrange = [-1e8, 1e8]\n")
    options = {"superlink": "127.0.0.1:1", "insecure": True, "data-dir": str(data), "label": "label"}

    def scale(**keys: str) -> Finding | None:
        findings = examine(JoinConfig.read("", options | keys))
        return next((finding for finding in findings if finding.about == "scale"), None)

    assert scale() is None, "a run without privacy standardises by sums over all sites"
    for keys in ({}, {"study": f"{tmp_path}/bare.toml"}):
        said = scale(policy=rules, **keys)
        assert said is not None
        assert said.level == "warning"
        assert "'marker_1' (about 1e+06)" in said.text
        assert "marker_0" not in said.text
    assert scale(policy=rules, study=f"{tmp_path}/full.toml") is None


def test_a_damaged_log_and_damaged_records_are_errors_with_the_way_out(tmp_path: Path) -> None:
    state = tmp_path / "state"
    for line in ("looked", "approved"):
        Audit(state, "7").operator(line, "7")
    said = found(tmp_path, [0, 1] * 30, label="label", **{"state-dir": str(state)})
    assert said["log"].level == said["records"].level == "ok"
    (state / "audit.jsonl").write_bytes((state / "audit.jsonl").read_bytes().replace(b"looked", b"locked"))
    for file in ("advance/3.json", "runs/7.json"):
        (state / "policy" / file).parent.mkdir(parents=True)
        (state / "policy" / file).write_text("{")
    options = {"superlink": "127.0.0.1:1", "insecure": True, "state-dir": str(state)}
    errors = [each.text for each in examine(JoinConfig.read("", options)) if each.level == "error"]
    for words in (("--acknowledge",), ("runs/7.json", "backup"), ("advance/3.json", "withdraw 3")):
        assert [text for text in errors if all(word in text for word in words)], words


SHAPES = {"wide": (1200, 4000, 0), "long": (150_000, 32, 0), "words": (25_000, 10, 40)}  # rows, numbers, categories
WORDS = ("emergency", "intensive care", "surgery", "other")


@pytest.mark.deployments
def test_what_a_run_takes_is_said_to_within_a_quarter(tmp_path: Path) -> None:
    """Each table is a third of the memory or nearly, so that what is said of tables counts."""
    random, processes = np.random.default_rng(0), []
    for shape, (rows, numbers, words) in SHAPES.items():
        columns = {f"m{place}": random.normal(size=rows).round(3) for place in range(numbers)}
        columns |= {f"w{place}": random.choice(WORDS, rows) for place in range(words)}
        (folder := tmp_path / shape).mkdir()
        pd.DataFrame({**columns, "label": random.integers(0, 2, rows)}).to_parquet(folder / "data.parquet")
        if words:
            study = [
                STUDY.partition("positive")[0],
                "positive = [1]",
                *(f"[columns.m{place}]" for place in range(numbers)),
            ]
            study += [f"[columns.w{place}]\ncodes = {list(WORDS)}" for place in range(words)]
            (folder / "study.toml").write_text("\n".join(['file = "data.parquet"', *study]))
        command = [sys.executable, "-m", "tests.client_app.peak", str(folder)]
        processes.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
    for shape, process in zip(SHAPES, processes, strict=True):
        found = json.loads(process.communicate()[0].splitlines()[-1])
        said = float(found["said"].partition("about ")[2].partition(" GB")[0])
        assert said == pytest.approx(found["taken"] / 1e9, rel=0.25), shape
