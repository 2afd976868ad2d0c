"""Export of a model to ONNX: raw values in, scores out."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from edelweiss.common import shown
from edelweiss.common.files import as_path, reason
from edelweiss.models import ModelError, build
from edelweiss.models.storage import atomic_writer

if TYPE_CHECKING:
    from edelweiss.problems.trained_model import TrainedModel

TOLERANCE = 1e-5  # of scores, absolute below 1 and relative above
NEEDED = ("onnx", "onnxruntime", "onnxscript")
SEVERAL = 2  # patients in the example: the exporter would treat a single one as a constant


class Exported(nn.Module):
    """A network including standardisation of its inputs and recalibration of its scores."""

    shift: Tensor
    scale: Tensor

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        problem, data_summary = model.problem, model.data_summary
        architecture = problem.setting.architecture
        network = build(architecture.model, data_summary.shape, problem.width, hidden=architecture.hidden, seed=0)
        network.load_state_dict({name: tensor.cpu() for name, tensor in problem.network.state_dict(model.x).items()})
        self.network = network.eval()
        self.about, self.table = model, len(data_summary.shape) == 1
        shape = (-1,) + (1,) * (len(data_summary.shape) - 1)
        self.register_buffer("shift", torch.tensor(data_summary.shift or [0.0]).reshape(shape))
        self.register_buffer("scale", torch.tensor(data_summary.scale or [1.0]).reshape(shape))

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the scores, shape (n,) or (n, L), and the probabilities if there are any."""
        values = (inputs - self.shift) / self.scale
        if self.table:  # a missing value is the training mean, which is standardised to 0
            values = torch.where(torch.isnan(values), torch.zeros_like(values), values)
        score: Tensor = self.network(values)
        score = score if self.about.labels else score.squeeze(1)
        return (score, self.about.probabilities(score)) if self.about.has_probabilities else (score,)


def export(model: TrainedModel, target: str | Path) -> list[str]:
    """Export a model to a new ONNX file, after checking that ONNX Runtime agrees with PyTorch; return notes.

    The input ``inputs`` is float32: (n, F) raw values, NaN where missing, in the order of the metadata's ``features``;
    or (n, C, H, W) pixels from 0 to 255. The outputs are ``score`` and, if the model has them, ``probability``, of
    shape (n,). With several labels they are (n, L), in the order of the metadata's ``labels``; probabilities are NaN
    for labels without any.

    Raises
    ------
    ModelError
        If a package is missing, the file cannot be written, or the scores do not agree.
    """
    if missing := missing_packages():
        fix = "pip install -c constraints.txt '.[onnx]'"
        raise ModelError(f"export needs {', '.join(missing)}, not installed here: {fix}", key="packages", value=missing)
    try:
        path = as_path(target)
    except OSError as error:
        text = f"{shown(str(target))} cannot be written: {reason(error)}"
        raise ModelError(text, key="target", value=target) from None
    if os.path.lexists(path):
        raise ModelError(f"{path} exists: remove it, or name another file after --onnx", key="target", value=path)
    module = Exported(model)
    outputs = ["score", *["probability"] * model.has_probabilities]
    proto = _converted(module, model.data_summary.shape, outputs)
    for name, text in _metadata(model).items():
        proto.metadata_props.add(key=name, value=text)
    content: bytes = proto.SerializeToString()
    worst = _difference(content, module, model)
    if not worst <= TOLERANCE:
        text = f"ONNX Runtime's scores differ by {worst:g} from PyTorch's, more than {TOLERANCE:g}"
        raise ModelError(text, key="score", value=worst, allowed=TOLERANCE)
    try:
        with atomic_writer(path) as file:
            file.write(content)
    except OSError as error:
        raise ModelError(f"{path} cannot be written: {reason(error)}", key="target", value=path) from None
    shape = " x ".join(["n", *map(str, model.data_summary.shape)])
    of = f", each n x {len(model.labels)}: {', '.join(model.labels)}" * bool(model.labels)
    return [
        *model.notes,
        f"input: inputs, float32, {shape}, raw values" + ", NaN where missing" * module.table,
        f"outputs: {', '.join(outputs)}{of}; {model.describe_scores()}",
        f"{path}: ONNX Runtime agrees with PyTorch to {worst:.1g}",
    ]


def missing_packages() -> list[str]:
    """Return the packages needed for an export that are not installed."""
    return [name for name in NEEDED if (sys.modules[name] is None if name in sys.modules else not find_spec(name))]


def _converted(module: Exported, shape: tuple[int, ...], outputs: list[str]) -> Any:
    """Return the ONNX model, silencing the exporter's messages for developers."""
    example = torch.zeros(SEVERAL, *shape)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            (example,),
            input_names=["inputs"],
            output_names=outputs,
            dynamic_shapes=({0: torch.export.Dim("n")},),
            dynamo=True,
            verbose=False,
        )
    assert program is not None, "the dynamo exporter returns a program"
    return program.model_proto


def _metadata(model: TrainedModel) -> dict[str, str]:
    schema = model.model_schema
    units = {column.name: column.unit for column in schema.study.columns if column.unit} if schema.study else {}
    codes = {c.name: dict(c.codes) for c in schema.study.columns if c.codes} if schema.study else {}
    said = {"features": list(schema.features), "units": units, "codes": codes, "classes": schema.classes}
    said["labels"] = list(model.labels)
    return {name: json.dumps(value) for name, value in said.items() if value} | {
        "columns": model.data_summary.columns,
        "missing": schema.missing,
        "score": model.describe_scores(),
    }


def _difference(content: bytes, module: Exported, model: TrainedModel) -> float:
    """Return the largest difference between PyTorch and ONNX Runtime on random inputs with missing values."""
    import onnxruntime

    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, *model.data_summary.shape, generator=random) * module.scale * 2 + module.shift
    if module.table:
        inputs[torch.rand(inputs.shape, generator=random) < 0.1] = torch.nan
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    found = [torch.from_numpy(each).double() for each in session.run(None, {"inputs": inputs.numpy()})]
    scores = model.scores(inputs)
    expected = [scores, *[model.probabilities(scores)] * model.has_probabilities]
    if model.labels:  # labels without probabilities are NaN in both
        those = [place for place, _ in enumerate(model.labels) if model.has_probability(place)]
        found[1:], expected[1:] = ([each[:, those] for each in all_[1:]] for all_ in (found, expected))
    gaps = [((a - b).abs() / b.abs().clamp(min=1)).max() for a, b in zip(found, expected, strict=True)]
    return float(torch.stack(gaps).max())  # NaN if any is
