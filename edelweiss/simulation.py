"""Runs from Python objects: they become run-config keys, which the same code checks as those of a file."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edelweiss.common import PROCESS_CACHE, ConfigError, Registry, flatten, key_of, shown
from edelweiss.config.plug_ins import KINDS, load_own
from edelweiss.config.tables import own_options
from edelweiss.datasets import SOURCES
from edelweiss.datasets.given import as_data
from edelweiss.models import MODELS
from edelweiss.problems import PROBLEMS, Problem
from edelweiss.problems.metrics import METRICS
from edelweiss.run import Run
from edelweiss.server_app import simulation
from edelweiss.server_app.script_guard import leave_unguarded_script
from edelweiss.strategies import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.nn import Module

    from edelweiss.common import Value
    from edelweiss.federation import FederatedStrategy
    from edelweiss.lab.compare.comparison import Comparison
    from edelweiss.problems.metrics import Metric
    from edelweiss.server_app.console import Progress


def simulate(
    algorithm: FederatedStrategy | type[FederatedStrategy] | str | Mapping[str, Any] = "",
    problem: Problem | type[Problem] | str = "",
    data: Any = None,
    *,
    model: str | Callable[..., Module] = "",
    metrics: Sequence[Callable[..., float] | Metric | str] = (),
    progress: bool | Progress | None = None,
    **keys: Value | os.PathLike[str],
) -> Run:
    """Run federated learning on this machine, each site simulated.

    Parameters
    ----------
    algorithm : Algorithm or str
        How it is trained, such as ``Codasca(lr=0.05)`` or ``"codasca"``. A mapping of run-config keys may stand here
        instead of all other arguments, with objects as values where an argument takes one.
    problem : Problem or str
        What is optimised, such as ``Auc()`` or ``"auc"``.
    data : str, Table, DataFrame, arrays, or one of these per site
        The name of a data set; what `table` or `arrays` describes; a DataFrame or a Hugging Face dataset; a pair
        (inputs, labels); or for each site such a pair or a torch Dataset, in a dict by the site's name or in a list.
    model : str or callable
        The network: a name, or a class or function that returns an ``nn.Module``. It is called with those of the
        arguments ``shape`` (of one input), ``outputs`` and ``hidden`` that it names, maps (n, \\*shape) to
        (n, outputs), and has the head as its last layer.
    metrics : str or sequence
        More metrics: functions of labels (1 and 0), scores and weights, or names; each is reported by its own name.
    progress : bool or Progress, optional
        Whether to show how the run goes; by default on a terminal and in a notebook.
    **keys
        Any run-config key, with underscores for dashes: ``rounds=10``, ``local_steps=5``, ``seed=0``. A table's key
        takes its dot in a mapping only: ``simulate({"codasca.lr": 0.1})``.

    Returns
    -------
    Run
        The finished run: metrics, evidence, model, folder.

    Raises
    ------
    edelweiss.config.ConfigError
        Listing everything that is wrong with the arguments, each by its key.
    edelweiss.datasets.DataError
        When the data cannot be used.
    edelweiss.federation.RunError
        When the run cannot go on, as when it diverges.
    """
    leave_unguarded_script()
    with _settings(algorithm, problem, data, model, metrics, keys) as settings:
        result = simulation.simulate(settings, progress=_progress(progress))
    return Run(result.folder, result.arrays)


def register(
    *classes: type[FederatedStrategy] | type[Problem],
    model: Callable[..., Module] | None = None,
    dataset: Callable[[], Any] | None = None,
    metric: Callable[..., float] | Metric | None = None,
) -> None:
    """Make classes and functions of your own known by name, so that runs that used them can be read and go on.

    Files of runs name them, and never make this process import anything. `simulate` registers what it is given.

    Parameters
    ----------
    *classes : type
        Algorithms and problems.
    model, dataset, metric : callable
        A function that returns a network, the data, or a number from labels, scores and weights.

    Raises
    ------
    edelweiss.config.ConfigError
        When something is of another kind, or has the name of something built in.
    """
    for cls in classes:
        (PROBLEMS if isinstance(cls, type) and issubclass(cls, Problem) else ALGORITHMS).give(cls)
    if model is not None:
        MODELS.give(model)
    if dataset is not None:
        SOURCES.give(dataset)
    if metric is not None:
        METRICS.give(metric)


def compare(
    *runs: Run | str | os.PathLike[str] | Sequence[Run | str | os.PathLike[str]],
    metrics: Sequence[str] = (),
    versus: str = "",
    corrected: bool = False,
    to: str | os.PathLike[str] = "",
) -> Comparison:
    """Compare finished runs: means over seeds, paired differences with intervals, costs.

    Parameters
    ----------
    *runs : Run or path, or a list of them
        Two or more; those that differ in their seed alone form one row. A path may be a pattern, ``"runs/codasca-*"``.
    metrics : str or sequence of str
        Such as ``"auroc"`` or ``"pooled.auprc"``; differences are in the first. By default the problem's own.
    versus : str
        The row that others are compared with; by default the first.
    corrected : bool
        Whether the intervals of differences are wide enough to hold together (Bonferroni).
    to : path
        A folder for CSV, Markdown, LaTeX and curves; by default nothing is written.

    Raises
    ------
    edelweiss.config.ConfigError
        Naming the runs that cannot be compared, and why.
    """
    from edelweiss.lab.compare.comparison import Comparison
    from edelweiss.lab.compare.folders import read

    each = [run for given in runs for run in ([given] if isinstance(given, Run | str | os.PathLike) else given)]
    found, notes = read([str(run.folder) if isinstance(run, Run) else os.fspath(run) for run in each])
    comparison = Comparison.of(found, _listed(metrics), versus, notes, corrected=corrected)
    if to:
        comparison.write(Path(to))
    return comparison


def sweep(
    study: str | os.PathLike[str] | Mapping[str, Any],
    data: Any = None,
    *,
    model: str | Callable[..., Module] = "",
    to: str | os.PathLike[str] = "",
    jobs: int = 0,
    metrics: Sequence[str] = (),
) -> Comparison:
    """Do many runs, choose among them on held-out samples, and compare what was chosen.

    Call it under ``if __name__ == "__main__":``: its runs are done by fresh processes. Finished runs are kept in the
    folder; the same call goes on from there.

    Parameters
    ----------
    study : path or mapping
        A sweep's file, or what it holds: ``{"base": {"rounds": 20}, "compare": {"algorithm": ["fedavg", FedProx]},
        "tune": {"fedprox.mu": [0.01, 0.1]}, "seeds": [0, 1, 2]}``; see docs/compare.md.
    data, model
        As of `simulate`, for all runs; only with a mapping.
    to : path
        The folder of its runs and results; by default ``runs/NAME-OF-THE-FILE``, or ``runs/sweep``.
    jobs : int
        Runs at a time; 0: one per core.
    metrics : str or sequence of str
        Metrics of the comparison, see `compare`.

    Returns
    -------
    Comparison
        Table of the chosen runs; the folder has it as CSV, Markdown and LaTeX, and the best run-config as winner.toml.

    Raises
    ------
    edelweiss.config.ConfigError
        Listing everything that is wrong with the study.
    edelweiss.lab.sweep.workers.StoppedError
        When a run cannot be done.
    """
    from edelweiss.common.cores import cores
    from edelweiss.common.files import as_path
    from edelweiss.common.scratch import Scratch
    from edelweiss.lab.sweep import folder

    leave_unguarded_script()
    if not isinstance(study, Mapping) and (data is not None or model != ""):
        raise ConfigError("study", ["a file names data and model under [base]; give them as arguments with a mapping"])
    with ExitStack() as stack:
        file = Path("sweep.toml") if isinstance(study, Mapping) else as_path(os.fspath(study))
        if isinstance(study, Mapping):
            base = load_own(stack.enter_context(_settings({}, "", data, model, (), study.get("base", {}))))
            file = stack.enter_context(Scratch()) / file
            file.write_text(_sweep_toml({**study, "base": base}), encoding="utf-8")
        return folder.sweep(file, os.fspath(to) or f"runs/{file.stem}", jobs or cores(), metrics=_listed(metrics))[1]


def recommend(
    data: Any = None,
    problem: Problem | type[Problem] | str = "",
    *,
    model: str | Callable[..., Module] = "",
    to: str | os.PathLike[str] = "runs/recommend",
    jobs: int = 0,
    draws: int = 5,
    seeds: int = 6,
    select: str = "",
    **keys: Value | os.PathLike[str],
) -> Comparison:
    """Find out which recipe suits the data: each of a few is tuned alike and compared with cross-entropy.

    The recipes are cross-entropy and class-weighted cross-entropy with FedAvg, Local SGDA for AUROC, and Ditto, which
    trains a model for each site. Of each, ``draws`` random step sizes are tried at one seed and the best by the sites'
    held-out samples is run with ``seeds`` others. Call it under ``if __name__ == "__main__":``, as `sweep`.

    Parameters
    ----------
    data, model
        As of `simulate`.
    problem : Problem or str
        Only says whether there are two classes or more: with ``"cross-entropy"`` the recipes are for several classes,
        and compared by the accuracy in the worst class.
    to : path
        The folder of its runs and results.
    jobs : int
        Runs at a time; 0: one per core.
    draws, seeds : int
        Step sizes tried, at least 1, and runs compared, at least 2, of each recipe.
    select : str
        What chooses and compares, by default the mean AUROC over sites: ``"over-sites.auprc.mean"``.
    **keys
        Any run-config key, as of `simulate`.

    Returns
    -------
    Comparison
        With cross-entropy, in intervals that hold together (Bonferroni); its last note says which recipes are shown to
        be better or worse, and of which no difference was shown. The folder has the run-config to take as winner.toml.

    Raises
    ------
    edelweiss.config.ConfigError
        Listing everything that is wrong with the arguments.
    edelweiss.lab.sweep.workers.StoppedError
        When a run cannot be done.
    """
    from edelweiss.common.cores import cores
    from edelweiss.lab.recommend import recommend as compared

    leave_unguarded_script()
    if "algorithm" in keys:
        given = f"algorithm = {shown(keys['algorithm'])}"
        raise ConfigError("run-config", [f"{given}: the recipes have their own: leave it out, or take ew.sweep"])
    with _settings("", problem, data, model, (), keys) as settings:
        how: dict[str, Any] = {"draws": draws, "seeds": seeds, "select": select}
        return compared(settings, os.fspath(to), jobs or cores(), **how)[1]


def _sweep_toml(study: Mapping[str, Any]) -> str:
    """Write a sweep's file; classes and functions become the names by which this process knows them."""

    def value(key: str, each: Any) -> str:
        if isinstance(each, list | tuple):
            return f"[{', '.join(value(key, one) for one in each)}]"
        if isinstance(each, Mapping):
            return f"{{{', '.join(f'{end} = {value(key, one)}' for end, one in each.items())}}}"
        return json.dumps(each if isinstance(each, str) or key not in KINDS else _name(each, KINDS[key]))

    def lines(table: Mapping[str, Any]) -> Iterator[str]:
        for key, each in table.items():
            yield f"{json.dumps(key_of(key)) if ' ' in key else key_of(key)} = {value(key_of(key), _plain(each))}"

    parts = ["\n".join(lines({key: each for key, each in study.items() if key not in ("base", "compare", "tune")}))]
    for key in ("base", "compare", "tune"):
        each = study.get(key, {})
        tables = each if isinstance(each, list | tuple) else [each]
        head = f"[[{key}]]" if isinstance(each, list | tuple) else f"[{key}]"
        parts += ["\n".join([head, *lines(table)]) for table in tables if table]
    return "\n\n".join(parts) + "\n"


