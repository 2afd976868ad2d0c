"""The benchmark of many workers: what it measures is there and grows with the workers."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from benchmarks.scale import forget_peak, measure, resident


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's /proc")
def test_a_passing_vector_is_in_the_peak_and_not_in_what_is_left() -> None:
    forget_peak()
    before = resident("VmRSS")
    with mmap.mmap(-1, 50_000_000) as passing:
        for start in range(0, len(passing), mmap.PAGESIZE):
            passing[start] = 1
        assert resident("VmRSS") - before > 45_000_000
    assert resident("VmHWM") - before > 45_000_000
    forget_peak()
    assert resident("VmHWM") - before < 25_000_000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's /proc")
def test_workers_on_a_ring_are_measured() -> None:
    found = measure("d-psgd", "linear", 32, sites=6, rounds=2)
    assert found["arrays"] == 6 * 650 * 4
    assert found["memory"] >= 0
    assert min(found["seconds"], found["cpu"]) > 0
