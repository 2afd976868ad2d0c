"""A hash of the app's own sources: a coordinator and a site that run different versions must notice."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("client_app", "config", "strategies", "federation", "evidence", "problems", "models", "datasets", "common")


@cache
def fingerprint() -> str:
    """Return 12 hex digits of the SHA-256 of every source file that a site runs."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
