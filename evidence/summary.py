"""evidence.json: the evaluation of a run's model, from the statistics that the sites report.

The file format, version 3 (in version 2 there was no ``noised``; in version 1 ``measure`` was ``told``). Undefined
numbers are null; a curve is a set of columns of equal length.

``version``, ``level``
    3; the confidence level of all intervals, 0.95.
``model``
    ``"common"``: all sites evaluated one model. ``"own"``: each its own; then nothing is pooled.
``probabilities``
    The map from scores to probabilities: ``by`` ``"platt"``, or ``"none"`` if scores are log-odds; ``intercept`` and
    ``slope`` (of a common model); and ``assessed-on``: ``"other-sites"`` (each site with the map fitted on all others),
    ``"same-patients"`` (those the map was fitted on, which is optimistic), or with ``"none"`` ``"held-out"``.
``pooled``, ``common-test-set``
    An evaluation (below) of the pooled held-out samples of all sites, and of the common test set; null without one.
``sites``
    An evaluation for each site, by name.
``within-sites``
    ``sites``, the number with both classes, and the mean of their ``auroc``, an estimate with ``ties``. A pooled AUROC
    also counts pairs across sites, so it rewards a model that distinguishes sites.
``subgroups``
    By column and group: ``n``, ``positives``, ``sites`` (the number that reported it); ``auroc``, an estimate: the mean
    within sites, weighted by their pairs; ``sensitivity`` and ``specificity``, pooled estimates at each site's own
    threshold, where its specificity over all patients is `evidence.curves.SUBGROUP_SPECIFICITY`.
``compared``
    Comparison with another model on the same patients (null without one). ``difference``, an estimate, and ``p``,
    two-sided: the mean over ``sites`` (their number) of this model's AUROC minus the other's (DeLong, paired).
    ``by-site``, ``common-test-set`` and ``pooled`` have ``auroc``, ``other`` (numbers), ``difference`` and ``p``;
    ``pooled`` also ``sites``, ``n`` and ``positives``, over the sites that report individual scores (null without any).
``noised``
    Of a run with differential privacy, from noised histograms of the held-out patients, by sites (null of any other):
    ``auroc``, over the ``pairs`` "within sites", or with secure aggregation "over all sites"; and of a common model
    ``auprc``. Each is an estimate with ``noise``, the share of the interval's width that is there for the noise; all
    null where the noise hides it. ``sites`` is then empty, and ``pooled`` null.
``notes``
    Caveats for the reader, in sentences.

With several labels the file has ``version``, ``level``, ``model`` and

``labels``
    All of the above for each label by name, over the samples with a known label.
``mean``
    The means over the labels of ``pooled``, ``within-sites`` and ``common-test-set`` (null without one): each with
    ``labels``, the number with a value, and the estimates ``auroc`` and ``auprc``. Their interval ends are the means of
    the labels' ends, which is conservative: as wide as with perfectly correlated labels.

An estimate has ``value``, ``low``, ``high`` and ``by``, the method of the interval. An evaluation has

``n``, ``positives``, ``grouped``
    Samples; whether some scores were aggregated over groups of patients, so that the rest is approximate.
``auroc``
    An estimate, and ``ties``: the largest error due to the unknown order within groups of samples; 0 without groups.
``auprc``
    An estimate for new patients at these sites, and ``ties``; pooled over several sites also ``low-sites`` and
    ``high-sites``, the interval for new sites.
``calibration``
    ``intercept`` and ``slope`` (estimates), ``brier``, ``ece``, and ``curve``: points with ``predicted``, ``observed``,
    ``low``, ``high``, ``n``.
``points``
    Sensitivity at fixed specificity, and the reverse: ``fixed``, ``at``, ``reached``, ``measure``, ``value``, ``low``,
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
from edelweiss.evidence.calibration import IDENTITY, Fit, platt, platt_leave_one_site_out, probability
from edelweiss.evidence.comparison import compare_models
from edelweiss.evidence.design import SINGLE, Design
from edelweiss.evidence.grid import CLASSES, Counts, SiteCounts
from edelweiss.evidence.intervals import (
    LEVEL,
    EffectiveSize,
    auroc_interval,
    average_precision_interval,
    between_sites_interval,
    effective_size,
    estimate,
)
from edelweiss.evidence.inverted import inverted_rankings
from edelweiss.evidence.within_sites import mean_within_sites, own_auroc, subgroups
from edelweiss.problems.pooling import IN_BINS, IN_GROUPS, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edelweiss.evidence.paired import Spread
    from edelweiss.evidence.reported import Group
    from edelweiss.evidence.sums import Floats

VERSION = 3
POOLING = (
    "The pooled AUROC also counts pairs of patients from different sites, so it rewards a model that distinguishes "
    "sites. The mean within sites does not."
)
APPROXIMATE = {
    IN_GROUPS: "The policy of some sites aggregates scores over groups of patients, so the estimates are approximate.",
    IN_BINS: "With secure aggregation scores are counted in bins, of all sites together: there are no numbers of "
    "single sites, and none within sites.",
}
SAME_PATIENTS = (
    "Scores were mapped to probabilities by Platt scaling fitted on the same patients: intercept and slope are "
    "uninformative, and Brier score and calibration error are optimistic."
)
NOT_COMPARED = (
    "The two models are not compared: no site that reports individual scores has both classes, and there is no common "
    "test set."
)

NOISED = (
    "Sites sent noised histograms alone, so there are no numbers of single sites, and of the held-out patients no "
    "subgroups, no calibration, no curves and no comparison with another model."
)


@dataclass(frozen=True, eq=False)
class Site:
    """Statistics of a site's held-out samples."""

    counts: Counts  # of its scores
    auroc: delong.Auroc | None = None  # the exact AUROC; default: that of the counts
    design: Design = SINGLE
    # whether the scores are aggregated over groups of patients, and how, see `problems.pooling.SiteScores`
    grouped: int = 0
    groups: Sequence[Group] = ()
    other: delong.Auroc | None = None  # of the model under comparison; None without one
    covariance: float = math.nan  # of the two AUROCs
    other_counts: Counts | None = None  # of the other model's scores
    spread: Spread | None = None  # the sums of `evidence.paired`


