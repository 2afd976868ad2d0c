"""The job in Edelweiss's local engine, with two processes."""

from __future__ import annotations

import os
import tempfile
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.peers.job import BATCH, LR, STEPS, WIDTHS, Clock, Job, Layers, Trained, answer
from edelweiss.server_app import simulate
from edelweiss.server_app.console import Progress

if TYPE_CHECKING:
    from edelweiss.server_app.recorder import Record


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
    config = {
        "algorithm": "fedavg",
        "problem": "cross-entropy",
        "dataset": "mnist",
        "data-root": os.environ["EDELWEISS_DATA"],
        "partition": "iid",
        "thin-share": 0.0,
        "holdout-share": 0.0,
        "model": job.model,
        "hidden": 64,
        "sites": job.clients,
        "rounds": job.rounds,
        "local-steps": STEPS,
        "batch-size": BATCH,
        "fedavg.lr": LR,
        "engine": "local",
        "workers": 2,
        "stack": stack,
        "device": "cpu",
        "evaluate-every": 0,
        "central-test": False,
        "checkpoint-every": 0,
        "report": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        result = simulate(config | {"runs-dir": folder}, progress=Ends(clock))
    clock.ended.pop()
    steps = sum(record["gradients"] for record in result.metrics) / len(result.metrics) / job.clients
    return Trained(_layers(job.model, result.arrays["x"]), steps)


def _layers(model: str, x: np.ndarray) -> Layers:
    layers: Layers = []
    for inputs, outputs in pairwise(WIDTHS[model]):
        weight, bias, x = np.split(x, [outputs * inputs, outputs * inputs + outputs])
        layers.append((weight.reshape(outputs, inputs), bias))
    return layers


if __name__ == "__main__":
    answer(train, ("torch", "numpy"), stack={"type": int, "default": 0})
