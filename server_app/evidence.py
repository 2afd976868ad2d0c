"""evidence.json of a run: made of what the sites told, and of the common test set."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from evidence import Counts, Site, Sketch, common_cuts, summary
from evidence.delong import exact, paired
from keys import Stream
from models import ModelError
from models.storage import replacing
from problems import ranks
from problems.network import NetworkProblem
from server_app.given import Given
from strategies import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from config import RunConfig
    from datasets import Samples
    from evidence.sums import Floats
    from problems import Arrays, Problem

FILE = "evidence.json"


def evidence_of(
    config: RunConfig,
    problem: NetworkProblem,
    sites: Mapping[str, Site],
    model: Arrays,
    other: Arrays | None,
    test: Samples | None,
) -> dict[str, Any] | None:
    """Return the content of evidence.json, see `evidence.summary`; None where nothing is known of any score."""
    if not config.evidence or not ranks(type(problem)):
        return None
    tested = None if test is None else _tested(problem, model, other, test)
    if not sites and tested is None:
        return None
    return summary(
        sites,
        common=not ALGORITHMS[config.algorithm].personalised,
        log_odds=problem.log_odds,
        test=tested,
        random=np.random.default_rng([config.seed, Stream.EVIDENCE]),
    )


def compared_with(config: RunConfig, problem: Problem) -> Arrays | None:
    """Return the model that the run is compared with: x, and buffers where there are any; None for none.

    Raises
    ------
    ModelError
        When it cannot be read, is of another network, or was trained on other features or other patients.
    """
    if not config.compare_with:
        return None
    assert isinstance(problem, NetworkProblem), "others are refused with the run-config"
    own, key = problem.model(), f"compare-with = {config.compare_with!r}"
    try:
        given = Given.read(config.model_copy(update={"init_from": config.compare_with, "init_head": "keep"}))
        assert given is not None, "a file is named"
        theirs, cohort = given.cohort, problem.setting.cohort
        if theirs.columns != cohort.columns or theirs.shape != cohort.shape:
            raise ModelError(f"{key}: it was trained on other features, so the same patients have none of its scores")
        moments = [(theirs.shift, cohort.shift), (theirs.scale, cohort.scale)]
        if any(len(a) != len(b) or not np.allclose(a, b, rtol=1e-4) for a, b in moments):
            raise ModelError(
                f"{key}: its inputs were standardised otherwise, so it was trained on other patients, or they were "
                "split otherwise: take a run on the same sites and the same seed"
            )
        start, _ = given.start(problem)
        found = {**problem.model(), "x": start["x"]}
    except ModelError as error:
        raise ModelError(str(error).replace(f"init-from = {config.compare_with!r}", key)) from None
    if "buffers" in own:
        problem.load_buffers(own["buffers"])
    return found


def _tested(problem: NetworkProblem, model: Arrays, other: Arrays | None, test: Samples) -> Site | None:
    """Score the common test set; None where the model has diverged."""
    scores, labels = _scores(problem, model, test), test.targets().double().cpu().numpy()
    if not np.isfinite(scores).all():
        return None
    cuts = common_cuts([Sketch.of(scores, labels)])
    site = Site(Counts.of(scores, labels, cuts), cuts, exact(scores, labels))
    if other is None:
        return site
    _, theirs, covariance = paired(scores, _scores(problem, other, test), labels)
    return replace(site, other=theirs, covariance=covariance)


def _scores(problem: NetworkProblem, model: Arrays, test: Samples) -> Floats:
    if "buffers" in model:
        problem.load_buffers(model["buffers"].to(problem.device))
    scores: Floats = problem.logits(model["x"].to(problem.device), test).double().cpu().numpy()
    return scores


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
    if compared := content["compared"]:
        difference = compared["difference"] if compared["sites"] else compared["common-test-set"]["difference"]
        where = "within sites" if compared["sites"] else "on the common test set"
        yield f"compared with the other model, on the same patients: AUROC {where} {_interval(difference, sign='+')}"
    if pooled:
        calibration = pooled["calibration"]
        by = "after Platt scaling" if content["probabilities"]["by"] == "platt" else "as they are"
        yield (
            f"average precision {_interval(pooled['auprc'])}; probabilities {by}: calibration slope "
            f"{_interval(calibration['slope'])}, Brier score {_number(calibration['brier'])}"
        )


def _interval(estimate: Mapping[str, Any], sign: str = "") -> str:
    value, low, high = (_number(estimate[key], sign) for key in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def _number(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}.2f}"
