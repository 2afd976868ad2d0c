"""The handlers of a site's messages: query, train, evaluate."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

import torch

from edelweiss.client_app import sums
from edelweiss.client_app.errors import RefusedError
from edelweiss.client_app.evidence import comparison_records, evidence_records, noised_scores, own_maps
from edelweiss.client_app.fine_tuning import fine_tune_model
from edelweiss.client_app.model_card import write_card
from edelweiss.client_app.model_metadata import model_facts
from edelweiss.client_app.oracle import SiteOracle, stream
from edelweiss.client_app.policy.limits import Limits
from edelweiss.client_app.privacy.randomness import KeyedStream, derived, question, with_statistics
from edelweiss.client_app.vectorised import Update
from edelweiss.common import amount, to_record
from edelweiss.federation.encoding import remembered, taken
from edelweiss.federation.messages import Cost, OutgoingReply
from edelweiss.federation.wire import magnitudes

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.client_app.privacy.oracle import PrivateOracle
    from edelweiss.client_app.request import EvaluateRequest, SumsRequest, TrainRequest
    from edelweiss.client_app.request_pipeline import Handler, Steps
    from edelweiss.client_app.site import OpenSite
    from edelweiss.problems import Arrays, Problem

log = logging.getLogger("edelweiss")


def describe(request: SumsRequest | None, site: OpenSite) -> OutgoingReply:
    """Report the site's `datasets.Facts`: counts, shapes and moments of its training samples, never a sample."""
    data, facts = site.data(), site.facts()
    if site.guarded and data is not None and data.missing:  # otherwise the coordinator logs it
        filled = "the mean over all sites" if site.run.standardise else "0, because standardise = false"
        log.warning("%s: %s, imputed by %s", data.name, amount(data.missing, "missing value"), filled)
    for note in facts.notes if site.guarded else ():
        log.warning("%s: %s", facts.name, note)
    if request is not None:
        return sums.of_site(request, site, facts)
    return OutgoingReply.records(facts=to_record(sums.in_the_open(facts) if site.run.secure_aggregation else facts))


def train(request: TrainRequest, site: OpenSite) -> Steps[OutgoingReply]:
    """Evaluate the received model, if asked to, then do the algorithm's local update."""
    started, clock = time.perf_counter(), time.monotonic()
    here, strategy, encoding = site.in_run(request), site.strategy, site.run.encoding
    problem, own = here.problem, here.own_problem
    context = request.context
    sent = request.sent.on(problem.device)
    store, place = here.memory() if here.remembers else None, (context.round, strategy.phases.index(context.phase))
    if store and site.run.remembers and (text := store.shortage()):
        raise RefusedError(f"{text}: make room before the run goes on")
    memory = store.load(problem.device, before=place) if store else {}
    began = store.latest(before=place) if store and memory else None
    residual = taken(memory)

    _load_statistics(problem, sent, memory)
    metrics = here.evaluation(strategy.personal(sent, memory, here.fresh)) if request.evaluate else {}

    def oracle() -> SiteOracle | PrivateOracle:
        samples, lasting = here.samples[0], (here.index, here.sites, here.data_summary)
        if (privacy := site.privacy) is not None and samples is not None:
            asked = question(site.run, lasting, privacy.here, context, with_statistics(sent, problem), memory)
            limits = Limits.of(site, clock)
            return privacy.oracle(
                own, samples, here.sites, context, asked, fresh=here.fresh, common=problem, limits=limits
            )
        if site.guarded:  # the coordinator knows the seed, and must not know whom a batch holds
            asked = question(site.run, lasting, site.data_hash(), context, sent, memory)
            random = KeyedStream(derived(site.records.secret, "batches", asked)).generator("batches")
        else:
            # The sites of a pooled run are one place: all draw the same batches, and their mean is what each computes.
            random = stream(site.run.seed, 0 if site.run.pooled else request.site, *place)
        return SiteOracle.open(site.run, own, samples, random, here.fresh, problem, Limits.of(site, clock))

    done = yield Update(
        strategy=strategy,
        problem=own,
        sent=sent,
        memory=memory,
        oracle=oracle,
        context=context,
        private=site.run.private,
    )
    reply, memory, declared = done.reply, done.memory, here.messages
    declared.require_declared("up", reply, context)
    declared.require_declared("kept", memory, context)
    if (statistics := problem.buffers()).numel():
        if not (site.run.bn == "average" and strategy.exchanges):
            memory["buffers"] = statistics
        elif done.gradients or site.run.secure_aggregation:  # only gradients change them
            reply["buffers"] = statistics

    # Without a memory to protect it is enough that the coordinator looks.
    looks = store is not None or site.run.secure_aggregation or not encoding.exact
    most = magnitudes(reply) if looks else {}
    if text := encoding.overflow(reply, most):
        raise RefusedError(f"its {text}")
    written, residual = encoding.encode(reply, residual, context.phase)
    memory = memory | remembered(residual)
    seconds = 0.0 if site.run.private else time.perf_counter() - started  # these depend on who was in a batch
    most |= magnitudes({name: vector for name, vector in memory.items() if reply.get(name) is not vector})
    bad = [name for name in reply | memory if not most.get(name, 0.0) < math.inf]
    kept = place if memory and not bad else None
    cost = Cost(done.gradients, done.samples, seconds, strategy.position(began), strategy.position(kept))
    if bad:  # the coordinator leaves such a reply out; saved, it would corrupt the memory
        log.warning("NaN or infinity in %s: this site keeps its previous memory", ", ".join(bad))
        if all(m < math.inf for m in magnitudes(reply).values()):
            # Only the personal part diverged: report just that, so that the reply is left out.
            written = {name: torch.full((1,), torch.nan) for name in bad}
    if site.run.secure_aggregation:
        if bad:
            raise RefusedError(f"NaN or infinity in {', '.join(bad)}: the run diverges")
        answer = sums.of_update(request, here, reply, metrics, cost)
    else:
        answer = OutgoingReply.training(written, metrics, cost)
    if store and not bad:
        store.save(memory, place, request.committed)  # last: a reply that fails before this changes nothing
    return answer


