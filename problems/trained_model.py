"""A trained model ready for use: its network, the schema of its inputs, and the meaning of its scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from edelweiss.common import Registry, shown
from edelweiss.common.files import as_path, is_file, read_json, reason
from edelweiss.common.registry import not_loaded
from edelweiss.datasets import DataSummary, ModelSchema, Samples
from edelweiss.models import MODELS, Architecture, ModelError
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
    """A trained model for one binary label, or several."""

    file: Path  # the model's file
    problem: NetworkProblem  # the problem with its network, including batch-norm statistics
    x: Tensor  # the parameters
    # data_summary, model_schema: shape, standardisation and meaning of the inputs
    data_summary: DataSummary
    model_schema: ModelSchema
    # the map from scores to probabilities for each label; None without one
    recalibrations: tuple[Recalibration | None, ...]
    lacking: tuple[str, ...]  # labels without known samples at the site of a personal model
    notes: tuple[str, ...]  # notes for the user
    personal: bool = False  # whether it is a site's personal model

    @classmethod
    def read(cls, place: str | Path, device: str = "cpu") -> TrainedModel:
        """Read a run folder, its ``model.safetensors``, or a site's personal model.

        Raises
        ------
        ModelError
            If there is no model, it is damaged or of another version, or cannot be used for prediction.
        """
        try:
            path = as_path(place)
            folder = path if path.is_dir() else path.parent
            file = path / FILE if path.is_dir() else path
            stored = StoredTensors.read(file)
        except FileNotFoundError:
            raise ModelError(f"there is no {file}{_why_none(folder)}", key="file", value=file) from None
        except (OSError, ValueError) as error:
            text = f"{shown(str(place))} cannot be read: {reason(error)}"
            raise ModelError(text, key="file", value=place) from None
        try:
            return cls._of(file, stored, device)
        except (ModelError, ProblemError, ValueError) as error:
            key = getattr(error, "key", "")
            raise ModelError(f"{file} cannot be used: {error}", key=key, value=file) from None

    @classmethod
    def _of(cls, file: Path, stored: StoredTensors, device: str) -> TrainedModel:
        facts = stored.facts
        if "shape" not in facts:
            raise ModelError("it does not describe its inputs, as the file of a run with a network does", key="shape")
        if not stored.intact:
            raise ModelError("it is damaged: its checksum does not match", key="checksum")
        data_summary = DataSummary.of_file(facts)
        model_schema = ModelSchema.of_file(facts, data_summary)
        if wrong := dict(_unusable(facts)):
            raise ModelError("; ".join(wrong.values()), key=next(iter(wrong)))
        if broken := [name for name, tensor in stored.tensors.items() if not tensor.isfinite().all()]:
            raise ModelError(f"NaN or infinity in {', '.join(broken[:3])}", key=broken[0])
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
        notes = tuple(_notes(file.parent, facts, data_summary, model_schema))
        return cls(file, problem, x, data_summary, model_schema, each, lacking, notes, "d" in facts)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of several labels; empty for one."""
        return self.problem.labels

    def scores(self, inputs: Tensor) -> Tensor:
        """Return the scores of patients: the network's outputs.

        Parameters
        ----------
        inputs
            Raw values: shape (n, F) float32, NaN where missing, or (n, C, H, W) uint8.

        Returns
        -------
        Tensor
            Shape (n,) float64, on the CPU; with several labels (n, L).
        """
        rows = torch.arange(len(inputs))
        samples = self.data_summary.standardised(Samples(inputs, rows, rows)).to(self.problem.device)
        return self.problem.logits(self.x, samples).double().cpu()

    @property
    def has_probabilities(self) -> bool:
        """Whether any label has probabilities."""
        return any(map(self.has_probability, range(len(self.recalibrations))))

    def has_probability(self, label: int) -> bool:
        """Whether a label, by its index, has probabilities."""
        return self.problem.log_odds or self.recalibrations[label] is not None

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return probabilities in the shape of the scores, float64; NaN for labels without any."""
        if any(self.recalibrations):
            maps = [(fit.intercept, fit.slope) if fit else (math.nan, math.nan) for fit in self.recalibrations]
            intercept, slope = torch.tensor(maps, dtype=torch.float64).T if self.labels else maps[0]
            scores = intercept + slope * scores
        return torch.sigmoid(scores)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of `output_values`: score and probability; with several labels ``score.Edema``."""
        return tuple(
            f"{kind}.{label}" if label else kind
            for place, label in enumerate(self.labels or ("",))
            for kind in self._kinds(place)
        )

    def output_values(self, scores: Tensor) -> list[list[float]]:
        """Return the values of each of `columns`."""
        count = max(1, len(self.labels))
        kinds = {"score": scores.view(-1, count), "probability": self.probabilities(scores).view(-1, count)}
        return [kinds[kind][:, place].tolist() for place in range(count) for kind in self._kinds(place)]

    def _kinds(self, place: int) -> tuple[str, ...]:
        return ("score", "probability") if self.has_probability(place) else ("score",)

    def describe_scores(self) -> str:
        """Describe the scores, and the labels for which they are unreliable."""
        lacks = f"; the site had no known sample of {', '.join(self.lacking)}: do not rely on these scores"
        return self._about_scores() + lacks * bool(self.lacking)

    def _about_scores(self) -> str:
        if any(self.recalibrations):
            none = [name for name, fit in zip(self.labels, self.recalibrations, strict=False) if not fit]
            each = ", label by label" * bool(self.labels) + f"; {', '.join(none)}: none could be fitted" * bool(none)
            owner = "the sites"
            if counts := [
                f"{fit.positives} of {fit.held_out} positive" for fit in self.recalibrations if fit and fit.held_out
            ]:
                owner, each = "this site", f"{each}; they hold for the same share of positives: {', '.join(counts)}"
            return f"probabilities: the scores, recalibrated on the samples that {owner} held out (Platt){each}"
        if self.has_probabilities:
            shares = zip(self.labels, self.data_summary.priors, strict=True)
            share = " and ".join(f"{p:.1%} of {name}" for name, p in shares) or f"{self.data_summary.prior:.1%}"
            return f"probabilities hold for populations with {share} positive, as in training"
        why = "the run has stored no recalibration"
        if self.personal:
            why = (
                "this site has fitted no recalibration, which needs ten held-out samples of each class and a ranking "
                "better than chance"
            )
        return (
            f"the scores are not probabilities: problem = {self.problem.name!r} trains a ranking, and {why}; a higher "
            "score only means a higher risk"
        )


