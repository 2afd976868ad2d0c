"""What runs leave behind, without the runs."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.pages import markdown
from benchmarks.studies import Value
from benchmarks.sweep import Sweep
from benchmarks.tables import gather
from edelweiss.lab.compare.runs import OUTCOME
from edelweiss.lab.sweep.job import Job, parsed

COST = {"bytes-down": 3e6, "bytes-up": 1e6, "gradients": 8.0, "samples": 160.0}


def pretend(sweep: Sweep, job: Job, *, held_out: float, test: float = 0.5, diverged: str = "") -> None:
    """Leave behind a run of one round."""
    lines = [{"round": 1, **COST, "pooled": {"auroc": held_out}, "central": {"auroc": test}}]
    leave(sweep, job, lines, diverged)


def leave(sweep: Sweep, job: Job, lines: list[dict[str, Any]], diverged: str = "") -> None:
    """Leave behind a run of any lines."""
    folder = sweep.folder / job.name
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.toml").write_text(parsed(job.settings).to_toml())
    (folder / OUTCOME).write_text(json.dumps({"diverged": diverged, "seconds": 1.0, "version": "1"}))


def every_run(sweep: Sweep) -> list[Job]:
    """Return the tuning runs, and those reported if the first point of each grid is chosen."""
    methods = sweep.study.methods
    tuning = [job for method in methods for job in sweep.tuning(method)]
    return tuning + [job for method in methods for job in sweep.reported(method, sweep.grid(method)[0])]


def lines(sweep: Sweep, start: str) -> list[str]:
    """The lines of the page's table whose first line starts so."""
    text = markdown(sweep, gather(sweep))
    return text[text.index(start) :].partition("\n\n")[0].splitlines()


def run(sweep: Sweep, tests: dict[str, dict[tuple[Value, ...], float]]) -> None:
    """Pretend runs with these values, by method and by (cell, seed)."""
    for each in sweep.study.methods:
        for job in sweep.tuning(each):
            pretend(sweep, job, held_out=0.6)
        for job in sweep.reported(each, sweep.grid(each)[0]):
            if (place := (*job.cell.values(), job.settings["seed"])) in tests[each.label]:
                pretend(sweep, job, held_out=0.6, test=tests[each.label][place])
