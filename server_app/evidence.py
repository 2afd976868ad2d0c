"""evidence.json of a run: from the sites' reports and the common test set."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edelweiss.datasets import common_test_patients
from edelweiss.evidence import Counts, Site, multilabel_summary, summary
from edelweiss.evidence.delong import exact, paired
from edelweiss.evidence.design import Design
from edelweiss.evidence.noised import OVER, WITHIN, in_evidence
from edelweiss.evidence.summary import NOT_COMPARED
from edelweiss.evidence.text import format_estimate
from edelweiss.models import ModelError
from edelweiss.models.storage import atomic_writer
from edelweiss.problems import ranks
from edelweiss.problems.metrics import shown
from edelweiss.problems.network import NetworkProblem
from edelweiss.server_app.init_model import InitModel, other_labels

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from edelweiss.config import RunConfig
    from edelweiss.datasets import Samples
    from edelweiss.evidence.sums import Floats
    from edelweiss.problems import Arrays, Problem

FILE = "evidence.json"


def evidence_of(
    config: RunConfig,
    problem: NetworkProblem,
    labels: Mapping[str, Mapping[str, Site]],
    model: Arrays,
    other: Arrays | None,
    test: Samples | None,
    noised: Mapping[str, float] | None = None,
) -> dict[str, Any] | None:
    """Return the content of evidence.json, see `evidence.summary`; None without any statistics.

    ``labels`` has the sites' statistics by label (a single one's name is empty) and site; ``noised`` what is known of
    a private run in their place, as in metrics.jsonl.
    """
    if not config.evidence or not ranks(type(problem)):
        return None
    names = problem.labels or ("",)
    tested = {} if test is None else _tested(config, problem, names, model, other, test)
    pairs = OVER if config.secure_aggregation else WITHIN
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        if labels.get(name) or tested.get(name) or noised is not None:
            found[name] = summary(
                labels.get(name, {}),
                common=not config.personalised,
                log_odds=problem.log_odds,
                test=tested.get(name),
                asked_to_compare=other is not None,
                noised=None
                if noised is None
                else in_evidence(noised, name, common=not config.personalised, pairs=pairs),
            )
    if not found:
        return None
    return multilabel_summary(found) if problem.labels else found[""]


def compared_with(config: RunConfig, problem: Problem, loaded: InitModel | None) -> Arrays | None:
    """Return the model that the run is compared with: x, and buffers if there are any; or None.

    Raises
    ------
    ModelError
        If it has another network, or was trained on other features or patients.
    """
    if loaded is None:
        return None
    assert isinstance(problem, NetworkProblem), "others are refused with the run-config"
    own, key = problem.model(), f"compare-with = {config.compare_with!r}"
    try:
        theirs, data_summary = loaded.data_summary, problem.setting.data_summary
        if theirs.columns != data_summary.columns or theirs.shape != data_summary.shape:
            text = "it was trained on other features, so it cannot score the same patients"
            raise ModelError(f"{key}: {text}", key="columns")
        if theirs.labels != data_summary.labels:
            text = other_labels(theirs.labels, data_summary.labels)
            raise ModelError(f"{key}: {text}: use one with the same labels", key="labels")
        moments = [(theirs.shift, data_summary.shift), (theirs.scale, data_summary.scale)]
        if any(len(a) != len(b) or not np.allclose(a, b, rtol=1e-4) for a, b in moments):
            raise ModelError(
                f"{key}: its inputs were standardised differently, so it was trained on other patients or another "
                "split: use a run on the same sites with the same seed",
                key="standardise",
            )
        start, _ = loaded.start(problem)
        found = {**problem.model(), "x": start["x"]}
    except ModelError as error:
        raise ModelError(str(error).replace(f"init-from = {config.compare_with!r}", key), key=error.key) from None
    if "buffers" in own:
        problem.load_buffers(own["buffers"])
    return found


def _tested(
    config: RunConfig, problem: NetworkProblem, names: Sequence[str], model: Arrays, other: Arrays | None, test: Samples
) -> dict[str, Site]:
    """Score the common test set, label by label; empty if the model has diverged."""
    scores = _scores(problem, model, test)
    if not np.isfinite(scores).all():
        return {}
    of_other = None if other is None else _scores(problem, other, test)
    labels = test.targets().double().cpu().numpy().reshape(scores.shape)
    patients = common_test_patients(config.data())
    found: dict[str, Site] = {}
    for place, name in enumerate(names):
        if not (known := labels[:, place] >= 0).any():
            continue
        own, truth = scores[known, place], labels[known, place]
        whose = None if patients is None else patients[known]
        site = Site(Counts.of(own, truth), exact(own, truth, whose), Design.of(own, truth, whose))
        if of_other is not None:
            _, theirs, covariance = paired(own, of_other[known, place], truth, whose)
            site = replace(site, other=theirs, covariance=covariance)
        found[name] = site
    return found


def _scores(problem: NetworkProblem, model: Arrays, test: Samples) -> Floats:
    """Return the scores of the test set, shape (n, L)."""
    if "buffers" in model:
        problem.load_buffers(model["buffers"].to(problem.device))
    scores: Floats = problem.logits(model["x"].to(problem.device), test).double().cpu().numpy()
    return scores.reshape(len(test), -1)


def write(content: Mapping[str, Any], folder: Path) -> None:
    """Write the file atomically."""
    with atomic_writer(folder / FILE) as file:
        file.write(json.dumps(content, allow_nan=False).encode() + b"\n")


def in_words(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the summary lines printed at the end of a run."""
    if "labels" not in content:
        yield from _of_a_label(content)
        return
    for name, own in content["labels"].items():
        yield from (f"{name}: {line}" for line in list(_of_a_label(own))[: 1 + bool(own["noised"])])
    means = [
        f"{words} {format_estimate(content['mean'][key]['auroc'])}"
        for key, words in (
            ("pooled", "pooled"),
            ("within-sites", "within sites"),
            ("common-test-set", "common test set"),
            ("noised", "held out, under noise"),
        )
        if "auroc" in (content["mean"][key] or {})
    ]
    yield f"mean AUROC over labels: {'; '.join(means)}; evidence.json has each label's details"


