"""Labels with uncertain and blank values: their interpretation and their encoding in tensors.

An unknown label of a sample is `UNKNOWN`. Objectives ignore it, so that the sample still contributes to other labels; a
site without a label leaves its column blank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
from torch import Tensor

from edelweiss.common import hint, repeated, shown
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.source import Ints

UNKNOWN = -1
DEVICES = "Support Devices"  # compatible with a healthy chest
MOST_LABELS = 100
_PIECE = re.compile(r'\s*"(?:[^"]|"")*"[^,]*|[^,]*')
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')

Uncertain = Literal["", "ones", "zeros", "ignore"]
Blank = Literal["", "zeros", "ignore"]
VALUES = {"ones": 1, "zeros": 0, "ignore": UNKNOWN}


@dataclass(frozen=True)
class Preset:
    """The label interpretation of a chest X-ray library."""

    uncertain: str
    blank: Blank
    healthy: str = ""
    views: tuple[str, ...] = ()


PRESETS = {
    # LibAUC's CheXpert: frontal images; an uncertain Edema or Atelectasis counts as one.
    "chexpert": Preset("Edema=ones,Atelectasis=ones,zeros", "zeros", views=("AP", "PA")),
    # TorchXRayVision's CheX_Dataset: what is uncertain is missing, and a healthy image has nothing else.
    "torchxrayvision": Preset("ignore", "ignore", healthy="No Finding"),
}


@dataclass(frozen=True)
class Labels:
    """The labels of a run, and the meaning of their values."""

    names: tuple[str, ...]  # names of the labels; a site's columns may differ
    # the meaning of -1 for each label: "ones", "zeros" or "ignore" (unknown); "": not allowed
    uncertain: tuple[Uncertain, ...]
    blank: Blank = ""  # the meaning of an empty value, likewise, but never ones
    # name of an optional column whose value 1 sets all labels of a row to zero except `DEVICES`. Empty: none
    healthy: str = ""
    # values of the optional column `view` that are read unless the run selects views. Empty: all
    views: tuple[str, ...] = ()

    @property
    def several(self) -> bool:
        """Whether there are several labels."""
        return len(self.names) > 1

    @property
    def clinical(self) -> bool:
        """Whether values are 1, 0, uncertain or blank, rather than any two class names."""
        return self.several or any(self.uncertain) or bool(self.blank)

    def called(self, columns: tuple[str, ...]) -> Labels:
        """Return the labels with the names of a site's columns, in this order.

        The run's own names are accepted in any order. `DataConfig` refuses a wrong number of columns.

        Raises
        ------
        DataError
            If some columns have the names of other labels of the run.
        """
        if len(columns) != len(self.names) or sorted(columns) == sorted(self.names):
            return self
        if moved := [own for own, name in zip(columns, self.names, strict=True) if own != name and own in self.names]:
            raise DataError.plain(
                f"label names {examples(moved)} in the place of another of the run's labels, which are in this order: "
                f"{', '.join(self.names)}; name your columns for them in that order",
                key="label",
            )
        return replace(self, names=columns)

    @classmethod
    def of(cls, label: str, uncertain: str, blank: Blank, preset: str) -> Labels:
        """Read run-config values that `wrong_labels` accepts."""
        known = PRESETS.get(preset, Preset(uncertain, blank))
        names, said = split_names(label), _uncertain(known.uncertain)
        lower = {name.lower(): rule for name, rule in said.items()}
        rules = tuple(cast("Uncertain", lower.get(name.lower(), lower.get("", ""))) for name in names)
        return cls(names, rules, known.blank, known.healthy, known.views)


def split_names(label: str) -> tuple[str, ...]:
    """Split a comma-separated list of names; names with commas are in double quotes."""
    return tuple(map(_unquoted, _pieces(label)))


def as_label(names: Iterable[str]) -> str:
    """Join names, the inverse of `split_names`."""
    return ", ".join(
        '"{}"'.format(name.replace('"', '""')) if "," in name or name[:1] == '"' else name for name in names
    )


def _pieces(text: str) -> list[str]:
    """Split a text at commas outside of double quotes, as in CSV."""
    pieces, end = list[str](), -1
    while end < len(text):
        piece = _PIECE.match(text, end + 1)
        assert piece  # it may be empty
        pieces.append(piece[0].strip())
        end = piece.end()
    return pieces


def _unquoted(name: str) -> str:
    quoted = _QUOTED.fullmatch(name)
    return quoted[1].replace('""', '"').strip() if quoted else name


def _uncertain(text: str) -> dict[str, str]:
    """Parse ``"Edema=ones,zeros"``: rules by label name; the empty name holds for all others."""
    parts = (part.rpartition("=") for part in _pieces(text))
    return {_unquoted(name.strip()): rule.strip() for name, _, rule in parts}


def wrong_labels(label: str, uncertain: str, blank: str, preset: str) -> Iterator[str]:
    """Yield the problems of these run-config keys."""
    names = split_names(label)
    if len(names) > 1 and not all(name and name.isprintable() and len(name) <= 100 for name in names):
        yield f"label = {shown(label)}: must be names of columns that can be printed, separated by commas"
    for key, name in [
        *(("label", name) for name in _pieces(label)),
        *(("uncertain", part.rpartition("=")[0].strip()) for part in _pieces(uncertain)),
    ]:
        if name[:1] == '"' and not _QUOTED.fullmatch(name):
            yield f"{key}: {shown(name)} begins with a double quote, and has to end with the next one"
    if twice := repeated(names):
        yield f"label = {shown(label)}: names {', '.join(map(shown, twice))} more than once"
    if len(names) > MOST_LABELS:
        yield f"label names {len(names)} columns: at most {MOST_LABELS} are allowed"
    if preset and (uncertain or blank):
        said = " and ".join(key for key, value in (("uncertain", uncertain), ("blank", blank)) if value)
        yield f"label-preset = {preset!r} says what uncertain and blank mean: leave {said} empty, or the preset"
    lower = {name.lower() for name in names}
    rules = [_unquoted(part.rpartition("=")[0].strip()).lower() for part in _pieces(uncertain)]
    if again := repeated(name or "all others" for name in rules):
        yield f"uncertain = {shown(uncertain)}: has more than one rule for {', '.join(again)}"
    for name, rule in _uncertain(uncertain).items() if uncertain else ():
        if rule not in VALUES:
            yield (
                f'uncertain = {shown(uncertain)}: must be "ones", "zeros" or "ignore", or say it label by label, as in '
                f'"{names[0]}=ones,zeros"'
            )
        if name and name.lower() not in lower:
            yield f"uncertain = {shown(uncertain)}: {name!r} is not among the labels.{hint(name, names)}"


def stratum(labels: Ints) -> Ints:
    """Return a stratum for each sample, for stratified splits.

    Labels have shape (n,), or (n, L) with `UNKNOWN` where one is not known. A stratum, shape (n,), is the label; with
    several the number, from 1, of the rarest positive label, or 0.
    """
    if labels.ndim == 1:
        return labels
    positive = labels == 1
    rarest = np.argsort(positive.sum(0), kind="stable")
    found: Ints = np.where(positive.any(1), rarest[positive[:, rarest].argmax(1)] + 1, 0)
    return found


def any_positive(labels: Tensor) -> Tensor:
    """Return the samples with a positive label, shape (n,) bool."""
    return labels == 1 if labels.ndim == 1 else (labels == 1).any(1)
