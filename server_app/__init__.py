"""The coordinator: rounds, evaluation, the run folder, the local engine.

``from server_app import simulate`` is the Python API.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edelweiss.server_app.coordinator import Result
    from edelweiss.server_app.simulation import simulate

__all__ = ["Result", "simulate"]


def __getattr__(name: str) -> Any:
    """Import on first use: Flower imports this package before it needs torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'simulation' if name == 'simulate' else 'coordinator'}"), name)
