"""What a site's operator has to settle before a run begins: its state folder was put back, or cannot be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edelweiss.client_app.connection import JoinConfig
    from edelweiss.client_app.policy.rules import Budget

COPIED = (
    "the audit log's file was put back from a copy, or linked, or given another owner or other rights. If it is an "
    "older copy, runs, answers and decisions are missing: put the latest back. If nothing was answered since, say so: "
    "edelweiss-site audit --acknowledge"
)


def copy_doubt(state: Path) -> str:
    """Return that a state folder was put back from a copy, as its audit log shows; empty if it was not."""
    from edelweiss.client_app.audit import Audit

    return COPIED if Audit(state).copied() else ""


def budget_of(config: JoinConfig) -> Budget | None:
    """Return a site's privacy budget; None without one, or where its rules cannot be read, which is said elsewhere."""
    if not config.policy:
        return None
    from edelweiss.client_app.policy.rules import Policy  # slow to import
    from edelweiss.common import ConfigError

    try:
        return Policy.read(config.policy).budget or None
    except ConfigError:
        return None


def ledger_says(config: JoinConfig) -> tuple[str, str]:
    """Return what a site has spent of its privacy budget, and why its ledger cannot be trusted; either is empty.

    Both are, where there is no budget, or the rules cannot be read.
    """
    if not config.state_dir or not (budget := budget_of(config)):
        return "", ""
    from edelweiss.client_app.errors import RefusedError
    from edelweiss.client_app.policy.records import Records
    from edelweiss.client_app.privacy.ledger import spent_in_words
    from edelweiss.common import ConfigError
    from edelweiss.common.files import reason

    shared = config.partition_id >= 0
    try:
        return spent_in_words(Records(config.state_dir, config.site if shared else ""), budget), ""
    except ConfigError as error:
        return "", "; ".join(error.problems)
    except RefusedError as error:
        return "", str(error)
    except OSError as error:
        return "", f"its files cannot be read: {reason(error)}"


def doubts(config: JoinConfig) -> Iterator[str]:
    """Yield them, each with the way out."""
    if config.state_dir:
        yield from filter(None, (copy_doubt(Path(config.state_dir).expanduser()), ledger_says(config)[1]))
