"""Who is connected when a run begins: a site that crashed counts for a minute, and is waited out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import hypothesis.strategies as st
import pytest
from flwr.proto.node_pb2 import NodeInfo
from hypothesis import given, settings

from edelweiss.config import RunConfig
from edelweiss.federation import RunError
from edelweiss.server_app import connected_sites as connected
from edelweiss.server_app.connected_sites import PATIENCE, wait_for_sites
from tests.said import has

if TYPE_CHECKING:
    from flwr.serverapp import Grid

EVERY, BEAT = 30.0, 24.0  # what a site promises, and does
SITES = 3


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def time(self) -> float:
        return self.now

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Coordinator:
    """A grid as Flower's is: whoever has given no sign of life for `PATIENCE` times the interval is gone.

    ``beats``: seconds ago at which each living site gave its last sign of life; ``crashed``: each dead one.
    """

    def __init__(self, clock: Clock, beats: Iterable[float], crashed: Iterable[float]) -> None:
        self.clock, self.begun = clock, clock.now
        self.beats, self.crashed = list(beats), list(crashed)

    def get_nodes(self) -> list[NodeInfo]:
        passed = self.clock.now - self.begun
        heard = [passed - (passed + ago) % BEAT for ago in self.beats] + [-ago for ago in self.crashed]
        nodes = [
            NodeInfo(
                node_id=k + 1,
                heartbeat_interval=EVERY,
                online_until=self.begun + at + PATIENCE * EVERY,
                last_activated_at="2026-01-01T00:00:00+00:00",
            )
            for k, at in enumerate(heard)
        ]
        return [node for node in nodes if node.online_until > self.clock.now]


def waited(beats: Iterable[float], crashed: Iterable[float], wait: float = 60.0) -> tuple[list[int], list[str], float]:
    """Return whom a coordinator begins with, what it said, and how long it took."""
    clock, said = Clock(), list[str]()
    config = RunConfig.parse({"sites": SITES, "wait-timeout": wait})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connected, "time", clock)
        nodes = wait_for_sites(config, cast("Grid", Coordinator(clock, beats, crashed)), said.append)
    return nodes, said, clock.now - 1_000_000.0


ages = st.floats(0, BEAT - 0.1)


@settings(deadline=None, max_examples=50)
@given(st.lists(ages, min_size=SITES, max_size=SITES), st.lists(st.floats(0, 58.9), max_size=4))
def test_the_dead_are_waited_out(beats: list[float], crashed: list[float]) -> None:
    nodes, said, seconds = waited(beats, crashed)
    assert nodes == [1, 2, 3]
    assert len(said) == bool(crashed)
    assert bool(seconds) == bool(crashed)


@settings(deadline=None, max_examples=50)
@given(st.lists(ages, min_size=SITES + 1, max_size=6), st.lists(st.floats(0, 58.9), max_size=3))
def test_too_many_who_live_are_named_as_soon_as_they_are_known_to(beats: list[float], crashed: list[float]) -> None:
    with pytest.raises(RunError) as refused:
        waited(beats, crashed, wait=1e6)
    first, *lines = str(refused.value).splitlines()
    assert f"but sites = {SITES}: end the others" in first
    heard = [float(line.partition("last heartbeat ")[2].partition(" s")[0]) for line in lines]
    assert heard == sorted(heard)
    assert len(lines) >= len(beats)
    assert all("connected since 20" in line for line in lines)


def test_whoever_waits_less_than_a_minute_hears_who_is_likely_dead() -> None:
    with pytest.raises(RunError, check=has(key="sites", value=4, allowed=3)) as refused:
        waited([1, 2, 3], [20], wait=5)
    assert "number 4" in str(refused.value).splitlines()[-1]
    with pytest.raises(RunError, check=has("number 2", key="sites", value=2, allowed=3)):
        waited([1], [10], wait=5)


def test_a_simulation_gives_no_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    grid = Coordinator(clock, [], [])
    grid.get_nodes = lambda: [NodeInfo(node_id=k, heartbeat_interval=1e300) for k in range(5)]  # type: ignore[method-assign]
    monkeypatch.setattr(connected, "time", clock)
    with pytest.raises(RunError) as refused:
        wait_for_sites(RunConfig.parse({"sites": SITES}), cast("Grid", grid), print)
    assert "5 sites are connected" in str(refused.value)
    assert "number" not in str(refused.value).replace("num-supernodes", "")
    assert clock.now == 1_000_000.0
