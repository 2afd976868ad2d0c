"""The site as Flower's ClientApp; it answers three messages: query, train, evaluate.

Handlers are imported with the first message, so that a program that only starts it does not load torch.
"""

from __future__ import annotations

import logging
import traceback
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from edelweiss.client_app.errors import SiteError

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edelweiss.client_app.request_pipeline import Pipeline
    from edelweiss.client_app.vectorised import Update, Updated

log = logging.getLogger("edelweiss")

KINDS = ("query", "train", "evaluate")


def in_kind(message: Message, context: Context, answer: Callable[[Message, Context], Message]) -> Message:
    """Batch the reply if the message was batched; see `federation.batching`."""
    from edelweiss.federation.batching import reply_in_kind

    return reply_in_kind(message, context, answer)


def answered(kind: str, message: Message, context: Context) -> Message:
    """Answer a message, see `client_app.handlers`."""
    from edelweiss.common.memory import collecting_rarely

    with collecting_rarely():  # the first message of a process waits for imports; of these, nothing is garbage
        from edelweiss.client_app.request_pipeline import Pipeline

    return Pipeline(kind, message, context).done_alone()


app = ClientApp(mods=[in_kind])
app.query()(partial(answered, "query"))
app.train()(partial(answered, "train"))
app.evaluate()(partial(answered, "evaluate"))


def call(message: Message, context: Context) -> Message:
    """Answer in this process; an exception becomes an error reply, as in Flower's own engines."""
    return _surviving(message, partial(in_kind, message, context, answer))


def answer(message: Message, context: Context) -> Message:
    """Answer a message of any kind."""
    if (kind := message.metadata.message_type) in KINDS:  # Flower's app would do no more
        return answered(kind, message, context)
    from edelweiss.client_app.audit import Audit

    known = kind.removesuffix(".default") in KINDS  # otherwise Flower replies that the function does not exist
    if not known and (audit := Audit.of(context)):
        audit.turned_away(message, f"no message is called {kind[:64]!r}")
    return app(message, context)


def call_together(messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
    """Answer the messages of a phase to several sites of this machine, with local updates done side by side."""
    if len(messages) == 1 or messages[0].metadata.message_type != "train":
        each = zip(messages, contexts, strict=True)
        return [_surviving(message, partial(answer, message, context)) for message, context in each]
    from edelweiss.client_app.request_pipeline import Pipeline
    from edelweiss.client_app.vectorised import updated

    def begun(message: Message, context: Context) -> Pipeline:
        pipeline = Pipeline("train", message, context)
        if pipeline.update and not pipeline.update.stacks:
            pipeline.done_alone()  # before another site's statistics are loaded into the shared network
        return pipeline

    def finished(pipeline: Pipeline, do: Callable[[], Updated]) -> Message:
        pipeline.done(do)
        return pipeline.answer

    answers: list[Message | None] = [None] * len(messages)
    waiting: list[tuple[int, Pipeline, Update]] = []
    for i, (message, context) in enumerate(zip(messages, contexts, strict=True)):
        pipeline = _surviving(message, partial(begun, message, context))
        if isinstance(pipeline, Message):
            answers[i] = pipeline
        elif pipeline.update is None:
            answers[i] = pipeline.answer
        else:
            waiting.append((i, pipeline, pipeline.update))
    for (i, pipeline, _), do in zip(waiting, updated([update for _, _, update in waiting]), strict=True):
        answers[i] = _surviving(messages[i], partial(finished, pipeline, do))
    return [answer for answer in answers if answer is not None]


def _surviving(message: Message, do: Callable[[], T]) -> T | Message:
    """Call a function for a message; an exception becomes an error reply, so that the process survives."""
    try:
        return do()
    except SiteError as error:  # it is in the log, and may be read by the coordinator
        reason = f"SiteError: {error}"
    except Exception as error:  # its text may hold a path or a value
        log.error("%s", traceback.format_exc())
        reason = f"{type(error).__name__} (the site's own log says more)"
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
