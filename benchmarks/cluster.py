"""What experiments would take on a number of devices, from gradients that are timed here.

    python -m benchmarks.cluster --devices 8                       # all of experiments/, on cores like this one
    python -m benchmarks.cluster --devices 8 --device cuda         # on GPUs like this one
    python -m benchmarks.cluster experiments/codasca/*.toml --set 'amp="bf16"'

The network and the problem of each run-config are built, and a gradient is timed on random samples of its shape and
batch size: the median of a few; on a core the processor's time, in one thread. The rest is counted: rounds and their
local steps, the sites that take part, gradients by the algorithm's info. Sites are split evenly across the devices, and
each plays its own one after the other, so that a round lasts as long as the device with most of them. Evaluations,
reading the data, messages and averages come on top; a site's bytes in a round stand beside.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.studies import REPO
from edelweiss.client_app.oracle import SiteOracle, stream
from edelweiss.common import ConfigError, read_overrides
from edelweiss.common.memory import keep_freed_memory
from edelweiss.config import parse_run_config
from edelweiss.datasets import DataSummary, Samples
from edelweiss.federation.algorithm import phases_of
from edelweiss.federation.run_messages import RunMessages
from edelweiss.models import prepare_device, resolve_device
from edelweiss.problems import PROBLEMS

if TYPE_CHECKING:
    from collections.abc import Callable

    from edelweiss.config import RunConfig
    from edelweiss.problems import Arrays, Problem

SHAPES: dict[str, tuple[int, ...]] = {
    "breast-cancer": (30,),
    "heart-disease": (13,),
    "harbox": (900,),
    "cifar10": (3, 32, 32),
    "cifar100": (3, 32, 32),
}
GREY = (1, 28, 28)  # of mnist and all like it
CLASSES = {"cifar100": 100, "harbox": 5, "omniglot": 40}  # 10 of all others; of omniglot a few
DRAWINGS = 20  # of each character
HEADS = ("experiment", "network", "d", "gradients", "ms each", "MB of a site and round", "hours", "hours of {} devices")


@dataclass(frozen=True)
class Work:
    """What a run-config asks of all devices together."""

    d: int  # parameters
    gradients: float  # that all sites take in the run, by the algorithm's `info`
    busiest: float  # those of the device that has the most sites
    bytes: float  # to a site and back, in a round in the middle of a stage

    @classmethod
    def of(cls, config: RunConfig, problem: Problem, start: Arrays, devices: int) -> Work:
        """Count what there is to do for a model."""
        strategy, rounds = config.strategy, range(1, config.rounds + 1)
        begins = [next(iter(phases_of(strategy, r, config.rounds, config.sites))) for r in rounds]
        turns = [
            strategy.context(r, config.rounds, phase, config.sites) for r, phase in zip(rounds, begins, strict=True)
        ]
        each = sum(counted(strategy.info.gradients, q=context.local_steps) for context in turns)
        clients = strategy.clients_per_round(config.sites)
        messages = RunMessages(strategy, start, config.rounds, config.sites, problem, encoding=config.encoding)
        middle = next((r for r, context in zip(rounds, turns, strict=True) if not context.starts_stage), 1)
        places = [messages.context(middle, phase) for phase in phases_of(strategy, middle, config.rounds, config.sites)]
        both = [ways(context)[0] for context in places for ways in (messages.down, messages.up)]
        moved = sum(vector.bytes for shapes in both for vector in shapes.values())
        return cls(messages.d, clients * each, math.ceil(clients / devices) * each, moved)


def counted(cell: str, **numbers: float) -> float:
    """Evaluate a sum such as "2d + p" or "4q - 2"."""
    terms = re.findall(r"([+-]?)\s*(\d*)([a-z]?)", cell)
    return sum(
        (-1 if sign == "-" else 1) * int(factor or 1) * (numbers[letter] if letter else 1)
        for sign, factor, letter in terms
        if factor or letter
    )


def seconds(work: Callable[[], object], device: str, repeats: int = 5) -> float:
    """Return the median of a few, behind one that is not counted; of what is short, of many at once."""
    on_gpu = device.startswith("cuda")
    clock = time.perf_counter if on_gpu else time.process_time

    def timed(count: int) -> float:
        began = clock()
        for _ in range(count):
            work()
        if on_gpu:
            torch.cuda.synchronize()
        return (clock() - began) / count

    timed(1)
    first = timed(1)
    count = max(1, int(0.05 / max(first, 1e-6)))
    return statistics.median([first] * (count == 1) + [timed(count) for _ in range(1 if first > 2 else repeats)])


def row(file: Path, config: RunConfig, devices: int) -> str:
    """Time and count what a run-config takes; return its line of the table."""
    size, labels, device = config.image_size, config.several, resolve_device(config.device)
    shape = (3, size, size) if size else SHAPES.get(config.dataset, GREY)
    data_summary = DataSummary(
        shape=shape, classes=CLASSES.get(config.dataset, 10), labels=labels, priors=(0.5,) * len(labels)
    )
    prepare_device(device, config.matmul_precision)
    problem = config.build_problem(config.setting(data_summary, device, 0))
    oracle = SiteOracle.open(config, problem, _samples(data_summary, config, device), stream(0, 0, 1, 0))
    start = problem.initial()
    x, y = start["x"], start.get("y")
    each = seconds(partial(oracle.gradient, x, y), device)
    oracle.close()
    work = Work.of(config, problem, start, devices)
    network = config.model if PROBLEMS[config.problem].needs_data else "none"
    cells = (
        f"{file.parent.name}/{file.stem}",
        network,
        f"{work.d:,}",
        f"{work.gradients:,.0f}",
        f"{1e3 * each:,.2f}",
        f"{work.bytes / 1e6:,.2f}",
        f"{work.gradients * each / 3600:,.2f}",
        f"{work.busiest * each / 3600:,.2f}",
    )
    return f"| {' | '.join(cells)} |"


def _samples(data_summary: DataSummary, config: RunConfig, device: str) -> Samples | None:
    """Draw samples of a shape, as bytes, with labels that the problem knows."""
    kind, generator = PROBLEMS[config.problem], torch.Generator().manual_seed(0)
    if not kind.needs_data:
        return None
    count = DRAWINGS * data_summary.classes if config.dataset == "omniglot" else 2 * config.batch_size
    inputs = torch.randint(0, 256, (count, *data_summary.shape), generator=generator, dtype=torch.uint8)
    labels = torch.arange(count) % (data_summary.classes if kind.multiclass or config.dataset == "omniglot" else 2)
    if data_summary.labels:
        labels = torch.stack([labels] * len(data_summary.labels), 1)
    return Samples(inputs, labels, torch.arange(count)).to(device)


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="run-configs; default: all of experiments/")
    parser.add_argument("--devices", type=int, default=8, help="cores or GPUs")
    parser.add_argument("--device", default="cpu", help="as the run-config's key has it")
    parser.add_argument("--set", default="", help="keys to change in all of them")
    options = parser.parse_args()
    if options.devices < 1:
        sys.exit(f"--devices {options.devices}: must be 1 or more")
    torch.set_num_threads(1)
    keep_freed_memory()
    heads = [head.format(options.devices) for head in HEADS]
    print(f"| {' | '.join(heads)} |\n| --- | --- |{' ---: |' * (len(heads) - 2)}")
    experiments = sorted((REPO / "experiments").glob("*/*.toml"))
    files = [Path(file) for file in options.files] or [file for file in experiments if file.stem != "study"]
    for file in files:
        given = ["engine='local'", f"device={options.device!r}", *filter(None, [options.set])]
        try:
            config = parse_run_config(read_overrides([str(file), *given]))
        except ConfigError as error:
            sys.exit(f"{file}: {error}")
        print(row(file, config, options.devices), flush=True)


if __name__ == "__main__":
    main()
