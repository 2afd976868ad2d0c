"""What a message asks of a site."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord

from edelweiss.common import from_record, latest, record_in
from edelweiss.datasets import DataSummary

if TYPE_CHECKING:
    from flwr.app import Message

COHORT = tuple(field.name for field in fields(DataSummary))


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a message asks of a site; the rest follows from the run-config.

    Attributes
    ----------
    round, phase, evaluate
        Where the run stands, and whether to evaluate what was received.
    site, name, sites : int, str, int
        This site's place and name, and how many sites take part: fewer than the run is for, where some could not begin.
    run, settled : str, int
        The run's key, and the round behind whose end it does not go back, see `federation.Checkpoints`.
    data_summary : DataSummary
        What holds for the data of all sites together.
    merged : tuple of bytes
        The counts of all sites for two models, see `evidence.paired.merged_record`: the last evaluation wants to know
        how these differ. Empty: it does not.
    """

    round: int
    phase: str
    site: int
    name: str
    sites: int
    run: str
    settled: int
    evaluate: bool = True
    data_summary: DataSummary = field(default_factory=DataSummary)
    merged: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, message: Message) -> Request:
        """Read the message's ``config`` record; asked again for the same message, it is not read anew."""
        return _read(record_in(message.content, "config", ConfigRecord))


@latest
def _read(record: ConfigRecord) -> Request:
    told = dict(record.items())
    keys = tuple(key for key in COHORT if key in told)
    return from_record(Request, told, data_summary=_cohort(keys, *(told[key] for key in keys)))


@latest
def _cohort(keys: tuple[str, ...], *values: object) -> DataSummary:
    return from_record(DataSummary, dict(zip(keys, values, strict=True)))


def forget_request() -> None:
    """Let go of the last message of a run that is over."""
    _read.cache_clear()
    _cohort.cache_clear()
