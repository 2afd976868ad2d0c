"""What pydantic found, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edelweiss.common import shorter, shown
from edelweiss.common.schema import in_words

if TYPE_CHECKING:
    from pydantic import ValidationError


def explain(error: ValidationError) -> list[str]:
    """Say in a line each what pydantic found: the key, the value, what is allowed."""
    lines = []
    for item in error.errors():
        message = in_words(item)
        if not message.startswith("unknown "):  # such a message names the value already
            key = shorter(".".join(map(str, item["loc"])))
            message = f"{key} = {shown(item['input'])}: {message}"
        lines.append(message)
    return lines
