"""The statistics of scores that a site reports for evidence.json, see `evidence.reported`, within its policy."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from edelweiss.client_app.errors import RefusedError
from edelweiss.client_app.policy.subgroups import subgroups
from edelweiss.client_app.privacy.randomness import question, with_statistics
from edelweiss.client_app.recalibration import Entry, fit_maps
from edelweiss.config.privacy import require_private
from edelweiss.evidence import Counts, Reported
from edelweiss.evidence.delong import exact, paired
from edelweiss.evidence.design import Design, largest_effect
from edelweiss.evidence.paired import read_merged, spread
from edelweiss.evidence.reported import MAX_SCORE, record_names
from edelweiss.problems import PROBLEMS, ranks
from edelweiss.problems.network import NetworkProblem

if TYPE_CHECKING:
    from edelweiss.client_app.request import EvaluateRequest, Request
    from edelweiss.client_app.site import OpenSite
    from edelweiss.datasets import Samples
    from edelweiss.datasets.source import Mask
    from edelweiss.evidence.noised import Noised
    from edelweiss.evidence.sums import Floats, Ints
    from edelweiss.problems import Arrays

_SCORES: WeakKeyDictionary[Samples, dict[bytes, Floats]] = WeakKeyDictionary()
"""Scores of the models that this process's sites evaluated last, until all are reported."""

MODELS = 2  # the run's model, and the one that it is compared with


def evidence_records(
    site: OpenSite, request: Request, model: Arrays, other: Arrays, *, evaluated: bool
) -> dict[str, dict[str, Any]]:
    """Return the records of the first reply by name, one for each label.

    A record is empty if the site sends no evaluation, if the model has diverged (as the evaluation shows), or if no
    sample has a known value of the label. ``other`` is the model for comparison, empty for none; afterwards the problem
    holds its batch-norm statistics.
    """
    names = record_names(site.run.several or ("",))
    found: dict[str, dict[str, Any]] = {name: {} for name in names.values()}
    if not evaluated:
        return found
    scores, labels = _scored(site, request, model)
    if not (np.abs(scores) < MAX_SCORE).all():
        return found
    scores_of_other = _scored_by_other(site, request, other) if other and site.exact else None
    if scores_of_other is not None and not (np.abs(scores_of_other) < MAX_SCORE).all():
        scores_of_other = None
    for place, name in enumerate(names.values()):
        if (known := labels[:, place] >= 0).any():
            theirs = None if scores_of_other is None else scores_of_other[known, place]
            found[name] = _reported(site, known, scores[known, place], labels[known, place], theirs).record()
    return found


def noised_scores(site: OpenSite, request: Request, model: Arrays) -> dict[str, Noised | None]:
    """Return a private site's noised histograms by the name of their record, one for each label; None without patients.

    Everything but these stays here; they are charged to the budget before any score is computed.
    """
    privacy, here, names = site.privacy, site.in_run(request), record_names(site.run.several or ("",))
    assert privacy is not None, "the run is private"
    if here.samples[1] is None or not len(here.samples[1]):
        return dict.fromkeys(names.values())
    require_private(here.problem)
    lasting = here.index, here.sites, here.data_summary
    scoring = with_statistics(model, here.problem)
    asked = question(site.run, lasting, privacy.here, request.context, scoring, {})
    found = privacy.noised_scores(asked, partial(_scored, site, request, model))
    _forget(site, request)
    return dict(zip(names.values(), found, strict=True))


def own_maps(site: OpenSite, request: Request, model: Arrays) -> list[Entry | None] | None:
    """Return the maps from a model's scores to probabilities at this site, by label; None if scores are log-odds.

    They stay at the site.
    """
    problem, held_out = PROBLEMS[site.run.problem], site.in_run(request).samples[1]
    if not issubclass(problem, NetworkProblem) or not ranks(problem) or problem.log_odds or held_out is None:
        return None
    if not len(held_out):
        return [None] * max(1, len(site.run.several))
    found = fit_maps(*_scored(site, request, model))
    if not site.gives_evidence:
        _forget(site, request)
    return found


