"""Federated learning without any algorithm in it: rounds, messages, stages, averages. strategies/ builds on it."""

from federation.algorithm import Algorithm, Card, FirstCome, SkipsPhases
from federation.average import Mean, average
from federation.checkpoints import Checkpoints, Snapshot
from federation.encoding import Encoding
from federation.errors import BadAnswerError, BadValuesError, RunError, StrategyError
from federation.exchange import Exchange
from federation.observer import Observer
from federation.oracle import Oracle
from federation.rounds import Rounds
from federation.sites import Reply, Site
from federation.stages import Stages, Turn
from federation.strategy import FederatedStrategy
from federation.wire import not_finite, pack, size, unpack

__all__ = [
    "Algorithm",
    "BadAnswerError",
    "BadValuesError",
    "Card",
    "Checkpoints",
    "Encoding",
    "Exchange",
    "FederatedStrategy",
    "FirstCome",
    "Mean",
    "Observer",
    "Oracle",
    "Reply",
    "Rounds",
    "RunError",
    "Site",
    "SkipsPhases",
    "Snapshot",
    "Stages",
    "StrategyError",
    "Turn",
    "average",
    "not_finite",
    "pack",
    "size",
    "unpack",
]
