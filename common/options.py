"""Options as dataclass fields with default, range, and meaning (the paper's symbol, unit), checked by pydantic.

Used by algorithms and problems. A field's name with dashes is its run-config key.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Interval, Le, Lt
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from edelweiss.common.suggest import shorter, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic import GetCoreSchemaHandler

LARGEST = 1e38  # of a float32
MOST = 10**9  # integer without an upper end
LONGEST = 4096  # text or path, in characters
NOUNS = {int: "an integer", float: "a finite number", bool: "true or false", str: "text"}
SIGNS = {Gt: ("gt", ">"), Ge: ("ge", ">="), Lt: ("lt", "<"), Le: ("le", "<=")}
STRICT = ConfigDict(strict=True, allow_inf_nan=False)


class HasOptions:
    """A dataclass whose fields are options, declared with pydantic's ``Field``.

    ::

        lr: float = Field(0.1, gt=0, description="η: step size")
        weighting: Literal["uniform", "examples"] = Field("uniform", description="how sites count in averages")

    A field with a plain default (``lr: float = 0.1``) is also an option.
    """

    name: ClassVar[str]
    declared: ClassVar[Mapping[str, FieldInfo]] = {}
    """The options by key."""

    def __init_subclass__(cls, **keywords: object) -> None:
        """Collect the declarations and leave plain defaults for the decorator ``dataclass``.

        A class without a name takes its Python name, not the name of its base.
        """
        super().__init_subclass__(**keywords)
        if "name" not in vars(cls):
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_+", "-", cls.__name__).strip("-").lower()
        own: dict[str, FieldInfo] = {}
        for base in reversed(cls.__mro__[1:]):  # the order of a dataclass's fields
            own |= vars(base).get("declared", {})
        for name, annotation in vars(cls).get("__annotations__", {}).items():
            default = vars(cls).get(name)
            if isinstance(default, FieldInfo):
                setattr(cls, name, default.default)
            elif not isinstance(default, bool | int | float | str) or "ClassVar" in str(annotation):
                continue
            kind = _evaluated(annotation, cls.__module__) or type(getattr(cls, name))
            own[key_of(name)] = FieldInfo.from_annotated_attribute(kind, default)
        cls.declared = own


def _evaluated(annotation: Any, module: str) -> Any:
    """Return the type of an annotation; None if it is local to a function."""
    try:
        return eval(annotation, vars(sys.modules[module])) if isinstance(annotation, str) else annotation
    except (KeyError, NameError):
        return None


class FileName:
    """Annotates the name of a file with one of these suffixes; empty: no file."""

    def __init__(self, *suffixes: str) -> None:
        self.suffixes = suffixes

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Check the suffix."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, name: str) -> str:
        if name and not name.endswith(self.suffixes):
            raise ValueError(f"must end with {' or '.join(self.suffixes)}")
        return name


def key_of(name: str) -> str:
    """Return a field's name as a run-config key."""
    return name.replace("_", "-")


def arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by key as a dataclass's arguments: the inverse of `key_of`."""
    return {key.replace("-", "_"): value for key, value in options.items()}


def suffixes(info: FieldInfo) -> tuple[str, ...]:
    """Return the suffixes of an option that names a file; else empty."""
    return next((each.suffixes for each in info.metadata if isinstance(each, FileName)), ())


def files_named(cls: type[HasOptions], options: Mapping[str, Any]) -> list[str]:
    """Return the keys of options that name a file."""
    return [key for key, info in cls.declared.items() if suffixes(info) and options.get(key)]


def choices(info: FieldInfo) -> tuple[str, ...]:
    """Return the allowed words of a choice; empty for other options."""
    return get_args(info.annotation) if get_origin(info.annotation) is Literal else ()


def allowed(info: FieldInfo) -> str:
    """Return the range of an option, "> 0 and <= 1", or its choices, "'a' | 'b'"; empty for any number."""
    if words := choices(info):
        return " | ".join(map(repr, words))
    ends = ((*SIGNS[kind], each) for kind in SIGNS for each in info.metadata if type(each) is kind)
    return " or ".join(suffixes(info)) or " and ".join(f"{sign} {getattr(each, end):g}" for end, sign, each in ends)


def option_errors(key: str, value: Any, info: FieldInfo) -> Iterator[str]:
    """Yield what is wrong with an option's value; ``key`` is its key in a run-config."""
    if type(value) is type(info.default) and value == info.default:
        return  # fast, for defaults
    kind: Any = info.annotation
    try:
        _validator(kind, *info.metadata).validate_python(value)
    except ValidationError:
        noun = "a file with" if suffixes(info) else NOUNS.get(kind, f"one of {', '.join(map(repr, choices(info)))}")
        if type(value) in (int, float) and any(abs(value) > end.le for end in _implied(kind, info.metadata)):
            noun += f" up to {MOST if kind is int else LARGEST:g}"
        ends = "" if choices(info) else f" {allowed(info)}".rstrip()
        yield f"{key} = {shown(value)}: must be {noun}{ends} ({info.description})"


@lru_cache(maxsize=1024)
def _validator(kind: Any, *metadata: Any) -> TypeAdapter[Any]:
    """Return the validator of an option, built when it is first needed and shared by equal options."""
    every = (*_implied(kind, metadata), *metadata)
    return TypeAdapter(Annotated[(kind, *every)] if every else kind, config=STRICT)


def _implied(kind: Any, metadata: Iterable[object]) -> list[Interval]:
    """Return the default bounds of a number without an upper end."""
    if kind not in (int, float) or any(isinstance(each, Le | Lt) for each in metadata):
        return []
    most = MOST if kind is int else LARGEST
    return [Interval(ge=-most, le=most)]


def check_options(instance: HasOptions, prefix: str = "") -> list[str]:
    """Return everything that is wrong with the options of an instance."""
    return [
        text
        for key, info in instance.declared.items()
        for text in option_errors(prefix + key, getattr(instance, key.replace("-", "_")), info)
    ]


def is_number(value: object) -> bool:
    """Whether a value is a number within float32."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def text_errors(key: str, value: Any) -> Iterator[str]:
    """Yield what is wrong with a text for files and terminals."""
    if isinstance(value, str):
        if len(value) > LONGEST:
            yield f"{shorter(key)} has {len(value):,} characters: at most {LONGEST:,} are allowed"
        elif any(unicodedata.category(each) in ("Cc", "Cs") for each in value if each not in "\n\t"):
            yield f"{shorter(key)} = {shown(value)}: control characters and invalid Unicode are not allowed"
