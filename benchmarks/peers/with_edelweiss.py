"""The job in Edelweiss's local engine, with two processes."""

from __future__ import annotations

import os
import tempfile
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

import edelweiss as ew
from benchmarks.peers.job import (
    BATCH,
    MU,
    SERVER_LR,
    STEPS,
    TAU,
    WIDTHS,
    Clock,
    Job,
    Layers,
    Trained,
    answer,
    mnist,
)
from edelweiss.federation import DivergedError
from edelweiss.server_app.console import Progress

if TYPE_CHECKING:
    from edelweiss.server_app.recorder import Record

OWN: dict[str, dict[str, float]] = {
    "fedprox": {"fedprox.mu": MU},
    "fedadam": {"fedadam.server-lr": SERVER_LR, "fedadam.tau": TAU},
    "scaffold": {},
}


class Ends(Progress):
    """Hears of every round."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(quiet=True)
        self._clock = clock

    def round(self, record: Record, rounds: int) -> None:
        """Note that it has ended."""
        self._clock()


def train(job: Job, clock: Clock, stack: int) -> Trained:
    """Run it. The last round does not count: its line waits for the evaluation at the end."""
    config: dict[str, Any] = {
        "algorithm": job.algorithm,
        "problem": "cross-entropy",
        "thin-share": 0.0,
        "holdout-share": 0.0,
        "test-share": 0.0,
        "model": job.model,
        "hidden": 64,
        "rounds": job.rounds,
        "local-steps": STEPS,
        "batch-size": BATCH,
        f"{job.algorithm}.lr": job.lr,
        "engine": "local",
        "workers": job.cores,
        "stack": stack,
        "seed": job.seed,
        "device": "cpu",
        "evaluate-every": 0,
        "central-test": False,
        "checkpoint-every": 0,
        "report": False,
    }
    if job.alike:
        config |= {"sites": job.clients, "partition": "iid", "data-root": os.environ["EDELWEISS_DATA"]}
        data: Any = "mnist"
    else:
        inputs, labels = mnist()
        config |= OWN[job.algorithm] | {"standardise": False}
        data = [(inputs[rows], labels[rows]) for rows in map(job.rows, range(job.clients))]
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = ew.simulate(config | {"runs-dir": folder}, data=data, progress=Ends(clock))
        except DivergedError:
            return Trained([], STEPS)
        arrays, gradients = run.arrays, [record["gradients"] for record in run.metrics]
    clock.ended.pop()
    steps = sum(gradients) / len(gradients) / job.clients
    return Trained(_layers(job.model, arrays["x"]), steps)


def _layers(model: str, x: np.ndarray) -> Layers:
    layers: Layers = []
    for inputs, outputs in pairwise(WIDTHS[model]):
        weight, bias, x = np.split(x, [outputs * inputs, outputs * inputs + outputs])
        layers.append((weight.reshape(outputs, inputs), bias))
    return layers


if __name__ == "__main__":
    answer(train, ("torch", "numpy"), stack={"type": int, "default": 0})
