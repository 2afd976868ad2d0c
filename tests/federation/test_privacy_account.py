"""The privacy account: against hand calculations, dp-accounting and figures of opacus."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from edelweiss.federation.privacy_account import (
    ORDERS,
    SENSITIVITY,
    Query,
    best_guess,
    epsilon,
    noise_for,
    spent,
    tight_epsilon,
)
from tests.said import has

# opacus 1.6.0, RDPAccountant.get_epsilon: (sigma, q, steps, delta), epsilon.
OPACUS = [
    ((1.0, 64 / 2000, 400, 1 / 20000), 4.170072),
    ((1.5, 0.08, 400, 1e-5), 6.235093),
    ((4.0, 0.32, 400, 1e-5), 8.454647),
    ((8.0, 0.5, 200, 1e-4), 3.654765),
    ((0.8, 0.01, 2000, 1e-5), 4.860859),
]
RATES = st.floats(1e-4, 1.0)
NOISES = st.floats(0.5, 50.0)


def event(query: Query, noise: float) -> dp_accounting.DpEvent:
    inner = dp_accounting.GaussianDpEvent(noise / SENSITIVITY / math.sqrt(query.gradients))
    return inner if query.rate == 1 else dp_accounting.PoissonSampledDpEvent(query.rate, inner)


def test_one_event_by_hand() -> None:
    noise = 2.0 * SENSITIVITY  # so that the multiplier is 2
    assert spent({Query(1.0): 1}, noise) == pytest.approx(ORDERS / 8)
    q = 0.1
    third = (1 - q) ** 3 + 3 * (1 - q) ** 2 * q + 3 * (1 - q) * q**2 * math.exp(1 / 4) + q**3 * math.exp(3 / 4)
    assert spent({Query(q): 1}, noise)[0] == pytest.approx(math.log(third) / 2, rel=1e-12)
    assert spent({Query(q, 4): 1}, noise) == pytest.approx(spent({Query(q): 1}, noise / 2))


@settings(max_examples=12, deadline=None)
@given(RATES, NOISES, st.integers(1, 3))
def test_the_curve_is_that_of_dp_accounting(rate: float, noise: float, gradients: int) -> None:
    query = Query(rate, gradients)
    accountant = RdpAccountant(ORDERS.tolist(), dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(event(query, noise), 7)
    assert spent({query: 7}, noise) == pytest.approx(accountant.rdp, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("job", "theirs"), OPACUS)
def test_epsilon_is_above_that_of_opacus_by_what_a_filter_costs_and_above_the_tight_one(
    job: tuple[float, float, int, float], theirs: float
) -> None:
    noise, rate, steps, delta = job
    queries = {Query(rate): steps}
    ours = epsilon(spent(queries, noise * SENSITIVITY), delta)
    assert theirs < ours < 1.2 * theirs
    assert tight_epsilon(queries, noise * SENSITIVITY, delta) < theirs


def test_three_accounts_of_one_run() -> None:
    """400 steps of 64 out of 2,000 patients: by RDP as opacus has it, by PLD, and by a conversion that is proved."""
    queries, delta = {Query(64 / 2000): 400}, 1 / 20000
    assert OPACUS[0][1] == pytest.approx(4.17, abs=5e-3)
    assert tight_epsilon(queries, SENSITIVITY, delta) == pytest.approx(3.68, abs=5e-3)
    assert epsilon(spent(queries, SENSITIVITY), delta) == pytest.approx(4.73, abs=5e-3)


@pytest.mark.parametrize(("job", "theirs"), OPACUS)
def test_dp_accounting_with_its_own_orders_agrees_with_opacus(
    job: tuple[float, float, int, float], theirs: float
) -> None:
    noise, rate, steps, delta = job
    orders = [1 + x / 10 for x in range(15, 100)] + list(range(12, 64))
    accountant = RdpAccountant(orders, dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(event(Query(rate), noise * SENSITIVITY), steps)
    assert accountant.get_epsilon(delta) == pytest.approx(theirs, rel=1e-2)


def test_the_conversion_is_proved_for_these_orders() -> None:
    """What the proof needs: for each order the bound on the hockey stick holds, and the shares add up to 1."""
    loss = np.linspace(-2, 2, 1001)
    shares = (1 / ORDERS) * (1 - 1 / ORDERS) ** (ORDERS - 1)
    for order, share in zip(ORDERS, shares, strict=True):
        assert np.all(1 - np.exp(-loss) <= share * np.exp((order - 1) * loss) * (1 + 1e-12))
    curve, delta = spent({Query(0.05): 100}, 1.5), 1e-5
    found = epsilon(curve, delta)
    each = delta / shares.sum() * shares  # each order's part of δ, if the filter stopped at it
    assert each.sum() <= delta * (1 + 1e-12)
    assert found == min(curve + np.log(shares.sum() / delta) / (ORDERS - 1))


@settings(max_examples=10, deadline=None)
@given(st.floats(0.3, 12.0), st.floats(0.001, 0.5), st.integers(1, 2000))
def test_noise_for_a_target_costs_at_most_that_and_little_less(target: float, rate: float, steps: int) -> None:
    queries = {Query(rate): steps, Query(1.0): 1}
    noise = noise_for(queries, target, 1e-5)
    assert epsilon(spent(queries, noise), 1e-5) <= target
    assert noise <= 1.01e-2 or epsilon(spent(queries, noise * 0.99), 1e-5) > target


def test_a_budget_that_is_spent_leaves_no_noise_that_fits() -> None:
    before = spent({Query(1.0): 10}, 5.0)
    least = epsilon(before, 1e-5)
    with pytest.raises(ValueError, check=has("epsilon", f"{least * 0.9:g}")):
        noise_for({Query(0.1): 10}, least * 0.9, 1e-5, before)
    more = noise_for({Query(0.1): 10}, least * 1.5, 1e-5, before)
    assert more > noise_for({Query(0.1): 10}, least * 1.5, 1e-5)


def test_nothing_costs_nothing() -> None:
    assert epsilon(spent({}, 1.0), 1e-5) == 0.0


def test_more_noise_fewer_queries_and_smaller_samples_cost_less() -> None:
    cost = [
        epsilon(spent({Query(q, m): t}, s), 1e-5)
        for q, m, t, s in [(0.1, 1, 100, 1), (0.1, 1, 100, 2), (0.1, 1, 50, 1), (0.05, 1, 100, 1), (0.1, 2, 100, 1)]
    ]
    assert cost[4] > cost[0] > max(cost[1:4])


def test_the_best_guess_is_that_of_a_likelihood_ratio() -> None:
    """For one Gaussian answer the best test is known: Φ(1 / 2σ) of guesses are right. Sampled, fewer are."""
    right = (1 + math.erf(SENSITIVITY / (2 * 1.5) / math.sqrt(2))) / 2
    assert best_guess({Query(1.0): 1}, 1.5) == pytest.approx(right, abs=1e-3)
    assert best_guess({Query(0.1): 1}, 1.5) == pytest.approx(0.5 + 0.1 * (right - 0.5), abs=1e-3)
    assert best_guess({Query(1.0): 4}, 1.5) == pytest.approx(best_guess({Query(1.0, 4): 1}, 1.5), abs=2e-3)


@pytest.mark.parametrize("patients", [200, 2000, 6000])
@pytest.mark.parametrize("budget", [8.0, 3.0, 1.0])
def test_what_the_filter_costs_is_bounded_and_an_order_of_two_would_only_add_to_it(
    patients: int, budget: float
) -> None:
    """Beside dp-accounting's own conversion, for a single run, of the same divergences at more orders."""
    queries, delta = {Query(min(1.0, 64 / patients)): 400}, 1e-5
    noise = noise_for(queries, budget, delta)
    theirs = RdpAccountant(
        [2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64], dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    )
    [(query, count)] = queries.items()
    theirs.compose(event(query, noise), count)
    assert theirs.get_epsilon(delta) < budget < 1.26 * theirs.get_epsilon(delta)
    two = (1 / 2) * (1 - 1 / 2)
    with_two = math.log(float(np.sum((1 / ORDERS) * (1 - 1 / ORDERS) ** (ORDERS - 1))) + two) - math.log(delta)
    assert theirs.rdp[0] + with_two > budget  # at order 2
    assert min(spent(queries, noise) + with_two / (ORDERS - 1)) > budget - 1e-3
