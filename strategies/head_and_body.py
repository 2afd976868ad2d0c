"""What DePRL and FedRep do at a site: steps on a head of the site's own, then on the body that sites share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field

from edelweiss.federation import step_size
from edelweiss.federation.stages import MOST_STEPS
from edelweiss.problems.capabilities import Layers
from edelweiss.strategies.local_steps import LocalSteps, existing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from edelweiss.common import Value
    from edelweiss.federation import Oracle, RoundContext
    from edelweiss.problems import Arrays, Batch


@dataclass(frozen=True, kw_only=True)
class HeadAndBody(LocalSteps):
    """A body φ that the sites share in one way or another, and at each site i a head θ_i of its own.

    In a round, from φ and the site's (θ_i, y_i)::

        1  repeat τ times (``local-steps``):
        2      draw a mini-batch; take gθ, gy at (φ, θ_i, y_i)
        3      θ_i ← θ_i - α gθ;  y_i ← P(y_i + ηy gy)
        4  repeat ``body-steps`` times:
        5      draw a mini-batch; φ ← φ - β gφ

    Lines 3 and 5 are steps of `LocalSteps`. With ``head-unit`` or ``body-unit`` = "epochs" the line above counts passes
    over the site's training samples, with a step on each batch.

    The papers have no y: that is the adversary of the site's own head, so it moves with it. The problem's own scalars
    are part of the head.

    θ_i starts as the network's initialisation draws it, with ``first-head = "own"`` from a random stream of the site's
    own; y starts the same at all. Both follow from the seed and the site's number, so that heads are never sent, and a
    site that lost its own starts with the same again.
    """

    needs = frozenset({Layers})
    splits_model = True
    own_dual = True

    first_head: Literal["own", "common"] = Field(
        "own", description="the head that a site starts with: a random one of its own, or one for all"
    )
    lr_head: float = step_size("α: step size of the head")
    lr_body: float = step_size("β: step size of the body")
    lr_dual: float = step_size("ηy: step size of y, where there is one")
    head_unit: Literal["steps", "epochs"] = Field(
        "steps", description="what local-steps counts: steps on the head, or epochs"
    )
    body_steps: int = Field(1, ge=1, le=MOST_STEPS, description="steps on the body, after local-steps on the head")
    body_unit: Literal["steps", "epochs"] = Field(
        "steps", description="what body-steps counts: steps on the body, or epochs"
    )

    @classmethod
    def misfits(cls, keys: Mapping[str, Value]) -> list[str]:
        """Refuse the head of a file: sites draw their own, and are sent the body alone."""
        if not keys["init-from"] or keys["init-head"] == "fresh":
            return []
        return [
            f"init-head = {keys['init-head']!r}: with algorithm = {cls.name!r} a site draws its own head by the seed "
            'and is sent the body only, so take init-head = "fresh"'
        ]

    @property
    def own_heads(self) -> bool:
        """Whether each site starts with a random head of its own."""
        return self.first_head == "own"

    def trained(self, own: Arrays, oracle: Oracle, context: RoundContext) -> tuple[Tensor, Tensor | None]:
        """Lines 1-5, on a model as `with_head` returns it; x is changed, and returned with y."""
        x, y, oracle, descent = own["x"], own.get("y"), self.clipped(oracle), self.descent(context)
        body, head = slice(oracle.head), slice(oracle.head, None)
        for batch in batches(oracle, context.local_steps, self.head_unit):  # l.1
            y = descent.step(x, y, oracle, self.lr_head, self.lr_dual, part=head, batch=batch)  # l.2-3
        for batch in batches(oracle, self.body_steps, self.body_unit):  # l.4
            descent.step(x, y, oracle, self.lr_body, 0.0, part=body, batch=batch)  # l.5
        return x, y


def batches(oracle: Oracle, count: int, unit: str) -> Iterator[Batch | None]:
    """Yield a batch for each of ``count`` steps, or those of as many epochs."""
    for _ in range(count):
        if unit == "epochs":
            yield from oracle.epoch()
        else:
            yield oracle.draw()


def with_head(sent: Arrays, memory: Arrays, fresh: Callable[[], Arrays]) -> Arrays:
    """Return the model of a body that was sent, and the site's own head and y; those that it starts with, if lost."""
    own = memory if "head" in memory else fresh() | memory
    return {"x": torch.cat([sent["body"], own["head"]], -1)} | existing(y=own.get("y"))