def _reported(site: OpenSite, known: Mask, scores: Floats, labels: Floats, theirs: Floats | None) -> Reported:
    """Return the statistics of one label over the held-out samples with a known value; ``theirs``: other scores."""
    patients = _patients(site, known)
    groups = subgroups(site, known, scores, labels, patients)
    if not site.exact:
        return Reported(design=Design.uniform(1.0 if patients is None else largest_effect(patients)), groups=groups)
    design, own = Design.of(scores, labels, patients), exact(scores, labels, patients)
    if theirs is None:
        return Reported(own, design, groups)
    _, compared, covariance = paired(scores, theirs, labels, patients)
    shares = not site.run.personalised  # otherwise nothing is pooled
    return Reported(own, design, groups, compared, covariance, Counts.of(theirs, labels) if shares else None)


def comparison_records(
    site: OpenSite, request: EvaluateRequest, model: Arrays, other: Arrays
) -> dict[str, dict[str, Any]]:
    """Return the records of the second reply by name, one for each requested label.

    They compare the model with the ``other`` one; the request has the pooled counts of all sites.

    Raises
    ------
    RefusedError
        If scores are coarsened, or the pooled counts omit this site's.
    """
    if not site.exact:
        raise RefusedError(
            f"it reports scores in groups of {site.policy.fewest_of_each_class}, so it compares no two models "
            "patient by patient"
        )
    scores, labels = _scored(site, request, model)
    theirs = _scored_by_other(site, request, other)
    found = {}
    for place, (name, merged) in enumerate(
        zip(record_names(site.run.several or ("",)).values(), read_merged(request.merged), strict=True)
    ):
        if merged is None:
            continue
        known = labels[:, place] >= 0
        both, truth = (scores[known, place], theirs[known, place]), labels[known, place]
        if not _among([Counts.of(own, truth) for own in both], merged):
            raise RefusedError("the pooled counts of all sites lack some that this site reported")
        found[name] = spread(both, truth, _patients(site, known), merged).record()
    _forget(site, request)
    return found


def _forget(site: OpenSite, request: Request) -> None:
    """Drop a site's scores to free memory for other sites of this process."""
    if (held_out := site.in_run(request).samples[1]) is not None:
        _SCORES.pop(held_out, None)


def _among(own: list[Counts], merged: tuple[Counts, Counts]) -> bool:
    """Whether the pooled counts for both models include this site's, have both classes, and equal totals."""
    sizes = {total.sizes for total in merged}
    return (
        len(sizes) == 1
        and all(sizes.pop())
        and all(counts.among(total) for counts, total in zip(own, merged, strict=True))
    )


def _scored(site: OpenSite, request: Request, model: Arrays) -> tuple[Floats, Floats]:
    """Return scores and labels of the held-out samples, shape (n, L) each; unknown labels are negative."""
    problem, held_out = site.in_run(request).problem, site.in_run(request).samples[1]
    assert isinstance(problem, NetworkProblem), "others give no evidence"
    assert held_out is not None, "a network is evaluated on samples"
    digest = hashlib.blake2b(torch.cat([model["x"], problem.buffers()]).cpu().numpy().data).digest()
    kept = _SCORES.setdefault(held_out, {})
    if (scores := kept.get(digest)) is None:
        scores = problem.logits(model["x"], held_out).double().cpu().numpy().reshape(len(held_out), -1)
        if len(kept) >= MODELS:
            kept.clear()
        kept[digest] = scores
    return scores, held_out.targets().double().cpu().numpy().reshape(scores.shape)


def _scored_by_other(site: OpenSite, request: Request, other: Arrays) -> Floats:
    """Return the scores of the model under comparison; the problem then holds its batch-norm statistics."""
    if "buffers" in other:
        site.in_run(request).problem.load_buffers(other["buffers"])
    return _scored(site, request, other)[0]


def _patients(site: OpenSite, which: Mask) -> Ints | None:
    """Return the patient of each of these held-out samples, as numbers; None if all are different."""
    data = site.data()
    if data is None or data.patient_ids is None:
        return None
    names, numbers = np.unique(data.patient_ids[data.held_out.rows.numpy()][which], return_inverse=True)
    return numbers.astype(np.int64) if len(names) < len(numbers) else None
