"""The initial model of a run from a file: that of a finished run, or torchvision's weights.

Only the coordinator reads the file, once, before it contacts the sites, and sends them the resulting start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edelweiss.common.files import as_path, read_file, reason
from edelweiss.datasets import DataSummary, ModelSchema
from edelweiss.models import ModelError
from edelweiss.models.pretrained import adapt_weights, read_weights
from edelweiss.models.storage import StoredTensors
from edelweiss.problems import ProblemError
from edelweiss.problems.scalars import restore_scalars

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.config import RunConfig
    from edelweiss.problems import Arrays
    from edelweiss.problems.network import NetworkProblem

FRESH = 'init-head = "fresh"'
NAMED = 3  # most tensors named in a message


@dataclass(frozen=True)
class InitModel:
    """The content of the file named by ``init-from`` or ``pretrained``, not yet fitted to a problem."""

    config: RunConfig  # the new run's
    file: Path  # the file
    sha256: str  # its hash
    state: dict[str, Tensor]  # its state dict
    # the metadata of a run's file, see `ModelFile`; torchvision's has none
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, config: RunConfig) -> InitModel | None:
        """Read the file that the run names; None if it names none.

        Raises
        ------
        ModelError
            If it cannot be read, or a run cannot start from it.
        """
        if not (config.init_from or config.pretrained):
            return None
        try:
            file = as_path(config.init_from or config.pretrained)
            if config.init_from and file.is_dir():
                file /= "model.safetensors"
            data = read_file(file)
            content = _content(data) if config.init_from else (read_weights(data), {})
        except FileNotFoundError:
            raise ModelError(
                f"{_key(config)}: there is no file {file}: {_sought(config)}", key="file", value=file
            ) from None
        except OSError as error:
            raise ModelError(
                f"{_key(config)} cannot be read: {reason(error)}",
                key="file",
                value=config.init_from or config.pretrained,
            ) from None
        except ModelError as error:
            raise ModelError(f"{_key(config)}: {error}: {_sought(config)}", key=error.key, value=file) from None
        return cls(config, file, hashlib.sha256(data).hexdigest(), *content)

    @property
    def data_summary(self) -> DataSummary:
        """The summary of its training data in a run's file."""
        return DataSummary.of_file(self.facts)

    def standardising(self, data_summary: DataSummary) -> DataSummary:
        """Return the summary of all sites' data with the model's standardisation; `start` checks that both have one."""
        if not self.config.init_from:
            return data_summary
        return replace(data_summary, shift=self.data_summary.shift, scale=self.data_summary.scale)

    def start(self, problem: NetworkProblem) -> tuple[Arrays, str]:
        """Fit the model to a new problem; batch-norm statistics are loaded into its network.

        Returns
        -------
        tuple
            x, and y if there is one; and a description of what was used.

        Raises
        ------
        ModelError
            With all mismatches; nothing is loaded then.
        """
        state, named, description = self._fitted(problem)
        if wrong := [*self._differences(problem, named), *self._misfits(problem, state)]:
            keys = [key for key, _ in wrong]
            raise ModelError("\n".join(f"{_key(self.config)}: {text}" for _, text in wrong), key=keys[0], value=keys)
        parameters, statistics = problem.network.flatten(state)
        try:
            x, y = restore_scalars(problem, parameters, named)
        except ProblemError as error:
            raise ModelError(f"{_key(self.config)}: {error}: take {FRESH}") from None
        problem.load_buffers(statistics)
        return {"x": x} | ({} if y is None else {"y": problem.project(y)}), f"starts from {self.file}: {description}"

    @property
    def record(self) -> str:
        """Return a TOML comment that identifies the file."""
        key = "init-from" if self.config.init_from else "pretrained"
        return f"# {key}: the file's SHA-256 is {self.sha256}\n"

    # ------------------------------------------------------------------ what of it is used

    def _fitted(self, problem: NetworkProblem) -> tuple[dict[str, Tensor], dict[str, Any], str]:
        """Return the state dict to start from, the problem's scalars by name, and a description."""
        network, config = problem.network, self.config
        if config.pretrained:
            state, changes = adapt_weights(config.model, network, self.state)
            return state, {}, ", ".join(["torchvision's weights", *changes])
        if config.init_head == "fresh":
            head, own = network.head_names(), network.state_dict(network.vector())
            state = {name: tensor for name, tensor in self.state.items() if name not in head}
            return state | {name: own[name] for name in head}, {}, "its body, with a newly drawn head"
        if self.facts.get("problem") == config.problem:
            return self.state, self.facts, "its body and head"
        return self.state, {}, "its body and head; the problem's other variables are initialised"

    # ------------------------------------------------------------------ what does not fit

    def _differences(self, problem: NetworkProblem, named: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield the differences between a run's model and what this run needs, from the file's metadata."""
        config, data_summary, facts = self.config, problem.setting.data_summary, self.facts
        if config.pretrained:
            return
        theirs = self.data_summary
        if theirs.shape != data_summary.shape:
            have, need = ("x".join(map(str, shape)) for shape in (theirs.shape, data_summary.shape))
            yield (
                "shape",
                f"its inputs are of size {have}, those of the sites' data of size {need}: take the same features",
            )
        elif theirs.columns != data_summary.columns:
            yield "columns", "its data had columns of other names, or in another order: take the same features"
        if bool(theirs.shift) != config.standardise:
            was = "standardised" if theirs.shift else "not standardised"
            yield "standardise", f"its inputs were {was}: take standardise = {str(bool(theirs.shift)).lower()}"
        if config.init_head == "keep" and theirs.labels != data_summary.labels:
            yield (
                "labels",
                f"{other_labels(theirs.labels, data_summary.labels)}: take {FRESH}, or its labels in its order",
            )
        if config.init_head == "keep" and facts.get("head") == "fresh":
            yield "init-head", f"its run left heads to the sites, so that its own is untrained: take {FRESH}"
        if config.init_head == "fresh" and not problem.head:
            yield (
                "head",
                f'model = {config.model!r} is all head, of which {FRESH} leaves nothing: take init-head = "keep"',
            )
        if theirs.labels == data_summary.labels and isinstance(y := named.get("y"), list) and len(y) != problem.dual:
            yield "y", f"its y has {len(y)} entries, and here it has {problem.dual}: take {FRESH}"

    def _misfits(self, problem: NetworkProblem, state: dict[str, Tensor]) -> Iterator[tuple[str, str]]:
        """Yield the tensors that do not fit the network."""
        config, facts = self.config, self.facts
        if (model := facts.get("model", config.model)) != config.model:
            yield "model", f"it has model = {model!r}, but this run has {config.model!r}: use the same model"
        elif wrong := problem.network.mismatches(state):
            fix = f"take the weights of model = {config.model!r}"
            if facts.get("hidden", config.hidden) != config.hidden:
                fix = f"it was trained with hidden = {facts['hidden']}, but this run has hidden = {config.hidden}"
            elif wrong.keys() <= problem.network.head_names():
                if config.init_from and self.data_summary.labels != problem.setting.data_summary.labels:
                    return  # which is said
                fix = f"only its body fits, so take {FRESH}"
            more = f", and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
            yield "hidden", f"{', '.join([*wrong.values()][:NAMED])}{more}: {fix}"
        elif broken := [name for name, tensor in state.items() if not tensor.isfinite().all()]:
            yield "x", f"NaN or infinity in {', '.join(broken[:NAMED])}: use the model of a run that did not diverge"


def other_labels(theirs: Sequence[str], here: Sequence[str]) -> str:
    """Say that a model has other labels than a run; a single label's name is empty."""
    they, we = (f"the labels {', '.join(names)}" if names else "one label" for names in (theirs, here))
    return f"it was trained on {they}, but this run is on {we}"


def _content(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the metadata of a run's file."""
    try:
        stored = StoredTensors.of(data)
        if "d" in stored.facts:
            raise ModelError("it is a site's own model, whose vectors do not name layers", key="d")
        if "shape" not in stored.facts:
            raise ModelError("it does not describe its inputs, unlike the file of a run with a network", key="shape")
        ModelSchema.of_file(stored.facts, DataSummary.of_file(stored.facts))
    except ValueError as error:
        raise ModelError(str(error), key=getattr(error, "key", "") or "content") from None
    return stored.tensors, stored.facts


def _key(config: RunConfig) -> str:
    return f"init-from = {config.init_from!r}" if config.init_from else f"pretrained = {config.pretrained!r}"


def _sought(config: RunConfig) -> str:
    if config.init_from:
        return "name the model.safetensors of a finished run, or a run folder with that file"
    return f"name a file that torchvision publishes for model = {config.model!r}, downloaded before"
