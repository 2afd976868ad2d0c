"""One hostile site of eight owns the model under a plain mean, not under a robust one; and it ends no run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import cycle, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from benchmarks import robust
from benchmarks.robust import ATTACKS, HOSTILE, JOB, Hostile, nothing
from edelweiss.common import ConfigError, Value
from edelweiss.config import RunConfig
from edelweiss.lab.report import write_report
from edelweiss.problems import Arrays
from edelweiss.server_app import simulate
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from tests.said import warnings

FEDAVG: dict[str, Value] = {"algorithm": "fedavg", "problem": "bce"}
NEAR = 0.02  # of the honest run's AUROC
OWNS = [attack for attack in ATTACKS if attack not in ("none", "examples = 2^52")]
AT_ONCE = ["head replaced in the last round", "examples = 2^52", "facts of 2^31 values of 1e15"]
ROBUST: dict[str, dict[str, Value]] = {
    "clipped": {"aggregation": "clipped", "outlier-multiple": 3.0},
    "trimmed-mean": {"aggregation": "trimmed-mean", "weighting": "uniform"},
    "median": {"aggregation": "median", "weighting": "uniform"},
}


def auroc(attack: str, **keys: Value) -> float:
    """Return `robust.auroc` after as few rounds as tell the two apart."""
    with patch.dict(JOB, rounds=8):
        return robust.auroc(attack, **keys)


@cache
def honest() -> float:
    return auroc("none", **FEDAVG, aggregation="mean")


@pytest.mark.slow
@pytest.mark.parametrize("attack", OWNS)
def test_with_a_plain_mean_one_site_owns_the_model(attack: str) -> None:
    assert not auroc(attack, **FEDAVG, aggregation="mean") > honest() - 5 * NEAR


WORST, *OTHERS = [attack for attack in ATTACKS if attack != "none"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "aggregation"),
    [*product([WORST], ROBUST), *zip(OTHERS, cycle(ROBUST))],  # every attack, and every mean
)
def test_with_a_robust_mean_it_does_not(attack: str, aggregation: str) -> None:
    assert auroc(attack, **FEDAVG, **ROBUST[aggregation]) > honest() - NEAR


@pytest.mark.slow
@pytest.mark.parametrize("attack", AT_ONCE)
def test_the_default_stops_what_is_done_at_once(attack: str) -> None:
    assert auroc(attack, **FEDAVG) > honest() - NEAR


# ---------------------------------------------------------------------- no site ends a run


def job(folder: Path, **keys: Value) -> RunConfig:
    return RunConfig.parse(
        {"rounds": 2, "min-replies": 6, "workers": 1, "device": "cpu", "hidden": 4, "local-steps": 2}
        | {"runs-dir": str(folder / "runs"), "report": False, **FEDAVG}
        | {key.replace("_", "-"): value for key, value in keys.items()}
    )


def vectors(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[int, Arrays, Arrays], Arrays]:
    return lambda server_round, sent, own: {"x": change(own["x"])}


def fails(*_: Any) -> Any:
    raise RuntimeError("the site's app breaks")


WRONG: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "NaN": (nothing, vectors(lambda x: x * torch.nan)),
    "infinity": (nothing, vectors(lambda x: x / 0.0)),
    "another length": (nothing, vectors(lambda x: x[:-1])),
    "another type": (nothing, vectors(lambda x: x.double())),
    "one more vector": (nothing, lambda server_round, sent, own: {"z": own["x"]}),
    "huge numbers": (nothing, vectors(lambda x: x + 1e5)),
    "more samples than there can be": (lambda record: record.update({"examples": 2**52}), nothing),
    "fewer than none": (lambda record: record.update({"examples": -1}), nothing),
    "more positives than samples": (lambda record: record.update({"positives": 10**6}), nothing),
    "other inputs": (lambda record: record.update({"shape": [31], "count": [], "total": [], "squares": []}), nothing),
    "other columns": (lambda record: record.update({"columns": "0"}), nothing),
    "another's name": (lambda record: record.update({"name": "site-1", "partition-id": 3}), nothing),
    "sums that are no numbers": (lambda record: record.update({"total": [float("nan")] * 30}), nothing),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("aggregation", ["auto", "median"])
def test_nothing_that_one_site_answers_ends_a_run(tmp_path: Path, wrong: str, aggregation: str) -> None:
    config = job(tmp_path, aggregation=aggregation)
    with Hostile(config, *WRONG[wrong]) as grid:
        result = coordinate(config, grid, Progress(quiet=True))
    assert len(result.metrics) == 2
    assert all((abs(vector) < 100).all() for vector in result.arrays.values())


# ---------------------------------------------------------------------- what is said


@pytest.mark.usefixtures("curves", "unpainted")
def test_the_outlier_is_in_the_run_folder_the_console_and_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def far(server_round: int, sent: Arrays, own: Arrays) -> Arrays:
        return {"x": own["x"] + 1000.0} if server_round in (1, 3, 4) else {}

    config = job(tmp_path, rounds=5, report=True)
    with Hostile(config, nothing, far) as grid:
        result = coordinate(config, grid, Progress(), write_report)
    name = f"site-{HOSTILE - 1}"
    assert [sorted(record.get("outliers", {})) for record in result.metrics] == [[name], [], [name], [name], []]
    assert all(record["outliers"][name] > 100 for record in result.metrics if "outliers" in record)
    [said] = warnings(capsys.readouterr().out, name)
    assert "in rounds 1, 3-4" in said
    for file in ("report.html", "model-card.md"):
        assert "in rounds 1, 3-4" in (result.folder / file).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"algorithm": "codasca", "problem": "auc"},
        {"algorithm": "codasca", "problem": "auc", "fraction": 0.5, "sites": 6, "min-replies": 0},
        {"algorithm": "coda-plus", "problem": "auc", "stage-iterations": 4},
        {"algorithm": "scaffold", "weighting": "examples", "concentration": 0.2, "outlier-multiple": 100.0},
        {"model": "mlp-bn", "dataset": "digits", "sites": 2, "min-replies": 0, "rounds": 1},
    ],
)
def test_an_honest_run_has_the_bits_of_the_plain_mean(tmp_path: Path, keys: dict[str, Value]) -> None:
    def arrays(**more: Value) -> dict[str, Any]:
        return simulate({**job(tmp_path, rounds=4).flat(), **keys, **more}).arrays

    plain = arrays(aggregation="mean")
    for other in (arrays(), arrays(aggregation="clipped")):
        assert plain.keys() == other.keys()
        assert all((plain[name] == other[name]).all() for name in plain)


# ---------------------------------------------------------------------- the run-config


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"aggregation": "krum"}, "aggregation = 'krum'"),
        ({"trimmed-share": 0.5}, "trimmed-share = 0.5"),
        ({"trimmed-share": -0.1}, "trimmed-share = -0.1"),
        ({"outlier-multiple": 0.5}, "outlier-multiple = 0.5"),
        ({"aggregation": "median", "algorithm": "d-psgd"}, "algorithm = 'd-psgd'"),
        ({"aggregation": "clipped", "algorithm": "coda", "problem": "auc"}, "algorithm = 'coda'"),
        ({"aggregation": "median", "weighting": "examples"}, "aggregation = 'median'"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(tmp_path: Path, keys: dict[str, Value], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse({**FEDAVG, **keys})
    [line] = [line for line in str(caught.value).splitlines() if said in line]
    assert len(line) < 300
    RunConfig.parse({**FEDAVG, **keys, "aggregation": "mean", "trimmed-share": 0.1, "outlier-multiple": 3.0})
