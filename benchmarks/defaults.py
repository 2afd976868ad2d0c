"""What the defaults do: every algorithm on every problem that it solves, and the default step beside a grid of steps.

    python -m benchmarks.defaults pairs [--most 1200]
    python -m benchmarks.defaults steps [--cells clean-0.01-mlp ...] [--rounds 40] [--seeds 3] [--most 1200]
    python -m benchmarks.defaults hospitals

``pairs`` runs the built-in job (breast cancer, 8 sites, 40 rounds of 10 steps; maml and problems without data on their
own, FedBN with batch norm) with each algorithm and each problem, and compares the model that it ends with to the one
that it began with.

``steps`` runs the methods for AUC with several step sizes (of x and α alike), 8 sites, batches of 16, on tables of
24,000 rows in four regimes, on MNIST and at the four hospitals of UCI heart disease, with shares of positives from 0.5
to 30 %, where at least 100 positives are left. A run of 10 rounds takes half a second of one core, one of 40 two
seconds; all cells with 3 seeds take 2 hours: ``--cells``, ``--seeds`` and ``--most``, the seconds after which no other
run begins, do a part. What has been run is in runs/defaults-*.jsonl, and is not run again.

``hospitals`` runs three hospitals of 400 rows, 10 % of them positive, for 8 rounds, five times (half a minute).

Each writes its part of docs/results/defaults.md. Set EDELWEISS_DATA for MNIST and heart disease.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import insert
from benchmarks.studies import REPO
from edelweiss.lab.compare.text import markdown

PAGE = REPO / "docs" / "results" / "defaults.md"
KEPT, KEPT_PAIRS = REPO / "runs" / "defaults-steps.jsonl", REPO / "runs" / "defaults-pairs.jsonl"
TITLE = "What the defaults do"
RUN: dict[str, Any] = {"workers": 1, "device": "cpu", "report": False, "evidence": False, "checkpoint-every": 0}

REGIMES = ("clean", "hard", "miscoded", "heavy")
SHARES = ("0.005", "0.01", "0.05", "0.1", "0.3")
METHODS = ("codasca", "coda-plus", "local-sgda", "fmgda")
STEPS = (0.03, 0.1, 0.3, 1.0, 3.0)
DEFAULT = 0.3  # of `auc`
LEVEL = 0.01  # of AUROC
FACTOR = 3.4  # 0.1 and 1 are a factor of 3 from 0.3
JOB: dict[str, Any] = RUN | {
    "problem": "auc",
    "thin-share": 0.0,
    "local-steps": 20,
    "evaluate-every": 0,
    "stack": 8,
}
DATA: dict[str, dict[str, Any]] = {
    **{
        regime: {"dataset": "table", "group-column": "site", "partition": "sites", "test-share": 0.4}
        for regime in REGIMES
    },
    "mnist": {"dataset": "mnist", "partition": "dirichlet"},
    "heart": {"dataset": "heart-disease", "partition": "sites", "sites": 4, "test-share": 0.4},
}
CELLS = [
    f"{data}-{share}-{model}"
    for data, share, model in product(DATA, SHARES, ("linear", "mlp"))
    if data != "heart" or share == "0.3"  # fewer than 100 positives are left of rarer ones
]


# ---------------------------------------------------------------------- the default step


def table(regime: str, share: float, seed: int, rows: int = 24_000) -> NDArray[np.float64]:
    """Return features x0 to x9, site 0 to 7 and label, a row each.

    clean: positives are shifted along one direction. hard: 3 % of the negatives look extreme along it. miscoded: a
    tenth of the positives are coding errors, a far cluster on the wrong side. heavy: all features of a row share a
    heavy-tailed scale.
    """
    random = np.random.default_rng([sum(map(ord, regime)), seed, round(share * 1e5)])
    site, label = random.integers(0, 8, rows), (random.random(rows) < share).astype(int)
    features = random.normal(size=(rows, 10))
    if regime in ("clean", "heavy"):
        direction = np.linspace(1, 0.1, 10)
        features += 1.5 * label[:, None] * direction / np.linalg.norm(direction)
    if regime == "heavy":
        features *= np.sqrt(1.5 / random.chisquare(1.5, rows))[:, None]
    if regime == "hard":
        features[:, 0] += 2 * label + 6 * (1 - label) * (random.random(rows) < 0.03)
        features[:, 1] += label
    if regime == "miscoded":
        wrong = random.random(rows) < 0.1
        features[:, 0] += 1.5 * label * ~wrong - 6 * label * wrong
        features[:, 1] += label * ~wrong
    return np.column_stack([features, site, label])


def written_table(rows: NDArray[np.float64], file: str) -> str:
    """Write rows of `table` or `hospitals` with their header; return the file."""
    header = ",".join([*(f"x{i}" for i in range(10)), "site", "label"])
    np.savetxt(file, rows, "%.5f," * 10 + "%d,%d", header=header, comments="")
    return file


def auroc(cell: str, method: str, rounds: int, step: float, seed: int) -> float:
    """Run a method with a step size; return the AUROC on the common test set, NaN if it diverged."""
    from edelweiss.federation import RunError
    from edelweiss.server_app import simulate

    data, share, model = cell.split("-")
    job = JOB | DATA[data] | {"algorithm": method, "model": model, "seed": seed, "rounds": rounds, f"{method}.lr": step}
    if method in ("local-sgda", "fmgda"):
        job[f"{method}.lr-dual"] = step
    with tempfile.TemporaryDirectory() as folder:
        if data in REGIMES:
            job["data-file"] = written_table(table(data, float(share), seed), f"{folder}/table.csv")
        else:
            job |= {"thin-share": float(share), "data-root": os.environ["EDELWEISS_DATA"]}
        try:
            return float(simulate(job | {"runs-dir": folder}).metrics[-1]["central"]["auroc"])
        except RunError:
            return math.nan


def read(file: Path) -> list[dict[str, Any]]:
    """Return what `note` wrote."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def note(file: Path, run: dict[str, Any]) -> None:
    """Write a run down, and print it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        print(json.dumps(run), file=lines)
    print(*run.values(), flush=True)


def grid(cells: list[str], methods: list[str], rounds: int, steps: list[float], seeds: int, most: float) -> None:
    """Make the runs that are missing."""
    names = ("cell", "method", "rounds", "step", "seed")
    done, began = {tuple(one[name] for name in names) for one in read(KEPT)}, time.process_time()
    for seed, cell, method, step in product(range(seeds), cells, methods, steps):
        if (run := (cell, method, rounds, step, seed)) in done:
            continue
        if (start := time.process_time()) - began > most:
            break
        found = {"auroc": auroc(*run), "seconds": round(time.process_time() - start, 2)}
        note(KEPT, dict(zip(names, run, strict=True)) | found)


@dataclass(frozen=True)
class Row:
    """A cell, a method and a number of rounds: the mean AUROC of each step size, NaN where a run diverged."""

    cell: str
    method: str
    rounds: int
    seeds: int
    means: dict[float, float]

    @property
    def ended(self) -> dict[float, float]:
        """The step sizes that did not diverge."""
        return {step: mean for step, mean in self.means.items() if not math.isnan(mean)}

    @property
    def best(self) -> float:
        """The best step size."""
        return max(self.ended, key=self.ended.__getitem__)

    @property
    def level(self) -> list[float]:
        """The step sizes within `LEVEL` of the best."""
        return [step for step, mean in self.ended.items() if mean >= self.ended[self.best] - LEVEL]

    def near(self, step: float) -> bool:
        """Return whether a step size is within a factor of 3 of the best."""
        return max(self.best / step, step / self.best) < FACTOR

    def lost(self, step: float) -> float:
        """Return what a step size has less than the best; NaN where it diverged."""
        return self.means[self.best] - self.means[step]


def rows() -> list[Row]:
    """Return what all runs that were made say."""
    found: dict[tuple[str, str, int], dict[int, dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    for one in read(KEPT):
        found[one["cell"], one["method"], one["rounds"]][one["seed"]][one["step"]] = one["auroc"]
    lines = []
    for cell, method, rounds in sorted(found, key=lambda key: (key[2], CELLS.index(key[0]), METHODS.index(key[1]))):
        seeds = found[cell, method, rounds]
        steps = sorted(set.intersection(*(set(values) for values in seeds.values())))
        means = {step: statistics.fmean(values[step] for values in seeds.values()) for step in steps}
        lines.append(Row(cell, method, rounds, len(seeds), means))
    return lines


def written_steps() -> str:
    """Return the table of all runs that were made, and what it says."""
    lines, every = [], rows()
    for row in every:
        data, share, model = row.cell.split("-")
        shown = [data, f"{float(share):.1%}", model, row.method, f"{row.rounds * JOB['local-steps']}", f"{row.seeds}"]
        shown += [f"{row.means[step]:.3f}" if step in row.means else "" for step in STEPS]
        lost = row.means[DEFAULT] - row.means[row.best]
        lines.append([*shown, f"{min(row.level):g} to {max(row.level):g}", f"{lost:+.3f}"])
    nearly = sum(max(min(row.level) / DEFAULT, DEFAULT / max(row.level)) < FACTOR for row in every)
    steps = [f"{step:g}" for step in STEPS]
    heads = ["data", "positive", "model", "method", "steps", "seeds", *steps, "level", "default"]
    said = (
        "AUROC on the common test set by step size, after so many local steps. `level` are the step sizes within "
        f"{LEVEL:g} of the best, `default` is the AUROC of {DEFAULT:g} less the best. The default is within a factor "
        f"of 3 of the best step in {sum(row.near(DEFAULT) for row in every)} of {len(every)} rows, and of a level one "
        f"in {nearly}; it is level itself in {sum(DEFAULT in row.level for row in every)}. These runs took "
        f"{sum(one['seconds'] for one in read(KEPT)) / 60:.0f} minutes of one core."
    )
    aligned = ["---", "---:", *["---"] * 2, *["---:"] * (len(heads) - 4)]
    return f"{said}\n\n{markdown([heads, aligned, *lines])}\n\n{constants(every)}"


def constants(every: Sequence[Row]) -> str:
    """Return, for one step size in all rows, how often it does: by data and steps, by method and steps."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in every:
        groups[f"{row.cell.split('-')[0]}, {row.rounds * JOB['local-steps']} steps"].append(row)
    for row in sorted(every, key=lambda row: (row.rounds, METHODS.index(row.method))):
        groups[f"{row.method}, {row.rounds * JOB['local-steps']} steps"].append(row)
    groups["**all**"] = list(every)
    table = [["rows of", "rows", *(f"{step:g}" for step in STEPS)], ["---", *["---:"] * (1 + len(STEPS))]]
    for group, members in groups.items():
        table.append([group, f"{len(members)}", *(_did(members, step) for step in STEPS)])
    always = ", ".join(f"{step:g}" for step in STEPS if all(step in row.level for row in every))
    said = f"Level in all rows: {always}" if always else "No single constant does: none is level in all rows"
    return (
        f"{said}. For each step size: in how many rows it is level, in how many within a factor of 3 of the best, of "
        "the rows in which it was tried; the most that it loses to the best, ∞ where it diverges.\n\n" + markdown(table)
    )


