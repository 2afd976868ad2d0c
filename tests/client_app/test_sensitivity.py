"""Whatever an algorithm asks, a patient moves no answer by more than the clip.

Two oracles of one site draw the same samples; in one of them one patient's rows count nothing. All that an algorithm
asks is asked of both, and the answers are compared. They see the oracle as algorithms do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from edelweiss.client_app.privacy import oracle as private_oracle
from edelweiss.client_app.privacy.oracle import Mechanism, Patients, PrivateOracle
from edelweiss.client_app.privacy.randomness import KeyedStream
from edelweiss.datasets import Samples
from edelweiss.federation.oracle import not_private
from edelweiss.federation.privacy_account import SENSITIVITY
from edelweiss.problems import PROBLEMS
from edelweiss.problems.network import NetworkProblem
from edelweiss.problems.patients import clipped_sum
from edelweiss.strategies import ALGORITHMS, can_solve
from tests.client_app.patients import Blanked, moved, problem_of, samples_of
from tests.fitting import steps_of
from tests.strategies.halves import drive

CLIPS = Mechanism(noise=0.0, clip=0.7, difference_clip=0.2)
ROUNDING = 1e-6  # of answers in float32
ROWS = 10
WHOSE = torch.tensor([0, 0, 0, 1, 2, 2, 3, 4, 5, 6])
PEOPLE = 7
PRIVATE = [name for name, algorithm in ALGORITHMS.items() if not not_private(algorithm.needs)]
VALUES = st.sampled_from([0.0, 1.0, -1.0, 40.0, 1e4, -1e9, 1e19, 1e30, 3e38, math.inf, -math.inf, math.nan])


class Twins:
    """The oracles of a site with a patient and of one without, as one that answers with the patient."""

    def __init__(self, problem: NetworkProblem, samples: Samples, patient: int, size: int) -> None:
        self.both = [
            PrivateOracle(problem, own, Patients(ROWS, WHOSE), KeyedStream(bytes(32)), CLIPS, {}, size)
            for own in (samples, Blanked.of(samples, patient == WHOSE))
        ]
        self.size, self.asked = size, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.both[0], name)

    def draw(self, size: int | None = None) -> Any:
        return [oracle.draw(size) for oracle in self.both]

    def epoch(self) -> Iterator[Any]:
        return map(list, zip(*(oracle.epoch() for oracle in self.both), strict=True))

    @contextmanager
    def aside(self) -> Iterator[None]:
        with self.both[0].aside(), self.both[1].aside():
            yield

    def gradient(self, x: Tensor, y: Tensor | None = None, batch: Any = None) -> tuple[Tensor, Any]:
        batch = batch if batch is not None else self.draw()
        answers = [oracle.gradient(x, y, own) for oracle, own in zip(self.both, batch, strict=True)]
        return self.compared(answers, CLIPS.clip / (batch[0].rate * PEOPLE))

    def difference(self, *asked: Any, **more: Any) -> tuple[Tensor, Any]:
        answers = [oracle.difference(*asked, **more) for oracle in self.both]
        return self.compared(answers, CLIPS.difference_clip / min(self.size, PEOPLE))

    def full_gradient(self, *asked: Any) -> tuple[Tensor, Any]:
        answers = [oracle.full_gradient(*asked) for oracle in self.both]
        return self.compared(answers, CLIPS.clip / PEOPLE)

    def balanced_gradient(self, x: Tensor, batch: Any) -> Tensor:
        answers = [(oracle.balanced_gradient(x, own), None) for oracle, own in zip(self.both, batch, strict=True)]
        return self.compared(answers, CLIPS.clip / (batch[0].rate * PEOPLE))[0]

    def dual_terms(self, x: Tensor, batch: Any = None) -> tuple[Tensor, Tensor]:
        batch = batch if batch is not None else self.draw(PEOPLE)
        answers = [oracle.dual_terms(x, own) for oracle, own in zip(self.both, batch, strict=True)]
        self.compared([(sums.flatten(), counts.flatten()) for sums, counts in answers], math.sqrt(2))
        return answers[0]

    def compared(self, answers: list[tuple[Tensor, Any]], most: float) -> tuple[Tensor, Any]:
        present, absent = (torch.cat([part for part in answer if part is not None]).double() for answer in answers)
        assert present.isfinite().all()
        rounding = ROUNDING * float(torch.linalg.vector_norm(present))
        assert float(torch.linalg.vector_norm(present - absent)) <= SENSITIVITY * most + rounding
        self.asked += 1
        return answers[0]


def twins(name: str, model: str, values: list[float], patient: int, size: int) -> Twins:
    problem, samples = problem_of(name, model), samples_of(ROWS)
    samples.inputs[patient == WHOSE] = torch.tensor(values)
    return Twins(problem, samples, patient, size)


def first_problem(algorithm: str) -> str:
    names = ("auc", "bce", "cross-entropy")
    return next((name for name in names if can_solve(ALGORITHMS[algorithm], PROBLEMS[name])), "")


@pytest.mark.parametrize("algorithm", [name for name in PRIVATE if first_problem(name)])
@settings(max_examples=4, deadline=None)
@given(values=st.lists(VALUES, min_size=6, max_size=6), patient=st.sampled_from([0, 1]), size=st.sampled_from([4, 99]))
def test_no_query_of_an_algorithm(algorithm: str, values: list[float], patient: int, size: int) -> None:
    name, opened = first_problem(algorithm), list[Twins]()

    def oracles(site: int, server_round: int) -> Any:
        opened.append(twins(name, "mlp", values, patient, size))
        return opened[-1]

    own = steps_of(ALGORITHMS[algorithm])
    strategy = ALGORITHMS[algorithm](**own, **({} if algorithm == "npa" else {"local_steps": 3}))
    drive(strategy, problem_of(name).initial(), oracles, 2, 1)
    assert sum(pair.asked for pair in opened) > 0


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(["auc", "bce", "robust", "fair", "auc-margin"]),
    model=st.sampled_from(["linear", "mlp"]),
    values=st.lists(VALUES, min_size=6, max_size=6),
    patient=st.sampled_from([0, 1]),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_no_query_at_any_point(name: str, model: str, values: list[float], patient: int, scale: float) -> None:
    pair = twins(name, model, values, patient, 99)
    points = [moved(cast("NetworkProblem", pair.problem), seed, scale) for seed in (1, 2)]
    batch = pair.draw()
    for x, y in points:  # several on one batch
        pair.gradient(x, y, batch)
    pair.difference(*points)
    pair.difference(points[0], points[0], (0.9, 0.5), points[1])
    pair.full_gradient(*points[1])
    assert pair.asked == 5


@pytest.mark.parametrize("score", ["sigmoid", "identity"])
@pytest.mark.parametrize("value", [1.0, 1e4, 1e30, math.nan])
@pytest.mark.parametrize("patient", [0, 1])
def test_nor_the_terms_of_the_best_y(score: str, value: float, patient: int) -> None:
    pair = twins("auc", "linear", [value] * 6, patient, 99)
    for oracle in pair.both:
        oracle.problem = type(oracle.problem)(oracle.problem.setting, score=score)  # type: ignore[call-arg]
    x, _ = moved(cast("NetworkProblem", pair.problem), 1)
    sums, counts = pair.dual_terms(x)
    assert sums.isfinite().all()
    assert (counts >= 1).all()
    assert pair.asked == 1


def test_a_patient_who_is_not_clipped_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_oracle, "clipped_sum", lambda *given: clipped_sum(*given[:-1], math.inf))
    pair = twins("bce", "linear", [1.0] * 6, 1, 99)
    with pytest.raises(AssertionError):
        pair.gradient(*moved(cast("NetworkProblem", pair.problem), 1, 1e-3))
