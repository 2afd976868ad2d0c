"""evidence.json: what a run's model is worth, from what the sites told.

The form of the file, version 1. A number that is not defined is null; lists of curves are columns of equal length.

``version``, ``level``
    1; the level of all intervals, 0.95.
``model``
    ``"common"``: all sites evaluated one model. ``"own"``: each its own; then nothing is pooled.
``probabilities``
    How scores become probabilities: ``by`` ``"platt"`` or ``"none"`` (they are log-odds), ``intercept`` and ``slope``
    of the map (of a common model), and ``assessed-on``: ``"other-sites"`` (at each site with the map that was fitted at
    all others) or ``"same-patients"`` (those it was fitted on, which is optimistic); for ``"none"`` ``"held-out"``.
``pooled``, ``common-test-set``
    An evaluation (below) of all sites' held-out samples, ranked together, and of the common test set; null where there
    is none.
``sites``
    An evaluation for each site, by name.
``within-sites``
    The mean over the ``sites`` that have both classes, of their own ``auroc``, an estimate with ``ties``. A pooled
    AUROC counts pairs across sites, too, so it rewards a model that tells sites apart.
``subgroups``
    By column and group: ``n``, ``positives``, ``sites`` (how many told of it), ``auroc``, an estimate: the mean within
    sites, weighted by their pairs; ``sensitivity`` and ``specificity``, estimates over all its samples, with a
    threshold for each site: that at which a share of `evidence.curves.SAME_FOR_ALL` of all its negatives is below.
``compared``
    With another model on the same patients (null without one): ``difference``, an estimate, and ``p``, two-sided, of
    the mean within ``sites`` (how many), this model's AUROC less the other's (DeLong, paired); ``by-site`` each site's,
    ``pooled`` that of all sites' patients ranked together, with ``sites``, ``n`` and ``positives``: those sites that
    tell of each patient (null where there is none), and ``common-test-set`` that there, each with ``auroc``, ``other``
    (numbers), ``difference`` and ``p``.
``notes``
    What a reader must know, in sentences.

Of a run with several labels the file has ``version``, ``level``, ``model`` and

``labels``
    For each label by name all of the above, of those samples of which it is known.
``mean``
    The mean over the labels, of ``pooled``, ``within-sites`` and ``common-test-set`` (null where there is none): each
    with ``labels``, how many have one, and ``auroc`` and ``auprc``, estimates. Their ends are the means of the labels'
    ends, which is as wide as if all labels were wrong together, and so no narrower than it should be.

An estimate has ``value``, ``low``, ``high`` and ``by``, the method of the interval. An evaluation has

``n``, ``positives``, ``grouped``
    Samples; whether some were told in groups of several patients, so that all that follows is approximate.
``auroc``
    An estimate, and ``ties``: the most by which it may be off because some sites told of groups of samples, and not of
    the order within; 0 where none did.
``auprc``
    An estimate, for other patients of these sites, and ``ties``; pooled of several sites also ``low-sites`` and
    ``high-sites``, for other sites, too.
``calibration``
    ``intercept`` and ``slope`` (estimates), ``brier``, ``ece``, and ``curve``: points with ``predicted``, ``observed``,
    ``low``, ``high``, ``n``.
``points``
    Sensitivity at fixed specificity, and the reverse: ``fixed``, ``at``, ``reached``, ``told``, ``value``, ``low``,
    ``high``, ``threshold`` (a score; null: above all).
``roc``, ``precision-recall``, ``net-benefit``
    Columns ``fpr`` and ``tpr``; ``recall`` and ``precision``; ``threshold``, ``model`` and ``all``. Of ``pooled`` and
    ``common-test-set`` the first two also have ``band``: ``at`` (a false positive rate, a recall), ``low``, ``high``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edelweiss.evidence import calibration, curves, delong
from edelweiss.evidence.calibration import AS_THEY_ARE, Fit, platt, platt_of_the_others, probability
from edelweiss.evidence.comparison import compared
from edelweiss.evidence.design import SINGLE, Design
from edelweiss.evidence.grid import CLASSES, Counts, Together
from edelweiss.evidence.intervals import LEVEL, Worth, estimate, of_auroc, of_average_precision, of_other_sites, worth
from edelweiss.evidence.inverted import turned_over
from edelweiss.evidence.within_sites import own_auroc, subgroups, within
from edelweiss.problems.pooling import unknown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edelweiss.evidence.paired import Spread
    from edelweiss.evidence.reported import Group
    from edelweiss.evidence.sums import Floats

VERSION = 1
POOLING = (
    "The pooled AUROC counts pairs of patients of different sites, too: it rewards a model that tells sites apart. "
    "The mean within sites does not."
)
GROUPED = "By their own rules some sites sent scores of groups of patients only: what follows is approximate."
SAME_PATIENTS = (
    "Scores became probabilities by a map (Platt) that was fitted on the patients that it was assessed on: intercept "
    "and slope say nothing, and Brier score and calibration error are optimistic."
)
NOT_COMPARED = (
    "The two models are not compared: no site that tells of each patient has both classes, and there is no common test "
    "set."
)


@dataclass(frozen=True, eq=False)
class Site:
    """What is known of a site's held-out samples.

    Attributes
    ----------
    counts : Counts
        Of its scores.
    auroc : Auroc, optional
        Its own, exactly; default: that of the counts.
    design : Design
        How many times as large variances are because patients have several samples.
    grouped : bool
        Whether it told of groups of patients only.
    groups : sequence of Group
        Its subgroups.
    other, covariance : Auroc, float
        The AUROC of the model that this one is compared with, and the covariance of the two; None for none.
    other_counts, spread : Counts, Spread
        Of the other model's scores, and by how much the two differ (`evidence.paired`); None for none.
    """

    counts: Counts
    auroc: delong.Auroc | None = None
    design: Design = SINGLE
    grouped: bool = False
    groups: Sequence[Group] = ()
    other: delong.Auroc | None = None
    covariance: float = math.nan
    other_counts: Counts | None = None
    spread: Spread | None = None


def summary(
    sites: Mapping[str, Site],
    *,
    common: bool,
    log_odds: bool,
    test: Site | None = None,
    asked_to_compare: bool = False,
) -> dict[str, Any]:
    """Return the content of evidence.json, as JSON has it.

    Parameters
    ----------
    sites : mapping
        By name, those with held-out samples; at least one, if there is no ``test``.
    common : bool
        Whether all evaluated one model.
    log_odds : bool
        Whether scores are log-odds of a positive.
    test : Site, optional
        The common test set.
    asked_to_compare : bool
        Whether the run has another model, so that it is said where it cannot be compared.
    """
    every, counts = list(sites.values()), Together([site.counts for site in sites.values()])
    fits, assessed_on = _fits(counts, common=common, log_odds=log_odds)
    whole = AS_THEY_ARE if log_odds else platt(counts.total) if common and counts else None
    found: dict[str, Any] = {"version": VERSION, "level": LEVEL, "model": "common" if common else "own"}
    found["probabilities"] = {
        "by": "none" if log_odds else "platt",
        "intercept": whole.intercept if whole else math.nan,
        "slope": whole.slope if whole else math.nan,
        "assessed-on": assessed_on,
    }
    found["pooled"] = found["common-test-set"] = None
    if common and every:
        found["pooled"] = evaluation(every, fits, counts) | bands(every, counts.total)
    found["sites"] = {name: evaluation([site], [fit]) for (name, site), fit in zip(sites.items(), fits, strict=True)}
    if test is not None:
        found["common-test-set"] = evaluation([test], [whole or platt(test.counts)]) | bands([test], test.counts)
    found["within-sites"] = within(every)
    own_ties = [one["auroc"]["ties"] for one in found["sites"].values() if not math.isnan(one["auroc"]["value"])]
    found["within-sites"]["auroc"]["ties"] = float(np.mean(own_ties)) if own_ties else math.nan
    found["subgroups"] = subgroups(every)
    found["compared"] = compared(sites, test)
    said = [POOLING] * (common and len(every) > 1) + [SAME_PATIENTS] * (assessed_on == "same-patients")
    said += [GROUPED] * any(site.grouped for site in every)
    said += turned_over(_as_json(found))
    found["notes"] = said + [NOT_COMPARED] * (asked_to_compare and found["compared"] is None)
    return dict(_as_json(found))


def _fits(counts: Together, *, common: bool, log_odds: bool) -> tuple[list[Fit], str]:
    """Return how each site's scores become log-odds, and on whom that is assessed."""
    if log_odds:
        return [AS_THEY_ARE] * len(counts), "held-out"
    if not common:
        return [platt(own) for own in counts], "same-patients"
    others = platt_of_the_others(counts)
    return (others, "other-sites") if others else ([platt(counts.total)] * len(counts), "same-patients")


