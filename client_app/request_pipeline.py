"""The pipeline of a message at a site: logged, checked, answered; errors become one-line replies."""

from __future__ import annotations

import logging
import traceback
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeVar

from flwr.app import Context, Message

from edelweiss.client_app.audit import Audit, keep_receipts, simulated
from edelweiss.client_app.errors import AwaitsApprovalError, RefusedError, SiteError
from edelweiss.client_app.handlers import HANDLERS
from edelweiss.client_app.masking import Masking, masking_of
from edelweiss.client_app.memory import StateError
from edelweiss.client_app.policy.admission import admit
from edelweiss.client_app.policy.tickets import identity, require_ticket
from edelweiss.client_app.request import Incoming, SumsRequest
from edelweiss.client_app.request_checks import require_sound
from edelweiss.client_app.site import OpenSite, version
from edelweiss.client_app.sums import layout_of
from edelweiss.common import shown
from edelweiss.config import MISTAKES
from edelweiss.config.plug_ins import not_known, packages_of
from edelweiss.federation.fingerprint import release
from edelweiss.federation.masks import SHARE
from edelweiss.federation.messages import OutgoingReply
from edelweiss.federation.seals import SEAL, Question, key_hash
from edelweiss.federation.ticket import ticket_hash
from edelweiss.federation.wire import reply

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from flwr.app import RecordDict

    from edelweiss.client_app.request import Request
    from edelweiss.client_app.vectorised import Update, Updated

    Steps = Generator[Update, Updated, T]
    Handler = Callable[[Any, OpenSite], OutgoingReply | Steps[OutgoingReply]]

log = logging.getLogger("edelweiss")


class Pipeline:
    """A message in the site's pipeline.

    Parameters
    ----------
    kind : str
        Kind of the message, a key of `client_app.handlers.HANDLERS`; a message of another kind is refused.
    message, context : Message, Context
        As Flower hands them over.

    Attributes
    ----------
    update : Update, optional
        What has to be done before it is answered, see `done`.
    answer : Message
        There, as soon as there is no update.
    """

    def __init__(self, kind: str, message: Message, context: Context) -> None:
        self._steps = _steps(kind, message, context)
        self.answer: Message
        self._go(partial(next, self._steps))

    def done(self, do: Callable[[], Updated]) -> None:
        """Do the update; what goes wrong is this message's."""
        try:
            updated = do()
        except Exception as error:
            self._go(partial(self._steps.throw, error))
        else:
            self._go(partial(self._steps.send, updated))

    def done_alone(self) -> Message:
        """Do the update, if there is one, and return the answer."""
        if self.update:
            self.done(self.update.alone)
        return self.answer

    def _go(self, step: Callable[[], Update]) -> None:
        try:
            self.update: Update | None = step()
        except StopIteration as end:
            self.update, self.answer = None, end.value


def _steps(kind: str, message: Message, context: Context) -> Steps[Message]:
    """Answer a message; the caller runs its local update, alone or vectorised with others.

    Users' mistakes become replies of one line, never a traceback. Only the public version of an error leaves the site;
    the full one, with file, row and value, is logged here. Of unexpected exceptions only the type leaves the site,
    unless it is simulated: then they are most likely of the researcher's own code.
    """
    audit = Audit.of(context)
    try:
        ticket = context.run_config.get("ticket", "")
        question = Question.of(message, ticket_hash(str(ticket))) if SEAL in message.content else None
        incoming = Incoming(message)
        if audit:
            audit.received(message, incoming.vectors)
        try:
            site, request, masking = _admitted(kind, incoming, question, context, audit)
            exchange = (
                masking.exchange(request, layout_of(request, site), incoming.content) if masking and request else None
            )
            if exchange is None or (outgoing := exchange.again()) is None:
                try:
                    answer = HANDLERS[kind](request, site)
                    outgoing = answer if isinstance(answer, OutgoingReply) else (yield from answer)
                    if exchange:
                        outgoing = exchange.answered(outgoing)
                    elif masking:
                        outgoing.content[SHARE] = masking.offered()
                except Exception as error:
                    if not exchange:
                        raise
                    # To refuse in the open would tell something of this site.
                    unexpected = not isinstance(error, (*MISTAKES, RefusedError, StateError))
                    log.error("random numbers are sent instead of an answer: %s", error, exc_info=unexpected)
                    outgoing = exchange.spoilt()
        except AwaitsApprovalError:
            outgoing = OutgoingReply.records(waiting={"site": _own_name(context)})
        except (*MISTAKES, RefusedError, StateError) as error:
            outgoing = _refusal(error, context)
        if audit:
            audit.sent(message, outgoing.content, outgoing.encoded)
        _seal(outgoing.content, question, context, audit)
    except Exception as error:
        # Flower sends an exception's text to the coordinator, and it may hold a path or a value.
        _log_once(f"the app broke\n{traceback.format_exc()}", context.run_id)
        text = _where(error) if simulated(context) else f"{type(error).__name__} (the site's own log says more)"
        if audit:
            audit.broken(message, text)
        raise SiteError(text) from None
    return reply(outgoing.content, message)


