"""Errors of configurations, and fields of errors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


LISTED = 10  # problems in a message, at most


class Fields(Exception):  # noqa: N818 -- what errors of several families have
    """The fields of an error about one value; programs read these and not the message.

    Attributes
    ----------
    key : str
        The key, column or name concerned; empty for none.
    value : object
        The offending value.
    allowed : object
        The value or values allowed, where they are few.
    row : int, optional
        The row of a table, counted from 1.
    """

    def __init__(
        self, *args: object, key: str = "", value: object = None, allowed: object = None, row: int | None = None
    ) -> None:
        super().__init__(*args)
        self.key, self.value, self.allowed, self.row = key, value, allowed, row


class FieldError(Fields, ValueError):
    """An error about one value; see `Fields`."""


class ConfigError(ValueError):
    """A configuration that cannot be used. The message has the first problems, and how many more there are.

    Attributes
    ----------
    problems : list of str
        Everything that is wrong with it; each line begins with the key, then the value, what is allowed.
    keys : list of str
        The key that each problem begins with; empty for a problem without one.
    """

    def __init__(self, what: str, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        found = [re.match(r"(?:unknown key )?'?([\w.-]+)'?(?= =|:|\.? |$)", problem) for problem in problems]
        self.keys = [match[1] if match else "" for match in found]
        count = f"{len(problems):,} problems" if len(problems) > 1 else "1 problem"
        more = [f"and {len(problems) - LISTED:,} more"] if len(problems) > LISTED else []
        lines = [f"  - {problem}" for problem in [*problems[:LISTED], *more]]
        super().__init__("\n".join([f"{count} in the {what}:", *lines]))


class PlugInError(ConfigError):
    """A plug-in that cannot be used; the message is for the user."""

    def __init__(self, *texts: str) -> None:
        super().__init__("run-config", list(texts))
