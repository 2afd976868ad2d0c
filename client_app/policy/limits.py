"""Limits on the computation of a reply: fewest patients per batch, and longest time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np

from edelweiss.client_app.errors import RefusedError
from edelweiss.client_app.policy.suppression import few

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.client_app.site import OpenSite
    from edelweiss.config import RunConfig
    from edelweiss.datasets import SiteData
    from edelweiss.datasets.source import Ints

DRAWS = 100  # batches drawn to estimate their number of patients


@dataclass(frozen=True)
class Limits:
    """The limits of one reply, enforced by the oracle, which alone gives access to a site's samples."""

    run: RunConfig  # for messages: it names the keys that set the batch size
    fewest: int = 0  # fewest patients in a batch; 0: any number
    of_each_class: int = 0  # fewest samples of a class in a sum over the class; 0: any number
    whose: Ints | None = None  # shape (n,): the patient of each training sample; None: all differ
    seconds: float = 0.0  # longest time for a reply; 0: any
    until: float = float("inf")  # the deadline on the clock `time.monotonic`
    _known: dict[int, bool] = field(default_factory=dict, init=False)  # by the size of a batch

    @classmethod
    def of(cls, site: OpenSite, started: float) -> Limits | None:
        """Return those of a site whose answer to a message was begun at a time; None where a machine simulates it."""
        if site.node.simulated:
            return None
        data, seconds = site.data() if site.guarded else None, site.policy.most_seconds
        until = started + seconds if seconds else float("inf")
        if data is None:
            return cls(site.run, seconds=seconds, until=until)
        policy = site.policy
        return cls(site.run, policy.fewest_in_update, policy.fewest_of_each_class, _whose(data), seconds, until)

    def require_patients(self, rows: Tensor, size: int) -> None:
        """Check that batches of this size hold enough patients.

        If patients have several samples, a batch that does so only by chance is refused too; otherwise the run would
        stop in a later round.

        Parameters
        ----------
        rows : Tensor
            Positions of its samples among the training samples; any shape.
        size : int
            That was asked for, which names the key to change.

        Raises
        ------
        RefusedError
            If it holds fewer; the text does not say how many.
        """
        places = rows.flatten().cpu().numpy()
        held = len(np.unique(places if self.whose is None else self.whose[places]))
        if held >= self.fewest and (self.whose is None or self._surely(len(places))):
            return
        if size < self.fewest:
            what, higher = "would", f"raise it to at least {self.fewest}"
            higher += "" if self.whose is None else ", and higher where patients have several samples"
        else:
            what, higher = "could", "raise it, as patients have several samples here"
        raise RefusedError(
            f"{self._key(size)}: a gradient {what} be computed from fewer than {self.fewest} patients, which this site "
            f"does not allow (fewest-in-update): {higher}"
        )

    def _surely(self, size: int) -> bool:
        """Whether batches of this size hold enough patients even five standard deviations below the mean."""
        assert self.whose is not None, "else samples are patients"
        if size not in self._known:
            random, count = np.random.default_rng(0), len(self.whose)
            draws = (random.choice(count, min(size, count), replace=False, shuffle=False) for _ in range(DRAWS))
            held = [len(np.unique(self.whose[rows])) for rows in draws]
            self._known[size] = float(np.mean(held) - 5 * np.std(held)) >= self.fewest
        return self._known[size]

    def require_of_each_class(self, labels: Tensor) -> None:
        """Check that sums over each class of a batch have enough samples or none.

        Raises
        ------
        RefusedError
            When they are not.
        """
        known = [own[own >= 0] for own in (labels.T if labels.ndim > 1 else labels[None])]
        if any(few(count, self.of_each_class) for own in known for count in own.bincount().tolist()):
            raise RefusedError(
                f"{self._key(len(labels))}: sums over the samples of a class would be over fewer than "
                f"{self.of_each_class} (fewest-of-each-class): raise it, or set it to 0 for all samples"
            )

    def require_time(self) -> None:
        """Check that there is time left.

        Raises
        ------
        RefusedError
            If there is none.
        """
        if time.monotonic() > self.until:
            raise RefusedError(
                f"its reply took longer than {self.seconds:g} s, this site's limit for one message (most-seconds): "
                "lower local-steps, or shorten rounds otherwise"
            )

    def _key(self, size: int) -> str:
        """Return the run's key that determines the batch size, and its value."""
        strategy = self.run.strategy
        own = [f.name for f in fields(strategy) if "batch" in f.name and getattr(strategy, f.name) == size]
        if size == self.run.batch_size or not own:
            return f"batch-size = {self.run.batch_size}"
        return f"{strategy.name}.{own[0].replace('_', '-')} = {size}"


def _whose(data: SiteData) -> Ints | None:
    """Return the patient of each training sample, if there is a patient column."""
    if not data.by_patient:
        return None
    assert data.patient_ids is not None, "a hospital's own data say whose each row is"
    whose: Ints = data.patient_ids[data.train.rows.numpy()]
    return whose
