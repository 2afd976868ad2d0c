"""An algorithm: its hyper-parameters and the hooks in which it differs from others. Pure: no state, no messages."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pydantic import Field

from edelweiss.common import HasOptions, check_options, key_of, shown
from edelweiss.federation.average import average
from edelweiss.federation.errors import StrategyError
from edelweiss.federation.stages import MOST_STEPS, RoundContext, Stages
from edelweiss.federation.table import Table, both

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from typing import Self

    from torch import Tensor

    from edelweiss.common import Value
    from edelweiss.federation.oracle import Oracle
    from edelweiss.federation.sites import Reply, Site
    from edelweiss.problems import Arrays
    from edelweiss.problems.papers import Paper

log = logging.getLogger("edelweiss")

Layout = Sequence[tuple[slice, tuple[int, ...]]]
"""Where in x each parameter of a network lies, and its shape."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmInfo:
    """What the pages say of an algorithm beside its messages.

    Attributes
    ----------
    papers : tuple of Paper
        Where it is from; empty for a baseline without.
    where : str
        The algorithm in the first of them: "Alg. 1".
    gradients : str
        How many a site evaluates in a round: "q", "2q".
    """

    papers: tuple[Paper, ...] = ()
    where: str = ""
    gradients: str


@dataclass(frozen=True, kw_only=True)
class Algorithm(HasOptions, ABC):
    """What an algorithm declares and writes. Fields are hyper-parameters; a field's name with dashes is its key.

    The fields declared here mean the same for every algorithm and are top-level keys; a subclass's own fields live in
    the table that bears its ``name``. The hooks are pure functions of their arguments.
    """

    name: ClassVar[str]
    info: ClassVar[AlgorithmInfo]
    messages: ClassVar[Table] = Table(both(x="d", y="p"))
    """What goes down to a site, comes up from it, and stays there: by default the model, both ways."""
    solves: ClassVar[frozenset[str]]
    """Kinds of problems (``Problem.kind``) that this algorithm is for."""
    needs: ClassVar[frozenset[type]] = frozenset()
    """What it asks of a problem beyond gradients: classes of `problems.capabilities`."""
    stacks: ClassVar[bool] = False
    """Whether `local_update` also works for many clients at once, whose vectors it is then given as the rows of one
    tensor (K, d): it treats rows alike and alone, and writes ``x[..., part]`` where it wants a part of x. A class that
    writes its own says so itself."""
    partial: ClassVar[bool] = True
    """Whether it works with a share of the sites in a round (``fraction`` below 1)."""
    personalised: ClassVar[bool] = False
    """Whether each site ends with a model of its own: the server's is not tested, and only what new sites need of it
    (see `body`) is written to a file."""
    splits_model: ClassVar[bool] = False
    """Whether it treats the body and the head of x apart: `initial_state` is then given ``body`` too, and a model
    without a separable head is refused."""
    own_statistics: ClassVar[bool] = False
    """Whether batch-norm statistics belong to the personal part: then ``bn`` must be ``"local"``."""
    own_dual: ClassVar[bool] = False
    """Whether y stays at the site, as the adversary of a model of its own: then p of AUC is the site's own share of
    positives (`Problem.of_site`), except in gradients that are taken `Oracle.aside`."""
    stages_output: ClassVar[bool] = False
    """Whether each of its stages hands on what ``output`` asks for, so that a run returns what its last stage does."""
    averages_stages: ClassVar[bool] = False
    """Whether each of its stages, whatever ``output`` is, ends with the average of its iterates."""
    exchanges: ClassVar[bool] = True
    """Whether sites learn from each other; if not, batch-norm statistics stay where they are, whatever ``bn`` is."""

    local_steps: int = Field(10, ge=1, le=MOST_STEPS, description="q: local steps of a site between two communications")
    fraction: float = Field(1.0, gt=0, le=1, description="share of the sites drawn for each round")
    weighting: Literal["uniform", "examples"] = Field(
        "uniform", description="how sites count in averages: all the same, or by n_k"
    )
    output: Literal["last", "average", "random"] = Field(
        "last",
        description="which iterate a run returns; average: of the last stage; random: of a round drawn by the seed",
    )
    stage_iterations: int = Field(0, ge=0, description="T1: local steps in the first stage; 0: one stage")
    stage_decay: float = Field(3.0, ge=1, description="η(s)/η(s+1): what step sizes are divided by from stage to stage")
    stage_growth: float = Field(
        1.0, ge=1, le=1e6, description="T(s+1)/T(s); the papers' theory grows it as the step size shrinks"
    )
    stage_steps_growth: float = Field(1.0, ge=1, le=1e6, description="q(s+1)/q(s)")
    seed: int = Field(0, ge=0, le=2**63 - 1, description="of every random choice: same seed, same bits")

    # ------------------------------------------------------------------ the hooks

    @property
    def phases(self) -> tuple[str, ...]:
        """Exchanges per round, in order, no name twice; each calls broadcast, local_update and aggregate."""
        return ("train",)

    def initial_state(self, start: Arrays) -> Arrays:
        """Return what the server keeps between rounds; at least the model (``x``, and ``y`` where there is one).

        An algorithm that ``splits_model`` is given ``body`` too, the part of x before the head.
        """
        return dict(start)

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Return what this site is sent; the same vector objects for all sites are serialised once."""
        return state

    @abstractmethod
    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Do a client's part of a round.

        Parameters
        ----------
        sent : Arrays
            What `broadcast` returned, on the problem's device. Not to be written to.
        memory : Arrays
            What this site remembered; empty at its first participation or after a loss.
        oracle : Oracle
            Batches and gradients of this site.
        context : RoundContext
            Round, phase, stage.

        Returns
        -------
        tuple[Arrays, Arrays]
            The reply, and the new memory.
        """

    def aggregate(self, state: Arrays, replies: Iterable[Reply], context: RoundContext) -> Arrays:
        """Return the server's next state; ``replies`` come in the order of the sites and can be read once."""
        return state | average(replies)

    def unfit(self, arrays: Arrays, context: RoundContext, d: int) -> str:
        """Return why vectors that came cannot be used, of a model with d parameters; empty: they can.

        Asked on both sides, before anything else sees them, about what names, shapes, types and finite values do not
        tell; here that whole numbers, which are rounds and counts of steps, are none that there cannot be.
        """
        steps = context.iteration + context.local_steps
        for name, vector in arrays.items():
            if vector.dtype == torch.int64 and not bool(((vector >= 0) & (vector <= steps)).all()):
                return f"array {name!r} holds {shown(vector.flatten()[:3].tolist())}: must be from 0 to {steps}"
        return ""

    def lengths(self, d: int, layers: Layout) -> dict[str, int]:
        """Return the lengths that this algorithm's table has symbols of its own for.

        ``layers`` says where each of the d parameters lies; it is empty where there is no network.
        """
        return {}

    def neighbours(self, site: int, context: RoundContext) -> Collection[int]:
        """Return the sites whose vectors this one is sent one by one, where a row is ``relayed``."""
        return ()

    @property
    def own_heads(self) -> bool:
        """Whether `Oracle.fresh` gives each site a random head of its own, or, as by default, the same to all."""
        return False

    def personal(self, sent: Arrays, memory: Arrays, fresh: Callable[[], Arrays]) -> Arrays:
        """Return the model that a site evaluates and uses; by default the one that it was sent.

        ``fresh`` is `Oracle.fresh`: ask it only where the memory is not enough.
        """
        return sent

    def body(self, state: Arrays, head: int | None) -> Tensor | None:
        """Return what a personalised run gives to new sites: the body x[:head]; None where sites share none.

        All of x where it has no head (None). Asked for once, after the last round.
        """
        return state["x"][:head] if self.exchanges else None

    def final(self, state: Arrays, model: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Return what this site is sent for the last evaluation; by default the run's model."""
        return model

    def measures(self, state: Arrays, context: RoundContext) -> dict[str, float]:
        """Return numbers about the server's state for the round's line of metrics; by default none."""
        return {}

    def contradictions(self) -> list[str]:
        """Return what is wrong between hyper-parameters that are right by themselves, a line each."""
        return []

    @classmethod
    def misfits(cls, keys: Mapping[str, Value]) -> list[str]:
        """Return which of the run's other keys this algorithm cannot do with, a line each; ``keys`` are its own."""
        return []

    def prepare(self, sites: int) -> None:
        """Check what only the number of sites shows, before anything is sent; raise StrategyError if it is wrong."""

    # ------------------------------------------------------------------ checks and names, shared by all

    def __init_subclass__(cls, **keywords: object) -> None:
        """Take nobody's word for it that another `local_update` works for many clients, too."""
        super().__init_subclass__(**keywords)
        if "local_update" in vars(cls):
            cls.stacks = vars(cls).get("stacks", False)

    def __post_init__(self) -> None:
        """Check all ranges at once.

        Raises
        ------
        StrategyError
            Naming each key, its value and what is allowed.
        """
        wrong = check_options(self)
        if not wrong and self.fraction < 1 and not self.partial:
            wrong.append(f"fraction = {self.fraction}: {self.name} needs all sites in every round, so it must be 1")
        if not wrong and self.personalised and self.output != "last":
            wrong.append(
                f'output = {self.output!r}: with algorithm = "{self.name}" a site keeps its last model only, so take '
                '"last"'
            )
        if wrong := wrong or self.contradictions():
            raise StrategyError("\n".join(wrong), key=wrong[0].split(" = ")[0])

    @classmethod
    def key(cls, name: str) -> str:
        """Return the run-config key of a field: ``"local-steps"``, ``"codasca.server-lr"``."""
        own = name not in {f.name for f in fields(Algorithm)}
        return (f"{cls.name}." if own else "") + key_of(name)

    @property
    def step_sizes(self) -> str:
        """The step sizes as a user writes them: what to lower when a run diverges."""
        names = [f.name for f in fields(self) if f.name.split("_")[0] == "lr" or f.name.endswith("_lr")]
        return " or ".join(f"{self.key(name)} = {getattr(self, name):g}" for name in names)

    def log_hyper_parameters(self) -> None:
        """Write them to the log."""
        values = ", ".join(f"{f.name} {getattr(self, f.name)}" for f in fields(self))
        log.info("%s: %s", self.name, values)

    def context(self, server_round: int, rounds: int, phase: str, sites: int) -> RoundContext:
        """Return where a run of this many rounds and sites stands; both sides know all of this."""
        stages = Stages(
            self.local_steps, self.stage_iterations, self.stage_decay, self.stage_growth, self.stage_steps_growth
        )
        return stages.context(server_round, rounds, phase, sites)

    def without_files(self) -> Self:
        """Return the algorithm as a site plays it, which opens no file that somebody else names."""
        return self

    def asked(self, sites: int) -> int:
        """Return how many of the sites are drawn for a round: ``fraction`` of them, one at least."""
        return max(1, math.floor(self.fraction * sites + 0.5))

    def position(self, place: tuple[float, float] | None) -> int:
        """Return the number of a place in a run, given as a round and the place of a phase in it; 0 for none."""
        return int((place[0] - 1) * len(self.phases) + place[1]) + 1 if place else 0


class SkipsPhases(ABC):
    """An algorithm some of whose phases take place in some rounds only."""

    @abstractmethod
    def plays(self, context: RoundContext) -> bool:
        """Return whether this phase takes place in this round; one at least does."""


def phases_of(algorithm: Algorithm, server_round: int, rounds: int, sites: int) -> Iterator[str]:
    """Yield the phases that take place in a round."""
    for phase in algorithm.phases:
        context = algorithm.context(server_round, rounds, phase, sites)
        if not isinstance(algorithm, SkipsPhases) or algorithm.plays(context):
            yield phase


class FirstCome:
    """An algorithm that waits for no more than ``min-replies`` usable answers, if that is not 0, and drops others."""