@contextmanager
def _settings(
    algorithm: Any, problem: Any, data: Any, model: Any, metrics: Sequence[Any], keys: Mapping[str, Any]
) -> Iterator[dict[str, Value]]:
    """Give the block the run-config that the arguments of `simulate` mean."""
    given: dict[str, Value] = {}
    wrong: list[str] = []
    if isinstance(algorithm, Mapping):
        given, algorithm = flatten(algorithm), ""
    for key, value in keys.items():
        given[key_of(key)] = os.fspath(value) if isinstance(value, os.PathLike) else _plain(value)
    objects: dict[str, Any] = {key: given.pop(key) for key in KINDS if not isinstance(given.get(key, ""), str)}
    algorithm, problem = objects.get("algorithm", algorithm), objects.get("problem", problem)
    model, data, metrics = objects.get("model", model), objects.get("dataset", data), objects.get("metrics", metrics)
    for kind, what, registry in (("algorithm", algorithm, ALGORITHMS), ("problem", problem, PROBLEMS)):
        for key, value in _named(kind, what, registry) if what != "" else ():
            if given.setdefault(key, value) != value:
                wrong.append(f"{key} = {shown(given[key])}: the {kind} says {shown(value)}: say it once")
    if metrics:
        names = (each if isinstance(each, str) else METRICS.give(each) for each in _listed(metrics))
        given["metrics"] = ",".join(names)
    if model != "":
        given["model"] = model if isinstance(model, str) else MODELS.give(model)
    with ExitStack() as stack:
        if inspect.isroutine(data) or (isinstance(data, str) and (":" in data or not os.path.splitext(data)[1])):
            given = {"dataset": data if isinstance(data, str) else SOURCES.give(data), **given}
            PROCESS_CACHE.forget()  # a function may return other data than the last time
        elif data is not None:
            given = stack.enter_context(as_data(data).as_keys()) | given
        problem = PROBLEMS.get(str(given.get("problem", "")))
        if data is not None and problem and not problem.needs_data:
            wrong.append(f"problem = {problem.name!r} has no data: leave out the argument data")
        if wrong:
            raise ConfigError("run-config", wrong)
        yield given


