"""Tickets: whether the study's person has signed this run, and whether the ticket's executor asks."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from edelweiss.client_app.connection import read_key
from edelweiss.client_app.errors import RefusedError
from edelweiss.federation.seals import key_hash
from edelweiss.federation.ticket import TicketError, config_hash, require_signed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from edelweiss.client_app.site import OpenSite
    from edelweiss.federation.seals import Question
    from edelweiss.federation.ticket import Ticket


@cache
def identity(file: str) -> EllipticCurvePrivateKey:
    """Return the site's private key, read once in a process.

    Raises
    ------
    ConfigError
        If it cannot be used.
    """
    return read_key(file)


def require_ticket(site: OpenSite, release: str, question: Question | None) -> Ticket | None:
    """Return the ticket of the run that a message is part of; None for a site that pins no study key.

    Parameters
    ----------
    site : OpenSite
        This site in the run.
    release : str
        What it runs: the app with the run's plug-ins.
    question : Question, optional
        The message; None without a seal.

    Raises
    ------
    RefusedError
        With everything that keeps the message from being the one that the study key allows.
    """
    if not site.pinned:
        return None
    if not site.run.ticket:
        raise RefusedError(
            "the run has no ticket, and this site takes part in none without (study-keys): submit it with --study-key"
        )
    try:
        ticket = require_signed(site.run.ticket, site.pinned)
    except TicketError as error:
        raise RefusedError(str(error)) from None
    own = ticket.name_of(key_hash(identity(site.node.key).public_key()))
    wrong = []
    if ticket.config != config_hash(site.run.written()):
        wrong.append("the run-config is not the one that its ticket is for")
    if ticket.release != release:
        wrong.append(f"its ticket is for version {ticket.release}, and this site runs {release}")
    if len(ticket.sites) != site.run.sites:
        wrong.append(f"sites = {site.run.sites}, and its ticket names {len(ticket.sites)}")
    if own is None:
        wrong.append("its ticket does not name this site's key")
    elif site.node.site not in ("", own):
        wrong.append(f"its ticket calls this site {own!r}, which calls itself {site.node.site!r}")
    if question is None or not question.is_by(ticket.executor):
        wrong.append("the message is not from the executor that its ticket names")
    if wrong:
        raise RefusedError("; ".join(wrong))
    return ticket
