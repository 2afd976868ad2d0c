"""The model that a run left, ready to be used: its network, what its inputs mean, and what its scores are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from edelweiss.common import shown
from edelweiss.common.files import as_path, is_file, read_json, reason
from edelweiss.datasets import DataSummary, ModelSchema, Samples
from edelweiss.models import Architecture, ModelError
from edelweiss.models.storage import StoredTensors
from edelweiss.problems import PROBLEMS
from edelweiss.problems.base import Setting
from edelweiss.problems.errors import ProblemError
from edelweiss.problems.network import NetworkProblem
from edelweiss.problems.recalibration import Recalibration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

FILE = "model.safetensors"


@dataclass(frozen=True)
class TrainedModel:
    """A model of two classes, or of several labels of two classes each.

    Attributes
    ----------
    file : Path
        Where it was read.
    problem : NetworkProblem
        With the batch-norm statistics of the model, if it has any.
    x : Tensor
        Its parameters.
    data_summary, meaning : DataSummary, ModelSchema
        What its inputs are.
    recalibrations : tuple of Recalibration
        What makes probabilities of its scores, of each label; None where neither the run nor the site has found that.
    lacking : tuple of str
        Of several labels those that the site which the model belongs to does not know.
    notes : tuple of str
        What whoever uses it should know, a line each.
    kept_by_site : bool
        Whether a site has kept it, and not the coordinator.
    """

    file: Path
    problem: NetworkProblem
    x: Tensor
    data_summary: DataSummary
    meaning: ModelSchema
    recalibrations: tuple[Recalibration | None, ...]
    lacking: tuple[str, ...]
    notes: tuple[str, ...]
    kept_by_site: bool = False

    @classmethod
    def read(cls, place: str | Path, device: str = "cpu") -> TrainedModel:
        """Read a run folder, the ``model.safetensors`` in one, or a model that a site has kept.

        Raises
        ------
        ModelError
            In a line, when there is none, it is damaged or of another version, or it cannot be used on a patient.
        """
        try:
            path = as_path(place)
            folder = path if path.is_dir() else path.parent
            file = path / FILE if path.is_dir() else path
            stored = StoredTensors.read(file)
        except FileNotFoundError:
            raise ModelError(f"there is no {file}{_why_none(folder)}") from None
        except (OSError, ValueError) as error:
            raise ModelError(f"{shown(str(place))} cannot be read: {reason(error)}") from None
        try:
            return cls._of(file, stored, device)
        except (ModelError, ProblemError, ValueError) as error:
            raise ModelError(f"{file} cannot be used: {error}") from None

    @classmethod
    def _of(cls, file: Path, stored: StoredTensors, device: str) -> TrainedModel:
        facts = stored.facts
        if "shape" not in facts:
            raise ValueError("it does not say what the inputs are like, as the file of a run with a network does")
        if not stored.intact:
            raise ValueError("it is damaged: it does not hold what was written")
        data_summary = DataSummary.of_file(facts)
        meaning = ModelSchema.of_file(facts, data_summary)
        if wrong := [*_unusable(facts)]:
            raise ValueError("; ".join(wrong))
        if broken := [name for name, tensor in stored.tensors.items() if not tensor.isfinite().all()]:
            raise ValueError(f"NaN or infinity in {', '.join(broken[:3])}")
        architecture = Architecture(model=facts["model"], hidden=facts["hidden"])
        problem = PROBLEMS[facts["problem"]](
            Setting(data_summary=data_summary, architecture=architecture, device=device)
        )
        assert isinstance(problem, NetworkProblem), "others are refused above"
        x = _load(problem, stored)
        each: tuple[Recalibration | None, ...] = (None,) * max(1, len(problem.labels))
        if "d" not in facts:
            each = Recalibration.read(file.parent, problem.labels)
        elif "platt" in facts:
            each = Recalibration.of_site(facts["platt"], len(each))
        lacking = tuple(label for label in problem.labels if label in facts.get("lacking", []))
        notes = tuple(_notes(file.parent, facts, data_summary, meaning))
        return cls(file, problem, x, data_summary, meaning, each, lacking, notes, "d" in facts)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of several labels; empty for one."""
        return self.problem.labels

    def scores(self, inputs: Tensor) -> Tensor:
        """Return what an evaluation ranks patients by: the network's outputs.

        Parameters
        ----------
        inputs
            Raw values: shape (n, F) float32, NaN where missing, or (n, C, H, W) uint8.

        Returns
        -------
        Tensor
            Shape (n,) float64, on the CPU; of several labels (n, L).
        """
        rows = torch.arange(len(inputs))
        samples = self.data_summary.standardised(Samples(inputs, rows, rows)).to(self.problem.device)
        return self.problem.logits(self.x, samples).double().cpu()

    @property
    def probable(self) -> bool:
        """Whether there are probabilities, of any label."""
        return any(map(self.has_probability, range(len(self.recalibrations))))

    def has_probability(self, label: int) -> bool:
        """Whether there are probabilities of a label, by its number."""
        return self.problem.log_odds or self.recalibrations[label] is not None

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return probabilities of being positive, shaped as the scores, float64; NaN for a label that has none."""
        if any(self.recalibrations):
            maps = [(fit.intercept, fit.slope) if fit else (math.nan, math.nan) for fit in self.recalibrations]
            intercept, slope = torch.tensor(maps, dtype=torch.float64).T if self.labels else maps[0]
            scores = intercept + slope * scores
        return torch.sigmoid(scores)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of what `told` returns: score, probability where there is one; of several labels ``score.Edema``."""
        return tuple(
            f"{kind}.{label}" if label else kind
            for place, label in enumerate(self.labels or ("",))
            for kind in self._kinds(place)
        )

    def told(self, scores: Tensor) -> list[list[float]]:
        """Return a list for each of `columns`, from scores."""
        count = max(1, len(self.labels))
        kinds = {"score": scores.view(-1, count), "probability": self.probabilities(scores).view(-1, count)}
        return [kinds[kind][:, place].tolist() for place in range(count) for kind in self._kinds(place)]

    def _kinds(self, place: int) -> tuple[str, ...]:
        return ("score", "probability") if self.has_probability(place) else ("score",)

    def about_scores(self) -> str:
        """Say what its scores are, and of which labels they say nothing."""
        lacks = f"; the site knew no sample of {', '.join(self.lacking)}: do not rely on what it says of that"
        return self._about_scores() + lacks * bool(self.lacking)

    def _about_scores(self) -> str:
        if any(self.recalibrations):
            none = [name for name, fit in zip(self.labels, self.recalibrations, strict=False) if not fit]
            each = ", label by label" * bool(self.labels) + f"; {', '.join(none)}: none could be fitted" * bool(none)
            whose = "the sites"
            if counts := [
                f"{fit.positives} of {fit.held_out} positive" for fit in self.recalibrations if fit and fit.held_out
            ]:
                whose, each = "this site", f"{each}; they hold where as many are positive as there: {', '.join(counts)}"
            return f"probabilities: the scores, recalibrated on the samples that {whose} held out (Platt){each}"
        if self.probable:
            shares = zip(self.labels, self.data_summary.priors, strict=True)
            share = " and ".join(f"{p:.1%} of {name}" for name, p in shares) or f"{self.data_summary.prior:.1%}"
            return f"probabilities hold where {share} are positive, as among those that it was trained on"
        why = "the run has stored no recalibration"
        if self.kept_by_site:
            why = (
                "this site has fitted no recalibration: that takes ten held-out samples of each class, which the model "
                "ranks better than chance"
            )
        return (
            f"the scores are no probabilities: problem = {self.problem.name!r} trains a ranking, and {why}; a higher "
            "score means a higher risk, and no more"
        )


