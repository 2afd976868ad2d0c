"""Keys of a file or a command as pydantic fields: types, defaults and meanings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from edelweiss.common import hint, key_of, shorter, shown, text_errors, unknown
from edelweiss.common.schema import in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic.fields import FieldInfo


class Keys(BaseModel):
    """Base of what is read from keys: a field's name with dashes is its key, and a value is not converted."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True, alias_generator=key_of
    )

    @classmethod
    def keys(cls) -> dict[str, FieldInfo]:
        """Return the fields by key."""
        return {field.alias or name: field for name, field in cls.model_fields.items()}

    @classmethod
    def checked(cls, values: Mapping[str, Any], *, any_text: bool = False) -> tuple[Self | None, list[str]]:
        """Return the object, None if a value is invalid, and everything that is wrong with the values.

        Control characters are refused unless ``any_text`` allows them.
        """
        wrong = [text for key, value in values.items() if not any_text for text in text_errors(key, value)]
        try:
            return cls.model_validate(values, by_name=False), wrong
        except ValidationError as error:
            wrong = explain(error, cls) + wrong
        try:
            return cls.model_validate(values, by_name=False, extra="ignore"), wrong
        except ValidationError:
            return None, wrong


def explain(error: ValidationError, cls: type[Keys]) -> list[str]:
    """Return a line for each problem that pydantic found: the key, its value, and what is allowed."""
    lines = []
    for item in error.errors():
        *table, last = map(str, item["loc"])
        key = shorter(".".join([*table, last]))
        text = "must be a table" if item["type"] in ("dict_type", "model_type") else in_words(item)
        if item["type"] == "extra_forbidden":
            text = unknown("key", key, [".".join([*table, name]) for name in _names_at(cls, table)])
        elif item["type"] == "missing":
            text = f"{key} is missing"
        elif not text.startswith("unknown "):  # which names the value already
            text = f"{key} = {shown(item['input'])}: {text}"
            if item["type"] == "literal_error":
                text += hint(str(item["input"]), re.findall("'([^']*)'", item["ctx"]["expected"]))
        lines.append(text)
    return lines


def _names_at(kind: Any, path: Iterable[str]) -> list[str]:
    """Return the keys of a table within a model."""
    for name in path:
        is_model = isinstance(kind, type) and issubclass(kind, Keys)
        kind = kind.keys()[name].annotation if is_model else next(a for a in reversed(get_args(kind)) if a is not ...)
    return list(kind.keys())
