"""Keys of a file or a command: their types, defaults and meanings are pydantic fields, and all mistakes are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from edelweiss.common import key_of, text_errors, unknown
from edelweiss.config.errors import explain

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    def checked(cls, values: Mapping[str, Any]) -> tuple[Self | None, list[str]]:
        """Return what the values make, None where they make nothing, and everything that is wrong with them."""
        keys = cls.keys()
        wrong = [unknown("key", key, keys) for key in values if key not in keys]
        wrong += [text for key, value in values.items() for text in text_errors(key, value)]
        try:
            return cls.model_validate({key: value for key, value in values.items() if key in keys}), wrong
        except ValidationError as error:
            return None, wrong + explain(error)
