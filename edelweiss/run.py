"""A finished run: its metrics, its model and what can be done with them, read from its folder."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    import numpy as np
    import pandas as pd
    from matplotlib.figure import Figure

    from edelweiss.config import RunConfig
    from edelweiss.lab.report.content import Content
    from edelweiss.problems.trained_model import TrainedModel


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run, as `simulate` returns it and `load_run` reads it.

    Attributes
    ----------
    folder : Path
        The run folder: config.toml, metrics.jsonl, model.safetensors, evidence.json, report.html.
    """

    folder: Path
    _arrays: dict[str, np.ndarray] = field(default_factory=dict)

    @cached_property
    def _content(self) -> Content:
        from edelweiss.lab.report.content import Content

        return Content.read(self.folder)

    @property
    def config(self) -> RunConfig:
        """The run-config, with all defaults."""
        return self._content.config

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """A dict per round: the metrics, NaN where one is not defined, and ``central``, ``pooled``, ``sites`` and
        ``over-sites`` with the same metrics on the common test set, on all sites' held-out samples, and site by site.
        """
        return [_with_nan(record) for record in self._content.records]

    @property
    def evidence(self) -> dict[str, Any] | None:
        """The evidence: intervals, calibration, curves, as in evidence.json; None for a problem without scores."""
        return self._content.evidence

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The final model as flat float32 vectors: ``x``, ``y`` where there is one, ``buffers`` of batch norms.

        Raises
        ------
        edelweiss.models.ModelError
            When the run left no common model: each site of a personalised run keeps its own.
        """
        return self._arrays or _arrays_in(self.folder, self.config)

    def to_frame(self, *, sites: bool = False) -> pd.DataFrame:
        """Return the metrics as a DataFrame.

        Parameters
        ----------
        sites : bool
            False: one row per round, with columns such as ``auroc``, ``pooled.auroc`` and ``over-sites.auroc.std``.
            True: one row per round and site, with the site's own metrics.
        """
        import pandas as pd

        if sites:
            own = {
                (record["round"], site): values for record in self.metrics for site, values in record["sites"].items()
            }
            return pd.DataFrame.from_dict(own, orient="index").rename_axis(["round", "site"])
        rows = [{k: v for k, v in record.items() if k not in ("sites", "site-gradients")} for record in self.metrics]
        return pd.json_normalize(rows).set_index("round") if rows else pd.DataFrame().rename_axis("round")

    def predict(self, data: Any, *, device: str = "cpu") -> Any:
        """Score patients with the final model.

        Parameters
        ----------
        data : DataFrame, path or array
            A DataFrame or a CSV or Parquet file with the features as columns, by name; a ``labels.csv`` beside images;
            or an array of raw inputs, shape (n, F), NaN where missing, or (n, C, H, W).
        device : str
            Where to compute: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"``.

        Returns
        -------
        DataFrame or ndarray
            The columns that are no features as they are (of a file as text), with ``score``, and ``probability`` where
            the run has honest ones; of an array the scores, shape (n,), or (n, L) of several labels.

        Raises
        ------
        edelweiss.models.ModelError
            When the run left no model that scores patients.
        edelweiss.datasets.DataError
            Naming everything in the data that does not fit the model.
        """
        import os

        import pandas as pd
        import torch

        from edelweiss.common.scratch import Scratch
        from edelweiss.datasets.given import naming
        from edelweiss.problems.prediction import predict

        model = self._model(device)
        if not isinstance(data, str | os.PathLike) and not hasattr(data, "to_parquet"):
            from edelweiss.datasets import DataError

            try:
                inputs = torch.as_tensor(data)
            except (TypeError, ValueError, RuntimeError):
                raise DataError.plain("predict takes a DataFrame, a path, or an array of numbers") from None
            shape, needed = tuple(inputs.shape[1:]), model.data_summary.shape
            if shape != needed:
                raise DataError.plain(f"the array has inputs of shape {shape}: the model takes {needed}")
            if inputs.isinf().any():
                raise DataError.plain("the array holds infinity: a missing value is NaN, others are finite")
            return model.scores(inputs if inputs.dtype == torch.uint8 else inputs.float()).numpy()
        labels: list[str] = []
        with Scratch() as scratch:
            if hasattr(data, "to_parquet"):
                schema = model.model_schema
                source = scratch / "data.parquet" if schema.study is None else scratch / "data.csv"
                labels = list(schema.labels.names) if schema.labels else [schema.label]
                frame = data.drop(columns=labels, errors="ignore")
                if schema.study is None:
                    frame.to_parquet(source, index=False)
                else:
                    form = schema.study.form
                    frame.to_csv(
                        source, index=False, sep=form.delimiter, decimal=form.decimal, encoding=form.encoding or "utf-8"
                    )
            else:
                source = Path(data)
            with naming(source, "the DataFrame") if source.parent == scratch else nullcontext():
                predict(model, source, scratch / "scores.csv")
            found = pd.read_csv(scratch / "scores.csv", dtype=str, keep_default_na=False)  # identifiers as they are
        added = list(model.columns)
        found[added] = found[added].astype(float)
        if not hasattr(data, "to_parquet"):
            return found
        own = [name for name in data.columns if name not in added and name in {*found.columns, *labels}]
        return data[own].assign(**{name: found[name].to_numpy() for name in added})

    def plot(self) -> Figure:
        """Draw the metrics over rounds: a thin line per site, a thick one for all; returns a matplotlib Figure."""
        from edelweiss.lab.report.figures import curves

        content = self._content
        figure = curves(content.records, personalised=content.personalised, several=bool(content.labels))
        _shown_in_notebooks()
        return figure

    def export(self, target: str | os.PathLike[str] = "") -> Path:
        """Write the model as ONNX: raw values in, scores out; what was written is checked against this program.

        Parameters
        ----------
        target : path
            The file, which must not exist; by default ``model.onnx`` in the run folder.

        Raises
        ------
        edelweiss.models.ModelError
            When there is no such model, or the extra ``edelweiss[onnx]`` is not installed.
        """
        from edelweiss.problems.onnx_export import export

        path = Path(target or self.folder / "model.onnx")
        export(self._model("cpu"), path)
        return path

    def _model(self, device: str) -> TrainedModel:
        from edelweiss.models import resolve_device
        from edelweiss.problems.trained_model import TrainedModel

        return TrainedModel.read(self.folder, resolve_device(device))

    def __repr__(self) -> str:
        last = self.metrics[-1] if self.metrics else {}
        shown = "".join(f", {name} {value:.4g}" for name, value in last.items() if name in _headline())
        return f"Run({self._content.title}, {len(self.metrics)} rounds{shown}, folder={str(self.folder)!r})"

    def _repr_html_(self) -> str:
        names = [name for name in _headline() if any(name in record for record in self.metrics)]
        head = "".join(f"<th>{escape(name)}</th>" for name in ("", *names))
        last = self.metrics[-1] if self.metrics else {}
        rows = {"common test set": last.get("central", {}), "held out, pooled": last.get("pooled", {})}
        rows |= dict(list(last.get("sites", {}).items())[:_MOST_SITES])
        more = len(last.get("sites", {})) - _MOST_SITES
        body = "".join(
            f"<tr><th>{escape(name)}</th>{''.join(f'<td>{values.get(each, math.nan):.4g}</td>' for each in names)}</tr>"
            for name, values in rows.items()
            if values
        )
        rest = f"<tr><td>and {more} more sites</td></tr>" if more > 0 else ""
        title = f"{escape(self._content.title)}, {len(self.metrics)} rounds"
        return f"<b>{title}</b><table><tr>{head}</tr>{body}{rest}</table><code>{escape(str(self.folder))}</code>"


_MOST_SITES = 20  # in a notebook's table


def load_run(folder: str | os.PathLike[str]) -> Run:
    """Read a run folder.

    Parameters
    ----------
    folder : path
        Folder of a run on any engine, such as ``runs/20260101-120000-codasca-table``.

    Raises
    ------
    edelweiss.federation.RunError
        Naming the file that is missing, damaged or of another version.
    """
    run = Run(Path(folder))
    _ = run.config
    return run


def _arrays_in(folder: Path, config: RunConfig) -> dict[str, np.ndarray]:
    from edelweiss.models import ModelError
    from edelweiss.models.storage import StoredTensors
    from edelweiss.problems.network import NetworkProblem
    from edelweiss.server_app.init_model import InitModel

    file = folder / "model.safetensors"
    if not file.exists():
        raise ModelError(f"{folder} has no model.safetensors: each site kept its own model, or the run was stopped")
    if "shape" not in (stored := StoredTensors.read(file)).facts:
        return {name: tensor.numpy() for name, tensor in stored.tensors.items()}
    given = InitModel.read(config.model_copy(update={"init_from": str(file), "init_head": "keep", "pretrained": ""}))
    assert given is not None
    problem = config.build_problem(config.setting(given.data_summary, "cpu"))
    assert isinstance(problem, NetworkProblem), "its file has the shape of inputs"
    start, _ = given.start(problem)
    buffers = problem.buffers()
    return {name: vector.numpy() for name, vector in (start | ({"buffers": buffers} if len(buffers) else {})).items()}


def _with_nan(record: Any) -> Any:
    """Return a record with NaN for what its file has null for."""
    if isinstance(record, dict):
        return {key: _with_nan(value) for key, value in record.items()}
    return math.nan if record is None else record


def _headline() -> tuple[str, ...]:
    from edelweiss.problems.metrics import HEADLINE

    return tuple(HEADLINE)


def _shown_in_notebooks() -> None:
    """Let notebooks show figures, also where pyplot has not been imported."""
    import sys

    if "IPython" in sys.modules:
        tools: Any = import_module("IPython.core.pylabtools")
        if shell := import_module("IPython").get_ipython():
            tools.select_figure_formats(shell, {"png"})
