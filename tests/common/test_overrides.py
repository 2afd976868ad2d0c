"""What --run-config takes: pairs or a file, as flwr run does."""

from __future__ import annotations

from pathlib import Path

import pytest

from edelweiss.common import ConfigError, flatten, read_overrides
from tests.said import has


def test_pairs_have_toml_types() -> None:
    given = read_overrides(["rounds=3 algorithm=\"fedavg\" problem='bce' fraction=0.5 standardise=false"])
    assert given == {"rounds": 3, "algorithm": "fedavg", "problem": "bce", "fraction": 0.5, "standardise": False}
    assert type(given["rounds"]) is int


def test_pairs_may_come_in_several_arguments_and_name_tables() -> None:
    assert read_overrides(["rounds=3", "codasca.lr=0.5 sites=4"]) == {"rounds": 3, "codasca.lr": 0.5, "sites": 4}
    assert read_overrides(['run-name="two words"']) == {"run-name": "two words"}


def test_nothing_is_no_override() -> None:
    assert read_overrides([]) == {}
    assert read_overrides([""]) == {}


def test_a_file_has_its_tables_flattened(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("rounds = 3\n[codasca]\nlr = 0.5\nserver-lr = 2.0\n", encoding="utf-8")
    assert read_overrides([str(file)]) == {"rounds": 3, "codasca.lr": 0.5, "codasca.server-lr": 2.0}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, check=has("--run-config", "missing.toml")):
        read_overrides([str(tmp_path / "missing.toml")])


def test_a_file_that_is_no_toml_says_where(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("rounds = 3\nrounds = = 4\n", encoding="utf-8")
    with pytest.raises(ConfigError, check=has("bad.toml", "line 2")):
        read_overrides([str(file)])


def test_every_pair_that_is_no_toml_is_named_with_its_fix() -> None:
    with pytest.raises(ConfigError) as caught:
        read_overrides(["rounds=three algorithm=fedavg sites=2", "a=1 a=2"])
    assert caught.value.keys == ["", "", "a"]
    assert has("--run-config", "rounds=three", """'rounds="three"'""", """'algorithm="fedavg"'""")(caught.value)


@pytest.mark.parametrize("text", ['"codasca.lr" = 1\n[codasca]\nlr = 2\n', '"a.b.c" = 1\na = {b = {c = 1}}\n'])
def test_one_key_in_two_spellings_is_given_twice(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, check=has("twice")):
        read_overrides([str(file)])
    with pytest.raises(ConfigError, check=has("codasca.lr", "twice")):
        flatten({"codasca": {"lr": 1}, "codasca.lr": 2})
    with pytest.raises(ConfigError, check=has("codasca.lr", "twice")):
        read_overrides(['codasca.lr=1 "codasca.lr"=2'])


@pytest.mark.parametrize("text", ["rounds", "rounds=3 seed", "rounds 3", "rounds = 3", "=3"])
def test_what_is_no_pair_is_not_passed_over(text: str) -> None:
    with pytest.raises(ConfigError, check=has("--run-config")):
        read_overrides([text])


def test_pairs_beside_a_file_change_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("rounds = 3\nseed = 4\n", encoding="utf-8")
    assert read_overrides([str(file), "seed=1"]) == {"rounds": 3, "seed": 1}
    assert read_overrides(["seed=1", str(file)]) == {"rounds": 3, "seed": 4}
