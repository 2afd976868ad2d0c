"""What join does for notifications: it hands the process its settings."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from edelweiss.client_app.beside import kept

if TYPE_CHECKING:
    from edelweiss.client_app.connection import JoinConfig
    from edelweiss.config.notify import Notify


def settings_of(config: JoinConfig, notify: Notify) -> dict[str, Any]:
    """Return what the process needs: the operator's keys, the site's name and state folder, its privacy budget."""
    from edelweiss.client_app.policy.rules import Policy, PolicyError

    try:
        budget = Policy.read(config.policy).budget
        epsilon, delta = budget.epsilon, budget.delta
    except PolicyError:  # with which the site refuses everything, and its log says so
        epsilon, delta = 0.0, 1e-6
    own = {"site": config.name, "state-dir": config.state_dir, "epsilon": epsilon, "delta": delta}
    return notify.model_dump(by_alias=True) | own


def notices_beside(config: JoinConfig, notify: Notify) -> AbstractContextManager[None]:
    """Tell the operator through the block, in a process of its own; what it is just telling it tells to the end."""
    return kept("notify", "edelweiss.client_app.notify.process", json.dumps(settings_of(config, notify)), ends=0)
