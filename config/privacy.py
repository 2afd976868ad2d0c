"""The price of a run with differential privacy: what it costs each patient of a site, and the noise that it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edelweiss.common import ConfigError
from edelweiss.config.values import LARGEST_CLIP, SMALLEST_CLIP
from edelweiss.federation.privacy_account import Query, best_guess, epsilon, noise_for, spent, tight_epsilon
from edelweiss.federation.privacy_plan import Plan, plan_of, total
from edelweiss.problems import PROBLEMS

if TYPE_CHECKING:
    from edelweiss.config.run import RunConfig
    from edelweiss.datasets import Facts
    from edelweiss.federation.privacy_account import Curve
    from edelweiss.problems import Problem

LONGEST_SEARCH = 10**4
"""Most gradients of a run for which fewer rounds and smaller batches are looked for: each try plays the run anew."""

COUNT_NOISE = 10.0
"""Standard deviation of the noise of a count of patients, times √L with L labels."""


@dataclass(frozen=True)
class Price:
    """What a run costs each patient of a site with n patients to train on, and the noise that it takes.

    Attributes
    ----------
    plan : Plan
        Its queries.
    noise : float
        σ, as a multiple of the clip.
    counts : Curve
        Rényi divergences of the noised counts.
    """

    plan: Plan
    noise: float
    counts: Curve

    @property
    def curve(self) -> Curve:
        """Rényi divergences of the whole run."""
        return self.counts + spent(total(self.plan), self.noise)

    def tight_epsilon(self, delta: float) -> float:
        """ε of this run by itself, which is lower than what it takes from a budget."""
        return tight_epsilon(total(self.plan), self.noise, delta, COUNT_NOISE)

    @property
    def best_guess(self) -> float:
        """How often the best guess from this run tells rightly whether a patient took part; half is a coin's."""
        return best_guess(total(self.plan), self.noise, COUNT_NOISE)


def counts_cost() -> Curve:
    """Return the Rényi divergences of a site's noised counts."""
    return spent({Query(1.0): 1}, COUNT_NOISE)


def evaluation_noise(run: RunConfig) -> float:
    """Return the noise of a count of held-out patients: the least with which the final evaluation costs dp.epsilon.

    Nobody who is held out is trained on, so the evaluation has the whole of it, which several labels share.
    """
    return noise_for({Query(1.0): 1}, run.dp_epsilon, run.dp_delta) * math.sqrt(max(1, len(run.several)))


def evaluation_cost(run: RunConfig) -> Curve:
    """Return the Rényi divergences of the final evaluation, of all labels."""
    return spent({Query(1.0): max(1, len(run.several))}, evaluation_noise(run))


def queries_of(run: RunConfig, sites: int, patients: int) -> Plan:
    """Return what a run asks of a site with so many patients to train on."""
    return _plan(run, sites, patients, run.rounds, run.batch_size)


def _plan(run: RunConfig, sites: int, patients: int, rounds: int, batch_size: int) -> Plan:
    minimax = PROBLEMS[run.problem].kind == "minimax"
    return plan_of(run.strategy.without_files(), rounds, sites, patients, batch_size, minimax)


def price(run: RunConfig, sites: int, patients: int, plan: Plan | None = None) -> Price:
    """Return the price of a run for a site, whose noise is the least with which it costs dp.epsilon.

    ``plan`` is the run's where it is known: it depends neither on dp.epsilon nor on the evidence.

    Raises
    ------
    ConfigError
        When no noise is enough, or dp.delta is too large for so few patients.
    """
    if run.dp_delta * patients >= 1:
        raise ConfigError(
            "run-config",
            [
                f"dp.delta = {run.dp_delta:g}: with {patients} patients it must be below {1 / patients:.1g}, or the "
                "whole record of a patient might be sent"
            ],
        )
    plan, counts = queries_of(run, sites, patients) if plan is None else plan, counts_cost()
    try:
        noise = noise_for(total(plan), run.dp_epsilon, run.dp_delta, counts)
    except ValueError:
        least = epsilon(counts, run.dp_delta)
        raise ConfigError(
            "run-config",
            [
                f"dp.epsilon = {run.dp_epsilon:g}: the noised counts alone cost {least:.2f} with dp.delta = "
                f"{run.dp_delta:g}: raise one of them"
            ],
        ) from None
    return Price(plan, noise, counts)


