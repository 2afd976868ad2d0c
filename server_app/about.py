"""``about.json`` in a run folder: participants, model and versions."""

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
)  # the fields of `Facts` that a report shows


def gathered(
    sites: Mapping[Site, Facts],
    data_summary: DataSummary,
    start: Arrays,
    device: str,
    samples: Mapping[str, str],
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the file's content.

    ``sites``: each site's facts without sums, by name; ``parameters``: lengths of the model's vectors; ``inputs``:
    shape, classes and share of positives (several labels: ``priors`` by name); ``samples``: digests of the evaluation
    samples, see `datasets.evaluation_digest`; ``versions``: of Python and packages; ``app``: fingerprint of the
    sources; ``device``: the coordinator's; ``data-warnings``: see `server_app.data_warnings`.
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
    """Write the file atomically."""
    with atomic_writer(folder / FILE) as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