def noised_in_words(noised: Mapping[str, Any]) -> Iterator[str]:
    """Yield what noised histograms of the held-out patients say, a phrase for each number."""
    for kind, words in (("auroc", "AUROC"), ("auprc", "average precision")):
        if (found := noised.get(kind)) is None:
            continue
        words = f"{words} {found['pairs']}" if "pairs" in found else words
        if found["value"] is None:
            yield f"{words} cannot be told from the noise"
        else:
            yield f"{words} {format_estimate(found)}, {found['noise']:.0%} of the interval's width is noise"


def _of_a_label(content: Mapping[str, Any]) -> Iterator[str]:
    parts = []
    if noised := content["noised"]:
        yield "held-out patients, under noise: " + "; ".join(noised_in_words(noised))
    if pooled := content["pooled"]:
        parts.append(f"pooled AUROC {format_estimate(pooled['auroc'])}")
    within = content["within-sites"]
    if within["sites"]:
        parts.append(f"within sites {format_estimate(within['auroc'])}")
    if test := content["common-test-set"]:
        parts.append(f"common test set {format_estimate(test['auroc'])}")
    if parts:
        yield "; ".join(parts) + ", each with its 95 % interval"
    if compared := content["compared"]:
        within = compared if compared["sites"] else None
        places = (
            ("within sites", within),
            ("pooled", compared["pooled"]),
            ("on the common test set", compared["common-test-set"]),
        )
        differences = [f"{where} {format_estimate(one['difference'], signed=True)}" for where, one in places if one]
        yield f"compared with the other model, on the same patients: AUROC {'; '.join(differences)}"
    elif NOT_COMPARED in content["notes"]:
        yield NOT_COMPARED
    if pooled:
        calibration = pooled["calibration"]
        by = "after Platt scaling" if content["probabilities"]["by"] == "platt" else "unchanged"
        yield (
            f"average precision {format_estimate(pooled['auprc'])}; probabilities {by}: calibration slope "
            f"{format_estimate(calibration['slope'])}, Brier score {shown(calibration['brier'], digits=2)}"
        )
