"""What a site may be sent: every message is held against it, whole, before anything is done or written."""

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord
from pydantic import StrictBool

from edelweiss.client_app.errors import RefusedError
from edelweiss.client_app.request import ARRAYS, NONE, OTHER, SUMMARY_KEYS, EvaluateRequest, TrainRequest
from edelweiss.common import PROCESS_CACHE, Schema, from_record, in_a_line, record_errors, shown
from edelweiss.common.schema import binary, is_file_name, several, whole, words
from edelweiss.datasets import DataSummary, wrong_summary
from edelweiss.evidence.paired import merged_problems
from edelweiss.federation import BadReplyError
from edelweiss.federation.algorithm import phases_of
from edelweiss.federation.encoding import unfit
from edelweiss.federation.replies import require_records
from edelweiss.federation.schema import shapes_of
from edelweiss.federation.wire import LARGEST, beyond
from edelweiss.problems import PROBLEMS
from edelweiss.problems.histogram import ENTRY
from edelweiss.problems.network import NetworkProblem

if TYPE_CHECKING:
    from edelweiss.client_app.request import Incoming, Request
    from edelweiss.client_app.site import OpenSite
    from edelweiss.config import RunConfig
    from edelweiss.federation import FederatedStrategy, RoundContext
    from edelweiss.federation.messages import Vectors

RUN = Schema(app=words(64), run=words(64, pattern="^[0-9A-Za-z_-]+$"))
OWN = ("site", "name")  # what each site alone is told
BY_VALUE = 2  # of marshal: equal values give equal bytes, and values of other types others


def require_sound(incoming: Incoming, site: OpenSite) -> Request | None:
    """Check a message, and return what it asks; None where it only asks the site to describe itself.

    Raises
    ------
    RefusedError
        Saying in one line what is wrong with it. What would be right tells of a hospital's data how many columns and
        classes they have; a run that has not been admitted yet does not hear it.
    """
    kind, about_data, request = incoming.kind, False, None
    try:
        if kind == "query":
            require_records(incoming.content, config=ConfigRecord)
            wrong = record_errors(incoming.config, RUN, optional=("run",))
        else:
            last = kind == "evaluate"
            other = {OTHER: ArrayRecord} if last and site.run.compare_with else {}
            require_records(incoming.content, config=ConfigRecord, arrays=ArrayRecord, **other)
            told = {key: value for key, value in incoming.config.items() if key not in SUMMARY_KEYS}
            if not (wrong := _wrong_message(told, site, last=last)):
                summary = {key: value for key, value in incoming.config.items() if key in SUMMARY_KEYS}
                about_data, run = True, site.run
                multiclass = PROBLEMS[run.problem].multiclass
                wrong, data_summary = _data_summary(
                    site.form, multiclass, run.several, marshal.dumps(summary, BY_VALUE)
                )
                if not wrong:
                    request = _request(told, data_summary, incoming, last=last)
                    wrong = _wrong_arrays(incoming, request, site)
    except BadReplyError as error:
        wrong = [str(error)]
    if wrong:
        record = site.records.run(site.run_id) if site.guarded else None
        hides = about_data and site.guarded and not (record and record.open)
        public = "a bad message, of a run that has not begun here (the site's own log says more)" if hides else ""
        raise RefusedError(f"a bad message: {in_a_line(wrong)}", public)
    return request


def _request(told: dict[str, Any], data_summary: DataSummary, incoming: Incoming, *, last: bool) -> Request:
    asked = {key: value for key, value in told.items() if key != "app"}
    asked |= {"data_summary": data_summary, "sent": incoming.vectors[ARRAYS]}
    if not last:
        return TrainRequest(**asked)
    asked["merged"] = tuple(asked.get("merged", ()))
    return EvaluateRequest(other=incoming.vectors.get(OTHER, NONE), **asked)


def _wrong_message(told: dict[str, Any], site: OpenSite, *, last: bool) -> list[str]:
    """Return what is wrong with what a message says of itself.

    Sites that share a process are told the same in a phase, but for `OWN`: the rest is looked at once.
    """
    run, place, name = site.run, told.get("site"), told.get("name")
    common = {key: value for key, value in told.items() if key not in OWN}
    if (
        type(place) is int
        and 0 <= place < _sites_told(run, last, site.gives_evidence, marshal.dumps(common, BY_VALUE))
        and is_file_name(name)
    ):
        return []
    return _wrong_config(told, run, site.gives_evidence, last=last)


