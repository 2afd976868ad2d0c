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
from evidence.told import LARGEST, counts_record
from problems.network import NetworkProblem

if TYPE_CHECKING:
    from client_app.site import OpenSite, Request
    from datasets import Samples
    from evidence.sums import Floats, Ints
    from problems import Arrays

_SCORES: WeakKeyDictionary[Samples, tuple[bytes, Floats]] = WeakKeyDictionary()
"""Of the models that sites of this process scored last, until they are asked for the counts."""

STEP = 0.25  # to which a design effect is rounded up where groups of patients are told only


def told(site: OpenSite, request: Request, model: Arrays, other: Arrays) -> dict[str, Any]:
    """Return the record of the first answer; empty where the model has diverged, which the evaluation says.

    ``other`` is the model that the run is compared with, empty for none; the problem has its statistics afterwards.
    """
    scores, labels = _scored(site, request, model)
    if not (np.abs(scores) < LARGEST / len(scores)).all():
        return {}
    patients = _patients(site)
    groups = subgroups(site, scores, labels, patients)
    if not site.exact:
        return Told(design=1.0 if patients is None else most(patients), groups=groups).record()
    sketch, design = Sketch.of(scores, labels), 1.0 if patients is None else design_effect(scores, labels, patients)
    cuts, own = (sketch.positives, sketch.negatives), exact(scores, labels, patients)
    if not other:
        return Told(cuts, own, design, groups).record()
    if "buffers" in other:
        site.problem(request).load_buffers(other["buffers"])
    scores_of_other, _ = _scored(site, request, other)
    _, theirs, covariance = paired(scores, scores_of_other, labels, patients)
    return Told(cuts, own, design, groups, theirs, covariance).record()


def counted(site: OpenSite, request: Request, model: Arrays) -> dict[str, Any]:
    """Return the record of the second answer.

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
    return counts_record(Counts.of(*_scored(site, request, model), np.array(request.cuts)))


def most(patients: Ints) -> float:
    """Return the largest design effect that there can be: if all samples of a patient said the same.

    It depends on no score, so no model that a coordinator makes up can read a patient from it.
    """
    sizes = np.bincount(patients).astype(float)
    return float(STEP * np.ceil(sizes @ sizes / sizes.sum() / STEP))


def _scored(site: OpenSite, request: Request, model: Arrays) -> tuple[Floats, Floats]:
    """Return scores and labels of the held-out samples."""
    problem, held_out = site.problem(request), site.samples(request)[1]
    assert isinstance(problem, NetworkProblem), "others give no evidence"
    assert held_out is not None, "a network is evaluated on samples"
    digest = hashlib.blake2b(torch.cat([model["x"], problem.buffers()]).cpu().numpy().data).digest()
    known, scores = _SCORES.pop(held_out, (b"", np.zeros(0)))
    if known != digest:
        scores = problem.logits(model["x"], held_out).double().cpu().numpy()
        _SCORES[held_out] = digest, scores
    return scores, held_out.targets().double().cpu().numpy()


def _patients(site: OpenSite) -> Ints | None:
    """Return whose each held-out sample is, as numbers; None where each is another's."""
    data = site.data()
    if data is None or data.whose is None:
        return None
    names, numbers = np.unique(data.whose[data.held_out.rows.numpy()], return_inverse=True)
    return numbers.astype(np.int64) if len(names) < len(numbers) else None
