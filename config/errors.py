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


def explain(error: ValidationError) -> list[str]:
    """Say in a line each what pydantic found: the key, the value, what is allowed."""
    lines = []
    for item in error.errors():
        message = item["msg"].removeprefix("Value error, ")
        if not message.startswith("unknown "):  # such a message names the value already
            message = f"{'.'.join(map(str, item['loc']))} = {item['input']!r}: {message[0].lower()}{message[1:]}"
        lines.append(message)
    return lines
