"""Seconds per round of the local engine beside pfl, FedJAX and Flower's simulation; into docs/results/peers.md.

    EDELWEISS_DATA=folder/with/mnist python -m benchmarks.peers --python pfl=PYTHON --python fedjax=PYTHON
    EDELWEISS_DATA=folder/with/mnist python -m benchmarks.peers --clients 100 --models linear    # a part, and no page

The job is in `benchmarks.peers.job`. Each engine does it in a process of its own, which may use two cores, one engine
after the other and all of them again, so that a drift of the machine's speed meets all alike. pfl and FedJAX want other
versions of libraries than Edelweiss does, so each has its own Python. An engine that is not installed is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.pages import insert
from benchmarks.peers.job import BATCH, LR, STEPS, WIDTHS

REPO = Path(__file__).resolve().parents[2]
PAGE = REPO / "docs" / "results" / "peers.md"
CLIENTS = (100, 1000)
CORES = 2
ALIKE = 0.05  # losses that differ by no more are those of the same work
ENVIRONMENT = {
    "PYTHONPATH": str(REPO),  # Ray's processes start elsewhere
    "OMP_NUM_THREADS": "1",  # engines that take two processes need one thread in each
    "CUDA_VISIBLE_DEVICES": "",
    "JAX_PLATFORMS": "cpu",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # of 15, which would leave it behind the others on a busy machine
}

Answer = dict[str, Any]
"""What a script prints: parameters, loss, accuracy, steps, seconds of rounds, versions."""


@dataclass(frozen=True)
class Engine:
    """A row of the table: what does the job, the package that it needs, and the options of its script."""

    title: str
    peer: str
    package: str
    options: tuple[str, ...] = ()


OURS = Engine("Edelweiss, `stack = 0`", "edelweiss", "flwr", ("--stack", "0"))
ENGINES = (
    OURS,
    Engine("Edelweiss, `stack = 1`", "edelweiss", "flwr", ("--stack", "1")),
    Engine("FedJAX", "fedjax", "fedjax"),
    Engine("pfl", "pfl", "pfl"),
    Engine("Flower's simulation", "flower", "flwr"),
)


def installed(engine: Engine, python: str) -> bool:
    """Return whether a Python has what an engine needs."""
    seek = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({engine.package!r}) is None)"
    try:
        return subprocess.run([python, "-c", seek], cwd=REPO, check=False).returncode == 0
    except OSError as error:
        sys.exit(f"--python {engine.peer}={python} cannot be started ({error.strerror}); name a Python interpreter")


def measured(engine: Engine, python: str, model: str, clients: int, rounds: int) -> Answer:
    """Let an engine do the job in a process of its own; return what it prints last."""
    script = [python, "-m", f"benchmarks.peers.with_{engine.peer}", model, str(clients), str(rounds), *engine.options]
    done = subprocess.run(script, cwd=REPO, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(script)} failed with exit code {done.returncode}:\n{done.stderr[-3000:]}")
    answer: Answer = json.loads(done.stdout.splitlines()[-1])
    return answer


def seconds(answers: Sequence[Answer]) -> float:
    """Return the median over all rounds but the first of all repeats."""
    return float(statistics.median(second for answer in answers for second in answer["seconds"]))


def table(found: Mapping[Engine, Sequence[Answer]]) -> str:
    """Return a line for each engine that did a job."""
    lines = [
        "| | s / round | × the first line | steps of a client | training loss | test accuracy |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    first = seconds(next(iter(found.values())))
    for engine, answers in found.items():
        steps, loss, accuracy = (mean(answers, what) for what in ("steps", "loss", "accuracy"))
        took = seconds(answers)
        lines.append(f"| {engine.title} | {took:.3f} | {took / first:.2f} | {steps:g} | {loss:.3f} | {accuracy:.3f} |")
    return "\n".join(lines)


def mean(answers: Sequence[Answer], what: str) -> float:
    """Return the mean over the repeats, without the noise of sums."""
    return round(statistics.fmean(answer[what] for answer in answers), 6)


def unlike(found: Mapping[Engine, Sequence[Answer]]) -> list[str]:
    """Return the engines whose parameters, steps or loss say that they did other work than the first."""
    (_, reference), *others = found.items()
    loss = mean(reference, "loss")
    return [
        engine.title
        for engine, answers in others
        if any(mean(answers, what) != mean(reference, what) for what in ("parameters", "steps"))
        or abs(mean(answers, "loss") - loss) > ALIKE * loss
    ]


def versions(found: Mapping[Engine, Sequence[Answer]]) -> str:
    """Return the versions of each script's packages, a line for each."""
    stated = {engine.peer: answers[0]["versions"] for engine, answers in found.items()}
    return "\n".join(
        f"- `with_{peer}.py`: {', '.join(f'{name} {at}' for name, at in packages.items())}"
        for peer, packages in stated.items()
    )


