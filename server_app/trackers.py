"""Experiment trackers: each round's numbers go to TensorBoard, MLflow or Weights & Biases as well, if a run says so.

Where they go is the tracker's own affair: MLflow and Weights & Biases read it from their environment variables
(``MLFLOW_TRACKING_URI``, ``WANDB_MODE``), TensorBoard's files are in the run folder.
"""

from __future__ import annotations

import importlib.util
import math
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from edelweiss.common import ConfigError
from edelweiss.problems.metrics import METRICS, split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from edelweiss.config import RunConfig
    from edelweiss.server_app.report import Record


class Tracker(Protocol):
    """The trackers that log a run's rounds."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        """Open it, for a run and its folder."""

    def log(self, numbers: Mapping[str, float], server_round: int) -> None:
        """Note the numbers of a round."""

    def close(self) -> None:
        """Write what is not written yet."""


class TensorBoard:
    """Event files in the run folder: ``tensorboard --logdir runs``."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))
        self._writer.add_text("config", "".join(f"    {line}\n" for line in config.to_toml().splitlines()))

    def log(self, numbers: Mapping[str, float], server_round: int) -> None:
        """Write a scalar for each."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, server_round)

    def close(self) -> None:
        """Flush."""
        self._writer.close()


class MLflow:
    """A run of MLflow's."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        import mlflow

        self._mlflow: Any = mlflow
        mlflow.start_run(run_name=folder.name)
        mlflow.log_params(config.written())

    def log(self, numbers: Mapping[str, float], server_round: int) -> None:
        """Log metrics."""
        self._mlflow.log_metrics(dict(numbers), step=server_round)

    def close(self) -> None:
        """End the run."""
        self._mlflow.end_run()


class WandB:
    """A run of Weights & Biases'."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        import wandb

        self._run: Any = wandb.init(project="edelweiss", name=folder.name, dir=str(folder), config=config.written())

    def log(self, numbers: Mapping[str, float], server_round: int) -> None:
        """Log metrics."""
        self._run.log(dict(numbers), step=server_round)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


class Tracking:
    """A run's tracker, of whose troubles the run only warns.

    Parameters
    ----------
    config : RunConfig
        Says which, if any.
    folder : Path
        Of the run.
    warn : Callable[[str], None]
        Told once, when the tracker fails; after that it is left alone.
    """

    def __init__(self, config: RunConfig, folder: Path, warn: Callable[[str], None]) -> None:
        self._name, self._warn = config.tracker, warn
        self._tracker: Tracker | None = None
        if config.tracker:
            with self._trouble():
                self._tracker = TRACKERS[config.tracker](config, folder)

    def log(self, record: Record) -> None:
        """Tell it of a round."""
        with self._trouble():
            if self._tracker:
                self._tracker.log(dict(numbers(record)), record["round"])

    def close(self) -> None:
        """Let it write what is not written yet."""
        with self._trouble():
            if self._tracker:
                self._tracker.close()
        self._tracker = None

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a network, an account, a full disk: anything of somebody else's
            self._tracker = None
            text = " ".join(str(error).split())
            self._warn(f"{self._name} failed, and hears no more of this run ({type(error).__name__}: {text})")


def require_installed(config: RunConfig) -> None:
    """Check that the tracker's package is there; raise ConfigError saying what to install."""
    if config.tracker and not importlib.util.find_spec(config.tracker):
        fix = f"pip install {config.tracker}"
        raise ConfigError("run-config", [f"tracker = {config.tracker!r}: its package is not installed here: {fix}"])


def numbers(record: Record) -> Iterator[tuple[str, float]]:
    """Yield what a tracker logs of a round, by name: metrics by their source, and costs.

    A label's own are called as in ``pooled/auroc.Edema``; trackers take few signs in names, so others become ``_``.
    """
    for source in ("central", "pooled"):
        for name, value in record.get(source, {}).items():
            if split(name)[0] in METRICS and isinstance(value, (int, float)) and math.isfinite(value):
                yield f"{source}/{_plain(name)}", float(value)
    for name, summary in record.get("over-sites", {}).items():
        for kind, value in summary.items():
            if value is not None and math.isfinite(value):
                yield f"over-sites/{_plain(name)}-{kind}", float(value)
    for name, value in record.items():
        if name != "round" and name not in METRICS and isinstance(value, (int, float)) and math.isfinite(value):
            yield f"cost/{name}", float(value)


def _plain(name: str) -> str:
    """Return a name that every tracker takes."""
    return re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)
