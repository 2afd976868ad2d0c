"""What a site adds to the sums over all sites, in a run with secure aggregation; see `federation.sums`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edelweiss.client_app.errors import RefusedError
from edelweiss.client_app.policy.suppression import patients
from edelweiss.client_app.request import EvaluateRequest, SumsRequest, TrainRequest
from edelweiss.datasets import Facts
from edelweiss.evidence.noised import FIXED
from edelweiss.evidence.reported import record_names
from edelweiss.federation import BadReplyError
from edelweiss.federation.messages import OutgoingReply
from edelweiss.federation.summed import (
    evaluation_layout,
    facts_layout,
    of_facts,
    training_layout,
)
from edelweiss.federation.sums import MOST_WEIGHT, of_evaluation
from edelweiss.problems import PROBLEMS
from edelweiss.problems.metrics import metric

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edelweiss.client_app.request import Request
    from edelweiss.client_app.site import OpenSite, SiteInRun
    from edelweiss.evidence.noised import Noised
    from edelweiss.federation.messages import Cost
    from edelweiss.federation.sums import Layout, Values
    from edelweiss.problems import Arrays, Metrics


def in_the_open(facts: Facts) -> Facts:
    """Return the facts that a site tells by itself: its name, and the form of its inputs."""
    return Facts(
        name=facts.name,
        partition_id=facts.partition_id,
        classes=facts.classes,
        shape=facts.shape,
        columns=facts.columns,
    )


def layout_of(request: Request | SumsRequest, site: OpenSite) -> Layout:
    """Return what is summed in the answers to a request."""
    run = site.run
    if isinstance(request, SumsRequest):
        return facts_layout(run.sites, PROBLEMS[run.problem], request.classes, len(run.several))
    here, sites = site.in_run(request), request.context.sites
    if isinstance(request, EvaluateRequest):
        names = record_names(run.several or ("",)).values() if site.gives_noised else ()
        return evaluation_layout(sites, {} if run.private else here.example, [*names])
    assert isinstance(request, TrainRequest), "the only other one about a model"
    shapes = here.messages.summed(request.context, buffers=here.averages_statistics)
    example = here.example if request.evaluate and not run.private else None
    return training_layout(sites, shapes, run.most_weight, example)


def of_site(request: SumsRequest, site: OpenSite, facts: Facts) -> OutgoingReply:
    """Return what a site's facts add to those of all."""
    if request.classes < facts.classes:
        raise RefusedError(f"classes = {request.classes}: there are {facts.classes} here")
    problem, labels, weight = PROBLEMS[site.run.problem], len(site.run.several), weight_of(site, facts)
    return _encoded(layout_of(request, site), of_facts(facts, weight, problem, request.classes, labels))


def of_update(request: TrainRequest, here: SiteInRun, arrays: Arrays, metrics: Metrics, cost: Cost) -> OutgoingReply:
    """Return what an update adds: its vectors with the site's weight, its cost, and its evaluation."""
    weight = here.weight
    values: dict[str, tuple[Any, float]] = {
        f"vector {name}": (vector.detach().cpu().numpy(), weight) for name, vector in arrays.items()
    }
    values |= {"weight": (weight, 1.0), "gradients": (cost.gradients, 1.0), "samples": (cost.samples, 1.0)}
    if request.evaluate and not here.site.run.private:
        values |= _of_evaluation(here, metrics)
    return _encoded(layout_of(request, here.site), values)


def of_model(
    request: EvaluateRequest, here: SiteInRun, metrics: Metrics, noised: Mapping[str, Noised | None]
) -> OutgoingReply:
    """Return what the evaluation of the final model adds."""
    data, values = here.site.data(), {}
    if not here.site.run.private:
        values = _of_evaluation(here, metrics)
    for name, one in noised.items():
        for kind in ("positives", "negatives"):
            values[f"{kind} {name}"] = (np.zeros(len(FIXED) + 1), 1.0) if one is None else (getattr(one, kind), 1.0)
    held_out = patients(data, data.held_out) if data is not None and metrics and here.site.guarded else 0
    values["patients"] = (held_out or metrics.get("n", 0), 1.0)
    return _encoded(layout_of(request, here.site), values)


def weight_of(site: OpenSite, facts: Facts) -> float:
    """Return the weight of a site in averages.

    Raises
    ------
    RefusedError
        If it has more samples than a sum allows.
    """
    if site.run.strategy.weighting == "uniform" or facts.examples is None:
        return 1.0
    if facts.examples > MOST_WEIGHT:
        raise RefusedError(
            f'weighting = "examples": a site with more than {MOST_WEIGHT:,} samples cannot be weighted in a sum; take '
            'weighting = "uniform"'
        )
    return float(facts.examples)


def _of_evaluation(here: SiteInRun, metrics: Metrics) -> dict[str, tuple[Any, float]]:
    bound = here.site.run.loss_bound
    for name, value in metrics.items():
        if metric(name).diverges and not abs(value) <= bound:  # type: ignore[arg-type]
            raise RefusedError(f"the {name} of the model is beyond loss-bound = {bound:g}: the run diverges")
    return of_evaluation(metrics, here.example)


def _encoded(layout: Layout, values: Values) -> OutgoingReply:
    try:
        return OutgoingReply.summed(layout.encode(values))
    except BadReplyError as error:
        raise RefusedError(f"its answer cannot be summed: {error}") from None
