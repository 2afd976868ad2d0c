"""The benchmark of other simulators: what each is given, what is said of it, and who is left out."""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import with_edelweiss, with_pfl
from benchmarks.peers.__main__ import ENGINES, OURS, Engine, installed, main, table, text, unlike
from benchmarks.peers.baselines import METHODS
from benchmarks.peers.baselines import table as baselines_table
from benchmarks.peers.job import BATCH, STEPS, Clock, Job, batches, dealt, initial, judged, mnist
from tests.said import has

ALONE, PEER = ENGINES[1], ENGINES[2]
ABSENT = Engine("Absent", "absent", "no_such_package")


def answer(*seconds: float, loss: float = 0.4, steps: float = 10.0) -> dict[str, Any]:
    """Return what a script prints."""
    packages = {"numpy": "2.0"}
    known = {"parameters": 7850, "loss": loss, "accuracy": 0.9, "diverged": False, "steps": steps, "versions": packages}
    return known | {"seconds": list(seconds)}


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As many images as four clients need, in MNIST's files: each class is a bright band of its own."""
    rng, folder = np.random.default_rng(0), tmp_path / "mnist" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        labels = np.arange(80, dtype=np.uint8) % 10
        images = rng.integers(0, 50, (80, 28, 28), np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 2] = 250
        heads = (bytes([0, 0, 8, 3]) + np.array([80, 28, 28], ">u4").tobytes(), bytes([0, 0, 8, 1, 0, 0, 0, 80]))
        for kind, head, values in zip(("images-idx3", "labels-idx1"), heads, (images, labels), strict=True):
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + values.tobytes()))
    monkeypatch.setenv("EDELWEISS_DATA", str(tmp_path))
    mnist.cache_clear()
    yield
    mnist.cache_clear()


# ---------------------------------------------------------------------- the table


def test_an_engine_that_is_not_installed_is_named_and_left_out() -> None:
    assert installed(OURS, sys.executable)
    assert not installed(ABSENT, sys.executable)
    page = text({("linear", 100): {OURS: [answer(1.0)]}}, 6, 3, [ABSENT.title])
    assert "not installed: Absent." in page
    assert "| Absent" not in page


def test_an_interpreter_that_is_none_is_named() -> None:
    with pytest.raises(SystemExit, check=has("absent=/no/python")):
        installed(ABSENT, "/no/python")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--python", "plf=python"], "plf=.*pfl, flower"),
        (["--rounds", "2"], "rounds 2"),
        ([], "EDELWEISS_DATA is not set"),
    ],
)
def test_what_cannot_be_measured_is_said(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EDELWEISS_DATA", raising=False)
    with pytest.raises(SystemExit):
        main(arguments)
    assert re.search(said, capsys.readouterr().err)


def test_seconds_are_the_median_over_all_repeats_beside_the_first_engine() -> None:
    lines = table({OURS: [answer(1.0, 9.0), answer(2.0)], PEER: [answer(5.0, 7.0)]}).splitlines()
    assert lines[2].startswith(f"| {OURS.title} | 2.000 | 1.00 |")
    assert lines[3].startswith(f"| {PEER.title} | 6.000 | 3.00 |")


def test_the_first_round_has_no_seconds() -> None:
    clock = Clock()
    clock.ended = [100.0, 102.0, 105.0]
    assert clock.seconds == [2.0, 3.0]


def test_who_did_other_work_is_named() -> None:
    found = {OURS: [answer(1.0)], ALONE: [answer(1.0, loss=0.41)], PEER: [answer(1.0, loss=0.43)]}
    assert unlike(found) == [PEER.title]
    assert unlike(found | {ALONE: [answer(1.0, steps=4.0)]}) == [ALONE.title, PEER.title]
    assert f"Not the same work as the first line's: {PEER.title}." in text({("linear", 100): found}, 6, 3, [])


# ---------------------------------------------------------------------- the job


@pytest.mark.parametrize("samples", [60, 600])
def test_a_clients_batches_are_full_and_repeat_no_sample_within_an_epoch(samples: int) -> None:
    drawn = batches(samples)
    assert drawn.shape == (STEPS, BATCH)
    epochs = [drawn.flatten()[start : start + samples] for start in range(0, drawn.size, samples)]
    assert all(len(np.unique(epoch)) == len(epoch) for epoch in epochs)
    assert drawn.max() < samples


@pytest.mark.slow
@pytest.mark.usefixtures("digits")
def test_the_local_engine_does_the_job() -> None:
    clock, clients = Clock(), 4
    assert sorted(np.concatenate([dealt(client, clients) for client in range(clients)])) == list(range(80))
    before = judged(initial("mlp"))
    trained = with_edelweiss.train(Job("mlp", clients, 4), clock, stack=1)
    after = judged(trained.layers)
    assert before["parameters"] == after["parameters"] == 55050
    assert after["loss"] < 0.7 * before["loss"]
    assert after["accuracy"] > before["accuracy"]
    assert trained.steps == STEPS
    assert len(clock.seconds) == 2  # neither the first round nor the last


def test_a_peers_script_can_be_read_without_the_peer() -> None:
    assert callable(with_pfl.train)


# ---------------------------------------------------------------------- baselines


def test_clients_of_two_classes_share_no_image_and_have_a_rounds_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.random.default_rng(0).integers(0, 10, 20_000)
    monkeypatch.setattr("benchmarks.peers.job.mnist", lambda: (None, labels))
    rows = [Job("mlp", 40, 3, "fedprox").rows(client) for client in range(40)]
    assert {len(own) for own in rows} == {STEPS * BATCH}
    assert len(np.unique(np.concatenate(rows))) == 40 * STEPS * BATCH
    assert [sorted(set(labels[own])) for own in rows[8:10]] == [[8, 9], [0, 9]]


@pytest.mark.slow
@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize("algorithm", ["fedprox", "scaffold", "fedadam"])
def test_the_local_engine_trains_the_baselines(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.job.two_classes", lambda client: np.arange(20) * 4 + client)
    trained = with_edelweiss.train(Job("mlp", 4, 4, algorithm, seed=1), Clock(), stack=1)
    assert trained.steps == STEPS
    assert judged(trained.layers)["loss"] < judged(initial("mlp"))["loss"]


def test_a_table_has_a_line_for_each_engine_beside_ours() -> None:
    ours, flower, _ = METHODS["FedProx"]
    diverged = {"diverged": True, "seconds": [6.0]}
    found = {(0.1, "FedProx"): {ours: [answer(1.0), answer(1.0)], flower: [answer(4.0), diverged]}}
    lines = baselines_table(found).splitlines()
    assert lines[2] == "| 0.1 | FedProx | Edelweiss | 0.900 ± 0.000 | 0.900, 0.900 | 0.400 ± 0.000 | 1.000 | 1.0 |"
    assert lines[3] == "| 0.1 | FedProx | Flower | 0.900 ± 0.000 | 0.900, diverged | 0.400 ± 0.000 | 5.000 | 5.0 |"


@pytest.mark.slow
@pytest.mark.usefixtures("digits")
def test_a_run_that_diverges_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.job.two_classes", lambda client: np.arange(20) * 4 + client)
    assert with_edelweiss.train(Job("mlp", 4, 4, "scaffold", lr=1e6), Clock(), stack=1).diverged
    assert not with_edelweiss.train(Job("mlp", 4, 4, "scaffold"), Clock(), stack=1).diverged


def test_pfl_is_a_peer_of_scaffold_as_it_is_and_mended() -> None:
    assert [engine.options[2:] for engine in METHODS["SCAFFOLD"]] == [(), (), ("--mended",)]
