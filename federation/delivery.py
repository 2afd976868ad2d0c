"""Delivery of messages to sites and of their replies, across restarts of sites and of the SuperLink.

A site that dies or restarts with a pending message is sent it again once it is back, and one whose operator has to
approve the run until that is decided. After an outage of the SuperLink,
which hands out each reply once and may lose it, all pending messages are sent again. A site replies to a repeated
message from its previous memory, so repetition changes nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Message

from edelweiss.common import printable, record_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from flwr.serverapp import Grid

    from edelweiss.federation.seals import Seals
    from edelweiss.federation.sites import Site

    Noted = Callable[[Site, str, Mapping[str, str]], None]

STATES = ("asked", "answered", "refused", "broke", "away", "awaits approval")
LONGEST_NAME = 100  # most characters of the name that a site gives itself
LONGEST = 500  # most characters of a reason that a site or Flower gives
NAMED = 5  # sites named in a line about many
MOST_FAULTS = 10  # faults of seals that are logged for a site
SHORTEST_WAIT, GROWTH, LONGEST_WAIT = 0.01, 1.1, 1.0  # seconds until the first poll for replies, and between polls
NEARLY = 0.95  # share of the time to a phase's previous first reply after which polls are frequent again
LOOK, QUICK_LOOK = 5.0, 0.5  # seconds between polls of the connected nodes; the second while a site is away
SOON, LATER = 1.0, 30.0  # seconds until a site that awaits approval is asked again: at first, and at last
LOST = {3, 4, 5}  # flwr's ErrorCode of message, reply or node unavailable: reported by the SuperLink, not the site


@dataclass
class Delivery:
    """Delivery of one run's messages.

    Attributes
    ----------
    waiting : float
        Seconds spent waiting for replies.
    out_of_time : bool
        Whether operators had their time when it last stopped waiting.
    """

    grid: Grid  # any engine's. Its optional `interrupted()` returns whether it reconnected since the last call
    timeout: float  # seconds to wait for the replies to one set of messages, including sites that are away
    by_node: Mapping[int, Site]  # the sites by node id
    on_reply: Callable[[int, int], None]  # called with the numbers of replies and messages on every arrival
    say: Callable[[str], None]  # logs that a site goes away or is back
    seals: Seals | None = None  # seals questions; an answer that its site did not seal counts as none
    approval_timeout: float = 0.0  # seconds to wait for operators to approve the run
    # called with a site, its new state (see `STATES`), and what it says of itself: name, release, why it refuses
    noted: Noted = lambda site, state, said: None
    waiting: float = field(default=0.0, init=False)
    out_of_time: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Begin with all sites present."""
        self._away: set[Site] = set()
        self._undecided: dict[Site, str] = {}  # sites whose operators have not decided, by the names that they give
        self._since: dict[int, str] | None = None  # when each node was started; empty if the engine does not say
        self._interrupted: Callable[[], bool] = getattr(self.grid, "interrupted", lambda: False)
        self._faults: dict[Site, set[str]] = {}  # of seals, as logged
        self._took: dict[str, float] = {}  # seconds to the previous first reply of each phase

    def is_away(self, site: Site) -> bool:
        """Whether the site was away at the last poll."""
        return site in self._away

    def awaits_approval(self, site: Site) -> str:
        """Return the name that a site gives itself whose operator has not approved the run; empty for others."""
        return self._undecided.get(site, "")

    def addressee(self, message: Message) -> Site:
        """Return the site that a message goes to."""
        return self.by_node[message.metadata.dst_node_id]

    def arrivals(
        self, messages: Sequence[Message], more: Callable[[], bool], short: Callable[[], int]
    ) -> Iterator[tuple[Site, Message, Message]]:
        """Send messages; yield site, message and reply as replies arrive.

        It ends when all sites have replied, at the timeout, or when only sites that are away or await approval are
        missing and ``more`` returns False. While the run is ``short`` of so many replies that approvals bring, the
        timeout is theirs: at once if nothing else is missing, else once the others had theirs.
        """
        asked = len(messages)
        if self._since is None or self._since:
            self._since = (self._since or {}) | _dated(self._nodes())  # earlier restarts lose nothing
        deadline, wait, looked = time.monotonic() + self.timeout, SHORTEST_WAIT, time.monotonic()
        phase = str(record_in(messages[0].content, "config", ConfigRecord).get("phase", "")) if messages else ""
        self._interrupted()  # forget earlier interruptions
        self.out_of_time = False
        waiting, away = self._push(messages)
        del messages  # frees a message's vectors once it is answered
        asked_at, answered, lost = time.monotonic(), False, False
        soon = asked_at + NEARLY * self._took.get(phase, 0.0)
        undecided: list[Message] = []
        decide_by, ask_at, pause_to_ask = asked_at + self.approval_timeout, asked_at, SOON
        while waiting or ((away or undecided) and more()):
            started = time.monotonic()
            if undecided and not waiting and not away and short() > 0:
                deadline = started + self.timeout if started < decide_by else started
            ends = deadline
            if started >= deadline and 0 < short() <= self._awaiting(*undecided, *away, *waiting.values()):
                ends = decide_by
            if started >= ends:
                self.out_of_time = started >= decide_by
                break
            if undecided and started >= ask_at:
                sent, gone = self._push(_copies(undecided))
                waiting |= sent
                away += gone
                undecided, pause_to_ask = [], min(2 * pause_to_ask, LATER)
            arrived = []
            for answer in self.grid.pull_messages(waiting.keys()) if waiting else ():
                if question := waiting.pop(answer.metadata.reply_to_message_id, None):
                    if answer.has_error() and answer.error.code in LOST:
                        away.append(self._gone(question))
                        continue
                    site = self.addressee(question)
                    if self.seals and (fault := self.seals.fault(question, answer)):
                        self._say_fault(site, fault)
                        away.append(question)
                        continue
                    self._back(site, "is back")
                    if refusal := instead(answer, "waiting"):
                        self._undecided_at(site, str(refusal.get("site", "")))
                        undecided.append(question)
                        ask_at = time.monotonic() + pause_to_ask
                        continue
                    self._decided_at(site)
                    self.noted(site, *_kind(answer))
                    arrived.append((site, question, answer))
            wait = SHORTEST_WAIT if arrived else min(wait * GROWTH, LONGEST_WAIT)
            if not arrived:
                if self._interrupted():
                    lost, looked = True, started  # replies from now on are not lost
                if started - looked > (QUICK_LOOK if away else LOOK):
                    looked = started
                    self._ask_again(waiting, away, lost=lost)
                    lost = False
                pause, now = min(wait, ends - started), time.monotonic()
                if now < soon < now + pause:
                    pause, wait = soon - now, SHORTEST_WAIT
                time.sleep(max(0.0, pause))
            self.waiting += time.monotonic() - started
            if arrived and not answered:
                answered, self._took[phase] = True, started - asked_at
            if arrived:
                self.on_reply(asked - len(waiting) - len(away) - len(undecided), asked)
            arrived.reverse()
            while arrived:
                yield arrived.pop()

    def _awaiting(self, *missing: Message) -> int:
        """Count the messages whose sites' operators have not decided."""
        return sum(self.addressee(message) in self._undecided for message in missing)

    def _push(self, messages: Sequence[Message]) -> tuple[dict[str, Message], list[Message]]:
        """Send messages; return those sent, by identifier, and those whose sites are away."""
        waiting, away = {}, []
        if self.seals:
            for message in messages:
                self.seals.seal(message)
        for message, identifier in zip(messages, self.grid.push_messages(messages), strict=True):
            if identifier:
                waiting[identifier] = message
                self.noted(self.addressee(message), "asked", {})
            else:
                away.append(self._gone(message))
        return waiting, away

    def _ask_again(self, waiting: dict[str, Message], away: list[Message], *, lost: bool) -> None:
        """Repeat lost messages to sites that are back or have restarted unnoticed.

        ``lost``: any reply may be lost, so repeat all pending messages.
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
            self.say(f"the SuperLink was away and may have lost replies: asking {named(never_left)} again")
        if again:
            for message in again:
                self._back(self.addressee(message), "is back, and asked again")
            sent, gone = self._push(_copies(again))
            waiting |= sent
            away += gone

    def _nodes(self) -> dict[int, str]:
        """Return the connected nodes and when each was started; engines without a SuperLink do not say."""
        return {node.node_id: str(node.last_activated_at) for node in self.grid.get_nodes()}

    def _gone(self, message: Message) -> Message:
        """Log, once, that a message's site is away."""
        if (site := self.addressee(message)) not in self._away:
            self._away.add(site)
            self.say(f"site {site.name!r} is away; it is asked again when it is back")
            self.noted(site, "away", {})
        return message

    def _undecided_at(self, site: Site, name: str) -> None:
        """Log, once, that a site's operator has to approve the run."""
        if site not in self._undecided:
            self._undecided[site] = printable(name, LONGEST_NAME) or site.name
            self.say(f"site {self._undecided[site]!r} waits for its operator's approval")
        self.noted(site, "awaits approval", {"name": self._undecided[site]})

    def _decided_at(self, site: Site) -> None:
        if name := self._undecided.pop(site, ""):
            self.say(f"the operator of site {name!r} has decided")

    def _say_fault(self, site: Site, fault: str) -> None:
        """Log that an answer counts as none: once for each reason, which anybody may have written, and not for ever."""
        known = self._faults.setdefault(site, set())
        if fault not in known and len(known) < MOST_FAULTS:
            known.add(fault)
            self.say(f"an answer in the name of site {site.name!r} counts as none: {fault}; the site is asked again")

    def _back(self, site: Site, text: str) -> None:
        if site in self._away:
            self._away.discard(site)
            self.say(f"site {site.name!r} {text}")


