"""What a site may be sent: every message is held against it, whole, before anything is done or written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_app.errors import RefusedError
from client_app.site import Request
from datasets import cohort_schema, wrong_cohort
from federation import BadAnswerError, unpack
from federation.algorithm import phases_of
from federation.answers import require_records
from federation.schema import misfits
from federation.wire import LARGEST, beyond
from keys import Flag, Number, Schema, Text, in_a_line, mistakes
from problems import PROBLEMS

if TYPE_CHECKING:
    from flwr.app import Message

    from client_app.site import OpenSite

RUN = {"app": Text(64), "run": Text(64, plain=True, least=1)}


def require_sound(message: Message, site: OpenSite) -> None:
    """Check a message.

    Raises
    ------
    RefusedError
        Saying in one line what is wrong with it; the text has no word about this site's data.
    """
    kind = message.metadata.message_type
    try:
        if kind == "query":
            require_records(message.content, config="config_records")
            wrong = mistakes(message.content.config_records["config"], RUN, optional=("run",))
        else:
            require_records(message.content, config="config_records", arrays="array_records")
            wrong = _wrong_config(message, site, last=kind == "evaluate") or _wrong_arrays(message, site, kind)
    except BadAnswerError as error:
        wrong = [str(error)]
    if wrong:
        raise RefusedError(f"a bad message: {in_a_line(wrong)}")


def _wrong_config(message: Message, site: OpenSite, *, last: bool) -> list[str]:
    """Return what is wrong with what a message says of itself and of all sites."""
    run, record = site.run, message.content.config_records["config"]
    data, multiclass = site.data(), PROBLEMS[run.problem].multiclass
    shape, classes = ((), 2) if data is None else (data.train.shape, data.classes)
    place: Schema = {
        "round": Number(run.rounds if last else 1, run.rounds, whole=True),
        "site": Number(0, run.sites - 1, whole=True),
    }
    if wrong := mistakes({key: record[key] for key in place if key in record}, place):
        return wrong  # what else may be there depends on them
    strategy, number = run.strategy(), int(str(record.get("round", run.rounds)))
    taking_place = phases_of(strategy, number, run.rounds, run.sites)
    schema = {
        **RUN,
        **place,
        "phase": Text(options=strategy.phases[-1:] if last else tuple(taking_place)),
        "name": Text(name=True),
        "settled": Number(0, number, whole=True),
        **({} if last else {"evaluate": Flag()}),
    }
    cohort = cohort_schema(shape, multiclass=multiclass)
    if wrong := mistakes(record, {**schema, **cohort}, optional=cohort if data is None else ()):
        return wrong
    return [] if data is None else wrong_cohort(record, shape, classes, multiclass=multiclass)


def _wrong_arrays(message: Message, site: OpenSite, kind: str) -> list[str]:
    """Return what is wrong with the vectors of a message that says the truth about itself."""
    request, record = Request.of(message), message.content.array_records["arrays"]
    rehearsal = site.rehearsal(request)
    if kind == "evaluate":
        tables = rehearsal.last(request.site, record)
    else:
        tables = rehearsal.sent(request.round, request.phase, request.site, record)
    if text := misfits(record, tables):
        return [text]
    arrays = unpack(record)
    if bad := beyond(arrays):
        return [f"array {name!r} holds NaN, infinity or what overflows: must be within {LARGEST:g}" for name in bad]
    strategy = site.run.strategy()
    turn = strategy.turn(request.round, site.run.rounds, request.phase, site.run.sites)
    text = strategy.unfit(arrays, turn, rehearsal.d)
    return [text] if text else []
