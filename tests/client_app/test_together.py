"""Clients side by side: each ends where it ends alone, whoever is in its stack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from edelweiss.client_app import vectorised as together
from edelweiss.client_app.oracle import SiteOracle, stream
from edelweiss.client_app.vectorised import Update, Updated, updated, why_alone
from edelweiss.datasets import Augmentation, DataError, Samples, make_sampler
from edelweiss.federation import FederatedStrategy, Reply, Site
from edelweiss.federation.algorithm import phases_of
from edelweiss.problems import PROBLEMS, Problem
from edelweiss.problems.bce import Bce
from edelweiss.problems.stacked import Stacked, relative_time, trial_failure
from edelweiss.strategies import ALGORITHMS, can_solve
from tests.fitting import steps_of
from tests.problems.example import FEATURES, make

ROWS = (20, 5, 12, 9, 30)  # samples of each client; the second has fewer than a batch
CLIENTS = range(len(ROWS))
BATCH, ROUNDS, STEPS, LOST = 8, 3, 3, (3, 2)  # the client and the round in which its memory is gone
DRAWN = torch.Generator().manual_seed(1)
TABLE, LABELS = torch.randn(sum(ROWS), FEATURES, generator=DRAWN), torch.randint(0, 2, (sum(ROWS),), generator=DRAWN)
SQUARE = (1, 4, 4)
IMAGES = torch.randint(0, 256, (sum(ROWS), *SQUARE), generator=DRAWN).to(torch.uint8)
LABELS[[sum(ROWS[:k]) for k in CLIENTS]] = 1  # everybody has a positive

ONE_BY_ONE = ("maml", "saddle", "auprc", "partial-auc")


class Doubles(Samples):
    """Samples whose batches are in float64, where a difference is one."""

    def batch(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = super().batch(index)
        return inputs.double(), labels


def problem_of(name: str) -> Problem:
    network = {"model": "mlp", "classes": 3, "shares": (0.5, 0.3, 0.2), "prior": 0.4}
    problem: Problem = make(name, **(network if PROBLEMS[name].needs_data else {"dimension": 4}))
    return problem


STACKED = {
    algorithm: [
        problem
        for problem in PROBLEMS
        if kind.stacks and can_solve(kind, PROBLEMS[problem]) and problem not in ONE_BY_ONE
        if not problem_of(problem).differs_by_site(kind.own_dual)
    ]
    for algorithm, kind in ALGORITHMS.items()
}
EVERYWHERE = ("fedavg", "local-sgda", "coda", "fedrep")  # x alone, with y, with its closed form; a head
PAIRS = [
    pytest.param(a, p, marks=[] if a in EVERYWHERE and p == solved[0] else pytest.mark.slow)
    for a, solved in STACKED.items()
    for p in (solved if a in EVERYWHERE else solved[:1])
]
"""Every algorithm, every problem, and whatever one of them asks of the other."""


def strategy_of(name: str, **keys: Any) -> FederatedStrategy:
    own = steps_of(ALGORITHMS[name]) | ({"batch": 6} if name == "npa" else {})
    return ALGORITHMS[name](
        **{"local_steps": 1 if name == "npa" else STEPS, "stage_iterations": 2 * STEPS, **own, **keys}
    )


def updates_of(
    strategy: FederatedStrategy,
    problem: Problem,
    sampler: str = "uniform",
    augment: bool = False,
    sizes: tuple[int, ...] = ROWS,
) -> Iterator[tuple[list[Update], Callable[[list[Updated]], None]]]:
    """Play a run; yield each phase's updates, and who is to be told what came of them."""
    inputs = IMAGES if augment else TABLE
    samples = [Doubles(inputs, LABELS, rows) for rows in torch.arange(sum(sizes)).split(sizes)]
    sites = [Site(k, f"site-{k}", k + 1) for k in CLIENTS]

    def oracle(k: int, r: int, place: int) -> SiteOracle:
        random, own = stream(0, k, r, place), samples[k] if problem.needs_data else None
        dealer = make_sampler(sampler, LABELS[own.rows], BATCH, 2, random) if own else None
        changed = Augmentation(flip=True) if augment else Augmentation()
        return SiteOracle(problem, own, dealer, random, BATCH, lambda: problem.fresh(k), changed)

    start = problem.initial()
    body = {"body": start["x"][: problem.head]} if strategy.splits_model else {}
    state, memory = strategy.initial_state(start | body), {k: dict[str, torch.Tensor]() for k in CLIENTS}
    for r in range(1, ROUNDS + 1):
        for place, phase in enumerate(strategy.phases):
            if phase not in phases_of(strategy, r, ROUNDS, len(ROWS)):
                continue
            context = strategy.context(r, ROUNDS, phase, len(ROWS))
            memory |= {LOST[0]: {}} if r == LOST[1] else {}
            updates = [
                Update(
                    strategy=strategy,
                    problem=problem,
                    sent=strategy.broadcast(state, context, sites[k]),
                    memory=memory[k],
                    oracle=partial(oracle, k, r, place),
                    context=context,
                )
                for k in CLIENTS
            ]
            done: list[Updated] = []
            yield updates, done.extend
            memory = {k: one.memory for k, one in enumerate(done)}
            replies = (Reply(sites[k], one.reply) for k, one in enumerate(done))
            state = strategy.aggregate(state, replies, replace(context, total_weight=float(len(CLIENTS))))


