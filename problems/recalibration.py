"""Recalibration: maps from scores to probabilities, fitted on held-out samples and stored with the model."""

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

EVIDENCE, VERSION = "evidence.json", 3  # as of `evidence`; each earlier version is read


@dataclass(frozen=True)
class Recalibration:
    """Platt scaling: the probability is σ(intercept + slope · score), where score is the network's output."""

    # intercept, slope: the parameters of the map
    intercept: float
    slope: float
    # held_out, positives: held-out samples that a site fitted its own map to, and the positives among them; 0 for the
    # map of a run
    held_out: int = 0
    positives: int = 0

    @classmethod
    def read(cls, folder: Path, labels: Sequence[str] = ()) -> tuple[Recalibration | None, ...]:
        """Read the maps in a run folder, for each of several ``labels`` or for one; None where there is none.

        Raises
        ------
        ModelError
            If the file cannot be used.
        """
        file = folder / EVIDENCE
        if not is_file(file):
            return (None,) * max(1, len(labels))
        try:
            found = read_json(file)
        except (OSError, ValueError) as error:
            raise ModelError(f"{file} cannot be read: {reason(error)}", key=EVIDENCE) from None
        if not isinstance(found, dict) or found.get("version") not in range(1, VERSION + 1):
            version = found.get("version") if isinstance(found, dict) else None
            text = f"{file} has version {shown(version)}, and this release reads 1 to {VERSION}"
            raise ModelError(f"{text}: remove it, or use the release that wrote it", key="version", value=version)
        if not labels:
            return (cls._of(found, file),)
        each = found.get("labels")
        if not isinstance(each, dict) or not {*each} <= {*labels}:
            theirs = ", ".join(each) if isinstance(each, dict) else "one label"
            text = f"{file} has {theirs}, the model has {', '.join(labels)}: the file is from another run; remove it"
            raise ModelError(text, key="labels", value=each, allowed=labels)
        return tuple(cls._of(each[name], file) if name in each else None for name in labels)

    @classmethod
    def _of(cls, found: Any, file: Path) -> Recalibration | None:
        fit = found.get("probabilities") if isinstance(found, dict) else None
        numbers = [fit.get(name) for name in ("intercept", "slope")] if isinstance(fit, dict) else [""]
        if isinstance(fit, dict) and (fit.get("by") != "platt" or numbers == [None, None]):
            return None  # scores are log-odds, or the fit is undefined
        if not all(map(is_number, numbers)):
            text = f"{file}: probabilities = {shown(fit)}: must have by, and numbers intercept and slope"
            raise ModelError(text, key="probabilities", value=fit)
        intercept, slope = (float(str(number)) for number in numbers)
        return cls(intercept, slope)

    @classmethod
    def of_site(cls, maps: Any, count: int) -> tuple[Recalibration | None, ...]:
        """Read the entry ``platt`` of a site's personal model with ``count`` labels.

        Raises
        ------
        ModelError
            If the entry is invalid.
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
            text = f"platt = {shown(maps)}: must have {keys}, or null, for each of {count} labels"
            raise ModelError(text, key="platt", value=maps)
        return tuple(
            None
            if one is None
            else cls(float(one["intercept"]), float(one["slope"]), int(one["held-out"]), int(one["positives"]))
            for one in maps
        )
