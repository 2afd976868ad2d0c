"""Folders of hospitals with several labels, for tests of what comes after training."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from edelweiss.common import Value
from tests.server_app.sites import job

LABELS = ("Edema", "Effusion", "p.v 1/2")
"""The third has signs that paths and trackers do not take, is known at one site alone, and has few positives."""


def folders(place: Path, rows: int = 60, labels: tuple[str, ...] = LABELS, copies: bool = False) -> Path:
    """Write three hospitals' tables; with ``copies`` all labels are the same."""
    random = np.random.default_rng(0)
    for site in ("alpha", "beta", "gamma"):
        features = random.normal(size=(rows, 3))
        columns = []
        for number, _ in enumerate(labels):
            chance = features[:, 0 if copies else number % 3]
            values = np.where(chance + 0.5 * np.sin(np.arange(rows)) > 0.6, "1", "0").astype("<U2")
            if not copies:
                values[number::11] = "-1"
                values[number + 1 :: 13] = ""
            if number == 2 and not copies and site != "beta":
                values[:] = ""
            columns.append(values)
        (place / site).mkdir(parents=True)
        with (place / site / "data.csv").open("w", newline="", encoding="utf-8") as stream:
            lines = csv.writer(stream)
            lines.writerow(["f0", "f1", "f2", *labels])
            lines.writerows([*map(repr, row), *own] for row, *own in zip(features.tolist(), *columns, strict=True))
    return place


def labelled(folder: Path, data: Path, labels: tuple[str, ...] = LABELS, **keys: Value) -> dict[str, Value]:
    """Describe a run on such folders."""
    own: dict[str, Value] = {"dataset": "site-folders", "data_root": str(data), "label": ",".join(labels)}
    own |= {"partition": "sites", "uncertain": "Edema=ones,ignore", "blank": "ignore", "model": "linear", "rounds": 2}
    if labels[0] != "Edema":
        own["uncertain"] = "ignore"
    return job(folder, **{**own, **keys})
