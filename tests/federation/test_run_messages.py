"""The messages of a run: what an algorithm's table allows in each phase, and what it does not."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import torch

from edelweiss.config import RunConfig
from edelweiss.datasets import DataSummary
from edelweiss.federation import Stages, pack
from edelweiss.federation.run_messages import RunMessages
from edelweiss.problems import PROBLEMS, Arrays
from edelweiss.strategies import ALGORITHMS, can_solve
from edelweiss.strategies.dispfl import packed
from tests.said import has

SITES, ROUNDS = 3, 5


def messages_of(name: str, **keys: Any) -> RunMessages:
    """Return the messages of an algorithm on a network, in a run of two stages."""
    few = ("auc", "bce", "auprc", "maml", "cross-entropy")
    problem = next(p for p in few if can_solve(ALGORITHMS[name], PROBLEMS[p]))
    steps = 1 if name == "npa" else 2
    job: dict[str, Any] = {"algorithm": name, "problem": problem, "model": "mlp", "hidden": 4, "sites": SITES}
    job |= {"rounds": ROUNDS, "local-steps": steps, "stage-iterations": 4 * steps}
    config = RunConfig.parse(job | keys | ({"maml.ways": 2} if problem == "maml" else {}))
    built = config.build_problem(config.setting(DataSummary(shape=(20,)), "cpu"))
    return RunMessages(config.strategy, built.initial(), ROUNDS, config.sites, built, encoding=config.encoding)


def test_what_got_lost_allows_other_messages() -> None:
    """With some of the sites, CODASCA's server may say from which round on all is new."""
    messages = messages_of("codasca", fraction=0.5)
    usual = {"x", "y", "cx", "cy", "x_ref"}
    assert [set(one) for one in messages.down(messages.context(1, "train"))] == [{"x", "y"}]
    assert [set(one) for one in messages.down(messages.context(3, "train"))] == [usual, usual | {"since"}]
    messages = messages_of("fedgda-gt")
    assert [set(one) for one in messages.up(messages.context(2, "train"))] == [{"x", "y"}, set()]


def test_neighbours_are_those_that_a_message_names() -> None:
    messages = messages_of("d-psgd", **{"d-psgd.mixing": "client"})
    context = messages.context(2, "train")
    both = messages.down(context, 1, ["weights", "x-0", "x-1", "x-2"])[0]
    one = messages.down(context, 1, ["weights", "x-0", "x-1", "x-9", "x-", "x-00000000000"])[0]
    assert both.keys() == {"weights", "x-0", "x-1", "x-2"}
    assert one.keys() == {"weights", "x-0", "x-1"}
    assert (both["weights"].shape, one["weights"].shape, both["x-1"].shape) == ((3,), (2,), (0,))
    assert [one.keys() for one in messages.down(context, 1, ["weights", "x-1"])] == [{"x"}], "nobody to mix with"


def test_who_is_no_neighbour_is_not_relayed() -> None:
    messages = messages_of("d-psgd", sites=6, **{"d-psgd.mixing": "client"})  # a ring
    sent = pack({"weights": torch.zeros(2, dtype=torch.float64), "x-1": torch.zeros(0), "x-3": torch.zeros(messages.d)})
    near = pack({"weights": torch.zeros(2, dtype=torch.float64), "x-1": torch.zeros(0), "x-2": torch.zeros(messages.d)})
    context = messages.context(2, "train")
    assert "'x-3'" in messages.misfit(context, 1, sent)
    assert not messages.misfit(context, 1, near)
    assert "'x-1'" in messages.misfit(context, 2, near), "what goes to one site does not fit another"


def test_a_record_that_goes_to_all_is_looked_at_once_in_a_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = messages_of("codasca")
    first, later = messages.context(1, "train"), messages.context(2, "train")
    record = pack({"x": torch.zeros(messages.d), "y": torch.zeros(1)})
    assert not messages.misfit(first, 0, record)
    looked: list[object] = []
    monkeypatch.setattr("edelweiss.federation.run_messages.misfits", lambda *of: looked.append(of) or "")
    assert not messages.misfit(first, 1, record)
    assert not looked
    messages.misfit(later, 1, record)
    assert looked, "in another phase it is another message"


def test_estimates_are_the_only_vectors_in_8_bits() -> None:
    coarse = messages_of("codasca", **{"wire": "bf16", "wire-estimators": "int8", "hidden": 30})
    [shapes] = coarse.down(coarse.context(2, "train"))
    assert {name: vector.dtype for name, vector in shapes.items()} == {
        "x": "uint16",
        "x_ref": "uint16",
        "cx": "int8",
        "cx.scale": "float32",
        "y": "float32",  # too short to be rounded
        "cy": "float32",
    }


@pytest.mark.parametrize("name", ["codasca", "coda-plus", "sagda", "adafgda", "fedrep", "fedavg"])
def test_a_site_remembers_what_its_table_says(name: str) -> None:
    d, kept = messages_of(name).d, messages_of(name).between_rounds()
    head = 4 + 1 + 2  # the last weights, a bias, and the scalars of AUC
    numbers = {"codasca": d + 1, "coda-plus": d + 1, "sagda": 0, "adafgda": d + 1, "fedrep": head + 1, "fedavg": 0}
    assert sum(vector.bytes for vector in kept.values() if vector.dtype == "float32") == 4 * numbers[name]


@pytest.mark.parametrize("server_round", [0, 10, -3])
def test_a_round_outside_the_run_has_no_context(server_round: int) -> None:
    with pytest.raises(ValueError, check=has(f"round = {server_round}", 9)):
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
    messages = messages_of("codasca", sites=10**5, fraction=1e-4)
    tracemalloc.start()
    try:
        messages.down(messages.context(1, "train"), 5, ["x"])
        assert tracemalloc.get_traced_memory()[1] < 10**5, "nothing goes through all sites"
    finally:
        tracemalloc.stop()
