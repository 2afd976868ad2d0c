"""Local fine-tuning: a site trains a model that it was given on its own samples, and keeps it."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from typing import TYPE_CHECKING

from edelweiss.client_app.oracle import SiteOracle, stream
from edelweiss.client_app.policy.limits import Limits
from edelweiss.client_app.privacy.randomness import KeyedStream, derived, digest_of
from edelweiss.strategies.local_steps import Descent, existing

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.client_app.request import EvaluateRequest
    from edelweiss.client_app.site import OpenSite
    from edelweiss.config import RunConfig
    from edelweiss.problems import Arrays

log = logging.getLogger("edelweiss")


def trained(
    x: Tensor, y: Tensor | None, oracle: SiteOracle, steps: int, lr: float, lr_dual: float, part: slice
) -> Tensor | None:
    """Take plain steps on a part of x, in place: x ← x - η ∇f; return y after as many of ascent, if there is one."""
    descent = Descent()
    for _ in range(steps):
        y = descent.step(x, y, oracle, lr, lr_dual, part=part)
    return y


def finite(x: Tensor, y: Tensor | None) -> bool:
    """Return whether a model has neither NaN nor infinity."""
    return bool(x.isfinite().all()) and (y is None or bool(y.isfinite().all()))


def own_rate(config: RunConfig, *names: str) -> float:
    """Return the run's step size: the first of these fields that its algorithm has, else 0.1."""
    strategy = config.strategy
    return float(next((getattr(strategy, name) for name in names if hasattr(strategy, name)), 0.1))


def fine_tune_model(request: EvaluateRequest, site: OpenSite, model: Arrays) -> Arrays:
    """Return the run's final model after ``fine-tune`` steps on this site's samples; where they diverge, as it was.

    As `personalise` does for a site that joins later: on the site's own objective, y being its own, with the run's
    sampler and batch size. The network has the batch-norm statistics of the model that is returned.
    """
    run, here = site.run, site.in_run(request)
    problem, (train, _) = here.problem, here.samples
    assert train is not None, "the run-config refuses problems without data"
    own, statistics = problem.of_site(train.targets()), problem.buffers()
    part = slice(problem.head, None) if run.fine_tune_part == "head" else slice(None)  # type: ignore[attr-defined]
    lr = run.fine_tune_lr or own_rate(run, "lr", "lr_head")
    lr_dual = run.fine_tune_lr or own_rate(run, "lr_dual", "lr")
    x, limits = model["x"].clone(), Limits.of(site, time.monotonic())
    random = stream(run.seed, request.site, run.rounds + 1, 0)
    if site.guarded:  # the coordinator knows the seed, and must not know whom a batch holds
        asked = [site.data_hash().encode(), digest_of(model)]
        random = KeyedStream(derived(site.records.secret, "fine-tuning", asked)).generator("batches")
    with closing(SiteOracle.open(run, own, train, random, here.fresh, problem, limits)) as oracle:
        y = trained(x, model.get("y"), oracle, run.fine_tune, lr, lr_dual, part)
    if finite(x, y):
        return existing(x=x, y=y)
    log.warning("fine-tuning diverges, so this site keeps the common model: lower fine-tune-lr, here %g", lr)
    if statistics.numel():
        problem.load_buffers(statistics)
    return dict(model)
