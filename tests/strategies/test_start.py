"""`FederatedStrategy.start` as a user's own ServerApp calls it: any grid, no exchange of ours, its own arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from edelweiss.config import RunConfig
from edelweiss.datasets import DataSummary
from edelweiss.federation import StrategyError, pack
from edelweiss.problems import Arrays
from edelweiss.server_app.local import LocalGrid, unused_run_id
from edelweiss.strategies import ALGORITHMS
from edelweiss.strategies.local_sgda import LocalSGDA
from tests.reference import algorithms as reference
from tests.reference.games import SaddleGame

TOLD = {"app", "round", "phase", "site", "sites", "name", "run", "committed", "evaluate"}
"""What a message's config has besides what it was given: a site cannot know it."""

SITES, ROUNDS = 3, 4
OWN = LocalSGDA(local_steps=2, lr=0.02, lr_dual=0.03)


class Noting(LocalGrid):
    """The local engine; it notes every message."""

    sent: list[Message]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.sent = [*getattr(self, "sent", []), *messages]
        return super().push_messages(messages)


@pytest.fixture
def grid() -> Iterator[Noting]:
    keys = {"problem": "saddle", "algorithm": "local-sgda", "sites": SITES, "rounds": ROUNDS, "workers": 1}
    keys |= {"device": "cpu", "saddle.dimension": 5, "saddle.heterogeneity": 3.0}
    keys |= {"local-steps": OWN.local_steps, "local-sgda.lr": OWN.lr, "local-sgda.lr-dual": OWN.lr_dual}
    with Noting(RunConfig.parse(keys), unused_run_id()) as grid:  # type: ignore[arg-type]
        yield grid


def start_of(grid: LocalGrid) -> Arrays:
    """Return a starting point that is not the problem's own."""
    config = grid.config
    start = config.build_problem(config.setting(DataSummary(), "cpu")).initial()
    return {name: 2 * vector for name, vector in start.items()}


def test_a_run_without_an_exchange_is_that_of_the_reference(grid: Noting) -> None:
    start = start_of(grid)
    config = grid.config
    sites = [config.build_problem(config.setting(DataSummary(), "cpu", k)) for k in range(SITES)]
    game = SaddleGame(np.array([site.t for site in sites]), np.stack([site.b.numpy() for site in sites]))
    result = OWN.start(grid, pack(start), ROUNDS)
    plan = reference.plan(ROUNDS, OWN.local_steps)
    x, y = (start[name].double().numpy() for name in ("x", "y"))
    x, y = reference.local_sgda(game, x, y, plan, OWN.lr, OWN.lr_dual)[-1]
    np.testing.assert_allclose(result.arrays["x"].numpy(), x, rtol=0, atol=1e-5)
    np.testing.assert_allclose(result.arrays["y"].numpy(), y, rtol=0, atol=1e-5)
    metrics = result.evaluate_metrics_clientapp[ROUNDS]
    assert metrics["distance-x"] == pytest.approx(float(np.square(x - sites[0].x_star.numpy()).sum()), rel=1e-3)


def test_the_first_messages_carry_what_was_given_and_nothing_else(grid: Noting) -> None:
    given = pack(start_of(grid))
    train, evaluate = ConfigRecord({"prior": 0.25, "shift": []}), ConfigRecord({"columns": "abc"})
    OWN.start(grid, given, ROUNDS, train_config=train, evaluate_config=evaluate, evaluate_every=0)
    assert len(grid.sent) == SITES * (ROUNDS + 1), "and the last evaluation"
    for message in grid.sent[:SITES]:
        assert message.metadata.message_type == "train"
        [(_, arrays)] = message.content.array_records.items()
        assert {name: array.data for name, array in arrays.items()} == {n: array.data for n, array in given.items()}
        [(_, config)] = message.content.config_records.items()
        assert {key: value for key, value in config.items() if key not in TOLD} == dict(train)
        assert config.keys() >= TOLD
    for message in grid.sent[-SITES:]:
        assert message.metadata.message_type == "evaluate"
        [(_, config)] = message.content.config_records.items()
        assert {key: value for key, value in config.items() if key not in TOLD} == dict(evaluate)
    assert sorted(message.metadata.dst_node_id for message in grid.sent[:SITES]) == sorted(grid.get_node_ids())


def test_evaluate_fn_is_asked_after_every_round(grid: Noting) -> None:
    seen: list[int] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        seen.append(server_round)
        return MetricRecord({"distance-x": float(np.square(arrays["x"].numpy()).sum())}) if server_round > 2 else None

    result = OWN.start(grid, pack(start_of(grid)), ROUNDS, evaluate_fn=evaluate)
    assert seen == [*range(1, ROUNDS + 1)]
    assert list(result.evaluate_metrics_serverapp) == [3, 4]


@pytest.mark.parametrize("hook", ["configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate"])
def test_the_steps_of_flowers_own_loop_are_refused_with_one_line(hook: str) -> None:
    """Their state belongs to a run, which `start` plays."""
    with pytest.raises(StrategyError) as refusal:
        getattr(OWN, hook)(1, pack({}), ConfigRecord(), None)
    assert "local-sgda has no run in progress" in str(refusal.value)


def test_every_algorithm_is_a_flower_strategy_that_can_be_built_without_arguments() -> None:
    assert all(isinstance(algorithm(), Strategy) for algorithm in ALGORITHMS.values())
