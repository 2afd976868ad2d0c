"""What a process keeps open, and what it gives back."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.growth import resident
from edelweiss.client_app import join, process_cache, site
from edelweiss.client_app.site import OpenSite
from edelweiss.common.memory import keep_freed_memory, return_freed_memory
from edelweiss.config import RunConfig, SiteConfig
from edelweiss.datasets import SiteData, load_site
from edelweiss.server_app import simulate
from tests.server_app.sites import saddle_job

MANY, LARGE = 3000, 8192  # vectors, and float32 in each


def freed(pipe: Connection, give_back: Callable[[], None]) -> None:
    """Free large vectors that lie between small ones; send what is resident before and after it is returned."""
    keep_freed_memory()
    pairs = [(torch.ones(LARGE), torch.ones(16)) for _ in range(MANY)]
    small = [pair[1] for pair in pairs]
    del pairs
    before = resident()
    give_back()
    pipe.send((before, resident(), len(small)))


@pytest.mark.parametrize("give_back", [return_freed_memory, join.free], ids=["many-sites", "after-a-run"])
def test_memory_that_is_free_between_what_is_in_use_is_returned_to_the_system(give_back: Callable[[], None]) -> None:
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=freed, args=(theirs, give_back))
    child.start()
    before, after, _ = ours.recv()
    child.join()
    assert before - after > 0.8 * MANY * LARGE * 4


def test_how_many_sites_stay_open_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = saddle_job(tmp_path, algorithm="codasca")
    all_open = simulate(job)
    monkeypatch.setattr(site, "MOST_OPEN", 2)
    few = simulate(job)
    assert all(np.array_equal(few.arrays[name], vector) for name, vector in all_open.arrays.items())


def test_what_a_site_tells_hashes_and_trains_on_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.csv").write_text("age,label\n" + "".join(f"{row},{row % 2}\n" for row in range(40)))
    loaded: list[SiteData] = []

    def watched(*given: Any) -> SiteData:
        loaded.append(load_site(*given))
        return loaded[-1]

    monkeypatch.setattr(process_cache, "load_site", watched)
    run = RunConfig.parse({"dataset": "site", "problem": "auc", "model": "linear", "sites": 3})
    node = SiteConfig.parse({"data-dir": str(tmp_path)})
    hashes = {OpenSite(run, node).data_hash() for _ in range(2)}  # opened for each message
    facts, data = OpenSite(run, node).facts(), OpenSite(run, node).data()
    assert len(hashes) == 1
    assert loaded == [data]
    assert facts.examples == len(loaded[0].train)
