"""The private oracle: noised sums of clipped gradients over Poisson samples of the patients, and nothing else."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from edelweiss.client_app.errors import RefusedError
from edelweiss.datasets import Augmentation
from edelweiss.federation.privacy_account import Query, spent
from edelweiss.federation.privacy_plan import DUAL_NOISE, Counted, rate_of
from edelweiss.problems.patients import Rows, Term, clipped_sum, clipped_terms, public_gradient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from edelweiss.client_app.policy.limits import Limits
    from edelweiss.client_app.privacy.randomness import KeyedStream
    from edelweiss.datasets import Samples
    from edelweiss.federation.oracle import Point
    from edelweiss.federation.privacy_account import Queries
    from edelweiss.problems import Arrays, Batch
    from edelweiss.problems.capabilities import BalancedLoss
    from edelweiss.problems.network import NetworkProblem

GRID = 2000  # steps of the grid in a clip, times √(d + p): rounding moves a sum by less than 1/2000 of the clip


@dataclass(frozen=True)
class Mechanism:
    """How a site's answers are made private.

    Attributes
    ----------
    noise
        σ: the standard deviation of the noise, as a multiple of the clip; 0 only where nothing has to be private.
    clip
        C: the largest norm of a patient's gradient.
    difference_clip
        That of a patient's difference of two gradients.
    """

    noise: float
    clip: float
    difference_clip: float


class Patients:
    """Whose each of a site's training samples is.

    Parameters
    ----------
    ids
        Of each sample, shape (n,): equal for those of one patient; None: each is another's.
    count
        Samples.
    """

    def __init__(self, count: int, ids: Tensor | None = None) -> None:
        owners = torch.arange(count) if ids is None else torch.unique(ids, return_inverse=True)[1]
        self._order = torch.argsort(owners, stable=True)
        self._counts = torch.bincount(owners) if count else torch.zeros(0, dtype=torch.int64)
        self._starts = self._counts.cumsum(0) - self._counts
        self._single = len(self._counts) == count  # each has one row

    def __len__(self) -> int:
        return len(self._counts)

    def rows(self, chosen: Tensor) -> Rows:
        """Return the rows of some patients, given by their numbers."""
        if self._single:
            return Rows(self._order[chosen])
        counts, starts = self._counts[chosen], self._starts[chosen]
        first = counts.cumsum(0) - counts
        places = torch.arange(int(counts.sum())) + torch.repeat_interleave(starts - first, counts)
        return Rows(self._order[places], counts)


@dataclass(eq=False)
class Sample(Counted):
    """A Poisson sample of the patients: what stands for a batch, whom only the oracle knows."""

    rows: Rows | None = None
    number: int = 0


class PrivateOracle:
    """Noised gradients of one site in one phase of a round; see `federation.Oracle`.

    A gradient is ĝ = (1 / q n) (Σ_i g_i min(1, C / ‖g_i‖) + σ C ξ) over a sample that holds each patient with
    probability q = min(1, b / n), where g_i is patient i's mean gradient by x and y together, and ξ standard normal.
    The part of the objective without data is added after the noise. Sum and noise lie on a grid, that of the noise
    being rounded: so an answer is a function of a sum on the grid plus exact normal noise, and its last bits say
    nothing (Mironov 2012). What is not exact is the normal numbers' own float64.

    Parameters
    ----------
    problem
        The objective, without a `problems.patients.refusal`.
    samples, patients
        The site's training samples, and whose they are.
    stream
        The site's random numbers for this answer.
    mechanism
        Clip and noise.
    allowed
        The queries that were paid for.
    batch_size
        b: patients that a batch holds on average.
    labels
        Returns labels with about as many of each class as the site has, of noised counts; default: the site's own,
        where nothing has to be private.
    fresh, common, augmentation
        As `SiteOracle` has them.
    limits
        Whose longest time is enforced; noise stands in for the fewest patients.

    Attributes
    ----------
    gradients : int
        How many were asked for.
    differentiated : int
        Patients that they were taken over, on average: how many there were is not told.
    asked : Counter of Query
        What was answered.
    """

    def __init__(
        self,
        problem: NetworkProblem,
        samples: Samples,
        patients: Patients,
        stream: KeyedStream,
        mechanism: Mechanism,
        allowed: Queries,
        batch_size: int,
        *,
        labels: Callable[[], Tensor] | None = None,
        fresh: Callable[[], Arrays] | None = None,
        common: NetworkProblem | None = None,
        augmentation: Augmentation | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.problem, self.common, self.fresh = problem, common or problem, fresh or problem.fresh
        self.batch_size, self.gradients, self._drawn, self._expected = batch_size, 0, 0, 0.0
        self.generator = stream.generator("algorithm")
        self._samples, self._patients, self._stream, self._mechanism = samples, patients, stream, mechanism
        self._labels = labels or (lambda: samples.targets().cpu())
        self._augmentation, self.asked = augmentation or Augmentation(), Counter[Query]()
        self._limits = limits
        self._allowed = Counter(allowed)

    def close(self) -> None:
        """Do nothing: no thread makes batches ready."""

    @property
    def differentiated(self) -> int:
        """Patients that gradients were taken over, on average."""
        return round(self._expected)

    def draw(self, size: int | None = None) -> Batch | None:
        """Draw a sample that holds ``size`` patients on average; default: the run's batch size."""
        rate = rate_of(size or self.batch_size, len(self._patients))
        chosen = self._stream.chosen(len(self._patients), rate)
        self._drawn += 1
        return cast("Batch", Sample(rate, 0, self._patients.rows(chosen), self._drawn))

    def epoch(self) -> Iterator[Batch | None]:
        """Yield ⌈n / b⌉ samples: as many patients as a pass has, on average."""
        for _ in range(max(1, math.ceil(len(self._patients) / self.batch_size))):
            yield self.draw()

    def gradient(self, x: Tensor, y: Tensor | None = None, batch: Batch | None = None) -> tuple[Tensor, Any]:
        """Return private (gx, gy), on the given sample or on a fresh one."""
        sample = cast("Sample", batch if batch is not None else self.draw())
        self.gradients += 1
        return self._answer([Term(x, y)], sample, self._mechanism.clip)

    def difference(
        self, here: Point, before: Point, weights: tuple[float, float] = (1.0, 1.0), estimates: Point | None = None
    ) -> tuple[Tensor, Any]:
        """Return private g(here) - weight (g(before) - estimate): one answer about a fresh sample."""
        self.gradients += 2
        terms = [Term(*here), Term(*before, (-weights[0], -weights[1]))]
        found = self._answer(terms, cast("Sample", self.draw()), self._mechanism.difference_clip)
        for part, weight, estimate in zip(found, weights, estimates or (None, None), strict=True):
            if part is not None and estimate is not None:
                part.add_(estimate, alpha=weight)
        return found

    def full_gradient(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Any]:
        """Return private (gx, gy) over all patients."""
        return self.gradient(x, y, self.draw(len(self._patients)))

    def balanced_gradient(self, x: Tensor, batch: Batch | None) -> Tensor:
        """Return a private gradient of the balanced loss, by the noised counts of the site's classes."""
        own, counts = self.problem, torch.bincount(self._labels()).clamp(min=1)
        self.problem = cast("NetworkProblem", cast("BalancedLoss", own).balanced(counts))
        try:
            return self.gradient(x, None, batch)[0]
        finally:
            self.problem = own

    def dual_terms(self, x: Tensor, batch: Batch | None = None) -> tuple[Tensor, Tensor]:
        """Return private terms of the best y, summed over a sample, by default over all patients.

        A patient's terms are clipped to the norm that a score of 1 and its count have, for each label.
        """
        sample = cast("Sample", batch if batch is not None else self.draw(len(self._patients)))
        self._require_paid(sample, DUAL_NOISE**-2)
        assert sample.rows is not None, "samples are drawn here"
        problem, (j, p) = self.problem, (self.problem.terms, self.problem.dual)
        counts = (j, p) if problem.labels else (j,)
        clip = math.sqrt(math.prod(counts))
        total = clipped_terms(problem, x, self._samples, sample.rows, j * p + math.prod(counts), clip)
        self._add_noise(total, clip, DUAL_NOISE * self._mechanism.noise)
        numerators, denominators = torch.split(total.to(problem.dtype), [j * p, math.prod(counts)])
        return numerators.view(j, p), denominators.clamp(min=1.0).view(counts)

    def _answer(self, terms: Sequence[Term], sample: Sample, clip: float) -> tuple[Tensor, Any]:
        """Return the noised mean over a sample, plus what needs no noise, by x and by y."""
        self._require_paid(sample)
        assert sample.rows is not None, "samples are drawn here"
        problem, mechanism = self.problem, self._mechanism
        problem.reseed((self.generator.initial_seed() + sample.number) % 2**63)
        total = clipped_sum(problem, self._augmented(sample), sample.rows, terms, clip)
        expected = sample.rate * len(self._patients)
        self._expected += expected
        self._add_noise(total, clip, mechanism.noise)
        mean, d = total.to(problem.dtype).div_(expected), len(terms[0].x)
        mean[problem.network.size :] += public_gradient(problem, terms)
        return (mean, None) if terms[0].y is None else (mean[:d], mean[d:])

    def _add_noise(self, total: Tensor, clip: float, noise: float) -> None:
        """Add noise of so many clips to a sum in place, both on the grid."""
        if noise:
            steps = 2.0 ** math.ceil(math.log2(GRID * math.sqrt(len(total)))) / clip
            drawn = self._stream.normal(len(total), noise * clip * steps).round_()
            total.mul_(steps).round_().add_(drawn.to(total.device)).div_(steps)

    def _augmented(self, sample: Sample) -> Samples:
        """Return the site's samples, whose images change as this batch's do."""
        if not self._augmentation:
            return self._samples
        numbers = torch.Generator().manual_seed((self.generator.initial_seed() + sample.number) % 2**63)
        return replace(self._samples, augment=partial(self._augmentation.draw, generator=numbers))

    def _require_paid(self, sample: Sample, sums: float = 1) -> None:
        """Check that what is asked, this answer included, costs no more than what was paid for; see `Query`."""
        if self._limits is not None:
            self._limits.require_time()
        if sample.gradients:
            self.asked[Query(sample.rate, sample.gradients)] -= 1
        sample.gradients += sums
        self.asked[Query(sample.rate, sample.gradients)] += 1
        noise = self._mechanism.noise
        if not noise or self.asked <= self._allowed:
            return
        if (spent(self.asked, noise) > spent(self._allowed, noise) * (1 + 1e-9)).any():
            raise RefusedError("the algorithm asks for more private gradients than its plan: a site answers no more")

    # ------------------------------------------------------------------ what needs no data

    @property
    def head(self) -> int:
        """Where the head begins in x."""
        return self.problem.head

    @property
    def norms(self) -> Tensor:
        """The positions in x of the scales and shifts of batch norm."""
        return self.problem.norms

    @property
    def layers(self) -> tuple[tuple[slice, tuple[int, ...]], ...]:
        """Where each of the network's parameters lies in x, and its shape."""
        return self.problem.layers

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take gradients of the common objective."""
        own, self.problem = self.problem, self.common
        yield
        self.problem = own

    def project(self, y: Tensor) -> Tensor:
        """Return y projected onto its feasible set."""
        return self.problem.project(y)
