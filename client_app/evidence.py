"""What a site tells of its scores for evidence.json: see `evidence.told`, and the site's own rules."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from client_app.errors import RefusedError
from client_app.policy.subgroups import subgroups
from client_app.probabilities import Entry, fitted
from evidence import Counts, Sketch, Told
from evidence.delong import design_effect, exact, paired
from evidence.grid import bins_of
from evidence.paired import merged_of, spread
from evidence.told import LARGEST, counts_record, grids_of, record_names
from problems import PROBLEMS, ranks
from problems.network import NetworkProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from client_app.request import Request
    from client_app.site import OpenSite
    from datasets import Samples
    from datasets.source import Mask
    from evidence.paired import Pair
    from evidence.sums import Floats, Ints
    from problems import Arrays

_SCORES: WeakKeyDictionary[Samples, dict[bytes, Floats]] = WeakKeyDictionary()
"""Of the models that sites of this process scored last, until they have told all of them."""

MODELS = 2  # whose scores are kept: the run's, and the one that it is compared with

STEP = 0.25  # to which a design effect is rounded up where groups of patients are told only


def told(
    site: OpenSite, request: Request, model: Arrays, other: Arrays, *, evaluated: bool
) -> dict[str, dict[str, Any]]:
    """Return the records of the first answer by name, of several labels one for each.

    They are empty where the site has no evaluation, where the model has diverged, which the evaluation says, and where
    a label is not known of anybody. ``other`` is the model that the run is compared with, empty for none; the problem
    has its statistics afterwards.
    """
    names = record_names(site.run.several or ("",))
    found: dict[str, dict[str, Any]] = {name: {} for name in names.values()}
    if not evaluated:
        return found
    scores, labels = _scored(site, request, model)
    if not (np.abs(scores) < LARGEST / len(scores)).all():
        return found
    scores_of_other = _scored_by_other(site, request, other) if other and site.exact else None
    if scores_of_other is not None and not (np.abs(scores_of_other) < LARGEST / len(scores)).all():
        scores_of_other = None
    for place, name in enumerate(names.values()):
        if (known := labels[:, place] >= 0).any():
            theirs = None if scores_of_other is None else scores_of_other[known, place]
            found[name] = _told(site, known, scores[known, place], labels[known, place], theirs).record()
    return found


def own_maps(site: OpenSite, request: Request, model: Arrays) -> list[Entry | None] | None:
    """Return what makes probabilities of a model's scores here, label by label; None where the scores are log-odds.

    It is for the site itself, and no part of what it tells.
    """
    problem, held_out = PROBLEMS[site.run.problem], site.samples(request)[1]
    if not issubclass(problem, NetworkProblem) or not ranks(problem) or problem.log_odds or held_out is None:
        return None
    if not len(held_out):
        return [None] * max(1, len(site.run.several))
    found = fitted(*_scored(site, request, model))
    if not site.gives_evidence:
        _forget(site, request)
    return found


def _told(site: OpenSite, known: Mask, scores: Floats, labels: Floats, theirs: Floats | None) -> Told:
    """Return what is told of one label, of those held-out samples of which it is known; ``theirs`` are other scores."""
    patients = _patients(site, known)
    groups = subgroups(site, known, scores, labels, patients)
    if not site.exact:
        return Told(design=1.0 if patients is None else most(patients), groups=groups)
    sketch, design = Sketch.of(scores, labels), 1.0 if patients is None else design_effect(scores, labels, patients)
    cuts, own = (sketch.positives, sketch.negatives), exact(scores, labels, patients)
    if theirs is None:
        return Told(cuts, own, design, groups)
    _, compared, covariance = paired(scores, theirs, labels, patients)
    of_other = Sketch.of(theirs, labels)
    shares = not site.run.strategy.personalised  # else nothing is pooled
    other_cuts = (of_other.positives, of_other.negatives) if shares else (np.zeros(0), np.zeros(0))
    return Told(cuts, own, design, groups, compared, covariance, other_cuts)


def counted(site: OpenSite, request: Request, model: Arrays, other: Arrays) -> dict[str, dict[str, Any]]:
    """Return the records of the second answer by name, of several labels one for each that was asked for.

    Asked with the counts of all sites, it is the third answer: how much the model and the ``other`` one differ.

    Raises
    ------
    RefusedError
        Where groups of patients are told only: a grid that others choose might have few in a bin. And where counts of
        all sites lack some of this one's.
    """
    if not site.exact:
        raise RefusedError(
            f"it tells of its patients in groups of {site.policy.fewest_of_each_class}, so it counts no scores on a "
            "grid that others choose"
        )
    scores, labels = _scored(site, request, model)
    theirs = _scored_by_other(site, request, other) if request.other_cuts else None
    grids = grids_of(request.cuts, request.bins)
    other_grids = grids_of(request.other_cuts, request.other_bins) if request.other_cuts else [()] * len(grids)
    merged = merged_of(request.merged, (grids, other_grids)) if request.merged else None
    found = {}
    for place, name in enumerate(record_names(site.run.several or ("",)).values()):
        if not len(grids[place]):
            continue
        known = labels[:, place] >= 0
        own, truth = (scores[known, place], np.array(grids[place])), labels[known, place]
        of_other = None
        if theirs is not None and len(other_grids[place]):
            of_other = theirs[known, place], np.array(other_grids[place])
        counts = [Counts.of(values, truth, cuts) for values, cuts in filter(None, (own, of_other))]
        if merged is None:
            found[name] = counts_record(*counts)
            continue
        if of_other is None or not _among(counts, merged[place]):
            raise RefusedError("what is said of the scores of all sites has not all that this site told")
        bins = bins_of(*own), bins_of(*of_other)
        found[name] = spread(bins, truth, _patients(site, known), merged[place]).record()
    if merged or not request.other_cuts:  # the last that is asked
        _forget(site, request)
    return found


def _forget(site: OpenSite, request: Request) -> None:
    """Forget the scores of a site, whose memory others of this process may need."""
    if (held_out := site.samples(request)[1]) is not None:
        _SCORES.pop(held_out, None)


def _among(own: Sequence[Counts], merged: tuple[Pair, Pair]) -> bool:
    """Whether the counts of all sites on both grids have this site's, of both classes, and are of as many patients."""
    sizes = {(float(pair[0].sum()), float(pair[1].sum())) for pair in merged}
    return len(sizes) == 1 and all(
        pair[0].any() and pair[1].any() and (pair[0] >= counts.positives).all() and (pair[1] >= counts.negatives).all()
        for counts, pair in zip(own, merged, strict=True)
    )


def most(patients: Ints) -> float:
    """Return the largest design effect that there can be: if all samples of a patient said the same.

    It depends on no score, so no model that a coordinator makes up can read a patient from it.
    """
    sizes = np.bincount(patients).astype(float)
    return float(STEP * np.ceil(sizes @ sizes / sizes.sum() / STEP))


def _scored(site: OpenSite, request: Request, model: Arrays) -> tuple[Floats, Floats]:
    """Return scores and labels of the held-out samples, both of shape (n, L); an unknown label is negative."""
    problem, held_out = site.problem(request), site.samples(request)[1]
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
    """Return the scores of the model that the run is compared with; the problem has its statistics afterwards."""
    if "buffers" in other:
        site.problem(request).load_buffers(other["buffers"])
    return _scored(site, request, other)[0]


def _patients(site: OpenSite, which: Mask) -> Ints | None:
    """Return whose each of these held-out samples is, as numbers; None where each is another's."""
    data = site.data()
    if data is None or data.whose is None:
        return None
    names, numbers = np.unique(data.whose[data.held_out.rows.numpy()][which], return_inverse=True)
    return numbers.astype(np.int64) if len(names) < len(numbers) else None
