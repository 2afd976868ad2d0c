"""The private oracle: without noise and clip it is the plain one; no patient moves an answer beyond the clip."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from edelweiss.client_app.errors import RefusedError
from edelweiss.client_app.oracle import SiteOracle
from edelweiss.client_app.privacy.oracle import Mechanism, Patients, PrivateOracle
from edelweiss.client_app.privacy.randomness import KeyedStream
from edelweiss.datasets import Samples, make_sampler
from edelweiss.federation import privacy_plan as plan
from edelweiss.federation.oracle import not_private
from edelweiss.federation.privacy_account import SENSITIVITY, Query
from edelweiss.problems import PROBLEMS
from edelweiss.problems import patients as gradients
from edelweiss.problems.network import NetworkProblem
from edelweiss.problems.patients import Term, clipped_sum
from edelweiss.strategies import ALGORITHMS, can_solve
from tests.client_app.patients import IMAGE, TABLE, Blanked, moved, problem_of, samples_of
from tests.strategies.halves import drive

EXACT = Mechanism(noise=0.0, clip=math.inf, difference_clip=math.inf)
PRIVATE_PROBLEMS = [name for name, problem in PROBLEMS.items() if not problem.mixes_patients]


def private(problem: NetworkProblem, samples: Samples, ids: Tensor | None = None) -> PrivateOracle:
    """Return one without noise and clip, all of whose samples hold everybody."""
    patients = Patients(len(samples), ids)
    return PrivateOracle(problem, samples, patients, KeyedStream(bytes(32)), EXACT, {}, 10**6)


def alike(found: Sequence[Tensor | None], wanted: Sequence[Tensor | None]) -> None:
    """Hold vectors against each other, up to the rounding of float32."""
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.dtype == other.dtype
            assert torch.linalg.vector_norm(one - other) <= 2e-6 * torch.linalg.vector_norm(other) + 1e-7


def plain(problem: NetworkProblem, samples: Samples) -> SiteOracle:
    generator = KeyedStream(bytes(32)).generator("algorithm")  # which a full batch does not draw from
    sampler = make_sampler("uniform", samples.targets(), len(samples), 1, generator)
    return SiteOracle(problem, samples, sampler, generator, len(samples))


# ---------------------------------------------------------------------- the plain gradient


@pytest.mark.parametrize(("model", "shape"), [("linear", TABLE), ("mlp", TABLE), ("lenet5", IMAGE)])
@pytest.mark.parametrize("name", PRIVATE_PROBLEMS)
def test_without_noise_and_clip_it_is_the_plain_gradient(name: str, model: str, shape: tuple[int, ...]) -> None:
    problem, samples = problem_of(name, model, shape), samples_of(9, shape)
    x, y = moved(problem, 1)
    alike(private(problem, samples).gradient(x, y), plain(problem, samples).gradient(x, y))


@pytest.mark.parametrize("name", ["auc", "auc-margin", "bce"])
def test_several_labels_all_known_give_the_plain_gradient(name: str) -> None:
    problem = problem_of(name, labels=("a", "b"), priors=(0.2, 0.6))
    samples = samples_of(9, labels=2)
    x, y = moved(problem, 1)
    alike(private(problem, samples).gradient(x, y), plain(problem, samples).gradient(x, y))


@pytest.mark.parametrize("name", ["auc", "auc-margin", "bce", "bce-weighted"])
@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.97])
def test_the_default_clip_lies_between_what_the_classes_weigh(name: str, p: float) -> None:
    """What a patient weighs is how steep the loss is in the score, as a multiple of that of cross-entropy."""
    problem = problem_of(name, "linear", prior=p)
    rarer = 1 / (2 * min(p, 1 - p)) if name != "bce" else 1.0
    assert min(1.0, rarer) - 1e-6 <= problem.usual_clip <= rarer + 1e-6
    assert problem.usual_clip == pytest.approx(problem_of(name, "linear", prior=1 - p).usual_clip)
    if p == 0.01:
        assert (problem.usual_clip > 3) == (name != "bce")


def test_the_default_clip_grows_with_the_loss() -> None:
    own = problem_of("auc", prior=0.1)
    papers = type(own)(own.setting, normalise=False)  # type: ignore[call-arg]
    assert papers.usual_clip / own.usual_clip == pytest.approx(4 * 0.1 * 0.9)
    several = problem_of("auc", labels=("a", "b"), priors=(0.1, 0.5))
    assert several.usual_clip == pytest.approx((own.usual_clip + 1) / 2)
    assert problem_of("auc", prior=0.0).usual_clip == 1  # nothing to rank


def test_an_unknown_label_counts_nothing() -> None:
    problem = problem_of("bce", labels=("a", "b"))
    samples = samples_of(9, labels=2)
    samples.labels[:, 1] = -1
    x, _ = moved(problem, 1)
    alike(private(problem, samples).gradient(x), plain(problem, samples).gradient(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVATE_PROBLEMS)
@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS)))
def test_every_private_algorithm_does_what_it_does_without(algorithm: str, name: str) -> None:
    strategy_class = ALGORITHMS[algorithm]
    if not can_solve(strategy_class, PROBLEMS[name]) or not_private(strategy_class.needs):
        pytest.skip("refused, or no pair")
    if algorithm == "dispfl" and PROBLEMS[name].multiclass:
        pytest.skip("with two outputs whose gradients are opposite, the largest is a matter of rounding")
    options: dict[str, Any] = {} if algorithm == "npa" else {"local_steps": 3}
    strategy = strategy_class(**options)
    problem, samples = problem_of(name), samples_of(12)
    start, ends = problem.initial(), []
    for make in (private, plain):
        oracles = cast("Any", lambda site, server_round, make=make: make(problem, samples))
        ends.append(drive(strategy, start, oracles, 2, 2)[-1])
    assert ends[0].keys() == ends[1].keys()
    for vector, wanted in ends[1].items():
        torch.testing.assert_close(ends[0][vector], wanted, rtol=1e-4, atol=2e-6)


def test_a_patient_with_many_rows_counts_once() -> None:
    problem, samples = problem_of("auc"), samples_of(8)
    ids = torch.tensor([5, 5, 5, 7, 7, 9, 2, 2])
    x, y = moved(problem, 2)
    gx, gy = private(problem, samples, ids).gradient(x, y)
    means = []
    for patient in (2, 5, 7, 9):
        rows = replace(samples, rows=samples.rows[ids == patient])
        means.append(torch.cat([part for part in plain(problem, rows).gradient(x, y) if part is not None]))
    alike([torch.cat([gx, gy])], [torch.stack(means).mean(0)])


def test_blocks_do_not_change_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    for model, shape in (("mlp", TABLE), ("lenet5", IMAGE)):
        problem, samples = problem_of("auc", model, shape), samples_of(11, shape)
        ids = torch.tensor([0, 0, 0, 0, 0, 1, 2, 2, 3, 3, 3])
        terms = [Term(*moved(problem, 2)), Term(*moved(problem, 3), (-0.5, -0.2))]
        rows = Patients(11, ids).rows(torch.arange(4))
        whole = clipped_sum(problem, samples, rows, terms, 0.5)
        monkeypatch.setattr(gradients, "evaluation_batch", lambda shape: 2)
        torch.testing.assert_close(clipped_sum(problem, samples, rows, terms, 0.5), whole, rtol=1e-5, atol=1e-6)
        monkeypatch.undo()


@pytest.mark.parametrize("name", PRIVATE_PROBLEMS)
def test_a_difference_is_that_of_two_gradients(name: str) -> None:
    problem, samples = problem_of(name), samples_of(9)
    here, before, estimates = (moved(problem, seed) for seed in (1, 2, 3))
    found = private(problem, samples).difference(here, before, (0.7, 0.4), estimates)
    wanted = plain(problem, samples).difference(here, before, (0.7, 0.4), estimates)
    alike(found, wanted)


# ---------------------------------------------------------------------- one patient


class Trap(nn.Module):
    """A network that a coordinator might choose: its outputs explode, or are NaN, for some inputs."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(shape[0], outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        z = self.first(inputs)
        return cast("Tensor", torch.exp(40 * z) / (z - z.detach() + inputs.abs().sum(-1, keepdim=True) - 1))


