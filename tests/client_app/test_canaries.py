"""Audits of the privacy account: canaries in one run, and one patient in many; both find what is broken on purpose."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import canaries, one_patient
from benchmarks.canaries import Contributing
from edelweiss.client_app.privacy import oracle as private_oracle
from edelweiss.client_app.privacy.oracle import Mechanism, Patients, PrivateOracle
from edelweiss.client_app.privacy.randomness import KeyedStream, derived
from edelweiss.federation.privacy_account import Query, best_guess, epsilon, noise_for, spent
from edelweiss.problems.patients import Rows, clipped_sum
from tests.client_app.patients import moved, problem_of, samples_of

CANARIES, GUESSES, EPSILON = 2000, 200, 1.0
FIFTH = ("fedavg", "scaffold", "codasca", "fmgda", "fedgda-gt")  # of others half of the queries stay at the site


@pytest.mark.parametrize("algorithm", canaries.AUDITED)
def test_what_a_run_gives_away_is_less_than_its_account(algorithm: str) -> None:
    found = canaries.run(algorithm, CANARIES, EPSILON)
    assert found.bound(GUESSES) < found.tight < found.epsilon <= EPSILON


@pytest.mark.parametrize("algorithm", FIFTH)
def test_a_fifth_of_the_noise_gives_more_away(algorithm: str) -> None:
    found = canaries.run(algorithm, CANARIES, EPSILON, broken=0.2)
    assert found.bound(GUESSES) > found.epsilon > found.tight


def test_the_bound_by_hand() -> None:
    """Without δ, 100 right guesses of 100 have probability p^100, which is 5 % at p = 0.9705: ε = log(p / (1 - p))."""
    p = 0.05 ** (1 / 100)
    assert canaries.lower_bound(100, 100, 1000, 0.0) == pytest.approx(math.log(p / (1 - p)), abs=2e-3)
    assert canaries.lower_bound(50, 100, 1000, 0.0) == 0
    assert canaries.lower_bound(100, 100, 1000, 1e-4) < canaries.lower_bound(100, 100, 1000, 0.0)


@pytest.mark.parametrize("broken", [False, True])
def test_a_patient_who_is_not_clipped_is_found(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An auditor guesses for each of many answers whether the patient was part of it; the account says ε = 1."""
    if broken:
        monkeypatch.setattr(private_oracle, "clipped_sum", all_but_the_first)
    trials, delta, query = 200, 1e-6, Query(1.0)
    noise = noise_for({query: 1}, EPSILON, delta)
    problem, samples = problem_of("bce"), samples_of(8)
    x, _ = moved(problem, 1)
    coins = np.random.default_rng(0).random(trials) < 0.5
    samples.inputs[0] = 100.0
    everybody = torch.ones(8, dtype=torch.bool)
    answers = []
    for trial, contributes in enumerate(coins):
        everybody[0] = bool(contributes)
        stream = KeyedStream(derived(b"audit", "answer", [str(trial).encode()]))
        mechanism = Mechanism(noise, 1.0, 1.0)
        oracle = PrivateOracle(problem, samples, Contributing(everybody), stream, mechanism, {query: 1}, 8)
        answers.append(oracle.gradient(x)[0].double().numpy())
    direction = PrivateOracle(
        problem, replace(samples, rows=samples.rows[:1]), Patients(1), KeyedStream(bytes(32)), CLEAN, {}, 1
    )
    towards = direction.gradient(x)[0].double().numpy()
    scores = np.array(answers) @ towards
    guesses = scores > np.median(scores)
    bound = canaries.lower_bound(int((guesses == coins).sum()), trials, trials, delta)
    claimed = epsilon(spent({query: 1}, noise), delta)
    assert claimed == pytest.approx(EPSILON, abs=1e-3)
    assert (bound > claimed) == broken


CLEAN = Mechanism(noise=0.0, clip=math.inf, difference_clip=math.inf)


def all_but_the_first(problem: Any, samples: Any, rows: Rows, terms: Any, clip: float) -> torch.Tensor:
    """Return the clipped sum, but for the first patient, who is not clipped."""
    first = rows.positions == 0
    parts = [
        clipped_sum(problem, samples, Rows(rows.positions[own]), terms, c)
        for own, c in ((first, math.inf), (~first, clip))
    ]
    return parts[0] + parts[1]


# ---------------------------------------------------------------------- one patient, in or out


@pytest.mark.parametrize(("target", "broken"), [(8.0, 1.0), (3.0, 1.0), (1.0, 1.0), (3.0, 0.2)])
def test_a_guess_whether_a_patient_took_part_is_right_no_oftener_than_the_account_says(
    target: float, broken: float
) -> None:
    """The threshold is fixed beforehand: half of what a patient moves the answers by, whose batches nobody knows."""
    trials, steps, rate, delta = 200, 2, 0.5, 1e-5
    queries = {Query(rate): steps}
    noise = noise_for(queries, target, delta)
    coins = np.random.default_rng(1).random(trials) < 0.5
    problem, samples = problem_of("bce", "linear"), samples_of(8)
    samples.inputs.zero_()
    samples.inputs[0, 2] = 1e6
    everybody = torch.ones(8, dtype=torch.bool)
    x = torch.zeros(7)
    moves = []
    for trial, coin in enumerate(coins.tolist()):
        stream = KeyedStream(derived(b"members", "answer", [str(trial).encode()]))
        mechanism = Mechanism(broken * noise, 1.0, 1.0)
        everybody[0] = coin
        oracle = PrivateOracle(problem, samples, Contributing(everybody), stream, mechanism, queries, round(8 * rate))
        moves.append(sum(float(oracle.gradient(x)[0][2]) for _ in range(steps)))
    guesses = np.array(moves) * 8 * rate * (1 - 2 * int(samples.labels[0])) > steps * rate / 2
    right = float((guesses == coins).mean())
    chance = 3 * math.sqrt(0.25 / trials)
    most = best_guess(queries, noise)
    if broken == 1:
        assert most - 0.12 < right < most + chance
    else:
        assert right > most + chance


def test_the_worst_guess_about_one_patient_is_better_than_none_and_worse_with_less_epsilon() -> None:
    errors = [one_patient.error(target, 4, 1e-3, 5000) for target in (8.0, 3.0, 1.0)]
    assert 0.5 < errors[0] < errors[1] - 0.05 < errors[2] < 1
    assert one_patient.error(8.0, 100, 1e-3, 5000) > errors[0] + 0.1
