"""What a site may be sent: every message is held against it, whole, before anything is done or written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord

from edelweiss.client_app.errors import RefusedError
from edelweiss.client_app.request import COHORT, Request
from edelweiss.common import Binary, Flag, Number, Schema, Several, Text, in_a_line, latest, mistakes, plain, record_in
from edelweiss.datasets import cohort_schema, wrong_cohort
from edelweiss.evidence.paired import merged_problems
from edelweiss.federation import BadAnswerError, unpack
from edelweiss.federation.algorithm import phases_of
from edelweiss.federation.encoding import decode, unfit
from edelweiss.federation.replies import require_records
from edelweiss.federation.schema import misfits, table
from edelweiss.federation.wire import LARGEST, beyond
from edelweiss.problems import PROBLEMS
from edelweiss.problems.histogram import ENTRY
from edelweiss.problems.network import NetworkProblem

if TYPE_CHECKING:
    from flwr.app import Array, Message

    from edelweiss.client_app.site import OpenSite
    from edelweiss.config import RunConfig
    from edelweiss.federation import FederatedStrategy, RoundContext

RUN = {"app": Text(64), "run": Text(64, plain=True, least=1)}


def require_sound(message: Message, site: OpenSite) -> None:
    """Check a message.

    Raises
    ------
    RefusedError
        Saying in one line what is wrong with it. What would be right tells of a hospital's data how many columns and
        classes they have; a run that has not been admitted yet does not hear it.
    """
    kind, about_data = message.metadata.message_type, False
    try:
        if kind == "query":
            require_records(message.content, config=ConfigRecord)
            wrong = mistakes(record_in(message.content, "config", ConfigRecord), RUN, optional=("run",))
        else:
            other = {"other": ArrayRecord} if kind == "evaluate" and site.run.compare_with else {}
            require_records(message.content, config=ConfigRecord, arrays=ArrayRecord, **other)
            told = plain(message.content, "config", ConfigRecord)
            if not (wrong := _wrong_config(told, site, last=kind == "evaluate")):
                wrong, about_data = _wrong_cohort(told, site) or _wrong_arrays(message, Request.of(message), site), True
    except BadAnswerError as error:
        wrong = [str(error)]
    if wrong:
        record = site.records.run(site.run_id) if site.guarded else None
        hides = about_data and site.guarded and not (record and record.open)
        public = "a bad message, of a run that has not begun here (the site's own log says more)" if hides else ""
        raise RefusedError(f"a bad message: {in_a_line(wrong)}", public)


def _wrong_config(record: dict[str, Any], site: OpenSite, *, last: bool) -> list[str]:
    """Return what is wrong with what a message says of itself."""
    run = site.run
    place = _place(run, last)
    if wrong := mistakes({key: record[key] for key in place if key in record}, place):
        return wrong  # what else may be there depends on them
    strategy, number = run.strategy, int(str(record.get("round", run.rounds)))
    described, taking_place = _message(run, last, number, int(str(record.get("sites", run.sites))))
    schema = dict(described)
    told: dict[str, Any] = {key: value for key, value in record.items() if key not in COHORT}
    labels = max(1, len(run.several))
    if last and "merged" in told and site.gives_evidence and run.compare_with and not strategy.personalised:
        schema["merged"] = Several(Binary(ENTRY), (4 * labels,))
    wrong = mistakes(told, schema)
    if not wrong and told["site"] >= told["sites"]:
        wrong.append(f"site = {told['site']}: must be below sites = {told['sites']}")
    if not wrong and told.get("evaluate") and told["phase"] != taking_place[0]:  # of one model in a round is told
        wrong.append(f"evaluate = True: a round is evaluated in its first phase, {taking_place[0]!r}")
    if not wrong and "merged" in told:
        wrong = merged_problems(told["merged"])
    return wrong


@latest
def _place(run: RunConfig, last: bool) -> Schema:
    """Describe where in a run a message may be, and to whom."""
    return {
        "round": Number(run.rounds if last else 1, run.rounds, whole=True),
        "site": Number(0, run.sites - 1, whole=True),
        "sites": Number(1, run.sites, whole=True),
    }


@latest
def _message(run: RunConfig, last: bool, server_round: int, sites: int) -> tuple[Schema, tuple[str, ...]]:
    """Describe what a message of a round says of itself; and the phases that take place there."""
    taking_place = tuple(phases_of(run.strategy, server_round, run.rounds, sites))
    schema = {
        **RUN,
        **_place(run, last),
        "phase": Text(options=run.strategy.phases[-1:] if last else taking_place),
        "name": Text(name=True),
        "settled": Number(0, server_round, whole=True),
        **({} if last else {"evaluate": Flag()}),
    }
    return schema, taking_place


def _wrong_cohort(record: dict[str, Any], site: OpenSite) -> list[str]:
    """Return what is wrong with what a message says of all sites' data."""
    data = site.data()
    multiclass = PROBLEMS[site.run.problem].multiclass
    known = None if data is None else (data.train.shape, data.classes)
    keys = tuple(key for key in COHORT if key in record)
    return _unlike(known, multiclass, site.run.several, keys, *(record[key] for key in keys))


@latest
def _unlike(
    known: tuple[tuple[int, ...], int] | None,
    multiclass: bool,
    labels: tuple[str, ...],
    keys: tuple[str, ...],
    *values: object,
) -> list[str]:
    """Return what in a record of a cohort cannot be of data with this shape and so many classes; None: without data."""
    shape, classes = known or ((), 2)
    schema = cohort_schema(shape, multiclass=multiclass, labels=max(1, len(labels)))
    told = dict(zip(keys, values, strict=True))
    if wrong := mistakes(told, schema, optional=() if known else schema):
        return wrong
    return wrong_cohort(told, shape, classes, multiclass=multiclass, labels=labels) if known else []


def _wrong_arrays(message: Message, request: Request, site: OpenSite) -> list[str]:
    """Return what is wrong with the vectors of a message that says the truth about itself."""
    record, rehearsal = record_in(message.content, "arrays", ArrayRecord), site.rehearsal(request)
    if message.metadata.message_type == "evaluate":
        text = misfits(record, rehearsal.last(request.site, record))
    else:
        text = rehearsal.misfit(request.round, request.phase, request.site, record)
    if text:
        return [text]
    other = record_in(message.content, "other", ArrayRecord)
    problem = site.problem(request)
    if isinstance(problem, NetworkProblem) and other and (text := misfits(other, [table(problem.model())])):
        return [f"of the other model: {text}"]
    strategy = site.strategy
    context = strategy.context(request.round, site.run.rounds, request.phase, request.sites)
    if wrong := _wrong_values(strategy, context, rehearsal.d, *record.items()):
        return wrong
    return _overflowing(beyond(unpack(other)))


@latest
def _wrong_values(strategy: FederatedStrategy, context: RoundContext, d: int, *arrays: tuple[str, Array]) -> list[str]:
    """Return what is wrong with the values of arrays, which have the names, shapes and types that they may have."""
    written = unpack(ArrayRecord(dict(arrays)))
    meant = decode(written)
    if wrong := _overflowing(beyond(meant)):
        return wrong
    text = unfit(written) or strategy.unfit(meant, context, d)
    return [text] if text else []


def forget_messages() -> None:
    """Let go of the messages of a run that is over."""
    for known in (_place, _message, _unlike, _wrong_values):
        known.cache_clear()


def _overflowing(names: list[str]) -> list[str]:
    return [f"array {name!r} holds NaN, infinity or what overflows: must be within {LARGEST:g}" for name in names]
