"""A step of `maml` against the same step written by hand in plain PyTorch, side by side.

    python -m benchmarks.maml_step

By hand is what a reader of the paper would write: a loop over the tasks, ``torch.autograd.grad`` with
``create_graph=True`` through the inner step, ``functional_call`` at the adapted parameters, one gradient per task,
added up. Both take the same tasks and start from the same parameters; the two gradients are compared first, in float64.
Times are medians over runs that take turns, so that whatever else the machine does hits both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from edelweiss.datasets import DataSummary
from edelweiss.models import Architecture, build
from edelweiss.problems import Setting
from edelweiss.problems.maml import Maml

SHAPE, WAYS, QUERIES, INNER_LR = (1, 28, 28), 5, 15, 0.4


def by_hand(module: torch.nn.Module, inputs: Tensor, labels: Tensor, shots: int) -> Tensor:
    """Return the gradient of the mean query loss after one inner step, a flat vector."""
    names, parameters = zip(*module.named_parameters(), strict=True)
    support = WAYS * shots
    total = [torch.zeros_like(p) for p in parameters]
    for z, truth in zip(inputs, labels, strict=True):
        inner = cross_entropy(module(z[:support]), truth[:support])
        slope = torch.autograd.grad(inner, parameters, create_graph=True)
        adapted = {name: p - INNER_LR * g for name, p, g in zip(names, parameters, slope, strict=True)}
        outer = cross_entropy(functional_call(module, adapted, (z[support:],)), truth[support:])
        for t, g in zip(total, torch.autograd.grad(outer, parameters), strict=True):
            t += g
    return torch.cat([t.flatten() for t in total]) / len(inputs)


def seconds(step: Callable[[], Tensor], device: str) -> float:
    """Time one step."""
    start = time.perf_counter()
    step()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    print(f"{options.device}, {options.threads} thread(s), {WAYS} ways, {QUERIES} queries, conv4, one inner step")
    print("| shots | tasks | channels | maml, ms | by hand, ms | ratio | largest difference, float64 |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for shots, tasks, hidden in ((1, 4, 64), (5, 4, 64), (1, 16, 64), (1, 16, 32), (5, 16, 32)):
        drawings = (tasks, WAYS * (shots + QUERIES))
        inputs = torch.randn(*drawings, *SHAPE, generator=torch.Generator().manual_seed(0)).to(options.device)
        labels = torch.arange(WAYS, device=options.device).repeat(tasks, shots + QUERIES)
        steps: dict[torch.dtype, list[Callable[[], Tensor]]] = {}
        for dtype in (torch.float64, torch.float32):
            architecture = Architecture(model="conv4", hidden=hidden)
            setting = Setting(
                data_summary=DataSummary(shape=SHAPE), architecture=architecture, device=options.device, dtype=dtype
            )
            problem = Maml(setting, ways=WAYS, shots=shots, queries=QUERIES, inner_lr=INNER_LR)
            module = build("conv4", SHAPE, WAYS, hidden=hidden).to(options.device, dtype)
            x, z = problem.initial()["x"], inputs.to(dtype)
            steps[dtype] = [
                lambda problem=problem, x=x, z=z, labels=labels: problem.gradient(x, None, (z, labels))[0],
                lambda module=module, z=z, labels=labels, shots=shots: by_hand(module, z, labels, shots),
            ]
        ours, theirs = (step() for step in steps[torch.float64])
        difference = float((ours - theirs).abs().max() / theirs.abs().max())
        times: list[list[float]] = [[], []]
        for repeat in range(options.repeats + 2):
            for place, step in enumerate(steps[torch.float32]):
                spent = seconds(step, options.device)
                if repeat >= 2:  # two to warm up
                    times[place].append(spent)
        a, b = (1e3 * statistics.median(column) for column in times)
        print(f"| {shots} | {tasks} | {hidden} | {a:.1f} | {b:.1f} | {a / b:.2f} | {difference:.0e} |", flush=True)


if __name__ == "__main__":
    main()
