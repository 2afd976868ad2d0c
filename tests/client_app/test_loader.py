"""The thread that makes batches ready: the bits are those without it, and it ends with its round."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edelweiss.client_app.loader import AHEAD, Batches
from edelweiss.client_app.oracle import SiteOracle, stream
from edelweiss.common import Value
from edelweiss.config import RunConfig
from edelweiss.datasets import DataSummary, Samples
from edelweiss.datasets.memory_mapped import tensor_of
from edelweiss.federation import RunError
from edelweiss.models import Architecture
from edelweiss.problems import Batch, Setting
from edelweiss.problems.auc import Auc
from edelweiss.server_app import Result, simulate
from tests.said import has
from tests.server_app.sites import job

COUNT, SHAPE = 60, (1, 8, 8)
AUGMENT = {"augment-flip": True, "augment-rotate": 30.0, "augment-crop": 0.2, "augment-brightness": 0.3}
IMAGES = {"dataset": "digits", "model": "linear", "sites": 2, "rounds": 2, "batch-size": 8, **AUGMENT}


def with_thread(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    monkeypatch.setattr("edelweiss.client_app.loader.SLOW", 0 if wanted else 10**18)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


@pytest.fixture
def images(tmp_path: Path) -> Samples:
    """Images in a file."""
    np.save(tmp_path / "images.npy", np.random.default_rng(0).integers(0, 256, (COUNT, *SHAPE), np.uint8))
    inputs = tensor_of(np.load(tmp_path / "images.npy", mmap_mode="r"))
    return Samples(inputs, torch.arange(COUNT) % 3 // 2, torch.randperm(COUNT))


def opened(samples: Samples, site: int = 1, **keys: Any) -> SiteOracle:
    config = RunConfig.parse({"dataset": "digits", "batch-size": 8, **keys})
    problem = Auc(Setting(data_summary=DataSummary(shape=SHAPE, prior=0.3), architecture=Architecture(model="linear")))
    return SiteOracle.open(config, problem, samples, stream(0, site, 1, 0))


def asked(oracle: SiteOracle, requests: str) -> Iterator[Tensor]:
    """Ask for batches and more, a letter for each; yield all that comes."""
    batches: list[Batch | None] = []
    epoch = iter(batches)
    start = oracle.problem.initial()
    for letter in requests:
        match letter:
            case "d":
                batches = [oracle.draw()]
            case "5" | "7":
                batches = [oracle.draw(int(letter))]
            case "e":
                epoch = oracle.epoch()
                batches = [next(epoch)]
            case "n":
                batches = [next(epoch)]
            case "r":
                yield torch.randperm(9, generator=oracle.generator)
            case "g":
                yield oracle.gradient(start["x"], start["y"])[0]
            case "f":
                yield oracle.full_gradient(start["x"], start["y"])[0]
        yield from (part for batch in batches if batch is not None for part in batch)
        batches = []


@pytest.mark.parametrize(
    "requests",
    ["dddddddddddd", "5dddd5dd", "d5d5d5d5", "7777777d7", "ennnnnnennnn", "ddenndddenn5nn", "drddrrd", "gfgdgrgefng"],
)
@pytest.mark.parametrize("keys", [AUGMENT, {}, {"sampler": "fixed-positives", "positives-per-batch": 2}])
def test_whatever_is_asked_for_comes_as_without_the_thread(
    images: Samples, requests: str, keys: dict[str, Value], monkeypatch: pytest.MonkeyPatch
) -> None:
    came = []
    for wanted in (True, False):
        with_thread(monkeypatch, wanted)
        with closing(opened(images, **keys)) as oracle:
            came.append(list(asked(oracle, requests)))
            assert bool(threads()) == wanted
    assert len(came[0]) == len(came[1]) >= len(requests)
    assert all(map(torch.equal, *came))


def test_batches_are_made_ready_and_none_in_vain_for_one_who_alternates(
    images: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_thread(monkeypatch, True)
    drawn: list[int] = []
    draw = Batches.draw
    monkeypatch.setattr(Batches, "draw", lambda self, size: drawn.append(size) or draw(self, size))
    with closing(opened(images)) as oracle:
        for _ in range(3):
            oracle.draw()
    assert 3 <= len(drawn) <= 3 + AHEAD
    drawn.clear()
    with closing(opened(images)) as oracle:
        for _ in range(10):
            oracle.draw(), oracle.draw(5)
    assert 20 <= len(drawn) <= 20 + AHEAD


def test_augmentation_changes_images_and_not_which_are_drawn(images: Samples) -> None:
    """And is of the site's own, new for each batch, and nothing but for batches that are drawn."""
    plain, changed = opened(images), opened(images, **AUGMENT)
    for _ in range(12):  # beyond an epoch
        one, two = plain.draw(), changed.draw()
        assert one is not None and two is not None  # noqa: PT018
        assert torch.equal(one[1], two[1])
        assert not torch.equal(one[0], two[0])
    start = plain.problem.initial()
    assert torch.equal(*(oracle.full_gradient(start["x"], start["y"])[0] for oracle in (plain, changed)))
    assert all(map(torch.equal, plain.dual_terms(start["x"]), changed.dual_terms(start["x"])))
    same = replace_rows(images, torch.zeros(COUNT, dtype=torch.int64))  # sixty times one image
    sites = opened(same, **AUGMENT), opened(same, 2, **AUGMENT)
    batches = [oracle.draw() for oracle in sites * 2]
    everything = torch.cat([batch[0] for batch in batches if batch is not None]).flatten(1)
    assert len(everything.unique(dim=0)) == 32


