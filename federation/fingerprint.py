"""Hashes of the sources, by which coordinator and sites detect different releases."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path

from edelweiss.common import PlugInError, shown
from edelweiss.common.files import reason

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "client_app",
    "config",
    "strategies",
    "federation",
    "evidence",
    "problems",
    "models",
    "datasets",
    "web",
    "common",
)

_COVERED: ContextVar[tuple[str, ...]] = ContextVar("plug-ins", default=())
_HASHES: dict[str, str] = {}  # of packages, as they were when last seen not yet imported


@cache
def release() -> str:
    """Return 12 hex digits of the SHA-256 of all source files that a site runs."""
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
        The top-level packages of the plug-ins; default: those of `covering`.

    Raises
    ------
    PlugInError
        If one of them is not installed.
    """
    names = _COVERED.get() if packages is None else packages
    if not names:
        return release()
    whole = "\0".join([release(), *(f"{name} {package_hash(name)}" for name in sorted(names))])
    return hashlib.sha256(whole.encode()).hexdigest()[:12]


@contextmanager
def covering(packages: Sequence[str]) -> Iterator[None]:
    """Let fingerprints within the block include a run's plug-ins."""
    before = _COVERED.set(tuple(packages))
    try:
        yield
    finally:
        _COVERED.reset(before)


def package_hash(name: str) -> str:
    """Return the SHA-256 of all files of a top-level package or module, found without importing it.

    Names are relative to the package, and ``__pycache__`` is left out: two installations of a wheel have the same hash.
    Once the package is imported, the hash stays that of the code that this process runs.

    Raises
    ------
    PlugInError
        When it is not installed.
    """
    if name not in sys.modules or name not in _HASHES:
        _HASHES[name] = installed_hash(name)
    return _HASHES[name]


def installed_hash(name: str) -> str:
    """Return the hash of a package as it lies on the disk now, see `package_hash`.

    Raises
    ------
    PlugInError
        When it is not installed.
    """
    invalidate_caches()
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # no name of a top-level package
        spec = None
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    try:
        files = [(path.relative_to(folder), path) for folder in folders for path in _files(folder)]
        if spec and not folders and spec.has_location and spec.origin:
            files = [(Path(Path(spec.origin).name), Path(spec.origin))]
        hashes = sorted((os.fsencode(place.as_posix()), _file_hash(path)) for place, path in files)
    except OSError as error:
        raise PlugInError(f"package {shown(name)} cannot be read: {reason(error)}") from None
    if not hashes:
        raise PlugInError(f"package {shown(name)} is not installed here")
    return hashlib.sha256(b"".join(place + b"\0" + found for place, found in hashes)).hexdigest()


def _files(folder: Path, within: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yield all files below a folder, also through links; a link to a folder that it lies in ends there."""
    if (here := folder.resolve()) in within:
        return
    for path in folder.iterdir():
        if path.is_file():
            yield path
        elif path.is_dir() and path.name != "__pycache__":
            yield from _files(path, within | {here})


def _file_hash(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
