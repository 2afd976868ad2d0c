"""The rounds of one run: owns the server's state, the returned model and the exchange."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from edelweiss.federation.algorithm import phases_of
from edelweiss.federation.average import Mean
from edelweiss.federation.broadcast import Broadcast
from edelweiss.federation.checkpoints import Checkpoints, Snapshot
from edelweiss.federation.encoding import Encoding
from edelweiss.federation.errors import DivergedError, StrategyError, naming_round
from edelweiss.federation.final_evaluation import FinalEvaluation
from edelweiss.federation.messages import common_fields
from edelweiss.federation.observer import Observer
from edelweiss.federation.replies import ReplyChecker
from edelweiss.federation.returned_iterate import ReturnedIterate
from edelweiss.federation.robust import RobustMean, Robustness
from edelweiss.federation.run_messages import RunMessages
from edelweiss.federation.schema import NAMES, shapes_of
from edelweiss.federation.sites import Reply, Site
from edelweiss.federation.wire import magnitudes, pack
from edelweiss.problems.metrics import metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from torch import Tensor

    from edelweiss.federation.algorithm import Algorithm
    from edelweiss.federation.exchange import Exchange
    from edelweiss.federation.messages import TrainReply
    from edelweiss.federation.stages import RoundContext
    from edelweiss.federation.summed import Summed
    from edelweiss.problems import Arrays, Metrics, Problem

MODEL = ("x", "y", "buffers")  # the vectors of the state that form the model
BUFFERS = "buffers"  # batch-norm statistics, averaged with every algorithm and not part of x


@dataclass(kw_only=True)
class Rounds:
    """A run of an algorithm, executed by `play`."""

    algorithm: Algorithm  # its hooks are called; it is not changed
    exchange: Exchange  # how messages travel, and the sites that they go to
    start: Arrays  # the starting model: x, and y and buffers if there are any; unused if the run resumes
    count: int  # R, how many rounds
    # train_config, evaluate_config: further fields of every message
    train_config: Mapping[str, object] = field(default_factory=dict)
    evaluate_config: Mapping[str, object] = field(default_factory=dict)
    # evaluates the model at the server after each round; takes the round and the model, which it leaves unchanged
    evaluate: Callable[[int, Arrays], Mapping[str, object] | None] | None = None
    evaluate_every: int = 1  # sites evaluate the received model every this many rounds; 0: only the final model
    # bound on metrics that show divergence (`problems.metrics.METRICS`): beyond it, or NaN, the run ends; at a single
    # site, its reply is rejected
    loss_bound: float = math.inf
    # P, onto the feasible set of y: a mean of feasible points is feasible, but a server step may leave the set
    project: Callable[[Tensor], Tensor] | None = None
    observer: Observer = field(default_factory=Observer)  # receives the results of every round
    head: int | None = None  # index in x where the head begins; None without a network
    # stores the run's snapshots; holds the one to resume from
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    # the objective: determines the metrics of an evaluation, and what an algorithm `needs`
    problem: Problem | None = None
    # whether the final evaluation includes `evidence.Reported`; requires a problem that ranks samples
    evidence: bool = False
    # whether it is of noised histograms alone, with differential privacy
    noised: bool = False
    # a model to compare the final one with: x, and buffers if there are any
    other: ArrayRecord | None = None
    encoding: Encoding = field(default_factory=Encoding)  # quantisation of the vectors sent in a round
    robustness: Robustness = field(default_factory=Robustness)  # how replies are averaged
    # reads sums over all sites in place of replies, with secure aggregation
    summed: Summed | None = None
    state: Arrays = field(init=False)  # the server's state, last returned by `Algorithm.aggregate`
    # the averaged batch-norm statistics by name; empty without any
    buffers: Arrays = field(init=False)
    done: int = field(default=0, init=False)  # rounds completed before this object was made

    def __post_init__(self) -> None:
        """Set up the server's state.

        Raises
        ------
        StrategyError
            If the algorithm cannot train this model, or on this many sites.
        """
        if self.count < 1:
            raise StrategyError(f"num_rounds = {self.count}: a run has at least one round")
        algorithm = self.algorithm
        which = "last" if algorithm.stages_output else algorithm.output
        self.output = ReturnedIterate(which, self.count, algorithm.seed)
        self.total_weight = self.summed.site.weight if self.summed else sum(site.weight for site in self.exchange.sites)
        start = dict(self.start)
        sites = len(self.exchange.sites)
        messages = RunMessages(algorithm, start, self.count, sites, self.problem, self.head, self.encoding)
        self.broadcast = Broadcast(messages, self.exchange.sites)
        self._outliers: dict[str, float] = {}  # of the current round
        self._memory_from: dict[str, int] = {}  # the position of each site's memory in the run, by name
        example = self.problem.example() if self.problem else None
        self.answers = ReplyChecker(messages, example, self.loss_bound, self.evidence, self.noised)
        if self.checkpoints.last is None:
            self.buffers = {BUFFERS: start.pop(BUFFERS)} if BUFFERS in start else {}
            if algorithm.splits_model:
                start["body"] = self._separable(start["x"])
            self.state = algorithm.initial_state(start)
        else:
            self._restore(self.checkpoints.last)
        algorithm.log_hyper_parameters()
        algorithm.prepare(len(self.exchange.sites))

    def _separable(self, x: Tensor) -> Tensor:
        if not self.head:
            raise StrategyError(
                f"algorithm = {self.algorithm.name!r} treats the body and the head of a model differently, but this "
                "model has no separable head: nothing lies before it. Take a model of several layers, such as "
                "mlp, or a head further back",
                key="head",
                value=self.algorithm.name,
            )
        return x[: self.head]

    # ------------------------------------------------------------------ the loop

    def play(self) -> Result:
        """Run all rounds and the final evaluation.

        Returns
        -------
        Result
            Flower's: ``arrays`` is the model that ``output`` asks for.

        Raises
        ------
        RunError
            When the run cannot go on; every round before that has been reported to the observer.
        """
        result = Result()
        for r in range(self.done + 1, self.count + 1):
            with naming_round(r, self.count):
                model = self._round(r)
            if self.evaluate and (metrics := self.evaluate(r, model)) is not None:
                result.evaluate_metrics_serverapp[r] = MetricRecord({**metrics})  # type: ignore[dict-item]
                with naming_round(r, self.count):
                    self._require_convergence(metrics)
            self.checkpoints.save_if_due(self.snapshot(r))
        model = self._returned()
        result.arrays = pack(model)
        result.evaluate_metrics_clientapp[self.count] = FinalEvaluation(self, model, result.arrays).play()
        return result

    def _round(self, r: int) -> Arrays:
        """Run one round; return its model, or after the last round the model that the run returns."""
        started, before = time.monotonic(), self.exchange.cost()
        work: dict[str, float] = {}
        samples = 0.0
        evaluated: list[tuple[Site, Metrics]] = []
        try:
            for place, phase in enumerate(phases_of(self.algorithm, r, self.count, len(self.exchange.sites))):
                samples += self._phase(self.context(r, phase), place == 0, work, evaluated)
            model = self.model()
        finally:
            if evaluated:
                self.observer.evaluated(r - 1, evaluated)
        context = self.context(r, phase)
        self.output.update(model, context)
        cost = {name: total - before[name] for name, total in self.exchange.cost().items()}
        cost |= {"gradients": sum(work.values()), "samples": samples}
        cost |= self.algorithm.measures(self.state, context) | {"seconds": time.monotonic() - started}
        self.observer.trained(r, cost, work)
        if self._outliers:
            self.observer.outlying(self._outliers)
            self._outliers = {}
        return model if r < self.count else self._returned()

    def _phase(
        self, context: RoundContext, opens: bool, work: dict[str, float], evaluated: list[tuple[Site, Metrics]]
    ) -> float:
        """Exchange the messages of a phase and aggregate the replies; return the number of samples.

        The phase that opens a round carries the evaluation of the model that the round begins with.
        """
        r, every, down = context.round, self.evaluate_every, self.broadcast
        wanted = opens and r > 1 and every > 0 and (r - 1) % every == 0
        model = self.model()
        scanned = magnitudes(model)
        common = common_fields({**self.train_config, **self.checkpoints.memory_fields(r), "evaluate": wanted}, context)
        known = {id(model[name]): most for name, most in scanned.items()}
        # The messages have no name here: the exchange drops each when it has been answered.
        if self.summed:
            replies = self.summed.training(
                self.exchange,
                down.messages(self.state, self.buffers, context, common, known),
                down.declared,
                context,
                evaluate=wanted,
            )
        else:
            read = self.answers.to_training(context, max(scanned.values(), default=0.0), evaluate=wanted)
            replies = self.exchange(
                down.messages(self.state, self.buffers, context, common, known), read=read, shuffle=down.shuffle
            )
        return self.aggregate(context, replies, work, evaluated)

    def _require_convergence(self, metrics: Mapping[str, object]) -> None:
        """Raise DivergedError when the coordinator's own evaluation says that the run diverges."""
        for name, value in metrics.items():
            if isinstance(value, float) and metric(name).diverges and not abs(value) <= self.loss_bound:
                raise DivergedError(
                    f"the run diverges: at the coordinator the {name} of the model is {value:g} "
                    f"(loss-bound = {self.loss_bound:g}). Lower {self.algorithm.step_sizes}",
                    key=name,
                    value=value,
                    allowed=self.loss_bound,
                )

    # ------------------------------------------------------------------ the state

    def context(self, server_round: int, phase: str) -> RoundContext:
        """Return the context of a phase."""
        context = self.algorithm.context(server_round, self.count, phase, len(self.exchange.sites))
        return replace(context, total_weight=self.total_weight)

    def model(self) -> Arrays:
        """Return the model within the server's state."""
        return {name: self.state[name] for name in MODEL if name in self.state} | self.buffers

    def _returned(self) -> Arrays:
        """Return the model that the run returns, after its last round."""
        return self.output.model | self._shared()

    def _shared(self) -> Arrays:
        """Return x of a personalised run: the body that the sites share, and behind it the server's head."""
        body = self.algorithm.body(self.state, self.head) if self.algorithm.personalised else None
        return {} if body is None else {"x": torch.cat([body, self.state["x"][len(body) :]])}

    def aggregate(
        self,
        context: RoundContext,
        replies: Iterable[tuple[Site, TrainReply]],
        work: dict[str, float],
        evaluated: list[tuple[Site, Metrics]],
    ) -> float:
        """Aggregate the replies of a phase one at a time; return the number of samples.

        Each site's gradients are added to ``work``, and its evaluation, if it sent one, to ``evaluated``.
        """
        samples = 0.0
        mean_buffers = Mean()

        def received() -> Iterator[Reply]:
            nonlocal samples
            for site, reply in replies:
                if reply.metrics:
                    evaluated.append((site, reply.metrics))
                cost, arrays = reply.cost, reply.arrays
                self._note_memory(site, cost.memory_from, cost.memory_kept)
                samples += float(cost.samples)
                work[site.name] = work.get(site.name, 0.0) + float(cost.gradients)
                yield Reply(site, arrays)

        def without_buffers() -> Iterator[Reply]:
            for reply in robust(received()):
                if BUFFERS in reply.arrays:
                    mean_buffers.add({BUFFERS: reply.arrays.pop(BUFFERS)}, reply.site.weight)
                yield reply

        robust = RobustMean(self.robustness, self.broadcast.declared.groups(context), self.state | self.buffers)
        self.state = self._aggregated(self.algorithm.aggregate(self.state, without_buffers(), context))
        self.buffers |= mean_buffers.value()
        for name, ratio in robust.outliers.items():
            self._outliers[name] = max(ratio, self._outliers.get(name, 0.0))
        if self.project and "y" in self.state:
            self.state["y"] = self.project(self.state["y"])
        return samples

    def _aggregated(self, state: object) -> Arrays:
        """Return what the algorithm's `aggregate` returned; raise StrategyError unless x and y are as before."""
        sound = isinstance(state, dict) and all(getattr(vector, "dtype", None) in NAMES for vector in state.values())
        found = shapes_of(cast("Arrays", state)) if sound else {}
        kept = {name: shape for name, shape in shapes_of(self.state).items() if name in ("x", "y")}
        if wrong := [name for name, shape in kept.items() if found.get(name) != shape]:
            name, shape = wrong[0], kept[wrong[0]]
            said = f"{name!r} as {found.get(name)}" if sound else "no dict of tensors"
            raise StrategyError(
                f"algorithm = {self.algorithm.name!r}: `aggregate` of class {type(self.algorithm).__name__} returned "
                f"{said}: must be the server's state, with {name!r} as {shape}, such as state | {{{name!r}: {name}}}"
            )
        return dict(cast("Arrays", state))

    def _note_memory(self, site: Site, began: int, kept: int) -> None:
        """Warn about a site that has lost its memory; ``began`` and ``kept`` are positions in the run."""
        if began < (before := self._memory_from.get(site.name, 0)):
            r = (before - 1) // len(self.algorithm.phases) + 1
            self.exchange.warn(
                f"site {site.name!r} has lost its memory of round {r}: it continues with empty state, so the "
                "run's results are no longer those of its seed"
            )
        self._memory_from[site.name] = kept

    def snapshot(self, server_round: int) -> Snapshot:
        """Return what `_restore` needs to go on after this round."""
        output = {} if self.output.which == "last" else self.output.model
        parts = {"state": self.state, "buffers": self.buffers, "residual": self.broadcast.residual, "output": output}
        tensors = {f"{part}/{name}": vector for part, arrays in parts.items() for name, vector in arrays.items()}
        facts = {"sending-order": self.broadcast.shuffle_state, "memories": dict(self._memory_from)}
        return Snapshot(server_round, tensors, facts)

    def _restore(self, snapshot: Snapshot) -> None:
        parts: dict[str, Arrays] = {"state": {}, "buffers": {}, "residual": {}, "output": {}}
        for key, vector in snapshot.tensors.items():
            part, _, name = key.partition("/")
            parts[part][name] = vector
        self.done, self.state, self.buffers = snapshot.round, parts["state"], parts["buffers"]
        self.broadcast.residual, self.broadcast.shuffle_state = parts["residual"], snapshot.facts["sending-order"]
        self.output.model = self.model() if self.output.which == "last" else parts["output"]
        self._memory_from = dict(snapshot.facts["memories"])
