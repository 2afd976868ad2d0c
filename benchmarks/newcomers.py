"""What workers that were not there get from a study's runs: a head of their own on the body that the others trained.

    python -m benchmarks.newcomers deprl-mnist

Reads the runs that `python -m benchmarks.reproduce deprl-mnist` left. Eight new workers share the test set, on which
nobody has trained, by the run's own Dirichlet distribution. Each trains a head on half of its images, as
`python -m client_app personalise` does, and is tested on the other half, before and after. Writes
NAME-newcomers.csv and NAME-newcomers.md.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from benchmarks.reproduce import Sweep, combinations
from benchmarks.studies import REPO, STUDIES
from benchmarks.tables import insert, spread

NEWCOMERS = 8
STEPS = 200
KEY = "concentration"


def measure(folder: Path, data_root: str) -> tuple[float, float]:
    """Return the new workers' mean accuracy before and after they have trained heads on the model of a run."""
    import numpy as np
    import torch

    from client_app.personalise import Given, personalise
    from datasets import SiteData, load_test
    from datasets.partition import Rows, partition
    from datasets.splits import stratified

    torch.set_num_threads(1)
    given = Given.read(folder, {"data-root": data_root} if data_root else {})
    test = load_test(replace(given.config.data(), personal_test=False))
    assert test is not None, "the studies' data come with a test set"
    labels = test.targets().numpy()
    random = np.random.default_rng([given.config.seed, 9])
    rows = Rows(labels, labels, np.zeros_like(labels), None, given.config.concentration)
    owner = partition("dirichlet", rows, NEWCOMERS, random)
    before: list[float] = []
    after: list[float] = []
    for k in range(NEWCOMERS):
        mine = np.flatnonzero(owner == k)
        held_out = stratified(labels[mine], 0.5, random)
        parts = (torch.from_numpy(mine[chosen]) for chosen in (~held_out, held_out))
        train, own_test = (replace(test, rows=test.rows[part]) for part in parts)
        data = SiteData(f"new-{k}", train, own_test, given.facts["classes"], 0)
        outcome = personalise(given, data, steps=STEPS)
        for values, metrics in ((before, outcome.before), (after, outcome.after)):
            values.append(float(metrics["accuracy"]))  # type: ignore[arg-type]  # other metrics are lists
    return statistics.mean(before), statistics.mean(after)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every run of a study that left a body, and write the tables; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    named = [name for name, study in STUDIES.items() if KEY in study.compare]
    parser.add_argument("name", choices=named, help="of a study whose runs are there")
    parser.add_argument(
        "--data-root", default=os.environ.get("EDELWEISS_DATA", ""), help="folder with mnist/, cifar10/"
    )
    parser.add_argument("--runs-dir", type=Path, default=REPO / "runs" / "reproduce", help="where the runs are")
    parser.add_argument("--results-dir", type=Path, default=REPO / "docs" / "results", help="where results are written")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: one per core")
    options = parser.parse_args(arguments)

    study = STUDIES[options.name]
    sweep = Sweep(study, False, options.runs_dir.expanduser().resolve() / study.name)
    points = ((method, sweep.choose(method)) for method in study.methods)
    jobs = [job for method, point in points if point is not None for job in sweep.reported(method, point)]
    there = [job for job in jobs if (sweep.folder / job.name / "model.safetensors").exists()]
    if not there:
        print(
            f"error: no runs in {sweep.folder}: python -m benchmarks.reproduce {study.name} makes them", file=sys.stderr
        )
        return 1
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        folders, roots = [sweep.folder / job.name for job in there], [options.data_root] * len(there)
        found = dict(zip([job.name for job in there], pool.map(measure, folders, roots), strict=True))

    lines, cells = [], defaultdict(list)
    for job in there:
        before, after = found[job.name]
        cells[job.method.label, job.cell[KEY]].append((before, after))
        line = {"method": job.method.label, KEY: job.cell[KEY], "seed": job.repeat["seed"]}
        lines.append(line | {"before": before, "after": after})
    name = f"{study.name}-newcomers"
    with (options.results_dir / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    mixes = [cell[KEY] for cell in combinations(study.compare)]
    command = f"python -m benchmarks.newcomers {study.name}"
    headings = ["method", *(f"π = {mix}, {when}" for mix in mixes for when in ("given", "own head"))]
    table = [f"| {' | '.join(headings)} |", "|" + " --- |" + " ---: |" * (len(headings) - 1)]
    for label in dict.fromkeys(job.method.label for job in there):
        numbers = [spread([pair[when] for pair in cells[label, mix]]) for mix in mixes for when in (0, 1)]
        table.append(f"| {label} | {' | '.join(numbers)} |")
    text = (
        f"<!-- Written by `{command}`; do not edit. -->\n\n"
        f"`{command}`: {study.title}, {NEWCOMERS} new workers with {STEPS} steps on the head. Accuracy with the head "
        "that comes with the model (an untrained one where sites keep theirs) and with an own one: mean over the new "
        f"workers, mean ± standard deviation over {len(study.repeat['seed'])} seeds.\n\n" + "\n".join(table) + "\n"
    )
    (options.results_dir / f"{name}.md").write_text(text, encoding="utf-8")
    insert(options.results_dir.parent / "results.md", name, text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
