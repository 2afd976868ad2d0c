"""What an error or a line says, by fields, names and numbers: tests that read these leave the wording free."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def has(*names: object, **fields: object) -> Callable[[BaseException], bool]:
    """Return the ``check`` of `pytest.raises` for an error with these fields, whose message has these names."""

    def check(error: BaseException) -> bool:
        found = {field: getattr(error, field) for field in fields}
        assert found == fields, f"{error!r} has {found}"
        missing = [name for name in names if str(name) not in str(error)]
        assert not missing, f"{error!r} lacks {missing}"
        return True

    return check


def lines(printed: str, *names: object) -> list[str]:
    """Return the lines that have all of these in them."""
    return [line for line in printed.splitlines() if all(str(name) in line for name in names)]


def warnings(printed: str, *names: object) -> list[str]:
    """Return the warnings that have all of these in them."""
    return [line for line in lines(printed, *names) if line.startswith("warning: ")]
