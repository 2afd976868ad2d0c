"""The evaluation of a run's final model at all of its sites, and its comparison with another model."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from flwr.app import MetricRecord

from edelweiss import evidence
from edelweiss.evidence import Counts, Reported
from edelweiss.evidence.paired import Spread, merged_record
from edelweiss.federation.errors import RunError, naming_round
from edelweiss.federation.messages import common_fields, message
from edelweiss.federation.wire import pack
from edelweiss.problems.metrics import by_label
from edelweiss.problems.pooling import pool, site_histograms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flwr.app import ArrayRecord, Message

    from edelweiss.evidence.noised import Noised
    from edelweiss.federation.rounds import Rounds
    from edelweiss.federation.sites import Site
    from edelweiss.problems import Arrays, Metrics


class FinalEvaluation:
    """The evaluation after the last round; earlier ones are part of training messages.

    Parameters
    ----------
    rounds : Rounds
        The finished rounds.
    model : Arrays
        The model that the run returns.
    packed : ArrayRecord
        The same, serialised.
    """

    def __init__(self, rounds: Rounds, model: Arrays, packed: ArrayRecord) -> None:
        self.rounds, self.model, self.packed = rounds, model, packed
        # by label (empty for a single one) and site: its evaluation and the statistics of its scores
        self._reported: dict[str, dict[Site, tuple[Metrics, Reported]]] = {label: {} for label in rounds.answers.labels}
        self._spreads: dict[tuple[str, Site], Spread] = {}

    def play(self) -> MetricRecord:
        """Let all sites evaluate the model; a missing site does not stop the run."""
        rounds, exchange = self.rounds, self.rounds.exchange
        final: list[tuple[Site, Metrics]] = []
        noised: dict[str, list[Noised]] = {}
        with naming_round(rounds.count, rounds.count):
            metrics = []
            if rounds.summed:
                replies = rounds.summed.final(exchange, self._messages())
            else:
                replies = exchange(self._messages(), read=rounds.answers.to_the_end, min_replies=1)
            for site, reply in replies:
                metrics.append(reply.metrics)
                if reply.metrics:
                    final.append((site, reply.metrics))
                for label, reported in reply.reported.items():
                    self._reported[label][site] = by_label(reply.metrics)[label], reported
                for label, one in reply.noised.items():
                    noised.setdefault(label, []).append(one)
            pooled = pool(metrics)
        if noised:
            rounds.observer.noised(noised)
        rounds.observer.evaluated(rounds.count, final)
        if any(self._reported.values()):
            with suppress(RunError):  # costs only the comparison; the exchange has named the missing sites
                self._compare_models()
            rounds.observer.reported(
                {
                    label: {site.name: self._statistics(label, site, *reply) for site, reply in replies.items()}
                    for label, replies in self._reported.items()
                }
            )
        return MetricRecord({**pooled})

    def _compare_models(self) -> None:
        """Compare the model with the other one: send the pooled counts to the sites that reported both."""
        if messages := self._messages(self._comparisons()):
            answers = self.rounds.answers
            for site, spreads in self.rounds.exchange(messages, read=answers.to_the_comparison, min_replies=1):
                self._spreads |= {(label, site): spread for label, spread in spreads.items()}

    def _messages(self, asked: Mapping[Site, Mapping[str, list[bytes]]] | None = None) -> list[Message]:
        """Write the messages to all sites, or, for a comparison, to the sites in ``asked``."""
        rounds = self.rounds
        context, model = rounds.context(rounds.count, rounds.algorithm.phases[-1]), self.model
        common = common_fields({**rounds.evaluate_config, **rounds.checkpoints.memory_fields(rounds.count)}, context)
        messages = []
        for site in rounds.exchange.sites if asked is None else asked:
            sent = rounds.algorithm.final(rounds.state, model, context, site)
            packed = self.packed if sent is model else pack(sent)
            more = {} if rounds.other is None else {"other": rounds.other}
            messages.append(message(packed, common, site, "evaluate", asked[site] if asked else {}, **more))
        return messages

    def _comparisons(self) -> dict[Site, dict[str, list[bytes]]]:
        """Return the fields of the second request to the sites that reported both models: the pooled counts."""
        merged = {label: self._merged(label) for label in self._reported}
        asked: dict[Site, dict[str, list[bytes]]] = {}
        written: dict[tuple[bool, ...], dict[str, list[bytes]]] = {}  # one for all sites with the same labels
        for site in {site: None for replies in self._reported.values() for site in replies}:
            reported = [
                both if site in self._reported[label] and self._reported[label][site][1].other_counts else None
                for label, both in merged.items()
            ]
            which = tuple(map(bool, reported))
            if any(which):
                if which not in written:
                    written[which] = merged_record(reported)
                asked[site] = written[which]
        return asked

    def _merged(self, label: str) -> tuple[Counts, Counts] | None:
        """Return the pooled counts for both models over the sites that reported both; None if a class is missing."""
        reported = [(_counts(metrics), own.other_counts) for metrics, own in self._reported[label].values()]
        both = [(own, other) for own, other in reported if other is not None]
        own, other = (Counts.total([pair[model] for pair in both]) for model in (0, 1))
        return (own, other) if all(own.sizes) else None

    def _statistics(self, label: str, site: Site, metrics: Metrics, reported: Reported) -> evidence.Site:
        _, grouped = site_histograms(metrics)
        return evidence.Site(
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
