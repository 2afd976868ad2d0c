"""``about.json`` in a run folder: who took part, what was trained, and with which versions."""

from __future__ import annotations

import json
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from edelweiss.common import to_record
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.models.storage import atomic_writer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from edelweiss.datasets import DataSummary, Facts
    from edelweiss.federation import Site
    from edelweiss.problems import Arrays

FILE = "about.json"
VERSION = 1
PACKAGES = ("flwr", "torch", "torchvision", "numpy", "scikit-learn")
TOLD = (
    "examples",
    "positives",
    "held-out",
    "missing",
    "class-counts",
    "label-counts",
    "label-positives",
    "notes",
)  # what a page shows of `Facts`


def gathered(
    sites: Mapping[Site, Facts],
    data_summary: DataSummary,
    start: Arrays,
    device: str,
    samples: Mapping[str, str],
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the file's content.

    ``sites`` has by name what each reported before the run, without its sums; ``parameters`` the lengths of the model's
    vectors, by name; ``inputs`` shape, classes and the share of positives, of several labels by name in ``priors``;
    ``samples`` which ones models are judged on, as `datasets.evaluation_digest` says; ``versions`` those of Python and
    packages; ``app`` the fingerprint of the sources; ``device`` where the coordinator computes;
    ``data-warnings`` what may be wrong with the data, see `server_app.data_warnings`.
    """
    reported = {
        site.name: {key: value for key, value in to_record(facts).items() if key in TOLD and value not in ([], "")}
        for site, facts in sites.items()
    }
    inputs = (
        {"shape": list(data_summary.shape), "classes": data_summary.classes, "prior": data_summary.prior}
        if data_summary.shape
        else {}
    )
    if data_summary.labels:
        inputs["priors"] = dict(zip(data_summary.labels, data_summary.priors, strict=True))
    return {
        "version": VERSION,
        "sites": reported,
        "parameters": {name: len(vector) for name, vector in start.items()},
        "inputs": inputs,
        "samples": dict(samples),
        "device": device,
        "app": fingerprint(),
        "data-warnings": list(warnings),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
    }


def write(content: Mapping[str, Any], folder: Path) -> None:
    """Write the file, as a whole."""
    with atomic_writer(folder / FILE) as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
