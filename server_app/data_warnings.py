"""Warnings about the sites' data, at a run's start and in its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edelweiss.datasets import table_warnings
from edelweiss.datasets.errors import examples
from edelweiss.datasets.units import Moments, far_sites, rounded
from edelweiss.problems import PROBLEMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from edelweiss.config import RunConfig
    from edelweiss.datasets import Facts
    from edelweiss.federation import Site
    from edelweiss.server_app.console import Progress

MOST = 20  # most features named, and sites of each


def data_warnings(
    config: RunConfig, sites: Mapping[Site, Facts], features: Sequence[str], progress: Progress
) -> list[str]:
    """Print and return warnings, a line each.

    Columns of local files are named, once for all simulated sites; hospitals report only counts. Differences of units
    follow from all sites' sums, see `datasets.units`; ``features`` are the known names.
    """
    if not PROBLEMS[config.problem].needs_data:
        return []
    sites_of: dict[str, list[str]] = {}
    for site, facts in sites.items():
        for text in facts.warnings:
            sites_of.setdefault(text, []).append(repr(site.name))
    own = [str(doubt) for doubt in table_warnings(config.data())]
    hospitals = [
        f"{'sites' if len(names) > 1 else 'site'} {examples(names)}: {text}" for text, names in sites_of.items()
    ]
    found = [*own, *hospitals, *_units(sites, features)]
    for text in found:
        progress.warn(text)
    return found


def _units(sites: Mapping[Site, Facts], features: Sequence[str]) -> Iterator[str]:
    """Yield a line for each feature whose mean or spread at a site is far from the others'."""
    telling = {site.name: facts for site, facts in sites.items() if facts.count}
    if len(telling) < 2 or any(len(facts.shape) != 1 for facts in telling.values()):
        return
    names = list(telling)
    moments = [
        Moments(*(np.array(getattr(facts, key), np.float64) for key in ("count", "total", "squares")))
        for facts in telling.values()
    ]
    found = far_sites(moments)
    for feature, where in list(found.items())[:MOST]:
        name = repr(features[feature]) if features else f"{feature + 1} (of the names in alphabetical order)"
        first = dict.fromkeys([*where, *range(len(names))])  # the outliers first
        means = [
            f"{names[site]!r} {rounded(moments[site].mean[feature])} ± {rounded(moments[site].spread[feature], 2)}"
            for site in first
            if moments[site].count[feature]
        ]
        at = examples([repr(names[site]) for site in where], MOST)
        text = f"feature {name} at {at} is far from the other sites'"
        text += f" (mean ± standard deviation: {examples(means, MOST)})"
        yield f"{text}: is it in another unit there, or coded differently?"
    if len(found) > MOST:
        yield f"{len(found) - MOST} more features are far from the other sites' somewhere"
