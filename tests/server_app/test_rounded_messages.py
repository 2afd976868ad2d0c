"""Runs whose messages are rounded: what is sent and counted, which bits come out, and what is said of a bad choice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord

from edelweiss.common import to_record
from edelweiss.config import ConfigError, RunConfig
from edelweiss.datasets import DataSummary
from edelweiss.federation import Oracle, Reply, RoundContext, RunError, Site, Table, average, both, encoding, pack
from edelweiss.problems import PROBLEMS, Arrays
from edelweiss.server_app import simulate
from edelweiss.server_app.local import LocalGrid, unused_run_id
from edelweiss.strategies import ALGORITHMS, can_solve
from edelweiss.strategies.local_sgda import LocalSGDA
from tests.fitting import fitting
from tests.said import has, lines
from tests.server_app.sites import images, job, run_at, saddle_job, site_job

WITH_ESTIMATORS = [name for name in ALGORITHMS if ALGORITHMS[name].messages.estimates]
QUICK = ("codasca", "momentum-local-sgda", "fednest")  # memory, none of its own, one name for two quantities
FEW_SHOTS: dict[str, Any] = {"maml.ways": 2, "maml.queries": 2, "maml.test-tasks": 1, "batch-size": 5}


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Message]]:
    """Note what goes over the wire in the next runs."""
    noted: dict[str, list[Message]] = {"down": [], "up": []}
    push, pull = LocalGrid.push_messages, LocalGrid.pull_messages

    def pushing(grid: LocalGrid, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        noted["down"] += messages
        return push(grid, messages)

    def pulling(grid: LocalGrid, identifiers: Iterable[str]) -> Iterable[Message]:
        answers = list(pull(grid, identifiers))
        noted["up"] += answers
        return answers

    monkeypatch.setattr(LocalGrid, "push_messages", pushing)
    monkeypatch.setattr(LocalGrid, "pull_messages", pulling)
    return noted


def in_rounds(messages: list[Message]) -> list[Message]:
    """Return the messages of the rounds: neither the question before them nor the evaluation behind."""
    return [message for message in messages if message.metadata.message_type == "train"]


def rounded(name: str, folder: Path, **keys: Any) -> dict[str, Any]:
    """Describe a short run on a network of 345 parameters, everything as small on the wire as it can be."""
    fit = next(p for p in ("auc", "bce", "auprc", "maml", "cross-entropy") if can_solve(ALGORITHMS[name], PROBLEMS[p]))
    made = job(folder, algorithm=name, problem=fit, rounds=4, wire="bf16", **keys)
    few = FEW_SHOTS | {"dataset": "digits", "partition": "iid"} if fit == "maml" else {}
    return (
        made
        | few
        | {"hidden": 9, "wire-estimators": "int8" if ALGORITHMS[name].messages.estimates else ""}
        | fitting(name)
    )


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["float32", "bf16", "float16"])
@pytest.mark.parametrize("estimators", ["", "int8"])
def test_the_bytes_of_a_round_are_those_on_the_wire(
    wire: str, estimators: str, tmp_path: Path, carried: dict[str, list[Message]]
) -> None:
    result = simulate(rounded("codasca", tmp_path) | {"wire": wire, "wire-estimators": estimators})
    for way, messages in carried.items():
        counted = sum(record[f"bytes-{way}"] for record in result.metrics)
        arrays = [array for message in in_rounds(messages) for array in message.content["arrays"].values()]  # type: ignore[union-attr]
        assert counted == sum(array.numpy().nbytes for array in arrays)
    d, number = len(result.arrays["x"]), {"float32": 4, "bf16": 2, "float16": 2}[wire]
    control = d + 4 * 2 if estimators else number * d  # two blocks have a scale each; y and cy, one number, are exact
    assert result.metrics[-1]["bytes-down"] == 3 * (2 * number * d + control + 4 + 4)
    assert result.metrics[-1]["bytes-up"] == 3 * (number * d + control + 4 + 4)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in ALGORITHMS])
def test_every_algorithm_runs_with_rounded_messages(
    name: str, tmp_path: Path, carried: dict[str, list[Message]]
) -> None:
    """Its estimators are vectors that it sends; x comes to all sites as it is in the end."""
    keys = rounded(name, tmp_path) | {"rounds": 2} | ({"local-steps": 1} if name == "npa" else {})
    result = simulate(keys)
    assert np.isfinite(result.arrays["x"]).all()
    if name == "alone":
        return
    names = {n for way in carried.values() for m in in_rounds(way) for n in m.content["arrays"]}  # type: ignore[union-attr]
    assert {f"{n}.scale" for n in ALGORITHMS[name].messages.estimates if n not in ("v", "vy", "cy", "dy")} <= names
    assert not {"x", "y", "buffers"} & {*ALGORITHMS[name].messages.estimates}
    last = [m.content["arrays"] for m in carried["down"] if m.metadata.message_type == "evaluate"]
    assert all(array.dtype != "uint16" for arrays in last for array in arrays.values())  # type: ignore[union-attr]
    if not ALGORITHMS[name].personalised:
        assert all(np.array_equal(arrays["x"].numpy(), result.arrays["x"]) for arrays in last)  # type: ignore[index]


@pytest.mark.usefixtures("small_resnet")
def test_batch_norm_statistics_are_rounded_as_x_is(
    tmp_path: Path, carried: dict[str, list[Message]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "BLOCK", 2)  # that network is small
    keys: dict[str, Any] = {"model": "resnet18", "sites": 2, "local_steps": 1, "batch_size": 4, "wire": "bf16"}
    config = site_job(tmp_path, algorithm="fedavg", problem="bce", standardise=False, **keys)
    result = run_at(config, [images(tmp_path, site, 100) for site in range(2)])
    assert np.isfinite(result.arrays["buffers"]).all()
    for messages in carried.values():
        arrays: list[Any] = [message.content["arrays"] for message in in_rounds(messages)]
        assert [{name: array.dtype for name, array in one.items()} for one in arrays] == [
            {"x": "uint16", "buffers": "uint16"}
        ] * 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["codasca", "momentum-local-sgda"])
def test_one_and_two_workers_give_the_same_bits(name: str, tmp_path: Path) -> None:
    one, two = (simulate(rounded(name, tmp_path, workers=workers)) for workers in (1, 2))
    assert all(np.array_equal(one.arrays[n], two.arrays[n]) for n in one.arrays)
    exact = simulate(rounded(name, tmp_path) | {"wire": "float32", "wire-estimators": ""})
    assert not np.array_equal(one.arrays["x"], exact.arrays["x"])
    assert abs(one.metrics[-1]["central"]["auroc"] - exact.metrics[-1]["central"]["auroc"]) < 0.05


# ---------------------------------------------------------------------- error feedback, both ways

FIXED = torch.linspace(-0.7, 1.3, 300)


@dataclass(frozen=True, kw_only=True)
class Fixed(LocalSGDA):
    """Both sides send one vector over and over: x is the sum of what a site received, y that of what the server did."""

    name = "fixed"
    messages = Table(both(x="d"), both(u="d", estimate=True))

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Send it."""
        return {"x": state["x"], "u": FIXED[: len(state["x"])]}

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Add it up; nothing but the rounding error is remembered, and nobody sees that."""
        assert not memory
        return {"x": sent["x"] + sent["u"], "u": FIXED[: len(sent["x"])]}, {}

    def aggregate(self, state: Arrays, replies: Iterable[Reply], context: RoundContext) -> Arrays:
        """Add it up."""
        mean = average(replies)
        return {"x": mean["x"], "y": state["y"] + mean["u"]}


@pytest.mark.slow
def test_the_sums_of_what_both_sides_received_are_within_a_quantum_of_what_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALGORITHMS, Fixed.name, Fixed)
    keys = saddle_job(tmp_path, algorithm="fixed", rounds=40, evaluate_every=0, **{"saddle.dimension": 300})
    exact, coarse = (simulate(keys | {"wire-estimators": bits}).arrays for bits in ("", "int8"))
    for name in ("x", "y"):
        off = np.abs(coarse[name] - exact[name])
        assert 0 < off.max() <= 1.3 / 127 + 1e-4, "without feedback it would be up to 20 quanta"


# ---------------------------------------------------------------------- what float16 cannot hold


def test_a_site_says_that_its_vector_is_too_large_for_float16(tmp_path: Path) -> None:
    keys = saddle_job(tmp_path, wire="float16", rounds=40, **{"saddle.dimension": 300, "loss-bound": 1e30})
    with pytest.raises(RunError) as stopped:
        simulate(keys | {"local-sgda.lr": 0.5, "local-sgda.lr-dual": 0.5})
    assert "4 sites ('site-0', 'site-1', 'site-2', 'site-3') refused: its 'x' (up to " in str(stopped.value)
    assert 'wire = "float16" ends at 65504, so take wire = "bf16" or "float32"' in str(stopped.value)


def test_the_server_says_so_before_anything_is_sent(tmp_path: Path) -> None:
    config = RunConfig.parse(saddle_job(tmp_path, wire="float16", **{"saddle.dimension": 300}))
    facts, start = ConfigRecord(to_record(DataSummary())), {"x": torch.full((300,), 7e4), "y": torch.zeros(300)}
    with LocalGrid(config, unused_run_id()) as grid, pytest.raises(RunError) as stopped:
        config.strategy.start(
            grid,
            pack(start),
            config.rounds,
            train_config=facts,
            evaluate_config=facts,
            evaluate_fn=lambda *_: MetricRecord({}),
            encoding=config.encoding,
        )
    assert str(stopped.value) == (
        "round 1 of 4: the server's 'x' (up to 7e+04): wire = \"float16\" ends at 65504, so take "
        'wire = "bf16" or "float32"'
    )


# ---------------------------------------------------------------------- what cannot be chosen


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in WITH_ESTIMATORS])
def test_an_algorithm_without_estimators_says_so(name: str, tmp_path: Path) -> None:
    keys = rounded(name, tmp_path) | {"wire-estimators": "int8"} | ({"local-steps": 1} if name == "npa" else {})
    with pytest.raises(ConfigError) as wrong:
        RunConfig.parse(keys)
    assert lines(str(wrong.value), "wire-estimators = 'int8'", f"algorithm = '{name}'", '""')


@pytest.mark.parametrize(("key", "value", "allowed"), [("wire", "fp8", "bf16"), ("wire-estimators", "int4", "int8")])
def test_an_unknown_format_is_answered_with_those_there_are(key: str, value: str, allowed: str) -> None:
    with pytest.raises(ConfigError, check=has(f"'{value}'", f"'{allowed}'", keys=[key])):
        RunConfig.parse({key: value})
