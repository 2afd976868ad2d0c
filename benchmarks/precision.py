"""Seconds of a local step and AUROC with `amp = "bf16"`, beside float32.

    EDELWEISS_DATA=folder/with/mnist/and/cifar10 python -m benchmarks.precision    # 5 seeds, about 15 minutes
    python -m benchmarks.precision networks                                        # of a gradient alone, 2 minutes
    python -m benchmarks.precision compiled                                        # with torch.compile, 5 minutes

CODASCA on AUROC, four sites, one process of one thread. Both precisions are run in turn with each seed, so that a drift
of the machine's speed meets both. A step's time is the processor's for a round, without evaluation, over its steps; the
figure is the median over all rounds but the first and all seeds. AUROC is over the samples that the sites hold out, at
the end.

Of a network alone it is the processor's time for a gradient of the AUC loss on drawn inputs, the median of three turns.

With torch.compile there are two ways: the forward pass and the loss compiled, with the backward pass that follows from
it, in the engine as it is; and the whole gradient, from flat vector to flat vector, as one graph. Each is compiled with
an empty cache, then anew with what is there by now, as a second process would. Those are seconds by the clock, for the
C++ compiler is a process of its own.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

from edelweiss.datasets import DataSummary
from edelweiss.models import Architecture
from edelweiss.problems import PROBLEMS, Setting
from edelweiss.problems.network import channels_last
from edelweiss.server_app import simulate
from edelweiss.server_app.console import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

SITES = 4
JOB: dict[str, Any] = {
    "algorithm": "codasca",
    "codasca.lr": 0.1,
    "problem": "auc",
    "auc.normalise": False,
    "sampler": "uniform",
    "thin-share": 0.1,
    "partition": "iid",
    "sites": SITES,
    "workers": 1,
    "evaluate-every": 0,
    "central-test": False,
    "evidence": False,
    "checkpoint-every": 0,
}
CASES: dict[str, dict[str, Any]] = {
    "mnist, cnn-mnist": {
        "dataset": "mnist",
        "model": "cnn-mnist",
        "rounds": 10,
        "local-steps": 10,
        "batch-size": 50,
        "holdout-share": 0.1,
    },
    "cifar10, cnn-cifar": {
        "dataset": "cifar10",
        "model": "cnn-cifar",
        "rounds": 8,
        "local-steps": 10,
        "batch-size": 50,
        "holdout-share": 0.1,
    },
}


NETWORKS: list[tuple[str, tuple[int, ...], int, int]] = [  # inputs, batch size, gradients
    ("mlp", (30,), 32, 200),
    ("mlp", (784,), 50, 100),
    ("cnn-mnist", (1, 28, 28), 50, 20),
    ("cnn-cifar", (3, 32, 32), 50, 20),
    ("resnet18", (3, 32, 32), 50, 3),
]


class Clock(Progress):
    """Notes the processor's time at the end of each round."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.times: list[float] = []

    def round(self, record: dict[str, Any], rounds: int) -> None:
        """Note it."""
        self.times.append(time.process_time())


def run(case: str, amp: str, seed: int) -> tuple[list[float], float]:
    """Run a job; returns the seconds of a step in each round but the first, and the AUROC at the end."""
    with tempfile.TemporaryDirectory() as folder:
        job = JOB | CASES[case] | {"amp": amp, "seed": seed, "runs-dir": folder}
        clock = Clock()
        records = simulate(job | {"data-root": os.environ["EDELWEISS_DATA"]}, progress=clock).metrics
    steps = SITES * CASES[case]["local-steps"]
    return [(end - begin) / steps for begin, end in itertools.pairwise(clock.times[:-1])], records[-1]["auroc"]


def gradient(model: str, shape: tuple[int, ...], batch: int, count: int, amp: str) -> float:
    """Return the processor's milliseconds for a gradient."""
    problem = auc(model, shape, amp)
    start, drawn = problem.initial(), inputs(shape, batch)
    return milliseconds(lambda: problem.gradient(start["x"], start["y"], drawn), count)


def auc(model: str, shape: tuple[int, ...], amp: str = "") -> Any:
    """Return the problem."""
    architecture = Architecture(model=model, hidden=256, amp=amp)
    return PROBLEMS["auc"](Setting(data_summary=DataSummary(shape=shape, prior=0.3), architecture=architecture))


def inputs(shape: tuple[int, ...], batch: int) -> tuple[Tensor, Tensor]:
    """Draw a batch."""
    drawn = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0))
    return channels_last(drawn), torch.arange(batch) % 3 // 2


def milliseconds(call: Callable[[], Any], count: int) -> float:
    """Return the processor's for a call, the median of so many; two more come before."""
    taken = []
    for _ in range(count + 2):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return 1000 * statistics.median(taken[2:])


