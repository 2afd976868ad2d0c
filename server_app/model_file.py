"""``model.safetensors`` of a run: a torch state dict with metadata for its use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from edelweiss.models.storage import write_tensors
from edelweiss.problems.network import NetworkProblem

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from edelweiss.datasets import DataSummary, ModelSchema
    from edelweiss.problems import Arrays, Problem


class ModelFile:
    """The model's file, rewritten during a run.

    Its metadata entry ``edelweiss`` is JSON: the data summary (such as ``shift`` and ``scale`` of standardised inputs),
    the problem's scalars by name, ``problem``, ``model`` and ``hidden``, and ``data``, the schema of inputs and labels,
    see `datasets.ModelSchema`. If each site has its own model, the file is written only at the end and only if sites
    share a body: it has the body, a fresh head, and the entry ``"head": "fresh"``. Batch-norm statistics that stay at
    the sites are ``"fresh"`` too.

    Parameters
    ----------
    folder : Path
        Of the run.
    problem : Problem
        Of the coordinator.
    data_summary : DataSummary
        The combined facts of all sites.
    model_schema : ModelSchema
        What is known of their data.
    personalised : bool
        Whether each site has a model of its own.
    own_statistics : bool
        Whether each site has batch-norm statistics of its own.
    """

    def __init__(
        self,
        folder: Path,
        problem: Problem,
        data_summary: DataSummary,
        model_schema: ModelSchema,
        *,
        personalised: bool,
        own_statistics: bool,
    ) -> None:
        self.path, self.problem = folder / "model.safetensors", problem
        self.data_summary, self.model_schema = data_summary, model_schema
        self.personalised, self.own_statistics = personalised, own_statistics
        self._model: Arrays = {}

    def note(self, model: Arrays) -> None:
        """Receive the model after a round; ignored in a personalised run."""
        self._model = {} if self.personalised else model

    def note_body(self, shared: Tensor, start: Arrays) -> None:
        """Receive a personalised run's shared body for new sites; nothing without a body.

        The file has the body of the returned x and the initial batch-norm statistics; head, scalars and y are
        untrained, even if the run started from trained ones.
        """
        problem = self.problem
        if isinstance(problem, NetworkProblem) and problem.head:
            fresh = problem.fresh()
            body, head = shared[: problem.head].to(problem.device), fresh.pop("head")
            self._model = {**start, **fresh, "x": torch.cat([body, head])}

    def write(self) -> None:
        """Write the last received model, if any."""
        if not self._model:
            return
        state, facts = described(self.problem, self._model)
        if self.problem.needs_data:
            architecture = self.problem.setting.architecture
            facts |= {"problem": self.problem.name, "model": architecture.model, "hidden": architecture.hidden}
            facts |= self.data_summary.facts() | self.model_schema.facts()
            if self.own_statistics and self.problem.buffers().numel():
                facts["statistics"] = "fresh"
        if self.personalised:
            facts["head"] = "fresh"
        write_tensors(self.path, state, facts)


def described(problem: Problem, model: Arrays) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a model as a torch state dict (its vectors for a problem without a network) and the problem's scalars."""
    if not isinstance(problem, NetworkProblem):
        return {name: vector.clone() for name, vector in model.items()}, {}
    x = model["x"].to(problem.device)
    buffers = model["buffers"].to(problem.device) if "buffers" in model else None
    state = {name: tensor.cpu() for name, tensor in problem.network.state_dict(x, buffers).items()}
    return state, dict(problem.scalars_of(model["x"], model.get("y")))
