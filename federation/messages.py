"""What the rounds write to the sites, and read out of their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from edelweiss.common import record_in
from edelweiss.federation.fingerprint import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from flwr.app import ArrayRecord

    from edelweiss.federation.sites import Site
    from edelweiss.federation.stages import RoundContext
    from edelweiss.problems import Metrics


def order(config: Mapping[str, object], context: RoundContext) -> ConfigRecord:
    """Return what all sites are told in a phase: what they cannot know of the turn; all else is in the run-config."""
    told = {"app": fingerprint(), "round": context.round, "phase": context.phase, "sites": context.sites}
    return ConfigRecord({**config, **told})  # type: ignore[dict-item]


def message(
    arrays: ArrayRecord, told: ConfigRecord, site: Site, kind: str, asked: Mapping[str, Any] | None = None
) -> Message:
    """Write a message with an `order`, to which it adds who the site is, and what it is asked alone."""
    own = told.copy()
    own.update({**(asked or {}), "site": site.index, "name": site.name})
    return Message(RecordDict({"arrays": arrays, "config": own}), site.node_id, kind)


def metrics_in(answer: Message) -> Metrics:
    """Return the evaluation in an answer; empty when there is none."""
    return cast("Metrics", dict(record_in(answer.content, "metrics", ConfigRecord)))


def noting(
    messages: Iterable[Message], sites: dict[int, Site], evaluated: list[tuple[Site, Metrics]]
) -> Iterator[Message]:
    """Pass the answers on, noting the evaluations that they carry."""
    for answer in messages:
        if metrics := metrics_in(answer):
            evaluated.append((sites[answer.metadata.src_node_id], metrics))
        yield answer
