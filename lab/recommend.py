"""Which recipe suits given data: a sweep of a few recipes, each compared with cross-entropy.

The search gives every recipe equally many random step sizes and chooses among them on held-out samples, at a seed of
its own. The recipes are then compared with other seeds, so that no number flatters what was chosen.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edelweiss.common.files import as_path, unwritable
from edelweiss.common.overrides import to_toml, toml_value
from edelweiss.common.scratch import Scratch
from edelweiss.config import ConfigError, RunConfig
from edelweiss.config.plug_ins import load_own
from edelweiss.config.tables import open_steps
from edelweiss.datasets.config import SITE
from edelweiss.lab.compare.runs import MACHINE, lower_is_better, shown
from edelweiss.lab.sweep.file import PLACE, UNUSED
from edelweiss.lab.sweep.folder import best_of_tuning, group_of, sweep
from edelweiss.problems import PROBLEMS
from edelweiss.strategies import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from edelweiss.common import Value
    from edelweiss.lab.compare.comparison import Comparison
    from edelweiss.lab.sweep.job import Job
    from edelweiss.lab.sweep.jobs import Sweep
    from edelweiss.lab.sweep.study import Study

DRAWS, SEEDS = 5, 6
TUNING_SEED = 100  # chooses; those that compare are below it
SPAN = 10.0  # step sizes are drawn between the default divided by this and the default times this


@dataclass(frozen=True)
class Family:
    """Recipes for one kind of data, as pairs of an algorithm and a problem; the others are compared with the first."""

    recipes: tuple[tuple[str, str], ...]
    select: str  # what chooses and compares: a mean over sites, for a site may have a model of its own


TWO_CLASSES = Family(
    (("fedavg", "bce"), ("fedavg", "bce-weighted"), ("local-sgda", "auc-margin"), ("ditto", "bce")),
    "over-sites.auroc.mean",
)
MORE_CLASSES = Family(
    (
        ("fedavg", "cross-entropy"),
        ("fedavg", "cross-entropy-weighted"),
        ("local-sgda", "fair"),
        ("ditto", "cross-entropy"),
    ),
    "over-sites.worst-class.mean",
)


def recommend(
    given: Mapping[str, Value], to: str | Path, jobs: int, *, draws: int = DRAWS, seeds: int = SEEDS, select: str = ""
) -> tuple[Path, Comparison]:
    """Compare the recipes on a run-config's simulation; return the folder, which has winner.toml, and the comparison.

    ``select`` chooses and compares; by default the family's.

    Raises
    ------
    ConfigError
        Before the first run, for all that is wrong with the run-config and the arguments.
    StoppedError
        When a run cannot be done.
    """
    family, base = prepared(given, seeds)
    if draws < 1:
        raise ConfigError("command", [f"--draws {draws}: must be 1 or more"])
    select = select or family.select
    with Scratch() as scratch:
        file = scratch / "recommend.toml"
        file.write_text(sweep_file(family, base, draws, seeds, select), encoding="utf-8")
        return sweep(file, to, jobs, metrics=[select], decide=shown_to_be_better)


def prepared(given: Mapping[str, Value], seeds: int) -> tuple[Family, dict[str, Value]]:
    """Return the recipes for a run-config, and the keys that all runs share; ConfigError for what is wrong."""
    given = load_own(given)
    keys = RunConfig.keys()
    problem = PROBLEMS.get(str(given.get("problem", keys["problem"].default)))
    family = MORE_CLASSES if problem and problem.multiclass else TWO_CLASSES
    algorithm, first = family.recipes[0]
    RunConfig.parse({**given, **({"algorithm": algorithm, "problem": first} if problem else {})})
    wrong = [] if 2 <= seeds <= TUNING_SEED else [f"--seeds {seeds}: must be from 2 to {TUNING_SEED}"]
    if problem and not problem.needs_data:
        wrong.append(f"problem = {problem.name!r} has no data: name one that has, or leave it out")
    chosen = {"algorithm", "problem", *MACHINE} - {*PLACE}
    base = {
        key: value
        for key, value in given.items()
        if key not in chosen and not (key in keys and value == keys[key].default)
    }
    wrong += [f"{key} = {value!r}: {UNUSED[key]}: leave it out" for key, value in base.items() if key in UNUSED]
    if wrong:
        raise ConfigError("command", wrong)
    return family, base


def sweep_file(family: Family, base: Mapping[str, Value], draws: int, seeds: int, select: str) -> str:
    """Return the file of the sweep that compares the recipes."""
    steps: dict[str, float] = {}
    for algorithm, problem in family.recipes:  # both step sizes are drawn as one
        names = " ".join(f"{algorithm}.{key}" for key in open_steps(ALGORITHMS[algorithm]))
        steps[names] = PROBLEMS[problem].usual_step({})
    return "\n".join(
        [
            f"seeds = {list(range(seeds))}\ntuning-seed = {TUNING_SEED}",
            f"select = {toml_value(select)}\ndraws = {draws}\n\n[base]",
            *(f"{key} = {toml_value(value)}" for key, value in base.items()),
            *(
                f"\n[[compare]]\nalgorithm = {toml_value(algorithm)}\nproblem = {toml_value(problem)}"
                for algorithm, problem in family.recipes
            ),
            "\n[tune]",
            *(f'"{names}" = {{low = {lr / SPAN:g}, high = {lr * SPAN:g}}}' for names, lr in steps.items()),
            "",
        ]
    )


def shown_to_be_better(sweep: Sweep[Study], comparison: Comparison) -> tuple[Job | None, str]:
    """Return the run to recommend, and the sentences about it.

    It is the first recipe's, unless others are shown to be better: then the one of these that the tuning seed chose.
    """
    study, (path, heading) = sweep.study, next(iter(comparison.metrics.items()))
    jobs = {
        method.label: sweep.reported(method, point)[0]
        for method in study.methods
        if (point := sweep.choose(method)) is not None
    }
    first = study.methods[0].label
    if first not in jobs:
        job, sentence = best_of_tuning(sweep, comparison)
        return job, f"{first} diverged with all its step sizes, so nothing is compared with it. {sentence}"
    up = -1 if lower_is_better(path) else 1
    found = {label: comparison.difference(group_of(job, comparison)) for label, job in jobs.items() if label != first}
    signs = {label: up * difference.sign for label, difference in found.items()}
    better = {label: up * (sweep.chosen_by(jobs[label].method) or 0.0) for label in signs if signs[label] > 0}
    label = max(better, key=lambda each: better[each]) if better else first

    def listed(sign: int) -> str:
        return "; ".join(f"{each} {difference}" for each, difference in found.items() if signs[each] == sign)

    said = [f"Difference in {heading} to {first}."]
    said += [f"Shown to be better: {texts}."] if (texts := listed(1)) else []
    said += [f"Shown to be worse: {texts}."] if (texts := listed(-1)) else []
    said += [f"No difference was shown: {texts}."] if (texts := listed(0)) else []
    what = ", ".join(part for part in (label, shown(jobs[label].point)) if part)
    why = "" if better else ", the simplest recipe: none was shown to be better"
    return jobs[label], f"{' '.join(said)} winner.toml has {what}{why}."


def for_sites(given: Mapping[str, Value], to: str | Path, seeds: int = SEEDS) -> Iterator[str]:
    """Write the run-configs that compare the recipes at real sites, with default step sizes; yield the commands.

    Raises
    ------
    ConfigError
        For all that is wrong with the run-config.
    """
    family, base = prepared(given, seeds)
    if reason := unwritable(to):
        raise ConfigError("command", [f"--to {str(to)!r}: {reason}"])
    folder, runs_dir = as_path(to), given.get("runs-dir", RunConfig.keys()["runs-dir"].default)
    runs: dict[str, dict[str, Value]] = {}
    for algorithm, problem in family.recipes:
        for seed in range(seeds):
            name = re.sub(r"[^a-z0-9]+", "-", f"{folder.name.lower()}-{algorithm}-{problem}-{seed}")
            own: dict[str, Value] = {
                "algorithm": algorithm,
                "problem": problem,
                "seed": seed,
                "run-name": name,
                "runs-dir": runs_dir,
            }
            runs[name] = {**base, **own}
            RunConfig.parse(runs[name])
    folder.mkdir(parents=True, exist_ok=True)
    for name, settings in runs.items():
        (folder / f"{name}.toml").write_text(to_toml(settings), encoding="utf-8")
        file = shlex.quote(f"{folder / name}.toml")
        yield f"edelweiss submit --superlink HOST:PORT --root-certificates ca.crt --run-config {file}"
    compared = shlex.join(f"{runs_dir}/{name}" for name in runs)
    yield f"edelweiss compare --corrected --metric {family.select} {compared}"


def at_sites(given: Mapping[str, Value]) -> bool:
    """Return whether a run-config is for real sites, which no simulation stands for."""
    return given.get("dataset") == SITE