def instead(answer: Message, name: str) -> ConfigRecord | None:
    """Return a record that an answer may have instead of what was asked for; None without."""
    content = answer.content if answer.has_content() else {}
    return record_in(content, name, ConfigRecord) if name in content else None


def _kind(answer: Message) -> tuple[str, dict[str, str]]:
    """Return a site's state after an answer, and what the answer says of the site."""
    if answer.has_error():
        return "broke", {"reason": printable(answer.error.reason or "it gave no reason", LONGEST)}
    if refusal := instead(answer, "error"):
        said = {"name": "site", "release": "release", "reason": "message"}
        return "refused", {key: printable(str(refusal.get(own, "")), LONGEST) for key, own in said.items()}
    return "answered", {}


def _copies(messages: Sequence[Message]) -> list[Message]:
    """Return messages to be sent once more."""
    return [Message(m.content, m.metadata.dst_node_id, m.metadata.message_type) for m in messages]


def _dated(nodes: dict[int, str]) -> dict[int, str]:
    """Return the nodes with a known start."""
    return {node: since for node, since in nodes.items() if since}


def named(names: Sequence[str]) -> str:
    """Name one site, or count several and name the first."""
    if len(names) == 1:
        return f"site {names[0]!r}"
    rest = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return f"{len(names)} sites ({', '.join([*map(repr, names[:NAMED]), *rest])})"
