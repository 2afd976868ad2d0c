"""The round loop, written once: what every algorithm shares, on the server and on a client.

An algorithm is a subclass: a frozen dataclass whose fields are its hyper-parameters, with a server half
(`initial_state`, `broadcast`, `aggregate`) and a client half (`local_update`). The halves are pure functions of their
arguments. docs/add-an-algorithm.md walks through one.
"""

from __future__ import annotations

import logging
import math
import operator
import time
from abc import abstractmethod
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result, Strategy

from problems.metrics import pool
from strategies.average import Mean, Reply, Site, average
from strategies.exchange import Exchange, RunError
from strategies.hyper import StrategyError, check_fields, choice, hyper
from strategies.schedule import Stages, Turn
from strategies.wire import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from flwr.app import ArrayRecord
    from flwr.serverapp import Grid
    from torch import Tensor

    from problems import Arrays, Batch, Metrics

log = logging.getLogger("edelweiss")

DIVERGING = ("loss", "distance-x", "distance-y")  # metrics that grow without bound when a run diverges
MODEL = ("x", "y", "buffers")  # the vectors of the state that make up the model, whatever else a server keeps


class Oracle(Protocol):
    """What a client half may ask of its site: batches, gradients, projections. See ``client_app.oracle``."""

    def draw(self, size: int | None = None) -> Batch | None:
        """Return a fresh mini-batch (of ``size`` samples; default: the run's batch size)."""

    def gradient(self, x: Tensor, y: Tensor | None = None, batch: Batch | None = None) -> tuple[Tensor, Any]:
        """Return (gx, gy) at any point, on the given batch or on a fresh one; gy is None without a y."""

    def inner(self, x: Tensor, batch: Batch | None) -> Tensor:
        """Return g(x; batch) of a problem with an inner function of fixed size (``needs`` it by name)."""

    def compositional_gradient(self, x: Tensor, s: Tensor, batch: Batch | None) -> Tensor:
        """Return ∇g(x; batch)ᵀ ∇f(s; batch) of such a problem."""

    def dual_terms(self, x: Tensor, batch: Batch | None) -> tuple[Tensor, Tensor]:
        """Return a batch's part in the best y at x, of a problem with a closed-form dual (``needs`` it by name)."""

    def balanced_gradient(self, x: Tensor, batch: Batch | None) -> Tensor:
        """Return the gradient of the loss as if this site had equally many samples of each class (``needs``)."""

    @property
    def generator(self) -> torch.Generator:
        """This site's random stream of this round, on the CPU; batches come from it too."""

    @property
    def layers(self) -> Sequence[tuple[slice, tuple[int, ...]]]:
        """Where each of the network's parameters lies in x, and its shape (``needs``)."""

    @property
    def head(self) -> int:
        """Where the head begins in x, of a problem with a network (``needs`` it by name): x[:head] is the body."""

    def fresh(self) -> Arrays:
        """Return what a site starts from that has none yet: ``head``, and ``y``, where there are such. Read only."""

    def aside(self) -> AbstractContextManager[None]:
        """Leave the site's batch-norm statistics as they are, for gradients of a model that is not the site's own."""

    def project(self, y: Tensor) -> Tensor:
        """Return y projected onto its feasible set."""


class Observer(Protocol):
    """Whoever wants to know how a run goes: the server app's report."""

    def trained(self, server_round: int, cost: dict[str, float], work: dict[str, float]) -> None:
        """Note that a round ended, and its cost.

        Parameters
        ----------
        server_round : int
            1 to R.
        cost : dict
            gradients and samples (see `client_app.oracle.SiteOracle`) of all sites together, bytes-down, bytes-up,
            seconds, seconds-waiting; and what the algorithm measures.
        work : dict
            Gradients of each site that took part, by its name.
        """

    def evaluated(self, server_round: int, sites: list[tuple[Site, Metrics]]) -> None:
        """Note how the model that a round ended with does at these sites."""


@dataclass
class _Run:
    """What a run in progress knows; the strategy itself is frozen."""

    sites: Sequence[Site]
    rounds: int
    state: Arrays
    phase: str
    project: Callable[[Tensor], Tensor] | None = None
    work: dict[str, float] = field(default_factory=dict)

    def model(self) -> Arrays:
        """Return the model within the server's state."""
        return {name: self.state[name] for name in MODEL if name in self.state}


