"""The commands of ``edelweiss-site``, one file each; see ``client_app/cli.py``."""

from __future__ import annotations

import argparse
import os


def state_folder(text: str) -> str:
    """Return the state folder that an option names, for argparse, which must exist."""
    from edelweiss.common import shown
    from edelweiss.common.files import as_path, reason

    try:
        folder = as_path(text)
        os.listdir(folder)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{shown(text)} cannot be read: {reason(error)}") from None
    return str(folder)
