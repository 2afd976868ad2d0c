"""The second part of the last evaluation: the sites count their scores on a grid that follows from all of them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ConfigRecord

from evidence import Counts, Site, Sketch, Told, common_cuts
from evidence.paired import Spread, merged_record, summed
from evidence.told import counts_of, counts_of_other, grid_record, record_names
from federation.messages import metrics_in
from keys import record_in
from problems.metrics import BINS, LIMIT, by_label

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from flwr.app import Message

    from evidence.paired import Pair
    from evidence.sums import Floats
    from federation.sites import Site as Place
    from problems import Metrics

WIDTH = 2 * LIMIT / BINS
EDGES: Floats = np.arange(BINS, dtype=np.float64) * WIDTH - LIMIT  # of the bins of an evaluation's histograms

First = dict["Place", tuple["Metrics", Told]]
"""What each site answered first: its evaluation, and what it told for the evidence; of several labels of one."""


Grids = dict[str, list[float] | list[int]]
"""What a message says of the bins to count in, see `evidence.told.grid_record`."""


class Evidence:
    """What the sites tell of the final model's scores, in two answers, label by label; of two models in three.

    Parameters
    ----------
    labels : sequence of str
        Names of several labels; of one a single empty name.
    common : bool
        Whether all sites share a model, and so a grid.
    """

    def __init__(self, labels: Sequence[str], *, common: bool) -> None:
        self.labels, self.common = labels, common
        self.first: dict[str, First] = {label: {} for label in labels}
        self._counts: dict[tuple[str, Place], Counts] = {}
        self._other_counts: dict[tuple[str, Place], Pair] = {}
        self._spreads: dict[tuple[str, Place], Spread] = {}

    def noting(self, answers: Iterable[Message], by_node: Mapping[int, Place]) -> Iterator[Message]:
        """Pass the first answers on, noting what they tell."""
        for answer in answers:
            metrics = by_label(metrics_in(answer))
            for label, name in record_names(self.labels).items():
                if record := record_in(answer.content, name, ConfigRecord):
                    self.first[label][by_node[answer.metadata.src_node_id]] = metrics[label], Told.of(record)
            yield answer

    @cached_property
    def cuts(self) -> dict[str, dict[Place, Floats]]:
        """For each label and site the lower ends of the bins to count in, once all have answered first."""
        return {label: grids(first, common=self.common) for label, first in self.first.items()}

    @cached_property
    def other_cuts(self) -> dict[str, Floats]:
        """For each label the lower ends of the bins for the scores of the other model; empty without any."""
        found = {}
        for label, first in self.first.items():
            sketches = [told.sketch_of_other(*_size(metrics)) for metrics, told in first.values()]
            known = [sketch for sketch in sketches if sketch is not None]
            found[label] = common_cuts(known) if known and self.common else np.zeros(0)
        return found

    def questions(self) -> dict[Place, Grids]:
        """Return what to ask those sites that tell of each patient."""
        asked: dict[Place, Grids] = {}
        for site in {site: None for first in self.first.values() for site in first}:
            told = {label: first[site][1] if site in first else None for label, first in self.first.items()}
            grid = [[] if own is None or own.grouped else self.cuts[label][site].tolist()
                    for label, own in told.items()]  # fmt: skip
            if any(grid):
                asked[site] = grid_record(grid)
            other = [[] if own is None or not any(map(len, own.other_cuts)) else self.other_cuts[label].tolist()
                     for label, own in told.items()]  # fmt: skip
            if any(other):
                asked[site] |= grid_record(other, "other-")
        return asked

    def count(self, site: Place, answer: Message) -> None:
        """Note a second answer."""
        for label, name in record_names(self.labels).items():
            if record := record_in(answer.content, name, ConfigRecord):
                self._counts[label, site] = counts_of(record)
                if (other := counts_of_other(record)) is not None:
                    self._other_counts[label, site] = other

    def merged(self, label: str) -> tuple[Pair, Pair] | None:
        """Return the counts on both models' grids of all sites that told of both; None where a class is missing."""
        told = [(self._counts[key], pair) for key, pair in self._other_counts.items() if key[0] == label]
        if not told:
            return None
        own, other = summed([(own.positives, own.negatives) for own, _ in told]), summed([pair for _, pair in told])
        return (own, other) if own[0].any() and own[1].any() else None

    def comparisons(self) -> dict[Place, Grids]:
        """Return what to ask those sites that have told of both models: the same grids, and the counts of all there."""
        merged = {label: self.merged(label) for label in self.labels}
        asked: dict[Place, Grids] = {}
        for site in {site: None for _, site in self._other_counts}:
            nobody = (np.zeros(0), np.zeros(0))
            grids: tuple[list[list[float]], list[list[float]]] = [], []
            told: list[tuple[Pair, Pair]] = []
            for label, both in merged.items():
                takes_part = both is not None and (label, site) in self._other_counts
                grids[0].append(self.cuts[label][site].tolist() if takes_part else [])
                grids[1].append(self.other_cuts[label].tolist() if takes_part else [])
                told.append(both if both is not None and takes_part else (nobody, nobody))
            if any(grids[0]):
                asked[site] = {**grid_record(grids[0]), **grid_record(grids[1], "other-"), **merged_record(told)}
        return asked

    def compare(self, site: Place, answer: Message) -> None:
        """Note a third answer."""
        for label, name in record_names(self.labels).items():
            if record := record_in(answer.content, name, ConfigRecord):
                self._spreads[label, site] = Spread.of(record)

    def found(self) -> dict[str, dict[str, Site]]:
        """Return for each label what is known of each site's scores, by name: its counts, else its histogram."""
        return {
            label: {site.name: self._site(label, site, *answer) for site, answer in first.items()}
            for label, first in self.first.items()
        }

    def _site(self, label: str, site: Place, metrics: Metrics, told: Told) -> Site:
        counts, cuts = self._counts.get((label, site)), self.cuts[label][site]
        return Site(
            counts=counts or from_histogram(metrics).placed(cuts),
            cuts=cuts,
            auroc=None if told.grouped else told.auroc,
            design=told.design,
            grouped=counts is None,
            groups=told.groups,
            other=told.other,
            covariance=told.covariance,
            other_counts=self._other_counts.get((label, site)),
            spread=self._spreads.get((label, site)),
        )


