"""Names of classes and functions in files: two that differ in what they were given or enclose have two names."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from edelweiss.common.errors import PlugInError
from edelweiss.common.suggest import shown

PLAIN = (type(None), bool, int, float, complex, str, bytes)
LONGEST = 60  # characters of arguments in a name


def name_of(thing: object) -> str:
    """Return ``module:name`` of a class or a function, such as ``mine:Net``.

    A partial's ends with its arguments, as ``mine:Net(3, width=4)``; a local function's or class's, also a lambda's,
    with a hash of its code and of what it encloses, as ``mine:make.<locals>.<lambda>-0f3a2b1c``. Those at the top of a
    module have one name, however often they are defined anew.

    Raises
    ------
    PlugInError
        If it was given, or encloses, what cannot be told apart from another of its kind.
    """
    if isinstance(thing, partial):
        arguments = ", ".join(_arguments(thing))
        return f"{name_of(thing.func)}({arguments if len(arguments) <= LONGEST else _hash(arguments)})"
    own: Any = thing if hasattr(thing, "__qualname__") else type(thing)
    name = f"{own.__module__}:{own.__qualname__}"
    return f"{name}-{_hash(_content(own, ()))}" if "<" in name else name


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]


def _arguments(thing: partial[Any]) -> Iterator[str]:
    for each in thing.args:
        yield _content(each, ())
    for key, each in thing.keywords.items():
        yield f"{key}={_content(each, ())}"


def _content(value: Any, within: tuple[object, ...]) -> str:
    """Return a text that is the same in each process, and another for another value."""
    if isinstance(value, PLAIN):
        return repr(value)
    if any(value is each for each in within):
        return "itself"
    within = (*within, value)
    if isinstance(value, list | tuple | set | frozenset):
        parts = [_content(each, within) for each in value]
        return f"{type(value).__name__}({', '.join(sorted(parts) if isinstance(value, set | frozenset) else parts)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_content(key, within)}: {_content(each, within)}' for key, each in value.items())}}}"
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, CodeType):
        return f"{value.co_code.hex()} {value.co_names} {_content(value.co_consts, within)}"
    if isinstance(value, partial):
        return f"{_content(value.func, within)}({', '.join(_arguments(value))})"
    if hasattr(value, "__qualname__") and "<" not in value.__qualname__:
        return f"{value.__module__}:{value.__qualname__}"
    if isinstance(value, FunctionType):
        cells = [each.cell_contents for each in value.__closure__ or ()]
        used = {key: each for key in value.__code__.co_names if isinstance(each := value.__globals__.get(key), PLAIN)}
        return _content((value.__code__, value.__defaults__, value.__kwdefaults__, cells, used), within)
    if isinstance(value, type):
        own = {key: each for key, each in vars(value).items() if isinstance(each, (FunctionType, *PLAIN))}
        own = {key: each for key, each in own.items() if key not in ("__module__", "__doc__")}
        return _content((value.__bases__, own), within)
    if hasattr(value, "tobytes") or hasattr(value, "numpy"):
        array = value.numpy() if hasattr(value, "numpy") else value
        return f"{type(value).__name__} {array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
    try:
        return f"{type(value).__qualname__} {hashlib.sha256(pickle.dumps(value, 5)).hexdigest()}"
    except Exception:  # whatever its state raises
        text = (
            f"a local function, or a partial, that holds {shown(value)} cannot be told apart from one that holds "
            "another: write a class or a function at the top of a module, and give it what can be saved"
        )
        raise PlugInError(text) from None