def _did(members: Sequence[Row], step: float) -> str:
    tried = [row for row in members if step in row.means]
    if not tried:
        return ""
    lost = max(math.inf if math.isnan(lost) else lost for lost in (row.lost(step) for row in tried))
    counts = f"{sum(step in row.level for row in tried)}, {sum(row.near(step) for row in tried)}"
    of = f" of {len(tried)}" if len(tried) < len(members) else ""
    return f"{counts}{of}; {'∞' if math.isinf(lost) else f'{lost:.3f}'}"


# ---------------------------------------------------------------------- three hospitals, eight rounds


TRIES = 5
ARMS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "the best known": {"codasca.lr": 0.28, "sampler": "fixed-positives"},
    "`codasca.lr=0.1`": {"codasca.lr": 0.1},
    "`codasca.lr=1.0`": {"codasca.lr": 1.0},
    "`codasca.momentum=0.9`": {"codasca.momentum": 0.9},
    "`rounds=40`": {"rounds": 40},
    "FedAvg, cross-entropy": {"algorithm": "fedavg", "problem": "bce"},
    "FedAvg, `fedavg.lr=0.3`": {"algorithm": "fedavg", "problem": "bce", "fedavg.lr": 0.3},
}


def hospitals(seed: int, rows: int = 12_000) -> NDArray[np.float64]:
    """Return rows of three hospitals as `table` does: 10 % positives, shifted by 0.7 in four of ten features."""
    random = np.random.default_rng(seed)
    site, label = random.integers(0, 3, rows), (random.random(rows) < 0.1).astype(int)
    features = random.normal(size=(rows, 10))
    features[:, :4] += 0.7 * label[:, None]
    return np.column_stack([features, site, label])