def _size(metrics: Metrics) -> tuple[int, int]:
    """Return how many positives and negatives an evaluation is of."""
    n, positives = int(metrics["n"]), int(metrics["positives"])  # type: ignore[arg-type]
    return positives, n - positives


def grids(first: First, *, common: bool) -> dict[Place, Floats]:
    """Return for each site the lower ends of the bins to count in: the same for all that share a model."""
    if not common:
        return {site: common_cuts([_sketch(*answer)]) for site, answer in first.items()}
    return dict.fromkeys(first, common_cuts([_sketch(*answer) for answer in first.values()]) if first else EDGES)


def from_histogram(metrics: Metrics) -> Counts:
    """Return an evaluation's histograms as counts; each score stands in the middle of its bin."""
    positives, negatives = (np.array(metrics[f"{kind}-scores"], float) for kind in ("positive", "negative"))
    return Counts(positives, negatives, (positives + negatives) * (EDGES + WIDTH / 2))


def _sketch(metrics: Metrics, told: Told) -> Sketch:
    """Return where a site's scores lie, of one that tells groups of patients only by its histogram."""
    if not told.grouped:
        return told.sketch(*_size(metrics))
    counts = from_histogram(metrics)
    some = [kind > 0 for kind in (counts.positives, counts.negatives)]
    return Sketch(EDGES[some[0]], EDGES[some[1]], (counts.positives[some[0]], counts.negatives[some[1]]))
