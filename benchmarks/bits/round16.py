#!/usr/bin/env python3
"""Time a round of 16 sites with next to no arithmetic, and `sampled`, 100 of 10,000 sites, beside its arithmetic.

    python benchmarks/bits/round16.py TREE [TREE ...] [--repeats 3] [--no-sampled]

The jobs of benchmarks/rounds.py and benchmarks/clients.py of d33fd43, through whatever `simulate` a tree has; each line
is a process of its own, trees in turn. On a busy machine trust `least` and the CPU time (of the process, per round: what
a run of 210 rounds takes more than one of 10, or 9 rounds and 1), not the median. `arithmetic`: the same gradients of
the 100 clients, side by side, on batches that lie ready, as bare PyTorch (one bmm each way; for all trees the same).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
UNTIMED = {"engine": "local", "device": "cpu", "central-test": False, "evidence": False, "evaluate-every": 0}
UNTIMED |= {"checkpoint-every": 0, "report": False}
FIXED = {
    "problem": "saddle",
    "algorithm": "local-sgda",
    "saddle.dimension": 20,
    "local-steps": 1,
    "sites": 16,
    "workers": 1,
}
SAMPLED = {"algorithm": "fedavg", "problem": "cross-entropy", "dataset": "mnist", "partition": "iid", "thin-share": 0.0}
SAMPLED |= {
    "holdout-share": 0.0,
    "batch-size": 6,
    "local-steps": 10,
    "model": "linear",
    "sites": 10_000,
    "fraction": 0.01,
}
LINES = {
    "round of 16": FIXED,
    "sampled, side by side, 1 worker": SAMPLED | {"workers": 1, "stack": 0},
    "sampled, side by side, 2 workers": SAMPLED | {"workers": 2, "stack": 0},
    "sampled, one by one, 1 worker": SAMPLED | {"workers": 1, "stack": 1},
}


def played(run: Any, job: dict[str, Any], rounds: int) -> tuple[list[float], float]:
    """Seconds of each round, and CPU seconds of the process in all."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        began = time.process_time()
        run(UNTIMED | job | {"rounds": rounds, "runs-dir": folder, "run-name": "r"})
        cpu = time.process_time() - began
        lines = (Path(folder) / "r" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["seconds"] for line in lines], cpu


def measure(root: str, name: str) -> dict[str, float]:
    import hashes

    tree = hashes.Tree(root)
    os.chdir(tree.root)
    if (tree.root / "edelweiss").is_dir():
        run = hashes.simulator(tree)
    else:  # before 0.2
        sys.path.insert(0, str(tree.root))
        run = importlib.import_module("server_app").simulate
    job = LINES[name]
    short, long = (10, 210) if job is FIXED else (1, 9)
    if job is FIXED:
        played(run, job, short)  # warm
    _, before = played(run, job, short)
    seconds, after = played(run, job, long)
    cpu = (after - before) / (long - short) if job["workers"] == 1 else float("nan")
    return {"median": statistics.median(seconds[2:]), "least": min(seconds[2:]), "cpu": cpu}


def arithmetic(rounds: int = 12) -> dict[str, float]:
    """100 clients, 10 steps of 6 samples, 784 x 10, in bare PyTorch."""
    import torch

    torch.set_num_threads(1)
    inputs, labels = torch.randn(100, 6, 784), torch.nn.functional.one_hot(torch.randint(0, 10, (100, 6)), 10).float()
    start, bias, found = torch.zeros(784, 10), torch.zeros(10), []
    began_cpu = time.process_time()
    for _ in range(rounds):
        began = time.perf_counter()
        w, b = start.repeat(100, 1, 1), bias.repeat(100, 1, 1)
        for _ in range(10):
            error = (torch.baddbmm(b, inputs, w).softmax(2) - labels) / 6
            w.baddbmm_(inputs.transpose(1, 2), error, alpha=-0.1)
            b.sub_(error.sum(1, keepdim=True), alpha=0.1)
        start, bias = w.mean(0), b.mean(0).squeeze(0)
        found.append(time.perf_counter() - began)
    cpu = (time.process_time() - began_cpu) / rounds
    return {"median": statistics.median(found[2:]), "least": min(found[2:]), "cpu": cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="+")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-sampled", action="store_true")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    if options.only:
        print(json.dumps(arithmetic() if options.only == "arithmetic" else measure(options.trees[0], options.only)))
        return
    lines = [
        (tree, name) for name in LINES for tree in options.trees if not options.no_sampled or name == "round of 16"
    ]
    lines += [] if options.no_sampled else [("", "arithmetic")]
    found: dict[tuple[str, str], list[dict[str, float]]] = {line: [] for line in lines}
    for _ in range(options.repeats):
        for tree, name in lines:
            command = [sys.executable, __file__, tree or "-", "--only", name]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found[tree, name].append(json.loads(done.stdout.splitlines()[-1]))
    print(f"load {os.getloadavg()[0]:.1f}; ms per round")
    for (tree, name), each in found.items():
        median = statistics.median(one["median"] for one in each)
        least, cpu = min(one["least"] for one in each), min(one["cpu"] for one in each)
        print(f"{name:34} {tree:24} median {1e3 * median:8.2f}  least {1e3 * least:8.2f}  CPU {1e3 * cpu:8.2f}")


if __name__ == "__main__":
    main()
