"""evidence.json of a run: made of what the sites told, and of the common test set."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from evidence import Counts, Site, Sketch, common_cuts, summary
from evidence.delong import exact
from keys import Stream
from models.storage import replacing
from problems import ranks
from strategies import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from config import RunConfig
    from datasets import Samples
    from problems import Arrays
    from problems.network import NetworkProblem

FILE = "evidence.json"


def evidence_of(
    config: RunConfig, problem: NetworkProblem, sites: Mapping[str, Site], model: Arrays, test: Samples | None
) -> dict[str, Any] | None:
    """Return the content of evidence.json, see `evidence.summary`; None where nothing is known of any score."""
    if not config.evidence or not ranks(type(problem)):
        return None
    tested = None if test is None else _tested(problem, model, test)
    if not sites and tested is None:
        return None
    return summary(
        sites,
        common=not ALGORITHMS[config.algorithm].personalised,
        log_odds=problem.log_odds,
        test=tested,
        random=np.random.default_rng([config.seed, Stream.EVIDENCE]),
    )


def _tested(problem: NetworkProblem, model: Arrays, test: Samples) -> Site | None:
    """Score the common test set; None where the model has diverged."""
    if "buffers" in model:
        problem.load_buffers(model["buffers"].to(problem.device))
    scores = problem.logits(model["x"].to(problem.device), test).double().cpu().numpy()
    labels = test.targets().double().cpu().numpy()
    if not np.isfinite(scores).all():
        return None
    cuts = common_cuts([Sketch.of(scores, labels)])
    return Site(Counts.of(scores, labels, cuts), cuts, exact(scores, labels))


def write(content: Mapping[str, Any], folder: Path) -> None:
    """Write the file, as a whole."""
    with replacing(folder / FILE) as file:
        file.write(json.dumps(content, allow_nan=False).encode() + b"\n")


def in_words(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that a run ends with."""
    parts = []
    if pooled := content["pooled"]:
        parts.append(f"pooled AUROC {_interval(pooled['auroc'])}")
    within = content["within-sites"]
    if within["sites"]:
        parts.append(f"within sites {_interval(within['auroc'])}")
    if test := content["common-test-set"]:
        parts.append(f"common test set {_interval(test['auroc'])}")
    if parts:
        yield "; ".join(parts) + ", each with its 95 % interval"
    if pooled:
        calibration = pooled["calibration"]
        by = "after Platt scaling" if content["probabilities"]["by"] == "platt" else "as they are"
        yield (
            f"average precision {_interval(pooled['auprc'])}; probabilities {by}: calibration slope "
            f"{_interval(calibration['slope'])}, Brier score {_number(calibration['brier'])}"
        )


def _interval(estimate: Mapping[str, Any]) -> str:
    return f"{_number(estimate['value'])} ({_number(estimate['low'])} to {_number(estimate['high'])})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