VALUES = st.sampled_from([0.0, 1.0, -1.0, 1e3, -1e8, 1e19, 1e30, 3e38, math.inf, math.nan])


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["auc", "bce", "robust", "fair"]),
    model=st.sampled_from(["linear", "mlp"]),
    ids=st.just([*range(8)]) | st.lists(st.integers(0, 3), min_size=8, max_size=8),
    values=st.lists(VALUES, min_size=6, max_size=6),
    scale=st.sampled_from([1e-6, 1.0, 1e4, 1e12]),
    clip=st.sampled_from([1e-3, 1.0, 1e3]),
    two=st.booleans(),
    weight=st.sampled_from([-1.0, -0.9, -1e-3]),
)
def test_no_patient_moves_the_sum_by_more_than_the_clip(
    name: str, model: str, ids: list[int], values: list[float], scale: float, clip: float, two: bool, weight: float
) -> None:
    problem, samples = problem_of(name, model), samples_of(8)
    samples.inputs[0] = torch.tensor(values)
    samples.inputs[5] = samples.inputs[0]
    terms = [Term(*moved(problem, 1, scale))]
    if two:  # near each other, where a difference cancels
        near = moved(problem, 1, scale * (1 + 1e-6))
        terms.append(Term(*near, (weight, weight)))
    check(problem, samples, torch.tensor(ids), terms, clip)