def _seal(content: RecordDict, question: Question | None, context: Context, audit: Audit | None) -> None:
    """Seal the answer to a sealed question, if this site has a key."""
    if question and (file := str(context.node_config.get("key", ""))):
        line, head = audit.head() if audit else (0, "")
        content[SEAL] = question.answered(content, identity(file), line, head)


def _admitted(
    kind: str, incoming: Incoming, question: Question | None, context: Context, audit: Audit | None
) -> tuple[OpenSite, Request | SumsRequest | None, Masking | None]:
    """Check all of a message; return the site that it is for, what it asks, and what masks the answer.

    Raises
    ------
    RefusedError, MISTAKES
        When it is not to be answered.
    """
    if (called := incoming.kind) != kind:  # Flower takes "train.default" for "train"
        raise RefusedError(f"no message is called {called[:64]!r}")
    theirs = str(incoming.config.get("app", ""))[:64]
    if theirs != (ours := version(context)):
        packages = packages_of(context.run_config)
        theirs = theirs if theirs.isalnum() else "of another app"  # it goes into this site's log
        app = " and ".join(("the app", *packages))
        unknown = ", ".join(f"{key} = {shown(name)}" for key, name in not_known(context.run_config).items())
        raise RefusedError(
            f"this site runs version {ours} of {app}, the coordinator {theirs}: install the "
            f"same release{'s' * bool(packages)} on both, and end a SuperLink or SuperNode that was started in another "
            "project" + (f"; {unknown} is not known here: install what offers it" if unknown else "")
        )
    site = OpenSite.from_context(context)
    ticket = require_ticket(site, ours, question)
    site.require_allowed()
    masking = masking_of(site, ticket, question)
    request = require_sound(incoming, site)
    if site.guarded or site.policy.asks or ticket:
        asked = None if isinstance(request, SumsRequest) else request
        admit(site, incoming, asked, ticket.serial if ticket else 0, audit)
    if ticket and audit and question:
        own = ticket.name_of(key_hash(identity(site.node.key).public_key())) or ""
        keep_receipts(audit.folder, ticket, question.ticket, own, question.receipts)
    return site, request, masking


def _refusal(error: Exception, context: Context) -> OutgoingReply:
    """Log a mistake and return its public version as a reply."""
    _log_once(str(error), context.run_id)
    said = {"message": getattr(error, "public", str(error)), "release": release()}
    return OutgoingReply.records(error={"site": _own_name(context)} | said)


def _own_name(context: Context) -> str:
    """Return the site's name, which the coordinator does not know before the first reply."""
    node = context.node_config
    return str(node.get("site") or f"site-{node.get('partition-id', '?')}")


def _where(error: Exception) -> str:
    """Return an exception's type and text, and the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"


@lru_cache(maxsize=64)
def _log_once(text: str, run_id: int) -> None:
    """Log a mistake once per run: simulated sites share a process and most mistakes."""
    log.error("%s", text)
