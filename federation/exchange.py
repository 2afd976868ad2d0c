"""One exchange with the sites: send, wait for the answers, yield the usable ones in the order of the sites."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord

from federation.errors import RunError
from federation.wire import not_finite, size, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    import numpy as np
    from flwr.app import Message
    from flwr.serverapp import Grid

    from federation.sites import Site
    from problems import Arrays

NAMED = 5  # sites that a line about many names
SHORTEST_WAIT, LONGEST_WAIT = 0.01, 1.0  # seconds between two looks for answers; Flower's own wait is 3 s


@dataclass
class Exchange:
    """How messages travel in one run, and what they carried so far.

    Parameters
    ----------
    grid : Grid
        Any engine's.
    timeout : float
        Seconds to wait for the answers to one set of messages.
    sites : sequence of Site
        All sites, sorted by index.
    min_replies : int
        Fewer usable answers than this stop the run. 0: every site has to answer, but an update that is left out for its
        values is an answer too, as long as one is usable.
    on_bad_update : str
        ``"skip"`` leaves an update with a NaN or an infinity out; ``"stop"`` ends the run there.
    warn : Callable[[str], None]
        Told about every answer that is left out.
    heard : Callable[[int, int], None]
        Told how many of the sites that were asked have answered, whenever some have.
    advice : str
        What to do about an update that is not finite.

    Attributes
    ----------
    by_node : dict of int to Site
        The sites by their address.
    bytes_down, bytes_up : int
        Of all vectors sent to and received from the sites.
    waiting : float
        Seconds spent waiting for answers.
    """

    grid: Grid
    timeout: float
    sites: Sequence[Site]
    min_replies: int = 0
    on_bad_update: str = "skip"
    warn: Callable[[str], None] = print
    heard: Callable[[int, int], None] = lambda answered, asked: None
    advice: str = "Lower the step size"
    bytes_down: int = 0
    bytes_up: int = 0
    waiting: float = 0.0
    by_node: dict[int, Site] = field(init=False)

    def __post_init__(self) -> None:
        """Index the sites by their address."""
        self.by_node = {site.node_id: site for site in self.sites}

    def cost(self) -> dict[str, float]:
        """Return what this run has cost so far: bytes-down, bytes-up, seconds-waiting."""
        return {"bytes-down": self.bytes_down, "bytes-up": self.bytes_up, "seconds-waiting": self.waiting}

    def __call__(
        self,
        messages: Sequence[Message],
        *,
        min_replies: int | None = None,
        first_come: np.random.Generator | None = None,
    ) -> Iterator[Message]:
        """Send the messages and yield the usable answers, sorted by site, each as soon as its turn has come.

        Summing in this order gives the same bits whatever order the answers arrive in; yielding early lets the
        caller fold an answer into a mean and drop it, so that memory does not grow with the number of sites.

        Parameters
        ----------
        messages : sequence of Message
            At most one to each site.
        min_replies : int, optional
            Overrides the run's; then nobody's answer is dropped for being late.
        first_come : numpy.random.Generator, optional
            If given, the exchange ends as soon as ``min_replies`` usable answers are there, unless that is 0, and drops
            later ones. It draws the order in which messages leave; otherwise the last of the sites that share a process
            would never come in time.

        Raises
        ------
        RunError
            After the last answer, when too few were usable; at a bad update, if the run is to stop there.
        """
        wanted, asked = self.min_replies if min_replies is None else min_replies, len(messages)
        required = min(wanted, asked) or asked
        failures: dict[str, list[str]] = {}  # names by reason: a mistake is often everybody's
        usable = skipped = 0
        rush = first_come if wanted and min_replies is None else None
        answers = self._answers(messages) if rush is None else self._first(messages, required, rush)
        del messages  # here and below: a message's vectors live until it has been answered, not until all have been
        for site, answer in answers:
            failure = self._failure(answer)
            if failure is None and answer is not None:
                arrays = _arrays(answer)
                self.bytes_up += size(arrays)
                if not (bad := not_finite(arrays)):
                    usable += 1
                    yield answer
                    continue
                failure = f"sent NaN or infinity in {', '.join(map(repr, bad))}. "
                failure += f"{self.advice}, or look at that site's data"
                if self.on_bad_update == "stop":
                    raise RunError(f'site {site.name!r} {failure} (stopped because on-bad-update = "stop")')
                skipped += 1
            failures.setdefault(str(failure), []).append(_name(site, answer))
        listed = [f"{_sites(names)} {reason}" for reason, names in failures.items()]
        for text in listed:
            self.warn(f"{text} [left out]")
        if 2 * skipped > asked:  # not one broken site, then
            raise RunError("the run diverges:\n  " + "\n  ".join(listed))
        if not usable or usable + (0 if wanted else skipped) < required:
            advice = f" (min-replies={usable} would go on without the others)" if usable and min_replies is None else ""
            raise RunError(
                f"{usable} of {asked} sites gave a usable answer, {required} are needed"
                f"{advice}:\n  " + "\n  ".join(listed)
            )

    def _answers(self, messages: Sequence[Message]) -> Iterator[tuple[Site, Message | None]]:
        """Yield every addressed site with its answer, or None after the timeout, in the order of the sites."""
        asked = self._push(sorted(messages, key=lambda message: self._addressee(message).index))
        del messages
        arrivals = self._arrivals(asked)
        arrived: dict[str, Message] = {}
        for identifier, site in asked.items():
            while identifier not in arrived and (answer := next(arrivals, None)):
                arrived[answer.metadata.reply_to_message_id] = answer
            yield site, arrived.pop(identifier, None)

    def _first(
        self, messages: Sequence[Message], enough: int, random: np.random.Generator
    ) -> Iterator[tuple[Site, Message | None]]:
        """Yield the sites that answered until there were enough usable answers; if they never are, all sites."""
        asked = self._push([messages[i] for i in random.permutation(len(messages))])
        del messages
        arrived: dict[str, Message] = {}
        usable = 0
        for answer in self._arrivals(asked):
            identifier = answer.metadata.reply_to_message_id
            arrived[identifier] = answer
            usable += self._failure(answer) is None and not not_finite(_arrays(answer))
            if usable == enough:
                asked = {identifier: asked[identifier] for identifier in arrived}
                break
        for identifier, site in sorted(asked.items(), key=lambda item: item[1].index):
            yield site, arrived.pop(identifier, None)

    def _addressee(self, message: Message) -> Site:
        return self.by_node[message.metadata.dst_node_id]

    def _push(self, messages: Sequence[Message]) -> dict[str, Site]:
        """Send the messages; return whom an answer to which identifier comes from."""
        self.bytes_down += sum(size(_arrays(message)) for message in messages)
        # A site that cannot be reached has no identifier: one that no one answers to takes its place.
        identifiers = self.grid.push_messages(messages)
        return {
            identifier or f"unreachable-{message.metadata.dst_node_id}": self._addressee(message)
            for message, identifier in zip(messages, identifiers, strict=True)
        }

    def _arrivals(self, asked: Collection[str]) -> Iterator[Message]:
        """Yield answers as they come, until all have or the time is up."""
        missing = {identifier for identifier in asked if not identifier.startswith("unreachable")}
        deadline, wait = time.monotonic() + self.timeout, SHORTEST_WAIT
        while missing and (started := time.monotonic()) < deadline:
            answers = [a for a in self.grid.pull_messages(missing) if a.metadata.reply_to_message_id in missing]
            missing -= {answer.metadata.reply_to_message_id for answer in answers}
            wait = SHORTEST_WAIT if answers else min(wait * 1.5, LONGEST_WAIT)
            if not answers:
                time.sleep(max(0.0, min(wait, deadline - time.monotonic())))
            self.waiting += time.monotonic() - started
            if answers:
                self.heard(len(asked) - len(missing), len(asked))
            yield from answers

    def _failure(self, answer: Message | None) -> str | None:
        if answer is None:
            return f"did not answer within round-timeout = {self.timeout:g} s, or could not be reached"
        if answer.has_error():
            return f"failed: {answer.error.reason or 'it gave no reason'}"
        if (refusal := answer.content.config_records.get("error")) is not None:
            return f"refused: {refusal['message']!s}"
        return None


def _name(site: Site, answer: Message | None) -> str:
    """Return what to call a site: before its first answer it has no name, but a refusal brings one."""
    refusal = answer.content.config_records.get("error") if answer is not None and answer.has_content() else None
    return site.name if refusal is None else str(refusal["site"])


def _sites(names: Sequence[str]) -> str:
    """Name one site, or say how many and name the first."""
    if len(names) == 1:
        return f"site {names[0]!r}"
    rest = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return f"{len(names)} sites ({', '.join([*map(repr, names[:NAMED]), *rest])})"


def _arrays(message: Message) -> Arrays:
    """Return the vectors in a message; none where it has none."""
    return unpack(message.content.array_records.get("arrays", ArrayRecord()))
