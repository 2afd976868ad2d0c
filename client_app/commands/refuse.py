"""``refuse RUN``: the counterpart of ``approve``."""

from __future__ import annotations

import argparse

from edelweiss.client_app.commands.approve import decide, declare

__all__ = ["DESCRIPTION", "declare", "run"]

DESCRIPTION = "Refuse a waiting run, or withdraw from one that has begun; its coordinator is notified."


def run(options: argparse.Namespace) -> int:
    """Write the decision."""
    return decide(options, "refused")
