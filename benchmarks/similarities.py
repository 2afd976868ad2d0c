"""Which workers become alike: class mixes, heads and bodies of DePRL's workers, pair by pair (its Figure 3).

    python -m benchmarks.similarities --data-root FOLDER

Sixteen workers on a ring train on MNIST for 20 rounds, with an MLP of 64 + 64, for each class mix of the paper and each
of three seeds. Afterwards the cosine is taken of every two workers' class shares, of their heads, and of what their
bodies have moved from the common start, which would make them all alike. Writes deprl-similarities.csv and its page.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.pages import insert
from benchmarks.studies import REPO, Value
from edelweiss.lab.compare.text import spread, write_csv

Floats = NDArray[np.float64]

MIXES = (0.1, 0.3, 0.5)
SEEDS = (0, 1, 2)
HEADINGS = ("bodies", "heads", "mixes and heads", "mixes and bodies")
JOB: dict[str, Value] = {
    "algorithm": "deprl",
    "problem": "cross-entropy",
    "dataset": "mnist",
    "partition": "dirichlet",
    "personal-test": True,
    "sites": 16,
    "model": "mlp",
    "hidden": 64,
    "batch-size": 16,
    "local-steps": 5,
    "rounds": 20,
    "evaluate-every": 0,
    "central-test": False,
    "checkpoint-every": 0,
    "workers": 1,
    "deprl.topology": "ring",
    "deprl.body-steps": 5,
    "deprl.lr-head": 0.15,
    "deprl.lr-body": 0.15,
}


def cosines(vectors: Floats) -> Floats:
    """Return the cosine of every two of n vectors, shape (n (n-1) / 2,)."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return (unit @ unit.T)[np.triu_indices(len(unit), 1)]


def measure(job: Mapping[str, Value]) -> dict[str, float]:
    """Train the workers of a job, and return how alike they are: mean cosines, and correlations over all pairs."""
    from safetensors.torch import load_file

    from edelweiss.client_app.personalise import FinishedRun
    from edelweiss.datasets import load_site
    from edelweiss.server_app import simulate

    with tempfile.TemporaryDirectory() as folder:
        place: dict[str, Value] = {"runs-dir": folder, "run-name": "run", "state-dir": f"{folder}/state"}
        simulate({**job, **place})
        given = FinishedRun.read(Path(folder) / "run")
        config, sites = given.config, given.config.sites
        problem = config.build_problem(config.setting(given.data_summary, "cpu"))
        files = [next(Path(folder).glob(f"state/models/*-site-{site}.safetensors")) for site in range(sites)]
        x = torch.stack([load_file(file)["x"] for file in files])
    start, first = problem.initial()["x"], problem.head
    shares = np.stack(
        [
            load_site(config.data(), site, sites).train.targets().bincount(minlength=given.data_summary.classes).numpy()
            for site in range(sites)
        ]
    ).astype(np.float64)
    moved = (x - start).double().numpy()
    mixes, bodies, heads = cosines(shares), cosines(moved[:, :first]), cosines(x[:, first:].double().numpy())
    return {
        "bodies": float(bodies.mean()),
        "heads": float(heads.mean()),
        "mixes and heads": float(np.corrcoef(mixes, heads)[0, 1]),
        "mixes and bodies": float(np.corrcoef(mixes, bodies)[0, 1]),
    }


def markdown(lines: Sequence[Mapping[str, float]]) -> str:
    """Return the table: a row per class mix."""
    command = "python -m benchmarks.similarities"
    table = [f"| π | {' | '.join(HEADINGS)} |", "| ---: |" + " ---: |" * len(HEADINGS)]
    for mix in MIXES:
        mine = [line for line in lines if line["concentration"] == mix]
        table.append(f"| {mix} | {' | '.join(spread([line[heading] for line in mine]) for heading in HEADINGS)} |")
    return (
        f"<!-- Written by `{command}`; do not edit. -->\n\n"
        f"`{command}`: DePRL on MNIST, {JOB['sites']} workers on a ring, {JOB['rounds']} rounds. The mean cosine of "
        "two workers' bodies (what they moved from their common start) and heads, and the correlation, over all pairs, "
        "of these cosines with that of the class mixes: mean ± standard deviation over "
        f"{len(SEEDS)} seeds.\n\n" + "\n".join(table) + "\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.similarities",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    data = os.environ.get("EDELWEISS_DATA", "")
    parser.add_argument("--data-root", default=data, help="folder with mnist/")
    parser.add_argument("--results-dir", type=Path, default=REPO / "docs" / "results", help="where results are written")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    place: dict[str, Value] = {"data-root": options.data_root} if options.data_root else {}
    lines: list[dict[str, float]] = []
    for mix in MIXES:
        for seed in SEEDS:
            found = measure({**JOB, **place, "concentration": mix, "seed": seed})
            lines.append({"concentration": mix, "seed": seed, **found})
    write_csv(options.results_dir / "deprl-similarities.csv", lines)
    text = markdown(lines)
    insert(options.results_dir / "deprl-similarities.md", "deprl-similarities", "Which workers become alike", text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
