"""The local engine: the same bits with any number of workers, and again; other bits from another seed."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array
from safetensors.numpy import load_file

from edelweiss.client_app.process_cache import forget_all
from edelweiss.common import Value
from edelweiss.common.memory import RARELY, collecting_rarely
from edelweiss.config import RunConfig
from edelweiss.federation import pack, unpack
from edelweiss.models import FlatNetwork, build
from edelweiss.server_app import simulate
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import Result, coordinate
from edelweiss.server_app.local import LocalGrid
from edelweiss.server_app.recorder import Record
from edelweiss.server_app.shared_memory import Segments, read
from tests.server_app import sites
from tests.server_app.sites import SiteGrid, run_at, saddle_job, site_job, table, write_table

pytestmark = pytest.mark.usefixtures("public_batches")

Job = Callable[..., dict[str, Value]]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Describe a short run whose folder is the test's."""
    return partial(sites.job, tmp_path)


def same_bits(one: Result, other: Result) -> bool:
    """Whether two runs gave the same model and the same metrics, to the last bit."""
    return arrays_equal(one, other) and numbers(one) == numbers(other)


def arrays_equal(one: Result, other: Result) -> bool:
    return one.arrays.keys() == other.arrays.keys() and all(
        np.array_equal(one.arrays[name], other.arrays[name]) for name in one.arrays
    )


def numbers(result: Result) -> list[dict[str, Any]]:
    """All metrics but for times; NaN as None, which equals itself."""
    text = json.dumps(result.metrics).replace("NaN", "null")
    return [{k: v for k, v in record.items() if not k.startswith("seconds")} for record in json.loads(text)]


# ---------------------------------------------------------------------- same bits


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"algorithm": "coda-plus", "stage-iterations": 3, "sampler": "fixed-positives", "positives-per-batch": 2},
        {"algorithm": "fedavg", "problem": "bce", "fraction": 0.5, "sites": 5, "weighting": "examples"},
        {"dataset": "digits", "model": "cnn-cifar", "rounds": 2, "partition": "by-class", "sites": 2},
        # 8 x 8 pixels are too few for a residual network, so batch norm is tested on images of a site's own, below.
    ],
    ids=["codasca", "coda-plus", "fedavg", "digits"],
)
def test_two_workers_give_the_bits_of_one(job: Job, keys: dict[str, Value]) -> None:
    assert same_bits(simulate(job() | keys | {"workers": 1}), simulate(job() | keys | {"workers": 2}))


@pytest.mark.slow
def test_more_workers_than_sites_are_no_problem(job: Job) -> None:
    assert same_bits(simulate(job(workers=7)), simulate(job()))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(job: Job) -> None:
    # Twice in one process: nothing of the first run is left when the second begins.
    first, again, other = simulate(job()), simulate(job()), simulate(job(seed=1))
    assert same_bits(first, again)
    assert not np.array_equal(first.arrays["x"], other.arrays["x"])


@pytest.mark.slow
def test_a_run_in_between_changes_nothing(job: Job) -> None:
    first = simulate(job())
    simulate(job(rounds=1))
    simulate(job(algorithm="local-sgda"))
    assert same_bits(first, simulate(job()))


def test_a_longer_run_begins_like_a_shorter_one(job: Job) -> None:
    short, long = simulate(job(rounds=2)), simulate(job(rounds=4))
    assert numbers(short) == numbers(long)[:2]


# ---------------------------------------------------------------------- who takes part, and how they count


def test_with_a_fraction_every_round_has_its_own_sites(tmp_path: Path) -> None:
    result = simulate(saddle_job(tmp_path, sites=6, rounds=12, fraction=0.5))
    drawn = {tuple(record["sites"]) for record in result.metrics[:-1]}
    assert {len(sites) for sites in drawn} == {3}
    assert set().union(*drawn) == {f"site-{k}" for k in range(6)}
    assert len(drawn) > 1
    assert {record["gradients"] for record in result.metrics} == {6}
    assert len(result.metrics[-1]["sites"]) == 6  # the final model is evaluated by all
    again = simulate(saddle_job(tmp_path, sites=6, rounds=12, fraction=0.5))
    assert [list(record["sites"]) for record in again.metrics] == [list(r["sites"]) for r in result.metrics]
    other = simulate(saddle_job(tmp_path, sites=6, rounds=12, fraction=0.5, seed=1))
    assert [list(record["sites"]) for record in other.metrics] != [list(r["sites"]) for r in result.metrics]


