"""The beginning of a run with secure aggregation: the sites' keys, and the sums of their facts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Message, RecordDict

from edelweiss.config.privacy import evaluation_noise
from edelweiss.datasets import Facts
from edelweiss.federation import RunError, Site
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.federation.summed import AllFacts, Summed, add_up, facts_layout, facts_of
from edelweiss.problems import PROBLEMS, ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edelweiss.config import RunConfig
    from edelweiss.federation import Exchange
    from edelweiss.problems import Problem


def ask_all(
    config: RunConfig, exchange: Exchange, sites: Mapping[Site, Facts], shares: Mapping[int, bytes], run: str
) -> tuple[Exchange, AllFacts]:
    """Send every site the keys of all, and ask for what enters the sums of their facts.

    Parameters
    ----------
    config, exchange : RunConfig, Exchange
        The run's.
    sites : mapping of Site to Facts
        What each told in the open: the form of its inputs.
    shares : mapping of int to bytes
        The key of each site, by node id; empty in a simulation.
    run : str
        The run's key.

    Returns
    -------
    Exchange, AllFacts
        The exchange with the sites, of which each weighs the mean of all; and the facts of all.

    Raises
    ------
    RunError
        If not all sites are there, or their sums cannot be read.
    """
    if len(sites) < config.sites:
        raise RunError(
            f"secure-aggregation = true: {len(sites)} of {config.sites} sites can take part, and a sum is over all",
            key="sites",
            value=len(sites),
            allowed=config.sites,
        )
    problem, classes = PROBLEMS[config.problem], max(facts.classes for facts in sites.values())
    listed = [shares[site.node_id] for site in sites] if shares else []
    asked = ConfigRecord({"app": fingerprint(), "run": run, "classes": classes, "shares": listed})
    messages = [Message(RecordDict({"config": asked}), site.node_id, "query") for site in sites]
    sums = add_up(exchange, messages, facts_layout(config.sites, problem, classes, len(config.several)))
    found = facts_of(sums, problem, classes, next(iter(sites.values())))
    every = [replace(site, weight=found.site.weight / len(sites), held_out=None) for site in sites]
    return replace(exchange, sites=every), found


def summed(config: RunConfig, problem: Problem, site: Site) -> Summed:
    """Return what reads the sums of a run; ``site`` is all sites together."""
    return Summed(
        site,
        config.most_weight,
        problem.example(),
        bool(problem.buffers().numel()) and config.bn == "average" and config.strategy.exchanges,
        evaluation_noise(config) if config.private else None,
        config.several or ("",),
        config.evidence and ranks(type(problem)) and not config.personalised,
        not config.personalised,
    )
