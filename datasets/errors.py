"""The error of this package, with a message for the site's own log and a public one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edelweiss.common import FieldError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN = 5  # offending rows, values or columns named in one message
_HEAD, _NEXT = " problems with the data:\n- ", "\n- "


class DataError(FieldError):
    """Unusable data, or an invalid request for them.

    Parameters
    ----------
    message
        The full text for the site's own log: file, row, value, what is allowed and the fix.
    public
        The text that may leave the site: no path, no sample value, no patient id. It may name a column, a file's base
        name and a count. The default says nothing about the data.
    fields
        The fields of `FieldError`; ``key`` is the column or the config key concerned.

    Attributes
    ----------
    problems : tuple of DataError
        The errors that `join` combined; empty for a single one.
    """

    def __init__(
        self, message: str, public: str = "the site's data cannot be used; the site's own log says why", **fields: Any
    ) -> None:
        super().__init__(message, public, **fields)  # both are args, so both survive pickling between processes
        self.problems: tuple[DataError, ...] = ()

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def public(self) -> str:
        """The version that may leave the site."""
        return str(self.args[1])

    @classmethod
    def plain(cls, message: str, **fields: Any) -> DataError:
        """Return an error whose full text reveals nothing about a site's data, so that it is also the public one."""
        return cls(message, message, **fields)

    @classmethod
    def join(cls, errors: Sequence[DataError]) -> DataError:
        """Combine all problems into one error, with the fields of the first."""
        if len(errors) == 1:
            return errors[0]
        full, public = (
            [part for text in texts for part in _parts(text)]
            for texts in (map(str, errors), (error.public for error in errors))
        )
        first = errors[0]
        combined = cls(
            *(f"{len(parts)}{_HEAD}" + _NEXT.join(parts) for parts in (full, public)),
            **{name: getattr(first, name) for name in ("key", "value", "allowed", "row")},
        )
        combined.problems = tuple(each for error in errors for each in error.problems or (error,))
        return combined


def _parts(text: str) -> list[str]:
    """Return the problems listed in a text of `DataError.join`, or the text itself."""
    count, head, listed = text.partition(_HEAD)
    return listed.split(_NEXT) if head and count.isdigit() else [text]


def examples(items: Sequence[object], most: int = _SHOWN) -> str:
    """List the first few items and the number of others."""
    shown = ", ".join(str(item) for item in items[:most])
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"
