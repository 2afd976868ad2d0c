"""What makes probabilities of scores: a fit on samples that nobody trained on, stored beside the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edelweiss.common import shown
from edelweiss.common.files import is_file, read_json, reason
from edelweiss.common.options import is_number
from edelweiss.models import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

EVIDENCE, VERSION = "evidence.json", 1


@dataclass(frozen=True)
class Recalibration:
    """Platt's: the probability is σ(intercept + slope · score), score being the network's output.

    Attributes
    ----------
    intercept, slope : float
        Of the map.
    held_out, positives : int
        The samples that a site has fitted its own to, and how many of them are positive; 0 for a run's.
    """

    intercept: float
    slope: float
    held_out: int = 0
    positives: int = 0

    @classmethod
    def read(cls, folder: Path, labels: Sequence[str] = ()) -> tuple[Recalibration | None, ...]:
        """Read what a run has stored in its folder, of each of several ``labels``, or of one; None where there is none.

        Raises
        ------
        ModelError
            When it cannot be used.
        """
        file = folder / EVIDENCE
        if not is_file(file):
            return (None,) * max(1, len(labels))
        try:
            found = read_json(file)
        except (OSError, ValueError) as error:
            raise ModelError(f"{file} cannot be read: {reason(error)}") from None
        if not isinstance(found, dict) or found.get("version") != VERSION:
            version = found.get("version") if isinstance(found, dict) else None
            text = f"{file} has version {shown(version)}, and this release reads {VERSION}"
            raise ModelError(f"{text}: remove it, or take the release that wrote it")
        if not labels:
            return (cls._of(found, file),)
        each = found.get("labels")
        if not isinstance(each, dict) or not {*each} <= {*labels}:
            told = ", ".join(each) if isinstance(each, dict) else "one label"
            raise ModelError(f"{file} is of {told}, the model of {', '.join(labels)}: it is of another run; remove it")
        return tuple(cls._of(each[name], file) if name in each else None for name in labels)

    @classmethod
    def _of(cls, found: Any, file: Path) -> Recalibration | None:
        """Read what the file says of one label."""
        fit = found.get("probabilities") if isinstance(found, dict) else None
        numbers = [fit.get(name) for name in ("intercept", "slope")] if isinstance(fit, dict) else [""]
        if isinstance(fit, dict) and (fit.get("by") != "platt" or numbers == [None, None]):
            return None  # log-odds as they are, or none could be fitted
        if not all(map(is_number, numbers)):
            raise ModelError(f"{file}: probabilities = {shown(fit)}: must have by, and numbers intercept and slope")
        intercept, slope = (float(str(number)) for number in numbers)
        return cls(intercept, slope)

    @classmethod
    def of_site(cls, maps: Any, count: int) -> tuple[Recalibration | None, ...]:
        """Read the entry ``platt`` of the file of a model that a site has kept, of so many labels.

        Raises
        ------
        ModelError
            When it is none.
        """
        names = ("intercept", "slope", "held-out", "positives")
        if (
            not isinstance(maps, list)
            or len(maps) != count
            or not all(
                one is None or (isinstance(one, dict) and {*one} == {*names} and all(map(is_number, one.values())))
                for one in maps
            )
        ):
            keys = ", ".join(names)
            raise ModelError(f"platt = {shown(maps)}: must have {keys}, or nothing, for each of {count} labels")
        return tuple(
            None
            if one is None
            else cls(float(one["intercept"]), float(one["slope"]), int(one["held-out"]), int(one["positives"]))
            for one in maps
        )
