"""Requests and replies between the coordinator and its sites, each written and read in one place."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from edelweiss.federation.encoding import WRITTEN, decode
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.federation.schema import misfits, sound
from edelweiss.federation.sums import SUM
from edelweiss.federation.sums import pack as pack_integers
from edelweiss.federation.wire import pack, question, record, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flwr.app import Array, Message

    from edelweiss.evidence import Reported
    from edelweiss.evidence.noised import Noised
    from edelweiss.federation.schema import Shapes
    from edelweiss.federation.sites import Site
    from edelweiss.federation.stages import RoundContext
    from edelweiss.federation.sums import Integers
    from edelweiss.problems import Arrays, Metrics


ROUNDED = frozenset({*WRITTEN.values(), "int8"})  # the types of vectors that `encoding` rounds
DTYPE = attrgetter("dtype")

# ---------------------------------------------------------------------- at the coordinator, on the way out


def common_fields(config: Mapping[str, object], context: RoundContext) -> dict[str, object]:
    """Return the message fields of a phase that are common to all sites."""
    common = {"app": fingerprint(), "round": context.round, "phase": context.phase, "sites": context.sites}
    return {**config, **common}


def message(
    arrays: ArrayRecord,
    common: Mapping[str, object],
    site: Site,
    kind: str,
    own_fields: Mapping[str, object] | None = None,
    **more: ArrayRecord,
) -> Message:
    """Write a message with the common fields, and the site's index and name.

    Parameters
    ----------
    arrays : ArrayRecord
        The vectors.
    common : mapping
        The fields common to all sites.
    site : Site
        The addressee.
    kind : str
        ``"train"`` or ``"evaluate"``.
    own_fields : mapping, optional
        Fields for this site only.
    more
        Further records of vectors, by name.
    """
    own = record(ConfigRecord, {**common, **(own_fields or {}), "site": site.index, "name": site.name})
    return question(record(RecordDict, {"arrays": arrays, "config": own, **more}), site.node_id, kind)


# ---------------------------------------------------------------------- at either end, on the way in


class Vectors:
    """The vectors of a received message, unpacked and decoded once.

    Parameters
    ----------
    arrays : mapping of str to Array
        Flower's, as they came.
    """

    __slots__ = ("_decoded", "_encoded", "arrays", "checked", "placed")

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.arrays: dict[str, Array] = dict(arrays.items())  # Flower's own mapping takes ten times as long at a look
        self._encoded: Arrays | None = None
        self._decoded: Arrays | None = None
        self.checked: dict[object, list[str]] = {}  # errors in the values, by the context of the check
        self.placed: dict[torch.device, Arrays] = {}

    @property
    def encoded(self) -> Arrays:
        """The vectors as sent, as views of the message; without malformed ones."""
        if self._encoded is None:
            self._encoded = unpack({name: array for name, array in self.arrays.items() if sound(array)})
        return self._encoded

    @property
    def decoded(self) -> Arrays:
        """The decoded vectors."""
        if self._decoded is None:
            self._decoded = decode(self.encoded) if self.rounded else dict(self.encoded)
        return self._decoded

    @property
    def rounded(self) -> bool:
        """Whether any of them may be rounded to 16 or 8 bits."""
        return any(map(ROUNDED.__contains__, map(DTYPE, self.arrays.values())))

    def on(self, device: torch.device) -> Arrays:
        """Return them on a device."""
        if device not in self.placed:
            self.placed[device] = {name: vector.to(device) for name, vector in self.decoded.items()}
        return dict(self.placed[device])

    def misfit(self, tables: Iterable[Shapes]) -> str:
        """Describe how names, shapes or types differ from these tables; empty if they match one."""
        if not (text := misfits(self.arrays, tables)):
            self.fit()
        return text

    def fit(self) -> None:
        """Unpack them; the caller has validated their shapes."""
        if self._encoded is None:
            self._encoded = unpack(self.arrays)


COST = ("gradients", "samples", "seconds", "memory-from", "memory-kept")  # the keys of a `Cost`


class Cost(NamedTuple):
    """The cost of a site's update, and the memory that it used."""

    # gradients, samples: gradients evaluated, and the samples they covered
    gradients: float
    samples: float
    seconds: float
    # memory_from, memory_kept: positions in the run of the memory before and after the update; 0 for none
    memory_from: int
    memory_kept: int

    @property
    def record(self) -> dict[str, float]:
        """As it is sent."""
        return dict(zip(COST, self, strict=True))

    @classmethod
    def of(cls, sent: Mapping[str, Any]) -> Cost:
        """Read what was sent, which has been checked."""
        return cls(*map(sent.__getitem__, COST))


class TrainReply(NamedTuple):
    """A site's reply to a training request, checked and decoded."""

    arrays: Arrays  # what the algorithm's local update returned, with the batch-norm statistics that are averaged
    metrics: Metrics  # its evaluation of the received model; empty for none
    cost: Cost


@dataclass(frozen=True)
class EvaluateReply:
    """A site's reply to the final evaluation, checked."""

    metrics: Metrics  # its evaluation; empty for none
    reported: dict[str, Reported] = field(default_factory=dict)  # what it reports for evidence.json, by label
    noised: dict[str, Noised] = field(default_factory=dict)  # instead of both, with differential privacy, by label


# ---------------------------------------------------------------------- at a site, on the way back


class OutgoingReply(NamedTuple):
    """A site's reply: the records, and their encoded vectors."""

    content: RecordDict
    encoded: Arrays = {}  # noqa: RUF012  read only
    integers: Integers | None = None  # of a reply that only enters a sum

    @classmethod
    def training(cls, encoded: Arrays, metrics: Metrics, cost: Cost) -> OutgoingReply:
        """Write the reply to a training request."""
        records = {
            "arrays": pack(encoded),
            "metrics": record(ConfigRecord, metrics),
            "cost": record(MetricRecord, cost.record),
        }
        return cls(record(RecordDict, records), encoded)

    @classmethod
    def summed(cls, integers: Integers) -> OutgoingReply:
        """Write a reply that only enters a sum, see `federation.sums`."""
        written = {SUM: torch.from_numpy(integers.view("int64"))}  # for the log
        return cls(record(RecordDict, {SUM: pack_integers(integers)}), written, integers)

    @classmethod
    def records(cls, **records: Mapping[str, Any]) -> OutgoingReply:
        """Write a reply without vectors."""
        return cls(record(RecordDict, {name: ConfigRecord({**values}) for name, values in records.items()}))
