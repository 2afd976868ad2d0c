"""Experiment trackers: log each round's metrics to TensorBoard, MLflow or Weights & Biases.

MLflow and Weights & Biases are configured by environment variables (``MLFLOW_TRACKING_URI``, ``WANDB_MODE``);
TensorBoard's files are in the run folder.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from edelweiss.common import ConfigError
from edelweiss.problems.metrics import METRICS, split

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from edelweiss.config import RunConfig
    from edelweiss.server_app.recorder import Record


Log = Callable[[dict[str, float], int], object]
"""Logs the metrics of a round."""
Close = Callable[[], object]


def _tensorboard(config: RunConfig, folder: Path) -> tuple[Log, Close]:
    """Event files in the run folder: ``tensorboard --logdir runs``."""
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(str(folder / "tensorboard"))
    writer.add_text("config", "".join(f"    {line}\n" for line in config.to_toml().splitlines()))

    def log(numbers: dict[str, float], server_round: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, server_round)

    return log, writer.close


def _mlflow(config: RunConfig, folder: Path) -> tuple[Log, Close]:
    import mlflow

    mlflow.start_run(run_name=folder.name)
    mlflow.log_params(config.written())
    return mlflow.log_metrics, mlflow.end_run


def _wandb(config: RunConfig, folder: Path) -> tuple[Log, Close]:
    import wandb

    run: Any = wandb.init(project="edelweiss", name=folder.name, dir=str(folder), config=config.written())
    return run.log, run.finish


TRACKERS: dict[str, Callable[[RunConfig, Path], tuple[Log, Close]]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}


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
        self._tracker: tuple[Log, Close] | None = None
        if config.tracker:
            with self._trouble():
                self._tracker = TRACKERS[config.tracker](config, folder)

    def log(self, record: Record) -> None:
        """Log a round."""
        if self._tracker:
            with self._trouble():
                self._tracker[0](dict(numbers(record)), record["round"])

    def close(self) -> None:
        """Flush and close it."""
        if self._tracker:
            with self._trouble():
                self._tracker[1]()
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
