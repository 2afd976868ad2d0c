"""CODA (Guo, Liu, Yuan, Shen, Liu & Yang, ICML 2020, Algorithms 1 and 2; arXiv:2005.02426)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from edelweiss.federation import AlgorithmInfo, Mean, Oracle, Table, down, up
from edelweiss.problems import papers
from edelweiss.problems.capabilities import ClosedFormDual
from edelweiss.strategies.coda_plus import CodaPlus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edelweiss.federation import Reply, RoundContext, Site
    from edelweiss.problems import Arrays


@dataclass(frozen=True, kw_only=True)
class Coda(CodaPlus):
    """CODA+ that ends each stage with the best y for the stage's x, from a large sample of every site.

    Client k and server, phase "train": lines 1-7 of `CodaPlus`. In the last round of a stage, phase "dual" follows.
    Client k, from the x it was sent::

        8  draw a large batch; send its terms of the best y: for AUC, the sums of h and the counts of both classes

    Server::

        9  y ← the y that maximises the mean objective at x; for AUC α ← E[h|-] - E[h|+]

    A site's sums are divided by the size of its sample and enter with the site's weight, as in all averages: these are
    the expectations of the objective. In Algorithm 1 all samples are of one size. One without positives is as good as
    any. If no site at all has drawn one of the classes, y is the
    stage's average, as in CODA+. The best y is sought in all of R^p; clients project what they are sent.

    Client state: that of `CodaPlus`, with its fallback.
    """

    name = "coda"
    info = AlgorithmInfo(papers=(papers.CODA,), where="Alg. 1 and 2", gradients="q")
    messages = CodaPlus.messages.in_phase("train") + Table(
        down(x="d", phase="dual"),
        up(
            numerators="t p",
            denominators="c",
            phase="dual",
            use="in the clear",
            of="at the end of a stage, over *all training samples* or `coda.dual-batch` of them; for AUC the sum of "
            "the scores of the positives, that of the negatives, and both counts",
        ),
    )
    stacks = True
    needs = frozenset({ClosedFormDual})
    partial = False  # the dual of those who happen to be there is not that of all

    dual_batch: int = Field(
        0, ge=0, description="m: samples per site for the best y at the end of a stage; 0 = all it has"
    )

    @property
    def phases(self) -> tuple[str, ...]:
        """Training, and the dual."""
        return ("train", "dual")

    def plays(self, context: RoundContext) -> bool:
        """Recompute the dual at the end of a stage only."""
        return context.phase == "train" or context.ends_stage

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Send what CODA+ does; for the dual x alone."""
        return super().broadcast(state, context, site) if context.phase == "train" else {"x": state["x"]}

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 1-5, or line 8."""
        if context.phase == "train":
            return super().local_update(sent | {"y": oracle.project(sent["y"])}, memory, oracle, context)
        batch = oracle.draw(self.dual_batch) if self.dual_batch else None
        numerators, denominators = oracle.dual_terms(sent["x"], batch)  # l.8
        return {"numerators": numerators, "denominators": denominators}, {}  # the stage is over: nothing to remember

    def unfit(self, arrays: Arrays, context: RoundContext, d: int) -> str:
        """Require that denominators are counts."""
        counts = arrays.get("denominators")
        if counts is not None and not (bool((counts >= 0).all()) and bool(counts.sum() > 0)):
            return f"array 'denominators' is {counts.tolist()}: must be >= 0, and not all zero"
        return super().unfit(arrays, context, d)

    def aggregate(self, state: Arrays, replies: Iterable[Reply], context: RoundContext) -> Arrays:
        """Lines 6-7, or line 9."""
        if context.phase == "train":
            return super().aggregate(state, replies, context)
        terms: dict[int, Mean] = {}
        for reply in replies:
            for place, part in enumerate(_parts(reply.arrays)):
                samples = float(part["denominators"].sum())
                if samples:  # a site without a label has none
                    terms.setdefault(place, Mean()).add(part, reply.site.weight / samples)
        y = state["y"].clone()
        for place, term in terms.items():
            numerators, denominators = term.sums["numerators"], term.sums["denominators"]
            if denominators.all():
                best = (numerators / denominators[:, None]).sum(0)  # l.9
                y[place * len(best) : (place + 1) * len(best)] = best
        return state | {"y": y}


def _parts(arrays: Arrays) -> list[Arrays]:
    """Return the terms of y, or of each of its entries where these have denominators of their own."""
    numerators, denominators = arrays["numerators"], arrays["denominators"]
    if denominators.ndim == 1:
        return [arrays]
    columns = zip(numerators.T, denominators.T, strict=True)
    return [{"numerators": one[:, None], "denominators": counts} for one, counts in columns]
