"""What the clients of every algorithm remember, and where a run ends that loses it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from edelweiss.federation import FederatedStrategy, RoundContext, Site
from edelweiss.strategies import ALGORITHMS
from tests.strategies.closed_form import objective
from tests.strategies.halves import Arrays, drive

K, ROUNDS, MORE = 4, 75, 140  # more, where half of the sites take part


def ends(strategy: FederatedStrategy, rounds: int = ROUNDS, **options: Any) -> tuple[list[Arrays], set[str]]:
    """Return the model that each site evaluates in the end, and the names of what clients remembered on the way."""
    start, oracles, _ = objective(type(strategy), K)
    kept: dict[int, Arrays] = {}
    remembered: set[str] = set()

    class Seen:
        """An oracle that says whose it is."""

        def __init__(self, oracle: Any, site: int) -> None:
            self.oracle, self.site = oracle, site

        def __getattr__(self, name: str) -> Any:
            return getattr(self.oracle, name)

    half = type(strategy).local_update

    def noting(
        self: FederatedStrategy, sent: Arrays, memory: Arrays, oracle: Any, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        reply, new = half(self, sent, memory, oracle, context)
        kept[oracle.site] = dict(new)
        remembered.update(new)
        return reply, new

    watched = type(strategy.name, (type(strategy),), {"local_update": noting, "name": strategy.name})
    values = {f.name: getattr(strategy, f.name) for f in fields(strategy) if f.init}
    path = drive(watched(**values), start, lambda k, r: Seen(oracles(k, r), k), rounds, K, **options)  # type: ignore[return-value]
    model = {name: path[-1][name] for name in start}
    context = strategy.context(rounds, rounds, strategy.phases[-1], K)
    sent = [strategy.final(path[-1], model, context, Site(k, f"site-{k}", k + 1)) for k in range(K)]
    return [strategy.personal(sent[k], kept.get(k, {}), oracles(k, 1).fresh) for k in range(K)], remembered


REMEMBERING = [name for name in ALGORITHMS if ALGORITHMS[name].messages.remembers]
"""The algorithms whose clients remember anything; tests/docs holds the cards against the code."""

MEMORYLESS = sorted(set(ALGORITHMS) - set(REMEMBERING))
