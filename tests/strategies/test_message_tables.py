"""Every algorithm's table of messages, against what it really sends, keeps, and needs of a reply."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

from edelweiss.federation import (
    LATER,
    FederatedStrategy,
    Oracle,
    Reply,
    RoundContext,
    RunError,
    StrategyError,
    Table,
    average,
    down,
    kept,
    up,
)
from edelweiss.federation.run_messages import BUFFERS
from edelweiss.problems import PROBLEMS
from edelweiss.problems.capabilities import Layers
from edelweiss.server_app import simulate
from edelweiss.server_app.local import LocalGrid
from edelweiss.strategies import ALGORITHMS, can_solve
from edelweiss.strategies.decentralised import Decentralised
from edelweiss.strategies.fedavg import FedAvg
from tests.fitting import fitting, steps_of
from tests.said import has
from tests.strategies.closed_form import build, objective
from tests.strategies.halves import Arrays, drive

SITES, ROUNDS, STAGE = 4, 7, 3  # rounds of a stage, so that there are two and one is cut short
FORGETS = 5  # the round before which all sites lose their memory
Seen = set[tuple[str, str]]


def run_of(name: str, folder: Path, **keys: Any) -> dict[str, Any]:
    """Return a short run of an algorithm, on a problem that has a y if it solves one."""
    few = ("saddle", "auc", "invariant-logistic", "cross-entropy", *PROBLEMS)
    problem = next(p for p in few if can_solve(ALGORITHMS[name], PROBLEMS[p]))
    steps = 1 if name == "npa" else 2
    run: dict[str, Any] = {"algorithm": name, "problem": problem, "sites": SITES, "rounds": ROUNDS, "workers": 1}
    run |= {"local-steps": steps, "device": "cpu", "evaluate-every": 0, "runs-dir": str(folder), "partition": "iid"}
    run |= {"model": "mlp", "hidden": 3} if Layers in ALGORITHMS[name].needs else {"model": "linear"}
    run |= {f"{problem}.dimension": 5} if problem in ("saddle", "invariant-logistic") else {}
    run |= {"maml.ways": 2, "maml.queries": 2, "maml.test-tasks": 1} if problem == "maml" else {}
    own = build(name)
    run |= {f"{name}.{f.replace('_', '-')}": getattr(own, f) for f in ("lr", "lr_dual", "rho") if hasattr(own, f)}
    return run | fitting(name) | keys


def runs_of(name: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield runs in which all that an algorithm ever sends occurs."""
    steps = 1 if name == "npa" else 2
    yield run_of(name, folder, **{"stage-iterations": STAGE * steps})
    if ALGORITHMS[name].partial:
        yield run_of(name, folder, fraction=0.5)
    if issubclass(ALGORITHMS[name], Decentralised):
        yield run_of(name, folder, **{f"{name}.mixing": "client"})


