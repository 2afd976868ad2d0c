"""Clients stay within the feasible set of y, at each of their steps: outside it an objective may mean nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from edelweiss.federation import Differences
from edelweiss.strategies import ALGORITHMS
from tests.strategies.closed_form import build, objective
from tests.strategies.halves import drive

SITES, WIDTH = 4, 1e-4
MINIMAX = [name for name, algorithm in ALGORITHMS.items() if "minimax" in algorithm.solves]


class Boxed(Differences):
    """An oracle whose y must lie within `WIDTH` of zero; notes the largest entry of each that a gradient is asked at.

    Attributes
    ----------
    held : list of bool
        Of each projection, whether it changed anything.
    """

    def __init__(self, oracle: Any, asked: list[float], held: list[bool]) -> None:
        self.oracle, self.asked, self.held = oracle, asked, held

    def __getattr__(self, name: str) -> Any:
        return getattr(self.oracle, name)

    def gradient(self, x: Tensor, y: Tensor, batch: None = None) -> tuple[Tensor, Tensor]:
        self.asked.append(y.abs().max().item())
        gradients: tuple[Tensor, Tensor] = self.oracle.gradient(x, y, batch)
        return gradients

    def full_gradient(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.gradient(x, y)

    def project(self, y: Tensor) -> Tensor:
        inside = y.clamp(-WIDTH, WIDTH)
        self.held.append(not torch.equal(inside, y))
        return inside


@pytest.mark.parametrize("name", MINIMAX)
def test_no_client_asks_for_a_gradient_outside_it(name: str) -> None:
    start, oracles, _ = objective(ALGORITHMS[name], SITES)
    start["y"].zero_()
    asked: list[float] = []
    held: list[bool] = []
    boxed: Any = lambda site, server_round: Boxed(oracles(site, server_round), asked, held)  # noqa: E731
    drive(build(name, local_steps=1 if name == "npa" else 3), start, boxed, 4, SITES)
    assert any(held), "steps would have left it"
    assert max(asked) <= WIDTH
