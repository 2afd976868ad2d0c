"""Features that have no value at any site: at some only they are legal, and filled like any missing value."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edelweiss.config.study import read_study
from edelweiss.datasets import features_of
from edelweiss.datasets.config import SITE
from edelweiss.datasets.errors import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edelweiss.config import RunConfig
    from edelweiss.datasets import Facts


def empty_everywhere(config: RunConfig, telling: Sequence[Facts]) -> str:
    """Say which features no site has a value of to train on, of those that tell sums; empty: there are none."""
    counts = zip(*(one.count for one in telling), strict=True)
    places = [place for place, column in enumerate(counts) if not any(column)]
    if not places:
        return ""
    data = config.data()
    if config.dataset == SITE and config.study:
        data = replace(data, study=read_study(config.study))
    names = features_of(data)  # of hospitals without a study file it is not known what they are called
    which = examples([repr(names[place]) if names else f"number {place + 1}" for place in places])
    order = "" if names else ", in the order of their names"
    return (
        f"no site tells a value of {len(places)} features ({which}{order}): they have none to train on, or too few, at "
        "every site; the model learns nothing of them: fill them in, or leave them out at all sites"
    )