def _why_none(folder: Path) -> str:
    """Return why a folder has no model, and the fix."""
    if not is_file(folder / "config.toml"):
        return ": name a run folder, such as runs/<run>, or a model file"
    return ": the run was stopped before it wrote one, or its sites share no model (then each site has its own)"


def _unusable(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the key and message of each reason why a model cannot be used for prediction."""
    name = facts.get("problem")
    problem = PROBLEMS.get(name) if isinstance(name, str) else None
    places: dict[str, Registry[Any]] = {"problem": PROBLEMS, "model": MODELS}
    named = {key: each for key in places if isinstance(each := facts.get(key), str)}
    if lacks := {key: each for key, each in named.items() if places[key].get(each) is None}:
        yield next(iter(lacks)), not_loaded(lacks)
    elif problem is None or not issubclass(problem, NetworkProblem):
        yield "problem", f"problem = {shown(name)}: there is no such problem with a network"
    elif problem.multiclass:
        yield "problem", f"problem = {name!r} has more than two classes: prediction supports binary labels only"
    if not isinstance(facts.get("model"), str) or type(facts.get("hidden")) is not int:
        model, hidden = shown(facts.get("model")), shown(facts.get("hidden"))
        yield "model", f"model = {model}, hidden = {hidden}: must be a name and a number"
    if not isinstance(facts.get("lacking", []), list):
        yield "lacking", f"lacking = {shown(facts['lacking'])}: must be a list of labels"
    if facts.get("head") == "fresh":
        yield (
            "head",
            "it has no trained head, because each site keeps its own: use the model of a site (edelweiss-site "
            "predict), or train a head there (edelweiss-site personalise)",
        )
    elif facts.get("statistics") == "fresh":
        yield (
            "statistics",
            'it has no batch-norm statistics, because each site keeps its own (bn = "local"): train with bn = '
            '"average", or train a head at the hospital (edelweiss-site personalise)',
        )


def _load(problem: NetworkProblem, stored: StoredTensors) -> Tensor:
    """Return x and load the batch-norm statistics; a personal model's file has flat vectors."""
    if "d" not in stored.facts:
        parameters, statistics = problem.network.flatten(stored.tensors)
        problem.load_buffers(statistics)
        return parameters
    x = stored.tensors.get("x")
    if x is None or x.ndim != 1 or len(x) < problem.network.size:
        raise ModelError(f"it has no x with at least {problem.network.size:,} parameters", key="x")
    if problem.buffers().numel():
        problem.load_buffers(stored.tensors.get("buffers", x[:0]).to(problem.device))
    return x.to(problem.device)


def _notes(folder: Path, facts: dict[str, Any], data_summary: DataSummary, model_schema: ModelSchema) -> Iterator[str]:
    if "format" not in facts:
        yield "the model's file has format 1, which does not describe its inputs"
    elif len(data_summary.shape) == 1 and not model_schema.features:
        yield "the model's file does not name its features: the hospitals told no names, and there was no study file"
    try:
        state = read_json(folder / "status.json").get("status", "complete") if "d" not in facts else "complete"
    except (OSError, ValueError, AttributeError):
        state = "complete"
    if state != "complete":
        yield f"the run is incomplete (status.json says {shown(state)}): this is the model of its last checkpoint"
