"""SAGDA, FedGDA-GT, CDMA and FEDNEST: equations, degenerate cases, the known optimum; and who comes first with CDMA."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any, Literal

import numpy as np
import pytest
import torch
from pydantic import Field

from edelweiss.federation import Differences, FederatedStrategy, Oracle, RoundContext, Site, TooFewRepliesError
from edelweiss.problems.saddle import saddle_coefficients
from edelweiss.server_app import simulate
from edelweiss.strategies import ALGORITHMS
from edelweiss.strategies.cdma import Cdma
from edelweiss.strategies.fedgda_gt import FedGdaGt
from edelweiss.strategies.fednest import FedNest
from edelweiss.strategies.local_sgda import LocalSGDA
from edelweiss.strategies.sagda import Sagda
from tests.problems.example import given_saddle
from tests.reference import algorithms, variance_reduced
from tests.reference.games import SaddleGame
from tests.said import has
from tests.server_app.sites import MARKED
from tests.strategies.engine import run_saddle
from tests.strategies.halves import Arrays, OpenOracle, drive
from tests.strategies.jobs import regression, saddle
from tests.strategies.settings import (
    PLAN,
    ROUNDS,
    STAGES,
    WEIGHTS,
    Everyone,
    K,
    agree,
    by_game,
    by_turnout,
    setting,
    share,
    torched,
)


def by_exchange(oracles: OpenOracle, exchanges: int) -> OpenOracle:
    """Give each exchange of a round batches of its own, numbered as `tests.reference.variance_reduced` does."""
    opened: Counter[tuple[int, int]] = Counter()

    def open_next(site: int, server_round: int) -> Oracle:
        opened[site, server_round] += 1
        return oracles(site, (server_round - 1) * exchanges + opened[site, server_round])

    return open_next


def driven(strategy: FederatedStrategy, start: Arrays, oracles: OpenOracle, **options: Any) -> list[Arrays]:
    """Drive a strategy with its vectors packed and unpacked on their way."""
    return drive(strategy, start, by_exchange(oracles, len(strategy.phases)), ROUNDS, K, wire=True, **options)


# ---------------------------------------------------------------------- equations


@pytest.mark.slow
@pytest.mark.parametrize("server_lr", [1.0, 1.3])
@by_turnout
@by_game
def test_sagda(name: str, some: Everyone, weights: list[float] | None, server_lr: float) -> None:
    game, x, y, oracles = setting(name)
    strategy = Sagda(**STAGES, lr=0.03, lr_dual=0.06, server_lr=server_lr, fraction=share(some))
    states = driven(strategy, torched(x, y), oracles, weights=weights, participants=some)
    agree(states, variance_reduced.sagda(game, x, y, PLAN, 0.03, 0.06, server_lr, weights, some))


def test_sagda_steps_without_a_correction_where_a_client_lost_its_control_variate() -> None:
    game, x, y, oracles = setting("regression")
    lost = {(2, 1), (3, 0), (8, 3)}
    states = driven(Sagda(**STAGES, lr=0.02, lr_dual=0.06), torched(x, y), oracles, lost=lost)
    agree(states, variance_reduced.sagda(game, x, y, PLAN, 0.02, 0.06, 1.0, lost=lost))


@by_turnout
@by_game
def test_fedgda_gt(name: str, some: Everyone, weights: list[float] | None) -> None:
    game, x, y, oracles = setting(name)
    strategy = FedGdaGt(**STAGES, lr=0.03, lr_dual=0.06, fraction=share(some))
    states = driven(strategy, torched(x, y), oracles, weights=weights, participants=some)
    agree(states, variance_reduced.fedgda_gt(game, x, y, PLAN, 0.03, 0.06, weights, some))


def test_fedgda_gt_averages_without_a_client_that_lost_the_common_point() -> None:
    game, x, y, oracles = setting("regression")
    lost = {(2, 1), (3, 0), (8, 2), (8, 3)}
    states = driven(FedGdaGt(**STAGES, lr=0.02, lr_dual=0.06), torched(x, y), oracles, weights=WEIGHTS, lost=lost)
    agree(states, variance_reduced.fedgda_gt(game, x, y, PLAN, 0.02, 0.06, WEIGHTS, lost=lost))


def test_fedgda_gt_stays_where_it_is_in_a_round_in_which_everybody_lost_the_common_point() -> None:
    _, x, y, oracles = setting("saddle")
    states = driven(FedGdaGt(lr=0.02, lr_dual=0.06), torched(x, y), oracles, lost={(3, k) for k in range(K)})
    assert all(torch.equal(states[2][name], states[1][name]) for name in ("x", "y"))
    assert not torch.equal(states[3]["x"], states[2]["x"])


def test_fedgda_gt_does_not_step_from_the_common_point_of_an_earlier_round() -> None:
    """A site may hear the first phase of a round, and next the second phase of another."""
    strategy, (_, x, y, oracles) = FedGdaGt(lr=0.02, lr_dual=0.06), setting("saddle")
    first = strategy.context(1, ROUNDS, "anchor", K)
    gradients, memory = strategy.local_update(torched(x, y), {}, oracles(0, 1), first)
    for r, answers in ((1, True), (2, False)):
        reply, _ = strategy.local_update(gradients, memory, oracles(0, r), strategy.context(r, ROUNDS, "train", K))
        assert bool(reply) == answers


@pytest.mark.parametrize("alpha", [0.2, 1.0])
@by_turnout
@by_game
def test_cdma(name: str, some: Everyone, weights: list[float] | None, alpha: float) -> None:
    game, x, y, oracles = setting(name)
    strategy = Cdma(**STAGES, lr=0.02, lr_dual=0.05, alpha=alpha, fraction=share(some))
    states = driven(strategy, torched(x, y), oracles, weights=weights, participants=some)
    agree(states, variance_reduced.cdma(game, x, y, PLAN, 0.02, 0.05, alpha, weights, some))


@pytest.mark.parametrize("inner", [1, 3])
@by_turnout
@by_game
def test_fednest(name: str, some: Everyone, weights: list[float] | None, inner: int) -> None:
    game, x, y, oracles = setting(name)
    strategy = FedNest(**STAGES, lr=0.03, lr_dual=0.04, inner_rounds=inner, fraction=share(some))
    states = driven(strategy, torched(x, y), oracles, weights=weights, participants=some)
    agree(states, variance_reduced.fednest(game, x, y, PLAN, 0.03, 0.04, inner, weights, some))


@pytest.mark.slow
@pytest.mark.parametrize(("weights", "fraction"), [(None, 1.0), ([1.0, 4.0, 2.0, 0.5], 0.5)], ids=["all", "some"])
@pytest.mark.parametrize("name", ["sagda", "fedgda-gt", "cdma", "fednest"])
def test_in_the_engine(name: str, fraction: float, weights: list[float] | None) -> None:
    """Through messages, files and memories on disk, in float32: 7 rounds, three stages."""
    keys = {"algorithm": name, "sites": 4, "saddle.dimension": 5, "saddle.heterogeneity": 3.0, "rounds": 7, "seed": 3}
    stages = {"local-steps": 3, "stage-iterations": 9, "stage-decay": 2.0, "fraction": fraction}
    own: dict[str, dict[str, float]] = {
        "sagda": {"lr": 0.03, "lr-dual": 0.05, "server-lr": 0.8},
        "fedgda-gt": {"lr": 0.03, "lr-dual": 0.05},
        "cdma": {"lr": 0.03, "lr-dual": 0.05, "alpha": 0.3},
        "fednest": {"lr": 0.03, "lr-dual": 0.05, "inner-rounds": 2},
    }
    _, path, asked = run_saddle({**keys, **stages, name: own[name]}, weights)
    slopes, offsets = saddle_coefficients(4, 5, 3.0, 3)
    start = given_saddle(slopes, offsets, seed=3, dtype=torch.float32).initial()
    exchanges = 6 if name == "fednest" else 2
    assert len(asked) == 7 * exchanges
    assert all(asked[i] == asked[i // exchanges * exchanges] for i in range(len(asked))), "a round has one set of sites"
    reference: Callable[..., list[algorithms.Point]] = getattr(variance_reduced, name.replace("-", "_"))
    expected = reference(
        SaddleGame(slopes, offsets),
        start["x"].double().numpy(),
        start["y"].double().numpy(),
        algorithms.plan(7, 3, 9, decay=2),
        *own[name].values(),
        weights=weights,
        participants=asked[::exchanges],
    )
    for model, (x, y) in zip(path, expected, strict=True):
        np.testing.assert_allclose(model["x"], x, rtol=0, atol=1e-5)
        np.testing.assert_allclose(model["y"], y, rtol=0, atol=1e-5)


# ---------------------------------------------------------------------- degenerate cases


def test_elsewhere_they_differ_from_each_other_and_from_local_sgda() -> None:
    job, ends = saddle(), []
    for algorithm in (LocalSGDA, Sagda, FedNest):
        ends.append(job.run(algorithm(local_steps=7, lr=0.03, lr_dual=0.05))[-1][0])
    noisy = regression()
    for algorithm in (LocalSGDA, Sagda, FedGdaGt):
        ends.append(noisy.run(algorithm(local_steps=7, lr=0.03, lr_dual=0.05))[-1][0])
    ends += [noisy.run(Cdma(local_steps=7, lr=0.03, lr_dual=0.05, alpha=alpha))[-1][0] for alpha in (0.1, 1.0)]
    for i, one in enumerate(ends):
        assert all(one.shape != other.shape or np.abs(one - other).max() > 1e-6 for other in ends[:i])


@pytest.mark.parametrize("field", ["control_batch", "anchor_batch"])
def test_the_gradient_at_the_global_point_may_have_a_batch_of_its_own(field: str) -> None:
    drawn: list[int | None] = []

    class Noting(Differences):
        def __init__(self, oracle: Any) -> None:
            self.gradient, self.project, self.inner = oracle.gradient, oracle.project, oracle

        def draw(self, size: int | None = None) -> Any:
            drawn.append(size)
            return self.inner.draw(size)

    job, own = regression(), {field: 200}
    strategy = Sagda(**own) if field == "control_batch" else FedNest(**own)  # type: ignore[arg-type]
    noting: Any = lambda site, server_round: Noting(job.oracles(site, server_round))  # noqa: E731
    drive(strategy, job.start, noting, 1, K)
    assert set(drawn) <= {None, 200}
    assert drawn.count(200) == K * (1 if field == "control_batch" else 2)


# ---------------------------------------------------------------------- first come, first served


@dataclass(frozen=True, kw_only=True)
class Uneven(Cdma):
    """CDMA with one site that is slow, or broken, in both phases."""

    name = "uneven"
    messages = Cdma.messages + MARKED

    harm: Literal["slow", "nan", "raise"] = Field("slow", description="what that site does")

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        sent = super().broadcast(state, context, site)
        return sent | {"marked": torch.ones(1)} if site.index == 1 else sent

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        reply, memory = super().local_update(sent, memory, oracle, context)
        if "marked" in sent:
            if self.harm == "slow":
                time.sleep(600)
            if self.harm == "raise":
                raise RuntimeError
            reply = {name: vector * torch.nan for name, vector in reply.items()}
        return reply, memory


def uneven(folder: File, harm: str = "slow", **keys: Any) -> dict[str, Any]:
    base = {"algorithm": "uneven", "problem": "saddle", "sites": 4, "rounds": 4, "local-steps": 3}
    base |= {"saddle.dimension": 5, "device": "cpu", "runs-dir": str(folder), "evaluate-every": 0}
    own = {"harm": harm, "lr": 0.02, "lr-dual": 0.03, "alpha": 0.3}
    return (
        base
        | {key.replace("_", "-"): value for key, value in keys.items()}
        | {f"uneven.{k}": v for k, v in own.items()}
    )


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the algorithm known; worker processes are forked and know it, too."""
    monkeypatch.setitem(ALGORITHMS, Uneven.name, Uneven)