@PROCESS_CACHE.latest
def _sites_told(run: RunConfig, last: bool, gives_evidence: bool, common: bytes) -> int:
    """Return how many sites there are by what all are told, if that is in order; else 0."""
    told = {**marshal.loads(common), "site": 0, "name": "any"}
    return 0 if _wrong_config(told, run, gives_evidence, last=last) else int(told["sites"])


def _wrong_config(told: dict[str, Any], run: RunConfig, gives_evidence: bool, *, last: bool) -> list[str]:
    """Return what is wrong with what a message says of itself."""
    schema, labels = _message(run, last), max(1, len(run.several))
    if last and "merged" in told and gives_evidence and run.compare_with and not run.strategy.personalised:
        schema = Schema({**schema, "merged": several(binary(ENTRY), (4 * labels,))})
    if wrong := record_errors(told, schema):
        return wrong
    taking_place = tuple(phases_of(run.strategy, told["round"], run.rounds, told["sites"]))
    phases = run.strategy.phases[-1:] if last else taking_place
    if told["phase"] not in phases:
        wrong.append(f"phase = {shown(told['phase'])}: must be one of {', '.join(map(repr, phases))}")
    elif told.get("evaluate") and told["phase"] != phases[0]:  # of one model in a round is told
        wrong.append(f"evaluate = True: a round is evaluated in its first phase, {phases[0]!r}")
    if not is_file_name(told["name"]):
        wrong.append(f"name = {shown(told['name'])}: must be a name that a file can have")
    if told["committed"] > told["round"]:
        wrong.append(f"committed = {told['committed']}: must be at most round = {told['round']}")
    if told["site"] >= told["sites"]:
        wrong.append(f"site = {told['site']}: must be below sites = {told['sites']}")
    return wrong + (merged_problems(told["merged"]) if "merged" in told else [])


@PROCESS_CACHE.latest
def _message(run: RunConfig, last: bool) -> Schema:
    return Schema(
        {
            **RUN,
            "round": whole(run.rounds if last else 1, run.rounds),
            "site": whole(0, run.sites - 1),
            "sites": whole(1, run.sites),
            "phase": words(),
            "name": words(),
            "committed": whole(0, run.rounds),
            **({} if last else {"evaluate": StrictBool}),
        }
    )


@PROCESS_CACHE.latest
def _data_summary(
    known: tuple[tuple[int, ...], int] | None, multiclass: bool, labels: tuple[str, ...], summary: bytes
) -> tuple[list[str], DataSummary]:
    """Return what is wrong with what a message says of all sites' data, and that; in a run it is always the same.

    ``known`` are the shape of this site's inputs and how many classes it has; None: it is without data.
    """
    shape, classes = known or ((), 2)
    told = marshal.loads(summary)
    wrong = wrong_summary(told, shape, classes, multiclass=multiclass, labels=labels if known else ())
    return wrong, DataSummary() if wrong else from_record(DataSummary, told)


def _wrong_arrays(incoming: Incoming, request: Request, site: OpenSite) -> list[str]:
    """Return what is wrong with the vectors of a message that says the truth about itself."""
    record, messages, sent = incoming.content[ARRAYS], site.in_run(request).messages, request.sent
    strategy = site.strategy
    context = strategy.context(request.round, site.run.rounds, request.phase, request.sites)
    if isinstance(request, EvaluateRequest):
        text = sent.misfit(messages.final(request.site, sent.arrays))
    elif not (text := messages.misfit(context, request.site, record)):  # type: ignore[arg-type]
        sent.fit()
    if text:
        return [text]
    other = request.other if isinstance(request, EvaluateRequest) else NONE
    if other.arrays:
        problem = site.in_run(request).problem
        if isinstance(problem, NetworkProblem) and (text := other.misfit([shapes_of(problem.model())])):
            return [f"of the other model: {text}"]
    if context not in sent.checked:
        sent.checked[context] = _wrong_values(sent, strategy, context, messages.d)
    return sent.checked[context] or (_overflowing(beyond(other.meant)) if other.arrays else [])


def _wrong_values(sent: Vectors, strategy: FederatedStrategy, context: RoundContext, d: int) -> list[str]:
    """Return what is wrong with the values of vectors, which have the names, shapes and types that they may have."""
    if wrong := _overflowing(beyond(sent.meant)):
        return wrong
    text = (unfit(sent.written) if sent.rounded else "") or strategy.unfit(sent.meant, context, d)
    return [text] if text else []


def _overflowing(names: list[str]) -> list[str]:
    return [f"array {name!r} holds NaN, infinity or what overflows: must be within {LARGEST:g}" for name in names]
