"""CODASCA and CODA+ against FedAvg with cross-entropy on MNIST with rare positives; writes docs/results/.

    python -m benchmarks.codasca_mnist --data-root FOLDER_WITH_MNIST

Every run is of experiments/codasca/mnist.toml. The step size of each algorithm is the best of the same grid at a seed
of its own (``TUNING_SEED``), by the pooled AUROC on the sites' held-out samples, which no reported number uses. Runs
that are in the folder of runs already are read, not run again.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import statistics
import sys
import tomllib
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
EXPERIMENT = REPO / "experiments" / "codasca" / "mnist.toml"
RESULTS = REPO / "docs" / "results"
ALGORITHMS = {"fedavg": "bce", "coda-plus": "auc", "codasca": "auc"}
GRID = (0.3, 1.0)
TUNING_SEED, SEEDS = 100, (0, 1, 2)


def run(runs: Path, data_root: str, algorithm: str, lr: float, seed: int, rounds: int) -> list[dict[str, Any]]:
    """Return the metrics of one run, running it if need be."""
    from server_app import simulate

    name = f"codasca-mnist-{algorithm}-{lr:g}-{seed}-{rounds}"
    metrics = runs / name / "metrics.jsonl"
    if not metrics.exists() or len(metrics.read_text().splitlines()) < rounds:
        job = tomllib.loads(EXPERIMENT.read_text(encoding="utf-8"))
        job |= {"algorithm": algorithm, "problem": ALGORITHMS[algorithm], f"{algorithm}.lr": lr, "seed": seed}
        job |= {"rounds": rounds, "data-root": data_root, "runs-dir": str(runs), "run-name": name}
        print(f"{name} ...", file=sys.stderr, flush=True)
        shutil.rmtree(runs / name, ignore_errors=True)  # of a run that was stopped
        simulate(job)
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def main() -> None:
    """Tune, run, write a CSV, a Markdown table and a picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True, help="folder that holds mnist/")
    parser.add_argument("--runs-dir", type=Path, default=REPO / "runs")
    parser.add_argument("--rounds", type=int, default=24)
    options = parser.parse_args()

    curves: dict[str, list[list[dict[str, Any]]]] = {}
    chosen: dict[str, float] = {}
    rows = []
    for algorithm in ALGORITHMS:
        tried = {
            lr: run(options.runs_dir, options.data_root, algorithm, lr, TUNING_SEED, options.rounds)[-1] for lr in GRID
        }
        chosen[algorithm] = max(GRID, key=lambda lr: tried[lr]["pooled"]["auroc"] or 0.0)
        curves[algorithm] = [
            run(options.runs_dir, options.data_root, algorithm, chosen[algorithm], seed, options.rounds)
            for seed in SEEDS
        ]
        for seed, records in zip(SEEDS, curves[algorithm], strict=True):
            last = records[-1]
            rows.append(
                {
                    "algorithm": algorithm,
                    "problem": ALGORITHMS[algorithm],
                    "lr": chosen[algorithm],
                    "seed": seed,
                    "rounds": last["round"],
                    "auroc": last["central"]["auroc"],
                    "auprc": last["central"]["auprc"],
                    "megabytes": sum(record["bytes-down"] + record["bytes-up"] for record in records) / 1e6,
                    "gradients": sum(record["gradients"] for record in records),
                }
            )
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / "codasca-mnist.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    lines = [
        "| algorithm | problem | step size | AUROC, mean ± sd of 3 seeds | AUPRC | exchanged, MB |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for algorithm in ALGORITHMS:
        mine = [row for row in rows if row["algorithm"] == algorithm]
        cells = []
        for metric in ("auroc", "auprc"):
            values = [float(row[metric]) for row in mine]
            cells.append(f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}")
        moved = f"{mine[0]['megabytes']:,.0f}"
        lines.append(
            f"| {algorithm} | {ALGORITHMS[algorithm]} | {chosen[algorithm]:g} | {cells[0]} | {cells[1]} | {moved} |"
        )
    (RESULTS / "codasca-mnist.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    draw(curves)


def draw(curves: dict[str, list[list[dict[str, Any]]]]) -> None:
    """Draw AUROC on the test set against rounds, a line per seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for number, (algorithm, seeds) in enumerate(curves.items()):
        for label, records in zip((algorithm, *["_"] * len(seeds)), seeds, strict=False):
            points = [(r["round"], r["central"]["auroc"]) for r in records if "central" in r]
            axes.plot(*zip(*points, strict=True), color=f"C{number}", label=label, marker=".")
    axes.set(xlabel="round", ylabel="AUROC, test set", title="MNIST, 10 % positive, 16 sites by class")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(RESULTS / "codasca-mnist.png", dpi=100)


if __name__ == "__main__":
    main()