def test_by_examples_a_site_counts_as_much_as_it_has(tmp_path: Path) -> None:
    """One full-batch step from the same point: the mean of the gradients is that of all samples together."""
    sizes = [20, 60, 120]
    keys: dict[str, Value] = {
        "algorithm": "fedavg",
        "problem": "bce",
        "local_steps": 1,
        "rounds": 1,
        "holdout_share": 0.0,
        "standardise": False,
        "batch_size": 1000,
    }
    parts = [table(rows, seed=k) for k, rows in enumerate(sizes)]
    features, labels = np.concatenate([f for f, _ in parts]), np.concatenate([y for _, y in parts])
    nodes = [{"site": f"s{k}", "data-dir": str(write_table(tmp_path / f"s{k}", *part))} for k, part in enumerate(parts)]
    pooled = [{"site": "all", "data-dir": str(write_table(tmp_path / "all", features, labels))}]
    one = run_at(site_job(tmp_path, sites=1, **keys), pooled).arrays["x"]
    weighted = run_at(site_job(tmp_path, weighting="examples", **keys), nodes).arrays["x"]
    uniform = run_at(site_job(tmp_path, **keys), nodes).arrays["x"]
    np.testing.assert_allclose(weighted, one, atol=1e-6)
    assert np.abs(uniform - one).max() > 1e-4


# ---------------------------------------------------------------------- batch norm


