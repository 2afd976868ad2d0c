"""Signs a run for the sites that pin the study's key: the ticket that `submit --study-key` adds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from edelweiss.common import ConfigError, shorter
from edelweiss.common.files import reason
from edelweiss.config import RunConfig
from edelweiss.config.plug_ins import load_named, packages_of
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.federation.seals import public_key_hash
from edelweiss.federation.ticket import Ticket, TicketError, config_hash, private_key, public_digits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edelweiss.common import Value

DAY = 24 * 3600


def ticket_for(run_config: Mapping[str, Value], study_key: str, sites: str, executor: str, days: float) -> str:
    """Return the signed ticket of a run.

    Parameters
    ----------
    run_config : mapping
        The keys that differ from the defaults.
    study_key, executor : str
        Files of the study's private key and of the executor's public one.
    sites : str
        Folder with each site's public key, NAME.pub in OpenSSH's format: all sites of the run, and no others.
    days : float
        How long it lasts.

    Raises
    ------
    ConfigError
        With everything that is wrong.
    """
    config = RunConfig.parse(load_named({**run_config, "ticket": ""}))
    wrong: list[str] = []
    try:
        key = private_key(study_key)
    except TicketError as error:
        wrong.append(f"study-key: {error}")
    try:
        asks = public_digits(executor)
    except OSError as error:
        wrong.append(f"executor: {shorter(executor)} cannot be read: {reason(error)}")
    except ValueError:
        wrong.append(f"executor: {shorter(executor)} holds no public key (Ed25519, PEM), such as make_certs.sh writes")
    if not days > 0:
        wrong.append(f"days = {days:g}: must be above 0")
    roster = _roster(sites, wrong)
    if roster and len(roster) != config.sites:
        wrong.append(f"sites = {config.sites}, and {sites} has the keys of {len(roster)}: {', '.join(roster)}")
    if wrong:
        raise ConfigError("ticket", wrong)
    now = time.time()
    try:
        return Ticket(
            serial=int(now * 1e6),
            ends=int(now + days * DAY),
            release=fingerprint(packages_of(config.flat())),
            config=config_hash(config.written()),
            sites=roster,
            executor=asks,
        ).sign(key)
    except ValidationError as error:
        raise ConfigError("ticket", [f"sites: {found['msg']}" for found in error.errors()]) from None


def _roster(folder: str, wrong: list[str]) -> dict[str, str]:
    """Read the sites' public keys; adds what is wrong."""
    files = sorted(Path(folder).expanduser().glob("*.pub"))
    if not files:
        wrong.append(f"sites: {shorter(folder)} has no file NAME.pub, a site's public key")
    found = {}
    for file in files:
        try:
            found[file.stem] = public_key_hash(file)
        except ValueError as error:
            wrong.append(f"sites: {error}")
    return found
