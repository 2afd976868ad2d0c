"""The second part of the last evaluation: the sites count their scores on a grid that follows from all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ConfigRecord

from evidence import Counts, Site, Sketch, Told, common_cuts
from evidence.told import counts_of
from federation.errors import RunError
from keys import record_in
from problems.metrics import BINS, LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from flwr.app import Message

    from evidence.sums import Floats
    from federation.sites import Site as Place
    from problems import Metrics

WIDTH = 2 * LIMIT / BINS
EDGES: Floats = np.arange(BINS, dtype=np.float64) * WIDTH - LIMIT  # of the bins of an evaluation's histograms

First = dict["Place", tuple["Metrics", Told]]
"""What each site answered first: its evaluation, and what it told for the evidence."""


def grids(first: First, *, common: bool) -> dict[Place, Floats]:
    """Return for each site the lower ends of the bins to count in: the same for all that share a model."""
    if not common:
        return {site: common_cuts([_sketch(*answer)]) for site, answer in first.items()}
    return dict.fromkeys(first, common_cuts([_sketch(*answer) for answer in first.values()]))


def gathered(
    first: First,
    cuts: Mapping[Place, Floats],
    ask: Callable[[], Iterator[tuple[Place, Message]]],
) -> dict[str, Site]:
    """Return what is known of each site's scores, by name: its counts, or its histogram if it gave no counts.

    Parameters
    ----------
    first : dict
        Their first answers.
    cuts : mapping
        What `grids` returned.
    ask : callable
        Yields the second answers. That it cannot go on costs exactness, and not the run.
    """
    counts: dict[Place, Counts] = {}
    try:
        for site, answer in ask():
            counts[site] = counts_of(record_in(answer.content, "evidence", ConfigRecord))
    except RunError:
        pass  # the exchange has named those who did not answer
    return {
        site.name: Site(
            counts=counts[site] if site in counts else from_histogram(metrics).placed(cuts[site]),
            cuts=cuts[site],
            auroc=None if told.grouped else told.auroc,
            design=told.design,
            grouped=site not in counts,
            groups=told.groups,
            other=told.other,
            covariance=told.covariance,
        )
        for site, (metrics, told) in first.items()
    }


def from_histogram(metrics: Metrics) -> Counts:
    """Return an evaluation's histograms as counts; each score stands in the middle of its bin."""
    positives, negatives = (np.array(metrics[f"{kind}-scores"], float) for kind in ("positive", "negative"))
    return Counts(positives, negatives, (positives + negatives) * (EDGES + WIDTH / 2))


def _sketch(metrics: Metrics, told: Told) -> Sketch:
    """Return where a site's scores lie, of one that tells groups of patients only by its histogram."""
    n, positives = int(metrics["n"]), int(metrics["positives"])  # type: ignore[arg-type]
    if not told.grouped:
        return told.sketch(positives, n - positives)
    counts = from_histogram(metrics)
    some = [kind > 0 for kind in (counts.positives, counts.negatives)]
    return Sketch(EDGES[some[0]], EDGES[some[1]], (counts.positives[some[0]], counts.negatives[some[1]]))
