"""Pooled rankings of generated scores of many kinds, exactly told and in groups, against all scores in one place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from edelweiss.client_app.policy.coarsening import coarse
from edelweiss.evidence import Counts, Site, summary
from edelweiss.problems.histogram import Histogram
from edelweiss.problems.metrics import HISTOGRAMS, TIES, ranked, shown, ties
from edelweiss.problems.pooling import across_sites, pool, site_histograms
from edelweiss.problems.roc import partial_auroc
from edelweiss.server_app.console import _over_sites

Scored = tuple[np.ndarray, np.ndarray]
FEWEST = 5
KINDS = ("normal", "cauchy", "lognormal", "discrete", "one site shifted", "rare", "constant at a site", "near 0")


def generated(number: int) -> list[Scored]:
    """Draw labels and scores of several sites: a kind, a scale from 1e-4 to 1e4, and a shift of up to 1e4 of that."""
    rng, kind = np.random.default_rng([number, 34]), KINDS[number % len(KINDS)]
    scale, gap = 10.0 ** rng.uniform(-4, 4), rng.uniform(0, 2)
    shift = scale * rng.choice([0.0, -3.0, 1e2, -1e4])
    found = []
    for place in range(int(rng.integers(1, 5))):
        n = int(rng.integers(60, 300))
        labels = (rng.random(n) < (0.06 if kind == "rare" else rng.uniform(0.15, 0.6))).astype(int)
        labels[: 2 * FEWEST] = np.repeat([0, 1], FEWEST)
        draw = {"cauchy": rng.standard_cauchy, "lognormal": rng.lognormal}.get(kind, rng.normal)
        scores = draw(size=n) + gap * labels
        if kind == "discrete":
            scores = np.round(scores)
        if kind == "constant at a site" and place == 0:
            scores[:] = 1.0
        if kind == "near 0":
            scores = scores**5 * 1e-3
        scores = scale * scores + shift * (place == 0 if kind == "one site shifted" else kind != "near 0")
        found.append((labels, scores.astype(np.float32)))
    return found


def in_groups(site: Scored) -> dict[str, Any]:
    """Return what a hospital tells."""
    labels, scores = site
    return coarse(ranked(labels, scores, partial=True), len(labels), FEWEST)


def in_one_place(sites: Sequence[Scored]) -> dict[str, float]:
    labels, scores = (np.concatenate(parts) for parts in zip(*sites, strict=True))
    return {
        "auroc": float(roc_auc_score(labels, scores)),
        "auprc": float(average_precision_score(labels, scores)),
        "partial-auroc": partial_auroc(labels, scores),
    }


@pytest.mark.parametrize("number", range(200))
def test_what_is_pooled_is_that_of_all_scores_or_says_by_how_much_it_may_be_off(number: int) -> None:
    sites = generated(number)
    wanted = in_one_place(sites)
    exact = pool([ranked(*site, partial=True) for site in sites])
    assert {kind: exact[kind] for kind in wanted} == pytest.approx(wanted, abs=1e-9)
    assert [exact[TIES[kind]] for kind in wanted] == [0, 0, 0]
    mixed = [
        in_groups(site) if place % 2 == number % 2 else ranked(*site, partial=True) for place, site in enumerate(sites)
    ]
    for told in ([in_groups(site) for site in sites], mixed):
        found = pool(told)
        for kind, value in wanted.items():
            assert abs(found[kind] - value) <= ties(found, kind) + 1e-9
            text = shown(found[kind], ties(found, kind))
            if " to " in text:
                low, high = map(float, text.split(" to "))
                assert low - 0.005 <= value <= high + 0.005
            elif text != "-":
                assert abs(float(text) - value) <= ties(found, kind) + 0.5 * 10.0 ** -len(text.partition(".")[2]) + 1e-9


@pytest.mark.parametrize("number", range(0, 200, 7))
def test_over_sites_with_models_of_their_own_it_says_so_too(number: int) -> None:
    """A mean, a worst decile and a spread are off by no more than the one of them that is off the most."""
    sites = generated(number)
    exact = across_sites([ranked(*site) for site in sites])
    told = across_sites([one | pool([one]) for one in map(in_groups, sites)])
    for kind in ("auroc", "auprc"):
        for key, value in exact[kind].items():
            off = told[TIES[kind]][key]
            assert abs(told[kind][key] - value) <= off + 1e-9
            low, _, high = _over_sites(told, kind, key).partition(" to ")
            if high:
                assert float(low) - 0.005 <= value <= float(high) + 0.005
            elif low != "-":
                assert abs(float(low) - value) <= off + 0.5 * 10.0 ** -len(low.partition(".")[2]) + 1e-9
                assert off <= 0.5 * 10.0 ** -len(low.partition(".")[2])


def test_evidence_says_what_the_table_says() -> None:
    """Of exact sites and of groups: one number, from the same counts, with the same that it may be off."""
    for number in range(0, 40, 3):
        sites = generated(number)
        told = [in_groups(site) if place % 2 else ranked(*site) for place, site in enumerate(sites)]
        table = pool(told)
        known = {}
        for place, one in enumerate(told):
            histograms, grouped = site_histograms(one)
            known[str(place)] = Site(Counts.of_histograms(*histograms), grouped=grouped)
        found = summary(known, common=True, log_odds=True)["pooled"]
        for kind in ("auroc", "auprc"):
            assert found[kind]["value"] == pytest.approx(table[kind], abs=1e-9)
            assert found[kind]["ties"] == pytest.approx(table[TIES[kind]], abs=1e-9)


def test_equal_scores_are_ties_and_no_doubt() -> None:
    """A model that says the same of everybody ranks nobody; scores that are close, and not equal, are told apart."""
    labels = np.repeat([0, 1], 30)
    constant = pool([ranked(labels, np.full(60, 7.25, np.float32))] * 3)
    assert (constant["auroc"], constant["auroc-ties"]) == (0.5, 0)
    close = np.float32(1e4) + np.arange(60, dtype=np.float32) * np.float32(2**-10)
    assert len(np.unique(close)) == 60
    assert pool([ranked(labels, close)])["auroc"] == 1


@pytest.mark.parametrize(
    ("value", "off", "text"),
    [
        (0.94171, 0.0, "0.9417"),
        (0.94171, 4.9e-5, "0.9417"),
        (0.94171, 5.1e-5, "0.942"),
        (0.94171, 4.9e-3, "0.94"),
        (0.94171, 5.1e-3, "0.9"),
        (0.8, 0.06, "0.74 to 0.86"),
        (0.9, 0.3, "0.60 to 1.00"),
        (0.5, 0.5, "-"),
        (float("nan"), 0.0, "-"),
        (None, 0.1, "-"),
        (0.0004, 0.0, "4.000e-04"),
    ],
)
def test_no_digit_is_shown_that_is_not_known(value: float | None, off: float, text: str) -> None:
    assert shown(value, off) == text


def test_what_is_unknown_does_not_depend_on_how_many_samples_a_site_says_it_has() -> None:
    def told(times: int) -> dict[str, Any]:
        both = ([3, 7], [1, 2]), ([1, 5], [2, 1])
        groups = [Histogram(np.array(bins), times * np.array(counts)) for bins, counts in both]
        undefined = dict.fromkeys(("auroc", "auprc"), math.nan)
        return {
            **undefined,
            "n": 6 * times,
            "positives": 3 * times,
            "fewest": times,
            **dict(zip(HISTOGRAMS, (own.packed() for own in groups), strict=True)),
        }

    few, many = (pool([told(times)]) for times in (10**4, 2**31 - 1))
    assert {kind: many[kind] for kind in TIES.values() if kind in many} == pytest.approx(
        {kind: few[kind] for kind in TIES.values() if kind in few}, abs=1e-3
    )
    assert many["auprc-ties"] > 0.1
