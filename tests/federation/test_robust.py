"""Robust means are those of the papers, and change nothing where nobody is an outlier."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from edelweiss.federation import Reply, Site, average
from edelweiss.federation.robust import Aggregation, RobustMean, Robustness
from edelweiss.strategies import ALGORITHMS

GROUPS = [("x", "y"), ("u",), ("x_mean", "count")]
CENTRE = {"x": torch.linspace(-1, 1, 6), "y": torch.tensor([3.0])}
OTHERS = {"alone", "coda", "d-psgd", "deprl", "dispfl"}


def replies(count: int, hostile: float = 1.0, weights: list[float] | None = None) -> list[Reply]:
    """Return replies around a centre, the last of them ``hostile`` times as far."""
    random = np.random.default_rng(count)
    found = []
    for k in range(count):
        times = hostile if k == count - 1 else 1.0
        step = {name: torch.from_numpy(random.normal(size=len(c)) * times).float() for name, c in CENTRE.items()}
        arrays = {name: CENTRE[name] + step[name] for name in CENTRE}
        arrays |= {"u": torch.from_numpy(random.normal(size=6) * times).float()}
        found.append(Reply(Site(k, f"site-{k}", k + 1, weights[k] if weights else 1.0), arrays))
    return found


def stacked(of: list[Reply], name: str) -> np.ndarray:
    return np.stack([reply.arrays[name].double().numpy() for reply in of])


def robust(aggregation: Aggregation, of: list[Reply], multiple: float = 3.0, trim: float = 0.2) -> RobustMean:
    return RobustMean(Robustness(aggregation, multiple, trim), GROUPS, CENTRE)


@pytest.mark.parametrize("weights", [None, [1.0, 5.0, 2.0, 0.5, 3.0]])
def test_clipped_is_centred_clipping_of_weighted_norms(weights: list[float] | None) -> None:
    given = replies(5, 50.0, weights)
    w = np.array(weights or [1.0] * 5)
    together = np.concatenate([stacked(given, "x"), stacked(given, "y")], 1)
    centre = np.concatenate([CENTRE["x"].numpy(), CENTRE["y"].numpy()]).astype(float)
    for names, v, c in ((("x", "y"), together, centre), (("u",), stacked(given, "u"), np.zeros(6))):
        norms = w * np.sqrt(((v - c) ** 2).sum(1))
        shorter = np.minimum(1.0, 3.0 * np.median(norms) / norms)
        expected = (w[:, None] * (c + shorter[:, None] * (v - c))).sum(0) / w.sum()
        mean = average(robust("clipped", given)(iter(given)))
        np.testing.assert_allclose(torch.cat([mean[name] for name in names]).numpy(), expected, rtol=0, atol=1e-5)
    assert shorter.min() < 1


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("aggregation", ["trimmed-mean", "median"])
def test_trimmed_mean_and_median_are_those_of_each_coordinate(aggregation: Aggregation, count: int) -> None:
    given = replies(count, 1e6)
    mean = average(robust(aggregation, given)(iter(given)))
    for name in ("x", "y", "u"):
        values = stacked(given, name)
        dropped = min(-(-count // 5), (count - 1) // 2)
        expected = (
            np.median(values, 0) if aggregation == "median" else np.sort(values, 0)[dropped : count - dropped].mean(0)
        )
        np.testing.assert_allclose(mean[name].numpy(), expected, rtol=1e-6, atol=1e-5)


def test_without_an_outlier_clipping_leaves_every_bit() -> None:
    given = replies(8)
    kept = list(robust("clipped", given)(iter(given)))
    assert [reply.site for reply in kept] == [reply.site for reply in given]
    for before, after in zip(given, kept, strict=True):
        assert all(after.arrays[name] is vector for name, vector in before.arrays.items())


@pytest.mark.parametrize("hostile", [1e3, -1e12])
def test_one_site_moves_a_clipped_mean_by_a_bounded_step(hostile: float) -> None:
    given = replies(8, hostile)
    before = [vector.clone() for vector in given[-1].arrays.values()]
    mean = average(robust("clipped", given)(iter(given)))
    usual = np.median(np.linalg.norm(stacked(given, "u"), axis=1))
    moved = mean["u"].numpy() - stacked(given[:-1], "u").sum(0) / 8
    assert np.linalg.norm(moved) == pytest.approx(3 * usual / 8, rel=1e-4)
    assert all(torch.equal(now, then) for now, then in zip(given[-1].arrays.values(), before, strict=True))


@pytest.mark.parametrize("aggregation", ["mean", "clipped", "trimmed-mean", "median"])
def test_the_outlier_is_named_with_how_far(aggregation: Aggregation) -> None:
    given = replies(8, 100.0)
    found = robust(aggregation, given)
    list(found(iter(given)))
    norms = np.linalg.norm(stacked(given, "u"), axis=1)
    both = np.linalg.norm(np.concatenate([stacked(given, n) - CENTRE[n].numpy() for n in CENTRE], 1), axis=1)
    expected = max(each[-1] / np.median(each) for each in (norms, both))
    assert found.outliers == {"site-7": pytest.approx(expected, rel=1e-5)}


def test_sites_without_a_weight_take_no_part() -> None:
    given = replies(4, 1e6, [1.0, 1.0, 1.0, 0.0])
    for aggregation in ("clipped", "median"):
        found = robust(aggregation, given)
        mean = average(found(iter(given)))
        others = average(robust(aggregation, given)(iter(given[:3])))
        assert not found.outliers
        assert torch.equal(mean["x"], others["x"])


def test_more_than_half_without_a_step_do_not_silence_the_others() -> None:
    given = replies(5)
    still = [Reply(reply.site, dict(CENTRE) | {"u": torch.zeros(6)}) for reply in given[:3]] + given[3:]
    kept = list(robust("clipped", still)(iter(still)))
    assert all(after.arrays["x"] is before.arrays["x"] for before, after in zip(still, kept, strict=True))


def test_nobody_claims_more_steps_than_the_others() -> None:
    point = {"x": torch.zeros(2)}
    given = [
        Reply(Site(k, str(k), k), {"x_mean": torch.ones(2), "count": torch.tensor([steps])})
        for k, steps in enumerate([40, 40, 30, 10**6])
    ]
    kept = list(RobustMean(Robustness("clipped"), GROUPS, point)(iter(given)))
    assert [int(reply.arrays["count"]) for reply in kept] == [40, 40, 30, 40]
    version = [Reply(reply.site, {"x": torch.ones(2), "from": reply.arrays["count"]}) for reply in given]
    kept = list(RobustMean(Robustness("clipped"), [("x",), ("from",)], point)(iter(version)))
    assert [int(reply.arrays["from"]) for reply in kept] == [40, 40, 30, 10**6], "a round weighs nothing"


def test_a_mean_of_iterates_lies_around_the_iterates() -> None:
    far = {"x": torch.full((4,), 1000.0)}
    steps = [1.0, 1.0, 1.0, 90.0]
    given = [Reply(Site(k, str(k), k), {"x_mean": far["x"] + step}) for k, step in enumerate(steps)]
    mean = average(RobustMean(Robustness("clipped", 3.0), GROUPS, far)(iter(given)))
    torch.testing.assert_close(mean["x_mean"], far["x"] + 1.5)


def test_a_plain_mean_holds_one_reply_at_a_time() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def arriving() -> Iterator[Reply]:
        for k in range(6):
            assert sum(reference() is not None for reference in alive) <= 1
            vector = torch.full((1000,), float(k))
            alive.append(weakref.ref(vector))
            yield Reply(Site(k, str(k), k + 1), {"x": vector})
            del vector

    average(RobustMean(Robustness("mean"), [("x",)], {})(arriving()))


def test_who_averages_follows_from_the_table() -> None:
    assert {name for name, algorithm in ALGORITHMS.items() if not algorithm.messages.averages} == OTHERS
