"""What one site claims of its data does not decide what is done with the others'."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edelweiss.common import Value
from edelweiss.config import RunConfig
from edelweiss.datasets import Facts
from edelweiss.server_app.claims import FAR, believed, capped, in_accord
from edelweiss.server_app.console import Progress


def facts(rows: int, seed: int, shift: float = 0.0, **more: object) -> Facts:
    values = np.random.default_rng(seed).normal([5.0 + shift, 0.0, 100.0], [1.0, 2.0, 30.0], (rows, 3))
    values[:, 1] = values[:, 1] > 0
    sums = {"count": (float(rows),) * 3, "total": tuple(values.sum(0)), "squares": tuple((values**2).sum(0))}
    return replace(Facts(name=f"s{seed}", examples=rows, positives=rows // 4, shape=(3,), **sums), **more)  # type: ignore[arg-type]


def some() -> dict[str, Facts]:
    return {f"s{seed}": facts(rows, seed) for seed, rows in enumerate([60, 500, 30, 80, 40])}


def test_what_sites_claim_that_are_alike_is_believed_as_it_is() -> None:
    honest = some()
    found, left_out = believed(honest)
    assert not left_out
    assert all(one is other for one, other in zip(found, honest.values(), strict=True))


@pytest.mark.parametrize("times", [1.0, 1e6, 1e15])
def test_sums_beyond_all_others_are_left_out_alone(times: float) -> None:
    lying = some()
    count = 2.0**31
    sums = {"count": (count,) * 3, "total": (count * 1e4 * times,) * 3, "squares": (count * 2e8 * times**2,) * 3}
    lying["s1"] = replace(lying["s1"], examples=2**31, **sums)
    found, left_out = believed(lying)
    assert left_out == ["s1"]
    assert [one.total for one in found] == [() if name == "s1" else one.total for name, one in lying.items()]


def test_the_far_ones_are_those_beyond_the_threshold() -> None:
    for shift, expected in ((0.9 * FAR, []), (1.2 * FAR, ["s1"])):
        assert believed({**some(), "s1": facts(500, 1, shift)})[1] == expected


def test_unlikely_many_samples_count_as_many_as_usual() -> None:
    lying = some()
    lying["s1"] = facts(200_000, 1, class_counts=(150_000, 50_000))
    assert believed({**lying, "s1": facts(50_000, 1)})[0][1].count == (50_000.0,) * 3
    found, left_out = believed(lying)
    assert not left_out
    assert found[1].count == pytest.approx((60.0,) * 3)
    assert found[1].total[0] / found[1].count[0] == pytest.approx(lying["s1"].total[0] / 200_000)
    assert found[1].class_counts == (45, 15)
    assert capped([60.0, 2.0**31, 40.0, 0.0], 3.0) == [60.0, 180.0, 40.0, 0.0]


def test_of_two_sites_nobody_knows_which_is_right() -> None:
    two = {"s0": facts(60, 0), "s1": facts(60, 1, 1e6)}
    assert believed(two) == ([*two.values()], [])


def accord(min_replies: int, *every: Facts, **keys: Value) -> tuple[list[int], list[str]]:
    progress, said = Progress(quiet=True), list[str]()
    progress.warn = said.append  # type: ignore[method-assign]
    config = RunConfig.parse({"sites": len(every), "min-replies": min_replies, **keys})
    return [*in_accord(config, dict(enumerate(every)), progress)], said


def test_a_site_with_other_inputs_is_left_out_if_enough_others_go_on() -> None:
    odd = facts(50, 7, shape=(4,))
    kept, said = accord(4, *some().values(), odd)
    assert kept == [0, 1, 2, 3, 4]
    assert "'s7'" in said[0]
    assert accord(0, *some().values(), odd) == ([0, 1, 2, 3, 4, 5], []), "all sites are needed"
    assert accord(6, *some().values(), odd)[0] == [0, 1, 2, 3, 4, 5]
    assert accord(1, facts(50, 0), odd)[0] == [0, 1], "neither is the odd one"


def test_a_site_with_a_class_beyond_a_gap_is_left_out() -> None:
    def of(seed: int, *counts: int) -> Facts:
        return facts(60, seed, class_counts=counts, classes=len(counts))

    every = [of(0, 20, 40), of(1, 20, 20, 20), of(2, 30, 30), of(3, 20, 20, 0, 0, 20)]
    assert accord(3, *every, problem="cross-entropy", algorithm="fedavg")[0] == [0, 1, 2]
    assert accord(4, *every, problem="cross-entropy", algorithm="fedavg")[0] == [0, 1, 2, 3]
    assert accord(3, *every[:3], of(3, 20, 20, 0, 20), problem="cross-entropy", algorithm="fedavg")[0] == [0, 1, 2, 3]


def test_two_sites_of_one_name_are_left_out_both() -> None:
    kept, said = accord(2, *some().values(), facts(50, 9, name="S1"))
    assert kept == [0, 2, 3, 4]
    assert "'s1', 'S1'" in said[0]
