"""``refuse``: the counterpart of ``approve``."""

from __future__ import annotations

import argparse

from edelweiss.client_app.commands.approve import decide
from edelweiss.client_app.commands.approve import declare_both as declare

__all__ = ["DESCRIPTION", "declare", "run"]

DESCRIPTION = (
    "Refuse a waiting run, or withdraw from one that has begun; its coordinator is notified. With --until, refuse in "
    "advance all new runs of a study key, algorithm, problem or model; `withdraw` takes it back."
)


def run(options: argparse.Namespace) -> int:
    """Write the decision."""
    return decide(options, "refused")