def declared(table: Table) -> Seen:
    """Return the ways and names of all vectors of a table, but for a site's last evaluation that never answered."""
    lost = {(row.way, name) for row in table.rows for part in row.lost if row.way != "final" for name in part}
    weights = {(row.way, "weights") for row in table.rows if row.relays}
    return {(row.way, name) for row in table.rows for name in row.vectors} | lost | weights


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Note the vectors of all messages in the next runs; of neighbours' "x-3" the name x."""
    noted: Seen = set()
    push, pull = LocalGrid.push_messages, LocalGrid.pull_messages

    def note(message: Message, way: str) -> None:
        if message.has_content() and "arrays" in message.content:
            noted.update((way, re.sub(r"-\d+$", "", name)) for name in message.content["arrays"])  # type: ignore[union-attr]

    def pushing(grid: LocalGrid, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        for message in messages:
            note(message, "down" if message.metadata.message_type == "train" else "final")
        return push(grid, messages)

    def pulling(grid: LocalGrid, identifiers: Iterable[str]) -> Iterable[Message]:
        answers = list(pull(grid, identifiers))
        for answer in answers:
            note(answer, "up")
        return answers

    monkeypatch.setattr(LocalGrid, "push_messages", pushing)
    monkeypatch.setattr(LocalGrid, "pull_messages", pulling)
    return noted


def forgetting(name: str, noted: Seen) -> type[FederatedStrategy]:
    """Return the algorithm, whose sites lose their memory at one point; what they keep is noted."""

    def local_update(
        self: Any, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        memory = {} if context.round == FORGETS else memory
        reply, new = algorithm.local_update(self, sent, memory, oracle, context)
        noted.update(("kept", one) for one in new)
        return reply, new

    algorithm = ALGORITHMS[name]
    return type(algorithm.__name__, (algorithm,), {"local_update": local_update, "name": name})


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_declared_is_sent_and_kept_and_nothing_else(
    name: str, tmp_path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run refuses what its table lacks, names and lengths, on both sides; what is never seen is not declared."""
    table = ALGORITHMS[name].messages
    monkeypatch.setitem(ALGORITHMS, name, forgetting(name, seen))
    for keys in runs_of(name, tmp_path):
        assert len(simulate(keys).metrics) == ROUNDS
    seen -= {(way, BUFFERS) for way in ("down", "final")}  # statistics are no algorithm's
    if not any(table.of("final")):
        seen -= {one for one in seen if one[0] == "final"}
    has_dual = "minimax" in ALGORITHMS[name].solves
    without = {(row.way, n) for row in table.rows for n, length in row.vectors.items() if length == "p"}
    assert seen == declared(table) - (set() if has_dual else without)


# ---------------------------------------------------------------------- what the server needs of a reply


def averaged(replies: Iterable[Reply], names: set[str]) -> list[Reply]:
    """Return replies in which each site sends the weighted mean of all, in these vectors."""
    replies = list(replies)
    wanted = [Reply(one.site, {n: v.double() for n, v in one.arrays.items() if n in names}) for one in replies]
    mean = average(one for one in wanted if one.arrays)
    return [
        Reply(one.site, {n: mean[n].to(v.dtype) if n in mean else v for n, v in one.arrays.items()}) for one in replies
    ]


def final_states(name: str, names_of: Any, *, fraction: float) -> list[Arrays]:
    """Drive an algorithm whose server gets means of the vectors that ``names_of`` says, and not each site's own."""
    algorithm = ALGORITHMS[name]

    def aggregate(self: Any, state: Arrays, replies: Iterable[Reply], context: RoundContext) -> Arrays:
        return algorithm.aggregate(self, state, averaged(replies, names_of(self, context)), context)

    start, oracles, _ = objective(algorithm, SITES)
    steps = 1 if name == "npa" else 2
    options: dict[str, Any] = {"weights": [1.0, 2.0, 3.0, 4.0], "lost": {(2, 1), (5, 0)}}
    if fraction < 1:
        options["participants"] = [(0, 1), (0, 2), (1, 3), (0, 1), (0, 3), (2, 3)]
    own = type(algorithm.__name__, (algorithm,), {"aggregate": aggregate, "name": name})
    small = build(name)
    given = {f: getattr(small, f) for f in (*steps_of(algorithm), "lr", "lr_dual", "rho") if hasattr(small, f)}
    strategy = own(local_steps=steps, stage_iterations=STAGE * steps, fraction=fraction, **given)
    return drive(strategy, start, oracles, 6, SITES, **options)


def used(*uses: str) -> Any:
    """Return a function of the algorithm and the round: the vectors of a reply that are used so."""
    return lambda self, context: {
        name for row in self.messages.of("up") if row.use in uses and row.holds(self, context) for name in row.vectors
    }


def nothing(self: Any, context: RoundContext) -> set[str]:
    return set()


def close(one: list[Arrays], other: list[Arrays]) -> bool:
    return all(
        set(a) == set(b) and all(torch.allclose(a[n].double(), b[n].double(), rtol=1e-9, atol=1e-9) for n in a)
        for a, b in zip(one, other, strict=True)
    )


FRACTIONS = [(n, f) for n in ALGORITHMS for f in ((1.0, 0.5) if ALGORITHMS[n].partial else (1.0,))]


@pytest.mark.parametrize(("name", "fraction"), FRACTIONS)
def test_of_summed_vectors_the_server_needs_the_weighted_sum_only(name: str, fraction: float) -> None:
    own, summed = (final_states(name, names, fraction=fraction) for names in (nothing, used("summed")))
    assert close(own, summed)


CLEAR = [n for n in ALGORITHMS if any(row.use != "summed" for row in ALGORITHMS[n].messages.of("up"))]


@pytest.mark.parametrize("name", CLEAR)
def test_of_others_it_needs_each_sites_own(name: str) -> None:
    fraction = 0.5 if name in ("codasca", "scaffold", "feddyn") else 1.0
    try:
        states = final_states(name, used("relayed", "in the clear"), fraction=fraction)
    except (RuntimeError, StrategyError, ValueError, IndexError):  # the mean of masks is no mask
        return
    assert not close(final_states(name, nothing, fraction=fraction), states)


# ---------------------------------------------------------------------- a user's own


class Scored(FedAvg):
    """FedAvg whose sites send how long their step was, and whose server sends how many there were."""

    name = "scored"
    downs, ups, keeps = True, True, True

    def broadcast(self, state: Arrays, context: RoundContext, site: Any) -> Arrays:
        return state | ({"rounds": torch.tensor([context.round])} if self.downs else {})

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        reply, _ = super().local_update(sent, memory, oracle, context)
        step = reply["x"] - sent["x"]
        return reply | ({"step": step} if self.ups else {}), {"last": step} if self.keeps else {}

    def aggregate(self, state: Arrays, replies: Iterable[Reply], context: RoundContext) -> Arrays:
        return {"x": average(replies)["x"]}


def enrolled(monkeypatch: pytest.MonkeyPatch, folder: Path, **own: object) -> dict[str, Any]:
    """Put a variant of it into the table of algorithms, and return a run of it."""
    name = f"scored-{len(ALGORITHMS)}"
    monkeypatch.setitem(ALGORITHMS, name, type("Scored", (Scored,), {"name": name, **own}))
    return {k: v for k, v in run_of("fedavg", folder).items() if not k.startswith("fedavg")} | {"algorithm": name}


@pytest.mark.parametrize(
    ("own", "row"),
    [
        ({"ups": False, "keeps": False}, 'down(rounds="int64 1")'),
        ({"downs": False, "keeps": False}, 'up(step="d")'),
        ({"downs": False, "ups": False}, 'kept(last="d")'),
    ],
)
def test_what_an_own_algorithm_does_not_declare_is_named_with_the_row_to_add(
    own: dict[str, object], row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((RunError, StrategyError)) as error:
        simulate(enrolled(monkeypatch, tmp_path, **own))
    assert row in str(error.value)
    assert "class Scored" in str(error.value)


def test_what_is_declared_is_enough_and_has_to_be_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = FedAvg.messages + Table(down(rounds="int64 1"), up(step="d"), kept(last="d"))
    assert len(simulate(enrolled(monkeypatch, tmp_path, messages=table)).metrics) == ROUNDS
    for missing, name in (("downs", "'rounds'"), ("ups", "'step'"), ("keeps", "'last'")):
        with pytest.raises((RunError, StrategyError), check=has(name)):
            simulate(enrolled(monkeypatch, tmp_path, **{"messages": table, missing: False}))


def test_one_more_averaged_vector_needs_the_row_that_the_message_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's default merges it into the state, and sends the whole state from round 2 on."""
    own: dict[str, Any] = {"downs": False, "keeps": False, "broadcast": FedAvg.broadcast}
    table = FedAvg.messages + Table(up(step="d"))
    with pytest.raises((RunError, StrategyError)) as error:
        simulate(enrolled(monkeypatch, tmp_path, messages=table, aggregate=FedAvg.aggregate, **own))
    [row] = re.findall(r"add (down\(.*?\))", str(error.value))
    table += Table(eval(row, {"down": down, "LATER": LATER}))
    run = simulate(enrolled(monkeypatch, tmp_path, messages=table, aggregate=FedAvg.aggregate, **own))
    assert len(run.metrics) == ROUNDS