def hospital_auroc(seed: int, own: dict[str, Any]) -> float:
    """Train on a tenth of the rows, 400 a site, for 8 rounds unless said; return the AUROC on the others."""
    job = RUN | DATA["clean"] | {"sites": 3, "rounds": 8, "test-share": 0.9, "evaluate-every": 0, "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        from edelweiss.server_app import simulate

        file = written_table(hospitals(seed), f"{folder}/table.csv")
        return float(simulate(job | own | {"data-file": file, "runs-dir": folder}).metrics[-1]["central"]["auroc"])


def three_hospitals() -> str:
    """Run all arms; return their table."""
    lines = []
    for label, own in ARMS.items():
        found = [hospital_auroc(seed, own) for seed in range(TRIES)]
        lines.append([label, f"{statistics.fmean(found):.3f}", ", ".join(f"{value:.3f}" for value in found)])
        print(*lines[-1], flush=True)
    return (
        "Three hospitals of 400 rows, of which they hold out a fifth, 10 % positive and shifted by 0.7 in four of ten "
        "features (no score has more than 0.84): the default run with `rounds=8`, so 80 local steps. AUROC on "
        f"{10_800:,} other rows, in the mean of {TRIES} tries.\n\n"
        + markdown([["run", "AUROC", "tries"], ["---", "---:", "---"], *lines])
    )


# ---------------------------------------------------------------------- every algorithm, every problem


MAML: dict[str, Any] = {"dataset": "digits", "partition": "iid", "sites": 2, "holdout-share": 0.4}
LOWER = ("loss", "distance-x", "distance-y")


def ends(algorithm: str, problem: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the numbers of an evaluation at the start of the built-in job, and at its end."""
    from edelweiss.config.tables import own_options
    from edelweiss.server_app import simulate
    from edelweiss.strategies import ALGORITHMS

    job = RUN | {"algorithm": algorithm, "problem": problem, "evaluate-every": 0} | (MAML if problem == "maml" else {})
    job |= {"model": "mlp-bn", "bn": "local"} if algorithm == "fedbn" else {}
    steps = [key for key in own_options(ALGORITHMS[algorithm]) if key.split("-")[0] == "lr"]
    still = {f"{algorithm}.{key}": 1e-30 for key in steps} | {"rounds": 1, "local-steps": 1}
    found = []
    for own in (still, {}):
        with tempfile.TemporaryDirectory() as folder:
            record = simulate(job | own | {"runs-dir": folder}).metrics[-1]
        found.append({name: value for name, value in record.items() if isinstance(value, float)})
    return found[0], found[1]


def pairs(most: float) -> str:
    """Run the built-in job with every algorithm and problem; return the table of those that were run."""
    from edelweiss.problems import PROBLEMS
    from edelweiss.strategies import ALGORITHMS, can_solve

    lines, worse, seconds, missing, first = [], [], 0.0, 0, time.process_time()
    done = {(one["algorithm"], one["problem"]): one for one in read(KEPT_PAIRS)}
    for algorithm, problem in product(ALGORITHMS, PROBLEMS):
        if not can_solve(ALGORITHMS[algorithm], PROBLEMS[problem]):
            continue
        if (one := done.get((algorithm, problem))) is None:
            if time.process_time() - first > most:
                missing += 1
                continue
            began = time.process_time()
            start, end = ends(algorithm, problem)
            one = {"algorithm": algorithm, "problem": problem, "start": start, "end": end}
            one["seconds"] = round(time.process_time() - began, 2)
            note(KEPT_PAIRS, one)
        start, end = one["start"], one["end"]
        seconds += one["seconds"]
        names = dict.fromkeys((*PROBLEMS[problem].reports[:1], "distance-x", "distance-y"))
        for name in [name for name in names if name in end] or ["loss"]:
            better = end[name] < start[name] if name in LOWER else end[name] > start[name]
            if not better:
                worse.append(f"{algorithm} on {problem}")
            lines.append(
                [algorithm, problem, name, f"{start[name]:.4g}", f"{end[name]:.4g}", "" if better else "worse"]
            )
    total = len({(algorithm, problem) for algorithm, problem, *_ in lines})
    said = f"worse in {len(worse)}: {', '.join(dict.fromkeys(worse))}" if worse else "better in all of them"
    heads = ["algorithm", "problem", "number", "start", "end", ""]
    return (
        f"The built-in job with {total} of the {total + missing} pairs of an algorithm and a problem that it solves, "
        f"as it comes: the model that it ends with is {said}. Numbers are of the common test set, or for personal "
        "models of what sites held out; maml has digits at 2 sites, FedBN a network with batch norm. These runs took "
        f"{seconds / 60:.0f} minutes of one core.\n\n"
        + markdown([heads, ["---", "---", "---", "---:", "---:", "---"], *lines])
    )


def main() -> None:
    """Run what is asked for, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("pairs", "steps", "hospitals"))
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=CELLS, metavar="CELL")
    parser.add_argument("--algorithms", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--rounds", type=int, default=40, help="of 20 local steps")
    parser.add_argument("--grid", type=float, nargs="+", default=STEPS, metavar="STEP")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--most", type=float, default=math.inf, help="seconds of this process")
    options = parser.parse_args()
    if options.part == "steps":
        grid(options.cells, options.algorithms, options.rounds, options.grid, options.seeds, options.most)
        insert(PAGE, "steps", TITLE, written_steps())
    elif options.part == "pairs":
        insert(PAGE, "pairs", TITLE, pairs(options.most))
    else:
        insert(PAGE, "hospitals", TITLE, three_hospitals())


if __name__ == "__main__":
    main()
