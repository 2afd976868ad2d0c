"""A site's part in a private run: its noise, its noised counts, and its oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from edelweiss.client_app.errors import RefusedError
from edelweiss.client_app.privacy.ledger import PARTS, Part
from edelweiss.client_app.privacy.oracle import Mechanism, Patients, PrivateOracle
from edelweiss.client_app.privacy.randomness import KeyedStream, derived, digest_of, rounding
from edelweiss.common import ConfigError, latest
from edelweiss.config.privacy import (
    COUNT_NOISE,
    Fit,
    Price,
    clips,
    counts_cost,
    evaluation_cost,
    evaluation_noise,
    price,
    require_private,
    what_fits,
)
from edelweiss.datasets import Facts
from edelweiss.evidence.noised import FIXED, Noised
from edelweiss.federation.privacy_account import epsilon, spent
from edelweiss.problems import PROBLEMS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    from edelweiss.client_app.policy.limits import Limits
    from edelweiss.client_app.privacy.ledger import Ledger
    from edelweiss.config import RunConfig
    from edelweiss.datasets import Samples, SiteData
    from edelweiss.federation import RoundContext
    from edelweiss.federation.privacy_account import Curve
    from edelweiss.problems import Arrays, Problem
    from edelweiss.problems.network import NetworkProblem


class SitePrivacy:
    """The private side of a site in a run.

    Parameters
    ----------
    run
        With dp.epsilon above 0.
    data
        The site's data.
    secret
        From which all of its randomness follows.
    identity
        What says which data these are.
    ledger
        Of the site; None where it is simulated.
    name
        Of the run, in the ledger.
    """

    def __init__(
        self,
        run: RunConfig,
        data: SiteData,
        secret: bytes,
        identity: str,
        ledger: Ledger | None = None,
        name: str = "",
    ) -> None:
        self.run, self.data, self.identity, self.ledger, self._name = run, data, identity, ledger, name
        self._secret, self._resumed = secret, tuple[str, ...]()
        self.patients, self.held_out = self._patients(data.train), self._patients(data.held_out)

    @classmethod
    def simulated(cls, run: RunConfig, data: SiteData, index: int) -> SitePrivacy:
        """Return that of a simulated site, whose secret follows from the seed: it protects nobody."""
        secret = derived(b"simulated", "secret", [str(run.seed).encode(), str(index).encode()])
        return cls(run, data, secret, f"simulated {index}")

    def _patients(self, samples: Samples) -> Patients:
        ids = self.data.patient_ids
        if ids is None:
            return Patients(len(samples))
        own = torch.from_numpy(ids[samples.rows.cpu().numpy()].astype("int64"))
        if not self.data.by_patient and len(torch.unique(own)) < len(own):
            text = "rows repeat, and no column says whose a row is: name it, or nobody knows what a patient's part is"
            raise ConfigError("node-config", [f"patient: {text}"])
        return Patients(len(samples), own)

    @property
    def here(self) -> str:
        """Which data these are, and at a hospital on which machine: see `randomness.rounding`."""
        return f"{self.identity} {rounding(self.run.device)}" if self.ledger else self.identity

    def resume(self, runs: Sequence[str]) -> None:
        """Let this run and those that it goes on from cost no more together than it was to cost alone."""
        self._resumed = tuple(runs)

    def _pay(self, question: Sequence[bytes], cost: Curve, part: Part = "training") -> None:
        """Pay for an answer, where there is a ledger."""
        if self.ledger:
            most = self._whole[PARTS.index(part)] if self._resumed else None
            self.ledger.charge(question, cost, part, run=self._name, resumed=self._resumed, most=most)

    @cached_property
    def _whole(self) -> tuple[Curve, Curve]:
        return self._costs(self.run, self.run.sites)

    @cached_property
    def price(self) -> latest[Price]:
        """The price of the run with this number of sites."""
        return latest(lambda sites: price(self.run, sites, len(self.patients)))

    def noised_scores(
        self, question: Sequence[bytes], scored: Callable[[], tuple[NDArray[np.float64], NDArray[np.float64]]]
    ) -> list[Noised]:
        """Return noised histograms of the held-out samples' scores, by label.

        ``scored`` returns scores and labels, shape (n, L) each, once they are paid for; labels are 0, 1, or below where
        unknown. A patient's rows share a weight of 1.
        """
        noise, edges = evaluation_noise(self.run), FIXED if self.run.secure_aggregation else None
        asked = [*question, repr(("evaluation", noise)).encode()]
        self._pay(asked, evaluation_cost(self.run), "held-out")
        stream = KeyedStream(derived(self._secret, "answer", asked))
        rows = self.held_out.rows(torch.arange(len(self.held_out)))
        scores, labels = scored()
        weights = np.zeros(len(scores))
        weights[rows.positions.numpy()] = rows.shares.numpy()

        def normal(count: int) -> NDArray[np.float64]:
            found: NDArray[np.float64] = stream.normal(count).numpy()
            return found

        return [
            Noised.of(own, (truth == 1).astype(float), weights * (truth >= 0), len(self.held_out), noise, normal, edges)
            for own, truth in zip(scores.T, labels.T, strict=True)
        ]

    def epsilon(self, sites: int) -> float:
        """Return the most that the whole run costs a patient by itself, trained on or held out, at the site's own δ."""
        assert self.ledger is not None, "a simulated site has none"
        return max(epsilon(cost, self.ledger.budget.delta) for cost in self._costs(self.run, sites))

    def require_affordable(self, sites: int) -> None:
        """Check that the whole run, or what is left of one that is resumed, fits into what is left of the budget.

        Raises
        ------
        RefusedError
            If it does not; the text says what would.
        """
        assert self.ledger is not None, "a simulated site has none"
        if self._fits(self.run, sites):
            return
        raise RefusedError(self._too_dear(sites, *map(self.ledger.spent, PARTS)))

    @cached_property
    def _too_dear(self) -> latest[str]:
        """Why a run is refused, by number of sites and what is spent: found once, however often it is asked for."""
        return latest(lambda sites, *_: self._refusal(sites))

    def _refusal(self, sites: int) -> str:
        assert self.ledger is not None, "a simulated site has none"
        plan = self.price(sites).plan
        found = what_fits(self.run, sites, len(self.patients), plan, lambda run: self._fits(run, sites))
        return (
            f"dp.epsilon = {self.run.dp_epsilon:g}: the run costs more than is left of this site's privacy budget "
            f"({self.ledger.in_words()}): {self._way(found, sites)}"
        )

    def _way(self, found: Fit, sites: int) -> str:
        """Return what to change in a run that does not fit."""
        run, noise = self.run, self.price(sites).noise
        trained = run.evidence and self._fits(run.model_copy(update={"evidence": False}), sites)
        unjudged = "evidence = false fits, for it leaves out those held out" if trained else ""
        if not found.epsilon:
            return unjudged or "no run fits any more: its operator may raise the budget"
        fewer = {
            "rounds": (found.rounds, run.rounds),
            "batch-size": (found.batch_size, run.batch_size),
        }
        ways = " or ".join(f"{key} = {most} instead of {now}" for key, (most, now) in fewer.items() if most)
        louder = f", with noise of {found.noise:.3g} clips instead of {noise:.3g}"
        text = f"at most dp.epsilon = {found.epsilon:g} fits{louder}"
        text += f"; beside it at most {ways} keeps the noise as low" * bool(ways)
        return "; or ".join(filter(None, (text, unjudged)))

    def _fits(self, run: RunConfig, sites: int) -> bool:
        """Return whether a run fits that differs in dp.epsilon or evidence at most, so has the same plan."""
        assert self.ledger is not None, "a simulated site has none"
        due = {
            part: cost - self.ledger.paid(part, self._resumed)
            for part, cost in zip(PARTS, self._costs(run, sites), strict=True)
        }
        return all(self.ledger.fits(np.maximum(cost, 0), part) for part, cost in due.items())

    def _costs(self, run: RunConfig, sites: int) -> tuple[Curve, Curve]:
        """Return what a run costs those trained on, and those held out."""
        cost = self.price(sites)
        if run is not self.run:
            cost = price(run, sites, len(self.patients), cost.plan)
        return cost.curve, evaluation_cost(run) if run.evidence and len(self.held_out) else 0 * cost.curve

    def in_words(self, sites: int) -> str:
        """Return what the run costs the site's patients, for its operator."""
        assert self.ledger is not None, "a simulated site has none"
        trained, judged = map(self.ledger.spent, PARTS, self._costs(self.run, sites))
        return f"{self.ledger.in_words()}; after this run it would be {trained:.3g}, and {judged:.3g}"

    @cached_property
    def counted_labels(self) -> Tensor:
        """Labels with the noised counts of the classes, of as many samples as there are patients.

        Shape (n,) or (n, L), `datasets.labels.UNKNOWN` where unknown. A patient counts once, with a share of each row.
        The noise follows from what is counted: other labels, such as a run may choose, have other noise.
        """
        labels, patients = self.data.train.targets().cpu(), self.patients
        several = labels.ndim > 1
        columns = labels.T if several else labels[None]
        rows = patients.rows(torch.arange(len(patients)))
        classes = range(self.data.classes)
        counted = digest_of({"labels": labels, "whose": rows.owners, "rows": rows.positions})
        asked = [self.identity.encode(), counted]
        self._pay([b"counts", *asked], counts_cost())
        stream = KeyedStream(derived(self._secret, "counts", asked))
        found = []
        for column in columns:
            own = column[rows.positions]
            counts = torch.stack([rows.shares.double()[own == c].sum() for c in classes])
            noise = stream.normal(len(classes), COUNT_NOISE * math.sqrt(len(columns)))
            found.append(_as_labels((counts + noise).tolist(), len(patients), several))
        return torch.stack(found, 1) if several else found[0]

    def facts(self, name: str, partition_id: int) -> Facts:
        """Return what the site reports before a run: n, and noised counts; no moments and nothing else of its rows."""
        labels = self.counted_labels
        count = len(labels)
        told = replace(
            self.data.train, inputs=self.data.train.inputs[:1], labels=labels, rows=torch.arange(count), shift=None
        )
        held_out = replace(told, rows=torch.arange(0))
        data = replace(self.data, train=told, held_out=held_out)
        multiclass = PROBLEMS[self.run.problem].multiclass
        facts = Facts.of(data, name=name, partition_id=partition_id, multiclass=multiclass, standardise=False)
        return replace(facts, held_out=len(self.held_out), held_out_counts=(), missing=0)

    def oracle(
        self,
        problem: Problem,
        samples: Samples,
        sites: int,
        context: RoundContext,
        question: Sequence[bytes],
        *,
        fresh: Callable[[], Arrays],
        common: Problem,
        limits: Limits | None = None,
    ) -> PrivateOracle:
        """Return the oracle of the answer to a `randomness.question`, which may take as long as ``limits`` say.

        Raises
        ------
        ConfigError
            When the problem cannot be private, or no noise is enough.
        """
        require_private(problem)
        run = self.run
        cost = self.price(sites)
        mechanism, queries = Mechanism(cost.noise, *clips(run, problem)), cost.plan[context.round, context.phase]
        # Another noise must not be a multiple of this one: two answers would be one without.
        asked = [*question, repr((mechanism, sorted(queries.items()))).encode()]
        self._pay(asked, spent(queries, mechanism.noise))
        return PrivateOracle(
            cast("NetworkProblem", problem),
            samples,
            self.patients,
            KeyedStream(derived(self._secret, "answer", asked)),
            mechanism,
            queries,
            run.batch_size,
            labels=lambda: self.counted_labels,
            fresh=fresh,
            common=cast("NetworkProblem", common),
            augmentation=run.augmentation,
            limits=limits,
        )


def _as_labels(noised: Sequence[float], patients: int, several: bool) -> Tensor:
    """Return labels of that many patients with about these counts, each at least 1; with several, others unknown."""
    counts = [max(1.0, count) for count in noised]
    if several and sum(counts) <= patients:
        whole = [math.floor(count) for count in counts]
    else:
        ends = [round(patients * sum(counts[: i + 1]) / sum(counts)) for i in range(len(counts))]
        whole = [end - begin for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
    labels = torch.full((patients,), -1, dtype=torch.int64)
    place = 0
    for c, count in enumerate(whole):
        labels[place : place + count] = c
        place += count
    return labels
