"""A coordinator that attacks: it sends models and run-configs of its choice, and solves the answers for patients.

Every attack is by messages that pass all checks of a site. What they find is held against what public knowledge gives:
the mean and deviation of each feature.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm

from edelweiss.client_app.privacy.randomness import KeyedStream, derived
from edelweiss.datasets import Facts, make_sampler
from edelweiss.federation.wire import unpack
from edelweiss.problems.histogram import Histogram, scores_of
from tests.client_app.policies import site_toml, told
from tests.server_app.sites import FEATURES, SiteGrid, question, site_job, table, with_secret, write_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from edelweiss.common import Value
    from edelweiss.config import RunConfig

Floats = NDArray[np.float64]

NEAR = 0.01  # of a standard deviation, in every feature: then a patient is recovered
EPSILON, DELTA = 8.0, 1e-3
ROWS = 60
LEARNING = 2.0**10  # step size: what a site answers is then nearly the gradient alone
NOTHING = np.zeros((0, FEATURES))
UNITS = 512  # of a trap's layers
WHISPER = 2.0**-10  # how much a trap's units add to the score, which has to stay about the same for all


class Target:
    """A site with one table of patients, at which runs can begin: a hospital by the default rules.

    Parameters
    ----------
    folder
        For its files.
    private
        Whether it has a privacy budget of ε = 8, which each run asks for.
    """

    def __init__(self, folder: Path, private: bool = False, rows: int = ROWS, **policy: Any) -> None:
        self.folder, self.private, self.runs, self.answered = folder, private, 0, 0
        self.features, self.labels = table(rows, seed=11)
        self.data = write_table(folder / "data", self.features, self.labels)
        rules = ({"privacy": {"epsilon": EPSILON, "delta": DELTA}} if private else {}) | policy
        own: dict[str, Value] = {"policy": site_toml(folder, **rules), "label": "label"}
        self.node = with_secret("north", self.data, folder / "state", "7" * 64) | own

    @contextmanager
    def run(self, **keys: Value) -> Iterator[Run]:
        """Begin a run with one site."""
        job: dict[str, Value] = {"sites": 1, "holdout_share": 0.2, "algorithm": "fedavg", "problem": "bce"}
        job |= {"local_steps": 1, "rounds": 1}
        job |= {"fedavg.lr": LEARNING} if keys.get("algorithm", "fedavg") == "fedavg" else {}
        if self.private:
            job |= {"dp.epsilon": EPSILON, "dp.delta": DELTA}
        self.runs += 1
        with SiteGrid(site_job(self.folder, **job | keys), [self.node]) as grid:
            yield Run(grid, f"run-{self.runs}")


class Run:
    """A run at a target."""

    def __init__(self, grid: SiteGrid, key: str) -> None:
        self.grid, self.config, self.key = grid, grid.config, key
        self.refusals, self.rounds = list[str](), 0

    def patients(self) -> int:
        """Return the number of patients to train on, which is public."""
        facts = told(self.grid)
        assert isinstance(facts, Facts), facts
        assert facts.examples is not None
        return facts.examples

    def ask(self, kind: str, model: Tensor, **said: Value) -> Any:
        """Send a model and return the records of the answer; None if it is refused."""
        content = question(self.config, kind, {"x": model}, run=self.key, **said)
        answer = self.grid.ask(kind, 0, content)
        assert not answer.has_error(), answer.error.reason
        if "error" in answer.content.config_records:
            self.refusals.append(str(answer.content.config_records["error"]["message"]))
            return None
        return answer.content

    def gradient(self, model: Tensor, **said: Value) -> Floats | None:
        """Return the gradient that a step of the site was against, shape (d,); None if it is refused."""
        if (content := self.ask("train", model, **said)) is None:
            return None
        after = unpack(content.array_records["arrays"])["x"]
        own = self.config.strategy
        kept = 1 - own.lr * own.weight_decay
        return (kept * model.double() - after.double()).numpy() / own.lr


# ---------------------------------------------------------------------- trap weights


def gate(thresholds: Floats, along: Floats) -> Tensor:
    """Return an mlp whose j-th unit opens for patients with ``along`` · features above the j-th threshold.

    All other units of the second layer are shut, and the first adds up those of the first layer, so that a patient's
    gradient by an open unit's weights is the same multiple of the features for all of them, and that multiple by its
    bias: the difference of two neighbours is about the patients between two thresholds.
    """
    units = len(thresholds)
    first, second, head = np.tile(along, (units, 1)), np.zeros((units, units)), np.zeros(units)
    second[0], head[0] = WHISPER, 1.0
    off = np.full(units, -1.0)
    off[0] = 1.0
    parts = [first.ravel(), -thresholds, second.ravel(), off, head, np.zeros(1)]
    return torch.from_numpy(np.concatenate(parts)).float()


def through_gates(gradient: Floats, units: int) -> Floats:
    """Return a guess for each pair of neighbouring units, shape (g, features): what opened only the lower one."""
    weights = gradient[: units * FEATURES].reshape(units, FEATURES)
    biases = gradient[units * FEATURES : units * FEATURES + units]
    rows, multiples = -np.diff(weights, axis=0), -np.diff(biases)
    held = np.abs(multiples) > 1e-3 * np.abs(multiples).max()
    return np.asarray(rows[held] / multiples[held, None])


def trap(target: Target, **keys: Value) -> Floats:
    """Ask once about everybody, or a batch, with a model whose units open one patient after the other."""
    along = np.random.default_rng(0).normal(size=FEATURES)
    thresholds = spread(target, along, UNITS)
    with target.run(model="mlp", hidden=UNITS, **{"batch_size": ROWS, **keys}) as run:
        gradient = run.gradient(gate(thresholds, along))
    return NOTHING if gradient is None else through_gates(gradient, UNITS)


def spread(target: Target, along: Floats, count: int) -> Floats:
    """Return thresholds between which equally many patients lie, by the public marginals, shape (count,)."""
    mean, deviation = (target.features @ along).mean(), (target.features @ along).std()
    return np.asarray(norm.ppf((np.arange(count) + 0.5) / count, mean, deviation))


def differences(target: Target, models: int = 100) -> Floats:
    """Ask with many models about the same patients: each has one gate, a little further than the one before."""
    along = np.random.default_rng(0).normal(size=FEATURES)
    thresholds, asked = spread(target, along, models), []
    with target.run(model="mlp", hidden=1, batch_size=ROWS, rounds=models) as run:
        for server_round, threshold in enumerate(thresholds, 1):
            gradient = run.gradient(gate(np.array([threshold]), along), round=server_round)
            if gradient is not None:
                asked.append(gradient[: FEATURES + 1])
    if not asked:
        return NOTHING
    found = np.array(asked)
    return through_gates(np.concatenate([found[:, :FEATURES].ravel(), found[:, FEATURES]]), len(found))


def averages(target: Target, runs: int = 10) -> Floats:
    """Ask the same in many runs, whose step sizes differ by next to nothing, and average what is answered.

    Other batches are then drawn, and other noise. Each run asks for so little that several fit into a budget.
    """
    along, answers = np.random.default_rng(0).normal(size=FEATURES), []
    thresholds = spread(target, along, UNITS)
    for number in range(runs):
        keys: dict[str, Value] = {"fedavg.lr": LEARNING + number, "seed": number, "batch_size": 10}
        keys |= {"dp.epsilon": 5.0} if target.private else {}
        with target.run(model="mlp", hidden=UNITS, **keys) as run:
            if (gradient := run.gradient(gate(thresholds, along))) is not None:
                answers.append(gradient)
    target.answered = len(answers)
    return through_gates(np.mean(answers, axis=0), UNITS)


# ---------------------------------------------------------------------- batches of a known seed


def known_batches(target: Target, rounds: int = 60, steps: int = 1) -> Floats:
    """Solve for the rows, with whom a batch holds by the run's seed; the last of many steps alone is in an answer.

    At a linear model of zeros a patient's gradient is half of the row, with a sign by the label. Weight decay of 1 over
    the step size takes everything away before the last step, and a tiny step leaves zeros nearly zeros.
    """
    size, lr = 10, LEARNING if steps == 1 else 2.0**-14
    keys: dict[str, Value] = {"fedavg.lr": lr, "fedavg.weight-decay": 0.0 if steps == 1 else 1 / lr}
    with target.run(model="linear", rounds=rounds, local_steps=steps, batch_size=size, **keys) as run:
        patients = run.patients()
        chosen, answers = np.zeros((rounds, patients)), np.zeros((rounds, FEATURES + 1))
        for r in range(1, rounds + 1):
            chosen[r - 1, last_batch(run.config, r, patients, size, steps)] = 1 / size
            gradient = run.gradient(torch.zeros(FEATURES + 1), round=r)
            assert gradient is not None, run.refusals
            answers[r - 1] = gradient
    solved = np.linalg.lstsq(chosen, answers, rcond=None)[0]
    return np.asarray(solved[:, :FEATURES] / solved[:, FEATURES:])


def last_batch(run: RunConfig, server_round: int, patients: int, size: int, steps: int) -> NDArray[np.int64]:
    """Return the rows of a round's last batch where it follows from the seed, as tests' ``public_batches`` has it."""
    place = f"{run.seed} 0 {server_round} train".encode()
    generator = KeyedStream(derived(bytes(32), "batches", [place])).generator("batches")
    sampler = make_sampler("uniform", torch.zeros(patients, dtype=torch.int64), size, 0, generator)
    return np.asarray([sampler.draw() for _ in range(steps)][-1])


# ---------------------------------------------------------------------- evaluations


STEEP = 2.0**14  # of a step between two values of a feature
BITS = 12


def bisection(target: Target, patients: int = 3) -> Floats:
    """Find held-out patients from evaluations alone, each in a run of its own: of one model one bit, of any group."""
    return np.array([row for place in range(7, 7 + patients) if len(row := bisected(target, place))] or NOTHING)


def bisected(target: Target, place: int) -> list[float]:
    """Return the held-out negative that is at this place in the order of the first feature; empty without answers."""
    with target.run(model="mlp", hidden=8, rounds=200, evaluate_every=1) as run:
        if counted(run, step(0.0, 0.0)) is None:
            return []
        row = [halved(target, 0, lambda value: counted(run, step(value, value)) >= place)]  # type: ignore[operator]
        ends = row[0] - NEAR / 2, row[0] + NEAR / 2
        others = counted(run, step(ends[0], ends[0]))
        for feature in range(1, FEATURES):
            ask = partial(lambda feature, value: counted(run, step(*ends, feature, value)) != others, feature)
            row.append(halved(target, feature, ask))
    return row


def halved(target: Target, feature: int, below: Callable[[float], bool]) -> float:
    """Return where a question about a feature begins to be answered by yes."""
    mean, deviation = target.features[:, feature].mean(), target.features[:, feature].std()
    low, high = mean - 4 * deviation, mean + 4 * deviation
    for _ in range(BITS):
        middle = (low + high) / 2
        low, high = (low, middle) if below(middle) else (middle, high)
    return float((low + high) / 2)


def step(low: float, high: float, feature: int = 0, value: float = 0.0) -> Tensor:
    """Return an mlp of 8 units that scores 1 whom it counts, others 0.

    It counts who has less than ``low`` of the first feature, and who has between ``low`` and ``high`` of it and less
    than ``value`` of another one.
    """
    first, bias, second, off = np.zeros((8, FEATURES)), np.zeros(8), np.zeros((8, 8)), np.full(8, -1.0)
    for unit, (of, at) in enumerate(((0, low), (0, high), (feature, value))):
        first[2 * unit : 2 * unit + 2, of] = STEEP
        bias[2 * unit : 2 * unit + 2] = -STEEP * at, -STEEP * at - 1
    up = np.array([1.0, -1.0])
    second[0, :2], off[0] = -up, 1.0
    second[1, :2], second[1, 2:4], second[1, 4:6], off[1] = up, -up, -up, 0.0
    head = np.array([1.0, 1.0, 0, 0, 0, 0, 0, 0])
    return torch.from_numpy(np.concatenate([first.ravel(), bias, second.ravel(), off, head, [0.0]])).float()


def counted(run: Run, model: Tensor) -> int | None:
    """Return how many held-out negatives a model scores 1; None where nothing is evaluated."""
    run.rounds += 1
    content = run.ask("train", model, evaluate=True, round=run.rounds)
    if content is None or not (metrics := content.config_records.get("metrics")):
        return None
    told = Histogram.unpacked(metrics["negative-scores"])
    return int(told.counts[scores_of(told.bins) > 0.5].sum())


# ---------------------------------------------------------------------- what it amounts to


def recovered(guesses: Floats, patients: Floats) -> int:
    """Count the patients that some guess has within `NEAR` in all features."""
    return int((_distances(guesses, patients).max(2).min(1) < NEAR).sum()) if len(guesses) else 0


def nearest(guesses: Floats, patients: Floats) -> float:
    """Return how far, on average over patients, the nearest guess is: root mean square over features, in deviations.

    What lies outside of what the public marginals allow is moved there first, as an attacker would.
    """
    mean, deviation = patients.mean(0), patients.std(0)
    plausible = np.clip(np.nan_to_num(guesses), mean - 3 * deviation, mean + 3 * deviation)
    return float(np.sqrt((_distances(plausible, patients) ** 2).mean(2)).min(1).mean())


def no_better_than_marginals(guesses: Floats, patients: Floats) -> bool:
    """Whether as many guesses by the public marginals alone are as near, in one of twenty draws at least."""
    random = np.random.default_rng(0)
    size = (20, max(1, len(guesses)), patients.shape[1])
    drawn = random.normal(patients.mean(0), patients.std(0), size=size)
    return not len(guesses) or nearest(guesses, patients) >= min(nearest(one, patients) for one in drawn)


def _distances(guesses: Floats, patients: Floats) -> Floats:
    return np.abs(patients[:, None] - guesses[None]) / patients.std(0)
