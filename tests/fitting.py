"""What some algorithms ask of a run that runs of any others can have, too."""

from __future__ import annotations

from typing import Any

from edelweiss.common import Value
from edelweiss.config.tables import open_steps
from edelweiss.federation import Algorithm


def fitting(algorithm: str) -> dict[str, Value]:
    """Return the keys that an algorithm cannot do without: FedBN a network with batch norm, local to the sites."""
    return {"model": "mlp-bn", "bn": "local"} if algorithm == "fedbn" else {}


def steps_of(algorithm: type[Algorithm], size: float = 0.1) -> dict[str, Any]:
    """Return the step sizes that a run fills in; an algorithm that is made without one stands still."""
    return {key.replace("-", "_"): size for key in open_steps(algorithm)}
