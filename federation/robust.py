"""Robust means: how far one site can move the mean of the sites' replies.

A server's step is a mean over sites, Σ_k w_k v_k / Σ_k w_k, and one v_k alone moves it anywhere. `RobustMean` stands
between the replies and the algorithm's `aggregate`, and changes the replies such that their mean is a robust one; the
algorithms need not know of it. In each row of the algorithm's table of messages let v_k be the vectors of site k, as
one vector, and c what the server has of them already (x for x_k; 0 where it has none)::

    clipped        1  n_k ← w_k ‖v_k - c‖;  τ ← multiple · median_k n_k
                   2  v_k ← c + min(1, τ / n_k) (v_k - c)
    trimmed-mean   1  in each coordinate: drop the b lowest and the b highest of the v_k;  b = ⌈trim · K⌉ < K / 2
                   2  every v_k ← the mean of the others
    median         the same with b = ⌈K / 2⌉ - 1

Clipping is one iteration of centred clipping from the last aggregate (Karimireddy, He & Jaggi, ICML 2021, Algorithm 1;
arXiv:2012.10333), with a radius that follows the sites' own norms: as long as no norm exceeds τ, nothing changes, to
the bit. The others are Definitions 1 and 2 of Yin, Chen, Ramchandran & Bartlett (ICML 2018; arXiv:1803.01498), which
count each site once. Sites without a weight take no part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

import torch

from edelweiss.federation.sites import Reply

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    from edelweiss.federation.sites import Site
    from edelweiss.problems import Arrays

Aggregation = Literal["mean", "clipped", "trimmed-mean", "median"]
MULTIPLE, TRIM = 30.0, 0.2
CHUNK = 2**14  # coordinates at a time: they fit into the cache, and one thread sums them, whatever `threads` is


@dataclass(frozen=True)
class Robustness:
    """How replies are averaged, as the run-config says it."""

    aggregation: Aggregation = "mean"
    # of the median of the weighted norms: a reply beyond it is an outlier, which "clipped" shortens to it
    multiple: float = MULTIPLE
    trim: float = TRIM  # share of the sites that "trimmed-mean" drops at either end, from 0 to below 0.5


class RobustMean:
    """Changes the replies of one phase such that their mean is robust.

    Parameters
    ----------
    how : Robustness
        Which mean. With ``"mean"`` replies pass one at a time; else all of a phase are in memory.
    groups : iterable of iterables of str
        The names of the vectors that are clipped as one; an integer among them is the number of steps that weighs them.
    state : Arrays
        What the server has of vectors around which the replies lie.

    Attributes
    ----------
    outliers : dict of str to float
        Each site with a weighted norm beyond the multiple, by name, with its largest over the median one; complete
        after the last reply.
    """

    def __init__(self, how: Robustness, groups: Iterable[Iterable[str]], state: Arrays) -> None:
        self.how, self.groups, self.state = how, [tuple(group) for group in groups], state
        self.outliers: dict[str, float] = {}

    def __call__(self, replies: Iterable[Reply]) -> Iterator[Reply]:
        """Yield the replies in their order, changed where that is needed; what came in is left as it was."""
        held: list[Reply] = []
        norms: dict[Site, list[float]] = {}
        for reply in replies:
            if self.how.aggregation == "mean":
                norms |= self._norms([reply])
                yield reply
            else:
                held.append(reply)
        norms |= self._norms(held)
        medians = [_usual(column) for column in zip(*norms.values(), strict=True)]
        for site, own in norms.items():
            ratio = max((norm / usual for norm, usual in zip(own, medians, strict=True) if usual), default=0.0)
            if ratio > self.how.multiple:
                self.outliers[site.name] = ratio
        counted = [reply.arrays for reply in held if reply.site in norms]
        counts, common = self._counts(counted), {} if self.how.aggregation == "clipped" else self._trimmed(counted)
        for reply in held:
            if reply.site not in norms:
                yield reply
                continue
            arrays = reply.arrays
            changed = {name: vector for name, vector in common.items() if name in arrays}
            changed |= {name: arrays[name].minimum(most) for name, most in counts.items() if name in arrays}
            if self.how.aggregation == "clipped":
                changed |= self._clipped(arrays, norms[reply.site], medians)
            yield Reply(reply.site, arrays | changed) if changed else reply

    # ------------------------------------------------------------------ clipped

    def _norms(self, replies: Sequence[Reply]) -> dict[Site, list[float]]:
        """Return w_k ‖v_k - c‖ of each group, for each site that has a weight; of short vectors all sites' at once."""
        own = [reply for reply in replies if reply.site.weight]
        found: dict[Site, list[float]] = {reply.site: [] for reply in own}
        for group in self.groups if own else ():
            names = [name for name in group if name in own[0].arrays]
            numbers = len(own) * sum(own[0].arrays[name].numel() for name in names)
            alike = all(name in reply.arrays for reply in own for name in names)
            squares = self._squares(own, names) if alike and len(own) > 1 and numbers <= CHUNK else None
            for place, reply in enumerate(own):
                norm = self._norm(reply.arrays, group) if squares is None else math.sqrt(squares[place])
                found[reply.site].append(reply.site.weight * norm)
        return found

    def _squares(self, replies: Sequence[Reply], names: Iterable[str]) -> list[float]:
        total = torch.zeros(len(replies), dtype=torch.float64)
        for name in names:
            vectors = [reply.arrays[name] for reply in replies]
            if _averaged(vectors[0]):
                steps, centre = torch.stack(vectors), self._centre(name, vectors[0])
                steps = steps if centre is None else steps.sub_(centre)
                total += torch.linalg.vector_norm(steps.flatten(1), dim=1, dtype=torch.float64).square_().cpu()
        squares: list[float] = total.tolist()
        return squares

    def _norm(self, arrays: Arrays, group: Iterable[str]) -> float:
        """Return ‖v_k - c‖."""
        vectors = ((arrays[name], self._centre(name, arrays[name])) for name in group if name in arrays)
        chunks = (each for vector, centre in vectors if _averaged(vector) for each in _steps(vector, centre))
        return math.hypot(*(float(torch.linalg.vector_norm(step)) for step in chunks))

    def _centre(self, name: str, vector: Tensor) -> Tensor | None:
        """Return c; a mean of iterates, such as x_mean, lies around the point that these started from."""
        centre = self.state.get(name.removesuffix("_mean"))
        return centre if centre is not None and centre.shape == vector.shape else None

    def _clipped(self, arrays: Arrays, norms: Sequence[float], medians: Sequence[float]) -> Arrays:
        """Return what has to be shorter of a reply."""
        changed: Arrays = {}
        for group, norm, usual in zip(self.groups, norms, medians, strict=True):
            radius = self.how.multiple * usual
            if usual and norm > radius:
                for name in group:
                    if name in arrays and _averaged(arrays[name]):
                        vector = arrays[name]
                        centre, share = self._centre(name, vector), radius / norm
                        changed[name] = vector * share if centre is None else torch.lerp(centre, vector, share)
        return changed

    # ------------------------------------------------------------------ trimmed

    def _trimmed(self, replies: Sequence[Arrays]) -> Arrays:
        """Return the trimmed mean, or median, of each vector."""
        found: dict[str, list[Tensor]] = {}
        for arrays in replies:
            for name, vector in arrays.items():
                if _averaged(vector):
                    found.setdefault(name, []).append(vector)
        return {name: self._between(vectors) for name, vectors in found.items()}

    def _between(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the mean in each coordinate without the b lowest and the b highest."""
        count = len(vectors)
        b = (count - 1) // 2
        if self.how.aggregation == "trimmed-mean":
            b = min(b, math.ceil(self.how.trim * count - 1e-9))  # 0.2 of 5 is slightly above 1
        chunks = zip(*(torch.split(vector.flatten(), CHUNK) for vector in vectors), strict=True)
        means = [torch.stack(chunk).sort(0).values[b : count - b].mean(0) for chunk in chunks]
        return torch.cat(means).view_as(vectors[0]) if means else vectors[0]

    def _counts(self, replies: Sequence[Arrays]) -> Arrays:
        """Return the usual numbers of steps that weigh vectors; a site that claims more would own their mean."""
        found: Arrays = {}
        for group in self.groups:
            for name in group if len(group) > 1 else ():
                steps = [arrays[name] for arrays in replies if name in arrays and not _averaged(arrays[name])]
                if steps:
                    found[name] = torch.stack(steps).median(0).values
        return found


def _steps(vector: Tensor, centre: Tensor | None) -> Iterator[Tensor]:
    """Yield v - c chunk by chunk."""
    chunks = torch.split(vector.flatten(), CHUNK)
    if centre is None:
        yield from chunks
    else:
        yield from (v - c for v, c in zip(chunks, torch.split(centre.flatten(), CHUNK), strict=True))


def _averaged(vector: Tensor) -> bool:
    return vector.is_floating_point()


def _usual(norms: Iterable[float]) -> float:
    """Return the median norm: of those above 0 where most are 0, as of sites that had nothing to learn."""
    every = list(norms)
    return median(every) or median([norm for norm in every if norm] or [0.0])