def require_equal(one: Updated, other: Updated) -> None:
    """Check to the last bits of float64."""
    assert (one.gradients, one.samples) == (other.gradients, other.samples)
    for arrays, others in ((one.reply, other.reply), (one.memory, other.memory)):
        assert arrays.keys() == others.keys()
        for name, vector in arrays.items():
            assert vector.shape == others[name].shape
            torch.testing.assert_close(vector, others[name], rtol=1e-12, atol=1e-12)


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many clients are done together."""
    sizes: list[int] = []
    original = together.StackedOracle

    def noted(problem: Problem, oracles: list[SiteOracle]) -> Any:
        sizes.append(len(oracles))
        return original(problem, oracles)

    monkeypatch.setattr(together, "StackedOracle", noted)
    return sizes


@pytest.mark.parametrize(("algorithm", "name"), PAIRS)
def test_each_client_ends_where_it_ends_alone(algorithm: str, name: str, stacks: list[int]) -> None:
    strategy, problem = strategy_of(algorithm), problem_of(name)
    assert not why_alone(strategy, problem)
    assert not trial_failure(problem)
    play(strategy, problem)
    assert max(stacks) == len(ROWS), "all are done together, also the one with fewer samples than a batch"


def play(strategy: FederatedStrategy, problem: Problem, **how: Any) -> None:
    """Play a run in which every phase is done alone and together; check that it makes no difference."""
    for updates, tell in updates_of(strategy, problem, **how):
        alone = [update.alone() for update in updates]
        for own, do in zip(alone, updated(updates), strict=True):
            require_equal(do(), own)
        tell(alone)


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"sampler": "fixed-positives"}, {"augment": True}], ids=["positives", "augmented"])
def test_each_draws_what_it_draws_alone(how: dict[str, Any], stacks: list[int]) -> None:
    problem = make("auc", model="mlp", shape=SQUARE, prior=0.4) if "augment" in how else problem_of("auc")
    play(strategy_of("codasca"), problem, **how)
    assert stacks


def test_convolutions_are_computed_side_by_side(stacks: list[int]) -> None:
    layers = [nn.Conv2d(1, 3, 2), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(3, 2, 1), nn.Flatten(), nn.Linear(2, 1)]
    problem = make("auc", model=nn.Sequential(*layers), shape=SQUARE, prior=0.4)
    play(strategy_of("codasca"), problem, augment=True)
    assert max(stacks) == len(ROWS)


@pytest.mark.slow
def test_batches_of_different_sizes_are_filled_up(stacks: list[int]) -> None:
    """Five samples, nine and twelve, of batches of twelve; in an epoch those of clients with as many batches."""
    play(strategy_of("sagda", control_batch=12), problem_of("auc"))
    play(strategy_of("fedrep", head_unit="epochs"), problem_of("bce"), sizes=(12, 16, 9, 10, 14))
    assert set(stacks) == {len(ROWS), len(ROWS) - 1}, "all, but for the one whose memory is gone in a round"


@pytest.mark.slow
def test_with_weights_of_their_own_they_are_filled_up_too(stacks: list[int]) -> None:
    play(strategy_of("coda", dual_batch=12), problem_of("auc"), sampler="fixed-positives")
    play(strategy_of("coda", dual_batch=12), problem_of("auc"))
    assert max(stacks) == len(ROWS)


@pytest.mark.slow
def test_epochs_of_other_numbers_of_batches_are_not_done_together() -> None:
    play(strategy_of("fedrep", head_unit="epochs"), problem_of("bce"))


class Weightless(Bce):
    """A problem of a user's own that takes no weights: no sampler of its runs has any."""

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, *rest: Any) -> torch.Tensor:
        return super().loss(logits, labels, *rest[:2])