class _Output:
    """The model that a run returns, kept up to date round by round in one copy."""

    def __init__(self, which: str, rounds: int, seed: int) -> None:
        self.which = which
        self.drawn = int(np.random.default_rng([seed, 2]).integers(1, rounds + 1))
        self.model: Arrays = {}

    def update(self, model: Arrays, turn: Turn) -> None:
        """Take note of the model after a round."""
        if self.which == "random":
            self.model = model if turn.round == self.drawn else self.model
        elif self.which == "last" or turn.first:
            self.model = model
        else:  # the running mean over the rounds of this stage
            self.model = {n: self.model[n] + (v - self.model[n]) / turn.round_in_stage for n, v in model.items()}


@dataclass(frozen=True, kw_only=True)
class FederatedStrategy(Strategy):
    """The base of all algorithms. Fields are hyper-parameters; a run-config key is a field's name with dashes.

    The fields declared here mean the same for every algorithm and are top-level keys; a subclass's own fields live in
    the table that bears its ``name``.
    """

    name: ClassVar[str]
    solves: ClassVar[frozenset[str]]
    """Kinds of problems (``Problem.kind``) that this algorithm is for."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """What it asks of a problem beyond gradients (``Problem.offers``)."""
    partial: ClassVar[bool] = True
    """Whether it can do with a share of the sites in a round (``fraction`` below 1)."""
    first_come: ClassVar[bool] = False
    """Whether it waits for no more than ``min-replies`` usable answers (if that is not 0), and drops later ones."""
    personalised: ClassVar[bool] = False
    """Whether each site ends with a model of its own: the server's is not tested, and only what new sites need of it
    (see `body`) is written to a file."""
    own_statistics: ClassVar[bool] = False
    """Whether batch-norm statistics belong to the personal part: then ``bn`` must be ``"local"``."""
    last_layer: ClassVar[bool] = False
    """Whether its head is the last, linear layer of the network and no other."""
    exchanges: ClassVar[bool] = True
    """Whether sites learn from each other; if not, batch-norm statistics stay where they are, whatever ``bn`` is."""

    local_steps: int = hyper(10, "q: local steps between two synchronisations", low=1)
    fraction: float = hyper(1.0, "share of the sites that take part in a round", above=0.0, high=1.0)
    weighting: str = choice("uniform", "mean_k: every site counts the same, or by its n_k", "uniform", "examples")
    output: str = choice("last", "which iterate a run returns", "last", "average", "random")
    stage_iterations: int = hyper(0, "T_1: local steps of the first stage; 0 = one stage", low=0)
    stage_decay: float = hyper(3.0, "what step sizes are divided by from one stage to the next", low=1.0)
    stage_growth: float = hyper(1.0, "T_(s+1)/T_s: how much longer each stage is", low=1.0)
    stage_steps_growth: float = hyper(1.0, "q_(s+1)/q_s: how many more local steps each stage has", low=1.0)
    seed: int = hyper(0, "of every random choice", low=0, high=2**63 - 1)

    _run: _Run | None = field(init=False, repr=False, compare=False, default=None)

    # ------------------------------------------------------------------ what an algorithm writes

    @property
    def phases(self) -> tuple[str, ...]:
        """Exchanges per round, in order, no name twice; each calls broadcast, local_update and aggregate."""
        return ("train",)

    def plays(self, turn: Turn) -> bool:
        """Return whether this phase takes place in this round; the first phase always does."""
        return True

    def initial_state(self, start: Arrays) -> Arrays:
        """Return what the server keeps between rounds; at least the model (``x``, and ``y`` where there is one).

        An algorithm that ``needs`` a head is given ``body`` too, the part of x before it.
        """
        return dict(start)

    def broadcast(self, state: Arrays, turn: Turn, site: Site) -> Arrays:
        """Return what this site is sent; the same vector objects for all sites are serialised once."""
        return state

    @abstractmethod
    def local_update(self, sent: Arrays, memory: Arrays, oracle: Oracle, turn: Turn) -> tuple[Arrays, Arrays]:
        """Do a client's part of a round.

        Parameters
        ----------
        sent : Arrays
            What `broadcast` returned, on the problem's device. Not to be written to.
        memory : Arrays
            What this site remembered; empty at its first participation or after a loss.
        oracle : Oracle
            Batches and gradients of this site.
        turn : Turn
            Round, phase, stage.

        Returns
        -------
        tuple[Arrays, Arrays]
            The reply, and the new memory.
        """

    def aggregate(self, state: Arrays, replies: Iterable[Reply], turn: Turn) -> Arrays:
        """Return the server's next state; ``replies`` come in the order of the sites and can be read once."""
        return state | average(replies)

    def personal(self, sent: Arrays, memory: Arrays, fresh: Arrays) -> Arrays:
        """Return the model that a site evaluates and uses; by default the one that it was sent.

        ``fresh`` is what `Oracle.fresh` returns.
        """
        return sent

    def body(self, state: Arrays, head: int | None) -> Tensor | None:
        """Return what a personalised run gives to new sites: the body x[:head]; None where sites share none.

        All of x where it has no head (None). Asked for once, after the last round.
        """
        return state["x"][:head] if self.exchanges else None

    def final(self, state: Arrays, model: Arrays, turn: Turn, site: Site) -> Arrays:
        """Return what this site is sent for the last evaluation; by default the run's model."""
        return model

    def measures(self, state: Arrays, turn: Turn) -> dict[str, float]:
        """Return numbers about the server's state that belong into a round's line; by default none."""
        return {}

    def contradictions(self) -> list[str]:
        """Return what is wrong between hyper-parameters that are right by themselves, a line each."""
        return []

    # ------------------------------------------------------------------ checks, shared by all

    def __post_init__(self) -> None:
        """Check all ranges at once.

        Raises
        ------
        StrategyError
            Naming each key, its value and what is allowed.
        """
        wrong = check_fields(self)
        if not wrong and self.fraction < 1 and not self.partial:
            wrong.append(f"fraction = {self.fraction}: {self.name} needs all sites in every round, so it must be 1")
        if not wrong and self.personalised and self.output != "last":
            wrong.append(
                f'output = {self.output!r}: with algorithm = "{self.name}" a site keeps its last model only, so take '
                '"last"'
            )
        if wrong := wrong or self.contradictions():
            raise StrategyError("\n".join(wrong))

    @classmethod
    def key(cls, name: str) -> str:
        """Return the run-config key of a field: ``"local-steps"``, ``"codasca.server-lr"``."""
        own = name not in {f.name for f in fields(FederatedStrategy)}
        return (f"{cls.name}." if own else "") + name.replace("_", "-")

    @property
    def step_sizes(self) -> str:
        """The step sizes as a user writes them: what to lower when a run diverges."""
        names = [f.name for f in fields(self) if f.name.split("_")[0] == "lr" or f.name.endswith("_lr")]
        return " or ".join(f"{self.key(name)} = {getattr(self, name):g}" for name in names)

    @property
    def stages(self) -> Stages:
        """The run's stages."""
        return Stages(
            self.local_steps,
            self.stage_iterations,
            self.stage_decay,
            self.stage_growth,
            self.stage_steps_growth,
        )

    # ------------------------------------------------------------------ the loop

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        exchange: Exchange | None = None,
        evaluate_every: int = 1,
        loss_bound: float = math.inf,
        project: Callable[[Tensor], Tensor] | None = None,
        observer: Observer | None = None,
        head: int | None = None,
    ) -> Result:
        """Run all rounds; the parameters up to ``evaluate_fn`` are Flower's.

        Parameters
        ----------
        grid : Grid
            Any engine's.
        initial_arrays : ArrayRecord
            The starting model: x, and y and buffers where there are such.
        num_rounds : int
            R.
        timeout : float
            Seconds to wait for the sites in one exchange; used when no ``exchange`` is given.
        train_config, evaluate_config : ConfigRecord, optional
            Facts that go with every message.
        evaluate_fn : callable, optional
            Evaluates a model at the server, after each round.
        exchange : Exchange, optional
            How messages travel and which sites they go to; default: to all nodes of the grid, needing all answers
            within ``timeout``.
        evaluate_every : int
            Sites evaluate what they receive every so many rounds; 0: only the final model.
        loss_bound : float
            A site's loss (or distance to the optimum) above it, or NaN, is divergence and ends the run.
        project : callable, optional
            P, onto the feasible set of y: a mean of feasible points is feasible, but a server's own step may leave it.
        observer : Observer, optional
            Told about every round.
        head : int, optional
            Where the head begins in x; None: x is no network's.

        Returns
        -------
        Result
            Flower's: ``arrays`` is the model that ``output`` asks for.

        Raises
        ------
        RunError
            When the run cannot go on; every round before that has been reported to the observer.
        """
        exchange = exchange or Exchange(
            grid, timeout, [Site(i, str(node), node) for i, node in enumerate(sorted(grid.get_node_ids()))]
        )
        exchange.advice = f"Lower {self.step_sizes}"
        exchange.first_come = np.random.default_rng([self.seed, 7]) if self.first_come else None
        result, arrays = Result(), initial_arrays
        start = unpack(initial_arrays)
        if "head" in self.needs:
            start["body"] = self._body(start["x"], head)
        buffers = {"buffers": start.pop("buffers")} if "buffers" in start else {}
        run = _Run(exchange.sites, num_rounds, self.initial_state(start) | buffers, self.phases[0], project)
        object.__setattr__(self, "_run", run)
        output = _Output(self.output, num_rounds, self.seed)
        self.summary()

        def evaluate_here(server_round: int) -> None:
            if evaluate_fn and (metrics := evaluate_fn(server_round, arrays)) is not None:
                result.evaluate_metrics_serverapp[server_round] = metrics
                with _round(server_round, num_rounds):
                    self._require_convergence([("at the coordinator", metrics)], loss_bound)

        for r in range(1, num_rounds + 1):
            started, before = time.monotonic(), exchange.cost()
            evaluated: list[tuple[Site, Metrics]] = []
            run.work = {}
            samples = 0.0
            with _round(r, num_rounds):
                try:
                    for run.phase in self.phases:
                        first = run.phase == self.phases[0]
                        if not (first or self.plays(self._turn(r))):
                            continue
                        wanted = first and r > 1 and evaluate_every > 0 and (r - 1) % evaluate_every == 0
                        config = ConfigRecord({**(train_config or {}), "evaluate": wanted})
                        answers = exchange(self.configure_train(r, arrays, config, grid))
                        replies = _noting(answers, exchange.by_node, evaluated)
                        samples += float(str(self.aggregate_train(r, replies)[1]["samples"]))
                        self._require_convergence(_at_sites(evaluated), loss_bound)
                    arrays = pack(run.model())
                finally:
                    if evaluated and observer:
                        observer.evaluated(r - 1, evaluated)
            output.update(unpack(arrays), self._turn(r))
            if observer:
                cost = {name: total - before[name] for name, total in exchange.cost().items()}
                cost |= {"gradients": sum(run.work.values()), "samples": samples}
                cost |= self.measures(run.state, self._turn(r)) | {"seconds": time.monotonic() - started}
                observer.trained(r, cost, run.work)
            if r == num_rounds:
                arrays = pack(output.model | self._shared(run.state, head))
            evaluate_here(r)

        result.arrays = arrays
        # A site that is missing by now costs its line in the last table, not the run.
        answers = exchange(
            self.configure_evaluate(num_rounds, arrays, evaluate_config or ConfigRecord(), grid), min_replies=1
        )
        final: list[tuple[Site, Metrics]] = []
        pooled = self.aggregate_evaluate(num_rounds, _noting(answers, exchange.by_node, final))
        result.evaluate_metrics_clientapp[num_rounds] = pooled or MetricRecord()
        if observer:
            observer.evaluated(num_rounds, final)
        with _round(num_rounds, num_rounds):
            self._require_convergence(_at_sites(final), loss_bound)
        return result

    def _body(self, x: Tensor, head: int | None) -> Tensor:
        if not head:
            raise StrategyError(
                f"algorithm = {self.name!r} shares the body of a model and keeps the head at each site, and this model "
                "has no separable head: nothing lies before it. Take a model of several layers, such as mlp, or a "
                "head further back"
            )
        return x[:head]

    def _shared(self, state: Arrays, head: int | None) -> Arrays:
        """Return x of a personalised run: the body that the sites share, and behind it the server's head."""
        body = self.body(state, head) if self.personalised else None
        return {} if body is None else {"x": torch.cat([body, state["x"][len(body) :]])}

    def _require_convergence(self, evaluated: Iterable[tuple[str, Mapping[str, object]]], bound: float) -> None:
        """Raise RunError when an evaluation says that the run diverges; each comes with where it took place."""
        for where, metrics in evaluated:
            for name in DIVERGING:
                value = metrics.get(name)
                if isinstance(value, float) and not value <= bound:
                    raise RunError(
                        f"the run diverges: {where} the {name} of the model is {value:g} (loss-bound = {bound:g}). "
                        f"Lower {self.step_sizes}"
                    )

    def turn(self, server_round: int, rounds: int, phase: str, sites: int) -> Turn:
        """Return where a run of so many rounds and sites stands; both sides know all of this."""
        return replace(self.stages.turn(server_round, rounds, phase), sites=sites)

    def _turn(self, server_round: int) -> Turn:
        run = self.run
        turn = self.turn(server_round, run.rounds, run.phase, len(run.sites))
        return replace(turn, total_weight=sum(site.weight for site in run.sites))

    @property
    def run(self) -> _Run:
        """The run in progress."""
        if self._run is None:
            raise StrategyError(f"{self.name} has no run in progress: call start()")
        return self._run

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Write this phase's messages to the sites that take part in this round.

        All phases of a round go to the same sites. They are drawn from (seed, round).
        """
        run, turn = self.run, self._turn(server_round)
        buffers = {name: run.state[name] for name in ("buffers",) if name in run.state}
        packed: tuple[list[Tensor], ArrayRecord] = ([], pack({}))
        messages = []
        for site in self._participants(server_round):
            sent = self.broadcast(run.state, turn, site) | buffers
            vectors = list(sent.values())
            if not (packed[0] and len(packed[0]) == len(vectors) and all(map(operator.is_, packed[0], vectors))):
                packed = (vectors, pack(sent))
            content = RecordDict({"arrays": packed[1], "config": _turn_config(config, turn, site)})
            messages.append(Message(content, site.node_id, "train"))
        return messages

    def _participants(self, server_round: int) -> Sequence[Site]:
        sites = self.run.sites
        count = max(1, math.floor(self.fraction * len(sites) + 0.5))
        if count == len(sites):
            return sites
        drawn = np.random.default_rng([self.seed, 3, server_round]).choice(len(sites), count, replace=False)
        return [sites[i] for i in sorted(drawn)]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord]:
        """Fold the answers of a phase into the server's state."""
        run, turn = self.run, self._turn(server_round)
        sites = {site.node_id: site for site in run.sites}
        samples = 0.0
        mean_buffers = Mean()  # batch-norm statistics are averaged with every algorithm, and are no part of x

        def opened() -> Iterator[Reply]:
            nonlocal samples
            for message in replies:
                site, cost = sites[message.metadata.src_node_id], message.content.metric_records["cost"]
                samples += float(str(cost["samples"]))
                run.work[site.name] = run.work.get(site.name, 0.0) + float(str(cost["gradients"]))
                reply = Reply(site, unpack(message.content.array_records["arrays"]))
                if "buffers" in reply.arrays:
                    mean_buffers.add({"buffers": reply.arrays.pop("buffers")}, reply.site.weight)
                yield reply

        state = self.aggregate(run.state, opened(), turn)
        kept = {name: run.state[name] for name in ("buffers",) if name in run.state}
        run.state = kept | state | mean_buffers.value()
        if run.project and "y" in run.state:
            run.state["y"] = run.project(run.state["y"])
        return None, MetricRecord({"samples": samples})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Write the messages of the last evaluation, to all sites. In other rounds evaluation rides on training."""
        turn, model = self._turn(server_round), unpack(arrays)
        messages = []
        for site in self.run.sites:
            sent = self.final(self.run.state, model, turn, site)
            packed = arrays if sent is model else pack(sent)
            content = RecordDict({"arrays": packed, "config": _turn_config(config, turn, site)})
            messages.append(Message(content, site.node_id, "evaluate"))
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Pool the sites' evaluations."""
        return MetricRecord({**pool([_metrics(reply) for reply in replies])})

    def summary(self) -> None:
        """Log the algorithm and its hyper-parameters."""
        values = ", ".join(f"{f.name} {getattr(self, f.name)}" for f in fields(self) if f.init)
        log.info("%s: %s", self.name, values)