@dataclass(frozen=True)
class Fit:
    """What fits into the rest of a budget: a run of a lower ε, and what keeps its noise as low as it was meant to be.

    Attributes
    ----------
    epsilon : float
        The highest dp.epsilon, rounded down to two digits; 0 if there is none.
    noise : float
        The run's noise with it, as a multiple of the clip.
    rounds, batch_size : int
        The most that have no more noise than the run as it was meant, all else equal; 0 if there are none.
    """

    epsilon: float = 0.0
    noise: float = math.inf
    rounds: int = 0
    batch_size: int = 0


def what_fits(run: RunConfig, sites: int, patients: int, plan: Plan, fits: Callable[[RunConfig], bool]) -> Fit:
    """Return what fits of a run that does not; of one of more than `LONGEST_SEARCH` gradients only the ε.

    Parameters
    ----------
    run, sites, patients, plan
        As in `price`.
    fits
        Whether a run, which differs in dp.epsilon alone, fits into what is left.
    """
    low, high, best = 0.0, run.dp_epsilon, 0.0
    for _ in range(10):
        middle = _two_digits((low + high) / 2)
        try:
            fitting = fits(_with_epsilon(run, middle))
        except ConfigError:  # no noise is enough for so little
            low = max(low, middle)
            continue
        low, high, best = (middle, high, max(best, middle)) if fitting else (low, middle, best)
    if not best:
        return Fit()
    meant, cheaper = (price(each, sites, patients, plan) for each in (run, _with_epsilon(run, best)))
    if sum(query.gradients * count for query, count in total(plan).items()) > LONGEST_SEARCH:
        return Fit(best, cheaper.noise)

    def as_quiet(rounds: int, batch_size: int) -> bool:
        queries = total(_plan(run, sites, patients, rounds, batch_size))
        return epsilon(meant.counts + spent(queries, meant.noise), run.dp_delta) <= best

    rounds = _most(run.rounds, lambda rounds: as_quiet(rounds, run.batch_size))
    try:
        size = _most(min(run.batch_size, patients), lambda size: as_quiet(run.rounds, size))
    except ConfigError:  # an epoch of smaller batches takes more gradients than a run may; none so far was as quiet
        size = 0
    return Fit(best, cheaper.noise, rounds, size)


def _with_epsilon(run: RunConfig, value: float) -> RunConfig:
    return run.model_copy(update={"dp_epsilon": value})


def _two_digits(value: float) -> float:
    """Return a number above 0, rounded down to two significant digits."""
    digits = 1 - math.floor(math.log10(value))
    return float(f"{math.floor(value * 10**digits) / 10**digits:.2g}")


def _most(below: int, fits: Callable[[int], bool]) -> int:
    """Return the largest whole number below one that fits, where all smaller ones do; 0 if none does."""
    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def require_private(problem: Problem) -> None:
    """Check that patients' gradients can be told apart; ConfigError says why not."""
    from edelweiss.problems.patients import refusal  # torch.func is slow to import

    if text := refusal(problem):
        raise ConfigError("run-config", [f"dp.epsilon: {text}"])


def clips(run: RunConfig, problem: Problem) -> tuple[float, float]:
    """Return the largest norm of a patient's gradient, and of a patient's difference of two."""
    clip = run.dp_clip or min(max(problem.usual_clip, SMALLEST_CLIP), LARGEST_CLIP)
    return clip, run.dp_difference_clip or clip


def promise(run: RunConfig, problem: Problem) -> dict[str, Any]:
    """Return what a run promises to each patient, for its record."""
    clip, difference_clip = clips(run, problem)
    return {
        "epsilon": run.dp_epsilon,
        "delta": run.dp_delta,
        "clip": clip,
        "difference-clip": difference_clip,
        "count-noise": COUNT_NOISE,
    }


def record(run: RunConfig, facts: Mapping[str, Facts], problem: Problem) -> dict[str, Any]:
    """Return what a run's record says of its privacy: what it promises, and each site's noise and tight ε."""
    sites = {}
    for name, one in facts.items():
        cost = price(run, len(facts), one.examples or 0)
        sites[name] = {
            "patients": one.examples,
            "noise": round(cost.noise, 4),
            "epsilon": round(epsilon(cost.curve, run.dp_delta), 4),
            "tight-epsilon": round(cost.tight_epsilon(run.dp_delta), 4),
        }
    return promise(run, problem) | {"sites": sites}
