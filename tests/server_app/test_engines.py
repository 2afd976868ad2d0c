"""One job, four ways to run it: the same numbers.

They are equal to the last bit on one machine. Every site computes with the same instructions in one thread; a site's
random stream follows from seed, site and round; replies are summed in the order of the sites, whoever comes first;
and vectors travel as the bytes that they are. Another processor may choose other instructions: there, allclose.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from bin.run import free_port
from edelweiss.common import Value
from edelweiss.lab.submission import started
from edelweiss.server_app import simulate
from tests.deployment import processes
from tests.server_app.sites import saddle_job

SITES = 3


@pytest.fixture(scope="module")
def saddle_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Coefficients made outside of the app, so that a run can be checked from outside."""
    file = tmp_path_factory.mktemp("saddle") / "saddle.npz"
    rng = np.random.default_rng(5)
    np.savez(file, t=rng.uniform(0.5, 2, SITES), b=rng.normal(size=(SITES, 6)))
    return file


def auc_job(folder: Path, name: str, **keys: Value) -> dict[str, Value]:
    """Codasca on real patients."""
    job: dict[str, Value] = {
        "algorithm": "codasca",
        "dataset": "breast-cancer",
        "model": "mlp",
        "sites": SITES,
        "rounds": 2,  # in the second, every site uses what it remembers of the first
        "local-steps": 5,
        "device": "cpu",
        "runs-dir": str(folder),
        "run-name": name,
        "wait-timeout": 180.0,
        "round-timeout": 180.0,
        "init-from": str(folder / "first"),  # which the coordinator reads, whatever the engine
        "init-head": "fresh",
    }
    return job | {key.replace("_", "-"): value for key, value in keys.items()}


def left_by(folder: Path) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """The model and the metrics, but for times, from a run folder."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    numbers = [{k: v for k, v in line.items() if not k.startswith("seconds")} for line in lines]
    return load_file(folder / "model.safetensors"), numbers


def assert_same_bits(one: Path, other: Path) -> None:
    """Compare two run folders."""
    (model, numbers), (other_model, other_numbers) = left_by(one), left_by(other)
    assert sorted(model) == sorted(other_model)
    for name, tensor in model.items():
        np.testing.assert_allclose(tensor, other_model[name], rtol=1e-6, atol=1e-6)  # what is promised
        assert np.array_equal(tensor, other_model[name])  # what holds
    assert numbers == other_numbers


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job in the local engine, in this process."""
    folder = tmp_path_factory.mktemp("engines")
    simulate(auc_job(folder, "first", init_from="", init_head="keep", seed=7))
    return simulate(auc_job(folder, "local-1", workers=1)).folder


@pytest.mark.slow
def test_two_workers(reference: Path) -> None:
    simulate(auc_job(reference.parent, "local-2", workers=2))
    assert_same_bits(reference, reference.parent / "local-2")


NODES = """
import ray, ray._private.state as state
ray.init(log_to_driver=False)
print(*(actor["Address"]["NodeID"] for actor in state.actors().values() if actor["ActorClassName"] == "ClientAppActor"))
"""


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_runs_on: None) -> Iterator[None]:
    """A Ray cluster of two nodes, for a client at a time each; RAY_ADDRESS names it."""
    # Ray notes there that it runs, and who finds the note joins; a socket's path has at most 107 characters.
    own = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
    monkeypatch.setenv("RAY_TMPDIR", own.name)
    address = f"127.0.0.1:{free_port()}"
    head = ["--head", f"--port={address.rpartition(':')[2]}", "--include-dashboard=false"]
    with own, ExitStack() as stack:
        for where in (head, [f"--address={address}"]):
            command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
            options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            node = started([*command, "--num-cpus=1", *where], os.environ | {"FLWR_HOME": str(tmp_path)}, **options)
            log = stack.enter_context(node).stdout
            assert log is not None
            assert any("Ray runtime started" in line for line in iter(log.readline, "")), "it did not start"
        monkeypatch.setenv("RAY_ADDRESS", address)
        yield


@pytest.mark.deployments
@pytest.mark.usefixtures("two_nodes")
def test_the_flower_simulation_on_two_nodes_of_ray_changes_images_and_feeds_rounding_errors_back_alike(
    tmp_path: Path,
) -> None:
    both: dict[str, Value] = {"augment-flip": True, "augment-rotate": 20.0, "augment-brightness": 0.3}
    both |= {"dataset": "digits", "init-from": "", "init-head": "keep"}
    both |= {"wire": "bf16", "wire-estimators": "int8", "rounds": 4}
    reference = simulate(auc_job(tmp_path, "local", workers=1) | both).folder
    job = auc_job(tmp_path, "nodes", state_dir=str(tmp_path / "state")) | both
    outcome = processes.simulate(tmp_path, job, SITES)
    assert outcome.ok, outcome.log
    assert_same_bits(reference, tmp_path / "nodes")
    asked = subprocess.run([sys.executable, "-c", NODES], capture_output=True, text=True, timeout=600, check=True)
    assert len(set(asked.stdout.split())) == 2, "a client was started on each node"


