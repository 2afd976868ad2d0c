"""Federated learning without any algorithm in it: rounds, messages, stages, averages. strategies/ builds on it."""

from edelweiss.federation.algorithm import Algorithm, AlgorithmInfo, step_size
from edelweiss.federation.average import Mean, average
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
