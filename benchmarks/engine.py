"""Seconds per round of the engines beside a bare PyTorch loop, all in one run on one machine.

    EDELWEISS_DATA=folder/with/mnist python benchmarks/engine.py            # everything, about 15 minutes
    EDELWEISS_DATA=folder/with/mnist python benchmarks/engine.py floor-2p local-2   # only these

The job: MNIST split evenly across 16 sites, label = digit ≥ 5, 20 steps of batch 50, bce, lr 0.01, `cnn-mnist`, FedAvg,
no evaluation in the timed part. The bare loop does the same work with `torch.optim.SGD` and an average; in two
processes of one thread it is the floor: a loop over sites can hardly be quicker on two cores.

Every line is a process of its own (so that its peak memory is its own), run in turn, several times over; the figure is
the median over all rounds but the first of each. All get the same allocator settings.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

SITES, STEPS, BATCH, LR = 16, 20, 50, 0.01
JOB: dict[str, Any] = {
    "algorithm": "fedavg",
    "problem": "bce",
    "dataset": "mnist",
    "partition": "iid",
    "thin-share": 0.0,
    "holdout-share": 0.0,
    "model": "cnn-mnist",
    "sites": SITES,
    "local-steps": STEPS,
    "batch-size": BATCH,
    "fedavg.lr": LR,
    "evaluate-every": 0,
    "central-test": False,
    "checkpoint-every": 0,
}
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}


# ---------------------------------------------------------------------- one measured process


def bare(processes: int, threads: int, rounds: int) -> list[float]:
    """Run the bare loop; returns seconds per round."""
    import torch
    import torch.multiprocessing as multiprocessing

    torch.set_num_threads(threads)
    inputs, labels, parts = _mnist()
    shared = [torch.zeros(0) for _ in range(processes)]
    if processes == 1:
        return _bare_rounds(inputs, labels, parts, rounds, shared, 0, None)
    from edelweiss import models

    size = sum(p.numel() for p in models.build("cnn-mnist", (1, 28, 28)).parameters())
    shared = [torch.zeros(size).share_memory_() for _ in range(processes)]
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(processes)
    others = [
        context.Process(target=_bare_rounds, args=(inputs, labels, parts, rounds, shared, i, barrier))
        for i in range(1, processes)
    ]
    for other in others:
        other.start()
    seconds = _bare_rounds(inputs, labels, parts, rounds, shared, 0, barrier)
    for other in others:
        other.join()
    return seconds


def _mnist() -> tuple[Any, Any, list[Any]]:
    """Return the training images as float32, the labels, and the rows of each site."""
    import torch

    from edelweiss.config import RunConfig
    from edelweiss.datasets import load_site

    config = RunConfig.parse(JOB | {"data-root": os.environ["EDELWEISS_DATA"]}).data()
    sites = [load_site(config, site, SITES).train for site in range(SITES)]
    inputs = sites[0].inputs.float().sub_(33.3).div_(78.6)
    return inputs, sites[0].labels.to(torch.float32), [site.rows for site in sites]


def _bare_rounds(
    inputs: Any, labels: Any, parts: list[Any], rounds: int, shared: list[Any], rank: int, barrier: Any
) -> list[float]:
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    from edelweiss import models

    torch.set_num_threads(torch.get_num_threads() if barrier is None else 1)
    torch.manual_seed(0)
    model = models.build("cnn-mnist", (1, 28, 28))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    x = parameters_to_vector(model.parameters()).detach().clone()
    seconds = []
    for _ in range(rounds):
        if barrier:
            barrier.wait()
        started = time.perf_counter()
        total = torch.zeros_like(x)
        for rows in parts[rank :: len(shared)]:
            vector_to_parameters(x.clone(), model.parameters())
            order = rows[torch.randperm(len(rows))]
            for step in range(STEPS):
                batch = order[step * BATCH : (step + 1) * BATCH]
                optimizer.zero_grad()
                loss = binary_cross_entropy_with_logits(model(inputs[batch]).squeeze(1), labels[batch])
                loss.backward()
                optimizer.step()
            total += parameters_to_vector(model.parameters()).detach()
        if barrier:
            shared[rank].copy_(total)
            barrier.wait()
            total = sum(shared)  # type: ignore[assignment]
        x = total / SITES
        seconds.append(time.perf_counter() - started)
    return seconds


def local(workers: int, rounds: int, **changes: Any) -> list[float]:
    """Run the local engine; returns seconds per round."""
    from edelweiss.server_app import simulate

    with tempfile.TemporaryDirectory() as folder:
        job = JOB | {"data-root": os.environ["EDELWEISS_DATA"], "runs-dir": folder, "rounds": rounds}
        result = simulate(job | {"engine": "local", "workers": workers} | changes)
    return [record["seconds"] for record in result.metrics]


def simulation(rounds: int) -> list[float]:
    """Run Flower's simulation, one CPU per client, through `flwr run`; returns seconds per round."""
    with tempfile.TemporaryDirectory() as folder:
        job = JOB | {"data-root": os.environ["EDELWEISS_DATA"], "runs-dir": folder, "rounds": rounds}
        keys = " ".join(f"{key}={json.dumps(value)}" for key, value in job.items())
        command = [sys.executable, str(REPO / "bin" / "run.py"), "--run-config", keys]
        subprocess.run(command, check=True, stdout=sys.stderr)
        (metrics,) = Path(folder).glob("*/metrics.jsonl")
        return [json.loads(line)["seconds"] for line in metrics.read_text().splitlines()]