def evaluation(sites: Sequence[Site], fits: Sequence[Fit], counts: Together | None = None) -> dict[str, Any]:
    """Evaluate sites, ranked together; of one site, by its own AUROC.

    Parameters
    ----------
    sites : sequence of Site
        At least one.
    fits : sequence of Fit
        How the scores of each become log-odds.
    counts : Together, optional
        Theirs.
    """
    counts = counts or Together([site.counts for site in sites])
    total = counts.total
    auroc = delong.from_counts(counts, [site.design.auroc for site in sites]) if len(sites) > 1 else own_auroc(sites[0])
    precision = _average_precision(sites, counts)
    off = unknown(
        [(own.histograms(), site.grouped) for own, site in zip(counts, sites, strict=True)],
        {"auroc": auroc.value, "auprc": precision["value"]},
    )
    log_odds = np.concatenate([fit.log_odds(own.centres()) for fit, own in zip(fits, counts, strict=True)])
    design = [_by_bin(sites, of) for of in ("intercept", "slope", "curve")]
    by_site = [np.concatenate([getattr(own, kind) for own in counts]) for kind in CLASSES]
    predicted = log_odds, by_site[0], by_site[1]
    return {
        "n": int(total.every.sum()),
        "positives": int(total.positives.sum()),
        "grouped": any(site.grouped for site in sites),
        "auroc": of_auroc(auroc.value, auroc.variance, _worth(sites, 0, "auroc"), _worth(sites, 1, "auroc"))
        | {"ties": off["auroc"]},
        "auprc": precision | {"ties": off["auprc"]},
        "calibration": calibration.assessment(*predicted, (design[0], design[1], design[2])),
        "points": curves.operating_points(total.positives, total.negatives, total.centres(), _independent(sites)),
        "roc": curves.roc(total.positives, total.negatives),
        "precision-recall": curves.precision_recall(total.positives, total.negatives),
        "net-benefit": curves.net_benefit(probability(predicted[0]), *predicted[1:]),
    }