@pytest.mark.deployments
@pytest.mark.usefixtures("nothing_runs_on")
def test_the_local_engine_inside_flwr_run(reference: Path, tmp_path: Path) -> None:
    outcome = processes.simulate(tmp_path, auc_job(reference.parent, "inside", engine="local", workers=2), SITES)
    assert outcome.ok, outcome.log
    assert_same_bits(reference, reference.parent / "inside")


@pytest.fixture(scope="module")
def private(reference: Path) -> dict[str, Value]:
    """What makes the job a private one, which the local engine has run, too.

    Sites with equal secrets, as simulated ones have, give equal answers: samples, noise and what they remember. FGDA
    asks for differences of gradients and remembers the point before.
    """
    keys: dict[str, Value] = {"dp.epsilon": 8.0, "dp.delta": 1e-3, "init-from": "", "init-head": "keep"}
    keys["algorithm"] = "fgda"
    simulate(auc_job(reference.parent, "private-1", workers=1) | keys)
    return keys


@pytest.mark.deployments  # among which alone each has the randomness of this release
def test_noise_of_two_workers(reference: Path, private: dict[str, Value]) -> None:
    simulate(auc_job(reference.parent, "private-2", workers=2) | private)
    assert_same_bits(reference.parent / "private-1", reference.parent / "private-2")


@pytest.mark.deployments
@pytest.mark.usefixtures("nothing_runs_on")
def test_noise_in_the_flower_simulation(reference: Path, private: dict[str, Value], tmp_path: Path) -> None:
    outcome = processes.simulate(tmp_path, auc_job(reference.parent, "private-simulation") | private, SITES)
    assert outcome.ok, outcome.log
    assert_same_bits(reference.parent / "private-1", reference.parent / "private-simulation")


@pytest.mark.deployments
@pytest.mark.usefixtures("nothing_runs_on")
def test_a_flower_deployment_and_its_noise(reference: Path, private: dict[str, Value], tmp_path: Path) -> None:
    """At two sites of our own process, and a third that is Flower's SuperNode."""
    nodes: list[dict[str, Value]] = [{"partition-id": k, "num-partitions": SITES} for k in (2, 0, 1)]
    for k, node in enumerate(nodes):
        node["state-dir"] = str(tmp_path / f"state-{k}")
    with processes.deployment(tmp_path, nodes, supernodes=[2]) as federation:
        for name, keys in (("deployment", {}), ("private-deployment", private)):
            outcome = federation.submit(auc_job(reference.parent, name) | keys)
            assert outcome.ok, outcome.log
    assert_same_bits(reference, reference.parent / "deployment")
    assert_same_bits(reference.parent / "private-1", reference.parent / "private-deployment")
    # A site forgets a run at its end.
    assert [path for k in range(SITES) for path in (tmp_path / f"state-{k}").rglob("*.safetensors")] == []


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_the_saddle_problem_as_numpy_has_it(tmp_path: Path, saddle_file: Path, workers: int) -> None:
    keys: dict[str, Value] = {"sites": SITES, "saddle.file": str(saddle_file), "rounds": 30, "workers": workers}
    result = simulate(saddle_job(tmp_path, **keys))
    with np.load(saddle_file) as loaded:
        t, b = loaded["t"], loaded["b"]
    x, y = np.random.default_rng([0, 0]).standard_normal((2, b.shape[1]))
    y_star = b.mean(0) * 10 / (10 + t.mean() ** 2)
    x_star = t.mean() * y_star / 10
    for record in result.metrics:
        ends = []
        for k in range(SITES):
            xk, yk = x, y
            for _ in range(2):
                gx, gy = 10 * xk - t[k] * yk, b[k] - yk - t[k] * xk
                xk, yk = xk - 0.02 * gx, yk + 0.02 * gy
            ends.append((xk, yk))
        x, y = np.mean(ends, axis=0)
        assert record["distance-x"] == pytest.approx(((x - x_star) ** 2).sum(), rel=1e-4)
        assert record["distance-y"] == pytest.approx(((y - y_star) ** 2).sum(), rel=1e-4)
    np.testing.assert_allclose(result.arrays["x"], x, atol=1e-6)
    np.testing.assert_allclose(result.arrays["y"], y, atol=1e-6)


def test_answers_that_come_in_another_order_give_the_same_bits(
    tmp_path: Path, saddle_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one first, held back until all are there: the sum must not notice."""
    from edelweiss.server_app.local import LocalGrid

    def job(name: str) -> dict[str, Value]:
        return saddle_job(tmp_path, sites=SITES, rounds=10, run_name=name, **{"saddle.file": str(saddle_file)})

    expected = simulate(job("in-order"))
    pull = LocalGrid.pull_messages

    def all_reversed(grid: LocalGrid, identifiers: Any) -> list[Any]:
        answers = []
        while len(answers) < len(identifiers):
            answers += pull(grid, identifiers)
        return answers[::-1]

    monkeypatch.setattr(LocalGrid, "pull_messages", all_reversed)
    result = simulate(job("reversed"))
    assert all(np.array_equal(result.arrays[name], vector) for name, vector in expected.arrays.items())
