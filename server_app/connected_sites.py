"""Waiting for the sites of a run, in spite of crashed ones that still seem to be connected."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from edelweiss.federation import RunError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from flwr.proto.node_pb2 import NodeInfo
    from flwr.serverapp import Grid

    from edelweiss.config import RunConfig

PATIENCE = 2  # missed heartbeats after which Flower considers a node dead
ENDLESS = 1e9  # least heartbeat interval of a simulation, which has no heartbeats


def wait_for_sites(config: RunConfig, grid: Grid, say: Callable[[str], None]) -> list[int]:
    """Return the ids of exactly ``sites`` nodes.

    If there are more, some may belong to crashed processes, which count as connected until they have missed heartbeats
    for a minute. So it waits until then, or until too many nodes have sent one.

    Raises
    ------
    RunError
        If too few connect within ``wait-timeout``, or too many.
    """
    deadline = time.monotonic() + config.wait_timeout
    pause, met, announced = 0.05, dict[int, float](), False
    while len(nodes := list(grid.get_nodes())) != config.sites:
        more = len(nodes) > config.sites
        for node in nodes:
            met.setdefault(node.node_id, node.online_until)
        if more and len(alive(nodes, met)) > config.sites:
            break
        if time.monotonic() > deadline:
            break
        if more and not announced:
            announced = True
            say(
                f"{len(nodes)} sites are connected, but sites = {config.sites}; waiting for heartbeats, because a "
                "crashed site counts as connected for up to a minute"
            )
        time.sleep(pause)
        pause = min(1.0, 1.5 * pause)
    if len(nodes) < config.sites:
        raise RunError(
            f"{len(nodes)} of sites = {config.sites} are connected after wait-timeout = {config.wait_timeout:g} s. "
            f"Start the others, set sites={len(nodes)}, or in a simulation: flwr run . --federation-config "
            f'"num-supernodes={config.sites}"' + "".join(described(nodes)),
            key="sites",
            value=len(nodes),
            allowed=config.sites,
        )
    if len(nodes) > config.sites:
        raise RunError(
            f"{len(nodes)} sites are connected, but sites = {config.sites}: end the others, set sites={len(nodes)}, or "
            f'in a simulation: flwr run . --federation-config "num-supernodes={config.sites}"'
            + "".join(described(nodes)),
            key="sites",
            value=len(nodes),
            allowed=config.sites,
        )
    return sorted(node.node_id for node in nodes)


def alive(nodes: Sequence[NodeInfo], met: Mapping[int, float]) -> list[NodeInfo]:
    """Return the nodes that have sent a heartbeat since they were first seen, or send none."""
    return [node for node in nodes if not _beats(node) or node.online_until > met[node.node_id]]


def described(nodes: Sequence[NodeInfo]) -> Iterator[str]:
    """Yield a line for each node with heartbeats: its id, as ``join`` logs it, its start, and the last heartbeat.

    The likeliest to be dead, with the oldest heartbeat, comes last.
    """
    now = time.time()
    known = [(now - (node.online_until - PATIENCE * node.heartbeat_interval), node) for node in nodes if _beats(node)]
    for ago, node in sorted(known, key=lambda pair: pair[0]):
        name = f" ({node.name})" if node.name else ""
        since = _moment(node.last_activated_at)
        yield (f"\n  number {node.node_id}{name}: connected since {since}, last heartbeat {max(0.0, ago):.0f} s ago")


def _beats(node: NodeInfo) -> bool:
    """Whether a node sends heartbeats; a simulation's do not."""
    return 0 < node.heartbeat_interval < ENDLESS


def _moment(text: str) -> str:
    """Convert Flower's time to local time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text or "?"
    return f"{(moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone():%Y-%m-%d %H:%M:%S}"
