"""``refuse RUN``: the counterpart of ``approve``."""

from __future__ import annotations

import argparse

from edelweiss.client_app.commands.approve import decide, declare

__all__ = ["DESCRIPTION", "declare", "run"]

DESCRIPTION = "Turn a run away that waits for you, or withdraw from one that has begun; its coordinator is told so."


def run(options: argparse.Namespace) -> int:
    """Write the decision."""
    return decide(options, "refused")
