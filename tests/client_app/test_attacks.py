"""Attacks by a coordinator recover patients from a site without differential privacy, and nobody from one with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from edelweiss.federation.wire import unpack
from tests.client_app.attacker import (
    Floats,
    Target,
    averages,
    bisection,
    differences,
    known_batches,
    no_better_than_marginals,
    recovered,
    trap,
)
from tests.server_app.sites import FEATURES

if TYPE_CHECKING:
    from edelweiss.common import Value

Attack = Callable[[Target], Floats]

ATTACKS: dict[str, tuple[Attack, int, int]] = {  # with the patients of the site, and how many are recovered at least
    "trap weights": (trap, 60, 40),
    "differences of models": (differences, 60, 20),
    "averages over runs": (averages, 60, 25),
    "batches of a known seed": (known_batches, 60, 40),
    "last step by weight decay": (partial(known_batches, steps=4), 60, 40),
    "evaluations": (bisection, 200, 2),
}
"""Each with nothing but messages that pass all checks of a hospital with the default rules."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.usefixtures("public_batches")
def test_a_site_without_differential_privacy_gives_patients_away(name: str, tmp_path: Path) -> None:
    attack, rows, least = ATTACKS[name]
    target = Target(tmp_path, rows=rows)
    assert recovered(attack(target), target.features) >= least


@pytest.mark.parametrize("name", ATTACKS)
def test_one_with_it_gives_nobody_away(name: str, tmp_path: Path) -> None:
    attack, rows, _ = ATTACKS[name]
    target = Target(tmp_path, private=True, rows=rows)
    guesses = attack(target)
    assert recovered(guesses, target.features) == 0
    assert no_better_than_marginals(guesses, target.features)


@pytest.mark.parametrize("steps", [1, 4])
def test_batches_that_follow_from_the_sites_secret_cannot_be_solved_for_by_the_seed(steps: int, tmp_path: Path) -> None:
    """That stops these two attacks without differential privacy, and no other."""
    target = Target(tmp_path)
    guesses = known_batches(target, steps=steps)
    assert recovered(guesses, target.features) == 0
    assert no_better_than_marginals(guesses, target.features)
    assert recovered(trap(target), target.features) >= 40


def test_the_number_of_sites_is_part_of_the_question(tmp_path: Path) -> None:
    """FMGDA's steps and weights follow from it: with the same noise a difference of two answers would have none."""
    target, found = Target(tmp_path, private=True, privacy={"epsilon": 40.0, "delta": 1e-3}), []
    keys: dict[str, Value] = {"fmgda.schedule": "cube-root", "fmgda.schedule-c": 0.01, "fmgda.schedule-c-dual": 0.01}
    for sites in (1, 2):
        with target.run(sites=2, algorithm="fmgda", problem="auc", local_steps=2, rounds=2, **keys) as run:
            answer = run.ask("train", torch.zeros(FEATURES + 3), sites=sites)
        found.append(unpack(answer.array_records["arrays"])["u"])
    assert torch.linalg.vector_norm(found[0] - found[1]) > 0.3 * torch.linalg.vector_norm(found[0])


def test_what_runs_may_be_averaged_over_ends_with_the_budget(tmp_path: Path) -> None:
    target = Target(tmp_path, private=True)
    averages(target)
    assert 1 < target.answered < 10
    with target.run() as run:
        assert run.ask("train", torch.zeros(FEATURES + 1)) is None
    assert "privacy budget" in run.refusals[0]
