"""The evaluation of a run's final model, at all of its sites."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from flwr.app import MetricRecord

from edelweiss.federation.errors import RunError, naming_round
from edelweiss.federation.evidence import Evidence
from edelweiss.federation.messages import common_fields, message
from edelweiss.federation.wire import pack
from edelweiss.problems.pooling import pool

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
        self.evidence = Evidence(rounds.answers.labels)

    def play(self) -> MetricRecord:
        """Let all sites evaluate the model; a missing site does not stop the run."""
        rounds, exchange, evidence = self.rounds, self.rounds.exchange, self.evidence
        final: list[tuple[Site, Metrics]] = []
        noised: dict[str, list[Noised]] = {}
        with naming_round(rounds.count, rounds.count):
            metrics = []
            for site, reply in exchange(self.messages(), read=rounds.answers.to_the_end, min_replies=1):
                metrics.append(reply.metrics)
                if reply.metrics:
                    final.append((site, reply.metrics))
                evidence.note(site, reply)
                for label, one in reply.noised.items():
                    noised.setdefault(label, []).append(one)
            pooled = pool(metrics)
        if noised:
            rounds.observer.noised(noised)
        rounds.observer.evaluated(rounds.count, final)
        if any(evidence.first.values()):
            with suppress(RunError):  # costs only the comparison; the exchange has named the missing sites
                self._compare_models()
            rounds.observer.reported(evidence.found())
        return MetricRecord({**pooled})

    def _compare_models(self) -> None:
        """Compare the model with the other one: send the pooled counts to the sites."""
        exchange = self.rounds.exchange
        if messages := self.messages(self.evidence.comparisons()):
            for site, spreads in exchange(messages, read=self.rounds.answers.to_the_comparison, min_replies=1):
                self.evidence.compare(site, spreads)

    def messages(self, asked: Mapping[Site, Mapping[str, list[bytes]]] | None = None) -> list[Message]:
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
