"""What a site tells of its scores for evidence.json: see `evidence.told`, and the site's own rules."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from client_app.errors import RefusedError
from client_app.policy.subgroups import subgroups
from evidence import Counts, Sketch, Told
from evidence.delong import design_effect, exact, paired
from evidence.told import LARGEST, counts_record, grids_of, record_names
from problems.network import NetworkProblem

if TYPE_CHECKING:
    from client_app.site import OpenSite, Request
    from datasets import Samples
    from datasets.source import Mask
    from evidence.sums import Floats, Ints
    from problems import Arrays

_SCORES: WeakKeyDictionary[Samples, tuple[bytes, Floats]] = WeakKeyDictionary()
"""Of the models that sites of this process scored last, until they are asked for the counts."""

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
    scores_of_other = None
    if other and site.exact:
        if "buffers" in other:
            site.problem(request).load_buffers(other["buffers"])
        scores_of_other, _ = _scored(site, request, other)
    for place, name in enumerate(names.values()):
        if (known := labels[:, place] >= 0).any():
            theirs = None if scores_of_other is None else scores_of_other[known, place]
            found[name] = _told(site, known, scores[known, place], labels[known, place], theirs).record()
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
    return Told(cuts, own, design, groups, compared, covariance)


def counted(site: OpenSite, request: Request, model: Arrays) -> dict[str, dict[str, Any]]:
    """Return the records of the second answer by name, of several labels one for each that was asked for.

    Raises
    ------
    RefusedError
        Where groups of patients are told only: a grid that others choose might have few in a bin.
    """
    if not site.exact:
        raise RefusedError(
            f"it tells of its patients in groups of {site.policy.fewest_of_each_class}, so it counts no scores on a "
            "grid that others choose"
        )
    scores, labels = _scored(site, request, model)
    names = record_names(site.run.several or ("",)).values()
    found = {}
    for place, (name, cuts) in enumerate(zip(names, grids_of(request.cuts, request.bins), strict=True)):
        if len(cuts):
            known = labels[:, place] >= 0
            counts = Counts.of(scores[known, place], labels[known, place], np.array(cuts))
            found[name] = counts_record(counts)
    return found


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
    known, scores = _SCORES.pop(held_out, (b"", np.zeros(0)))
    if known != digest:
        scores = problem.logits(model["x"], held_out).double().cpu().numpy().reshape(len(held_out), -1)
        _SCORES[held_out] = digest, scores
    return scores, held_out.targets().double().cpu().numpy().reshape(scores.shape)


def _patients(site: OpenSite, which: Mask) -> Ints | None:
    """Return whose each of these held-out samples is, as numbers; None where each is another's."""
    data = site.data()
    if data is None or data.whose is None:
        return None
    names, numbers = np.unique(data.whose[data.held_out.rows.numpy()][which], return_inverse=True)
    return numbers.astype(np.int64) if len(names) < len(numbers) else None
