"""Whether CODA and FedRoD learn under differential privacy: whole runs at ε = 8 beside plain ones and FedAvg's.

    python -m benchmarks.private_methods [--seeds 3]

AUROC on the common test set, mean over seeds, at the best of the step sizes 0.1, 0.3 and 1, chosen for each cell by
that mean (which would cost two runs more at a hospital). An MLP, 100 local steps, the default clip. Of FedRoD it is
the common model's, by the difference of its two outputs; its sites' own heads are trained as well, and paid for.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from scipy.stats import rankdata

import edelweiss as ew
from edelweiss.datasets import DataSummary, load_test
from edelweiss.models.storage import StoredTensors
from edelweiss.problems.network import NetworkProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edelweiss.common import Value

METHODS = {"fedavg": "bce", "coda": "auc", "fedrod": "cross-entropy"}
STEPS, EPSILONS = (0.1, 0.3, 1.0), (0.0, 8.0)
DATA: dict[str, dict[str, Value]] = {
    "heart disease, the four hospitals": {
        "dataset": "heart-disease", "partition": "sites", "sites": 4, "batch-size": 32, "dp.delta": 1e-4,
    },
    "breast cancer, 2 sites": {
        "dataset": "breast-cancer", "partition": "iid", "sites": 2, "batch-size": 32, "dp.delta": 1e-3,
    },
    "MNIST, 8 against 3, 2 sites": {
        "dataset": "arrays", "partition": "iid", "sites": 2, "batch-size": 128, "dp.delta": 1e-5,
    },
}  # fmt: skip
EVERY: dict[str, Value] = {
    "model": "mlp", "rounds": 10, "local-steps": 10, "evaluate-every": 0, "evidence": False, "report": False,
    "sampler": "uniform", "thin-share": 0.0, "workers": 1,
}  # fmt: skip


def mnist(folder: Path) -> Path:
    """Write MNIST's eights and threes as classes 1 and 0, a quarter of them to test on."""
    from safetensors.torch import save_file

    from edelweiss.datasets.files import SearchPath
    from edelweiss.datasets.sources.mnist import read

    if not (file := folder / "digits.safetensors").exists():
        source = read("mnist", "MNIST", SearchPath.of("", download=True))
        digits = torch.as_tensor(source.classes)
        chosen = torch.nonzero((digits == 8) | (digits == 3)).flatten()
        save_file({"inputs": source.inputs[chosen], "classes": (digits[chosen] == 8).long()}, file)
    return file


def auroc(keys: dict[str, Value]) -> float:
    """Return the AUROC of a run's common model on the common test set."""
    run = ew.simulate(keys, progress=False)
    summary = DataSummary.of_file(StoredTensors.read(run.folder / "model.safetensors").facts)
    problem, test = run.config.build_problem(run.config.setting(summary, "cpu", site=0)), load_test(run.config.data())
    assert isinstance(problem, NetworkProblem)
    assert test is not None
    scores = problem.logits(torch.from_numpy(run.arrays["x"]), summary.standardised(test)).double()
    order = scores[:, 1] - scores[:, 0] if scores.ndim > 1 and scores.shape[1] > 1 else scores.flatten()
    positive = test.targets() == 1
    ranks, count = rankdata(order.numpy())[positive.numpy()], int(positive.sum())
    return float((ranks.mean() - (count + 1) / 2) / (len(positive) - count))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args(arguments).seeds)
    print("| data | method | ε = ∞ | ε = 8 |\n| --- | --- | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for (data, own), (algorithm, problem) in product(DATA.items(), METHODS.items()):
            file: dict[str, Value] = {"data-file": str(mnist(Path(folder)))} if own["dataset"] == "arrays" else {}
            keys = EVERY | own | file | {"algorithm": algorithm, "problem": problem, "runs-dir": folder}
            cells = []
            for epsilon in EPSILONS:
                private: dict[str, Value] = {"dp.epsilon": epsilon, "dp.delta": own["dp.delta"]} if epsilon else {}
                means = []
                for step in STEPS:
                    named = {f"{algorithm}.lr": step} | ({"fedrod.lr-head": step} if algorithm == "fedrod" else {})
                    job = {key: value for key, value in keys.items() if key != "dp.delta"} | private | named
                    means.append(statistics.mean(auroc(job | {"seed": seed}) for seed in seeds))
                cells.append(f"{max(means):.3f}")
            print(f"| {data} | {algorithm}-{problem} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
