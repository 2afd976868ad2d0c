"""Where the time of a gradient goes, in the local engine and in a bare PyTorch loop.

    EDELWEISS_DATA=folder/with/mnist python -m benchmarks.step_profile      # about seven minutes

The job and the bare loop, with images channels-last, are those of `benchmarks.gradients`. PyTorch's profiler says what
each operation takes without those that it calls, and each is of one kind: ``network`` (convolutions, products, pooling,
what is clipped in between, sums for the biases), ``copies`` (also what is gathered, put together or filled), or
``vectors``: all other arithmetic, of the loss and of the algorithm. The whole is by the clock, of the same rounds, and
longer than without the profiler; ``rest`` is what the three do not explain of it: Python, PyTorch's own bookkeeping,
messages, the profiler.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.gradients import SITES, STEPS, Bare, local, ready

if TYPE_CHECKING:
    from collections.abc import Callable

WHOLE, GRADIENTS = "whole, ms", "gradients"
ALGORITHMS = ("fedavg", "codasca", "fmgda", "fcsg")
KINDS = {
    "network": re.compile(r"conv|pool|mm$|linear|relu$|threshold_backward$|clamp_min$|sum$"),
    "copies": re.compile(r"copy|cat$|stack$|fill_$|zero_$|index|clone|contiguous"),
    "": re.compile(
        r"empty|view|stride|^_?t$|^to$|select|slice|expand|detach|alias|squeeze|reshape|resize|flatten|split"
        r"|transpose|unbind|narrow|resolve|lift|result_type|item|_local_scalar"
    ),
    "vectors": re.compile(""),
}
"""What the name of an operation has in it; the first that fits. Those without a name move no number."""


def kind(operation: str) -> str:
    """Return what an operation counts as."""
    space, _, name = operation.partition("::")
    return next(found for found, pattern in KINDS.items() if pattern.search(name)) if space == "aten" else ""


def spent(work: Callable[[], tuple[float, float]]) -> Counter[str]:
    """Return the milliseconds of each kind of operation, and of the whole; and how many gradients they are of."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as seen:
        seconds, gradients = work()
    found = Counter({WHOLE: 1e3 * seconds, GRADIENTS: gradients})
    for one in seen.key_averages():
        found[kind(one.key)] += one.self_cpu_time_total / 1e3
    return found


def once(loop: Bare) -> tuple[float, float]:
    """Do a round of a bare loop; return its seconds and gradients."""
    gradients = SITES * STEPS
    return loop() * gradients, gradients


def row(what: str, repeats: list[Counter[str]]) -> str:
    """Return a line of the table, of milliseconds for a gradient."""
    each = [{name: ms / one[GRADIENTS] for name, ms in one.items()} for one in repeats]
    whole, *parts = (statistics.median(one[name] for one in each) for name in (WHOLE, *filter(None, KINDS)))
    return f"| {what} | {' | '.join(f'{ms:.2f}' for ms in (whole, *parts, whole - sum(parts)))} |"


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=ALGORITHMS, help="algorithms; default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="of each, for the medians; default: %(default)s")
    options = parser.parse_args()
    problems = ready(parser, options.names)
    print(f"| | {WHOLE} | {' | '.join(filter(None, KINDS))} | rest |\n| --- |" + 5 * " ---: |")
    few, many = 2, 5  # rounds: what a run does once is in both
    for problem in dict.fromkeys(problems.values()):
        loop, names = Bare(problem, channels_last=True), [name for name in problems if problems[name] == problem]
        found: dict[str, list[Counter[str]]] = {name: [] for name in ("", *names)}
        loop(), local(names[0], problem, few)  # warm
        for _ in range(options.repeats):  # in turn, so that a drift of the machine's speed is in all of them
            found[""].append(spent(partial(once, loop)))
            for name in names:
                less, more = (spent(partial(local, name, problem, rounds)) for rounds in (few, many))
                more.subtract(less)
                found[name].append(more)
        for name, repeats in found.items():
            print(row(f"`{name}`" if name else f"bare loop, `{problem}`", repeats), flush=True)


if __name__ == "__main__":
    main()
