"""Messages on their way to the sites, and the answers on theirs back, whatever happens in between.

A site that dies, stalls or is restarted with a message at hand is asked again when it is back. After the SuperLink was
away, so is every site that has not answered: the SuperLink gives each answer out once, and one may be lost with it. A
site answers from what it remembered before, so that it makes no difference how often it was asked.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Message

from edelweiss.common import record_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from flwr.serverapp import Grid

    from edelweiss.federation.sites import Site

NAMED = 5  # sites that a line about many names
SHORTEST_WAIT, GROWTH, LONGEST_WAIT = 0.01, 1.1, 1.0  # seconds to the first look for answers, and between later ones
NEARLY = 0.95  # of the time that a phase's first answer took the last time: from then on looks are frequent again
LOOK, QUICK_LOOK = 5.0, 0.5  # and between two looks at who is there, the second while somebody is known to be away
LOST = {3, 4, 5}  # flwr's ErrorCode: message, reply or node unavailable. It is the SuperLink's word, not the site's


@dataclass
class Delivery:
    """How messages travel in one run.

    Parameters
    ----------
    grid : Grid
        Any engine's. It may have an ``interrupted()`` that says whether it had to connect anew since it was last asked.
    timeout : float
        Seconds to wait for the answers to one set of messages, sites that are away included.
    by_node : mapping of int to Site
        The sites by their address.
    heard : Callable[[int, int], None]
        Told how many of the sites that were asked have answered, whenever some have.
    say : Callable[[str], None]
        Told when a site goes away and when it is back.

    Attributes
    ----------
    waiting : float
        Seconds spent waiting for answers.
    """

    grid: Grid
    timeout: float
    by_node: Mapping[int, Site]
    heard: Callable[[int, int], None]
    say: Callable[[str], None]
    waiting: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Begin with nobody away."""
        self._away: set[Site] = set()
        self._since: dict[int, str] | None = None  # when each node was last started; empty if nobody says
        self._interrupted: Callable[[], bool] = getattr(self.grid, "interrupted", lambda: False)
        self._took: dict[str, float] = {}  # seconds to the first answer of each phase, the last time

    def is_away(self, site: Site) -> bool:
        """Whether the site was not there when somebody last looked."""
        return site in self._away

    def addressee(self, message: Message) -> Site:
        """Return whom a message goes to."""
        return self.by_node[message.metadata.dst_node_id]

    def arrivals(
        self, messages: Sequence[Message], more: Callable[[], bool]
    ) -> Iterator[tuple[Site, Message, Message]]:
        """Send messages; yield sites, what they were asked and what they answer, as the answers come.

        It ends when all have answered, when the time is up, and when only sites are missing that are away, unless
        ``more`` says that they are waited for.
        """
        asked = len(messages)
        if self._since is None or self._since:
            self._since = (self._since or {}) | _dated(self._nodes())  # a restart before this moment loses nothing
        deadline, wait, looked = time.monotonic() + self.timeout, SHORTEST_WAIT, time.monotonic()
        phase = str(record_in(messages[0].content, "config", ConfigRecord).get("phase", "")) if messages else ""
        self._interrupted()  # what came before harms none of these messages
        waiting, away = self._push(messages)
        del messages  # a message's vectors live until it has been answered, not until all have been
        asked_at, answered, lost = time.monotonic(), False, False
        soon = asked_at + NEARLY * self._took.get(phase, 0.0)
        while (waiting or (away and more())) and (started := time.monotonic()) < deadline:
            arrived = []
            for answer in self.grid.pull_messages(waiting.keys()) if waiting else ():
                if question := waiting.pop(answer.metadata.reply_to_message_id, None):
                    if answer.has_error() and answer.error.code in LOST:
                        away.append(self._gone(question))
                        continue
                    site = self.addressee(question)
                    self._back(site, "is back")
                    arrived.append((site, question, answer))
            wait = SHORTEST_WAIT if arrived else min(wait * GROWTH, LONGEST_WAIT)
            if not arrived:
                if self._interrupted():
                    lost, looked = True, started  # who answers now loses nothing
                if started - looked > (QUICK_LOOK if away else LOOK):
                    looked = started
                    self._ask_again(waiting, away, lost=lost)
                    lost = False
                pause, now = min(wait, deadline - started), time.monotonic()
                if now < soon < now + pause:
                    pause, wait = soon - now, SHORTEST_WAIT
                time.sleep(max(0.0, pause))
            self.waiting += time.monotonic() - started
            if arrived and not answered:
                answered, self._took[phase] = True, started - asked_at
            if arrived:
                self.heard(asked - len(waiting) - len(away), asked)
            arrived.reverse()
            while arrived:
                yield arrived.pop()

    def _push(self, messages: Sequence[Message]) -> tuple[dict[str, Message], list[Message]]:
        """Send messages; return those that are on their way, by identifier, and those whose sites are not there."""
        waiting, away = {}, []
        for message, identifier in zip(messages, self.grid.push_messages(messages), strict=True):
            if identifier:
                waiting[identifier] = message
            else:
                away.append(self._gone(message))
        return waiting, away

    def _ask_again(self, waiting: dict[str, Message], away: list[Message], *, lost: bool) -> None:
        """Send what was lost to the sites that are back, and to those that were restarted before anybody noticed.

        ``lost``: any answer may be, so that everybody is asked who is waited for.
        """
        there, since = self._nodes(), self._since or {}
        again = [message for message in away if message.metadata.dst_node_id in there]
        away[:] = [message for message in away if message.metadata.dst_node_id not in there]
        never_left = []
        for identifier, message in list(waiting.items()):
            node = message.metadata.dst_node_id
            restarted = node in since and there.get(node, since[node]) != since[node]
            if restarted:
                self._away.add(self.addressee(message))
            elif lost:
                never_left.append(self.addressee(message).name)
            if restarted or lost:
                again.append(waiting.pop(identifier))
        since |= _dated(there)
        if never_left:
            self.say(f"the SuperLink was away, and may have lost answers: asking {named(never_left)} again")
        if again:
            for message in again:
                self._back(self.addressee(message), "is back, and asked again")
            copies = [Message(m.content, m.metadata.dst_node_id, m.metadata.message_type) for m in again]
            sent, gone = self._push(copies)
            waiting |= sent
            away += gone

    def _nodes(self) -> dict[int, str]:
        """Return who is there, and since when; engines without a SuperLink do not say."""
        return {node.node_id: str(node.last_activated_at) for node in self.grid.get_nodes()}

    def _gone(self, message: Message) -> Message:
        """Say, once, that a message's site is away."""
        if (site := self.addressee(message)) not in self._away:
            self._away.add(site)
            self.say(f"site {site.name!r} is away; it is asked again when it is back")
        return message

    def _back(self, site: Site, said: str) -> None:
        if site in self._away:
            self._away.discard(site)
            self.say(f"site {site.name!r} {said}")


def _dated(nodes: dict[int, str]) -> dict[int, str]:
    """Return those of which somebody says when they were started."""
    return {node: since for node, since in nodes.items() if since}


def named(names: Sequence[str]) -> str:
    """Name one site, or say how many and name the first."""
    if len(names) == 1:
        return f"site {names[0]!r}"
    rest = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return f"{len(names)} sites ({', '.join([*map(repr, names[:NAMED]), *rest])})"
