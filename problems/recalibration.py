"""What makes probabilities of scores: a fit on samples that nobody trained on, stored beside the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from keys import shown
from keys.fields import is_number
from keys.files import is_file, read_json, reason
from models import ModelError

if TYPE_CHECKING:
    from pathlib import Path

EVIDENCE = "evidence.json"


@dataclass(frozen=True)
class Recalibration:
    """Platt's: the probability is σ(intercept + slope · score), score being the network's output."""

    intercept: float
    slope: float

    @classmethod
    def read(cls, folder: Path) -> Recalibration | None:
        """Read what a run has stored in its folder; None where it has found none.

        Raises
        ------
        ModelError
            When it cannot be used.
        """
        file = folder / EVIDENCE
        if not is_file(file):
            return None
        try:
            found = read_json(file)
            fit = found.get("recalibration") if isinstance(found, dict) else None
        except (OSError, ValueError) as error:
            raise ModelError(f"{file} cannot be read: {reason(error)}") from None
        if fit is None:
            return None
        numbers = [fit.get(name) for name in ("intercept", "slope")] if isinstance(fit, dict) else [None]
        if not all(map(is_number, numbers)):
            raise ModelError(f"{file}: recalibration = {shown(fit)}: must have numbers intercept and slope")
        return cls(*(float(str(number)) for number in numbers))