@contextmanager
def _round(server_round: int, rounds: int) -> Iterator[None]:
    """Say in a RunError which round it was."""
    try:
        yield
    except RunError as error:
        raise RunError(f"round {server_round} of {rounds}: {error}") from None


def _at_sites(evaluated: Iterable[tuple[Site, Metrics]]) -> Iterator[tuple[str, Metrics]]:
    """Yield evaluations with where they took place."""
    return ((f"at site {site.name!r}", metrics) for site, metrics in evaluated)


def _turn_config(config: ConfigRecord, turn: Turn, site: Site) -> ConfigRecord:
    """Tell a client where the run stands; the rest of its turn follows from the run-config, which it has."""
    return ConfigRecord({**config, "round": turn.round, "phase": turn.phase, "site": site.index, "name": site.name})


def _metrics(answer: Message) -> Metrics:
    """Return the evaluation in an answer; empty when there is none."""
    return cast("Metrics", dict(answer.content.metric_records["metrics"]))


def _noting(
    messages: Iterable[Message], sites: dict[int, Site], evaluated: list[tuple[Site, Metrics]]
) -> Iterator[Message]:
    """Pass the answers on, noting the evaluations that they carry."""
    for message in messages:
        if metrics := _metrics(message):
            evaluated.append((sites[message.metadata.src_node_id], metrics))
        yield message
