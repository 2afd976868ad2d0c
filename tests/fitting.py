"""What some algorithms ask of a run that runs of any others can have, too."""

from __future__ import annotations

from edelweiss.common import Value


def fitting(algorithm: str) -> dict[str, Value]:
    """Return the keys that an algorithm cannot do without: FedBN a network with batch norm, local to the sites."""
    return {"model": "mlp-bn", "bn": "local"} if algorithm == "fedbn" else {}