def test_a_loss_that_leaves_weights_alone_is_computed_on_batches_of_one_size(stacks: list[int]) -> None:
    problem = Weightless(problem_of("bce").setting)
    assert [Stacked(one).supports_masking for one in (problem, problem_of("bce"))] == [False, True]
    play(strategy_of("fedavg"), problem)
    assert max(stacks) == len(ROWS) - 1


def test_an_epoch_of_more_batches_is_done_to_its_end(stacks: list[int]) -> None:
    """All of one size; the stack is through with the shortest epoch when other clients have batches left."""
    sizes = tuple(batches * BATCH for batches in (2, 1, 3, 1, 1))
    play(strategy_of("fedrep", head_unit="epochs"), problem_of("bce"), sizes=sizes)
    # All are tried, then those of one batch; in the second round one of these has lost its head.
    assert stacks == [5, 3, 4, 2, 5, 3]


def test_the_common_step_does_not_depend_on_who_is_in_the_stack() -> None:
    strategy, problem = strategy_of("codasca"), problem_of("auc")
    updates, _ = next(updates_of(strategy, problem))
    everybody, some = updated(updates), updated(updates[2:5])
    for one, other in zip(everybody[2:5], some, strict=True):
        require_equal(one(), other())


def test_a_memory_of_an_earlier_round_is_none_of_the_others() -> None:
    """A client that missed a round starts from another point: the number of that round tells."""
    run = updates_of(strategy_of("fmgda"), problem_of("auc"))
    updates, tell = next(run)
    tell([update.alone() for update in updates])
    updates, _ = next(run)
    memory = {**updates[2].memory, "round": torch.tensor([0])}
    updates = [update._replace(memory=memory) if k == 2 else update for k, update in enumerate(updates)]
    for update, do in zip(updates, updated(updates), strict=True):
        require_equal(do(), update.alone())


def test_a_mistake_of_an_algorithm_is_each_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """And of nobody else: those of another kind go on."""
    strategy, problem = strategy_of("fedavg"), problem_of("bce")
    updates, _ = next(updates_of(strategy, problem))
    updates[1] = updates[1]._replace(context=replace(updates[1].context, local_steps=STEPS + 1))  # alone of its kind
    original = type(strategy).local_update

    def broken(self: Any, sent: Any, *rest: Any) -> Any:
        if sent["x"].ndim == 2:
            raise ZeroDivisionError
        return original(self, sent, *rest)

    monkeypatch.setattr(type(strategy), "local_update", broken)
    done = updated(updates)
    for k, do in enumerate(done):
        if k == 1:
            assert do().reply
        else:
            with pytest.raises(ZeroDivisionError):
                do()