def summary(
    sites: Mapping[str, Site],
    *,
    common: bool,
    log_odds: bool,
    test: Site | None = None,
    asked_to_compare: bool = False,
    noised: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the content of evidence.json.

    Sites, by name, have held-out samples; there may be none if there is a common ``test`` set, or `noised`. `common`:
    all evaluated one model. `log_odds`: scores are log-odds of a positive. `asked_to_compare`: a note says if a
    comparison is impossible. `noised`: what `evidence.noised` says of a private run.
    """
    every, counts = list(sites.values()), SiteCounts([site.counts for site in sites.values()])
    fits, assessed_on = _fits(counts, common=common, log_odds=log_odds)
    whole = IDENTITY if log_odds else platt(counts.total) if common and counts else None
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
    found["within-sites"] = mean_within_sites([site for site in every if site.grouped != IN_BINS])
    own_ties = [one["auroc"]["ties"] for one in found["sites"].values() if not math.isnan(one["auroc"]["value"])]
    found["within-sites"]["auroc"]["ties"] = float(np.mean(own_ties)) if own_ties else math.nan
    found["subgroups"] = subgroups(every)
    found["compared"] = compare_models(sites, test)
    found["noised"] = noised
    assessed = bool(every or test)
    notes = [POOLING] * (common and len(every) > 1) + [SAME_PATIENTS] * (assessed and assessed_on == "same-patients")
    notes += [text for how, text in APPROXIMATE.items() if any(site.grouped == how for site in every)]
    notes += [NOISED] * (noised is not None)
    notes += inverted_rankings(_as_json(found))
    found["notes"] = notes + [NOT_COMPARED] * (asked_to_compare and found["compared"] is None)
    return dict(_as_json(found))


def _fits(counts: SiteCounts, *, common: bool, log_odds: bool) -> tuple[list[Fit], str]:
    """Return each site's map from scores to log-odds, and the patients on which it is assessed."""
    if log_odds:
        return [IDENTITY] * len(counts), "held-out"
    if not common:
        return [platt(own) for own in counts], "same-patients"
    others = platt_leave_one_site_out(counts)
    return (others, "other-sites") if others else ([platt(counts.total)] * len(counts), "same-patients")


def evaluation(sites: Sequence[Site], fits: Sequence[Fit], counts: SiteCounts | None = None) -> dict[str, Any]:
    """Evaluate the pooled samples of sites; a single site by its own AUROC.

    There is at least one site; each has a map from scores to log-odds in `fits`.
    """
    counts = counts or SiteCounts([site.counts for site in sites])
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
        "auroc": auroc_interval(
            auroc.value, auroc.variance, _effective_size(sites, 0, "auroc"), _effective_size(sites, 1, "auroc")
        )
        | {"ties": off["auroc"]},
        "auprc": precision | {"ties": off["auprc"]},
        "calibration": calibration.assessment(*predicted, (design[0], design[1], design[2])),
        "points": curves.operating_points(total.positives, total.negatives, total.centres(), _independent(sites)),
        "roc": curves.roc(total.positives, total.negatives),
        "precision-recall": curves.precision_recall(total.positives, total.negatives),
        "net-benefit": curves.net_benefit(probability(predicted[0]), *predicted[1:]),
    }


