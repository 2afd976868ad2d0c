"""What a site answers: it describes itself, trains, and evaluates for the last time."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from edelweiss.client_app.errors import RefusedError
from edelweiss.client_app.evidence import differing, own_maps, told
from edelweiss.client_app.model_card import write_card
from edelweiss.client_app.model_metadata import model_facts
from edelweiss.client_app.oracle import SiteOracle, stream
from edelweiss.client_app.policy.limits import Limits
from edelweiss.client_app.process_cache import received
from edelweiss.client_app.request import Request
from edelweiss.client_app.vectorised import Update
from edelweiss.common import record_in, to_record
from edelweiss.federation import not_finite, pack, unpack
from edelweiss.federation.encoding import remembered, taken

if TYPE_CHECKING:
    from flwr.app import Message
    from torch import Tensor

    from edelweiss.client_app.request_pipeline import Handler, Steps
    from edelweiss.client_app.site import OpenSite
    from edelweiss.problems import Arrays, Problem

log = logging.getLogger("edelweiss")


def describe(message: Message, site: OpenSite) -> RecordDict:
    """Tell counts, shapes and moments: sums over this site's training samples, never a sample.

    The answer's ``facts`` are a `datasets.Facts`.
    """
    data, facts = site.data(), site.facts()
    if site.guarded and data is not None and data.missing:  # else the coordinator says it, beside this
        filled = "the mean over all sites" if site.run.standardise else "0, because standardise = false"
        log.warning("%s: %d missing values, imputed by %s", data.name, data.missing, filled)
    for note in facts.notes if site.guarded else ():
        log.warning("%s: %s", facts.name, note)
    return RecordDict({"facts": ConfigRecord(to_record(facts))})


def train(message: Message, site: OpenSite) -> Steps[RecordDict]:
    """Evaluate what was received, if asked to, then do the algorithm's part of this round."""
    started, clock = time.perf_counter(), time.monotonic()
    request = Request.of(message)
    strategy, problem = site.strategy, site.problem(request)
    context = strategy.context(request.round, site.run.rounds, request.phase, request.sites)
    sent = received(message, problem.device)
    store, place = site.memory(request), (request.round, strategy.phases.index(request.phase))
    if site.run.remembers and (text := store.shortage()):
        raise RefusedError(f"{text}: make room before the run goes on")
    memory = store.load(problem.device, before=place)
    began = store.latest(before=place) if memory else None
    residual, fresh = taken(memory), partial(site.fresh, request)

    _load_statistics(problem, sent, memory)
    metrics = site.evaluation(request, strategy.personal(sent, memory, fresh)) if request.evaluate else {}
    own = site.own_problem(request)

    def oracle() -> SiteOracle:
        random, samples = stream(site.run.seed, request.site, *place), site.samples(request)[0]
        return SiteOracle.open(site.run, own, samples, random, fresh, problem, Limits.of(site, clock))

    done = yield Update(strategy=strategy, problem=own, sent=sent, memory=memory, oracle=oracle, context=context)
    reply, memory = done.reply, done.memory
    if (statistics := problem.buffers()).numel():
        if not (site.run.bn == "average" and strategy.exchanges):
            memory["buffers"] = statistics
        elif done.gradients:  # only those change them
            reply["buffers"] = statistics

    if text := site.run.encoding.overflow(reply):
        raise RefusedError(f"its {text}")
    written, residual = site.run.encoding.encode(reply, residual, request.phase)
    memory = memory | remembered(residual)
    spent = time.perf_counter() - started
    bad = not_finite(reply | memory)
    kept = place if memory and not bad else None
    work = {"gradients": done.gradients, "samples": done.samples, "seconds": spent}
    memories = {"memory-from": strategy.position(began), "memory-kept": strategy.position(kept)}
    cost = MetricRecord({**work, **memories})
    if bad:  # the coordinator leaves such an answer out; remembered, it would spoil all
        log.warning("NaN or infinity in %s: this site keeps what it remembered before", ", ".join(bad))
        if not not_finite(reply):  # what stays here diverged alone: only that is told, so that the answer is left out
            written = {name: torch.full((1,), torch.nan) for name in bad}
    content = RecordDict({"arrays": pack(written), "metrics": ConfigRecord({**metrics}), "cost": cost})
    if not bad:
        store.save(memory, place, request.settled)  # last: an answer that fails before this changes nothing
    return content


def evaluate(message: Message, site: OpenSite) -> RecordDict:
    """Evaluate the run's final model and forget the run, but for what the site has of its own: a model, statistics.

    If the run says so, it keeps the common model, too. All that comes was held against what this run may send, so it is
    no larger than the model.

    Asked again, because its answer was lost or the coordinator was stopped, the site takes that. So it does when it is
    asked to compare two models, which follows from what all sites answered before.
    """
    request = Request.of(message)
    strategy, problem = site.strategy, site.problem(request)
    sent = unpack(record_in(message.content, "arrays", ArrayRecord), problem.device)
    store = site.memory(request)
    memory = store.load(problem.device, before=(request.round + 1, 0))
    taken(memory)  # rounding errors are no part of a model
    own = {} if memory else store.kept(problem.device)
    kept_here = "buffers" in (memory or own)
    statistics = _load_statistics(problem, sent, memory or own)
    model = own or strategy.personal(sent, memory, partial(site.fresh, request))
    data = site.data()
    shared = site.run.share_model and data is not None and not strategy.personalised
    mine = dict(model) if strategy.personalised or shared else {}
    maps = own_maps(site, request, model) if mine else None  # before another model's statistics are in the network
    more = False  # to come of this evaluation: a run that is stopped before that goes on with what is remembered
    other = unpack(record_in(message.content, "other", ArrayRecord), problem.device)
    if request.merged:
        records = differing(site, request, model, other)
        content = RecordDict({name: ConfigRecord(one) for name, one in records.items()})
    else:
        content = RecordDict({"metrics": ConfigRecord({**site.evaluation(request, model)})})
        if site.gives_evidence:
            records = told(site, request, model, other, evaluated=bool(content["metrics"]))
            content.update({name: ConfigRecord(one) for name, one in records.items()})
            more = any(
                record.get("other-positive-scores") or record.get("other-negative-scores")
                for record in records.values()
            )
    if statistics is not None and (mine or kept_here):
        mine["buffers"] = statistics
    if mine:
        facts = model_facts(site.run, request.data_summary, site.data_config, data, own=not shared, maps=maps)
        path = store.keep(mine, facts)
        if "x" in mine and (shared or site.guarded):
            write_card(path, site.run, own=not shared)
    if not more:
        store.forget()  # last: a model that cannot be written leaves the memory that it is made of
    return content


def _load_statistics(problem: Problem, sent: Arrays, kept: Arrays) -> Tensor | None:
    """Take the statistics of batch norm out of what was kept here, or sent, into the network; None without any."""
    statistics = (kept if "buffers" in kept else sent).pop("buffers", None)
    if statistics is not None:
        problem.load_buffers(statistics)
    return statistics


HANDLERS: dict[str, Handler] = {"query": describe, "train": train, "evaluate": evaluate}
