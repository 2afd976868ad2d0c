"""Where a site keeps its files."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from functools import lru_cache
from pathlib import Path

from edelweiss.common import ConfigError
from edelweiss.common.files import as_path, reason


def state_folder(state_dir: str) -> Path:
    """Return the site's state folder; by default a private temporary one, which is lost with the machine.

    Raises
    ------
    ConfigError
        If another user owns the default folder.
    """
    if state_dir:
        return _named(state_dir)
    folder = Path(tempfile.gettempdir()) / f"edelweiss-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigError(
            "node-config", ["state-dir is missing, and the default folder is not private to this user: set state-dir"]
        )
    return folder


@lru_cache(maxsize=8)
def _named(state_dir: str) -> Path:
    try:
        return as_path(state_dir)
    except OSError as error:
        raise ConfigError("node-config", [f"state-dir cannot be used: {reason(error)}"]) from None
