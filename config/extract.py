"""``[extract]`` of a study file: the query by which a hospital with a database gets its table."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from edelweiss.common import ConfigError, shorter
from edelweiss.common.files import TEXT, read_file, reason
from edelweiss.config.keys import Keys


class ExtractTable(Keys, strict=False):
    """``[extract]``."""

    query: str = Field("", description="one SELECT that returns the table: the columns that the study names")
    query_file: str = Field("", description="instead, a file with it, relative to the study file")

    def contradictions(self) -> list[str]:
        """Return a line for each contradiction between keys."""
        if bool(self.query) == bool(self.query_file):
            return ["extract: give query or query-file, one of them"]
        return []


def read_query(file: Path) -> str:
    """Read a file with one query; ConfigError if it cannot be read."""
    try:
        return read_file(file, TEXT).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError("query", [f"{shorter(str(file))} cannot be read: {reason(error)}"]) from None
