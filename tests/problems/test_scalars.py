"""A problem's own entries of x and y: their names, in gradients, in a run, and in the model's file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from edelweiss.client_app.personalise import FinishedRun, starting_point
from edelweiss.common import ConfigError
from edelweiss.config import RunConfig, flatten
from edelweiss.models.storage import StoredTensors
from edelweiss.problems import PROBLEMS
from edelweiss.problems.network import NetworkProblem
from edelweiss.problems.scalars import restore_scalars
from edelweiss.server_app import simulate
from edelweiss.server_app.model_file import described
from tests.problems.example import WITH_DATA, batch, make, name_of, point, samples
from tests.reference import losses
from tests.server_app.sites import job


@dataclass(eq=False, kw_only=True)
class Tail(NetworkProblem):
    """The mean loss of the worst share of the samples (Rockafellar & Uryasev 2000): one scalar, no y."""

    name = "tail"
    kind = "minimisation"
    scalars = ("t",)

    share: float = Field(0.5, gt=0, le=1, description="α: of the samples that count")

    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor) -> Tensor:
        """Return t + mean max(loss - t, 0) / α."""
        errors = binary_cross_entropy_with_logits(logits, labels, reduction="none")
        return scalars[0] + (errors - scalars[0]).relu().mean() / self.share


@dataclass(eq=False, kw_only=True)
class Levelled(Tail):
    """With an adversary of the mean score, too: one scalar, and a y of one."""

    name = "levelled"
    kind = "minimax"
    dual_scalars = ("u",)

    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor) -> Tensor:
        """Return the tail's loss + u mean h - u²/2."""
        return super().loss(logits, labels, scalars, y) + (y * logits.mean() - y.square() / 2).sum()


OWN = {"tail": ("fedavg", ["t"]), "levelled": ("local-sgda", ["t", "u"])}
either = pytest.mark.parametrize("name", OWN)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a row for each problem, as the documents say; nothing else."""
    for problem in (Tail, Levelled):
        monkeypatch.setitem(PROBLEMS, problem.name, problem)


@either
def test_gradients_are_those_of_the_loss(name: str) -> None:
    problem = make(name, model="mlp", share=0.3)
    x, y = point(problem, 0)
    data = batch(1, 9, 15)
    held_out = samples(*data)

    def value(v: np.ndarray) -> float:
        split = len(x)
        at = problem.metrics(torch.from_numpy(v[:split]), None if y is None else torch.from_numpy(v[split:]), held_out)
        return float(str(at["loss"]))

    gx, gy = problem.gradient(x, y, data)
    together = np.concatenate([v.numpy() for v in (x, y) if v is not None])
    expected = losses.finite_differences(value, together)
    found = np.concatenate([g.numpy() for g in (gx, gy) if g is not None])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    assert abs(expected[problem.network.size]) > 0.01, "t has a slope"


@either
def test_a_round_trains_them_and_the_models_file_carries_their_names(name: str, tmp_path: Path) -> None:
    algorithm, names = OWN[name]
    keys = job(tmp_path, problem=name, algorithm=algorithm, rounds=1) | {f"{name}.share": 0.3}
    result = simulate(keys)
    x, y = result.arrays["x"], result.arrays.get("y")
    facts = StoredTensors.read(result.folder / "model.safetensors").facts
    entries = [x[-1]] if y is None else [x[-1], y[0]]
    assert [facts[own] for own in names] == [float(entry) for entry in entries]
    assert all(entry != 0 for entry in entries), "they start at 0 and are trained"
    assert flatten({name: {"share": 0.3}}).items() <= RunConfig.parse(keys).flat().items()
    # Whoever reads the file has them where they were.
    given = FinishedRun.read(result.folder)
    problem = given.config.build_problem(given.config.setting(given.data_summary, "cpu"))
    assert isinstance(problem, NetworkProblem)
    again_x, again_y = starting_point(problem, given)
    np.testing.assert_array_equal(again_x.numpy(), x)
    assert (again_y is None) == (y is None)
    assert y is None or again_y is None or again_y.tolist() == y.tolist()


@either
def test_its_table_of_keys_is_there_by_the_class_alone(name: str) -> None:
    algorithm, _ = OWN[name]
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse({"problem": name, "algorithm": algorithm, f"{name}.share": 2})
    assert caught.value.keys == [f"{name}.share"]


@pytest.mark.parametrize("variant", [*WITH_DATA, {"name": "tail"}, {"name": "levelled"}], ids=name_of)
def test_what_a_file_says_of_x_and_y_gives_them_back(variant: dict[str, Any]) -> None:
    """Of every problem with a network; and a file without a name leaves the problem's start."""
    problem = make(**variant, model="mlp")
    x, y = point(problem, 3)
    _, named = described(problem, {"x": x} | ({} if y is None else {"y": y}))
    again_x, again_y = restore_scalars(problem, x[: problem.network.size], named)
    assert torch.equal(again_x, x)
    assert (again_y is None) == (y is None)
    assert y is None or torch.equal(again_y, y)
    start_x, start_y = restore_scalars(problem, x[: problem.network.size], {})
    assert torch.equal(start_x[problem.network.size :], problem.initial()["x"][problem.network.size :])
    assert y is None or torch.equal(start_y, problem.initial()["y"])
