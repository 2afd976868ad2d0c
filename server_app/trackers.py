"""Experiment trackers: log each round's metrics to TensorBoard, MLflow or Weights & Biases.

MLflow and Weights & Biases are configured by environment variables (``MLFLOW_TRACKING_URI``, ``WANDB_MODE``);
TensorBoard's files are in the run folder.
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
    from edelweiss.server_app.recorder import Record


class Tracker(Protocol):
    """A tracker."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        """Open the tracker for a run and its folder."""

    def log(self, numbers: Mapping[str, float], server_round: int) -> None:
        """Log the metrics of a round."""

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
    """A run's tracker, whose failures are only warnings.

    Parameters
    ----------
    config : RunConfig
        Says which, if any.
    folder : Path
        Of the run.
    warn : Callable[[str], None]
        Called once, when the tracker fails; it is then disabled.
    """

    def __init__(self, config: RunConfig, folder: Path, warn: Callable[[str], None]) -> None:
        self._name, self._warn = config.tracker, warn
        self._tracker: Tracker | None = None
        if config.tracker:
            with self._trouble():
                self._tracker = TRACKERS[config.tracker](config, folder)

    def log(self, record: Record) -> None:
        """Log a round."""
        with self._trouble():
            if self._tracker:
                self._tracker.log(dict(numbers(record)), record["round"])

    def close(self) -> None:
        """Flush and close it."""
        with self._trouble():
            if self._tracker:
                self._tracker.close()
        self._tracker = None

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # network, account, full disk: any failure of the tracker
            self._tracker = None
            text = " ".join(str(error).split())
            self._warn(f"{self._name} failed and is disabled for this run ({type(error).__name__}: {text})")


def require_installed(config: RunConfig) -> None:
    """Check that the tracker's package is there; raise ConfigError saying what to install."""
    if config.tracker and not importlib.util.find_spec(config.tracker):
        fix = f"pip install {config.tracker}"
        raise ConfigError("run-config", [f"tracker = {config.tracker!r}: its package is not installed here: {fix}"])


def numbers(record: Record) -> Iterator[tuple[str, float]]:
    """Yield the logged metrics and costs of a round by name, such as ``pooled/auroc.Edema``.

    Trackers allow few characters in names; others become ``_``.
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
    """Return a name that every tracker accepts."""
    return re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)
