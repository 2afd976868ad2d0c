"""The error of a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


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
