"""`auc-margin` beside LibAUC's AUCMLoss and PESG, at one site; into docs/results/libauc.md.

    EDELWEISS_DATA=folder/with/cifar10 python -m benchmarks.peers.libauc --python PYTHON      # one that has LibAUC

1. Steps: both take the same batches from the same point. Ours get LibAUC's α before each step, so that the steps of
   the network, a and b are compared; the steps of α are compared beside them.
2. Recipe: LibAUC's example for rare positives of CIFAR-10, reduced: LibAUC, ours, and ours with PESG's step of α.
   AUROC and seconds of CPU. What has been run is in runs/libauc-recipe.jsonl, and is not run again.

Each uses one thread, and LibAUC a process and a Python of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import edelweiss as ew
from benchmarks.defaults import note, read
from benchmarks.pages import insert
from benchmarks.peers.resnet20 import ResNet20
from edelweiss.client_app.oracle import SiteOracle, stream
from edelweiss.datasets import DataSummary, Samples, make_sampler
from edelweiss.datasets.files import SearchPath
from edelweiss.datasets.sources import cifar
from edelweiss.lab.compare.groups import Difference, half_width
from edelweiss.lab.compare.text import NOTHING, markdown
from edelweiss.models import MODELS, Architecture
from edelweiss.problems.metrics import ranking
from edelweiss.server_app.console import Progress

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.federation import Oracle, RoundContext
    from edelweiss.problems import Arrays as Tensors
    from edelweiss.problems.base import Batch, Problem
    from edelweiss.server_app.recorder import Record

REPO = Path(__file__).resolve().parents[2]
PAGE = REPO / "docs" / "results" / "libauc.md"
KEPT = REPO / "runs" / "libauc-recipe.jsonl"
SHARES = (0.1, 0.01)
BATCH, POSITIVES = 128, 25  # LibAUC's example: int(0.2 * 128)
EVERY = 50  # steps of a round
RECIPE = {
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "epoch_decay": 0.003,
    "margin": 1.0,
    "clip_value": 1.0,
    "sampling_rate": 0.2,
    "batch": BATCH,
    "every": EVERY,
}
PLAIN = RECIPE | {"momentum": 0.0, "weight_decay": 0.0, "clip_value": float("inf")}

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Images:
    """Training images with labels of which few are 1, and test images with as many of either."""

    train: np.ndarray
    labels: np.ndarray
    test: np.ndarray
    truth: np.ndarray


@cache
def halved() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return CIFAR-10 at 16 x 16 pixels, its classes, and which images are of its test set."""
    source = cifar.read("cifar10", "CIFAR10", 10, SearchPath.of("", download=False))
    assert source.test is not None, "it has an official test set"
    return torch.nn.functional.avg_pool2d(source.inputs.float() / 255, 2).numpy(), source.classes, source.test


@cache
def cifar10(share: float) -> Images:
    """Return these, standardised; classes 5 to 9 are positive, thinned in training as LibAUC thins them."""
    images, classes, test = halved()
    labels = (classes >= 5).astype(np.int64)
    train = np.random.default_rng(0).permutation(np.flatnonzero(~test))
    negatives, positives = train[labels[train] == 0], train[labels[train] == 1]
    rows = np.concatenate([negatives, positives[: int(share / (1 - share) * len(negatives))]])
    mean, deviation = (of(images[rows], (0, 2, 3), keepdims=True) for of in (np.mean, np.std))
    images = (images - mean) / deviation
    return Images(images[rows], labels[rows], images[test], labels[test])


def libauc(python: str, what: str, job: dict[str, Any], **given: np.ndarray) -> Arrays:
    """Let LibAUC do a job of `benchmarks.peers.with_libauc`; return its arrays."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "job.npz", **given)  # type: ignore[arg-type]
        (Path(folder) / "job.json").write_text(json.dumps(job), encoding="utf-8")
        command = [python, "-m", "benchmarks.peers.with_libauc", what, folder]
        environment = os.environ | {"PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed with exit code {done.returncode}:\n{done.stderr[-3000:]}")
        with np.load(Path(folder) / "answer.npz") as answer:
            return dict(answer)


# ---------------------------------------------------------------------- steps


def unit() -> float:
    """Return 4p(1-p) of a batch: the scale of LibAUC's loss, which takes p from the batch, beside ours normalised."""
    return 4 * POSITIVES / BATCH * (1 - POSITIVES / BATCH)


