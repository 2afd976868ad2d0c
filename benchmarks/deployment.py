"""Seconds per round of a deployment with two sites and trivial work: Edelweiss beside Flower alone.

    python -m benchmarks.deployment                  # about four minutes

Both run as real processes over gRPC on this machine: a SuperLink and two SuperNodes. "Flower alone" is the smallest app
there can be: Flower's own FedAvg of twenty numbers, a client that imports torch and answers. Edelweiss plays
`local-sgda` on `saddle` of the same size. A round's time is that between two rounds' ends, at the ServerApp.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from server_app.submission import started  # noqa: E402
from tests.deployment.processes import Federation, deployment  # noqa: E402

SITES = [{"partition-id": 0, "num-partitions": 2}, {"partition-id": 1, "num-partitions": 2}]

ALONE = {
    "pyproject.toml": """
[project]
name = "alone"
version = "1.0.0"
dependencies = []
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.flwr.app]
publisher = "edelweiss"
[tool.flwr.app.components]
serverapp = "alone.server:app"
clientapp = "alone.client:app"
[tool.flwr.app.config]
rounds = 5
""",
    "alone/__init__.py": "",
    "alone/server.py": """
import time

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class Timed(FedAvg):
    def aggregate_train(self, server_round, replies):
        result = super().aggregate_train(server_round, replies)
        print(f"round {server_round} ended at {time.monotonic()}", flush=True)
        return result


@app.main()
def main(grid, context):
    strategy = Timed(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    strategy.start(grid, ArrayRecord([np.zeros(20, np.float32)]), num_rounds=context.run_config["rounds"])
""",
    "alone/client.py": """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    arrays = [torch.tensor(array) for array in message.content["arrays"].to_numpy_ndarrays()]
    reply = {"arrays": ArrayRecord([a.numpy() for a in arrays]), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(reply), reply_to=message)
""",
}


def alone(federation: Federation, rounds: int) -> list[float]:
    """Run the smallest app; returns seconds per round."""
    app = federation.home / "alone"
    for name, text in ALONE.items():
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(text, encoding="utf-8")
    command = ["flwr", "run", str(app), "--stream", "--run-config", f"rounds={rounds}"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with started(command, federation.environment, **options) as flwr:
        log = flwr.stdout.read() if flwr.stdout else ""
    ends = [float(end) for end in re.findall(r"round \d+ ended at ([\d.]+)", log)]
    if len(ends) < rounds:
        sys.exit(f"Flower alone did not end its rounds:\n{log}")
    return [later - earlier for earlier, later in itertools.pairwise(ends)]


def edelweiss(federation: Federation, rounds: int) -> tuple[list[float], list[float]]:
    """Run the same through Edelweiss; returns seconds per round, and those of them spent waiting for the sites."""
    job = {"algorithm": "local-sgda", "problem": "saddle", "sites": 2, "rounds": rounds, "evaluate-every": 0}
    with tempfile.TemporaryDirectory() as folder:
        outcome = federation.submit(job | {"local-steps": 1, "runs-dir": folder})
        if not outcome.ok:
            sys.exit(outcome.log)
        (metrics,) = Path(folder).glob("*/metrics.jsonl")
        records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [r["seconds"] for r in records[1:]], [r["seconds-waiting"] for r in records[1:]]


def main() -> None:
    """Measure both in turn and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    theirs: list[float] = []
    ours: list[float] = []
    waiting: list[float] = []
    with tempfile.TemporaryDirectory() as folder, deployment(Path(folder), SITES) as federation:
        for _ in range(options.repeats):
            theirs += alone(federation, options.rounds)
            seconds, waited = edelweiss(federation, options.rounds)
            ours, waiting = ours + seconds, waiting + waited
    print("| | s / round (median) | of it waiting for the sites |\n| --- | ---: | ---: |")
    print(f"| Flower alone | {statistics.median(theirs):.2f} | |")
    print(f"| Edelweiss | {statistics.median(ours):.2f} | {statistics.median(waiting):.2f} |")


if __name__ == "__main__":
    main()
