"""A policy's file that is damaged: it is refused, or what it has lost is said; it never ends in anything else."""

from __future__ import annotations

import logging
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from edelweiss.client_app.join import say_rules
from edelweiss.client_app.policy.rules import Policy, PolicyError
from tests.client_app.policies import Hospital
from tests.server_app.sites import table

RULES = b"""superlink = "host:9092" # as doctor reads it
site = "north"
[policy]
algorithms = ["codasca", "fedavg"]
problems = ["auc"]
models = ["mlp", "linear"]
plug-ins = ["mine:Net sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"]
most-rounds = 20
runs-per-day = 2
most-seconds = 60
approve = "ask"
fewest-training = 50
fewest-in-update = 16
fewest-held-out = 20
fewest-of-each-class = 10
patient = "pid"
seed = "a text"
holdout-share = 0.4
strict = true
[policy.ranges]
rounds = [1, 10]
batch-size = [32, 64]
"""
many = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)


def read(file: Path, content: bytes, log: pytest.LogCaptureFixture) -> None:
    """Read damaged rules after those that were meant: all that differs is said, or all is refused, in a few lines."""
    file.write_bytes(RULES)
    meant = Policy.read(str(file))
    file.write_bytes(content)
    log.clear()
    found: Policy | PolicyError
    try:
        found = Policy.read(str(file))
    except PolicyError as error:
        found = error
    if isinstance(found, PolicyError):
        assert str(file) not in found.public
        assert all(line.isprintable() for line in str(found).splitlines())
        assert 0 < len(str(found)) < 10_000
        return
    said = "\n".join(record.getMessage() for record in log.records)
    fields = {name: field.alias or name for name, field in Policy.model_fields.items()}
    lost = [key for name, key in fields.items() if getattr(meant, name) != getattr(found, name)]
    assert [key for key in lost if key not in said] == []
    assert bool(lost) == bool(said)
    assert meant.seed not in said


def test_the_rules_are_read(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_bytes(RULES)
    policy = Policy.read(str(tmp_path / "site.toml"))
    assert len(Policy.read("").changes(policy)) == 17


@many
@given(share=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
def test_another_byte_is_refused_or_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, share: float, change: int
) -> None:
    place = int(share * len(RULES))
    read(tmp_path / "site.toml", RULES[:place] + bytes([RULES[place] ^ change]) + RULES[place + 1 :], caplog)


@many
@given(share=st.floats(0, 1))
def test_a_cut_is_refused_or_said(tmp_path: Path, caplog: pytest.LogCaptureFixture, share: float) -> None:
    read(tmp_path / "site.toml", RULES[: int(share * len(RULES))], caplog)


@many
@given(line=st.integers(0, RULES.count(b"\n") - 1), other=st.binary(max_size=30))
def test_another_line_is_refused_or_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line: int, other: bytes
) -> None:
    every = RULES.splitlines(keepends=True)
    read(tmp_path / "site.toml", b"".join([*every[:line], other, *every[line + 1 :]]), caplog)


def test_a_site_says_its_rules_when_it_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "edelweiss")
    (tmp_path / "site.toml").write_bytes(RULES)
    say_rules(str(tmp_path / "site.toml"))
    [line] = [record.getMessage() for record in caplog.records]
    assert all(part in line for part in ("fewest-training = 50", "'pid'", "batch-size", "0123456789abcdef"))
    assert "a text" not in line
    caplog.clear()
    (tmp_path / "site.toml").write_bytes(RULES[:200])
    say_rules(str(tmp_path / "site.toml"))
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_site_with_damaged_rules_answers_nothing(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path, *table(80, 0), fewest_training=30)
    assert not isinstance(hospital.described(), str)
    file = tmp_path / "site.toml"
    file.write_bytes(file.read_bytes().replace(b"training = 30", b"training = 3O"))
    refusal = hospital.described()
    assert isinstance(refusal, str)
    assert str(tmp_path) not in refusal
