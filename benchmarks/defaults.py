"""What the defaults do: every algorithm on every problem that it solves, and the default step beside a grid of steps.

    python -m benchmarks.defaults pairs [--most 1200]
    python -m benchmarks.defaults steps [--cells clean-0.01-mlp ...] [--most 1200]
    python -m benchmarks.defaults hospitals

``pairs`` runs the built-in job (breast cancer, 8 sites, 40 rounds of 10 steps; maml and problems without data on their
own, FedBN with batch norm) with each algorithm and each problem, and compares the model that it ends with to the one
that it began with.

``steps`` runs the methods for AUC with several step sizes (of x and α alike), for as long as a default run: 40 rounds
of 10 local steps, batches of 16. The data are tables of 24,000 rows in four regimes at eight sites, MNIST at eight, and
the four hospitals of UCI heart disease. 5, 10 and 30 % are positive, and as few as leave at least 100 in training: 1 %
of the tables, 0.5 % of MNIST, 30 % of the heart patients. Sites hold nothing out, for a common test set decides. Each
step size has the same three seeds. The grid is 0.1, 0.3 and 1, and goes on to 0.03 or 3 where the mean is best at its
end. A run takes 2 to 3 seconds of one core, all of them 70 minutes.

What counts was fixed before the runs. The best step has the highest mean of three AUROC on the common test set; a step
with a run that diverged is none. The default is level if its mean is within 0.01 of that, which is open if two standard
errors of the paired difference reach across that limit. Another step becomes a method's own default if it is level in
more of its rows and, in none of the six data sets, in fewer, and loses less where it loses most.

``hospitals`` runs three hospitals of 400 rows, 10 % of them positive, for 8 rounds, five times (half a minute).

Each writes its part of docs/results/defaults.md; what has been run is in runs/defaults-*.jsonl, and is not run again.
With ``--most`` no run begins after so many seconds. Set EDELWEISS_DATA for MNIST and heart disease.
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
KEPT, KEPT_PAIRS = REPO / "runs" / "defaults-step-sizes.jsonl", REPO / "runs" / "defaults-pairs.jsonl"
TITLE = "What the defaults do"
RUN: dict[str, Any] = {"workers": 1, "device": "cpu", "report": False, "evidence": False, "checkpoint-every": 0}

REGIMES = ("clean", "hard", "miscoded", "heavy")
METHODS = ("codasca", "coda-plus", "local-sgda", "fmgda")
GRID, ENDS = (0.1, 0.3, 1.0), (0.03, 3.0)
STEPS = (ENDS[0], *GRID, ENDS[1])
SEEDS = 3
DEFAULT = 0.3  # of `auc`
LEVEL = 0.01  # of AUROC
FACTOR = 3.4  # 0.1 and 1 are a factor of 3 from 0.3
POSITIVES = 100  # in training, at least
JOB: dict[str, Any] = RUN | {
    "problem": "auc",
    "thin-share": 0.0,
    "holdout-share": 0.0,
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
SHARES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(REGIMES, ("0.01", "0.05", "0.1", "0.3")),
    "mnist": ("0.005", "0.05", "0.1", "0.3"),
    "heart": ("0.3",),
}
CELLS = [f"{data}-{share}-{model}" for data in DATA for share in SHARES[data] for model in ("linear", "mlp")]


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


def run(cell: str, method: str, step: float, seed: int, tables: str) -> dict[str, Any]:
    """Run a method with a step size: AUROC on the common test set, NaN if it diverged; positives in training.

    The table of each seed stays in the folder `tables`.
    """
    from edelweiss.federation import RunError
    from edelweiss.server_app import simulate

    data, share, model = cell.split("-")
    job = JOB | DATA[data] | {"algorithm": method, "model": model, "seed": seed, f"{method}.lr": step}
    if method in ("local-sgda", "fmgda"):
        job[f"{method}.lr-dual"] = step
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        if data in REGIMES:
            if not Path(file := f"{tables}/{cell}-{seed}.csv").exists():
                written_table(table(data, float(share), seed), file)
            job["data-file"] = file
        else:
            job |= {"thin-share": float(share), "data-root": os.environ["EDELWEISS_DATA"]}
        try:
            auroc = float(simulate(job | {"runs-dir": folder}).metrics[-1]["central"]["auroc"])
        except RunError:
            auroc = math.nan
        about = json.loads(next(Path(folder).glob("*/about.json")).read_text(encoding="utf-8"))
    positives = sum(site["positives"] for site in about["sites"].values())
    return {"auroc": auroc, "positives": positives, "seconds": round(time.process_time() - began, 2)}


def read(file: Path) -> list[dict[str, Any]]:
    """Return what `note` wrote."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def note(file: Path, one: dict[str, Any]) -> None:
    """Write a run down, and print it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        print(json.dumps(one), file=lines)
    print(*one.values(), flush=True)


def grid(cells: Sequence[str], methods: Sequence[str], most: float) -> None:
    """Make the runs that are missing; where the best step is at an end of the grid, go on there."""
    names = ("cell", "method", "step", "seed")
    done, began = {tuple(one[name] for name in names) for one in read(KEPT)}, time.process_time()
    for cell in cells:
        steps: dict[str, Sequence[float]] = dict.fromkeys(methods, GRID)
        with tempfile.TemporaryDirectory() as folder:
            while steps:
                for seed, method in product(range(SEEDS), steps):  # a seed's table is written and read once
                    for step in steps[method]:
                        if (cell, method, step, seed) in done:
                            continue
                        if time.process_time() - began > most:
                            return
                        found = run(cell, method, step, seed, folder)
                        note(KEPT, dict(zip(names, (cell, method, step, seed), strict=True)) | found)
                here = [row for row in rows() if row.cell == cell and row.method in steps]
                beyond = {row.method: {GRID[0]: ENDS[0], GRID[-1]: ENDS[1]}.get(row.best) for row in here}
                tried = {row.method: row.found for row in here}
                steps = {name: [step] for name, step in beyond.items() if step and step not in tried[name]}


@dataclass(frozen=True)
class Row:
    """A cell and a method: for each step size the AUROC of each seed, NaN where a run diverged."""

    cell: str
    method: str
    positives: int
    found: dict[float, list[float]]

    @property
    def means(self) -> dict[float, float]:
        """The mean AUROC of each step size, NaN where a run diverged."""
        return {step: statistics.fmean(values) for step, values in sorted(self.found.items())}

    @property
    def best(self) -> float:
        """The step size with the highest mean."""
        return max((step for step, mean in self.means.items() if not math.isnan(mean)), key=self.means.__getitem__)

    def near(self, step: float) -> bool:
        """Return whether a step size is within a factor of 3 of the best."""
        return max(self.best / step, step / self.best) < FACTOR

    def lost(self, step: float) -> float:
        """Return what a step size has less than the best, ∞ where it diverged."""
        lost = self.means[self.best] - self.means[step]
        return math.inf if math.isnan(lost) else lost

    def error(self, step: float) -> float:
        """Return the standard error of `lost`, from the differences at each seed."""
        lost = [best - other for best, other in zip(self.found[self.best], self.found[step], strict=True)]
        return statistics.stdev(lost) / math.sqrt(len(lost)) if not math.isnan(sum(lost)) else 0.0

    def level(self, step: float) -> bool:
        """Return whether a step size is within `LEVEL` of the best."""
        return self.lost(step) <= LEVEL

    def open(self, step: float) -> bool:
        """Return whether two standard errors reach across that limit."""
        return abs(self.lost(step) - LEVEL) < 2 * self.error(step)


def rows() -> list[Row]:
    """Return what the runs say: the rows that have all of the grid."""
    found: dict[tuple[str, str], dict[float, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    positives: dict[tuple[str, str], list[int]] = defaultdict(list)
    for one in read(KEPT):
        found[one["cell"], one["method"]][one["step"]][one["seed"]] = one["auroc"]
        positives[one["cell"], one["method"]].append(one["positives"])
    lines = []
    for cell, method in sorted(found, key=lambda key: (CELLS.index(key[0]), METHODS.index(key[1]))):
        steps = found[cell, method].items()
        full = {step: [seeds[seed] for seed in range(SEEDS)] for step, seeds in steps if len(seeds) == SEEDS}
        if full.keys() >= set(GRID) and min(positives[cell, method]) >= POSITIVES:
            lines.append(Row(cell, method, min(positives[cell, method]), full))
    return lines


def own_default(every: Sequence[Row]) -> float:
    """Return the step size that a method's rows call for: another than the default, or the default.

    Another is level in more rows and in none of the data sets in fewer, and loses less where it loses most.
    """
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in every:
        groups[row.cell.split("-")[0]].append(row)

    def counts(step: float) -> list[int]:
        return [sum(row.level(step) for row in group) for group in groups.values()]

    def most(step: float) -> float:
        return max(row.lost(step) for row in every)

    usual = counts(DEFAULT)
    better = [
        step
        for step in GRID
        if all(new >= old for new, old in zip(counts(step), usual, strict=True))
        and sum(counts(step)) > sum(usual)
        and most(step) < most(DEFAULT)
    ]
    return max(better, key=lambda step: (sum(counts(step)), -most(step)), default=DEFAULT)


def written_steps() -> str:
    """Return the tables of all runs, and what they say."""
    every, lines = rows(), []
    for row in every:
        data, share, model = row.cell.split("-")
        shown = [data, f"{float(share):.1%}", f"{row.positives}", model, row.method]
        shown += [f"{row.means[step]:.3f}" if step in row.means else "" for step in STEPS]
        said = ("level" if row.level(DEFAULT) else "**loses**") + "?" * row.open(DEFAULT)
        lines.append([*shown, f"{row.best:g}", f"{row.lost(DEFAULT):.3f} ± {row.error(DEFAULT):.3f}", said])
    level, far = [row for row in every if row.level(DEFAULT)], [row for row in every if not row.near(DEFAULT)]
    reach = [min(row.lost(step) for step in GRID) for row in far]
    took = sum(one["seconds"] for one in read(KEPT)) / 60
    text = (
        f"{len(every)} rows of {SEEDS} seeds, each as long as a default run. {DEFAULT:g} is within {LEVEL:g} of the "
        f"best step in {len(level)} of them, and loses more in {len(every) - len(level)}; "
        f"{sum(row.open(DEFAULT) for row in every)} of these verdicts are open (`?`): two standard errors of the "
        f"paired difference reach across the limit. It is within a factor of 3 of the best step in "
        f"{len(every) - len(far)} rows"
    )
    text += f"; in the others the best of 0.1, 0.3 and 1 loses at most {max(reach):.3f}." if far else "."
    heads = ["data", "positive", "count", "model", "method", *(f"{step:g}" for step in STEPS), "best", "0.3 loses", ""]
    aligned = ["---", "---:", "---:", "---", "---", *["---:"] * (len(STEPS) + 2), "---"]
    about = (
        "`count`: the positives in training, at the seed with the fewest. Then the mean AUROC of each step size on the "
        f"common test set, the best step, and what {DEFAULT:g} loses to it ± its standard error. The runs took "
        f"{took:.0f} minutes of one core."
    )
    return f"{text}\n\n{constants(every)}\n\n{about}\n\n{markdown([heads, aligned, *lines])}"


def constants(every: Sequence[Row]) -> str:
    """Return, for one step size in all rows of a method or of a data set: where it is level, and what it loses."""
    groups: dict[str, list[Row]] = {method: [row for row in every if row.method == method] for method in METHODS}
    for data in DATA:
        groups[data] = [row for row in every if row.cell.startswith(f"{data}-")]
    groups["**all**"] = list(every)
    table = [["rows of", "rows", *(f"{step:g}" for step in GRID)], ["---", *["---:"] * (1 + len(GRID))]]
    for group, members in groups.items():
        if members:
            table.append([group, f"{len(members)}", *(_did(members, step) for step in GRID)])
    wanted = {method: own_default(groups[method]) for method in METHODS if groups[method]}
    wanted = {method: step for method, step in wanted.items() if step != DEFAULT}
    said = " and ".join(f"{method} {step:g}" for method, step in wanted.items())
    said = f"this calls for a default of its own for {said}" if said else "no method needs another default"
    return (
        "In how many rows each step size is level, and the most that it loses, ∞ where it diverges. By the criterion "
        f"of the command, {said}.\n\n{markdown(table)}"
    )


def _did(members: Sequence[Row], step: float) -> str:
    lost = max(row.lost(step) for row in members)
    return f"{sum(row.level(step) for row in members)}; {'∞' if math.isinf(lost) else f'{lost:.3f}'}"


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
    parser.add_argument("--most", type=float, default=math.inf, help="seconds of this process")
    options = parser.parse_args()
    if options.part == "steps":
        grid(options.cells, options.algorithms, options.most)
        insert(PAGE, "steps", TITLE, written_steps())
    elif options.part == "pairs":
        insert(PAGE, "pairs", TITLE, pairs(options.most))
    else:
        insert(PAGE, "hospitals", TITLE, three_hospitals())


if __name__ == "__main__":
    main()
