"""Names of plug-ins: two that differ in what they were given or enclose have two names, in each process the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from edelweiss.common import PlugInError
from edelweiss.common.identity import name_of
from edelweiss.lab.submission import REPO

HERE = __name__


class Net(nn.Sequential):
    def __init__(self, width: int, shape: tuple[int, ...] = (3,), outputs: int = 1) -> None:
        super().__init__(nn.Flatten(), nn.Linear(shape[0], width), nn.Linear(width, outputs))


def enclosing(value: Any) -> Callable[[], Any]:
    return lambda: value


def local_class(width: int, bias: bool = True) -> type:
    class Local(nn.Module):
        hidden = width

        def build(self) -> nn.Module:
            return nn.Linear(width, 1, bias=bias)

    return Local


def of_itself(depth: int) -> Callable[[int], int]:
    def down(n: int) -> int:
        return down(n - 1) if n else depth

    return down


THINGS: list[Callable[[], Any]] = [
    lambda: Net,
    lambda: partial(Net, 2),
    lambda: partial(Net, 3),
    lambda: partial(Net, -3),
    lambda: partial(Net, 3.0),
    lambda: partial(Net, "3"),
    lambda: partial(Net, width=3),
    lambda: partial(Net, 3, outputs=4),
    lambda: partial(Net, *range(100)),
    lambda: partial(Net, *range(101)),
    lambda: partial(local_class, 2),
    lambda: partial(Net, local_class(2)),
    lambda: partial(Net, local_class(3)),
    lambda: partial(Net, width=partial(Net, 3)),
    lambda: partial(Net, width=partial(Net, 4)),
    *[
        partial(enclosing, value)
        for value in (
            2,
            2.0,
            True,
            None,
            "a",
            b"a",
            (1, 2),
            [1, 2],
            {"x", "y", "z"},
            {"x", "y"},
            {"a": 1},
            {"a": 2},
            np.arange(3),
            np.arange(3.0),
            np.arange(3)[::-1],
            torch.arange(3),
            torch.zeros(3),
            torch,
            np,
            Net,
            nn.Linear,
            pd.DataFrame({"a": [1, 2]}),
            pd.DataFrame({"a": [1, 3]}),
            Path("a"),
            {"deep": [partial(Net, 5)]},
            {"deep": [partial(Net, 6)]},
        )
    ],
    lambda: local_class(2),
    lambda: local_class(3),
    lambda: local_class(2, False),
    lambda: of_itself(2),
    lambda: of_itself(3),
    lambda: lambda x: x + 1,
    lambda: lambda x: x + 2,
    lambda: lambda x: x - 1,
    lambda: lambda x=1: x,
    lambda: lambda x=2: x,
    lambda: lambda *, x=2: x,
    lambda: lambda: [2 * y for y in range(3)],
    lambda: lambda: [2 * y for y in range(4)],
]


def names() -> list[str]:
    return [name_of(make()) for make in THINGS]


def test_each_has_a_name_of_its_own() -> None:
    found = names()
    assert len(set(found)) == len(found), [name for name in found if found.count(name) > 1]


@pytest.mark.slow
def test_names_are_the_same_in_each_process() -> None:
    """Where hashes of texts differ, and so the order of sets."""
    code = f"from {HERE} import names; print(*names(), sep=chr(10))"
    for seed in "12":
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(REPO)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == names()


def test_arguments_of_a_partial_can_be_read() -> None:
    assert name_of(partial(Net, 2)) == f"{HERE}:Net(2)"
    assert name_of(partial(partial(Net, 2), outputs=3)) == f"{HERE}:Net(2, outputs=3)"
    assert len(name_of(partial(Net, *range(100)))) < 100


WIDTH = 2


def test_a_number_of_the_module_that_a_lambda_uses_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    make = lambda: WIDTH  # noqa: E731
    before = name_of(make)
    monkeypatch.setattr(sys.modules[HERE], "WIDTH", 3)
    assert name_of(make) != before


def test_what_is_at_the_top_of_a_module_has_its_name_alone() -> None:
    assert (name_of(Net), name_of(names)) == (f"{HERE}:Net", f"{HERE}:names")


@pytest.mark.parametrize("make", [lambda: partial(Net, Lock()), lambda: enclosing(Lock()), lambda: enclosing([Lock()])])
def test_what_cannot_be_told_apart_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(PlugInError):
        name_of(make())