def replace_rows(samples: Samples, rows: Tensor) -> Samples:
    return Samples(samples.inputs, samples.labels, rows)


def test_a_batch_asked_for_twice_is_the_same(images: Samples) -> None:
    oracle = opened(images, **AUGMENT)
    start, batch = oracle.problem.initial(), oracle.draw()
    assert torch.equal(*(oracle.gradient(start["x"], start["y"], batch)[0] for _ in range(2)))


def test_only_large_images_that_are_read_or_changed_have_a_thread(images: Samples, tmp_path: Path) -> None:
    large = torch.zeros(9, 1, 256, 256, dtype=torch.uint8)
    np.save(tmp_path / "large.npy", large.numpy())
    stored = tensor_of(np.load(tmp_path / "large.npy", mmap_mode="r"))
    table = torch.zeros(9, 2**18)
    for inputs, keys, wanted in (
        (images.inputs, AUGMENT, False),
        (table, {}, False),
        (large, {}, False),
        (large, AUGMENT, True),
        (stored, {}, True),
    ):
        with closing(opened(Samples(inputs, torch.arange(9), torch.arange(9)), **keys)) as oracle:
            oracle.draw()
            assert bool(threads()) == wanted


@pytest.mark.parametrize("bad", [1, 3])
def test_an_error_in_the_thread_reaches_the_caller(images: Samples, bad: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with_thread(monkeypatch, True)
    oracle = opened(images)
    draw = oracle.problem.draw
    count = iter(range(1, 99))

    def failing(*args: Any) -> Batch | None:
        if next(count) == bad:
            raise OSError("the disk is gone")
        return draw(*args)

    monkeypatch.setattr(oracle.problem, "draw", failing)
    with closing(oracle):
        for _ in range(bad - 1):
            oracle.draw()
        with pytest.raises(OSError, check=has("the disk is gone")):
            oracle.draw()
    assert not threads()


# ---------------------------------------------------------------------- whole runs


def same_arrays(one: Result, other: Result) -> bool:
    return all(np.array_equal(one.arrays[name], other.arrays[name]) for name in one.arrays | other.arrays)


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "codasca"},
        {"algorithm": "coda-plus", "stage-iterations": 3, "sampler": "fixed-positives", "positives-per-batch": 2},
        {"algorithm": "acc-fcsg-m", "problem": "auprc", "positives-per-batch": 2},
        {"algorithm": "fedrep", "problem": "bce", "fedrep.head-unit": "epochs", "local-steps": 1, "model": "mlp"},
        {"algorithm": "dispfl", "problem": "cross-entropy", "model": "mlp"},
        {"algorithm": "fcsg", "problem": "maml", "batch-size": 2, "maml.queries": 2, "model": "mlp"},
    ],
    ids=lambda keys: keys["algorithm"],
)
def test_a_run_gives_the_bits_of_one_without_threads(
    keys: dict[str, Value], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, took = [], []
    take = SiteOracle.draw
    monkeypatch.setattr(SiteOracle, "draw", lambda self, *a: took.append(len(threads())) or take(self, *a))
    for wanted in (True, False):
        with_thread(monkeypatch, wanted)
        results.append(simulate(job(tmp_path) | IMAGES | keys))
        assert not threads(), "the thread ends with the round"
        assert (max(took[1:]) > 0) == wanted
        took.clear()
    assert same_arrays(*results)


def test_the_thread_ends_also_when_a_round_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_thread(monkeypatch, True)
    seen: list[int] = []

    def fail(oracle: SiteOracle, *_: object) -> None:
        oracle.draw()
        seen.append(len(threads()))
        raise RuntimeError("in the middle of a round")

    monkeypatch.setattr(SiteOracle, "gradient", fail)
    with pytest.raises(RunError):
        simulate(job(tmp_path) | IMAGES)
    assert seen
    assert all(seen)
    assert not threads()


@pytest.mark.slow
def test_augmented_batches_have_the_same_bits_with_any_number_of_workers(tmp_path: Path) -> None:
    run: Callable[..., Result] = lambda **keys: simulate(job(tmp_path) | IMAGES | keys)  # noqa: E731
    one = run(workers=1)
    assert same_arrays(one, run(workers=2))
    assert not same_arrays(one, run(**{"augment-flip": False}))
