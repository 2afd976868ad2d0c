"""The privacy account: what a run's noised queries cost, and the noise that a cost allows.

The unit is a patient with all rows, and neighbours differ in whether one patient contributes: n is public. A query is a
Gaussian mechanism over a Poisson sample of the patients (arXiv:1908.10530). Its Rényi divergences add up over queries
that are chosen adaptively, noise and all, as long as what is spent stays within the budget: a filter (arXiv:2103.01379,
arXiv:2008.11193). A budget (ε, δ) is kept as long as what is spent stays within it *at some order* of a fixed grid.

Why that is proved and not only usual: let L be the privacy loss and ρ(α) what was spent, at the end. For each order,
E[exp((α-1)(L - ρ(α)))] ≤ 1, however the queries were chosen. With c(α) = (1/α)(1-1/α)^(α-1),

    max(0, 1 - exp(ε-L)) ≤ c(α) exp((α-1)(L-ε))    for every α.

Where the filter stops, some order has ρ(α) + log(S/δ)/(α-1) ≤ ε, so the right-hand side of that order is at most
(δ/S) c(α) exp((α-1)(L-ρ(α))). Which order it is depends on the answers, so take the sum over all: its expectation, and
so the failure of (ε, δ), is at most (δ/S) Σ c(α) = δ with S = Σ c(α). For a single order this is the usual conversion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dp_accounting.pld import PLDAccountant

ORDERS = np.array([3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256])
"""Orders of the Rényi divergence, fixed for the life of every budget."""

SHARES = float(np.sum((1 / ORDERS) * (1 - 1 / ORDERS) ** (ORDERS - 1)))  # S
SENSITIVITY = 1.001  # of a clipped contribution in float32, as a multiple of the clip
MOST_NOISE = 1e6

Curve = NDArray[np.float64]
"""Rényi divergences, one for each of `ORDERS`; they add up over queries."""


@dataclass(frozen=True, order=True)
class Query:
    """A noised answer about a random sample of the patients.

    Attributes
    ----------
    rate : float
        q: each patient is in the sample with this probability; 1: all of them.
    gradients : float
        m: noised sums over the same sample. With noise σ in each they are one Gaussian mechanism with noise σ/√m; so a
        sum with noise kσ counts 1/k².
    """

    rate: float
    gradients: float = 1


Queries = Mapping[Query, int]
"""How many of each kind."""


def spent(queries: Queries, noise: float) -> Curve:
    """Return the Rényi divergences of queries whose noise has the standard deviation ``noise`` times the clip."""
    return sum(
        (
            count * _curve(query.rate, noise / SENSITIVITY / math.sqrt(query.gradients))
            for query, count in queries.items()
        ),
        np.zeros(len(ORDERS)),
    )


@lru_cache(maxsize=1024)
def _curve(rate: float, noise: float) -> Curve:
    """Return those of one Poisson-sampled Gaussian mechanism, for whole orders (arXiv:1908.10530, section 3.3)."""
    if rate == 1:
        return ORDERS / (2 * noise**2)
    curve = []
    for order in ORDERS.tolist():
        k = np.arange(order + 1)
        chosen = [math.lgamma(order + 1) - math.lgamma(i + 1) - math.lgamma(order - i + 1) for i in k.tolist()]
        terms = np.array(chosen) + (order - k) * math.log1p(-rate) + k * math.log(rate) + (k * k - k) / (2 * noise**2)
        curve.append(np.logaddexp.reduce(terms) / (order - 1))
    return np.maximum(curve, 0.0)


def epsilon(curve: Curve, delta: float) -> float:
    """Return the least ε of a budget (ε, δ) that holds what was spent; 0 for nothing."""
    return float(np.min(curve + math.log(SHARES / delta) / (ORDERS - 1))) if curve.any() else 0.0


def noise_for(queries: Queries, budget: float, delta: float, before: Curve | float = 0.0) -> float:
    """Return the least noise, as a multiple of the clip, with which queries fit into a budget (ε, δ).

    Parameters
    ----------
    queries
        Of a whole run.
    budget, delta
        ε above 0, and δ in (0, 1).
    before
        What else is spent of the budget.

    Raises
    ------
    ValueError
        When no noise is enough: ε is below what δ alone costs, or the rest is spent.
    """

    def fits(noise: float) -> bool:
        return epsilon(before + spent(queries, noise), delta) <= budget

    low, high = 1e-2, MOST_NOISE
    if not fits(high):
        raise ValueError(f"no noise up to {MOST_NOISE:g} times the clip fits into epsilon = {budget:g}")
    while high / low > 1 + 1e-4:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def tight_epsilon(queries: Queries, noise: float, delta: float, count_noise: float = math.inf) -> float:
    """Return ε of these queries by privacy loss distributions: of one run by itself, its noise fixed beforehand.

    It is lower than `epsilon`, and no filter: what several runs cost together does not follow from it. ``count_noise``
    is that of a count beside them, of everybody; infinite: there is none.
    """
    return float(_accountant(tuple(queries.items()), noise, count_noise).get_epsilon(delta))


def best_guess(queries: Queries, noise: float, count_noise: float = math.inf) -> float:
    """Return how often the best guess, of all that sees the answers, tells rightly whether a patient took part.

    Half is a coin's, for a patient who is as likely in as out: (1 + δ(0)) / 2, with δ(0) the total variation between
    the answers with the patient and without, by privacy loss distributions. The parameters are `tight_epsilon`'s.
    """
    return (1 + float(_accountant(tuple(queries.items()), noise, count_noise).get_delta(0.0))) / 2


@lru_cache(maxsize=64)
def _accountant(queries: tuple[tuple[Query, int], ...], noise: float, count_noise: float) -> PLDAccountant:
    """Return the account of queries and of a count, of all of which the noise is fixed."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=1e-3)
    with_counts = [(query, count, noise) for query, count in queries]
    for query, count, own in with_counts + [(Query(1.0), 1, count_noise)] * math.isfinite(count_noise):
        event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(own / SENSITIVITY / math.sqrt(query.gradients))
        if query.rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(query.rate, event)
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, count))
    return accountant
