"""FedProx, FedAdam and SCAFFOLD beside those of Flower and pfl; into docs/results/peers-baselines.md.

    EDELWEISS_DATA=folder/with/mnist python -m benchmarks.peers.baselines --python pfl=PYTHON

Each run is a process of its own and trains clients with one thread in one process. The runs of one seed are done one
after the other, so that a drift of the machine's speed meets all alike. The data are split in `benchmarks.peers.job`.
What has been run is in runs/peers-baselines.jsonl, and is not run again.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from benchmarks.defaults import note, read
from benchmarks.pages import insert
from benchmarks.peers.__main__ import REPO, Answer, Engine, installed, measured, seconds, versions
from benchmarks.peers.job import BATCH, MU, SERVER_LR, STEPS, TAU

PAGE = REPO / "docs" / "results" / "peers-baselines.md"
KEPT = REPO / "runs" / "peers-baselines.jsonl"
CLIENTS = 20

Found = dict[tuple[float, str], dict[Engine, list[Answer]]]
"""What each engine answered, by step size and method."""


def row(algorithm: str, title: str, peer: str, package: str, *options: str) -> Engine:
    """Return a line of the table."""
    return Engine(title, peer, package, ("--algorithm", algorithm, *options))


METHODS = {
    "FedProx": (
        row("fedprox", "Edelweiss", "edelweiss", "flwr"),
        row("fedprox", "Flower", "flower", "flwr"),
        row("fedprox", "pfl", "pfl", "pfl"),
    ),
    "FedAdam": (
        row("fedadam", "Edelweiss", "edelweiss", "flwr"),
        row("fedadam", "Flower", "flower", "flwr"),
    ),
    "SCAFFOLD": (
        row("scaffold", "Edelweiss", "edelweiss", "flwr"),
        row("scaffold", "pfl, as it is", "pfl", "pfl"),
        row("scaffold", "pfl, with the sign of its control variates turned", "pfl", "pfl", "--mended"),
    ),
}


def table(found: Found) -> str:
    """Return a line for each step size, method and engine."""
    lines = [
        "| step size | | | test accuracy | of each seed | training loss | s / round | × Edelweiss |",
        "| ---: | --- | --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for (lr, method), each in found.items():
        first = seconds(next(iter(each.values())))
        for engine, answers in each.items():
            ended = [answer for answer in answers if not answer["diverged"]]
            accuracy, loss = (spread([answer[what] for answer in ended]) for what in ("accuracy", "loss"))
            seeds = ", ".join("diverged" if one["diverged"] else f"{one['accuracy']:.3f}" for one in answers)
            took = seconds(answers)
            cells = (f"{lr:g}", method, engine.title, accuracy, seeds, loss, f"{took:.3f}", f"{took / first:.1f}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    """Return mean ± standard deviation over the seeds that did not diverge."""
    if not values:
        return "–"
    return f"{statistics.fmean(values):.3f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PYTHON", help="a peer's interpreter")
    parser.add_argument("--lr", nargs="+", type=float, default=[0.03], help="step sizes at the clients")
    parser.add_argument("--rounds", type=int, default=30, help="3 or more")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table goes")
    options = parser.parse_args(arguments)
    pythons = dict(one.partition("=")[::2] for one in options.python)
    if options.rounds < 3:
        parser.error(f"--rounds {options.rounds}: neither the first nor our last has seconds; take 3 or more")
    if not os.environ.get("EDELWEISS_DATA"):
        parser.error("EDELWEISS_DATA is not set: it names the folder that holds mnist/")
    python = {engine: pythons.get(engine.peer, sys.executable) for each in METHODS.values() for engine in each}
    present = [engine for engine in python if installed(engine, python[engine])]
    done = {tuple(one["job"]): one["answer"] for one in read(KEPT)}
    found: Found = {cell: {} for cell in product(options.lr, METHODS)}
    for seed, (lr, method) in product(range(options.seeds), found):
        for engine in METHODS[method]:
            if engine not in present:
                continue
            own = (*engine.options, "--seed", str(seed), "--lr", str(lr))
            if (job := (engine.peer, str(options.rounds), *own)) not in done:
                done[job] = measured(replace(engine, options=own), python[engine], "mlp", CLIENTS, options.rounds)
                note(KEPT, {"job": job, "answer": done[job]})
            found[lr, method].setdefault(engine, []).append(done[job])
    every = {engine: answers for each in found.values() for engine, answers in each.items()}
    text = (
        f"{options.rounds} rounds of {STEPS} steps of {BATCH} samples; {CLIENTS} clients; FedProx's μ {MU}; FedAdam's "
        f"server step {SERVER_LR}, τ {TAU}, β 0.9 and 0.99. Mean ± standard deviation over the seeds that did not "
        f"diverge, of {options.seeds}; seconds are the median over all rounds but the first.\n\n"
        f"{table(found)}\n\nVersions:\n\n{versions(every)}\n"
    )
    print(text)
    insert(options.page, "baselines", "Baselines beside Flower's and pfl's", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