@pytest.fixture
def image_sites(tmp_path: Path) -> list[dict[str, Value]]:
    """Two sites with a few tiny grey images, of another brightness at each."""
    from PIL import Image

    nodes: list[dict[str, Value]] = []
    for site, brightness in enumerate((40, 200)):
        folder = tmp_path / f"images-{site}"
        folder.mkdir()
        rng = np.random.default_rng(site)
        lines = ["path,label"]
        for number in range(10):
            pixels = np.clip(rng.normal(brightness + 30 * (number % 2), 20, (16, 16)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
            lines.append(f"{number}.png,{number % 2}")
        (folder / "labels.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        nodes.append({"site": f"s{site}", "data-dir": str(folder)})
    return nodes


@pytest.fixture
def resnet_job(tmp_path: Path) -> Callable[..., RunConfig]:
    keys: dict[str, Value] = {"model": "resnet18", "sites": 2, "rounds": 1, "local_steps": 1, "batch_size": 4}
    return lambda **more: site_job(tmp_path, **{**keys, "problem": "bce", "algorithm": "fedavg", **more})


@pytest.mark.slow
@pytest.mark.usefixtures("small_resnet")
def test_batch_norm_statistics_are_averaged_or_stay_at_home(
    image_sites: list[dict[str, Value]], resnet_job: Callable[..., RunConfig]
) -> None:
    average = run_at(resnet_job(), image_sites)
    assert same_bits(average, run_at(resnet_job(workers=2), image_sites))
    start = FlatNetwork(build("resnet18", (1, 16, 16), 1, hidden=32, seed=0)).buffers().numpy()
    assert np.isfinite(average.arrays["buffers"]).all()
    assert not np.array_equal(average.arrays["buffers"], start)

    with SiteGrid(resnet_job(bn="local", rounds=2), image_sites) as grid:
        local = coordinate(grid.config, grid, Progress(quiet=True))
        kept = sorted(grid.scratch.path.rglob("*.safetensors"))
        assert {path.parent.name for path in kept} == {"models"}, "nothing is remembered after the end"
        statistics = [load_file(path)["buffers"] for path in kept]
    # Statistics that stay at home are not sent, and the coordinator has those that all began with; the weights move.
    assert [answer for answer in grid.answers if "buffers" in answer.content.array_records.get("arrays", {})] == []
    assert np.array_equal(local.arrays["buffers"], start)
    assert not np.array_equal(local.arrays["x"], average.arrays["x"])
    assert len(statistics) == len(image_sites)
    assert not np.array_equal(statistics[0], statistics[1])


# ---------------------------------------------------------------------- processes


@pytest.mark.slow
def test_a_parent_with_many_threads_does_not_hang_its_workers(job: Job) -> None:
    torch.set_num_threads(2)
    torch.randn(600, 600) @ torch.randn(600, 600)
    torch.nn.functional.conv2d(torch.randn(8, 3, 32, 32), torch.randn(8, 3, 5, 5))
    weight = torch.randn(300, 300, requires_grad=True)
    (weight @ weight).sum().backward()
    several = simulate(job(workers=2))
    assert same_bits(several, simulate(job()))


@pytest.mark.deployments
def test_workers_with_threads_of_their_own(tmp_path: Path) -> None:
    # They are fresh processes, not forks: whatever they need reaches them through a pipe.
    assert same_bits(
        simulate(saddle_job(tmp_path, workers=2, threads=2, rounds=1)), simulate(saddle_job(tmp_path, rounds=1))
    )


@pytest.mark.slow
def test_a_run_in_a_thread_is_a_run(job: Job) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        assert same_bits(pool.submit(simulate, job(workers=2)).result(timeout=600), simulate(job()))


@pytest.mark.slow
def test_two_runs_at_a_time_do_not_mix(tmp_path: Path) -> None:
    """As two people on one machine: each run has its memory files and segments to itself."""
    job = saddle_job(tmp_path, algorithm="codasca", workers=2, rounds=8)
    alone = simulate(job)
    beside = multiprocessing.get_context("fork").Process(target=simulate, args=(job | {"run-name": "beside"},))
    beside.start()
    while beside.is_alive():
        assert same_bits(simulate(job), alone)
    assert beside.exitcode == 0
    model = load_file(tmp_path / "runs" / "beside" / "model.safetensors")
    assert all(np.array_equal(model[name], vector) for name, vector in alone.arrays.items())


def test_memory_is_forgotten_at_the_end(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []
    leave = LocalGrid.__exit__

    def looking(grid: LocalGrid, *error: Any) -> None:
        left.extend(name for _, _, names in os.walk(grid.scratch.path / "state") for name in names)
        leave(grid, *error)

    monkeypatch.setattr(LocalGrid, "__exit__", looking)
    simulate(job())
    assert left == []


def test_the_garbage_collector_is_left_as_it_was(tmp_path: Path) -> None:
    during: list[tuple[int, ...]] = []

    class Looking(Progress):
        def round(self, record: Record, rounds: int) -> None:
            during.append(gc.get_threshold())
            raise ZeroDivisionError

    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError):
        simulate(saddle_job(tmp_path, workers=1), progress=Looking(quiet=True))
    assert gc.get_threshold() == before != during[0]


def test_it_is_left_as_it_was_by_the_last_of_several_runs() -> None:
    before, first, second = gc.get_threshold(), collecting_rarely(), collecting_rarely()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == RARELY
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before


@pytest.mark.slow
def test_a_process_that_forgets_a_run_keeps_none_of_its_messages(tmp_path: Path) -> None:
    simulate(saddle_job(tmp_path, workers=1) | {"saddle.dimension": 1234})
    forget_all()
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, Array) and tuple(one.shape) == (1234,)]


def test_messages_that_are_no_larger_than_those_before_take_no_more_memory(tmp_path: Path) -> None:
    segments = Segments(str(tmp_path), "one")
    for size in (5, 5, 3, 5, 8, 8, 5):
        sent = pack({"x": torch.arange(float(size))})
        segment, [layout] = segments.write([{"arrays": sent}])
        assert segment is not None
        assert unpack(read(segment.map, layout)["arrays"])["x"].tolist() == list(range(size))
        segments.free.append(segment)  # its reader is done
    assert len(list(tmp_path.iterdir())) == 2, "one for 5 numbers, one for 8"
