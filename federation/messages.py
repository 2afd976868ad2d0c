"""What the rounds write to the sites, and read out of their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from federation.fingerprint import fingerprint
from keys import record_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from flwr.app import ArrayRecord

    from federation.sites import Site
    from federation.stages import Turn
    from problems import Metrics


def message(arrays: ArrayRecord, config: Mapping[str, object], turn: Turn, site: Site, kind: str) -> Message:
    """Write a message: what a site cannot know of its turn goes with it, the rest follows from the run-config."""
    told = {"app": fingerprint(), "round": turn.round, "phase": turn.phase, "site": site.index, "name": site.name}
    told["sites"] = turn.sites
    order = ConfigRecord({**config, **told})  # type: ignore[dict-item]
    return Message(RecordDict({"arrays": arrays, "config": order}), site.node_id, kind)


def metrics_in(answer: Message) -> Metrics:
    """Return the evaluation in an answer; empty when there is none."""
    return cast("Metrics", dict(record_in(answer.content, "metrics", MetricRecord)))


def noting(
    messages: Iterable[Message], sites: dict[int, Site], evaluated: list[tuple[Site, Metrics]]
) -> Iterator[Message]:
    """Pass the answers on, noting the evaluations that they carry."""
    for answer in messages:
        if metrics := metrics_in(answer):
            evaluated.append((sites[answer.metadata.src_node_id], metrics))
        yield answer
