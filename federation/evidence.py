"""Collection of the sites' statistics of the final model's scores, and of the comparison with another model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edelweiss.evidence import Counts, Reported, Site
from edelweiss.evidence.paired import Spread, merged_record
from edelweiss.problems.metrics import by_label
from edelweiss.problems.pooling import site_histograms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edelweiss.federation.messages import EvaluateReply
    from edelweiss.federation.sites import Site as Participant
    from edelweiss.problems import Metrics

First = dict["Participant", tuple["Metrics", Reported]]
"""A label's first replies by site: the evaluation and the statistics."""


class Evidence:
    """The sites' statistics of the final model's scores, by label.

    Parameters
    ----------
    labels : sequence of str
        Names of several labels; an empty name for a single one.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = labels
        self.first: dict[str, First] = {label: {} for label in labels}
        self._spreads: dict[tuple[str, Participant], Spread] = {}

    def note(self, site: Participant, reply: EvaluateReply) -> None:
        """Add a site's first reply."""
        metrics = by_label(reply.metrics)
        for label, reported in reply.reported.items():
            self.first[label][site] = metrics[label], reported

    def merged(self, label: str) -> tuple[Counts, Counts] | None:
        """Return the pooled counts for both models over the sites that reported both; None if a class is missing."""
        reported = [(_counts(metrics), own.other_counts) for metrics, own in self.first[label].values()]
        both = [(own, other) for own, other in reported if other is not None]
        own, other = (Counts.total([pair[model] for pair in both]) for model in (0, 1))
        return (own, other) if all(own.sizes) else None

    def comparisons(self) -> dict[Participant, dict[str, list[bytes]]]:
        """Return the second request to the sites that reported both models: the pooled counts."""
        merged = {label: self.merged(label) for label in self.labels}
        asked: dict[Participant, dict[str, list[bytes]]] = {}
        written: dict[tuple[bool, ...], dict[str, list[bytes]]] = {}  # one for all sites with the same labels
        for site in {site: None for first in self.first.values() for site in first}:
            reported = [
                both if site in self.first[label] and self.first[label][site][1].other_counts else None
                for label, both in merged.items()
            ]
            which = tuple(map(bool, reported))
            if any(which):
                if which not in written:
                    written[which] = merged_record(reported)
                asked[site] = written[which]
        return asked

    def compare(self, site: Participant, spreads: Mapping[str, Spread]) -> None:
        """Add a site's second reply."""
        for label, spread in spreads.items():
            self._spreads[label, site] = spread

    def found(self) -> dict[str, dict[str, Site]]:
        """Return the statistics by label and site name."""
        return {
            label: {site.name: self._site(label, site, *answer) for site, answer in first.items()}
            for label, first in self.first.items()
        }

    def _site(self, label: str, site: Participant, metrics: Metrics, reported: Reported) -> Site:
        _, grouped = site_histograms(metrics)
        return Site(
            counts=_counts(metrics),
            auroc=None if grouped else reported.auroc,
            design=reported.design,
            grouped=grouped,
            groups=reported.groups,
            other=reported.other,
            covariance=reported.covariance,
            other_counts=reported.other_counts,
            spread=self._spreads.get((label, site)),
        )


def _counts(metrics: Metrics) -> Counts:
    """Return the counts of an evaluation's histograms."""
    return Counts.of_histograms(*site_histograms(metrics)[0])
