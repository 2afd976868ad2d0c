"""Federated learning without any algorithm in it: rounds, messages, stages, averages. strategies/ builds on it.

Importing this package costs nothing: each name is loaded when it is first used, torch and Flower with those that need
them. Tickets, signatures and the privacy account need neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edelweiss.common.lazy import first_used
from edelweiss.federation.average import Mean, average  # not later: its module has the same name

if TYPE_CHECKING:
    from edelweiss.federation.algorithm import Algorithm, AlgorithmInfo, step_size
    from edelweiss.federation.checkpoints import Checkpoints, Snapshot
    from edelweiss.federation.encoding import Encoding
    from edelweiss.federation.errors import (
        AwaitsApprovalError,
        BadReplyError,
        DivergedError,
        RunError,
        StrategyError,
        TooFewRepliesError,
    )
    from edelweiss.federation.exchange import Exchange
    from edelweiss.federation.oracle import Differences, Oracle
    from edelweiss.federation.sites import Reply, Site
    from edelweiss.federation.stages import RoundContext, Stages
    from edelweiss.federation.strategy import FederatedStrategy
    from edelweiss.federation.table import (
        ALL_SITES,
        COUNT,
        IN_STAGE,
        LATER,
        SOME_SITES,
        Table,
        When,
        both,
        down,
        final,
        given,
        kept,
        up,
    )
    from edelweiss.federation.wire import pack, unpack

__getattr__ = first_used(
    globals(),
    {
        "edelweiss.federation.algorithm": "Algorithm AlgorithmInfo step_size",
        "edelweiss.federation.checkpoints": "Checkpoints Snapshot",
        "edelweiss.federation.encoding": "Encoding",
        "edelweiss.federation.errors": (
            "AwaitsApprovalError BadReplyError DivergedError RunError StrategyError TooFewRepliesError"
        ),
        "edelweiss.federation.exchange": "Exchange",
        "edelweiss.federation.oracle": "Differences Oracle",
        "edelweiss.federation.sites": "Reply Site",
        "edelweiss.federation.stages": "RoundContext Stages",
        "edelweiss.federation.strategy": "FederatedStrategy",
        "edelweiss.federation.table": (
            "ALL_SITES COUNT IN_STAGE LATER SOME_SITES Table When both down final given kept up"
        ),
        "edelweiss.federation.wire": "pack unpack",
    },
)