def small(name: str, shape: tuple[int, ...], outputs: int, hidden: int) -> nn.Module:
    """Convolutions with and without a norm found from inner products, and group norm."""
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(4), nn.Conv2d(4, 16, 3)]
    return nn.Sequential(*layers, nn.GroupNorm(4, 16), nn.ReLU(), nn.Flatten(), nn.Linear(64, outputs))


@pytest.mark.parametrize("clip", [1e-3, 1.0])
@pytest.mark.parametrize("model", ["lenet5", "small"])
def test_nor_in_convolutions(model: str, clip: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from edelweiss.models import MODELS

    monkeypatch.setitem(MODELS, "small", small)
    problem, samples = problem_of("auc", model, IMAGE), samples_of(5, IMAGE)
    samples.inputs[1] *= 1e6
    samples.inputs[2, 0, 0, 0] = math.nan
    samples.inputs[3] *= 1e19
    layers = gradients._layers(problem)
    assert layers is not None
    assert {layer.ghost(1) for layer in layers.each if layer.places > 1} == {True, False}
    near = moved(problem, 1, 1 + 1e-6)
    for ids in (torch.arange(5), torch.tensor([0, 0, 1, 2, 2])):
        check(problem, samples, ids, [Term(*moved(problem, 1))], clip)
        check(problem, samples, ids, [Term(*moved(problem, 1)), Term(*near, (-1.0, -0.9))], clip)


def test_nor_in_a_network_of_the_coordinators_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from edelweiss.models import MODELS

    monkeypatch.setitem(MODELS, "trap", lambda name, shape, outputs, hidden: Trap(shape, outputs))
    problem, samples = problem_of("bce", "trap"), samples_of(6)
    samples.inputs[0] = torch.tensor([1.0, 0, 0, 0, 0, 0])
    assert not gradients.refusal(problem)
    for scale in (1.0, 10.0, 1e6):
        check(problem, samples, torch.arange(6), [Term(*moved(problem, 1, scale))], 1.0)


def check(problem: NetworkProblem, samples: Samples, ids: Tensor, terms: list[Term], clip: float) -> None:
    """Blank each patient in turn: the rows stay where they are, and count nothing."""
    patients = Patients(len(samples), ids)
    everyone = patients.rows(torch.arange(len(patients)))

    def total(of: Samples) -> Tensor:
        return clipped_sum(problem, of, everyone, terms, clip)

    whole = total(samples)
    assert whole.isfinite().all()
    for one in range(len(patients)):
        blank = torch.zeros(len(samples), dtype=torch.bool)
        blank[everyone.positions[everyone.owners == one]] = True
        assert torch.linalg.vector_norm(whole - total(Blanked.of(samples, blank))) <= SENSITIVITY * clip


def test_refused_are_networks_and_losses_that_mix_patients(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "resnet18-gn" in gradients.refusal(problem_of("auc", "resnet18", IMAGE))
    assert not gradients.refusal(problem_of("auc", "lenet5", IMAGE))
    for name in PRIVATE_PROBLEMS:
        assert not gradients.refusal(problem_of(name))
    assert {"auprc", "partial-auc", "maml", "saddle"} <= set(PROBLEMS) - set(PRIVATE_PROBLEMS)

    problem = problem_of("bce")
    monkeypatch.setattr(type(problem), "loss", lambda self, logits, labels, scalars, y, weights=None: logits.mean())
    assert gradients.refusal(problem)


# ---------------------------------------------------------------------- noise, and what is paid for


def opened(noise: float, allowed: dict[Query, int], size: int = 3, secret: bytes = bytes(32)) -> PrivateOracle:
    problem, samples = problem_of("auc"), samples_of(12)
    mechanism = Mechanism(noise, clip=2.0, difference_clip=0.5)
    return PrivateOracle(problem, samples, Patients(12), KeyedStream(secret), mechanism, allowed, size)


@pytest.mark.slow
def test_noise_has_the_size_that_is_accounted_for_and_lies_on_a_grid() -> None:
    oracle = opened(50.0, {Query(0.25): 400, Query(1.0): 1})
    x, y = moved(oracle.problem, 1)
    answers = torch.stack([torch.cat(oracle.gradient(x, y)) for _ in range(400)]).double()
    assert answers.std(0).mean() == pytest.approx(50.0 * 2.0 / 3, rel=0.05)  # σ C / q n
    problem, samples = oracle.problem, samples_of(12)
    truth = torch.cat(private(problem, samples).gradient(x, y))  # hardly clipped
    assert (answers.mean(0) - truth).abs().max() < 6 * 50 * 2 / 3 / 20
    oracle = opened(4.0, {Query(0.25, 1): 1})
    gx, gy = oracle.difference((x, y), (x, y))
    assert torch.cat([gx, gy]).std() == pytest.approx(4.0 * 0.5 / 3, rel=0.3)


@pytest.mark.slow
def test_the_terms_of_a_best_y_have_four_times_the_noise() -> None:
    problem, samples, allowed = problem_of("auc"), samples_of(12), {Query(1.0, 1 / 16): 1}
    x, exact = problem.initial()["x"], private(problem, samples)
    numerators = []
    for seed in range(400):
        stream, mechanism = KeyedStream(seed.to_bytes(32, "little")), Mechanism(0.7, 1.0, 1.0)
        oracle = PrivateOracle(problem, samples, Patients(12), stream, mechanism, allowed, 3)
        numerators.append(oracle.dual_terms(x)[0] - exact.dual_terms(x)[0])
    assert float(torch.stack(numerators).std()) == pytest.approx(4 * 0.7 * math.sqrt(2), rel=0.1)
    with pytest.raises(RefusedError):
        oracle.dual_terms(x)


def test_an_answer_that_was_not_paid_for_is_not_given() -> None:
    x, y = moved(problem_of("auc"), 1)
    oracle = opened(1.0, {Query(0.25): 2})
    oracle.gradient(x, y)
    oracle.gradient(x, y)
    for ask in (
        lambda oracle: oracle.gradient(x, y),
        lambda oracle: oracle.difference((x, y), (x, y)),
        lambda oracle: oracle.full_gradient(x, y),
    ):
        with pytest.raises(RefusedError):
            ask(oracle)
    oracle = opened(1.0, {Query(0.25): 1})
    batch = oracle.draw()
    oracle.gradient(x, y, batch)
    with pytest.raises(RefusedError):
        oracle.gradient(x, y, batch)
    with pytest.raises(RefusedError):
        opened(1.0, {Query(0.25): 1}).gradient(x, y, opened(1.0, {Query(0.25): 1}).draw(12))


def test_the_same_question_has_the_same_answer_and_another_secret_another() -> None:
    x, y = moved(problem_of("auc"), 1)
    first, again, other = (opened(1.0, {Query(0.25): 1}, secret=bytes([k]) * 32).gradient(x, y) for k in (0, 0, 1))
    assert torch.equal(first[0], again[0])
    assert not torch.isclose(first[0], other[0]).any()


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS)))
def test_the_plan_is_what_a_run_asks(algorithm: str) -> None:
    strategy_class = ALGORITHMS[algorithm]
    name = next((name for name in ("auc", "cross-entropy") if can_solve(strategy_class, PROBLEMS[name])), "")
    if not name or not_private(strategy_class.needs):
        pytest.skip("refused")
    options: dict[str, Any] = {} if algorithm == "npa" else {"local_steps": 3, "stage_iterations": 6}
    strategy = strategy_class(**options)
    problem, samples, rounds = problem_of(name), samples_of(12), 4
    planned = plan.plan_of(strategy, rounds, 2, 12, 5, "y" in problem.initial())
    asked: list[PrivateOracle] = []

    def opened(site: int, server_round: int) -> Any:
        patients, mechanism = Patients(12), Mechanism(1.0, 1.0, 1.0)
        allowed = {q: 10**6 for queries in planned.values() for q in queries}
        asked.append(PrivateOracle(problem, samples, patients, KeyedStream(bytes(32)), mechanism, allowed, 5))
        return asked[-1]

    drive(strategy, problem.initial(), opened, rounds, 2)
    wanted = [queries for queries in planned.values() for _ in range(2)]
    assert [+oracle.asked for oracle in asked if oracle.asked] == [queries for queries in wanted if queries]


def test_plans_by_hand() -> None:
    def planned(algorithm: str, minimax: bool = True, **options: Any) -> Counter[Query]:
        return plan.total(plan.plan_of(ALGORITHMS[algorithm](local_steps=4, **options), 3, 2, 100, 10, minimax))

    q = Query(0.1)
    assert planned("fedavg", minimax=False) == {q: 12}
    assert planned("codasca") == {q: 12}
    assert planned("local-sgda-plus") == {Query(0.1, 2): 12}
    assert planned("fedgda-gt") == {Query(1.0): 3 * 4}
    assert planned("cdma") == {q: 3 + 3 * 3}
    assert planned("fednest", anchor_batch=30) == {Query(0.3): 6, q: 18}
    assert planned("ditto", minimax=False) == {Query(0.1, 2): 12}
    assert planned("fedrod", minimax=False) == {Query(0.1, 2): 12}
    assert planned("coda", stage_iterations=8) == {q: 12, Query(1.0, 1 / 16): 2}  # a best y costs as noise of 4 σ does
    assert planned("coda", stage_iterations=8, dual_batch=50) == {q: 12, Query(0.5, 1 / 16): 2}