MEASURES = {
    "floor-1p": lambda rounds: bare(1, 1, rounds),
    "floor-1p-2t": lambda rounds: bare(1, 2, rounds),
    "floor-2p": lambda rounds: bare(2, 1, rounds),
    "local-1": lambda rounds: local(1, rounds),
    "local-2": lambda rounds: local(2, rounds),
    "simulation": simulation,
    "local-2-256-sites": lambda rounds: local(2, rounds, sites=256),
}
TITLES = {
    "floor-1p": "bare loop, 1 process, 1 thread",
    "floor-1p-2t": "bare loop, 1 process, 2 threads",
    "floor-2p": "bare loop, 2 processes, 1 thread: the floor",
    "local-1": "local, 1 worker",
    "local-2": "local, 2 workers",
    "simulation": "Flower simulation, 1 CPU per client",
    "local-2-256-sites": "local, 2 workers, 256 sites",
}


# ---------------------------------------------------------------------- the table


def proportional_memory(pid: int) -> int:
    """Return the bytes of memory of a process and all its descendants, pages that they share counted once."""
    total, todo = 0, [pid]
    while todo:
        process = todo.pop()
        try:
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
            for task in Path(f"/proc/{process}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except (OSError, ValueError):  # it has just ended
            continue
    return total


def measured(name: str, rounds: int) -> dict[str, Any]:
    """Run one measure in a process of its own; returns its seconds per round and its peak memory."""
    command = [sys.executable, __file__, "--only", name, "--rounds", str(rounds)]
    started = time.time()
    process = subprocess.Popen(command, env=os.environ | ALLOCATOR, stdout=subprocess.PIPE, text=True)
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.5):
            peak = max(peak, proportional_memory(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    output = process.communicate()[0]
    done.set()
    watcher.join()
    if process.returncode:
        sys.exit(f"{name} failed with exit code {process.returncode}")
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    rounds_took = sum(answer["seconds"])
    return answer | {"peak": peak, "around": time.time() - started - rounds_took}


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*MEASURES, []], help="what to measure; default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=MEASURES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not os.environ.get("EDELWEISS_DATA"):
        sys.exit("EDELWEISS_DATA is not set: it names the folder that holds mnist/")
    if options.only:
        print(json.dumps({"seconds": MEASURES[options.only](options.rounds)}))
        return
    names = options.names or list(MEASURES)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(options.repeats):  # in turn, so that a drift of the machine's speed meets all alike
        for name in names:
            found[name].append(measured(name, options.rounds))
            print(f"{name}: {statistics.median(found[name][-1]['seconds'][1:]):.3f} s", file=sys.stderr)
    medians = {name: statistics.median(s for run in runs for s in run["seconds"][1:]) for name, runs in found.items()}
    floor = medians.get("floor-2p")
    print("| | s / round (median) | × floor | peak memory, MB | start and end, s |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, runs in found.items():
        ratio = f"{medians[name] / floor:.3f}" if floor and "256" not in name else ""
        peak, around = max(run["peak"] for run in runs) / 1e6, statistics.median(run["around"] for run in runs)
        print(f"| {TITLES[name]} | {medians[name]:.3f} | {ratio} | {peak:.0f} | {around:.1f} |")


if __name__ == "__main__":
    main()
