"""What leaves a hospital: vectors of the model, counts, sums and histograms of groups of patients."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from edelweiss.common import Value, key_of
from edelweiss.datasets import Facts
from edelweiss.evidence import Reported
from edelweiss.evidence.paired import Spread
from edelweiss.problems.histogram import Histogram, scores_of
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from tests.server_app.sites import FEATURES, SiteGrid, site_job, table, write_table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "run-at-a-hospital.md"
TOLD = {key_of(f.name) for f in fields(Facts)}  # once, at the start of a run

ALLOWED = {
    "query": {"facts": TOLD},
    "train": {
        "arrays": {"x", "y", "cx", "cy", "x_mean", "y_mean", "count", "body", "mask", "values"},
        "metrics": {"loss", "auroc", "auprc", "n", "positives", "fewest", "positive-scores", "negative-scores"},
        "cost": {"gradients", "samples", "seconds", "memory-from", "memory-kept"},
    },
    "evaluate": {
        "metrics": {"loss", "auroc", "auprc", "n", "positives", "fewest", "positive-scores", "negative-scores"},
        "evidence": {*Reported().record()},
    },
}


def answers(folder: Path, rows: Sequence[int], **keys: Value) -> list[Message]:
    """All answers of a run at hospitals with so many patients."""
    nodes: list[dict[str, Value]] = [
        {"site": f"s{k}", "data-dir": str(write_table(folder / f"{n}-{k}", *table(n, seed=k)))}
        for k, n in enumerate(rows)
    ]
    config = site_job(folder, sites=len(rows), **keys)
    with SiteGrid(config, nodes) as grid:
        coordinate(config, grid, Progress(quiet=True))
        return grid.answers


def form(message: Message) -> dict[str, dict[str, Any]]:
    """What a message is made of, without the numbers themselves."""
    shape: dict[str, dict[str, Any]] = {}
    for name, record in message.content.items():
        shape[name] = {}
        for key, value in record.items():
            if name == "arrays":
                shape[name][key] = tuple(value.shape)
            elif isinstance(value, bytes):  # counts of groups of patients: the more patients, the more groups
                assert len(value) <= 8 * message.content["metrics"]["n"] / message.content["metrics"]["fewest"]
            else:
                shape[name][key] = len(value) if isinstance(value, list) else type(value).__name__
    return shape


def test_what_a_site_tells_of_itself_is_what_its_page_lists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = text[text.index("Once, at the start of a run") : text.index("In every round:")].split("\n|")[3:]
    assert {key for row in rows for key in re.findall(r"`([a-z-]+)`", row.split(" | ")[0])} == TOLD


def test_what_it_tells_for_the_evidence_is_what_its_page_lists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index("| sent | what it is | default |"), text.index("`evidence=false` in the run-config")
    rows = text[start:end].split("\n|")[2:]
    listed = {key for row in rows for key in re.findall(r"`([a-z-]+)`", row.split(" | ")[0])}
    assert listed == {*Reported().record(), *Spread((0.0, 0.0), 0.0, (0, 0, 0)).record()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "codasca", "model": "mlp"},
        {"algorithm": "coda-plus", "fraction": 0.5},
        {"algorithm": "local-sgda", "problem": "auc-margin", "sampler": "fixed-positives"},
        {"algorithm": "fedavg", "problem": "bce", "standardise": False},
        {"algorithm": "fcsg", "problem": "auprc"},
        {"algorithm": "deprl", "model": "mlp"},
        {"algorithm": "dispfl", "model": "mlp"},
        {"algorithm": "fedrep", "model": "mlp", "problem": "auprc"},
        {"algorithm": "ditto"},
    ],
    ids=lambda keys: keys["algorithm"],
)
def test_answers_hold_what_is_allowed_and_do_not_grow_with_the_patients(tmp_path: Path, keys: dict[str, Value]) -> None:
    few, many = answers(tmp_path, (40, 60, 20), **keys), answers(tmp_path, (240, 120, 360), **keys)
    assert {message.metadata.message_type for message in few} == set(ALLOWED)
    told = {key for message in few if message.metadata.message_type == "query" for key in message.content["facts"]}
    assert told == ALLOWED["query"]["facts"]
    for message in few:
        allowed = ALLOWED[message.metadata.message_type]
        assert message.content.keys() <= allowed.keys()
        for name, record in message.content.items():
            assert record.keys() <= allowed[name]
    # Seen from outside, a hospital with many patients looks like one with few.
    assert [form(message) for message in few] == [form(message) for message in many]
    lists = {
        len(value)
        for message in many
        for name, record in message.content.items()
        if name not in ("arrays", "evidence")
        for value in record.values()
        if isinstance(value, list)
    }
    assert lists <= {0, 1, FEATURES}


def test_no_answer_holds_a_value_of_a_patient(tmp_path: Path) -> None:
    messages = answers(tmp_path, (40, 60, 20), algorithm="codasca")
    values = np.concatenate([table(n, seed=k)[0].ravel() for k, n in enumerate((40, 60, 20))]).astype(np.float32)
    told: list[float] = []
    for message in messages:
        for name, record in message.content.items():
            for value in record.values():
                if name == "arrays":
                    told += value.numpy().ravel().tolist()
                elif isinstance(value, float):
                    told.append(value)
                elif isinstance(value, list):
                    told += [number for number in value if isinstance(number, float)]
                elif isinstance(value, bytes):
                    told += scores_of(Histogram.unpacked(value).bins).tolist()
    assert told
    assert not np.isin(np.array(told, np.float32), values).any()