def test_one_that_cannot_draw_fails_alone() -> None:
    """As a site without positives does with the sampler of fixed positives."""
    strategy, problem = strategy_of("fedavg"), problem_of("bce")
    updates, _ = next(updates_of(strategy, problem))

    def nothing() -> SiteOracle:
        raise DataError("no positives")

    done = updated([update._replace(oracle=nothing) if k == 2 else update for k, update in enumerate(updates)])
    for k, (do, update) in enumerate(zip(done, updates, strict=True)):
        if k == 2:
            with pytest.raises(DataError):
                do()
        else:
            require_equal(do(), update.alone())


@pytest.mark.parametrize(
    ("algorithm", "problem", "why"),
    [
        (
            "fedavg",
            make("bce", model=nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(FEATURES, 1))),
            "Dropout cannot",
        ),
        ("fedavg", make("bce", model=nn.Sequential(nn.Linear(FEATURES, 1), nn.BatchNorm1d(1))), "BatchNorm1d cannot"),
        ("local-scgd", problem_of("bce"), "'local-scgd' takes one client at a time"),
        ("fcsg", problem_of("auprc"), "positives"),
        ("fedrep", problem_of("auc"), "each site has a problem = 'auc' of its own"),
        ("local-sgda", make("saddle", dimension=3, sites=2), "one client at a time"),
    ],
)
def test_who_cannot_says_why(algorithm: str, problem: Problem, why: str) -> None:
    assert why in why_alone(strategy_of(algorithm), problem)


def test_nobody_inherits_with_another_update_that_it_stacks() -> None:
    class Own(type(strategy_of("fedavg"))):  # type: ignore[misc]  # a base that is computed
        def local_update(self, *arguments: Any) -> Any:
            return super().local_update(*arguments)

    class Same(type(strategy_of("fedavg"))):  # type: ignore[misc]  # a base that is computed
        pass

    assert (Own.stacks, Same.stacks) == (False, True)


class Picky(Bce):
    """A problem of a user's own that picks samples, which PyTorch cannot do for many clients at once."""

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, *rest: Any) -> torch.Tensor:
        return logits[labels == 1].sum()


def test_what_was_not_foreseen_is_found_by_trying() -> None:
    problem = problem_of("bce")
    assert not trial_failure(problem)
    picky = Picky(problem.setting)
    assert not picky.unstackable_reason()
    assert "problem = 'picky' does not allow it" in trial_failure(picky)


@pytest.mark.parametrize("name", ["auc", "cross-entropy", "robust", "invariant-logistic"])
def test_how_long_both_ways_take_can_be_tried_of_whatever_is_stacked(name: str) -> None:
    assert 0 < relative_time(problem_of(name), 3, 5) < 1000


def test_in_bfloat16_the_numbers_are_those_of_one_client_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as its three digits go."""
    monkeypatch.setattr("edelweiss.models.architecture.supports_bf16", lambda kind: True)  # emulated, if need be
    layers = [nn.Conv2d(1, 3, 2), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(3, 1)]
    problem = make("bce", model=nn.Sequential(*layers), shape=SQUARE, amp="bf16", dtype=torch.float32)
    x = problem.initial()["x"] + torch.randn(4, len(problem.initial()["x"]), generator=torch.Generator().manual_seed(3))
    batch = (torch.randn(4, 6, *SQUARE, generator=torch.Generator().manual_seed(4)), LABELS[:24].view(4, 6))
    many, _ = Stacked(problem).gradient(x, None, batch)
    for row, gx, inputs, labels in zip(x, many, *batch, strict=True):
        torch.testing.assert_close(gx, problem.gradient(row.clone(), None, (inputs, labels))[0], rtol=0.1, atol=0.05)
    assert many.dtype == torch.float32
    whole = make("bce", model=nn.Sequential(*layers), shape=SQUARE, dtype=torch.float32)
    assert not torch.allclose(many, Stacked(whole).gradient(x, None, batch)[0], rtol=1e-4, atol=1e-5)


class Shifted(Bce):
    """A problem of a user's own whose outputs are others than its network's."""

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().outputs(inputs) + 1


def test_outputs_of_a_problems_own_are_computed_one_client_at_a_time() -> None:
    assert "one client at a time" in Shifted(problem_of("bce").setting).unstackable_reason()
