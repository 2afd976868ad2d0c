"""Seconds per gradient evaluation of every algorithm in the local engine, beside a bare PyTorch loop.

    EDELWEISS_DATA=folder/with/mnist python -m benchmarks.gradients      # about 6 minutes

Writes docs/results/gradients.csv, and the table in gradients.md. The job is that of benchmarks/engine.py at 4 sites:
MNIST dealt evenly, 20 steps of batch 50 between two averagings, `cnn-mnist`, one process, one thread, no evaluation in
the timed part. A gradient is one of 50 samples: an algorithm that takes two on one batch has taken two. So everything
else that an algorithm does (its own vectors, its memory, messages and averages) counts as the price of its gradients.

The bare loop holds standardised float32 images, picks a batch, and does forward, loss, backward and a step of
`torch.optim.SGD` (ascent for the dual variable); after 20 steps it takes the next site's turn, after the last site it
averages. ``plain`` leaves the images as they are, which is what one would write; ``channels-last`` lays images and
network out as the engine does. Bare loops and algorithms take turns, several times over; a ratio is of neighbours in
time, and the figure is the median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.engine import BATCH, JOB, REPO, STEPS
from benchmarks.pages import insert
from edelweiss.lab.compare.text import write_csv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

SITES, LR = 4, 0.001  # so small that nothing diverges
TARGET = 1.08
OWN: dict[str, dict[str, Any]] = {
    "npa": {"local-steps": 1, "npa.batch": STEPS * BATCH},
    # The stage of this short run would else end with the scores of all 60,000 samples, a longer one just as much.
    "coda": {"coda.dual-batch": 512},
}
OF_ALL_SAMPLES = ("fedgda-gt",)  # whose gradients are no mini-batch's: a round takes minutes, and has no bare loop


# ---------------------------------------------------------------------- the bare loop


def bce(outputs: Tensor, labels: Tensor, scalars: Tensor, dual: Tensor, prior: float) -> Tensor:
    """Cross-entropy."""
    from torch.nn.functional import binary_cross_entropy_with_logits

    loss: Tensor = binary_cross_entropy_with_logits(outputs, labels)
    return loss


def auc(outputs: Tensor, labels: Tensor, scalars: Tensor, dual: Tensor, prior: float) -> Tensor:
    """AUC with the square surrogate; scalars are a and b, the dual is α."""
    h, (a, b) = outputs.sigmoid(), scalars
    fit = (1 - prior) * labels * (h - a) ** 2 + prior * (1 - labels) * (h - b) ** 2
    gap = prior * h * (1 - labels) - (1 - prior) * h * labels
    return (fit + 2 * (1 + dual) * gap).mean() - prior * (1 - prior) * dual.square().sum()


def auprc(outputs: Tensor, labels: Tensor, scalars: Tensor, dual: Tensor, prior: float) -> Tensor:
    """Average precision with the squared hinge surrogate."""
    h = outputs.sigmoid()
    pairs = (1 - h[labels == 1][:, None] + h[None]).relu() ** 2
    loss: Tensor = -((pairs * labels).sum(1) / pairs.sum(1)).mean()
    return loss


LOSSES = {"auc": auc, "bce": bce, "auprc": auprc}


class Bare:
    """A loop over sites without any framework.

    Parameters
    ----------
    problem : str
        A name in ``LOSSES``.
    channels_last : bool
        How images and network are laid out.
    """

    def __init__(self, problem: str, channels_last: bool) -> None:
        import torch

        from edelweiss import models
        from edelweiss.config import RunConfig
        from edelweiss.datasets import load_site

        config = RunConfig.parse(JOB | {"data-root": os.environ["EDELWEISS_DATA"], "sites": SITES}).data()
        sites = [load_site(config, site, SITES).train for site in range(SITES)]
        layout = torch.channels_last if channels_last else torch.contiguous_format
        self.layout = layout
        self.inputs = sites[0].inputs.float().sub_(33.3).div_(78.6)
        self.labels, self.rows = sites[0].labels.float(), [site.rows for site in sites]
        self.prior = self.labels.mean().item()
        self.model = models.build("cnn-mnist", (1, 28, 28)).to(memory_format=layout)  # type: ignore[call-overload]
        self.scalars = torch.zeros(2, requires_grad=True)
        self.dual = torch.zeros(1, requires_grad=True)
        self.loss = LOSSES[problem]
        groups: list[dict[str, Any]] = [{"params": list(self.model.parameters())}]
        if problem == "auc":
            groups += [{"params": [self.scalars]}, {"params": [self.dual], "maximize": True}]
        self.parameters = [parameter for group in groups for parameter in group["params"]]
        self.optimizer = torch.optim.SGD(groups, lr=LR)

    def __call__(self) -> float:
        """Do a round; returns seconds per gradient."""
        import torch

        started = time.perf_counter()
        start = [parameter.detach().clone() for parameter in self.parameters]
        total = [torch.zeros_like(parameter) for parameter in self.parameters]
        for rows in self.rows:
            with torch.no_grad():
                for parameter, value in zip(self.parameters, start, strict=True):
                    parameter.copy_(value)
            order = rows[torch.randperm(len(rows))]
            for step in range(STEPS):
                batch = order[step * BATCH : (step + 1) * BATCH]
                inputs, labels = self.inputs[batch].contiguous(memory_format=self.layout), self.labels[batch]
                self.optimizer.zero_grad()
                loss = self.loss(self.model(inputs).squeeze(1), labels, self.scalars, self.dual, self.prior)
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
            for sum_, parameter in zip(total, self.parameters, strict=True):
                sum_ += parameter.detach()
        with torch.no_grad():
            for parameter, sum_ in zip(self.parameters, total, strict=True):
                parameter.copy_(sum_ / SITES)
        return (time.perf_counter() - started) / (SITES * STEPS)


# ---------------------------------------------------------------------- the engine


def local(algorithm: str, problem: str, rounds: int) -> tuple[float, float]:
    """Run an algorithm in this process; return seconds and gradients of 50 samples, the first round's left out."""
    from edelweiss.config.tables import own_options
    from edelweiss.server_app import simulate
    from edelweiss.strategies import ALGORITHMS

    steps = {f"{algorithm}.{key}": LR for key in own_options(ALGORITHMS[algorithm]) if key in ("lr", "lr-dual")}
    own: dict[str, Any] = {"local-steps": STEPS} | OWN.get(algorithm, {})
    if problem == "auprc":  # half of the samples are positive, in the bare loop's batches too
        own |= {"sampler": "fixed-positives", "positives-per-batch": BATCH // 2}
    with tempfile.TemporaryDirectory() as folder:
        job = {key: value for key, value in JOB.items() if "." not in key}
        job |= {"algorithm": algorithm, "problem": problem, "sites": SITES, "rounds": rounds, "workers": 1}
        job |= {
            "sampler": "uniform",
            "auc.normalise": False,
            "data-root": os.environ["EDELWEISS_DATA"],
            "runs-dir": folder,
        }
        records = simulate(job | steps | own).metrics[1:]
    seconds, samples = (sum(float(record[name]) for record in records) for name in ("seconds", "samples"))
    return seconds, samples / BATCH


def solvable() -> dict[str, str]:
    """Return each algorithm with the first problem on MNIST that it solves and that has a bare loop."""
    from edelweiss.problems import PROBLEMS
    from edelweiss.strategies import ALGORITHMS, can_solve

    found = {}
    for name, algorithm in ALGORITHMS.items():
        fit = [problem for problem in LOSSES if can_solve(algorithm, PROBLEMS[problem])]
        if fit and algorithm.exchanges and name not in OF_ALL_SAMPLES:
            found[name] = fit[0]
    return found


def ready(parser: argparse.ArgumentParser, names: Sequence[str]) -> dict[str, str]:
    """Let this process measure, with one thread; return the named algorithms (none named: all), each with its problem.

    Without data, or with an unknown name, it ends and says so.
    """
    import torch

    from edelweiss.common.memory import keep_freed_memory

    if not os.environ.get("EDELWEISS_DATA"):
        sys.exit("EDELWEISS_DATA is not set: it names the folder that holds mnist/")
    every = solvable()
    if unknown := set(names) - every.keys():
        parser.error(f"no such algorithm, or none with a bare loop: {', '.join(sorted(unknown))}")
    keep_freed_memory()  # for all alike
    torch.set_num_threads(1)
    return {name: problem for name, problem in every.items() if name in (names or every)}


# ---------------------------------------------------------------------- the table


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write a table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="algorithms; default: all that solve a problem on MNIST")
    parser.add_argument("--rounds", type=int, default=3, help="of a measurement; the first does not count")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results-dir", type=Path, default=REPO / "docs" / "results")
    options = parser.parse_args(arguments)
    if options.names and options.results_dir == parser.get_default("results_dir"):
        parser.error("a table of some algorithms would replace that of all: name another --results-dir")
    jobs = ready(parser, options.names)
    bare = {(problem, last): Bare(problem, last) for problem in set(jobs.values()) for last in (False, True)}
    for loop in bare.values():
        loop()  # warm
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in jobs}
    for repeat in range(options.repeats):
        for name, problem in jobs.items():
            plain = bare[problem, False]()
            seconds, gradients = local(name, problem, options.rounds)
            ours = seconds / gradients
            last = bare[problem, True]()
            # Half of the bare rounds before it and half after, so that a drift of the machine's speed cancels.
            found[name].append((ours, (plain + bare[problem, False]()) / 2, last))
            print(
                f"[{repeat + 1}/{options.repeats}] {name}: {ours / found[name][-1][1]:.3f}", file=sys.stderr, flush=True
            )
    rows = [line(name, problem, found[name]) for name, problem in jobs.items()]
    write_csv(options.results_dir / "gradients.csv", rows)
    text = markdown(rows)
    insert(options.results_dir / "gradients.md", "gradients", "Gradients: seconds per evaluation", text)
    print(text)
    return 0


def line(name: str, problem: str, measured: list[tuple[float, float, float]]) -> dict[str, Any]:
    """Return the medians of an algorithm."""
    ours, plain, last = (statistics.median(values) for values in zip(*measured, strict=True))
    return {
        "algorithm": name,
        "problem": problem,
        "local, ms": round(1e3 * ours, 3),
        "bare, ms": round(1e3 * plain, 3),
        "bare channels-last, ms": round(1e3 * last, 3),
        "× bare": round(statistics.median(a / b for a, b, _ in measured), 3),
        "× bare channels-last": round(statistics.median(a / c for a, _, c in measured), 3),
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table, and how many meet the target."""
    headings = [*rows[0], f"≤ {TARGET} × bare"]
    lines = ["| " + " | ".join(headings) + " |", "| --- | --- |" + " ---: |" * (len(headings) - 2)]
    for row in rows:
        met = "yes" if row["× bare"] <= TARGET else "no"
        lines.append("| " + " | ".join([*map(str, row.values()), met]) + " |")
    return "<!-- Written by `python -m benchmarks.gradients`; do not edit. -->\n\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
