"""Checks of a message to a site, before anything is computed or written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord
from pydantic import StrictBool

from edelweiss.client_app.errors import RefusedError
from edelweiss.client_app.request import ARRAYS, NONE, OTHER, SUMMARY_KEYS, EvaluateRequest, SumsRequest, TrainRequest
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
SUMS = Schema({**RUN, "classes": whole(2, 10**6), "shares": several(binary(1), most=10**5)})


def require_sound(incoming: Incoming, site: OpenSite) -> Request | SumsRequest | None:
    """Check a message and return its request; None for a query that needs nothing else.

    Raises
    ------
    RefusedError
        With all problems in one line. Before admission the public text hides them, since they reveal the numbers of
        columns and classes.
    """
    kind, about_data = incoming.kind, False
    request: Request | SumsRequest | None = None
    try:
        if kind == "query":
            require_records(incoming.content, config=ConfigRecord)
            if site.run.secure_aggregation and "shares" in incoming.config:
                if not (wrong := record_errors(incoming.config, SUMS)):
                    request = SumsRequest(incoming.config["classes"], tuple(incoming.config["shares"]))
            else:
                wrong = record_errors(incoming.config, RUN, optional=("run",))
        else:
            last = kind == "evaluate"
            other = {OTHER: ArrayRecord} if last and site.run.compare_with else {}
            require_records(incoming.content, config=ConfigRecord, arrays=ArrayRecord, **other)
            common = dict(incoming.config)
            index, name = common.pop("site", None), common.pop("name", None)  # these differ between sites
            header, summary = _header(site.run, last, site.gives_evidence, common)
            if not (header and type(index) is int and 0 <= index < header["context"].sites and is_file_name(name)):
                wrong = _wrong_config(incoming.config, site.run, site.gives_evidence, last=last)
            else:
                about_data, (wrong, data_summary) = True, _data_summary(site.run, site.form, summary)
                if not wrong:
                    asked = header | {"site": index, "name": name, "data_summary": data_summary}
                    asked["sent"] = incoming.vectors[ARRAYS]
                    if last:
                        asked["other"] = incoming.vectors.get(OTHER, NONE)
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
def _header(
    run: RunConfig, last: bool, gives_evidence: bool, common: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check and parse the fields that all sites receive, once for the sites of a process.

    Returns fields of a `Request`, empty if invalid, and the items of the data summary.
    """
    if _wrong_config({**common, "site": 0, "name": "any"}, run, gives_evidence, last=last):
        return {}, {}
    context = run.strategy.context(common["round"], run.rounds, common["phase"], common["sites"])
    header = {"context": context, "run": common["run"], "committed": common["committed"]}
    header |= {"merged": tuple(common.get("merged", ()))} if last else {"evaluate": common["evaluate"]}
    return header, {key: value for key, value in common.items() if key in SUMMARY_KEYS}


def _wrong_config(config: Mapping[str, Any], run: RunConfig, gives_evidence: bool, *, last: bool) -> list[str]:
    """Return the errors in a message's header."""
    header = {key: value for key, value in config.items() if key not in SUMMARY_KEYS}
    schema, labels = _message(run, last), max(1, len(run.several))
    if last and "merged" in header and gives_evidence and run.compare_with and not run.personalised:
        schema = Schema({**schema, "merged": several(binary(ENTRY), (4 * labels,))})
    if wrong := record_errors(header, schema):
        return wrong
    taking_place = tuple(phases_of(run.strategy, header["round"], run.rounds, header["sites"]))
    phases = run.strategy.phases[-1:] if last else taking_place
    if header["phase"] not in phases:
        wrong.append(f"phase = {shown(header['phase'])}: must be one of {', '.join(map(repr, phases))}")
    elif header.get("evaluate") and header["phase"] != phases[0]:  # a round evaluates one model
        wrong.append(f"evaluate = True: a round is evaluated in its first phase, {phases[0]!r}")
    if not is_file_name(header["name"]):
        wrong.append(f"name = {shown(header['name'])}: must be a name that a file can have")
    if header["committed"] > header["round"]:
        wrong.append(f"committed = {header['committed']}: must be at most round = {header['round']}")
    if header["site"] >= header["sites"]:
        wrong.append(f"site = {header['site']}: must be below sites = {header['sites']}")
    return wrong + (merged_problems(header["merged"]) if "merged" in header else [])


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
    run: RunConfig, form: tuple[tuple[int, ...], int] | None, summary: dict[str, Any]
) -> tuple[list[str], DataSummary]:
    """Check and parse the data summary, which is constant during a run.

    ``form`` is the shape of this site's inputs and its number of classes; None without data.
    """
    shape, classes = form or ((), 2)
    multiclass, labels = PROBLEMS[run.problem].multiclass, run.several if form else ()
    wrong = wrong_summary(summary, shape, classes, multiclass=multiclass, labels=labels)
    return wrong, DataSummary() if wrong else from_record(DataSummary, summary)


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
    return sent.checked[context] or (_overflowing(beyond(other.decoded)) if other.arrays else [])


def _wrong_values(sent: Vectors, strategy: FederatedStrategy, context: RoundContext, d: int) -> list[str]:
    """Return the errors in the values of vectors, after the shape checks."""
    if wrong := _overflowing(beyond(sent.decoded)):
        return wrong
    text = (unfit(sent.encoded) if sent.rounded else "") or strategy.unfit(sent.decoded, context, d)
    return [text] if text else []


def _overflowing(names: list[str]) -> list[str]:
    return [f"array {name!r} holds NaN, infinity or what overflows: must be within {LARGEST:g}" for name in names]
