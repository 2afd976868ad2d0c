"""What one site's facts can do to a run: claims that are no site's, beside those of the others, do not count in full.

A site reports counts and sums before a run. They weigh it in averages, and inputs are standardised by the sums of all
sites; nobody can check them. Unless ``aggregation = "mean"``:

1. sums of a site that claims over `UNLIKELY` times the sites' median of samples count as if they were of the median;
   its weight in robust averages is at most `outlier-multiple` times the median one;
2. of a feature's sums, a site's are left out if with the other sites' mean M and standard deviation S its own mean m or
   deviation s is beyond ``|m - M| > FAR S`` or ``s > FAR S``; features of 0 and 1 alone, and those that are constant at
   all others, are no reason;
3. a site whose inputs differ in shape or names from those of most sites is left out of the run, as is one without whom
   the classes have no gap, and those with the same name, if `min-replies` others go on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from edelweiss.common import alike, natural
from edelweiss.datasets import missing_classes
from edelweiss.datasets.units import Moments
from edelweiss.problems import PROBLEMS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edelweiss.config import RunConfig
    from edelweiss.datasets import Facts
    from edelweiss.datasets.units import Floats
    from edelweiss.server_app.console import Progress

UNLIKELY = 1000.0
FAR = 10.0
SUMS = ("count", "total", "squares")


def capped(values: Sequence[float], cap: float) -> list[float]:
    """Return numbers of which none is beyond ``cap`` times the median of those above 0; the others are as they were."""
    most = cap * median([value for value in values if value > 0] or [0.0])
    return [min(value, most) for value in values]


def believed(sites: Mapping[str, Facts]) -> tuple[list[Facts], list[str]]:
    """Return the facts with sums and counts that enter those of all sites, by rules 1 and 2, and who is left out.

    What no rule concerns is returned unchanged, to the bit.
    """
    claimed = [one.examples or 0 for one in sites.values()]
    usual = median(claimed)
    found = [
        _scaled(one, usual / examples) if examples > UNLIKELY * usual > 0 else one
        for one, examples in zip(sites.values(), claimed, strict=True)
    ]
    telling = [place for place, one in enumerate(found) if one.count]
    far = {telling[place] for place in _far([found[place] for place in telling])}
    left_out = [name for place, name in enumerate(sites) if place in far]
    kept = [replace(one, count=(), total=(), squares=()) if place in far else one for place, one in enumerate(found)]
    return kept, left_out


def _scaled(facts: Facts, ratio: float) -> Facts:
    """Return facts as if of fewer samples."""
    count, total, squares = (tuple(ratio * value for value in getattr(facts, key)) for key in SUMS)
    counts = tuple(round(ratio * each) for each in facts.class_counts)
    return replace(facts, count=count, total=total, squares=squares, class_counts=counts)


def _far(sites: Sequence[Facts]) -> list[int]:
    """Return the places of the sites with a feature by rule 2; none of two, of whom nobody knows which is right."""
    if len(sites) < 3:
        return []
    every = Moments(*(np.array([getattr(one, key) for one in sites], float) for key in SUMS))
    others = Moments(*(_of_others(getattr(every, key)) for key in SUMS))
    return np.flatnonzero((ratios(every, others) > FAR).any(1)).tolist()


def _of_others(sums: Floats) -> Floats:
    """Return for each site the sum over all others, shape (sites, F); a difference to the total would lose them."""
    nothing = np.zeros_like(sums[:1])
    before, after = np.cumsum(sums, 0), np.cumsum(sums[::-1], 0)[::-1]
    found: Floats = np.concatenate([nothing, before[:-1]]) + np.concatenate([after[1:], nothing])
    return found


def ratios(own: Moments, others: Moments) -> Floats:
    """Return max(|m - M|, s) / S of each site and feature, shape (sites, F); 0 where rule 2 does not judge."""
    judged = (others.spread > 0) & (own.count > 0) & ~(own.binary & others.binary)
    distance = np.maximum(np.abs(own.mean - others.mean), own.spread)
    found: Floats = np.divide(distance, others.spread, out=np.zeros_like(distance), where=judged)
    return found


def names_of(by_node: Mapping[int, Facts]) -> dict[int, str]:
    """Return the sites' names by node id, in their order, which is the same in every run."""
    order = sorted(by_node.items(), key=lambda item: (item[1].partition_id, natural(item[1].name), item[0]))
    return {node: facts.name or f"site-{place}" for place, (node, facts) in enumerate(order)}


def _beyond_a_gap(config: RunConfig, by_node: Mapping[int, Facts]) -> list[int]:
    """Return the one site without whom there is a sample of each class; empty if there is with it, or not one such."""
    every = {str(node): facts for node, facts in by_node.items()}
    if len(every) < 3 or not PROBLEMS[config.problem].multiclass or not missing_classes(every):
        return []
    found = [node for node in by_node if not missing_classes({n: f for n, f in every.items() if n != str(node)})]
    return found if len(found) == 1 else []


def in_accord(config: RunConfig, by_node: Mapping[int, Facts], progress: Progress) -> dict[int, Facts]:
    """Leave out sites by rule 3; all stay if too few would be left."""
    kept, names = dict(by_node), names_of(by_node)
    twice = {name for group in alike(names.values()) for name in group}
    inputs = {node: (facts.shape, facts.columns) for node, facts in by_node.items()}
    [(usual, count)] = Counter(inputs.values()).most_common(1)
    odd = [node for node, own in inputs.items() if own != usual] if 2 * count > len(inputs) else []
    for wrong, why in (
        ([node for node, name in names.items() if name in twice], "have the same name"),
        (odd, "have other inputs than most"),
        (_beyond_a_gap(config, by_node), "alone have a class far from the others'"),
    ):
        rest = {node: facts for node, facts in kept.items() if node not in wrong}
        if len(rest) < len(kept) and 0 < config.min_replies <= len(rest):
            listed = ", ".join(repr(names[node]) for node in kept if node in wrong)
            progress.warn(f"sites that {why} ({listed}) [left out]")
            kept = rest
    return kept
