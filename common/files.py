"""Files that others wrote: read as a whole, or refused in words, whatever lies in their place."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from edelweiss.common.memory import free_memory

TEXT = 2**24  # bytes of a configuration, at most
LONGEST_PATH, LONGEST_NAME = 3000, 255  # bytes; Linux takes 4,095, of which names that are looked for take some
DEEPEST = 20  # tables or lists within each other
MANY_DOTS = re.compile(rb"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){50}")  # a key of so many parts
DEEP = "it nests tables or lists too deeply"


def as_path(text: str | Path) -> Path:
    """Return the path that a text names; ``~`` is the home folder.

    Raises
    ------
    OSError
        When it can name none.
    """
    if "\0" in str(text):
        raise OSError(errno.EINVAL, "a path cannot have a NUL character")
    try:
        path = Path(text).expanduser()
        names = [os.fsencode(name) for name in path.parts]
    except RuntimeError:
        raise OSError(errno.EINVAL, f"{str(text).partition('/')[0]} is nobody's home folder here") from None
    except UnicodeError:
        raise OSError(errno.EINVAL, "a path must be text of Unicode characters") from None
    # Here, so that nobody who looks below it need ask: the system refuses it at each look, by another way each time.
    if sum(len(name) + 1 for name in names) > LONGEST_PATH or max(map(len, names), default=0) > LONGEST_NAME:
        allowed = f"it may have {LONGEST_PATH:,} bytes, and each name in it {LONGEST_NAME}"
        raise OSError(errno.ENAMETOOLONG, f"a path is too long: {allowed}")
    return path


def is_file(path: str | Path) -> bool:
    """Whether a regular file is there; a path that cannot be is none."""
    try:
        return as_path(path).is_file()
    except OSError:
        return False


def unwritable(folder: str | Path) -> str:
    """Say why nothing can be written into a folder, which need not be there yet; empty where it can."""
    try:
        folder = as_path(folder)
        there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
        if not there.is_dir():
            return f"{there} is no folder"
        return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} may not be written"
    except OSError as error:
        return reason(error)


@contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading.

    Raises
    ------
    OSError
        When it cannot be read, or is none: who reads a pipe waits, and a device may have no end.
    """
    path = as_path(path)
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        yield file


def read_file(path: str | Path, most: int = 0) -> bytes:
    """Read a regular file.

    Parameters
    ----------
    path
        Of the file.
    most
        Bytes that it may have. 0: as many as there is memory.

    Raises
    ------
    OSError
        When it cannot be read, is too large, or is none.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        # Of a small file nobody need ask how much memory there is.
        if size > (most or TEXT) and size > (most := most or free_memory()):
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and {most:,} can be taken", str(path))
        return file.read()


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises
    ------
    OSError
        When it cannot be read.
    ValueError
        When it is no TOML, or nests without end.
    """
    return toml_in(read_file(path, TEXT))


WHOLE, END = "# whole with its last line, which is: # end", "# end"


def marked(toml: str) -> str:
    """Return TOML with a first and a last line by which `toml_in` knows that nothing is missing at its end.

    TOML itself cannot tell: without its last keys a file is right, and they would stand for their defaults.
    """
    return f"{WHOLE}\n{toml}{END}\n"


def toml_in(data: bytes) -> dict[str, Any]:
    """Parse TOML; ValueError says what is wrong."""
    lines = data.splitlines()
    if WHOLE.encode() in lines and lines[-1] != END.encode():
        raise ValueError(f"it is cut off: its last line, {END!r}, is missing")
    if MANY_DOTS.search(data):  # the parser takes hours
        raise ValueError(DEEP)
    values: dict[str, Any] = _parsed(data, "TOML", tomllib.loads)
    return values


def read_json(path: str | Path) -> Any:
    """Read a JSON file; raises as `read_toml` does."""
    return json_in(read_file(path, TEXT))


def json_in(data: bytes) -> Any:
    """Parse JSON; ValueError says what is wrong."""
    return _parsed(data, "JSON", json.loads)


def _parsed(data: bytes, form: str, parse: Callable[[str], Any]) -> Any:
    try:
        values = parse(data.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"it is no UTF-8 text: byte {error.start + 1} cannot be") from None
    except RecursionError:
        raise ValueError(DEEP) from None
    except ValueError as error:
        raise ValueError(f"it is no {form}: {error}") from None
    if depth(values) > DEEPEST:
        raise ValueError(DEEP)
    return values


def depth(value: object) -> int:
    """Return how many tables and lists are within each other, up to one more than `DEEPEST`: one may hold itself."""
    level, deep = [value], 0
    while deep <= DEEPEST and (level := [each for each in level if isinstance(each, dict | list | tuple)]):
        deep += 1
        inside = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
        level = list({id(inner): inner for inner in inside}.values())
    return deep


def reason(error: Exception) -> str:
    """Say why a file cannot be read, without its path."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
