"""FedProx, FedAdam and SCAFFOLD beside those of Flower and pfl; into docs/results/peers-baselines.md.

    EDELWEISS_DATA=folder/with/mnist python -m benchmarks.peers.baselines --python pfl=PYTHON

Each run is a process of its own and trains clients with one thread in one process. The runs of one seed are done one
after the other, so that a drift of the machine's speed meets all alike. The data are split in `benchmarks.peers.job`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.pages import insert
from benchmarks.peers.__main__ import REPO, Answer, Engine, installed, measured, seconds, versions
from benchmarks.peers.job import BATCH, LR, MU, SERVER_LR, STEPS, TAU

PAGE = REPO / "docs" / "results" / "peers-baselines.md"
CLIENTS = 20


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


def table(found: dict[str, dict[Engine, list[Answer]]]) -> str:
    """Return a line for each method and engine."""
    lines = [
        "| | | test accuracy | training loss | s / round | × Edelweiss |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for method, each in found.items():
        first = seconds(next(iter(each.values())))
        for engine, answers in each.items():
            accuracy, loss = (spread([answer[what] for answer in answers]) for what in ("accuracy", "loss"))
            took = seconds(answers)
            lines.append(f"| {method} | {engine.title} | {accuracy} | {loss} | {took:.3f} | {took / first:.1f} |")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    """Return mean ± standard deviation over the seeds."""
    return f"{statistics.fmean(values):.3f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PYTHON", help="a peer's interpreter")
    parser.add_argument("--rounds", type=int, default=30, help="3 or more")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table goes")
    options = parser.parse_args(arguments)
    pythons = dict(one.partition("=")[::2] for one in options.python)
    if options.rounds < 3:
        parser.error(f"--rounds {options.rounds}: neither the first nor our last has seconds; take 3 or more")
    if not os.environ.get("EDELWEISS_DATA"):
        parser.error("EDELWEISS_DATA is not set: it names the folder that holds mnist/")
    found: dict[str, dict[Engine, list[Answer]]] = {method: {} for method in METHODS}
    for seed in range(options.seeds):
        for method, engines in METHODS.items():
            for engine in engines:
                python = pythons.get(engine.peer, sys.executable)
                if not installed(engine, python):
                    continue
                run = Engine(engine.title, engine.peer, engine.package, (*engine.options, "--seed", str(seed)))
                answer = measured(run, python, "mlp", CLIENTS, options.rounds)
                found[method].setdefault(engine, []).append(answer)
                print(f"{method}, seed {seed}, {engine.title}: {answer['accuracy']:.3f}", file=sys.stderr)
    every = {engine: answers for each in found.values() for engine, answers in each.items()}
    text = (
        f"{options.rounds} rounds of {STEPS} steps of {BATCH} samples, step size {LR}; {CLIENTS} clients; FedProx's μ "
        f"{MU}; FedAdam's server step {SERVER_LR}, τ {TAU}, β 0.9 and 0.99. Mean ± standard deviation over "
        f"{options.seeds} seeds; seconds are the median over all rounds but the first.\n\n"
        f"{table(found)}\n\nVersions:\n\n{versions(every)}\n"
    )
    print(text)
    insert(options.page, "baselines", "Baselines beside Flower's and pfl's", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
