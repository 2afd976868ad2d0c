"""One run of a study, in a folder named after its configuration."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from edelweiss.config import RunConfig
from edelweiss.config.plug_ins import load_own
from edelweiss.lab.compare.runs import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from edelweiss.common import Value
    from edelweiss.lab.compare.runs import Settings
    from edelweiss.lab.sweep.study import Method


@dataclass(frozen=True)
class Job:
    """One run of a study."""

    method: Method  # whose run it is
    point: Settings  # of the method's grid
    # which table or panel it belongs to; of a tuning run the values that a choice of their own is made for
    cell: Settings
    repeat: Settings  # its seed, and its fold where there are folds
    settings: Settings  # the whole run-config, less what depends on the machine
    until: int = 0  # the round that it is paused or ended after; 0: its last
    tuning: bool = False  # whether it is one of those that choose, which no table has

    @property
    def name(self) -> str:
        """The run folder's name: equal settings, equal name."""
        text = json.dumps(dict(self.settings), sort_keys=True)
        label = re.sub(r"[^a-z0-9]+", "-", self.method.label.lower())
        return f"{label}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    def __str__(self) -> str:
        """What makes this run different from the others of its study."""
        until = f", to round {self.until}" if self.until else ""
        return f"{self.method.label} {shown({**self.point, **self.cell, **self.repeat})}{until}"


def combinations(axes: Mapping[str, Sequence[Value]]) -> Iterator[dict[str, Value]]:
    """Yield every choice of a value for each axis; one empty choice without axes."""
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def different(jobs: Iterable[Job]) -> list[Job]:
    """Drop runs of equal settings: a method need not depend on all that is compared."""
    return list({job.name: job for job in jobs}.values())


def parsed(settings: Settings) -> RunConfig:
    """Check a run-config; sites that a data set of one's own names are the run's."""
    return RunConfig.parse(load_own(settings))
