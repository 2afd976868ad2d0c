"""The one error of this package, and how a wrong name gets its suggestion."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic import ValidationError


class ConfigError(ValueError):
    """A configuration that cannot be used.

    Attributes
    ----------
    problems : list of str
        Everything that is wrong with it; each line names the key, the value, what is allowed.
    """

    def __init__(self, what: str, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        count = f"{len(problems)} problems" if len(problems) > 1 else "1 problem"
        super().__init__(f"{count} in the {what}:\n" + "\n".join(f"  - {problem}" for problem in problems))


def unknown(kind: str, name: str, allowed: Iterable[str]) -> str:
    """Say that a name is unknown, which is the closest, and which there are."""
    names = sorted(allowed)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"unknown {kind} {name!r}.{hint} There are: {', '.join(names)}"


def unknown_key(key: str, known: Iterable[str], chosen: Iterable[str], sites: Iterable[str]) -> str:
    """Say that a run-config key is unknown, and which one was meant, or where all of them are.

    Parameters
    ----------
    key : str
        The unknown one.
    known : iterable of str
        All keys; those of a table as ``"codasca.lr"``.
    chosen : iterable of str
        The tables that the run uses, such as ``"codasca"``: a key without a table is looked for in these, too.
    sites : iterable of str
        Keys of a site's own configuration.
    """
    said, known = f"unknown key {key!r}.", set(known)
    if key in sites:
        return f"{said} Each site's operator sets it, in --node-config"
    table, _, word = key.rpartition(".")
    inside = {name.removeprefix(f"{table}."): name for name in known if table and name.startswith(f"{table}.")}
    top = {name: name for name in known if "." not in name}
    if table and word in top:
        return f"{said} Did you mean {word!r}?"
    if inside:
        meant, sought = inside, word
    elif table:  # no such table
        meant, sought = {name: name for name in known}, key
    else:
        tables = tuple(f"{own}." for own in chosen)
        meant, sought = {name.partition(".")[2]: name for name in known if name.startswith(tables)} | top, key
    if close := difflib.get_close_matches(sought, meant, n=1):
        return f"{said} Did you mean {meant[close[0]]!r}?"
    if inside:
        return f"{said} {table!r} has {', '.join(sorted(inside))}"
    if there := sorted(name for name in known if name.endswith(f".{word}")):
        owners = ", ".join(name.partition(".")[0] for name in there)
        return f"{said} It is one of {owners}: write {there[0]!r}"
    return f"{said} pyproject.toml lists all keys, under [tool.flwr.app.config]"


def explain(error: ValidationError) -> list[str]:
    """Say in a line each what pydantic found: the key, the value, what is allowed."""
    lines = []
    for item in error.errors():
        message = item["msg"].removeprefix("Value error, ")
        if not message.startswith("unknown "):  # such a message names the value already
            message = f"{'.'.join(map(str, item['loc']))} = {item['input']!r}: {message[0].lower()}{message[1:]}"
        lines.append(message)
    return lines
