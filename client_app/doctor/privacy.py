"""What protects the site's patients: its privacy budget and ledger, or nothing but trust."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edelweiss.client_app.doctor import Finding

if TYPE_CHECKING:
    from edelweiss.client_app.connection import JoinConfig


def examine_privacy(config: JoinConfig) -> Finding:
    """Read the ledger, if there is a budget; without one, say what the coordinator can do."""
    from edelweiss.client_app.doubts import ledger_says
    from edelweiss.client_app.policy import TRUST
    from edelweiss.client_app.policy.rules import Policy
    from edelweiss.common import ConfigError

    try:
        policy = Policy.read(config.policy)
    except ConfigError:  # said already
        return Finding("warning", "privacy", TRUST)
    if not policy.budget:
        return Finding("warning", "privacy", TRUST)
    if not config.state_dir:
        return Finding(
            "error", "privacy", "state-dir is missing: with a privacy budget, what was spent is written there"
        )
    text, doubt = ledger_says(config)
    if doubt:
        return Finding("error", "privacy", doubt)
    if not policy.budget.witness:
        text += "; a whole disk put back from a snapshot, or a state-dir from before the first answer, would not be "
        text += "noticed: see witness in your rules"
    return Finding("ok", "privacy", text)
