"""Hyper-parameters: ranges, and one message with all that is wrong."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, dataclass, fields
from functools import partial
from typing import Any, ClassVar, Literal

import pytest
from pydantic import Field
from pydantic.fields import FieldInfo

from edelweiss.common import HasOptions, check_options
from edelweiss.config.tables import SHARED, own_options
from edelweiss.federation import FederatedStrategy, StrategyError
from edelweiss.problems import PROBLEMS, Problem, ProblemError, Setting
from edelweiss.strategies import ALGORITHMS
from edelweiss.strategies.coda_plus import CodaPlus
from edelweiss.strategies.codasca import Codasca
from edelweiss.strategies.fedavg import FedAvg
from edelweiss.strategies.local_sgda import LocalSGDA
from tests.said import has

OWNERS: list[type[HasOptions]] = [*ALGORITHMS.values(), *PROBLEMS.values()]
FIELDS = list({id(f): (owner, key, f) for owner in OWNERS for key, f in owner.declared.items()}.values())
"""Every option once, with a class that has it: those that inherit it have the same object."""


@dataclass
class Example(HasOptions):
    count: int = Field(3, ge=1, le=9, description="n: how many")
    rate_of: float = Field(0.5, gt=0, le=1, description="η: how fast")
    kind: Literal["a", "b"] = Field("a", description="which")


@pytest.mark.parametrize(
    "good", [{}, {"count": 1}, {"count": 9}, {"rate_of": 1.0}, {"rate_of": 1}, {"rate_of": 1e-300}, {"kind": "b"}]
)
def test_values_in_range(good: dict[str, Any]) -> None:
    assert check_options(Example(**good)) == []


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("count", 0, ">= 1 and <= 9"),
        ("count", 10, ">= 1 and <= 9"),
        ("count", 2.0, "an integer"),
        ("count", True, "an integer"),
        ("count", "3", "an integer"),
        ("count", None, "an integer"),
        ("rate_of", 0.0, "> 0 and <= 1"),
        ("rate_of", 1.0000001, "> 0 and <= 1"),
        ("rate_of", math.nan, "a finite number"),
        ("rate_of", math.inf, "a finite number"),
        ("rate_of", False, "a finite number"),
        ("kind", "c", "'a', 'b'"),
        ("kind", 1, "'a', 'b'"),
    ],
)
def test_values_out_of_range_are_named_with_what_is_allowed(key: str, value: object, allowed: str) -> None:
    (text,) = check_options(Example(**{key: value}), prefix="table.")  # type: ignore[arg-type]
    assert text.startswith(f"table.{key.replace('_', '-')} = {value!r}: ")
    assert allowed in text


def test_a_plain_default_is_an_option_too_and_a_constant_is_none() -> None:
    @dataclass
    class Own(Example):
        steps: int = 3
        slow: bool = False
        name: ClassVar[str] = "own"

    assert [*Own.declared] == ["count", "rate-of", "kind", "steps", "slow"]
    assert check_options(Own()) == []
    assert [text.partition(" ")[0] for text in check_options(Own(steps=2.5, slow=0))] == ["steps", "slow"]  # type: ignore[arg-type]


def test_everything_wrong_is_listed_at_once() -> None:
    with pytest.raises(StrategyError) as error:
        Codasca(lr=-1.0, gamma=math.nan, local_steps=0, weighting="none", fraction=2.0)
    lines = str(error.value).splitlines()
    assert len(lines) == 5
    for key in ("lr", "gamma", "local-steps", "weighting", "fraction"):
        assert sum(line.startswith(f"{key} = ") for line in lines) == 1


def test_every_algorithm_checks_all_its_fields_those_that_it_inherits_too() -> None:
    for algorithm in ALGORITHMS.values():
        keys = [f.name.replace("_", "-") for f in fields(algorithm)]
        with pytest.raises(StrategyError) as error:
            algorithm(**dict.fromkeys((f.name for f in fields(algorithm)), None))  # type: ignore[arg-type]
        assert [line.partition(" = None: ")[0] for line in str(error.value).splitlines()] == keys


@pytest.mark.parametrize(("owner", "name", "field"), FIELDS, ids=[f"{o.__name__}-{key}" for o, key, _ in FIELDS])
def test_every_option_is_checked_and_documented(owner: type, name: str, field: FieldInfo) -> None:
    """Of algorithms and of problems, whose messages name the table."""
    assert field.description
    assert isinstance(field.default, str) or field.annotation is type(field.default)
    of_problem = issubclass(owner, Problem)
    build: Any = partial(owner, Setting()) if of_problem else owner
    error = ProblemError if of_problem else StrategyError
    key = (f"{owner.name}." if of_problem else "") + name  # type: ignore[attr-defined]
    for wrong in (math.nan, "nonsense", None):
        with pytest.raises(error, check=has(key=key)):
            build(**{name.replace("-", "_"): wrong})
    if isinstance(field.default, float | int) and not isinstance(field.default, bool):
        bounds = {
            end: getattr(each, end) for each in field.metadata for end in ("ge", "gt", "le") if hasattr(each, end)
        }
        low = max(bounds.get("ge", -1), bounds.get("gt", -1))
        assert low <= field.default <= bounds.get("le", math.inf)
        assert low >= 0, "nothing here can be negative"
        with pytest.raises(error, check=has("-1", key=key)):
            build(**{name.replace("-", "_"): -1})


def test_own_fields_are_what_only_this_algorithm_has() -> None:
    assert set(SHARED) == {f.name.replace("_", "-") for f in fields(FederatedStrategy)}
    for algorithm in ALGORITHMS.values():
        own, built = own_options(algorithm), algorithm()
        assert not set(own) & set(SHARED)
        assert any(key.startswith("lr") for key in own)
        assert all(getattr(built, key.replace("-", "_")) == f.default for key, f in own.items())


def test_own_fields_by_algorithm() -> None:
    sgd = {"momentum", "weight-decay", "clip"}
    assert set(own_options(LocalSGDA)) == {"lr", "lr-dual"} | sgd
    assert set(own_options(CodaPlus)) == {"lr", "gamma"} | sgd
    assert set(own_options(Codasca)) == {"lr", "server-lr", "gamma"} | sgd


def test_an_algorithm_is_a_value() -> None:
    assert FedAvg(lr=0.2) == FedAvg(lr=0.2) != FedAvg(lr=0.3)
    with pytest.raises(FrozenInstanceError):
        FedAvg().lr = 1.0  # type: ignore[misc]
