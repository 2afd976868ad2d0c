"""A run-config is written to a file, or made flat, and read again: the same run."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from edelweiss.common import Value, to_toml
from edelweiss.common.files import read_toml
from edelweiss.config import RunConfig, flatten, parse_run_config
from edelweiss.problems import PROBLEMS
from edelweiss.strategies import ALGORITHMS, can_solve
from tests.config.known import IN_TABLES, KNOWN, options_of
from tests.fitting import fitting
from tests.said import has

ODD: list[dict[str, Value]] = [
    {},
    {"algorithm": "fedavg", "problem": "bce", "fedavg.lr": 1e-7, "fraction": 0.3, "seed": 12345678901},
    {"algorithm": "local-sgda", "local-sgda.lr-dual": 1e22, "local-sgda.lr": 0.1 + 0.2},
    {"algorithm": "coda-plus", "coda-plus.gamma": 0, "stage-iterations": 100, "output": "average"},
    {"run-name": 'a "quoted" \\ name\twith\nlines', "data-root": "/tmp/Spital Zürich/🏥", "positive-classes": "1-3"},
    {"run-name": "\u2028"},
    {"codasca.lr": 1, "fedavg.lr": 0.5},  # a table of another algorithm has no effect, and is not kept
    {"auc.score": "identity", "auc.prior": 0.1 + 0.2, "maml.ways": 3},  # nor has one of another problem
    {"algorithm": "fcsg", "problem": "maml", "maml.ways": 3, "maml.inner-lr": 1, "maml.test-tasks": 10**6},
    {"algorithm": "local-sgda", "problem": "saddle", "saddle.file": 'a "quoted" \\ Zürich.npz', "saddle.dimension": 3},
]


@pytest.mark.parametrize("values", ODD)
def test_to_toml_is_the_same_run(values: dict[str, Value]) -> None:
    config = RunConfig.parse(values)
    again = RunConfig.parse(flatten(tomllib.loads(config.to_toml())))
    assert again.strategy == config.strategy
    assert options_of(again) == options_of(config)
    assert (
        options_of(config).items()
        >= {
            key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{config.problem}.")
        }.items()
    )
    nothing: dict[str, Any] = {"hyper": {}, "options": {}}
    assert again.model_copy(update=nothing) == config.model_copy(update=nothing)
    assert again.seed == config.seed
    assert again.to_toml() == config.to_toml()  # nothing is lost on a second way either


@pytest.mark.parametrize("values", ODD)
def test_flat_is_the_same_run(values: dict[str, Value]) -> None:
    config = RunConfig.parse(values)
    assert RunConfig.parse(config.flat()) == config
    assert parse_run_config(config.flat()) == config


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_to_toml_names_every_key_that_matters(algorithm: str) -> None:
    for problem in (name for name, p in PROBLEMS.items() if can_solve(ALGORITHMS[algorithm], p)):
        written = flatten(
            tomllib.loads(RunConfig.parse({"algorithm": algorithm, "problem": problem} | fitting(algorithm)).to_toml())
        )
        other_tables = {key for key in IN_TABLES if not key.startswith((f"{algorithm}.", f"{problem}."))}
        assert sorted(written) == sorted(KNOWN.keys() - other_tables)


def test_any_text_survives_the_file() -> None:
    values: dict[str, Value] = {"a": 'a "quoted" \\ name\twith\nlines', "b.c": "\x7f\x00\u2028"}
    assert flatten(tomllib.loads(to_toml(values))) == values


def test_flatten_keeps_dotted_keys() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": 2}, "e.f": 3}) == {"a.b.c": 1, "a.d": 2, "e.f": 3}


def test_a_table_nested_or_flat_is_the_same() -> None:
    nested = RunConfig.parse(flatten({"codasca": {"lr": 0.5}}))
    assert nested == RunConfig.parse({"codasca.lr": 0.5})
    assert nested.strategy.lr == 0.5  # type: ignore[attr-defined]


def test_one_that_was_cut_off_is_refused_wherever_that_was(tmp_path: Path) -> None:
    """TOML itself cannot tell: the keys that are missing would stand for their defaults."""
    run = RunConfig.parse({"algorithm": "fmgda", "fmgda.lr": 0.3, "rounds": 7})
    file = tmp_path / "config.toml"
    file.write_text("# the record of a study\n" + run.to_toml())
    assert RunConfig.parse(flatten(read_toml(file))) == RunConfig.parse(run.written())
    lines = file.read_text().splitlines(keepends=True)
    for count in range(2, len(lines)):
        file.write_text("".join(lines[:count]))
        with pytest.raises(ValueError, check=has("'# end'")):
            read_toml(file)


def test_one_that_was_changed_by_hand_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(RunConfig.parse({}).to_toml().replace("rounds = 40", "rounds = 3"))
    assert read_toml(file)["rounds"] == 3
    file.write_text("rounds = 3\n")
    assert read_toml(file) == {"rounds": 3}
