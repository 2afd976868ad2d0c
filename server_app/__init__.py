"""What the coordinator runs: rounds, evaluation, the run folder, the local engine.

``from server_app import simulate`` is the Python API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edelweiss.server_app.coordinator import Result
    from edelweiss.server_app.simulation import simulate

__all__ = ["Result", "simulate"]


def __getattr__(name: str) -> Any:
    """Import on first use: Flower imports this package before it needs torch."""
    if name == "simulate":
        from edelweiss.server_app.simulation import simulate

        return simulate
    if name == "Result":
        from edelweiss.server_app.coordinator import Result

        return Result
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
