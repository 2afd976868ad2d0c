"""Which vectors an algorithm sends, found without data: the same for short models as for the large one."""

from __future__ import annotations

import tracemalloc
from typing import Any, ClassVar

import pytest
import torch

from edelweiss.config import RunConfig
from edelweiss.datasets import DataSummary
from edelweiss.federation import FederatedStrategy, Oracle, RoundContext, Site, Stages, StrategyError, pack, player
from edelweiss.federation.rehearsal import Rehearsal
from edelweiss.federation.schema import Table, Vector
from edelweiss.problems import PROBLEMS, Arrays
from edelweiss.strategies import ALGORITHMS, can_solve
from edelweiss.strategies.decentralised import Decentralised
from edelweiss.strategies.dispfl import packed

SITES, ROUNDS = 3, 5


def rehearsal_of(name: str, hidden: int, **keys: Any) -> Rehearsal:
    """Return the rehearsal of an algorithm on a network, with two stages."""
    few = ("auc", "bce", "auprc", "maml", "cross-entropy")
    problem = next(p for p in few if can_solve(ALGORITHMS[name], PROBLEMS[p]))
    steps = 1 if name == "npa" else 2
    job: dict[str, Any] = {"algorithm": name, "problem": problem, "model": "mlp", "hidden": hidden, "sites": SITES}
    job |= {"rounds": ROUNDS, "local-steps": steps, "stage-iterations": 3 * steps}
    config = RunConfig.parse(job | keys | ({"maml.ways": 2} if problem == "maml" else {}))
    built = config.build_problem(config.setting(DataSummary(shape=(20,)), "cpu"))
    return Rehearsal(config.strategy, built.initial(), ROUNDS, SITES, built)


