"""The typed requests to a site, parsed from messages."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord

from edelweiss.common import PROCESS_CACHE, plain, records_in
from edelweiss.datasets import DataSummary
from edelweiss.federation.messages import Vectors
from edelweiss.federation.seals import SEAL

if TYPE_CHECKING:
    from flwr.app import Message

    from edelweiss.federation import RoundContext

SUMMARY_KEYS = tuple(field.name for field in fields(DataSummary))
ARRAYS, OTHER = "arrays", "other"  # records of vectors: the model, and another one to compare it with
NONE = Vectors({})


class Incoming:
    """A received message, unchecked.

    Attributes
    ----------
    message : Message
        As Flower hands it over.
    kind : str
        What it calls itself.
    content : dict
        Its records, without its seal.
    config : dict
        What it says, by key.
    vectors : dict of str to Vectors
        Its vectors, by the name of their record. Sites that share a process are sent the same record, which is
        unpacked once.
    """

    __slots__ = ("config", "content", "kind", "message", "vectors")

    def __init__(self, message: Message) -> None:
        self.message, self.kind = message, message.metadata.message_type
        self.content = {name: record for name, record in message.content.items() if name != SEAL}
        self.config = plain(self.content, "config", ConfigRecord)
        records = records_in(self.content, ArrayRecord)
        self.vectors: dict[str, Vectors] = {name: _READ.get(name, Vectors)(record) for name, record in records.items()}


_READ = {ARRAYS: PROCESS_CACHE.latest(Vectors), OTHER: PROCESS_CACHE.latest(Vectors)}


@dataclass(frozen=True)
class SumsRequest:
    """A request for what enters the sums of all sites' facts, with secure aggregation."""

    classes: int  # labels at all sites
    shares: tuple[bytes, ...]  # the keys of all sites, see `federation.masks`; none in a simulation


@dataclass(frozen=True, kw_only=True)
class Request:
    """The request of a message about a model; everything else follows from the run-config."""

    # the position in the run; its `sites` are those that take part, without any that could not begin
    context: RoundContext
    # site, name: this site's index and name
    site: int
    name: str
    # run, committed: the run's key, and the last round that is never repeated, see `federation.Checkpoints`
    run: str
    committed: int
    data_summary: DataSummary = field(default_factory=DataSummary)  # the combined facts of all sites
    sent: Vectors = NONE  # the vectors sent to the site

    @property
    def lasting(self) -> tuple[object, ...]:
        """The fields that must not change during a run."""
        return self.run, self.site, self.name, self.context.sites, self.data_summary


@dataclass(frozen=True, kw_only=True)
class TrainRequest(Request):
    """A request to train in a round."""

    evaluate: bool  # whether to evaluate the received model first


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(Request):
    """A request for the final evaluation."""

    other: Vectors = NONE  # the model that the final one is compared with; empty for none
    # the pooled counts of all sites for the two models, see `evidence.paired.merged_record`; empty if the coordinator
    # does not ask for their difference
    merged: tuple[bytes, ...] = ()