def text(
    found: Mapping[tuple[str, int], Mapping[Engine, Sequence[Answer]]], rounds: int, repeats: int, absent: Sequence[str]
) -> str:
    """Return the generated part of the page."""
    parts = [
        f"FedAvg, {STEPS} steps of {BATCH} samples, step size {LR}; {repeats} × {rounds} rounds.\n"
        "Seconds are the median without the first rounds; loss and accuracy are those after the last."
    ]
    for (model, clients), each in found.items():
        parameters = next(iter(each.values()))[0]["parameters"]
        parts += [f"**`{model}` ({parameters:,} parameters), {clients:,} clients**", table(each)]
        if others := unlike(each):
            parts.append(f"Not the same work as the first line's: {', '.join(others)}.")
    parts.append(f"Versions:\n\n{versions(next(iter(found.values())))}")
    if absent:
        parts.append(f"Left out, because not installed: {', '.join(absent)}.")
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables, and write the page where everything was measured; 1 where work differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PYTHON", help="a peer's interpreter")
    parser.add_argument("--models", nargs="+", choices=WIDTHS, default=list(WIDTHS))
    parser.add_argument("--clients", nargs="+", type=int, default=list(CLIENTS))
    parser.add_argument("--rounds", type=int, default=6, help="3 or more")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    pythons = dict(one.partition("=")[::2] for one in options.python)
    if unknown := set(pythons) - {engine.peer for engine in ENGINES}:
        peers = dict.fromkeys(engine.peer for engine in ENGINES)
        parser.error(f"--python {min(unknown)}=...: the peers are {', '.join(peers)}")
    if options.rounds < 3:
        parser.error(f"--rounds {options.rounds}: the first does not count, nor our last; take 3 or more")
    if not os.environ.get("EDELWEISS_DATA"):
        parser.error("EDELWEISS_DATA is not set: it names the folder that holds mnist/")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    python = {engine: pythons.get(engine.peer, sys.executable) for engine in ENGINES}
    present = [engine for engine in ENGINES if installed(engine, python[engine])]
    absent = [engine.title for engine in ENGINES if engine not in present]
    for title in absent:
        print(f"{title} is not installed, and left out", file=sys.stderr)
    jobs = list(product(options.models, options.clients))
    found: dict[tuple[str, int], dict[Engine, list[Answer]]] = {job: {one: [] for one in present} for job in jobs}
    for _, (model, clients), engine in product(range(options.repeats), jobs, present):
        answer = measured(engine, python[engine], model, clients, options.rounds)
        found[model, clients][engine].append(answer)
        print(f"{model}, {clients} clients, {engine.title}: {seconds([answer]):.3f} s", file=sys.stderr)
    result = text(found, options.rounds, options.repeats, absent)
    print(result)
    if set(jobs) == set(product(WIDTHS, CLIENTS)):
        insert(PAGE, "peers", "Other simulators", result)
    return any(map(unlike, found.values()))


if __name__ == "__main__":
    sys.exit(main())
