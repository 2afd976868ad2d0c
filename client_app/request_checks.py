"""Checks of a message to a site, before anything is computed or written."""

from __future__ import annotations

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
    from collections.abc import Mapping

    from edelweiss.client_app.request import Incoming, Request
    from edelweiss.client_app.site import OpenSite
    from edelweiss.config import RunConfig
    from edelweiss.federation import FederatedStrategy, RoundContext
    from edelweiss.federation.messages import Vectors

RUN = Schema(app=words(64), run=words(64, pattern="^[0-9A-Za-z_-]+$"))
OWN = ("site", "name")  # the fields that differ between sites


def require_sound(incoming: Incoming, site: OpenSite) -> Request | None:
    """Check a message and return its request; None for a query.

    Raises
    ------
    RefusedError
        With all problems in one line. Before admission the public text hides them, since they reveal the numbers of
        columns and classes.
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
            common = {key: value for key, value in incoming.config.items() if key not in OWN}
            sites, asked, summary = _said(site.run, last, site.gives_evidence, *common, *common.values())
            place, name = incoming.config.get("site"), incoming.config.get("name")
            if not (type(place) is int and 0 <= place < sites and is_file_name(name)):
                wrong = _wrong_config(incoming.config, site.run, site.gives_evidence, last=last)
            else:
                about_data, (wrong, data_summary) = True, _data_summary(site.run, site.form, *summary)
                if not wrong:
                    asked = {**asked, "site": place, "name": name, "data_summary": data_summary}
                    asked |= {"sent": incoming.vectors[ARRAYS]} | (
                        {"other": incoming.vectors.get(OTHER, NONE)} if last else {}
                    )
                    request = (EvaluateRequest if last else TrainRequest)(**asked)
                    wrong = _wrong_arrays(incoming, request, site)
    except BadReplyError as error:
        wrong = [str(error)]
    if wrong:
        record = site.records.run(site.run_id) if site.guarded else None
        hides = about_data and site.guarded and not (record and record.open)
        public = "a bad message of a run that has not begun here (see the site's own log)" if hides else ""
        raise RefusedError(f"a bad message: {in_a_line(wrong)}", public)
    return request


@PROCESS_CACHE.latest
def _said(run: RunConfig, last: bool, gives_evidence: bool, *items: Any) -> tuple[int, dict[str, Any], tuple[Any, ...]]:
    """Check and parse a message's common header, given as keys and then values; once for all sites of a process.

    Returns (sites, request fields, summary items); sites is 0 if the header is invalid. Summary items are the keys of
    the data summary, then its values.
    """
    said = _paired(items)
    if _wrong_config({**said, "site": 0, "name": "any"}, run, gives_evidence, last=last):
        return 0, {}, ()
    context = run.strategy.context(said["round"], run.rounds, said["phase"], said["sites"])
    asked = {"context": context, "run": said["run"], "committed": said["committed"]}
    asked |= {"merged": tuple(said.get("merged", ()))} if last else {"evaluate": said["evaluate"]}
    summary = {key: value for key, value in said.items() if key in SUMMARY_KEYS}
    return said["sites"], asked, (*summary, *summary.values())


def _paired(items: tuple[Any, ...]) -> dict[str, Any]:
    """Return keys and the values that follow them as a dictionary."""
    return dict(zip(items[: len(items) // 2], items[len(items) // 2 :], strict=True))


def _wrong_config(config: Mapping[str, Any], run: RunConfig, gives_evidence: bool, *, last: bool) -> list[str]:
    """Return the errors in a message's header."""
    told = {key: value for key, value in config.items() if key not in SUMMARY_KEYS}
    schema, labels = _message(run, last), max(1, len(run.several))
    if last and "merged" in told and gives_evidence and run.compare_with and not run.personalised:
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
    run: RunConfig, form: tuple[tuple[int, ...], int] | None, *items: Any
) -> tuple[list[str], DataSummary]:
    """Check and parse the data summary, given as keys and then values; constant during a run.

    ``form`` is the shape of this site's inputs and its number of classes; None without data.
    """
    shape, classes = form or ((), 2)
    told, multiclass, labels = _paired(items), PROBLEMS[run.problem].multiclass, run.several if form else ()
    wrong = wrong_summary(told, shape, classes, multiclass=multiclass, labels=labels)
    return wrong, DataSummary() if wrong else _known(from_record(DataSummary, told))


@PROCESS_CACHE.latest
def _known(data_summary: DataSummary) -> DataSummary:
    """Reuse the previous equal summary, so that identity-keyed caches hit."""
    return data_summary


def _wrong_arrays(incoming: Incoming, request: Request, site: OpenSite) -> list[str]:
    """Return the errors in the vectors of a message whose header is valid."""
    record, messages, sent = incoming.content[ARRAYS], site.in_run(request).messages, request.sent
    context = request.context
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
        sent.checked[context] = _wrong_values(sent, site.strategy, context, messages.d)
    return sent.checked[context] or (_overflowing(beyond(other.meant)) if other.arrays else [])


def _wrong_values(sent: Vectors, strategy: FederatedStrategy, context: RoundContext, d: int) -> list[str]:
    """Return the errors in the values of vectors, after the shape checks."""
    if wrong := _overflowing(beyond(sent.meant)):
        return wrong
    text = (unfit(sent.written) if sent.rounded else "") or strategy.unfit(sent.meant, context, d)
    return [text] if text else []


def _overflowing(names: list[str]) -> list[str]:
    return [f"array {name!r} holds NaN, infinity or what overflows: must be within {LARGEST:g}" for name in names]
