"""Readers of files that others wrote: a file is read whole, or refused with a reason."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from edelweiss.common.memory import free_memory

TEXT = 2**24  # bytes of a configuration, at most
LONGEST_PATH, LONGEST_NAME = 3000, 255  # bytes; Linux allows 4,095, and names are appended
CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029]")
DEEPEST = 20  # nested tables or lists
MANY_DOTS = re.compile(rb"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){50}")  # a key of 50 parts
DEEP = "it nests tables or lists too deeply"


def is_address(text: str) -> bool:
    """Whether a text is a URL, and no path."""
    return bool(re.match(r"[a-z][a-z0-9+.-]+://", text, re.IGNORECASE))


def as_path(text: str | Path) -> Path:
    """Return the path that a text names; ``~`` is the home folder.

    Raises
    ------
    OSError
        If it is not a valid path.
    """
    if CONTROL.search(str(text)):  # of which a message of one line could not speak
        raise OSError(errno.EINVAL, "a path cannot have control characters, such as NUL or an end of line")
    try:
        path = Path(text).expanduser()
        names = [*map(os.fsencode, path.parts)]
    except RuntimeError:
        raise OSError(errno.EINVAL, f"{str(text).partition('/')[0]} is not a home folder here") from None
    except UnicodeError:
        raise OSError(errno.EINVAL, "a path must be text of Unicode characters") from None
    # Checked once, here: the system reports a long path differently at each use.
    if len(b"/".join(names)) >= LONGEST_PATH or max(map(len, names), default=0) > LONGEST_NAME:
        allowed = f"at most {LONGEST_PATH:,} bytes, and {LONGEST_NAME} for each name in it"
        raise OSError(errno.ENAMETOOLONG, f"a path is too long: {allowed}")
    return path


def is_file(path: str | Path) -> bool:
    """Whether a path is valid and names a regular file."""
    try:
        return as_path(path).is_file()
    except OSError:
        return False


def unwritable(folder: str | Path) -> str:
    """Return why a folder, which need not exist, is not writable; empty if it is."""
    try:
        folder = as_path(folder)
        there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
        if not there.is_dir():
            return f"{there} is not a folder"
        return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} is not writable"
    except OSError as error:
        return reason(error)


@contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading.

    Raises
    ------
    OSError
        If it cannot be read or is not a regular file: a pipe would block, and a device may be endless.
    """
    path = as_path(path)
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        yield file


def read_file(path: str | Path, most: int = 0) -> bytes:
    """Read a regular file of at most ``most`` bytes; 0: at most what fits into the free memory.

    Raises
    ------
    OSError
        If it cannot be read, is too large or not a regular file.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        # Free memory is only looked up for a large file.
        if size > (most or TEXT) and size > (most := most or free_memory()):
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {most:,} can be read", str(path))
        return file.read()


def write_private(file: Path, content: bytes, *, once: bool = False) -> bool:
    """Write a file atomically and for good, readable only by its owner; ``once``: unless another process was faster.

    Return whether it was written.
    """
    for folder in (file.parent.parent, file.parent):  # with `parents` alone the outer one would be open to others
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}.{threading.get_ident()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    if once:
        try:
            os.link(draft, file)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
    else:
        os.replace(draft, file)
    place = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(place)
    finally:
        os.close(place)
    return True


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Let one process at a time, and one thread of it, do what follows; the file, its owner's alone, stays."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT, 0o600)) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If it is not TOML, or nested too deeply.
    """
    return toml_in(read_file(path, TEXT))


WHOLE, END = "# whole with its last line, which is: # end", "# end"


def marked(toml: str) -> str:
    """Return TOML between two comments by which `toml_in` detects a truncated file.

    TOML without its last keys is valid, and they would take their defaults.
    """
    return f"{WHOLE}\n{toml}{END}\n"


def toml_in(data: bytes) -> dict[str, Any]:
    """Parse TOML; raises ValueError with the reason."""
    lines = data.splitlines()
    if WHOLE.encode() in lines and lines[-1] != END.encode():
        raise ValueError(f"it is cut off: its last line, {END!r}, is missing")
    if MANY_DOTS.search(data):  # which would take the parser hours
        raise ValueError(DEEP)
    values: dict[str, Any] = _parsed(data, "TOML", tomllib.loads)
    return values


def read_json(path: str | Path) -> Any:
    """Read a JSON file; raises as `read_toml` does."""
    return json_in(read_file(path, TEXT))


def json_in(data: bytes) -> Any:
    """Parse JSON; raises ValueError with the reason."""
    return _parsed(data, "JSON", json.loads)


def _parsed(data: bytes, form: str, parse: Callable[[str], Any]) -> Any:
    try:
        values = parse(data.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text: byte {error.start + 1} is invalid") from None
    except RecursionError:
        raise ValueError(DEEP) from None
    except ValueError as error:
        raise ValueError(f"it is not {form}: {error}") from None
    if depth(values) > DEEPEST:
        raise ValueError(DEEP)
    return values


def depth(value: object) -> int:
    """Return the depth of nested tables and lists, at most `DEEPEST` + 1: one may contain itself."""
    level, deep = [value], 0
    while deep <= DEEPEST and (level := [each for each in level if isinstance(each, dict | list | tuple)]):
        deep += 1
        inside = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
        level = list({id(inner): inner for inner in inside}.values())
    return deep


def reason(error: Exception) -> str:
    """Return the message of an error without the path."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