@dataclass(frozen=True)
class Batches:
    """Batches with fixed positives: rows (T, n) of the training images, and weights (T, n) that undo the sampling."""

    rows: Tensor
    weights: Tensor

    @classmethod
    def drawn(cls, labels: Tensor, steps: int) -> Batches:
        """Draw them as a run does."""
        sampler = make_sampler("fixed-positives", labels, BATCH, POSITIVES, stream(0, 0, 1, 0))
        rows = torch.stack([sampler.draw(BATCH) for _ in range(steps)])
        weights = [sampler.weights(labels[each]) for each in rows]
        return cls(rows, torch.stack([each for each in weights if each is not None]))


class Dealt(SiteOracle):
    """A site's oracle whose next batch is given; it notes the last gradient by α."""

    batch: Batch | None = None
    gy: Tensor

    def gradient(self, x: Tensor, y: Tensor | None = None, batch: Batch | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (gx, gy) on that batch."""
        gx, gy = super().gradient(x, y, self.batch if batch is None else batch)
        assert gy is not None, "a minimax problem"
        self.gy = gy
        return gx, gy


def followed(
    problem: Problem, samples: Samples, batches: Batches, job: dict[str, Any], alphas: np.ndarray | None
) -> dict[str, Any]:
    """Take our steps on the batches: CODA+'s with LibAUC's α, or Local SGDA's with our own.

    Our loss is divided by 4p(1-p), LibAUC's is not: step sizes are multiplied by `unit`, weights of what is added to
    the gradient divided by it. Of α LibAUC has taken p(1-p) out of the gradient: its step is multiplied by 4.

    Returns
    -------
    dict
        ``x``: the iterates after the noted steps; ``alpha``: after each step from the α before it; ``mean``: of all
        iterates, CODA+'s.
    """
    lr = job["lr"] * unit()
    steps, start = len(batches.rows), problem.initial()
    oracle = Dealt(problem, samples, None, torch.Generator().manual_seed(0))
    method: ew.Algorithm
    if alphas is None:
        method = ew.LocalSGDA(local_steps=1, lr=lr, lr_dual=4 * job["lr"])
    else:
        method = ew.CodaPlus(local_steps=1, lr=lr, gamma=job["epoch_decay"] / unit())
    point, memory, found = dict(start), {}, {"x": [], "alpha": []}
    for step in range(steps):
        inputs, labels = samples.batch(batches.rows[step])
        oracle.batch = (inputs.to(problem.dtype), labels, batches.weights[step].to(problem.dtype))
        if alphas is not None:
            point["y"] = torch.tensor([alphas[step]], dtype=problem.dtype)
        sent = point | {"x_ref": start["x"]}
        context = method.context(step + 1, steps + 1, "train", 1)
        reply, memory = method.local_update(sent, memory, oracle, context)
        found["alpha"].append(problem.project(point["y"] + 4 * job["lr"] * oracle.gy).item())
        point = {name: reply[name] for name in ("x", "y")}
        if step + 1 in job["noted"]:
            found["x"].append(reply["x"].numpy().copy())
    return found | ({"mean": memory["x_mean"].numpy()} if memory else {})


def problem_of(images: Images, dtype: torch.dtype, seed: int = 0) -> Problem:
    """Return `auc-margin` over ResNet-20, on the default scale of a run."""
    facts = DataSummary(shape=images.train.shape[1:], prior=float(images.labels.mean()))
    setting = ew.Setting(
        data_summary=facts, architecture=Architecture(model=MODELS.give(ResNet20)), dtype=dtype, seed=seed
    )
    return ew.AucMargin(setting, normalise=True)


def apart(ours: np.ndarray, theirs: np.ndarray, start: np.ndarray) -> float:
    """Return the distance of two points, relative to that of the second from the starting point."""
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs - start))


def steps_compared(python: str, steps: int) -> tuple[list[str], str]:
    """Return the table of the steps, and the versions of LibAUC and PyTorch."""
    noted = sorted({1, min(10, steps), steps})
    columns, versions = [], ""
    for share in SHARES:
        images = cifar10(share)
        labels = torch.from_numpy(images.labels)
        samples = Samples(torch.from_numpy(images.train), labels, torch.arange(len(labels)))
        batches, job = Batches.drawn(labels, steps), PLAIN | {"noted": noted}
        theirs, ours, x = {}, {}, {}
        for dtype in (torch.float64, torch.float32):
            problem = problem_of(images, dtype)
            start = problem.initial()["x"].numpy()
            seen, rows = np.unique(batches.rows.numpy(), return_inverse=True)
            given = {
                "images": images.train[seen].astype(start.dtype),
                "labels": images.labels[seen],
                "rows": rows.reshape(batches.rows.shape),
            }
            theirs[dtype] = libauc(python, "follow", job, start=start[:-2], **given)
            ours[dtype] = followed(problem, samples, batches, job, theirs[dtype]["alpha"])
            x[dtype] = start
            if dtype is torch.float64:
                free = libauc(python, "follow", job | {"epoch_decay": 0.0}, start=start[:-2], **given)
                alone = followed(problem_of(images, dtype), samples, batches, job, None)
        exact, rounded = torch.float64, torch.float32
        versions, start = ", ".join(theirs[exact]["versions"]), x[exact]
        print(f"{share:.0%}: the steps are taken", file=sys.stderr, flush=True)
        column = [f"{share:.0%} positive"]
        for one, other in (
            (ours[exact], theirs[exact]),
            (ours[rounded], theirs[rounded]),
            (theirs[rounded], theirs[exact]),
        ):
            column += [f"{apart(*pair, start):.1e}" for pair in zip(one["x"], other["x"], strict=True)]
        column.append(f"{apart(ours[exact]['mean'], theirs[exact]['mean'], start):.1e}")
        gap = without_prior(theirs[exact])
        moved = np.maximum(theirs[exact]["alpha"][1:] - 2 * job["lr"] * gap, 0)
        column.append(f"{np.abs(moved - ours[exact]['alpha']).max():.1e}")
        column.append(f"{2 * job['lr'] * np.abs(gap).mean():.1e}")
        column.append(f"{apart(alone['x'][-1], free['x'][-1], start):.1e}")
        column.append(f"{alone['alpha'][-1]:.4f} and {free['alpha'][-1]:.4f}")
        columns.append(column)
    names = [""]
    for what in ("float64: Edelweiss and LibAUC", "float32: Edelweiss and LibAUC", "LibAUC: float32 and float64"):
        names += [f"{what}, step {step}" for step in noted]
    names += [
        "mean of all iterates, float64",
        "largest difference of α after a step from the same point, but for the term below",
        "the term, mean over the steps",
        f"float64, each with its own α and without proximal term, step {steps}",
        "α then, Edelweiss and LibAUC",
    ]
    first, *lines = zip(names, *columns, strict=True)
    return [" | ".join(("", *line, "")).strip() for line in (first, ("---", *["---:"] * len(SHARES)), *lines)], versions


def without_prior(theirs: Arrays) -> np.ndarray:
    """Return the term by which α's gradients differ: b - a, new, less the same of the batch's mean scores."""
    return np.asarray(theirs["b"] - theirs["a"] - (theirs["negative"] - theirs["positive"]))


# ---------------------------------------------------------------------- recipe


@dataclass(frozen=True, kw_only=True)
class PesgsAlpha(ew.LocalSGDA):
    """Local SGDA in which y is PESG's α, of `auc-margin` with a margin of 1.

    Line 4 becomes y ← P(y + ηy/2 (1 + b - a - y)), at the new a and b, the last two entries of x. Of f / (4p(1-p)) it
    is the gradient by α with a and b in the place of the batch's mean scores.
    """

    name = "pesgs-alpha"
    stacks = False

    def local_update(
        self, sent: Tensors, memory: Tensors, oracle: Oracle, context: RoundContext
    ) -> tuple[Tensors, Tensors]:
        """Lines 1-4."""
        x, y, descent = sent["x"].clone(), sent["y"].clone(), self.descent(context)
        for _ in range(context.local_steps):
            gx, _ = self.gradients(x, y, sent, oracle)
            descent.move(x, gx, self.lr)
            a, b = x[-2:]
            y = oracle.project(y + self.lr_dual / 2 * (1 + b - a - y))
        return {"x": x, "y": y}, {}


LIBAUC, OURS, WITH_ALPHA = ARMS = ("LibAUC", "Edelweiss", "Edelweiss, PESG's α")
PAIRS = ((OURS, LIBAUC), (WITH_ALPHA, LIBAUC), (WITH_ALPHA, OURS))


class Ends(Progress):
    """Notes the CPU time at the end of each round."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.at: list[float] = []

    def round(self, record: Record, rounds: int) -> None:
        """Note it."""
        self.at.append(time.process_time())


def trained(images: Images, steps: int, seed: int, method: type[ew.LocalSGDA]) -> Arrays:
    """Train as PESG does, but for α's step; return test scores, and the CPU seconds of rounds."""
    ends, own = Ends(), method.name
    if method is PesgsAlpha:
        ew.register(method)
    config = {
        "algorithm": own,
        "problem": "auc-margin",
        "auc-margin.normalise": True,
        "auc-margin.margin": RECIPE["margin"],
        # PESG's momentum weighs the fresh gradient: with 0.9 it is heavy ball's 0.1 with 0.9 of the step.
        f"{own}.lr": RECIPE["lr"] * RECIPE["momentum"] * unit(),
        f"{own}.lr-dual": 4 * RECIPE["lr"],
        f"{own}.momentum": 1 - RECIPE["momentum"],
        # The point that epoch_decay pulls to is noise near 0 until PESG's first decay, which is later than this ends.
        f"{own}.weight-decay": (RECIPE["weight_decay"] + RECIPE["epoch_decay"]) / unit(),
        "thin-share": 0.0,
        "holdout-share": 0.0,
        "test-share": 0.0,  # all images are trained on, as there
        "standardise": False,
        "sampler": "fixed-positives",
        "positives-per-batch": POSITIVES,
        "batch-size": BATCH,
        "local-steps": EVERY,
        "rounds": steps // EVERY,
        "seed": seed,
        "engine": "local",
        "device": "cpu",
        "evaluate-every": 0,
        "central-test": False,
        "checkpoint-every": 0,
        "report": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        site = [(images.train, images.labels)]
        run = ew.simulate(config | {"runs-dir": folder}, data=site, model=ResNet20, progress=ends)
        scores = run.predict(images.test)
    return {"scores": np.asarray(scores), "seconds": np.diff(ends.at)[:-1]}


def recipe_run(python: str, steps: int, share: float, seeds: int) -> None:
    """Make the runs at a share of positives that are missing."""
    done = {(one["steps"], one["share"], one["seed"], one["arm"]) for one in read(KEPT)}
    images = cifar10(share)
    for arm, seed in product(ARMS, range(seeds)):
        if (steps, share, seed, arm) in done:
            continue
        if arm == LIBAUC:
            start = problem_of(images, torch.float32, seed).initial()["x"].numpy()[:-2]
            given = {"images": images.train, "labels": images.labels, "test": images.test, "start": start}
            answer = libauc(python, "train", RECIPE | {"steps": steps, "seed": seed}, **given)
        else:
            answer = trained(images, steps, seed, PesgsAlpha if arm == WITH_ALPHA else ew.LocalSGDA)
        auroc, seconds = ranking(images.truth, answer["scores"])["auroc"], answer["seconds"].tolist()
        note(KEPT, {"steps": steps, "share": share, "seed": seed, "arm": arm, "auroc": auroc, "seconds": seconds})


def recipe_compared(steps: int, seeds: int) -> str:
    """Return the tables of the recipe's runs."""
    aligned = ["---", *["---:"] * len(ARMS)]
    scores, took = [["", *ARMS], aligned], [["", *ARMS], aligned]
    apart = [["", *(f"{one} less {other}" for one, other in PAIRS)], aligned]
    for share in SHARES:
        label = f"{share:.0%} positive"
        auroc: dict[str, dict[int, float]] = {arm: {} for arm in ARMS}
        seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
        for one in read(KEPT):
            if (one["steps"], one["share"]) == (steps, share) and one["seed"] < seeds:
                auroc[one["arm"]][one["seed"]] = one["auroc"]
                seconds[one["arm"]] += one["seconds"]
        for seed in range(seeds):
            row = (f"{auroc[arm][seed]:.3f}" if seed in auroc[arm] else NOTHING for arm in ARMS)
            scores.append([f"{label}, seed {seed}", *row])
        scores.append([f"**{label}**", *(f"**{spread(list(auroc[arm].values()))}**" for arm in ARMS)])
        apart.append([label, *(paired(auroc[one], auroc[other]) for one, other in PAIRS)])
        medians = [100 / EVERY * statistics.median(seconds[arm]) for arm in ARMS]
        took.append([label, *(f"{each:.1f} ({each / medians[0]:.2f})" for each in medians)])
    return (
        f"AUROC of the test images after {steps} steps; in bold mean ± standard deviation.\n\n"
        f"{markdown(scores)}\n\nDifferences paired by seed: mean and 95 % interval (Student's t).\n\n"
        f"{markdown(apart)}\n\nSeconds of one core for 100 steps, the median, and in brackets how many times "
        f"LibAUC's.\n\n{markdown(took)}"
    )


def paired(ones: Mapping[int, float], others: Mapping[int, float]) -> str:
    """Return the mean difference over the seeds of both with its interval; two or more have one."""
    each = [ones[seed] - others[seed] for seed in sorted(ones.keys() & others.keys())]
    if len(each) < 2:
        return NOTHING
    return f"{Difference(statistics.fmean(each), half_width(each), len(each))}, {len(each)} seeds"


def spread(values: Sequence[float]) -> str:
    """Return mean ± standard deviation over the seeds."""
    return f"{statistics.fmean(values):.3f}" + (f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="an interpreter that has LibAUC")
    parser.add_argument("--parts", nargs="+", choices=("steps", "recipe"), default=["steps", "recipe"])
    parser.add_argument("--steps", type=int, default=20, help="of the first")
    parser.add_argument("--train", type=int, default=200, help=f"steps of the recipe: a multiple of {EVERY}")
    parser.add_argument("--seeds", type=int, default=3, help="of the recipe")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the tables go")
    options = parser.parse_args(arguments)
    if options.train % EVERY or options.train < 3 * EVERY:
        parser.error(f"--train {options.train}: a multiple of {EVERY}, which is a round, and at least {3 * EVERY}")
    if options.seeds < 2:
        parser.error(f"--seeds {options.seeds}: an interval needs 2 or more")
    if not os.environ.get("EDELWEISS_DATA"):
        parser.error("EDELWEISS_DATA is not set: it names the folder that holds cifar10/")
    torch.set_num_threads(1)
    for part in options.parts:
        text = steps_part(options) if part == "steps" else recipe_part(options)
        print(text)
        insert(options.page, f"libauc-{part}", "LibAUC beside Edelweiss", text)
    return 0


def steps_part(options: argparse.Namespace) -> str:
    """Return the page's part on steps."""
    table, versions = steps_compared(options.python, options.steps)
    head = f"**The same {options.steps} batches.** Distances of x, relative to LibAUC's from the starting point."
    return "\n\n".join([head, "\n".join(table), f"{versions}; Edelweiss with torch {torch.__version__}."]) + "\n"


def recipe_part(options: argparse.Namespace) -> str:
    """Return the page's part on the recipe."""
    for share in SHARES:
        recipe_run(options.python, options.train, share, options.seeds)
    return f"**The recipe.** {recipe_compared(options.train, options.seeds)}"


if __name__ == "__main__":
    sys.exit(main())
