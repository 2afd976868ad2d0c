"""Thousands of clients in the local engine: trained side by side, and one after the other; seconds per round.

    EDELWEISS_DATA=folder/with/mnist python -m benchmarks.clients                # everything, about 15 minutes
    EDELWEISS_DATA=folder/with/mnist python -m benchmarks.clients linear mlp     # only these
    EDELWEISS_DATA=folder/with/mnist python -m benchmarks.clients --device cuda --sites 100 linear mlp mlp-wide

``linear``, ``mlp`` and ``mlp-wide``: MNIST split evenly across 1,000 clients, 10 steps of 16 samples, `FedAvg` on
cross-entropy, d = 7,850, 55,050 and 99,670. ``sampled``: 10,000 clients, of whom 100 take part in a round. Beside these
stands the bare arithmetic, in one process: the same gradients of as many clients, side by side, and their steps, on
batches that lie ready. ``lenet5``: 200 clients of a small network with convolutions; ``cnn``: 32 of a larger one, for a
GPU. ``invariant``: FCSG on invariant logistic regression, 64 clients, 50 steps, as local steps per second.

Each line is a process of its own, run in turn, ``--repeats`` times over; the figure is the median over all rounds but
the first of each. Nothing is evaluated in the timed part.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

MNIST: dict[str, Any] = {
    "algorithm": "fedavg",
    "problem": "cross-entropy",
    "dataset": "mnist",
    "partition": "iid",
    "thin-share": 0.0,
    "holdout-share": 0.0,
    "batch-size": 16,
    "local-steps": 10,
}
INVARIANT = {"algorithm": "fcsg", "problem": "invariant-logistic", "sites": 64, "batch-size": 1, "local-steps": 50}
JOBS: dict[str, dict[str, Any]] = {
    "linear": MNIST | {"model": "linear"},
    "mlp": MNIST | {"model": "mlp", "hidden": 64},
    "mlp-wide": MNIST | {"model": "mlp", "hidden": 110},
    "lenet5": MNIST | {"model": "lenet5", "sites": 200},
    "cnn": MNIST | {"model": "cnn-mnist", "sites": 32},
    "sampled": MNIST | {"model": "linear", "sites": 10_000, "fraction": 0.01, "batch-size": 6},
    "invariant": INVARIANT,
}
UNTIMED = {"engine": "local", "evaluate-every": 0, "central-test": False, "checkpoint-every": 0, "report": False}
STACKS = {"one by one": 1, "side by side": 0}
ARITHMETIC = "arithmetic"


def seconds(job: dict[str, Any], rounds: int) -> list[float]:
    """Play a job; return the seconds of each round but the first."""
    from edelweiss.server_app import simulate

    with tempfile.TemporaryDirectory() as folder:
        result = simulate(job | UNTIMED | {"rounds": rounds + 1, "runs-dir": folder})
    return [record["seconds"] for record in result.metrics[1:]]


def arithmetic(job: dict[str, Any], rounds: int) -> list[float]:
    """Take the steps of a round's clients side by side on batches that lie ready; return the seconds of each round."""
    import torch

    from edelweiss.common.memory import keep_freed_memory
    from edelweiss.config import RunConfig
    from edelweiss.datasets import DataSummary
    from edelweiss.problems.stacked import Stacked
    from edelweiss.server_app.memory_estimate import MOST

    keep_freed_memory()
    torch.set_num_threads(1)
    config = RunConfig.parse(job | {"engine": "local"})
    problem = config.build_problem(config.setting(DataSummary(shape=(1, 28, 28), classes=10), config.device))
    clients, steps = round(config.sites * config.strategy.fraction), config.strategy.local_steps
    stack = min(clients, MOST[problem.device.type])
    inputs = torch.randn(stack, config.batch_size, 1, 28, 28, device=problem.device)
    labels = torch.randint(0, 10, inputs.shape[:2], device=problem.device)
    many, start, found = Stacked(problem), problem.initial()["x"], []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        for first in range(0, clients, stack):
            x, part = start.repeat(min(stack, clients - first), 1), slice(clients - first)
            for _ in range(steps):
                gx, _ = many.gradient(x, None, (inputs[part], labels[part]))
                x.sub_(gx, alpha=0.1)
            x.mean(0).cpu()
        found.append(time.perf_counter() - began)
    return found[1:]


def measured(name: str, variant: str, options: argparse.Namespace) -> list[float]:
    """Measure a line in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.clients", name, "--only", variant, "--rounds", str(options.rounds)]
    words += ["--device", options.device, "--workers", str(options.workers), "--sites", str(options.sites)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def rows(name: str, options: argparse.Namespace) -> list[str]:
    """Measure a job in all its variants, in turn; return the lines of the table."""
    variants = [*STACKS] if name in ("invariant", "lenet5") else [*STACKS, ARITHMETIC]
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    for _ in range(options.repeats):
        for variant in variants:
            times[variant] += measured(name, variant, options)
    medians = {variant: statistics.median(found) for variant, found in times.items()}
    job = job_of(name, options)
    clients = round(job["sites"] * job.get("fraction", 1.0))
    return [
        f"| {name} | {variant} | {1e3 * median:,.1f} | {1e3 * median / clients:.3f} | "
        f"{clients * job['local-steps'] / median:,.0f} | {medians['one by one'] / median:.2f} |"
        for variant, median in medians.items()
    ]


def job_of(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the run-config of a line."""
    own = {"device": options.device, "workers": options.workers}
    return {"sites": options.sites} | JOBS[name] | own


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", choices=[*JOBS, []], help="default: all but cnn")
    parser.add_argument("--sites", type=int, default=1000, help="clients of the first three")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5, help="timed ones of each repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=[*STACKS, ARITHMETIC], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        job = job_of(options.jobs[0], options)
        if options.only == ARITHMETIC:
            print(json.dumps(arithmetic(job, options.rounds)))
        else:
            print(json.dumps(seconds(job | {"stack": STACKS[options.only]}, options.rounds)))
        return
    print("| job | clients | ms / round | ms / client | local steps / s | ratio to one by one |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for name in options.jobs or [job for job in JOBS if job != "cnn"]:
        print("\n".join(rows(name, options)), flush=True)


if __name__ == "__main__":
    main()
