"""What workers that were not there get from a study's runs: a head of their own on the body that the others trained.

    python -m benchmarks.newcomers deprl-mnist

Reads the runs that `python -m benchmarks.reproduce deprl-mnist` left. Half as many new workers, as in the paper, but
eight at least, share the test set, on which nobody has trained, by the run's own Dirichlet distribution. Each trains a
head on half of its images, as `edelweiss-site personalise --head fresh` does, whatever the method, and is tested
on the other half, before and after. Writes NAME-newcomers.csv, and the study's part of deprl-newcomers.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from benchmarks.pages import insert
from benchmarks.studies import REPO, STUDIES, Study
from benchmarks.studies.deprl_tables import NEWCOMERS, NEWCOMERS_NOTE
from benchmarks.sweep import Sweep
from edelweiss.common import Stream
from edelweiss.lab.compare.text import number, spread, write_csv
from edelweiss.lab.sweep.job import Job, combinations

STEPS = 200
KEY = "concentration"


def measure(folder: Path, data_root: str) -> tuple[float, float]:
    """Return the new workers' mean accuracy before and after they have trained heads on the model of a run."""
    import numpy as np
    import torch

    from edelweiss.client_app.personalise import FinishedRun, personalise
    from edelweiss.datasets import SiteData, load_test
    from edelweiss.datasets.partition import Rows, partition
    from edelweiss.datasets.splits import stratified

    torch.set_num_threads(1)
    given = FinishedRun.read(folder, {"data-root": data_root} if data_root else {})
    test = load_test(replace(given.config.data(), personal_test=False))
    assert test is not None, "the studies' data come with a test set"
    labels = test.targets().numpy()
    random = np.random.default_rng([given.config.seed, Stream.NEW_SITES])
    rows = Rows(labels, labels, np.zeros_like(labels), None, given.config.concentration)
    newcomers = max(8, given.config.sites // 2)
    owner = partition("dirichlet", rows, newcomers, random)
    before: list[float] = []
    after: list[float] = []
    for k in range(newcomers):
        mine = np.flatnonzero(owner == k)
        held_out = stratified(labels[mine], 0.5, random)
        parts = (torch.from_numpy(mine[chosen]) for chosen in (~held_out, held_out))
        train, own_test = (replace(test, rows=test.rows[part]) for part in parts)
        data = SiteData(f"new-{k}", train, own_test, given.data_summary.classes, 0)
        outcome = personalise(given, data, steps=STEPS, head="fresh")
        for values, metrics in ((before, outcome.before), (after, outcome.after)):
            values.append(float(metrics["accuracy"]))  # type: ignore[arg-type]  # other metrics are lists
    return statistics.mean(before), statistics.mean(after)


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    named = [name for name, study in STUDIES.items() if KEY in study.compare]
    data = os.environ.get("EDELWEISS_DATA", "")
    parser.add_argument("name", choices=named, help="of a study whose runs are there")
    parser.add_argument("--data-root", default=data, help="folder with mnist/, cifar10/")
    parser.add_argument("--runs-dir", type=Path, default=REPO / "runs" / "reproduce", help="where the runs are")
    parser.add_argument("--results-dir", type=Path, default=REPO / "docs" / "results", help="where results are written")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: one per core")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every run of a study that left a body, and write the tables; returns the exit code."""
    options = command_line().parse_args(arguments)
    study = STUDIES[options.name]
    sweep = Sweep(study, options.runs_dir.expanduser().resolve() / study.name)
    there = [job for job in sweep.chosen() if (sweep.folder / job.name / "model.safetensors").exists()]
    if not there:
        print(f"error: no runs in {sweep.folder}: {sweep.command} makes them", file=sys.stderr)
        return 1
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        folders, roots = [sweep.folder / job.name for job in there], [options.data_root] * len(there)
        found = list(zip(there, pool.map(measure, folders, roots), strict=True))
    name = f"{study.name}-newcomers"
    text = markdown(study, found)
    write_csv(
        options.results_dir / f"{name}.csv",
        [
            {
                "method": job.method.label,
                KEY: job.cell[KEY],
                "seed": job.repeat["seed"],
                "before": before,
                "after": after,
            }
            for job, (before, after) in found
        ],
    )
    insert(options.results_dir / "deprl-newcomers.md", name, "New workers", text)
    print(text)
    return 0


def markdown(study: Study, found: Sequence[tuple[Job, tuple[float, float]]]) -> str:
    """Return the table: a row per method, two columns per class mix, and the paper's where it has one."""
    cells = defaultdict(list)
    for job, accuracies in found:
        cells[job.method.label, job.cell[KEY]].append(accuracies)
    mixes = [cell[KEY] for cell in combinations(study.compare)]
    command = f"python -m benchmarks.newcomers {study.name}"
    theirs = NEWCOMERS.get(study.name, {})
    kinds = ("untrained", "own head", *(["paper"] if theirs else []))
    headings = ["method", *(f"π = {mix}, {kind}" for mix in mixes for kind in kinds)]
    table = [f"| {' | '.join(headings)} |", "|" + " --- |" + " ---: |" * (len(headings) - 1)]
    for label in dict.fromkeys(job.method.label for job, _ in found):
        line = [label]
        for mix in mixes:
            line += [spread([pair[when] for pair in cells[label, mix]]) for when in (0, 1)]
            line += [number(theirs.get(label, {}).get(mix))] if theirs else []
        table.append(f"| {' | '.join(line)} |")
    text = (
        f"<!-- Written by `{command}`; do not edit. -->\n\n"
        f"`{command}`: {study.title}, half as many new workers with {STEPS} steps on the head. Accuracy with an "
        "untrained head, the same for all methods, and with the head of their own that they train from it: mean over "
        f"the new workers, mean ± standard deviation over {len(study.repeat['seed'])} seeds."
    )
    text += f" {NEWCOMERS_NOTE}" if theirs else ""
    return f"{text}\n\n" + "\n".join(table) + "\n"


if __name__ == "__main__":
    sys.exit(main())