def _by_bin(sites: Sequence[Site], of: str) -> Floats:
    """Return for each bin of each site the design effect of this name there, for as many patients as there are."""
    effects, bins = [getattr(site.design, of) for site in sites], [len(site.counts.bins) for site in sites]
    factor = _worth(sites, 0, of).factor
    if len(set(effects)) == 1:
        return np.broadcast_to(effects[0] * factor, sum(bins))  # of no size
    return np.repeat(effects, bins) * factor


def _average_precision(sites: Sequence[Site], counts: Together) -> dict[str, Any]:
    total = counts.total
    value = float(curves.average_precision(total.positives, total.negatives))
    if not total.negatives.any():
        return estimate(value)
    patients, every = curves.average_precision_variance(counts, [site.design.auprc for site in sites])
    found = of_average_precision(value, patients, _worth(sites, 0, "auprc"))
    if len(sites) == 1:
        return found
    low, high = of_other_sites(value, every, len(sites))
    return found | {"low-sites": min(low, found["low"]), "high-sites": max(high, found["high"])}


def _worth(sites: Sequence[Site], kind: int, of: str) -> Worth:
    """Return what the positives (0) or negatives (1) of sites are worth for the number whose design effect this is."""
    design, largest = ([getattr(site.design, name) for site in sites] for name in (of, "largest"))
    return worth([site.counts.sizes[kind] for site in sites], design, largest)


def _independent(sites: Sequence[Site]) -> tuple[float, float]:
    """Return how many independent positives and negatives there are, for sensitivity and specificity."""
    return _worth(sites, 0, "sensitivity").independent, _worth(sites, 1, "specificity").independent


def bands(sites: Sequence[Site], total: Counts) -> dict[str, Any]:
    """Return the curves of an evaluation with their bands."""
    pair, worth_of = (total.positives, total.negatives), _independent(sites)
    found = {"roc": curves.roc(*pair), "precision-recall": curves.precision_recall(*pair)}
    if total.positives.any() and total.negatives.any():
        patients = sum(_worth(sites, kind, "largest").patients for kind in (0, 1))
        both = curves.roc_band(*pair, worth_of), curves.precision_band(*pair, worth_of, patients)
        for curve, (low, high) in zip(found.values(), both, strict=True):
            curve["band"] = {"at": curves.GRID, "low": low, "high": high}  # type: ignore[assignment]
    return found


def _as_json(value: Any) -> Any:
    """Return plain lists and numbers; NaN and infinity become None, and curves have six digits."""
    if isinstance(value, float):  # NumPy's is one
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        rounded = [float(text) for text in ("%.6g " * len(value) % tuple(value.tolist())).split()]
        return rounded if np.isfinite(value).all() else [item if math.isfinite(item) else None for item in rounded]
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return value
