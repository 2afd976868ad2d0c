"""What the sites tell of the final model's scores beside their last evaluation, and of two models in another answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edelweiss.evidence import Counts, Reported, Site
from edelweiss.evidence.paired import Spread, merged_record
from edelweiss.problems.metrics import by_label
from edelweiss.problems.pooling import site_histograms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edelweiss.federation.messages import EvaluateReply
    from edelweiss.federation.sites import Site as Place
    from edelweiss.problems import Metrics

First = dict["Place", tuple["Metrics", Reported]]
"""What each site answered first: its evaluation, and what it told for the evidence; of several labels of one."""


class Evidence:
    """What the sites tell of the final model's scores, label by label.

    Parameters
    ----------
    labels : sequence of str
        Names of several labels; of one a single empty name.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = labels
        self.first: dict[str, First] = {label: {} for label in labels}
        self._spreads: dict[tuple[str, Place], Spread] = {}

    def note(self, site: Place, reply: EvaluateReply) -> None:
        """Note a site's first reply."""
        metrics = by_label(reply.metrics)
        for label, reported in reply.reported.items():
            self.first[label][site] = metrics[label], reported

    def merged(self, label: str) -> tuple[Counts, Counts] | None:
        """Return the counts for both models of all sites that told of both; None where a class is missing."""
        told = [(_counts(metrics), own.other_counts) for metrics, own in self.first[label].values()]
        both = [(own, other) for own, other in told if other is not None]
        own, other = (Counts.total([pair[model] for pair in both]) for model in (0, 1))
        return (own, other) if all(own.sizes) else None

    def comparisons(self) -> dict[Place, dict[str, list[bytes]]]:
        """Return what to ask those sites that have told of both models: the counts of all there."""
        merged = {label: self.merged(label) for label in self.labels}
        asked: dict[Place, dict[str, list[bytes]]] = {}
        written: dict[tuple[bool, ...], dict[str, list[bytes]]] = {}  # one for all who tell of the same labels
        for site in {site: None for first in self.first.values() for site in first}:
            told = [
                both if site in self.first[label] and self.first[label][site][1].other_counts else None
                for label, both in merged.items()
            ]
            which = tuple(map(bool, told))
            if any(which):
                if which not in written:
                    written[which] = merged_record(told)
                asked[site] = written[which]
        return asked

    def compare(self, site: Place, spreads: Mapping[str, Spread]) -> None:
        """Note a site's second reply."""
        for label, spread in spreads.items():
            self._spreads[label, site] = spread

    def found(self) -> dict[str, dict[str, Site]]:
        """Return for each label what is known of each site's scores, by name."""
        return {
            label: {site.name: self._site(label, site, *answer) for site, answer in first.items()}
            for label, first in self.first.items()
        }

    def _site(self, label: str, site: Place, metrics: Metrics, told: Reported) -> Site:
        _, grouped = site_histograms(metrics)
        return Site(
            counts=_counts(metrics),
            auroc=None if grouped else told.auroc,
            design=told.design,
            grouped=grouped,
            groups=told.groups,
            other=told.other,
            covariance=told.covariance,
            other_counts=told.other_counts,
            spread=self._spreads.get((label, site)),
        )


def _counts(metrics: Metrics) -> Counts:
    """Return an evaluation's histograms as counts."""
    return Counts.of_histograms(*site_histograms(metrics)[0])
