"""``edelweiss-site doctor``: test everything that a site needs, with its real settings."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from edelweiss.client_app.connection import declare, join_config

if TYPE_CHECKING:
    import argparse

DESCRIPTION = (
    "Test everything that a site needs, with the options of join: connection, certificate, key, state folder, device, "
    "data. Prints a line for each: ok, warning or error, with its fix. Exit code 1 with any error."
)

__all__ = ["DESCRIPTION", "declare", "run"]


def run(options: argparse.Namespace) -> int:
    """Examine this site."""
    config = join_config(options, alone=True)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are explained in words

    from edelweiss.client_app.doctor import examine
    from edelweiss.client_app.page.beside import note_findings

    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    found = []
    for finding in examine(config):
        print(f"{finding.level:8} {finding.about:10} {finding.text}")
        found.append((finding.level, finding.about, finding.text))
    state = Path(config.state_dir).expanduser()
    if config.state_dir and state.is_dir():
        note_findings(state, found)  # for the page
    return int(any(level == "error" for level, *_ in found))