def tables(played: Rehearsal) -> list[list[Table]]:
    """Return all that may be sent and answered in a run."""
    found = []
    for r in range(1, ROUNDS + 1):
        for phase in played.phases(r):
            found.append(list(played.sent(r, phase, 1, ["x-0"])))
            sent = {name: torch.zeros(v.shape, dtype=getattr(torch, v.dtype)) for name, v in found[-1][0].items()}
            found.append(list(played.answered(played.algorithm.context(r, ROUNDS, phase, SITES), pack(sent))))
    return [*found, list(played.last(1))]


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"dispfl"}))  # its lengths follow from layers: played whole
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_a_large_model_has_the_tables_that_its_two_short_ones_say(
    name: str, fraction: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fraction < 1 and not ALGORITHMS[name].partial:
        return
    played = rehearsal_of(name, 120, fraction=fraction)
    assert played.d > player.LONG
    short = tables(played)
    assert len(played._players) == 2, "it was not played whole"
    monkeypatch.setattr(player, "LONG", played.d)
    assert short == tables(rehearsal_of(name, 120, fraction=fraction))


def test_what_got_lost_makes_other_tables() -> None:
    """With some of the sites, CODASCA's server may say from which round on all is new."""
    played = rehearsal_of("codasca", 4, fraction=0.5)
    names = [set(one) for one in played.sent(3, "train", 0)]
    assert {"x", "y", "cx", "cy", "x_ref"} in names
    assert {"x", "y", "cx", "cy", "x_ref", "since"} in names
    kept, lost = rehearsal_of("fedgda-gt", 4), list[Table]()
    for phase in kept.phases(2):
        sent = next(kept.sent(2, phase, 0))
        blank = {name: torch.zeros(vector.shape) for name, vector in sent.items()}
        lost = list(kept.answered(kept.algorithm.context(2, ROUNDS, phase, SITES), pack(blank)))
    assert [set(one) for one in lost] == [{"x", "y"}, set()], "a site that lost its anchor sits the steps out"


def test_neighbours_are_those_that_a_message_names() -> None:
    played = rehearsal_of("d-psgd", 4, **{"d-psgd.mixing": "client"})
    both = next(played.sent(2, "train", 1, ["weights", "x-0", "x-1", "x-2"]))
    one = next(played.sent(2, "train", 1, ["weights", "x-0", "x-1"]))
    assert both.keys() == {"weights", "x-0", "x-1", "x-2"}
    assert one.keys() == {"weights", "x-0", "x-1"}
    assert (both["weights"].shape, one["weights"].shape, both["x-1"].shape) == ((3,), (2,), (0,))


def test_an_algorithm_that_cannot_be_played_without_data_says_so() -> None:
    class Peeking(FederatedStrategy):
        name = "peeking"

        def local_update(
            self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
        ) -> tuple[Arrays, Arrays]:
            return {"x": oracle.patients}, {}  # type: ignore[attr-defined]

    played = Rehearsal(Peeking(), {"x": torch.zeros(3)}, 2, 2)
    with pytest.raises(StrategyError, match=r"'peeking' cannot be played without data.*AttributeError.*patients"):
        next(played.answered(played.algorithm.context(1, 2, "train", 2), pack({"x": torch.zeros(3)})))


class Telling(FederatedStrategy):
    """Sends each site as many numbers as there are sites before it, from some round on; counts what is played."""

    name = "telling"
    played: ClassVar[list[str]] = []

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        return state | ({"before": torch.zeros(site.index)} if context.round >= self.local_steps else {})

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        self.played.append(context.phase)
        return {"x": sent["x"]}, {}


@pytest.mark.parametrize("first", [1, 3, 9])
def test_sites_are_told_apart_as_soon_as_the_algorithm_does(first: int) -> None:
    played = Rehearsal(Telling(local_steps=first), {"x": torch.zeros(3)}, 5, 4)
    for r in range(1, 6):
        for site in (2, 0, 3):
            one, *others = played.sent(r, "train", site)
            assert others == [one] * len(others)
            assert one.get("before", Vector((-1,), "float32")).shape == ((site,) if r >= first else (-1,))


@pytest.mark.parametrize("sites", [(2, 0), (0, 2)])
def test_one_record_that_goes_to_all_is_looked_at_once_and_no_longer_than_that_is_so(sites: tuple[int, int]) -> None:
    played, x = Rehearsal(Telling(local_steps=3), {"x": torch.zeros(3)}, 5, 4), pack({"x": torch.zeros(3)})
    assert not played.misfit(1, "train", sites[0], x)
    looked = len(Telling.played)
    assert not played.misfit(1, "train", sites[1], x)
    assert len(Telling.played) == looked
    assert "before" in played.misfit(3, "train", sites[0], x), "where it was sent is no place that it is sent to again"
    assert "unknown" not in played.misfit(1, "train", 0, x)
    assert "'y' is none" in played.misfit(1, "train", 0, pack({"x": torch.zeros(3), "y": torch.zeros(1)}))


def test_a_record_of_one_site_is_none_of_anothers() -> None:
    played = Rehearsal(Telling(local_steps=1), {"x": torch.zeros(3)}, 5, 4)
    own = pack({"x": torch.zeros(3), "before": torch.zeros(2)})
    assert not played.misfit(1, "train", 2, own)
    assert "of shape (2,): must be float32 of shape (3,)" in played.misfit(1, "train", 3, own)
    named = rehearsal_of("d-psgd", 4, **{"d-psgd.mixing": "client"})
    record = pack({"weights": torch.zeros(2, dtype=torch.float64), "x-1": torch.zeros(0), "x-0": torch.zeros(named.d)})
    assert bool(named.misfit(2, "train", 0, record)) != bool(named.misfit(2, "train", 1, record))


class Anchored(FederatedStrategy):
    """Server and site keep an anchor from the fourth round on, which both send."""

    name = "anchored"

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        return state

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        memory = memory | ({"anchor": sent["x"]} if context.round == 4 else {})
        return {"x": sent["x"]} | memory, memory


def test_a_site_that_comes_later_knows_what_came_in_the_middle_of_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    def later() -> Rehearsal:
        return Rehearsal(Anchored(), {"x": torch.zeros(3)}, 40, 2)

    assert [set(one) for one in later().sent(20, "train", 0)][-1] == {"x", "anchor"}
    assert [set(one) for one in later().last(0)][-1] == {"x"}, "the last evaluation is of the model"
    goes_on = later()
    context = goes_on.algorithm.context(20, 40, "train", 2)
    assert {"x", "anchor"} in [set(one) for one in goes_on.answered(context, pack({"x": torch.zeros(3)}))]

    monkeypatch.setattr(player, "MOST", 19)
    assert [set(one) for one in later().sent(20, "train", 0)] == [{"x"}] * 3


def test_what_is_sent_to_all_alike_is_played_once() -> None:
    played = Rehearsal(Telling(local_steps=9), {"x": torch.zeros(3)}, 5, 4)
    for r in range(1, 6):
        next(played.sent(r, "train", 0))
        Telling.played.clear()
        assert next(played.sent(r, "train", 3)).keys() == {"x"}
        assert not Telling.played


@pytest.mark.parametrize(
    ("name", "fraction"),
    [
        (name, fraction)
        for name, kind in sorted(ALGORITHMS.items())
        if not issubclass(kind, Decentralised)
        for fraction in ((1.0, 0.5) if kind.partial else (1.0,))
    ],
)
def test_who_a_site_is_does_not_matter(name: str, fraction: float, monkeypatch: pytest.MonkeyPatch) -> None:
    played, calls = rehearsal_of(name, 20, fraction=fraction), []
    broadcast = ALGORITHMS[name].broadcast

    def counted(algorithm: Any, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        calls.append(site)
        return broadcast(algorithm, state, context, site)

    monkeypatch.setattr(ALGORITHMS[name], "broadcast", counted)
    for r in range(1, ROUNDS + 1):
        for phase in played.phases(r):
            next(played.sent(r, phase, 0))
            calls.clear()
            next(played.sent(r, phase, 2))
            assert not calls, f"round {r}, {phase}"


@pytest.mark.parametrize("server_round", [0, 10, -3])
def test_a_round_that_there_is_not_has_no_turn(server_round: int) -> None:
    with pytest.raises(ValueError, match=f"round = {server_round}: a run of 9 rounds has rounds 1 to 9"):
        Stages(local_steps=2, iterations=4).context(server_round, 9)


MASK = torch.tensor([True, False, True, True, False])

UNFIT: list[tuple[str, Arrays, Arrays, str]] = [  # what is in order, and what is not
    ("coda-plus", {"count": torch.tensor([6])}, {"count": torch.tensor([-6])}, "must be from 0 to 6"),
    ("coda-plus", {"count": torch.tensor([2])}, {"count": torch.tensor([10**18])}, "must be from 0 to 6"),
    ("codasca", {"from": torch.tensor([2])}, {"from": torch.tensor([7])}, "'from' holds [7]: must be from 0 to 6"),
    ("coda", {"denominators": torch.tensor([0.0, 3.0])}, {"denominators": torch.tensor([4.0, -1.0])}, "must be >= 0"),
    ("coda", {"denominators": torch.tensor([1.0, 3.0])}, {"denominators": torch.zeros(2)}, "not all zero"),
    ("adafgda", {"a": torch.ones(3)}, {"a": torch.tensor([1.0, -1e-9])}, "'a' has entries below 0"),
    ("d-psgd", {"weights": torch.tensor([0.25, 0.75])}, {"weights": torch.tensor([0.5, 0.75])}, "adds up to 1.25"),
    ("d-psgd", {"weights": torch.tensor([0.25, 0.75])}, {"weights": torch.tensor([-1.0, 2.0])}, "must be >= 0"),
    (
        "dispfl",
        {"mask": packed(MASK), "values": torch.ones(3)},
        {"mask": packed(~MASK), "values": torch.ones(3)},
        "'mask' has 2 places in 5: must be 3 in 5",
    ),
    (
        "dispfl",
        {"mask-2": packed(MASK), "values-2": torch.ones(3)},
        {"mask-2": packed(torch.cat([MASK, ~MASK])[:7]), "values-2": torch.ones(4)},
        "'mask-2' has 4 places in 7: must be 4 in 5",
    ),
]


@pytest.mark.parametrize(("name", "fine", "wrong", "said"), UNFIT)
def test_vectors_that_mean_something_are_held_against_it(name: str, fine: Arrays, wrong: Arrays, said: str) -> None:
    algorithm = ALGORITHMS[name](local_steps=2)
    context = algorithm.context(3, ROUNDS, "train", SITES)  # two steps in each of three rounds
    assert algorithm.unfit(fine, context, len(MASK)) == ""
    assert said in algorithm.unfit(wrong, context, len(MASK))


def test_a_message_to_one_of_100_000_sites_costs_no_more_than_to_one_of_three() -> None:
    config = RunConfig.parse({"model": "linear", "sites": 10**5, "fraction": 1e-4})
    built = config.build_problem(config.setting(DataSummary(shape=(20,)), "cpu"))
    played = Rehearsal(config.strategy, built.initial(), ROUNDS, config.sites, built)
    next(played.sent(1, "train", 0))
    tracemalloc.start()
    try:
        list(played.sent(1, "train", 5, ["x"]))
        assert tracemalloc.get_traced_memory()[1] < 10**6, "nothing goes through all sites"
    finally:
        tracemalloc.stop()
