"""Whether the default `dp.clip` is near the best one: CODASCA for AUROC at ε = 8, on rare outcomes.

    python -m benchmarks.clips [--seeds 3]

Tables of ten features (`benchmarks.rare`, clean) at 8 sites, 1,000 patients each with a tenth of positives and 4,000
with a hundredth, and breast cancer at 2 sites with a tenth of positives in training, all with a linear model, 100 steps
and the default step size. The table has AUROC on the common test set, mean over seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import edelweiss as ew
from benchmarks.rare import Table, file_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edelweiss.common import Value

CLIPS = (0.0, 1.0, 2.0, 5.0, 10.0, 50.0)  # 0: the default
TABLES = {
    "table, a tenth positive": Table("clean", (0.1,) * 8, 8_000),
    "table, a hundredth positive": Table("clean", (0.01,) * 8, 32_000),
}
CANCER = "breast cancer, a tenth positive"
TABLE_RUN: dict[str, Value] = {
    "dataset": "arrays", "partition": "sites", "sites": 8, "batch-size": 64, "dp.delta": 1e-5,
}  # fmt: skip
CANCER_RUN: dict[str, Value] = {
    "dataset": "breast-cancer", "thin-share": 0.1, "partition": "iid", "sites": 2, "batch-size": 16, "dp.delta": 1e-3,
}  # fmt: skip
EVERY: dict[str, Value] = {
    "algorithm": "codasca", "problem": "auc", "model": "linear", "rounds": 10, "local-steps": 10, "evaluate-every": 0,
    "evidence": False, "dp.epsilon": 8.0, "workers": 1,
}  # fmt: skip


def auroc(data: str, clip: float, seed: int, folder: Path) -> tuple[float, float]:
    """Return AUROC on the common test set, and the clip that was used."""
    keys = CANCER_RUN if data == CANCER else TABLE_RUN | {"data-file": str(file_of(TABLES[data], seed, folder))}
    run = ew.simulate(EVERY | keys | {"seed": seed, "dp.clip": clip, "runs-dir": str(folder)}, progress=False)
    used = json.loads((run.folder / "about.json").read_text(encoding="utf-8"))["privacy"]["clip"]
    lines = (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    last = [line["central"] for line in map(json.loads, lines) if "central" in line][-1]
    return float(last["auroc"]), float(used)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    heads = ["data", "default", *(f"{clip:g}" for clip in CLIPS[1:])]
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    with tempfile.TemporaryDirectory() as folder:
        for data in (*TABLES, CANCER):
            cells = []
            for clip in CLIPS:
                found = [auroc(data, clip, seed, Path(folder)) for seed in range(options.seeds)]
                used = statistics.mean(each for _, each in found)
                value = f"{statistics.mean(each for each, _ in found):.3f}"
                cells.append(value if clip else f"{value} ({used:.1f})")
            print(f"| {data} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
