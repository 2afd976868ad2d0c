"""What messages in 16 bits, and estimators in 8, do to bytes and AUROC.

    EDELWEISS_DATA=folder/with/mnist python -m benchmarks.wire      # about 25 minutes

Writes docs/results/wire.csv, and the table in wire.md. The job is that of experiments/codasca/mnist-pairs.toml, but
smaller: pairs of MNIST digits, 10 % positive, 8 sites of which no two share a class, an MLP of 64 + 64, 48 rounds of 32
local steps, a third of the step size after half of them. Step sizes are the best of a few with exact messages, at a
seed that the table does not use, and once a tiny one. So a row differs from the first of its method in nothing but the
messages.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.pages import insert
from benchmarks.studies.study import REPO
from edelweiss.lab.compare.groups import CONFIDENCE, half_width
from edelweiss.lab.compare.text import markdown, write_csv

if TYPE_CHECKING:
    from collections.abc import Sequence

EXPERIMENT = REPO / "experiments" / "codasca" / "mnist-pairs.toml"
ROUNDS, STEPS = 48, 32
SMALLER: dict[str, Any] = {"sites": 8, "model": "mlp", "hidden": 64, "local-steps": STEPS}
RUN: dict[str, Any] = {"workers": 1, "device": "cpu", "checkpoint-every": 0, "evidence": False, "report": False}
METHODS: dict[
    str, dict[str, Any]
] = {  # with the step size that was chosen of 0.03, 0.1, 0.3 and 1; the last a tiny one
    "codasca": {"algorithm": "codasca", "problem": "auc", "codasca.lr": 1.0},
    "fmgda": {"algorithm": "fmgda", "problem": "auc", "fmgda.lr": 0.3, "fmgda.lr-dual": 0.3},
    "fedavg": {"algorithm": "fedavg", "problem": "bce", "fedavg.lr": 1.0},
    "fedavg, η = 0.01": {"algorithm": "fedavg", "problem": "bce", "fedavg.lr": 0.01},
}
EXACT = ("float32", "")
FORMATS = (EXACT, ("bf16", ""), ("float16", ""), ("float32", "int8"), ("bf16", "int8"))  # wire, wire-estimators


def run(method: str, wire: str, estimators: str, seed: int, rounds: int) -> dict[str, Any]:
    """Run a method; return a line with AUROC on the common test set, and the mean bytes of a site in a round."""
    from edelweiss.server_app import simulate

    written: dict[str, Any] = {"wire": wire, "wire-estimators": estimators, "seed": seed}
    line: dict[str, Any] = {"method": method, **written}
    job = tomllib.loads(EXPERIMENT.read_text(encoding="utf-8"))
    del job["codasca"]
    job |= SMALLER | RUN | METHODS[method] | {"rounds": rounds, "stage-iterations": rounds * STEPS // 2} | written
    with tempfile.TemporaryDirectory() as folder:
        records = simulate(job | {"data-root": os.environ["EDELWEISS_DATA"], "runs-dir": folder}, quiet=True).metrics
    for way in ("down", "up"):
        line[f"bytes {way}"] = round(statistics.mean(record[f"bytes-{way}"] for record in records) / job["sites"])
    return line | {"AUROC": round(records[-1]["central"]["auroc"], 6)}


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return a row for each method and format, with paired differences to the exact messages."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["method"], line["wire"], line["wire-estimators"]), []).append(line)
    rows = [
        [
            "method",
            "`wire`",
            "`wire-estimators`",
            "kB down",
            "kB up",
            "of float32",
            "AUROC",
            "difference",
            f"{CONFIDENCE:.0%} interval",
        ],
        ["---"] * 3 + ["---:"] * 6,
    ]
    for (method, *written), found in groups.items():
        exact = groups[method, *EXACT]
        (down, up), all_exact = ([one[0][f"bytes {way}"] / 1e3 for way in ("down", "up")] for one in (found, exact))
        values = [line["AUROC"] for line in found]
        share = (down + up) / sum(all_exact)
        row = [method, written[0], written[1] or "-", f"{down:.1f}", f"{up:.1f}", f"{share:.2f}"]
        row.append(f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}")
        pairs = [line["AUROC"] - base["AUROC"] for line, base in zip(found, exact, strict=True)]
        mean, half = statistics.mean(pairs), half_width(pairs)
        against = [f"{mean:+.4f}", f"{mean - half:+.4f} to {mean + half:+.4f}"]
        rows.append(row + (["", ""] if found is exact else against))
    return markdown(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write a table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="2 or more")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--results-dir", type=Path, default=REPO / "docs" / "results")
    options = parser.parse_args(arguments)
    if not os.environ.get("EDELWEISS_DATA"):
        sys.exit("EDELWEISS_DATA is not set: it names the folder that holds mnist/")
    if options.seeds < 2:
        parser.error("--seeds: an interval takes two runs")

    from edelweiss.strategies import ALGORITHMS

    estimates = {name for name, keys in METHODS.items() if ALGORITHMS[keys["algorithm"]].messages.estimates}
    jobs = [(name, *form) for name in METHODS for form in FORMATS if not form[1] or name in estimates]
    lines = []
    for place, job in enumerate(jobs, 1):
        for seed in range(options.seeds):
            lines.append(run(*job, seed, options.rounds))
            print(
                f"[{place}/{len(jobs)}] {' '.join(filter(None, job))}, seed {seed}: {lines[-1]['AUROC']:.4f}",
                file=sys.stderr,
                flush=True,
            )
    write(lines, options.results_dir, options.rounds, options.seeds)
    return 0


def write(lines: Sequence[dict[str, Any]], folder: Path, rounds: int, seeds: int) -> None:
    """Write the CSV, and the generated part of the page."""
    write_csv(folder / "wire.csv", lines)
    text = (
        "<!-- Written by `python -m benchmarks.wire`; do not edit. -->\n\n"
        f"kB are those of a site in a round, in the mean over {rounds} rounds. AUROC on the common test set, mean ± "
        f"standard deviation over {seeds} seeds; differences to the exact messages, paired by seed.\n\n"
    )
    insert(folder / "wire.md", "wire", "Rounded messages", text + table(lines) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