def expected(participants: Sequence[Collection[int]] | None) -> algorithms.Point:
    slopes, offsets = saddle_coefficients(4, 5, 1.0, 0)
    start = given_saddle(slopes, offsets, dtype=torch.float32).initial()
    x, y = start["x"].double().numpy(), start["y"].double().numpy()
    plan = algorithms.plan(4, 3)
    return variance_reduced.cdma(SaddleGame(slopes, offsets), x, y, plan, 0.02, 0.03, 0.3, participants=participants)[
        -1
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("registered")
def test_cdma_does_not_wait_for_a_slow_site(tmp_path: File) -> None:
    started = time.monotonic()
    result = simulate(
        uneven(tmp_path, workers=4, min_replies=3, round_timeout=100.0, rounds=4) | {"wait-timeout": 20.0}
    )
    assert time.monotonic() - started < 60, "the slow site sleeps for 600 s, and round-timeout is 100 s"
    x, y = expected([[0, 2, 3]] * 4)
    np.testing.assert_allclose(result.arrays["x"], x, rtol=0, atol=1e-5)
    np.testing.assert_allclose(result.arrays["y"], y, rtol=0, atol=1e-5)
    assert all(record["site-gradients"].keys() == {"site-0", "site-2", "site-3"} for record in result.metrics)
    assert len(result.metrics[-1]["sites"]) == 4, "the last evaluation is everybody's"


@pytest.mark.slow
@pytest.mark.usefixtures("registered")
def test_without_min_replies_cdma_waits_for_all(tmp_path: File) -> None:
    with pytest.raises(TooFewRepliesError, check=has(value=3, allowed=4, sites=("site-1",))):
        simulate(uneven(tmp_path, workers=4, round_timeout=1.0))


@pytest.mark.slow
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("harm", ["nan", "raise"])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_answer_that_is_of_no_use_is_not_among_the_first(tmp_path: File, harm: str, workers: int) -> None:
    result = simulate(uneven(tmp_path, harm, workers=workers, min_replies=3))
    x, _ = expected([[0, 2, 3]] * 4)
    np.testing.assert_allclose(result.arrays["x"], x, rtol=0, atol=1e-5)
    with pytest.raises(TooFewRepliesError, check=has(value=3, allowed=4)):
        simulate(uneven(tmp_path, harm, workers=workers, min_replies=4))


def counts(result: Any) -> list[set[str]]:
    return [set(record["site-gradients"]) for record in result.metrics]


@pytest.mark.slow
def test_sites_that_share_a_process_come_first_in_turn(tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine would serve them in order, and the last ones would never count."""
    keys = uneven(tmp_path, workers=1, min_replies=2, rounds=12) | {"algorithm": "cdma"}
    keys = {key: value for key, value in keys.items() if not key.startswith("uneven")}
    one, again, other = simulate(keys), simulate(keys), simulate(keys | {"seed": 1})
    assert all(record["gradients"] == (5 if r == 0 else 6) * 2 for r, record in enumerate(one.metrics))
    assert set().union(*counts(one)) == {f"site-{k}" for k in range(4)}
    assert counts(one) == counts(again) != counts(other)
    assert np.array_equal(one.arrays["x"], again.arrays["x"])

    aggregate, order = Cdma.aggregate, []

    def noting(self: Any, state: Arrays, replies: Any, context: RoundContext) -> Arrays:
        replies = list(replies)
        order.append([reply.site.index for reply in replies])
        return aggregate(self, state, iter(replies), context)

    monkeypatch.setattr(Cdma, "aggregate", noting)
    simulate(keys)
    assert all(indices == sorted(indices) and len(indices) == 2 for indices in order)


@pytest.mark.slow
def test_other_algorithms_wait_for_all_and_so_does_cdma_without_min_replies(tmp_path: File) -> None:
    keys = uneven(tmp_path, workers=2, min_replies=2)
    keys = {key: value for key, value in keys.items() if not key.startswith("uneven")}
    everybody = {f"site-{k}" for k in range(4)}
    assert counts(simulate(keys | {"algorithm": "sagda"})) == [everybody] * 4
    assert counts(simulate(keys | {"algorithm": "cdma", "min-replies": 0})) == [everybody] * 4
