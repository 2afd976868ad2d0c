"""Sites lose what they remember in the middle of a run: every algorithm arrives where it arrives without that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from edelweiss.config import RunConfig
from edelweiss.federation import Oracle, RoundContext
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from edelweiss.server_app.local import unused_run_id
from edelweiss.strategies import ALGORITHMS
from edelweiss.strategies.codasca import Codasca
from tests.strategies.closed_form import build, objective
from tests.strategies.engine import Forgetful
from tests.strategies.halves import Arrays, drive
from tests.strategies.memories import MEMORYLESS, MORE, REMEMBERING, ROUNDS, K, ends
from tests.strategies.optimum import PARTIAL, REACHED, codasca, distances, drawn_halves

Q = 10
LOST = {(10, 1), (10, 3), (18, 2), (19, 2), (22, 0)}  # (round, site)
EXACT = {
    "codasca",
    "scaffold",
    "feddyn",
    "sagda",
    "fedgda-gt",
    "cdma",
    "fednest",
}  # reach the optimum, with all sites in every round


def far(models: list[Arrays], optimum: Arrays) -> float:
    """Return the largest ‖·-optimum‖² of x and y over the sites."""
    return max(float((model[name] - optimum[name]).square().sum()) for model in models for name in optimum)


def apart(models: list[Arrays], others: list[Arrays]) -> float:
    return max(
        far([one], {name: other[name] for name in ("x", "y") if name in other})
        for one, other in zip(models, others, strict=True)
    )


SOME_SITES = [n for n in REMEMBERING if ALGORITHMS[n].partial]
FRACTIONS = [(n, 0.5) for n in SOME_SITES] + [(n, 1.0) for n in REMEMBERING if n in EXACT or n not in SOME_SITES]


def test_the_table_has_algorithms_of_both_kinds() -> None:
    assert {"codasca", "sagda", "coda-plus"} <= set(REMEMBERING)
    assert {"fedavg", "local-sgda", "cdma", "fednest"} <= set(MEMORYLESS)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fraction"), FRACTIONS)
def test_it_arrives_where_it_would_have_arrived(name: str, fraction: float) -> None:
    """At the optimum; where an algorithm stalls, no further from it than a small factor."""
    rounds, options = (ROUNDS, {}) if fraction == 1 else (MORE, {"participants": drawn_halves(0, MORE, K)})
    strategy = build(name, local_steps=Q, fraction=fraction)
    whole, hurt = (ends(strategy, rounds, lost=lost, **options)[0] for lost in ((), LOST))
    optimum = objective(ALGORITHMS[name], K)[2]
    if ALGORITHMS[name].personalised:  # where each site arrives is its own affair
        assert apart(whole, hurt) < 1e-6
        return
    assert far(hurt, optimum) < 3 * far(whole, optimum) + 1e-10
    if name in EXACT and (fraction == 1 or name == "codasca"):
        assert far(hurt, optimum) < 1e-10
    assert far(whole, optimum) < 1, "it arrived somewhere in the first place"


@pytest.mark.slow
def test_the_others_remember_nothing_whoever_takes_part() -> None:
    for name in MEMORYLESS:
        options = {"participants": drawn_halves(0, 12, K)} if ALGORITHMS[name].partial else {}
        _, remembered = ends(build(name, stage_iterations=5 * build(name).local_steps), rounds=12, **options)
        assert not remembered, name


@pytest.mark.parametrize("name", REMEMBERING)
def test_the_loss_is_felt(name: str) -> None:
    """Right after it a run differs, or the tests above would show nothing (a stage's average shows it at its end).

    FedGDA-GT hardly feels it: a site that sits out would have followed the same direction as the others.
    """
    rounds = 6
    whole, hurt = (ends(build(name), rounds=rounds, lost=lost)[0] for lost in ((), {(4, 1), (5, 1), (6, 1)}))
    assert apart(whole, hurt) > (1e-13 if name == "fedgda-gt" else 1e-9)


# ---------------------------------------------------------------------- CODASCA, when a share of the sites takes part


@pytest.mark.slow
def test_codasca_with_half_of_the_sites_survives_the_loss_of_memories() -> None:
    chosen = drawn_halves(2)
    lost = {(r, chosen[r - 1][0]) for r in (10, 11, 15, 23)}
    path = distances(codasca(fraction=0.5), rounds=PARTIAL, participants=chosen, lost=lost)
    assert max(path[-1]) < REACHED


class Unheard(Codasca):
    """CODASCA whose answers get lost on their way, after the client remembered what it did."""

    def aggregate(self, state, replies, context):  # type: ignore[no-untyped-def]
        heard = (reply for reply in replies if not (context.round in range(10, 20) and reply.site.index % 3 == 0))
        return super().aggregate(state, heard, context)


def test_codasca_with_half_of_the_sites_survives_lost_answers() -> None:
    strategy = Unheard(local_steps=10, lr=0.03, gamma=0.0, fraction=0.5)
    path = distances(strategy, rounds=PARTIAL, participants=drawn_halves(3))
    assert max(path[-1]) < REACHED


@pytest.mark.slow
def test_codascas_control_variates_start_anew_only_where_the_server_does_not_know_them() -> None:
    chosen = drawn_halves(4)
    start, oracles, _ = objective(Codasca, 10)
    anew = lambda **options: [  # noqa: E731
        int(state["since"]) if "since" in state else 0
        for state in drive(
            Codasca(local_steps=3, lr=0.01, fraction=0.5), start, oracles, 40, 10, participants=chosen, **options
        )
    ]
    assert set(anew()) == {0}
    assert set(anew(silent={(r, chosen[r - 1][1]) for r in range(5, 30)})) == {0}, (
        "who was never asked has lost nothing"
    )
    late = next(r for r in range(10, 40) if chosen[r - 1][0] in chosen[r - 3])
    assert set(anew(lost={(late, chosen[late - 1][0])})) == {0, late + 1}
    staged = drive(
        Codasca(local_steps=3, lr=0.01, fraction=0.5, stage_iterations=60),
        start,
        oracles,
        40,
        10,
        participants=chosen,
        lost={(late, chosen[late - 1][0])},
    )
    assert [("since" in state) for state in staged] == [late <= r <= 20 for r in range(1, 41)], "a stage forgets it"
    unknown = next(r for r in range(2, 40) if set(chosen[r - 1]) - set().union(*chosen[: r - 1]))
    newcomer = (set(chosen[unknown - 1]) - set().union(*chosen[: unknown - 1])).pop()
    assert set(anew(lost={(unknown, newcomer)})) == {0}, "who had nothing has lost nothing"


def test_codascas_answer_and_message_are_longer_by_one_number_at_most() -> None:
    sizes: list[tuple[int, int]] = []

    class Measured(Codasca):
        def local_update(
            self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
        ) -> tuple[Arrays, Arrays]:
            reply, memory = super().local_update(sent, memory, oracle, context)
            sizes.append((sum(v.numel() for v in sent.values()), sum(v.numel() for v in reply.values())))
            return reply, memory

    start, oracles, _ = objective(Codasca, 10)
    chosen = drawn_halves(2)
    for fraction, extra in ((1.0, 0), (0.5, 1)):
        sizes.clear()
        participants = {} if fraction == 1 else {"participants": chosen}
        lost = {(r, chosen[r - 1][0]) for r in (5, 9)}
        strategy = Measured(local_steps=2, gamma=0.1, lr=0.01, fraction=fraction)
        drive(strategy, start, oracles, 12, 10, lost=lost, **participants)  # type: ignore[arg-type]
        down, up = zip(*sizes, strict=True)
        assert set(down) == {10, 25} | ({26} if extra else set())  # x, y; with cx, cy and x_ref; with since
        assert set(up) == {20 + extra}


# ---------------------------------------------------------------------- in the engine


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alone", "codasca", "coda-plus", "fgda"])
def test_in_the_engine(name: str, tmp_path: Path) -> None:
    """Files on disk go, in float32; the run goes on and ends where it ends without that."""
    assert name in REMEMBERING
    strategy = build(name)
    own = {f: getattr(strategy, f) for f in ("lr", "lr_dual", "gamma", "rho") if hasattr(strategy, f)}
    own |= {f: 2 * own[f] for f in ("lr", "lr_dual") if f in own}
    keys: dict[str, Any] = {"algorithm": name, "problem": "saddle", "saddle.dimension": 4, "sites": 3, "rounds": 25}
    keys |= {"local-steps": 10, "workers": 1, "device": "cpu", "runs-dir": str(tmp_path), "evaluate-every": 0}
    config = RunConfig.parse(keys | {f"{name}.{field.replace('_', '-')}": value for field, value in own.items()})
    reached = []
    for lost in ((), (8, 9)):
        torch.set_num_threads(1)
        with Forgetful(config, unused_run_id()) as grid:
            grid.rounds = lost
            result = coordinate(config, grid, Progress(quiet=True))
            assert grid.deleted >= len(lost)
        last = result.metrics[-1]
        reached.append((last["distance-x"], last["distance-y"]))
    (x, y), (hurt_x, hurt_y) = reached
    assert hurt_x < 3 * x + 1e-8
    assert hurt_y < 3 * y + 1e-8
