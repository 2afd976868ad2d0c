"""The base of algorithms: hyper-parameters and hooks, which are pure functions."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

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


def step_size(description: str) -> Any:
    """Declare a step size that is the problem's own, `Problem.usual_step`, in a run that leaves it at 0."""
    return Field(0.0, ge=0, description=f"{description}; 0: the problem's own")


@dataclass(frozen=True, kw_only=True)
class AlgorithmInfo:
    """What the docs say about an algorithm, apart from its messages.

    Attributes
    ----------
    papers : tuple of Paper
        Its sources; empty for a baseline.
    where : str
        The algorithm's number in the first paper: "Alg. 1".
    gradients : str
        Gradient evaluations of a site per round: "q", "2q".
    """

    papers: tuple[Paper, ...] = ()
    where: str = ""
    gradients: str


@dataclass(frozen=True, kw_only=True)
class Algorithm(HasOptions, ABC):
    """An algorithm. Its fields are hyper-parameters; a field's key is its name with dashes.

    The fields declared here are shared by all algorithms and are top-level keys; a subclass's own fields are in a table
    with its ``name``. Hooks are pure functions of their arguments.
    """

    name: ClassVar[str]
    info: ClassVar[AlgorithmInfo]
    messages: ClassVar[Table] = Table(both(x="d", y="p"))
    """The vectors sent down to a site, up from it, and kept there; by default the model in both directions."""
    solves: ClassVar[frozenset[str]]
    """Kinds of problems (``Problem.kind``) that it solves."""
    needs: ClassVar[frozenset[type]] = frozenset()
    """What it needs of a problem beyond gradients: classes of `problems.capabilities`."""
    stacks: ClassVar[bool] = False
    """Whether `local_update` also works for many clients at once, given as rows of tensors (K, d): it treats each row
    alone and slices x as ``x[..., part]``. Not inherited with an overridden `local_update`."""
    partial: ClassVar[bool] = True
    """Whether it supports partial participation (``fraction`` below 1)."""
    personalised: ClassVar[bool] = False
    """Whether each site ends with its own model: the server's is not evaluated, and only the part for new sites (see
    `body`) is saved."""
    splits_model: ClassVar[bool] = False
    """Whether it treats the body and the head of x differently: `initial_state` then also receives ``body``, and a
    model without a separable head is rejected."""
    own_statistics: ClassVar[bool] = False
    """Whether batch-norm statistics are personal: ``bn`` must then be ``"local"``."""
    own_dual: ClassVar[bool] = False
    """Whether y stays at the site, as the adversary of a personal model: p of AUC is then the site's own share of
    positives (`Problem.of_site`), except in gradients taken within `Oracle.aside`."""
    stages_output: ClassVar[bool] = False
    """Whether each stage passes on the iterate chosen by ``output``, so that a run returns that of its last stage."""
    averages_stages: ClassVar[bool] = False
    """Whether each stage ends with the average of its iterates, regardless of ``output``."""
    drops_stragglers: ClassVar[bool] = False
    """Whether it uses the first ``min-replies`` usable replies, unless that is 0, and drops later ones."""
    exchanges: ClassVar[bool] = True
    """Whether sites learn from each other; if not, batch-norm statistics stay at the sites, regardless of ``bn``."""

    local_steps: int = Field(10, ge=1, le=MOST_STEPS, description="q: local steps between two communications")
    fraction: float = Field(1.0, gt=0, le=1, description="share of the sites drawn for each round")
    weighting: Literal["uniform", "examples"] = Field(
        "uniform", description="weights of the sites in averages: equal, or their training samples n_k"
    )
    output: Literal["last", "average", "random"] = Field(
        "last",
        description="the iterate that a run returns: the last, the average of the last stage, or of a random round",
    )
    stage_iterations: int = Field(0, ge=0, description="T1: local steps in the first stage; 0: one stage")
    stage_decay: float = Field(
        3.0, ge=1, description="η(s)/η(s+1): factor that divides the step sizes from stage to stage"
    )
    stage_growth: float = Field(
        1.0, ge=1, le=1e6, description="T(s+1)/T(s); the papers' theory grows it as the step size shrinks"
    )
    stage_steps_growth: float = Field(1.0, ge=1, le=1e6, description="q(s+1)/q(s)")
    seed: int = Field(
        0,
        ge=0,
        le=2**63 - 1,
        description="seeds every random choice but a hospital's own batches: same seed, same bits",
    )

    # ------------------------------------------------------------------ the hooks

    @property
    def phases(self) -> tuple[str, ...]:
        """Exchanges per round, in order, no name twice; each calls broadcast, local_update and aggregate."""
        return ("train",)

    def plays(self, context: RoundContext) -> bool:
        """Return whether this phase takes place in this round; at least one does. By default all do."""
        return True

    def initial_state(self, start: Arrays) -> Arrays:
        """Return the server's state between rounds: at least the model (``x``, and ``y`` if the problem has one).

        If the algorithm ``splits_model``, ``start`` also has ``body``, the part of x before the head.
        """
        return dict(start)

    def broadcast(self, state: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Return the vectors to send to this site; vector objects shared by all sites are serialised once."""
        return state

    @abstractmethod
    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Do a client's part of a round.

        Parameters
        ----------
        sent : Arrays
            What `broadcast` returned, on the problem's device; read-only.
        memory : Arrays
            The site's memory; empty at its first participation or after a loss.
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
        """Return the server's next state; ``replies`` is an iterator in the order of the sites."""
        return state | average(replies)

    def unfit(self, arrays: Arrays, context: RoundContext, d: int) -> str:
        """Return why received vectors are invalid, for a model with d parameters; empty if they are valid.

        Called on both sides after the checks of names, shapes, types and finiteness. Here: integers, which are rounds
        and numbers of steps, must be possible.
        """
        steps = context.iteration + context.local_steps
        for name, vector in arrays.items():
            if vector.dtype == torch.int64 and not bool(((vector >= 0) & (vector <= steps)).all()):
                return f"array {name!r} holds {shown(vector.flatten()[:3].tolist())}: must be from 0 to {steps}"
        return ""

    def lengths(self, d: int, layers: Layout) -> dict[str, int]:
        """Return the lengths of the symbols that only this algorithm's table uses.

        ``layers`` gives the place of each of the d parameters; empty without a network.
        """
        return {}

    def neighbours(self, site: int, context: RoundContext) -> Collection[int]:
        """Return the sites whose vectors are relayed to this one, if a row is ``relayed``."""
        return ()

    @property
    def own_heads(self) -> bool:
        """Whether `Oracle.fresh` draws a different head for each site; by default all get the same."""
        return False

    def personal(self, sent: Arrays, memory: Arrays, fresh: Callable[[], Arrays]) -> Arrays:
        """Return the model that a site evaluates and uses; by default the received one.

        ``fresh`` is `Oracle.fresh`; call it only if the memory is insufficient.
        """
        return sent

    def body(self, state: Arrays, head: int | None) -> Tensor | None:
        """Return what a personalised run offers new sites: the shared body x[:head], or None.

        All of x if ``head`` is None. Called once, after the last round.
        """
        return state["x"][:head] if self.exchanges else None

    def final(self, state: Arrays, model: Arrays, context: RoundContext, site: Site) -> Arrays:
        """Return the vectors to send to this site for the final evaluation; by default the run's model."""
        return model

    def measures(self, state: Arrays, context: RoundContext) -> dict[str, float]:
        """Return metrics of the server's state for metrics.jsonl; by default none."""
        return {}

    def contradictions(self) -> list[str]:
        """Return contradictions between hyper-parameters, a line each."""
        return []

    @classmethod
    def misfits(cls, keys: Mapping[str, Value]) -> list[str]:
        """Return conflicts with the run's other keys, a line each; ``keys`` are the algorithm's own."""
        return []

    def prepare(self, sites: int) -> None:
        """Check the algorithm against the number of sites, before anything is sent; raise StrategyError if it fails."""

    # ------------------------------------------------------------------ checks and names, shared by all

    def __init_subclass__(cls, **keywords: object) -> None:
        """Reset ``stacks`` in a class that overrides `local_update`."""
        super().__init_subclass__(**keywords)
        if "local_update" in vars(cls):
            cls.stacks = vars(cls).get("stacks", False)

    def __post_init__(self) -> None:
        """Check all ranges at once.

        Raises
        ------
        StrategyError
            With each key, its value and what is allowed.
        """
        wrong = check_options(self)
        if not wrong and self.fraction < 1 and not self.partial:
            wrong.append(f"fraction = {self.fraction}: {self.name} needs all sites in every round, so it must be 1")
        if not wrong and self.personalised and self.output != "last":
            wrong.append(
                f'output = {self.output!r}: with algorithm = "{self.name}" a site keeps only its last model; set "last"'
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
        """The step sizes as keys and values, for advice on divergence."""
        names = [f.name for f in fields(self) if f.name.split("_")[0] == "lr" or f.name.endswith("_lr")]
        return " or ".join(f"{self.key(name)} = {getattr(self, name):g}" for name in names)

    def log_hyper_parameters(self) -> None:
        """Log the hyper-parameters."""
        values = ", ".join(f"{f.name} {getattr(self, f.name)}" for f in fields(self))
        log.info("%s: %s", self.name, values)

    def context(self, server_round: int, rounds: int, phase: str, sites: int) -> RoundContext:
        """Return the context of a phase in a run with this many rounds and sites."""
        stages = Stages(
            self.local_steps, self.stage_iterations, self.stage_decay, self.stage_growth, self.stage_steps_growth
        )
        return stages.context(server_round, rounds, phase, sites)

    def without_files(self) -> Self:
        """Return the algorithm for a site, without files that the run names."""
        return self

    def clients_per_round(self, sites: int) -> int:
        """Return the number of sites drawn for a round: ``fraction`` of them, at least one."""
        return max(1, math.floor(self.fraction * sites + 0.5))

    def position(self, place: tuple[float, float] | None) -> int:
        """Number the phases of a run from 1, given round and index of the phase; 0 for None."""
        return int((place[0] - 1) * len(self.phases) + place[1]) + 1 if place else 0


def phases_of(algorithm: Algorithm, server_round: int, rounds: int, sites: int) -> Iterator[str]:
    """Yield the phases of a round."""
    for phase in algorithm.phases:
        if algorithm.plays(algorithm.context(server_round, rounds, phase, sites)):
            yield phase
