"""Which sites are connected when a run begins; and which of them only seem to be, because they crashed a moment ago."""

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

PATIENCE = 2  # signs of life that Flower waits for in vain before it takes a node for dead
ENDLESS = 1e9  # seconds between signs of life in a simulation, which knows of none, or more


def wait_for_sites(config: RunConfig, grid: Grid, say: Callable[[str], None]) -> list[int]:
    """Return the addresses of exactly ``sites`` nodes.

    Where there are more, some may be what is left of a process that crashed: the coordinator takes it for alive until
    it has given no sign of life for a minute. So it waits until that is over, or until more nodes than are wanted have
    given one meanwhile.

    Raises
    ------
    RunError
        When they are not there within ``wait-timeout``, or when there are more.
    """
    deadline = time.monotonic() + config.wait_timeout
    pause, met, told = 0.05, dict[int, float](), False
    while len(nodes := list(grid.get_nodes())) != config.sites:
        more = len(nodes) > config.sites
        for node in nodes:
            met.setdefault(node.node_id, node.online_until)
        if more and len(alive(nodes, met)) > config.sites:
            break
        if time.monotonic() > deadline:
            break
        if more and not told:
            told = True
            say(
                f"{len(nodes)} sites are connected, but sites = {config.sites}; waiting for signs of life, since one "
                "that crashed counts for up to a minute"
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
    """Return the nodes that have given a sign of life since they were met, or that need not give any."""
    return [node for node in nodes if not _beats(node) or node.online_until > met[node.node_id]]


def described(nodes: Sequence[NodeInfo]) -> Iterator[str]:
    """Yield a line for each node that gives signs of life: its number, as ``join`` logs it, since when, and the last.

    The one that was heard from first comes last: it is the likeliest to be dead.
    """
    now = time.time()
    known = [(now - (node.online_until - PATIENCE * node.heartbeat_interval), node) for node in nodes if _beats(node)]
    for ago, node in sorted(known, key=lambda pair: pair[0]):
        name = f" ({node.name})" if node.name else ""
        since = _moment(node.last_activated_at)
        yield (f"\n  number {node.node_id}{name}: connected since {since}, last heard from {max(0.0, ago):.0f} s ago")


def _beats(node: NodeInfo) -> bool:
    """Whether a node gives signs of life; those of a simulation do not."""
    return 0 < node.heartbeat_interval < ENDLESS


def _moment(text: str) -> str:
    """Return a moment as Flower writes it, in this machine's time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text or "?"
    return f"{(moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone():%Y-%m-%d %H:%M:%S}"
