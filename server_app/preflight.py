"""Checks on this machine before a run starts: all files, folders and packages that it names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from edelweiss.common import files_named, shown
from edelweiss.common.files import unwritable
from edelweiss.config import MISTAKES, ConfigError
from edelweiss.config.study import read_study
from edelweiss.datasets import DataSummary, load_site
from edelweiss.datasets.config import SITE
from edelweiss.federation import RunError
from edelweiss.models import ModelError
from edelweiss.problems import PROBLEMS
from edelweiss.server_app.init_model import InitModel
from edelweiss.server_app.trackers import require_installed
from edelweiss.strategies import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Callable

    from edelweiss.config import RunConfig

T = TypeVar("T")


@dataclass(frozen=True)
class LoadedModels:
    """The models that a run loads: the initial one, and the one for comparison."""

    start: InitModel | None = None
    other: InitModel | None = None


def check(config: RunConfig, *, simulated: bool) -> LoadedModels:
    """Check everything that a run-config names on this machine, and load its models.

    Parameters
    ----------
    config : RunConfig
        Of the run.
    simulated : bool
        Whether the sites run in this process or its forks; then their data are read here, once.

    Raises
    ------
    MISTAKES
        The mistake found; several are joined in a `ConfigError`, or a `RunError` if not all are the run-config's.
    """
    wrong: list[Exception] = []

    def tried(check: Callable[..., T], *arguments: object) -> T | None:
        try:
            return check(*arguments)
        except MISTAKES as error:
            wrong.append(error)
            return None

    problem, algorithm = PROBLEMS[config.problem], ALGORITHMS[config.algorithm]
    tried(require_installed, config)
    start = None
    if not config.resume:
        tried(_require_writable, config)
        start = tried(InitModel.read, config)
    other = tried(compared_model, config)
    if files_named(algorithm, config.hyper):
        tried(lambda: config.strategy.prepare(config.sites))
    if files_named(problem, config.options) and not problem.needs_data:
        tried(lambda: config.build_problem(config.setting(DataSummary(), "cpu")))
    if problem.needs_data and config.dataset != SITE and (simulated or config.data_file):
        tried(lambda: load_site(config.data(), 0, config.sites))
    elif config.study:
        tried(read_study, config.study)
    if len(wrong) == 1:
        raise wrong[0]
    if wrong and all(isinstance(error, ConfigError) for error in wrong):
        raise ConfigError("run-config", [line for error in wrong for line in _lines(error)])
    if wrong:
        joined = RunError("\n".join(line for error in wrong for line in _lines(error)))
        joined.problems = tuple(wrong)
        raise joined
    return LoadedModels(start, other)


def compared_model(config: RunConfig) -> InitModel | None:
    """Load the model that a run is compared with; None if it names none.

    Raises
    ------
    ModelError
        If it cannot be read.
    """
    if not config.compare_with:
        return None
    named = config.model_copy(update={"init_from": config.compare_with, "init_head": "keep"})
    try:
        return InitModel.read(named)
    except ModelError as error:
        raise ModelError(
            str(error).replace(f"init-from = {config.compare_with!r}", f"compare-with = {config.compare_with!r}"),
            key=error.key,
            value=error.value,
        ) from None


def _require_writable(config: RunConfig) -> None:
    if wrong := unwritable(config.runs_dir):
        text = f"runs-dir = {shown(config.runs_dir)}: no run folder can be made there ({wrong})"
        raise RunError(text, key="runs-dir", value=config.runs_dir)


def _lines(error: Exception) -> list[str]:
    return error.problems if isinstance(error, ConfigError) else str(error).splitlines()
