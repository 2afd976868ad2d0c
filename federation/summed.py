"""Secure aggregation at the coordinator: an exchange with all sites yields one reply, as if they were one site."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edelweiss.datasets import Facts
from edelweiss.evidence import Reported
from edelweiss.evidence.design import Design
from edelweiss.evidence.noised import FIXED, Noised
from edelweiss.evidence.reported import record_names
from edelweiss.federation.errors import RunError
from edelweiss.federation.messages import Cost, EvaluateReply, TrainReply
from edelweiss.federation.sites import Site
from edelweiss.federation.sums import (
    MOST_WEIGHT,
    Layout,
    Part,
    SumError,
    evaluation,
    metrics_of,
    vectors,
)
from edelweiss.problems.metrics import by_label

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from flwr.app import Message
    from numpy.typing import NDArray

    from edelweiss.federation.exchange import Exchange
    from edelweiss.federation.run_messages import RunMessages
    from edelweiss.federation.schema import Shapes
    from edelweiss.federation.stages import RoundContext
    from edelweiss.problems import Metrics, Problem

ALL = "all sites"
"""What the sites of such a run are called together, where a record has the names of sites."""
COUNTS = 2.0**30  # the largest noised count of a bin


# ---------------------------------------------------------------------- what is summed, at both ends


BY_CLASS = ("class-counts", "held-out-counts")
"""Counts that a private site does not have: then the sum says of how many sites."""


def facts_layout(sites: int, problem: type[Problem], classes: int, labels: int) -> Layout:
    """Return the layout of the sites' facts."""
    parts = [Part("weight")]
    if problem.needs_data:
        parts += [Part(name) for name in ("examples", "held-out", "missing")]
        if labels:
            parts += [Part(name, (labels,)) for name in ("label-counts", "label-positives", "label-weights")]
            parts.append(Part("label-shares", (labels,), float(MOST_WEIGHT)))
        elif problem.multiclass:
            parts += [Part(name, (classes,)) for name in BY_CLASS] + [Part(f"no {name}") for name in BY_CLASS]
        else:
            parts += [Part("positives"), Part("share", (), float(MOST_WEIGHT))]
    return Layout(sites, tuple(parts))


def of_facts(
    facts: Facts, weight: float, problem: type[Problem], classes: int, labels: int
) -> dict[str, tuple[Any, float]]:
    """Return a site's facts by part."""
    values: dict[str, tuple[Any, float]] = {"weight": (weight, 1.0)}
    if not problem.needs_data:
        return values
    examples = facts.examples or 0
    values |= {"examples": (examples, 1.0), "held-out": (facts.held_out or 0, 1.0), "missing": (facts.missing, 1.0)}
    if labels:
        known, positive = np.array(facts.label_counts), np.array(facts.label_positives)
        values |= {"label-counts": (known, 1.0), "label-positives": (positive, 1.0)}
        values["label-weights"] = (known > 0, weight)
        values["label-shares"] = (positive / np.maximum(known, 1), weight)
    elif problem.multiclass:
        for name, counts in zip(BY_CLASS, (facts.class_counts, facts.held_out_counts), strict=True):
            values[name] = (np.array([*counts, *[0] * classes][:classes]), 1.0)
            values[f"no {name}"] = (not counts, 1.0)
    else:
        values |= {
            "positives": (facts.positives or 0, 1.0),
            "share": ((facts.positives or 0) / max(1, examples), weight),
        }
    return values


def training_layout(sites: int, shapes: Shapes, most_weight: int, example: Metrics | None) -> Layout:
    """Return the layout of the replies in a phase; with an ``example`` they hold an evaluation."""
    return Layout(sites, vectors(shapes, most_weight) + (() if example is None else evaluation(example)))


def evaluation_layout(sites: int, example: Metrics, noised: Sequence[str]) -> Layout:
    """Return the layout of the final evaluation; ``noised`` names histograms with noise."""
    histograms = [
        Part(f"{kind} {name}", (len(FIXED) + 1,), COUNTS) for name in noised for kind in ("positives", "negatives")
    ]
    return Layout(sites, (*evaluation(example), *histograms, Part("patients")))


# ---------------------------------------------------------------------- at the coordinator


@dataclass(frozen=True)
class AllFacts:
    """The facts of all sites as if they were one."""

    site: Site  # with the weight of all
    facts: Facts
    # prior, priors: the mean share of positives over sites, by their weights; of each of several labels
    prior: float = 0.5
    priors: tuple[float, ...] = ()


def add_up(exchange: Exchange, messages: Sequence[Message], layout: Layout) -> dict[str, NDArray[Any]]:
    """Send messages to all sites and return the sums of their answers.

    Raises
    ------
    RunError
        If a site does not answer, or one puts something else in place of its answer.
    """
    total = np.zeros(layout.length, np.uint64)
    for _, integers in exchange(messages, read=layout.read, min_replies=0):
        np.add(total, integers, out=total)
    return layout.decode(total)