def _why_none(folder: Path) -> str:
    """Say why a folder has no model."""
    if not is_file(folder / "config.toml"):
        return ": name a run folder, such as runs/<run>, or a model file"
    return ": the run was stopped before it wrote one, or its sites shared nothing (then each has a model of its own)"


def _unusable(facts: dict[str, Any]) -> Iterator[str]:
    """Yield why a model cannot be used on a patient."""
    name = facts.get("problem")
    problem = PROBLEMS.get(name) if isinstance(name, str) else None
    if problem is None or not issubclass(problem, NetworkProblem):
        yield f"problem = {shown(name)}: there is no such problem with a network"
    elif problem.multiclass:
        yield f"problem = {name!r} tells more than two classes apart, and this is for two"
    if not isinstance(facts.get("model"), str) or type(facts.get("hidden")) is not int:
        yield f"model = {shown(facts.get('model'))}, hidden = {shown(facts.get('hidden'))}: must be a name and a number"
    if not isinstance(facts.get("lacking", []), list):
        yield f"lacking = {shown(facts['lacking'])}: must be a list of labels"
    if facts.get("head") == "fresh":
        yield (
            "it has no trained head, because each site keeps its own: use the model of a site (edelweiss-site "
            "predict), or train a head there (edelweiss-site personalise)"
        )
    elif facts.get("statistics") == "fresh":
        yield (
            'it has no batch-norm statistics, because each site keeps its own (bn = "local"): train with bn = '
            '"average", or train a head at the hospital (edelweiss-site personalise)'
        )


def _load(problem: NetworkProblem, stored: StoredTensors) -> Tensor:
    """Return x, and give the network its statistics; a site's own file has flat vectors."""
    if "d" not in stored.facts:
        parameters, statistics = problem.network.flatten(stored.tensors)
        problem.load_buffers(statistics)
        return parameters
    x = stored.tensors.get("x")
    if x is None or x.ndim != 1 or len(x) < problem.network.size:
        raise ValueError(f"it has no x of {problem.network.size:,} parameters or more")
    if problem.buffers().numel():
        problem.load_buffers(stored.tensors.get("buffers", x[:0]).to(problem.device))
    return x.to(problem.device)


def _notes(folder: Path, facts: dict[str, Any], data_summary: DataSummary, meaning: ModelSchema) -> Iterator[str]:
    if "format" not in facts:
        yield "the model's file is of format 1, which does not say what its inputs mean"
    elif len(data_summary.shape) == 1 and not meaning.features:
        yield "the model's file does not name its features: the hospitals told no names, and there was no study file"
    try:
        state = read_json(folder / "status.json").get("status", "complete") if "d" not in facts else "complete"
    except (OSError, ValueError, AttributeError):
        state = "complete"
    if state != "complete":
        yield f"the run is not complete (status.json says {shown(state)}): this is the model of its last checkpoint"