def evaluate(request: EvaluateRequest, site: OpenSite) -> OutgoingReply:
    """Evaluate the run's final model and delete the run's memory, except the site's own model and statistics.

    If the run says so, the common model is saved too. On a repeated request, after a loss or for the comparison with
    another model, the saved one is used.
    """
    here, strategy = site.in_run(request), site.strategy
    problem = here.problem
    sent = request.sent.on(problem.device)
    store = here.memory()
    memory = store.load(problem.device, before=(request.context.round + 1, 0))
    taken(memory)  # rounding errors are no part of a model
    own = {} if memory else store.own_model(problem.device)
    kept_here = "buffers" in (memory or own)
    statistics = _load_statistics(problem, sent, memory or own)
    model = own or strategy.personal(sent, memory, here.fresh)
    if site.run.fine_tune and not own:
        model = fine_tune_model(request, site, model)
        statistics = None if statistics is None else problem.buffers()
    data = site.data()
    shared = site.run.share_model and data is not None and not site.run.personalised
    mine = dict(model) if site.run.personalised or shared else {}
    maps = own_maps(site, request, model) if mine else None  # before the network gets another model's statistics
    more = False  # whether a second request follows; a run stopped before it needs the memory
    other = request.other.on(problem.device)
    if request.merged:
        answer = OutgoingReply.records(**comparison_records(site, request, model, other))
    else:
        metrics = here.evaluation(model)
        noised = noised_scores(site, request, model) if site.gives_noised else {}
        reported = {name: {} if one is None else one.record() for name, one in noised.items()}
        if site.gives_evidence and not site.run.secure_aggregation:
            reported = evidence_records(site, request, model, other, evaluated=bool(metrics))
        if site.run.secure_aggregation:
            answer = sums.of_model(request, here, metrics, noised)
        else:
            answer = OutgoingReply.records(metrics=metrics, **reported)
        more = any(
            record.get("other-positive-scores") or record.get("other-negative-scores") for record in reported.values()
        )
    if statistics is not None and (mine or kept_here):
        mine["buffers"] = statistics
    if mine:
        facts = model_facts(site.run, request.data_summary, site.data_config, data, own=not shared, maps=maps)
        path = store.save_own_model(mine, facts)
        if "x" in mine and (shared or site.guarded):
            write_card(path, site.run, own=not shared)
    if not more:
        store.forget()  # last: if the model cannot be written, its memory is kept
    return answer


def _load_statistics(problem: Problem, sent: Arrays, kept: Arrays) -> Tensor | None:
    """Load the site's or the received batch-norm statistics into the network; None without any."""
    statistics = (kept if "buffers" in kept else sent).pop("buffers", None)
    if statistics is not None:
        problem.load_buffers(statistics)
    return statistics


HANDLERS: dict[str, Handler] = {"query": describe, "train": train, "evaluate": evaluate}
