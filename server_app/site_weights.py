"""How much of a run a site claims: its number of samples, which nobody but itself can count."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edelweiss.config import RunConfig
    from edelweiss.datasets import Facts

MOST_OF_ALL, MANY_TIMES = 0.9, 100


def outweighing(config: RunConfig, facts: Mapping[str, Facts]) -> str:
    """Say which site claims nearly all samples, and what that decides; empty: none does.

    Nearly all: more than `MOST_OF_ALL` of the sum, or `MANY_TIMES` the median over the sites.
    """
    claimed = {name: one.examples or 0 for name, one in facts.items()}
    most, total = max(claimed, key=claimed.__getitem__), sum(claimed.values())
    usual = median(claimed.values())
    if len(claimed) < 2 or not (claimed[most] > MOST_OF_ALL * total or claimed[most] > MANY_TIMES * usual):
        return ""
    decides = 'the averages over sites are nearly its own (weighting = "examples")'
    if config.strategy.weighting == "uniform":
        decides = "the means that inputs are standardised by are nearly its own" if config.standardise else ""
    return (
        f"site {most!r} claims {claimed[most]:,} of the {total:,} training samples: ask it whether that is right"
        + f"; {decides}" * bool(decides)
    )
