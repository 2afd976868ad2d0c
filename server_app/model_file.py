"""``model.safetensors`` of a run: a torch state dict, with what else it takes to use it as metadata."""

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
    """The file, written again and again as a run goes.

    Its metadata is one entry, ``edelweiss``, of JSON: what the sites agreed on, such as ``shift`` and ``scale`` of the
    inputs where they are standardised, the problem's own scalars by their names, which problem and network it is of
    (``problem``, ``model``, ``hidden``), and ``data``, what inputs and labels mean, see `datasets.Meaning`. Where each
    site has a model of its own, there is a file at the end of a run only, and only if sites share a body: it has that,
    a fresh head, and the entry ``"head": "fresh"``. Batch-norm statistics that stay at the sites are ``"fresh"``, too.

    Parameters
    ----------
    folder : Path
        Of the run.
    problem : Problem
        Of the coordinator.
    data_summary : DataSummary
        What the sites agreed on.
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
        """Take note of the model after a round; a personalised run's server has none that is worth a file."""
        self._model = {} if self.personalised else model

    def note_body(self, shared: Tensor, start: Arrays) -> None:
        """Take note of what a personalised run leaves to new sites, for a head of their own; nothing without a body.

        That is the body of what the sites share, x as the run returns it, and the start's batch-norm statistics; head,
        scalars of the problem and y are untrained, also where the run was given others to start from.
        """
        problem = self.problem
        if isinstance(problem, NetworkProblem) and problem.head:
            fresh = problem.fresh()
            body, head = shared[: problem.head].to(problem.device), fresh.pop("head")
            self._model = {**start, **fresh, "x": torch.cat([body, head])}

    def write(self) -> None:
        """Write the model that was noted last, if any."""
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
    """Return a model as a torch state dict, and the problem's own scalars by their names.

    A problem without a network has its vectors themselves for a state dict.
    """
    if not isinstance(problem, NetworkProblem):
        return {name: vector.clone() for name, vector in model.items()}, {}
    x = model["x"].to(problem.device)
    buffers = model["buffers"].to(problem.device) if "buffers" in model else None
    state = {name: tensor.cpu() for name, tensor in problem.network.state_dict(x, buffers).items()}
    return state, dict(problem.scalars_of(model["x"], model.get("y")))
