"""Each site's first head: a random one of its own that seed and place decide, whoever asks and on whatever engine."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from edelweiss.client_app.request import Request
from edelweiss.client_app.site import OpenSite
from edelweiss.config import RunConfig, SiteConfig
from edelweiss.datasets import DataSummary
from edelweiss.problems.network import NetworkProblem
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from edelweiss.server_app.local import unused_run_id
from tests.problems.example import make
from tests.strategies.engine import Forgetful

SITES = 3
COHORT = DataSummary(shape=(30,), classes=2, prior=0.5)


def first(algorithm: str, site: int, seed: int = 0, **keys: Any) -> torch.Tensor:
    """Return the head that a site starts with, as its app finds it for a message."""
    config = RunConfig.parse({"algorithm": algorithm, "problem": "auc", "hidden": 4, "seed": seed, **keys})
    opened = OpenSite(config, SiteConfig.parse({"partition-id": site}))
    request = Request(
        context=config.strategy.context(3, 3, "train", 3),
        site=site,
        name=f"site-{site}",
        run="",
        committed=0,
        data_summary=COHORT,
    )
    return opened.in_run(request).fresh()["head"]


@pytest.mark.parametrize("algorithm", ["deprl", "fedrep"])
def test_each_site_has_its_own_and_finds_it_again(algorithm: str) -> None:
    drawn = {(seed, site): first(algorithm, site, seed) for seed in (0, 1) for site in range(SITES)}
    assert all(not torch.equal(one, other) for one, other in combinations(drawn.values(), 2))
    assert all(torch.equal(first(algorithm, site, seed), head) for (seed, site), head in drawn.items())
    common = make("auc", model="mlp", hidden=4, shape=(30,), seed=0, dtype=torch.float32).fresh()["head"]
    assert not any(torch.equal(head, common) for head in drawn.values()), "that of all is nobody's own"
    for site in range(SITES):
        assert torch.equal(first(algorithm, site, **{f"{algorithm}.first-head": "common"}), common)


def test_it_is_drawn_as_the_network_draws_its_own() -> None:
    """Within the bounds of PyTorch's initialisation, wherever the head begins; the problem's scalars are zero."""
    for layer, inputs in (("head", 64), ("body.3", 64)):
        problem = make("auc", model="mlp", hidden=64, shape=(30,), head=layer, dtype=torch.float32)
        assert isinstance(problem, NetworkProblem)
        before = problem.initial()
        heads = torch.stack([problem.fresh(site)["head"] for site in range(50)])
        assert heads.shape[1] == len(before["x"]) - problem.head
        assert not heads[:, -2:].any(), "a and b"
        bound = 1 / np.sqrt(inputs)
        assert 0.97 * bound < float(heads.abs().max()) <= bound
        assert abs(float(heads[:, :-2].mean())) < 0.05 * bound
        assert torch.equal(problem.initial()["x"], before["x"]), "the network is as it was"


def ends(folder: Path, algorithm: str, lost: tuple[int, ...] = (), **keys: Any) -> list[torch.Tensor]:
    """Return the sites' heads after rounds whose steps are too small to move them, read off their disks."""
    job = {"algorithm": algorithm, "problem": "auc", "hidden": 4, "sites": SITES, "rounds": 3, "local-steps": 1}
    job |= {f"{algorithm}.lr-head": 1e-30, f"{algorithm}.weight-decay": 0.0, "device": "cpu"}
    config = RunConfig.parse({**job, "runs-dir": str(folder), "state-dir": str(folder / "state"), **keys})
    torch.set_num_threads(1)
    with Forgetful(config, unused_run_id()) as grid:
        grid.rounds = lost
        coordinate(config, grid, Progress(quiet=True))
        assert grid.deleted == len(lost)
    return [load_file(path)["x"][-7:] for path in sorted((folder / "state" / "models").iterdir())]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["deprl", "fedrep"])
@pytest.mark.parametrize(
    ("keys", "lost"), [({"workers": 1}, ()), ({"workers": 2}, ()), ({"workers": 1}, (2,)), ({"workers": 1}, (3,))]
)
def test_a_run_starts_there_and_starts_there_again_if_heads_are_lost(
    algorithm: str, keys: dict[str, Any], lost: tuple[int, ...], tmp_path: Path
) -> None:
    for first_head in ("own", "common"):
        kind = {f"{algorithm}.first-head": first_head}
        found = ends(tmp_path / first_head, algorithm, lost, **keys, **kind)
        assert len(found) == SITES
        for site, head in enumerate(found):
            assert torch.equal(head[:5], first(algorithm, site, **kind)[:5])