def _listed(names: Any) -> list[Any]:
    """Return one, or several, as a list."""
    return [names] if isinstance(names, str) or callable(names) else list(names)


def _named(kind: str, what: Any, registry: Registry[Any]) -> Iterator[tuple[str, Value]]:
    """Yield the keys of an algorithm or a problem: its name, and the options that are not the default."""
    if isinstance(what, str):
        yield kind, what
        return
    cls: Any = what if isinstance(what, type) else type(what)
    yield kind, _name(cls, registry)
    own = own_options(cls)
    for key, f in cls.declared.items() if what is not cls else ():
        if (value := getattr(what, key.replace("-", "_"))) != f.default:
            yield f"{cls.name}.{key}" if key in own else key, _plain(value)


def _name(thing: Any, registry: Registry[Any]) -> str:
    """Return the name of a class or a function in run-configs; what is not built in is registered."""
    return next((name for name in registry.built_in if registry[name] is thing), "") or registry.give(thing)


def _plain(value: Any) -> Any:
    """Return a NumPy number as Python's own."""
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


def _progress(wanted: bool | Progress | None) -> Progress:
    from edelweiss.server_app.console import Progress

    if not isinstance(wanted, bool | None):
        return wanted
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if wanted is not False and shell is not None and hasattr(shell, "kernel"):
        from edelweiss.notebook import NotebookProgress

        return NotebookProgress()
    return Progress(quiet=not (sys.stdout.isatty() if wanted is None else wanted))