def networks() -> None:
    """Measure gradients alone."""
    torch.set_num_threads(1)
    print("| network | inputs | batch | float32, ms | bf16, ms | ratio |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for model, shape, batch, count in NETWORKS:
        turns = [[gradient(model, shape, batch, count, amp) for amp in ("", "bf16")] for _ in range(3)]
        whole, short = (statistics.median(each) for each in zip(*turns, strict=True))
        form = " × ".join(map(str, shape))
        print(f"| {model} | {form} | {batch} | {whole:.2f} | {short:.2f} | {short / whole:.2f} |", flush=True)


def one_graph(problem: Any) -> Callable[..., Any]:
    """Return a gradient by x and y as a function of both and a batch, which `torch.compile` sees whole."""
    network, named = problem.network, dict(problem.network.module.named_parameters())

    def value(x: Tensor, y: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        parameters = {name: x[network.spans[name]].view_as(p) for name, p in named.items()}
        outputs = torch.func.functional_call(network.module, parameters, (images,))
        loss: Tensor = problem.objective(problem.squeeze_outputs(outputs), labels, x[network.size :], y)
        return loss

    return torch.func.grad(value, (0, 1))


def ways(model: str, shape: tuple[int, ...], batch: int) -> dict[str, Callable[[], Any]]:
    """Return the gradient in each way, as the engine takes it first."""
    eager, half, whole = (auc(model, shape) for _ in range(3))
    start, drawn = eager.initial(), inputs(shape, batch)
    x, y = start["x"], start["y"]
    half.value = torch.compile(half.value)
    found: dict[str, Callable[[], Any]] = {"eager": partial(eager.gradient, x, y, drawn)}
    found["forward and loss"] = partial(half.gradient, x, y, drawn)
    if not eager.network.buffer_size:  # a graph of torch.func has no side effects, as statistics of batch norm are
        found["one graph"] = partial(torch.compile(one_graph(whole)), x, y, *drawn)
    return found


def compiled() -> None:
    """Measure gradients with torch.compile, what compiling takes, and how many steps that is worth."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    torch.compile(torch.sin)(torch.zeros(8))
    print(f"to import the compiler: {time.perf_counter() - began:.1f} s\n")
    print("| network | inputs | batch | compiled | eager, ms | compiled, ms | ratio | first, s | again, s | steps |")
    print("| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for model, shape, batch, count in [("linear", (30,), 32, 200), *NETWORKS]:
        found = ways(model, shape, batch)
        seconds: dict[tuple[str, bool], float] = {}
        reference = torch.cat([part.reshape(-1) for part in found["eager"]()])
        with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder):
            for name, again in itertools.product(list(found)[1:], (False, True)):
                torch.compiler.reset()
                began = time.perf_counter()
                there = torch.cat([part.reshape(-1) for part in found[name]()])
                seconds[name, again] = time.perf_counter() - began
                torch.testing.assert_close(there, reference, rtol=1e-3, atol=1e-3)
            turns = [{name: milliseconds(call, count) for name, call in found.items()} for _ in range(3)]
        each = {name: statistics.median(context[name] for context in turns) for name in found}
        for name in list(found)[1:]:
            saved = (each["eager"] - each[name]) / 1000
            steps = f"{seconds[name, False] / saved:,.0f}" if saved > 0 else "never"
            times = f"{each['eager']:.2f} | {each[name]:.2f} | {each[name] / each['eager']:.2f}"
            begun = f"{seconds[name, False]:.0f} | {seconds[name, True]:.0f}"
            form = " × ".join(map(str, shape))
            print(f"| {model} | {form} | {batch} | {name} | {times} | {begun} | {steps} |", flush=True)


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, "networks", "compiled", []], help="default: all jobs")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    known = torch.cpu.get_capabilities()
    print(f"{known['cpu_name']}: {', '.join(name for name in known if 'bf16' in name and known[name])}")
    if "networks" in options.cases:
        return networks()
    if "compiled" in options.cases:
        return compiled()
    if not os.environ.get("EDELWEISS_DATA"):
        sys.exit("EDELWEISS_DATA is not set: it names the folder that holds mnist/ and cifar10/")
    print("| | float32, ms | bf16, ms | ratio | AUROC, float32 | AUROC, bf16 | difference |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for case in options.cases or CASES:
        found: dict[str, list[tuple[list[float], float]]] = {"": [], "bf16": []}
        for seed in range(options.seeds):
            for amp, runs in found.items():
                runs.append(run(case, amp, seed))
        whole, short = (1000 * statistics.median(s for runs in found[amp] for s in runs[0]) for amp in found)
        each = [[auroc for _, auroc in runs] for runs in found.values()]
        gaps = [b - a for a, b in zip(*each, strict=True)]
        told = " | ".join(f"{statistics.mean(n):.4f} ± {statistics.stdev(n):.4f}" for n in (*each, gaps))
        print(f"| {case} | {whole:.1f} | {short:.1f} | {short / whole:.2f} | {told} |", flush=True)


if __name__ == "__main__":
    main()
