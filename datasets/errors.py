"""The one error of this package, in two versions: for the site's own log, and for everybody else."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 5  # offending rows, values or columns named in one message
_HEAD, _NEXT = " problems with the data:\n- ", "\n- "


class DataError(ValueError):
    """A user's data, or the request for it, cannot be used.

    Parameters
    ----------
    message
        The full text for the site's own log: file, row, value, what is allowed and the fix.
    public
        The text that may leave the site: no path, no sample value, no patient id. It may name a column, a
        file's base name and a count. The default says nothing of the data.
    """

    def __init__(
        self, message: str, public: str = "the site's data cannot be used; the site's own log says why"
    ) -> None:
        super().__init__(message, public)  # both are args, so both survive pickling between processes

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def public(self) -> str:
        """The version that may leave the site."""
        return str(self.args[1])

    @classmethod
    def plain(cls, message: str) -> DataError:
        """Make an error whose full text holds nothing of a site's data, so that it is also the public one."""
        return cls(message, message)

    @classmethod
    def join(cls, errors: Sequence[DataError]) -> DataError:
        """Make one error of all found problems."""
        if len(errors) == 1:
            return errors[0]
        full, public = (
            [part for text in texts for part in _parts(text)]
            for texts in (map(str, errors), (error.public for error in errors))
        )
        return cls(*(f"{len(parts)}{_HEAD}" + _NEXT.join(parts) for parts in (full, public)))


def _parts(text: str) -> list[str]:
    """Return the problems that a text of `DataError.join` lists; of another one itself."""
    count, head, listed = text.partition(_HEAD)
    return listed.split(_NEXT) if head and count.isdigit() else [text]


def examples(items: Sequence[object], most: int = _SHOWN) -> str:
    """List the first few items, and say how many more there are."""
    shown = ", ".join(str(item) for item in items[:most])
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"
