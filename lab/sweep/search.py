"""The search for one method's best point, on Optuna.

Optuna's study is in memory and is rebuilt from the run folders, in the order of its trials. So a sweep that is killed
loses only what was running, no second record can disagree with the runs, and a decision does not depend on which run
ended first, as it would with the asynchronous pruners that Optuna brings.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import optuna
from optuna.trial import TrialState

from edelweiss.lab.compare.grids import beyond, steps
from edelweiss.lab.compare.runs import held_out, lower_is_better
from edelweiss.lab.sweep.study import STARTUP, distributions, point_of, rungs, seed_of

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from edelweiss.lab.compare.runs import Outcome, Settings
    from edelweiss.lab.sweep.job import Job
    from edelweiss.lab.sweep.jobs import Sweep
    from edelweiss.lab.sweep.study import Method

    T = TypeVar("T")
    Waiting = Generator[bool, None, T]  # yields as long as a run is missing

optuna.logging.set_verbosity(optuna.logging.ERROR)
BATCH = 4  # points between two fits of TPE's model, however many runs there are at a time


class Halving(optuna.pruners.BasePruner):
    """Successive halving of trials that report together: one in ``share`` goes on, the best ones."""

    def __init__(self, share: int) -> None:
        self.share = share

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        """Whether a trial stops at its last step, at which all others have reported."""
        step, sign = trial.last_step, -1 if study.direction == optuna.study.StudyDirection.MAXIMIZE else 1
        every = {each.number: each.intermediate_values for each in study.get_trials(deepcopy=False)}
        there = {number: sign * values[step] for number, values in every.items() if step in values}
        defined = sorted((value, number) for number, value in there.items() if not math.isnan(value))
        return trial.number not in [number for _, number in defined[: math.ceil(len(there) / self.share)]]


class Search:
    """The points of one choice as far as the runs that are there decide them.

    Attributes
    ----------
    jobs : list of Job
        A run for each trial, and how far it goes.
    complete : bool
        Whether all of them are there, and no further point is wanted.
    """

    def __init__(self, sweep: Sweep[Any], method: Method, tuned: Settings) -> None:
        self.sweep, self.method, self.tuned = sweep, method, tuned
        study = sweep.study
        self.study = optuna.create_study(
            direction="minimize" if lower_is_better(study.select) else "maximize",
            sampler=optuna.samplers.TPESampler(n_startup_trials=STARTUP, seed=seed_of(method)),
            pruner=Halving(study.halving) if study.halving else optuna.pruners.NopPruner(),
        )
        self.jobs: list[Job] = []
        self.complete = False
        self._diverged: dict[int, bool] = {}  # by trial
        self._steps = self._searched()

    def advance(self) -> Search:
        """Take up the runs that have come since, as far as they go."""
        if not self.complete:
            self.complete = next(self._steps, None) is None
        return self

    @property
    def best(self) -> Settings:
        """The best point; the one with the smallest step size where no run has a value."""
        if any(trial.state == TrialState.COMPLETE for trial in self.study.get_trials(deepcopy=False)):
            return self.jobs[self.study.best_trial.number].point
        return min((job.point for job in self.jobs), key=lambda point: min(steps(point).values(), default=0.0))

    @property
    def value(self) -> float | None:
        """The value of the best point; None where no run has one, and before all are there."""
        states = [trial.state for trial in self.study.get_trials(deepcopy=False)]
        return self.study.best_value if self.complete and TrialState.COMPLETE in states else None

    @property
    def diverged(self) -> bool:
        """Whether all runs that are there diverged."""
        return all(self._diverged.values())

    # ------------------------------------------------------------------ the search

    def _searched(self) -> Waiting[None]:
        grid = self.sweep.grid(self.method)
        if len(grid) == 1 and not self.sweep.study.rank:
            return
        yield from self._halved([self._ask(point) for point in grid])
        while batch := self._further():
            yield from self._finished(batch)

    def _further(self) -> list[optuna.Trial]:
        """Return the next trials, given the results so far: from the model, or past the edge of the grid."""
        study = self.sweep.study
        if study.by_model:
            return [self._ask() for _ in range(min(BATCH, study.trials - len(self.jobs)))]
        grown = len(self.jobs) - len(self.sweep.grid(self.method))
        point = beyond([job.point for job in self.jobs], self.best) if grown < self.sweep.extend else None
        return [] if point is None else [self._ask(point)]

    def _ask(self, point: Settings | None = None) -> optuna.Trial:
        if point is not None:
            self.study.enqueue_trial({keys: point[keys.split()[0]] for keys in self.method.ranges})
        trial = self.study.ask(distributions(self.method.ranges))
        self.jobs.append(self.sweep.trial(self.method, point or point_of(trial.params), self.tuned))
        return trial

    def _halved(self, trials: list[optuna.Trial]) -> Waiting[None]:
        """Stop trials early, then finish the others."""
        share = self.sweep.study.halving
        for rung in rungs(self.jobs[0].settings, share) if share else ():
            if math.ceil(len(trials) / share) == len(trials):
                break
            for trial in trials:
                self.jobs[trial.number] = replace(self.jobs[trial.number], until=rung)
            for trial, outcome in (yield from self._awaited(trials)):
                value = None if outcome.diverged else held_out(outcome.records[rung - 1], self.sweep.study.select)
                trial.report(math.nan if value is None else value, rung)
            stopped = {trial.number for trial in trials if trial.should_prune()}
            for number in sorted(stopped):
                self.study.tell(number, state=TrialState.PRUNED)
            trials = [trial for trial in trials if trial.number not in stopped]
        yield from self._finished(trials)

    def _finished(self, trials: list[optuna.Trial]) -> Waiting[None]:
        """Run trials to their end and report their values."""
        for trial in trials:
            self.jobs[trial.number] = replace(self.jobs[trial.number], until=0)
        for trial, outcome in (yield from self._awaited(trials)):
            value = None if outcome.diverged else held_out(outcome.last, self.sweep.study.select)
            self.study.tell(trial, value, None if value is not None else TrialState.FAIL)

    def _awaited(self, trials: Sequence[optuna.Trial]) -> Waiting[list[tuple[optuna.Trial, Outcome]]]:
        """Return each trial with its run's outcome, once all are there."""
        found: list[tuple[optuna.Trial, Outcome]] = []
        for trial in trials:
            while (outcome := self.sweep.outcome(self.jobs[trial.number])) is None:
                yield False
            found.append((trial, outcome))
            self._diverged[trial.number] = bool(outcome.diverged)
        return found
