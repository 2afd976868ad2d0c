"""The ticket of a run at the coordinator's executor, which seals the questions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from edelweiss.config import ConfigError
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.federation.seals import Seals
from edelweiss.federation.ticket import (
    TicketError,
    config_hash,
    private_key,
    read,
    require_signed,
    study_key,
    ticket_hash,
)

if TYPE_CHECKING:
    from edelweiss.config import RunConfig

STUDY_KEYS = "EDELWEISS_STUDY_KEYS"
"""Environment variable of an executor: the study keys whose runs it takes, each its digits or its file, separated by
blanks; empty: it takes all runs."""
EXECUTOR_KEY = "EDELWEISS_EXECUTOR_KEY"
"""Environment variable of an executor: the file of its private key."""


def seals_of(config: RunConfig) -> Seals | None:
    """Return what seals a run's questions; None for a run without a ticket.

    Raises
    ------
    ConfigError
        If the ticket cannot be used here, or this executor demands one.
    """
    try:
        study_keys = [study_key(text) for text in os.environ.get(STUDY_KEYS, "").split()]
    except ValueError as error:
        raise ConfigError("environment", [f"{STUDY_KEYS} = {os.environ[STUDY_KEYS]!r}: each {error}"]) from None
    if not config.ticket:
        if study_keys:
            raise ConfigError("run-config", ["ticket is missing, and this coordinator demands one: use --study-key"])
        return None
    wrong = []
    try:
        ticket = require_signed(config.ticket, study_keys) if study_keys else read(config.ticket)
        if not (file := os.environ.get(EXECUTOR_KEY, "")):
            raise TicketError(f"no executor's key here: {EXECUTOR_KEY} names its file; a simulation needs no ticket")
        key = private_key(file)
    except TicketError as error:
        raise ConfigError("run-config", [f"ticket: {error}"]) from None
    if ticket.config != config_hash(config.written()):
        wrong.append("ticket: it is for another run-config; submit with --study-key to sign this one")
    if ticket.release != (ours := fingerprint()):
        wrong.append(f"ticket: it is for version {ticket.release}, and the coordinator runs {ours}")
    if len(ticket.sites) != config.sites:
        wrong.append(f"ticket: it names {len(ticket.sites)} sites, and sites = {config.sites}")
    if ticket.executor != key.public_key().public_bytes_raw().hex():
        wrong.append("ticket: it names another executor's key")
    if wrong:
        raise ConfigError("run-config", wrong)
    return Seals(ticket, ticket_hash(config.ticket), key)
