"""Hashes of what runs: a coordinator and a site that run different sources must notice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from edelweiss.common import PlugInError, shown

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("client_app", "config", "strategies", "federation", "evidence", "problems", "models", "datasets", "common")

_COVERED: ContextVar[tuple[str, ...]] = ContextVar("plug-ins", default=())


@cache
def release() -> str:
    """Return 12 hex digits of the SHA-256 of every source file of this package that a site runs."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def fingerprint(packages: Sequence[str] | None = None) -> str:
    """Return 12 hex digits for this release and the plug-ins of a run.

    Parameters
    ----------
    packages : sequence of str, optional
        The top-level packages of the plug-ins; by default those that `covering` says.

    Raises
    ------
    PlugInError
        When one of them is not installed.
    """
    names = _COVERED.get() if packages is None else packages
    if not names:
        return release()
    whole = "\0".join([release(), *(f"{name} {package_hash(name)}" for name in sorted(names))])
    return hashlib.sha256(whole.encode()).hexdigest()[:12]


@contextmanager
def covering(packages: Sequence[str]) -> Iterator[None]:
    """Let the fingerprints that a coordinator tells within the block cover a run's plug-ins."""
    before = _COVERED.set(tuple(packages))
    try:
        yield
    finally:
        _COVERED.reset(before)


@cache
def package_hash(name: str) -> str:
    """Return the SHA-256 of all sources of an installed package, found without importing it; once per process.

    Raises
    ------
    PlugInError
        When there is no such package with sources.
    """
    try:
        spec = find_spec(name)
    except ValueError:
        spec = None
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [(Path(f), path) for f in folders for path in sorted(Path(f).rglob("*.py"))]
    if spec and not folders and spec.origin and Path(spec.origin).is_file():
        files = [(Path(spec.origin).parent, Path(spec.origin))]
    if not files:
        raise PlugInError(f"package {shown(name)} is not installed here")
    digest = hashlib.sha256()
    for folder, path in files:
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