def facts_of(sums: Mapping[str, NDArray[Any]], problem: type[Problem], classes: int, common: Facts) -> AllFacts:
    """Return the facts of all sites; ``common`` has the form of their inputs."""
    weight = float(sums["weight"])
    if not weight:
        raise RunError("none of the sites has anything to train on, such as positives")
    if not problem.needs_data:
        return AllFacts(Site(0, ALL, 0, weight), replace(common, name=ALL))
    several = "label-counts" in sums
    counts: dict[str, Any] = {
        key: tuple(sums[name].tolist())
        for key in ("class_counts", "held_out_counts", "label_counts", "label_positives")
        if (name := key.replace("_", "-")) in sums and not sums.get(f"no {name}")  # in part they would mislead
    }
    facts = replace(
        common,
        name=ALL,
        partition_id=-1,
        classes=classes,
        examples=int(sums["examples"]),
        held_out=int(sums["held-out"]),
        missing=int(sums["missing"]),
        positives=int(sums["positives"]) if "positives" in sums else None,
        **counts,
    )
    priors = sums["label-shares"] / np.maximum(sums["label-weights"], 1) if several else ()
    prior = float(sums["share"]) / weight if "share" in sums else 0.5
    return AllFacts(Site(0, ALL, 0, weight, facts.held_out), facts, prior, tuple(map(float, priors)))


@dataclass(frozen=True)
class Summed:
    """Reads sums in place of replies, in one run."""

    site: Site  # all sites together
    most_weight: int  # the largest weight of a site
    example: Metrics  # an evaluation by the problem
    buffers: bool  # whether batch-norm statistics are averaged
    # the deviation of the noise in each count of a site's final histograms, with differential privacy; None without
    noise: float | None = None
    labels: Sequence[str] = ("",)  # as in `ReplyChecker.labels`
    evidence: bool = False  # whether the final evaluation is reported
    common: bool = True  # whether all sites have the same model in the end

    def training(
        self,
        exchange: Exchange,
        messages: Sequence[Message],
        declared: RunMessages,
        context: RoundContext,
        *,
        evaluate: bool,
    ) -> Iterator[tuple[Site, TrainReply]]:
        """Yield the one reply of a phase: the weighted mean of all.

        Raises
        ------
        RunError
            See `add_up`; also if a number that all sites share differs between them.
        """
        shapes = declared.summed(context, buffers=self.buffers)
        asked = self.example if evaluate and self.noise is None else None
        sums = add_up(exchange, messages, training_layout(len(messages), shapes, self.most_weight, asked))
        weight, arrays = float(sums["weight"]), {}
        if weight != self.site.weight:
            raise SumError(f"the weights of the sites add up to {weight:g}, and before the run to {self.site.weight:g}")
        for name, one in shapes.items():
            mean = sums[f"vector {name}"] / weight
            if one.dtype == "int64" and (mean != np.rint(mean)).any():
                raise SumError(f"{name} differs between the sites, so their replies cannot be averaged")
            arrays[name] = torch.from_numpy(mean.astype(one.dtype))
        if text := declared.algorithm.unfit(arrays, context, declared.d):
            raise SumError(f"the mean of the sites' replies cannot be: {text}")
        cost = Cost(float(sums["gradients"]), float(sums["samples"]), 0.0, 0, 0)
        metrics = {} if asked is None else metrics_of(sums, asked, common=self.common)
        yield self.site, TrainReply(arrays, metrics, cost)

    def final(self, exchange: Exchange, messages: Sequence[Message]) -> Iterator[tuple[Site, EvaluateReply]]:
        """Yield the one reply to the final evaluation."""
        private = self.noise is not None
        example = {} if private else self.example
        names = record_names(self.labels) if private and self.evidence else {}
        sums = add_up(exchange, messages, evaluation_layout(len(messages), example, [*names.values()]))
        metrics = metrics_of(sums, example, common=self.common) if example else {}
        noise = (self.noise or 0.0) * math.sqrt(len(messages))
        noised = {
            label: Noised(FIXED, sums[f"positives {name}"], sums[f"negatives {name}"], noise)
            for label, name in names.items()
        }
        reported = {}
        if self.evidence and metrics:
            design = Design.uniform(max(1.0, metrics["n"] / max(1, int(sums["patients"]))))
            reported = {label: Reported(design=design) for label, own in by_label(metrics).items() if own.get("n")}
            reported = {label: one for label, one in reported.items() if label in self.labels}
        yield self.site, EvaluateReply(metrics, reported, noised)
