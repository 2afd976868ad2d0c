"""Imports without the garbage collector, which would go through all that they make again and again."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def importing() -> Iterator[None]:
    """Leave the garbage collector out while the block imports, and what there is then out of its sight for ever.

    It is for the start of a process: torch's import is a tenth shorter, and nothing that modules make is garbage.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