def _by_bin(sites: Sequence[Site], of: str) -> Floats:
    """Return the design effect for each bin of each site, inflated for the number of patients."""
    effects, bins = [getattr(site.design, of) for site in sites], [len(site.counts.bins) for site in sites]
    factor = _effective_size(sites, 0, of).factor
    if len(set(effects)) == 1:
        return np.broadcast_to(effects[0] * factor, sum(bins))
    return np.repeat(effects, bins) * factor


def _average_precision(sites: Sequence[Site], counts: SiteCounts) -> dict[str, Any]:
    total = counts.total
    value = float(curves.average_precision(total.positives, total.negatives))
    if not total.negatives.any():
        return estimate(value)
    patients, every = curves.average_precision_variance(counts, [site.design.auprc for site in sites])
    found = average_precision_interval(value, patients, _effective_size(sites, 0, "auprc"))
    if len(sites) == 1:
        return found
    low, high = between_sites_interval(value, every, len(sites))
    return found | {"low-sites": min(low, found["low"]), "high-sites": max(high, found["high"])}


def _effective_size(sites: Sequence[Site], kind: int, of: str) -> EffectiveSize:
    """Return the effective size of the positives (0) or negatives (1) of sites for the estimate ``of``."""
    design, largest = ([getattr(site.design, name) for site in sites] for name in (of, "largest"))
    return effective_size([site.counts.sizes[kind] for site in sites], design, largest)


def _independent(sites: Sequence[Site]) -> tuple[float, float]:
    """Return the effective numbers of positives and negatives, for sensitivity and specificity."""
    return _effective_size(sites, 0, "sensitivity").independent, _effective_size(sites, 1, "specificity").independent


def bands(sites: Sequence[Site], total: Counts) -> dict[str, Any]:
    """Return the curves of an evaluation with their confidence bands."""
    pair, independent = (total.positives, total.negatives), _independent(sites)
    found = {"roc": curves.roc(*pair), "precision-recall": curves.precision_recall(*pair)}
    if total.positives.any() and total.negatives.any():
        patients = sum(_effective_size(sites, kind, "largest").patients for kind in (0, 1))
        both = curves.roc_band(*pair, independent), curves.precision_band(*pair, independent, patients)
        for curve, (low, high) in zip(found.values(), both, strict=True):
            curve["band"] = {"at": curves.GRID, "low": low, "high": high}  # type: ignore[assignment]
    return found


def _as_json(value: Any) -> Any:
    """Convert to JSON's types: NaN and infinity become None, curves are rounded to six digits."""
    if isinstance(value, float):  # includes NumPy's
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        rounded = [float(text) for text in ("%.6g " * len(value) % tuple(value.tolist())).split()]
        return rounded if np.isfinite(value).all() else [item if math.isfinite(item) else None for item in rounded]
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return value
