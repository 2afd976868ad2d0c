"""How large a number may be: said to whoever names a larger one, so it is one that can be remembered."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from edelweiss.client_app.policy.rules import Policy
from edelweiss.config import RunConfig, SiteConfig
from edelweiss.lab.sweep.file import SweepFile

HALF_A_TURN = 180  # degrees


def limits(model: type[BaseModel]) -> Iterator[tuple[str, float]]:
    """Yield the keys of a file, each with the most that it may be."""
    for name, key in model.model_fields.items():
        for limit in key.metadata:
            yield from ((name, getattr(limit, end)) for end in ("le", "lt") if hasattr(limit, end))


def is_round(limit: float) -> bool:
    """Whether it is a power of ten or of two."""
    return limit > 0 and any(float(base) ** round(math.log(limit, base)) == limit for base in (2, 10))


@pytest.mark.parametrize("model", [RunConfig, SiteConfig, Policy, SweepFile])
def test_the_limits_of_keys_are_round(model: type[BaseModel]) -> None:
    every = dict(limits(model))
    assert every
    assert [name for name, limit in every.items() if not is_round(limit) and limit != HALF_A_TURN] == []
