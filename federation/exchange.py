"""One exchange with the sites: send, wait, and yield the usable replies, parsed, in the order of the sites."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, TypeVar

from flwr.app import ArrayRecord, Message

from edelweiss.common import printable, record_in
from edelweiss.federation.delivery import LONGEST, Delivery, instead, named
from edelweiss.federation.errors import (
    AwaitsApprovalError,
    BadReplyError,
    BadValuesError,
    DivergedError,
    RunError,
    TooFewRepliesError,
)
from edelweiss.federation.sums import SUM
from edelweiss.federation.wire import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from flwr.serverapp import Grid

    from edelweiss.federation.delivery import Noted
    from edelweiss.federation.seals import Seals
    from edelweiss.federation.sites import Site

    Read = Callable[[Site, Message, Message], "R"]
    """Parses a reply, given the site and the message; raises BadReplyError or BadValuesError."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """The outcome of a message."""

    reply: R | None = None  # the parsed reply; None if unusable
    failure: str = ""  # why it is unusable; completes a sentence that begins with the site's name
    site: str = ""  # the name that a refusing site gives itself, while the coordinator does not know it
    values: bool = False  # whether only its values are unusable


@dataclass
class Exchange:
    """The exchanges of one run: quorum, rejected replies, and traffic.

    Attributes
    ----------
    by_node : dict of int to Site
        The sites by node id.
    bytes_down, bytes_up : int
        Bytes of all vectors sent, and of those received in usable replies.
    """

    # grid, timeout, on_reply, say: see `Delivery`
    grid: Grid
    timeout: float
    sites: Sequence[Site]  # all sites, sorted by index
    # the quorum: fewer usable replies stop the run; with as many, it does not wait for sites that are away. 0: every
    # site has to reply; updates skipped for their values count, as long as one is usable
    min_replies: int = 0
    on_bad_update: str = "skip"  # "skip" skips an update with NaN or infinity; "stop" stops the run
    warn: Callable[[str], None] = print  # called for every skipped reply
    on_reply: Callable[[int, int], None] = lambda answered, asked: None
    advice: str = "Lower the step size"  # the fix for an update that is not finite
    say: Callable[[str], None] = print
    seals: Seals | None = None  # see `Delivery`; None in a run without a ticket
    # see `Delivery`
    approval_timeout: float = 0.0
    noted: Noted = lambda site, state, said: None
    bytes_down: int = 0
    bytes_up: int = 0
    by_node: dict[int, Site] = field(init=False)

    def __post_init__(self) -> None:
        """Index the sites by node id."""
        self.by_node = {site.node_id: site for site in self.sites}
        self._delivery = Delivery(
            self.grid,
            self.timeout,
            self.by_node,
            self.on_reply,
            self.say,
            self.seals,
            self.approval_timeout,
            self.noted,
        )

    def cost(self) -> dict[str, float]:
        """Return the run's costs so far: bytes-down, bytes-up, seconds-waiting."""
        return {"bytes-down": self.bytes_down, "bytes-up": self.bytes_up, "seconds-waiting": self._delivery.waiting}

    def __call__(
        self,
        messages: Sequence[Message],
        *,
        read: Read[R],
        min_replies: int | None = None,
        shuffle: np.random.Generator | None = None,
        wait_for_all: bool = False,
    ) -> Iterator[tuple[Site, R]]:
        """Send messages and yield the usable replies in the order of the sites, each as early as possible.

        The order makes sums reproducible; yielding early lets the caller aggregate and drop each reply, so that memory
        does not grow with the number of sites.

        Parameters
        ----------
        messages : sequence of Message
            At most one to each site.
        read : callable
            Parses a reply; raises BadReplyError for an unusable one.
        min_replies : int, optional
            The quorum, in place of the run's; stragglers are then not dropped.
        shuffle : numpy.random.Generator, optional
            If given, stragglers are dropped: the exchange ends after ``min_replies`` usable replies, unless that is 0.
            It shuffles the messages; otherwise the last of several sites in one process would always be late.
        wait_for_all : bool
            Whether to wait for sites that are away even after enough replies.

        Raises
        ------
        RunError
            After the last reply, if too few are usable; at a bad update, if ``on_bad_update`` is ``"stop"``.
        """
        wanted, asked = self.min_replies if min_replies is None else min_replies, len(messages)
        required = min(wanted, asked) or asked
        quorum = max(required, min(self.min_replies, asked) or asked)
        # With this many, it does not wait for sites that are away.
        enough = asked if wait_for_all else quorum
        failures: dict[str, list[str]] = {}  # names by reason: many sites often make the same mistake
        usable = skipped = 0
        undecided: list[str] = []
        drops = shuffle is not None and wanted > 0
        if shuffle is not None and wanted:
            messages = [messages[i] for i in shuffle.permutation(asked)]
        outcomes = self._outcomes(messages, required if drops else enough, quorum, read, drops=drops)
        del messages  # here and below: frees a message's vectors once it is answered
        for site, outcome in outcomes:
            if outcome.reply is not None:
                usable += 1
                yield site, outcome.reply
                continue
            if outcome.values and self.on_bad_update == "stop":
                text = f'site {site.name!r} {outcome.failure} (stopped because on-bad-update = "stop")'
                raise RunError(text, key="on-bad-update", value="stop", sites=[site.name])
            skipped += outcome.values
            name = site.name if site.named else outcome.site or site.name
            failures.setdefault(outcome.failure, []).append(name)
            if name := self._delivery.awaits_approval(site):
                undecided.append(name)
        listed = [f"{named(names)} {reason}" for reason, names in failures.items()]
        for text in listed:
            self.warn(f"{text} [left out]")
        if 2 * skipped > asked:  # not just one broken site
            raise DivergedError("the run diverges:\n  " + "\n  ".join(listed), sites=chain(*failures.values()))
        if usable + len(undecided) >= required > usable:
            after = f" after approval-timeout = {self.approval_timeout:g} s" if self._delivery.out_of_time else ""
            raise AwaitsApprovalError(
                f"stopped: {named(undecided)} still wait{'s' * (len(undecided) == 1)} for approval by the operator"
                f"{after}: resume the run when that is decided",
                key="approval-timeout",
                value=self.approval_timeout,
                sites=undecided,
            )
        if not usable or usable + (0 if wanted else skipped) < required:
            advice = (
                f" (min-replies={usable} would continue without the others)" if usable and min_replies is None else ""
            )
            raise TooFewRepliesError(
                f"{usable} of {asked} sites gave a usable reply; {required} are needed"
                f"{advice}:\n  " + "\n  ".join(listed),
                key="min-replies",
                value=usable,
                allowed=required,
                sites=chain(*failures.values()),
            )
        if usable < asked and not drops:
            self.say(f"continues with {usable} of {asked} sites")

    def _outcomes(
        self, messages: Sequence[Message], enough: int, quorum: int, read: Read[R], *, drops: bool
    ) -> Iterator[tuple[Site, Outcome[R]]]:
        """Yield each addressed site with its outcome, in the order of the sites; drop stragglers if asked to."""
        sites = sorted(map(self._delivery.addressee, messages), key=_place)
        arrivals = self._arrivals(messages, enough, quorum, read)
        del messages
        arrived: dict[Site, Outcome[R] | None] = {}
        if drops:
            usable = 0
            for site, outcome in arrivals:
                arrived[site] = outcome
                usable += outcome.reply is not None
                if usable == enough:
                    sites = sorted(arrived, key=_place)
                    break
        for site in sites:
            while site not in arrived and (arrival := next(arrivals, None)):
                arrived[arrival[0]] = arrival[1]
            yield site, arrived.pop(site, None) or self._silence(site)

    def _arrivals(
        self, messages: Sequence[Message], enough: int, quorum: int, read: Read[R]
    ) -> Iterator[tuple[Site, Outcome[R]]]:
        """Yield outcomes as replies arrive; with enough usable ones, without waiting for sites that are away."""
        self.bytes_down += _volume(messages)
        usable, spare = 0, len(messages) - quorum  # so many may fail, or waiting for others is in vain
        arrivals = self._delivery.arrivals(messages, lambda: usable < enough and spare >= 0, lambda: quorum - usable)
        del messages
        for site, question, answer in arrivals:
            outcome = self._judged(site, question, answer, read)
            usable += outcome.reply is not None
            spare -= outcome.reply is None and not outcome.values
            yield site, outcome

    def _silence(self, site: Site) -> Outcome[R]:
        if name := self._delivery.awaits_approval(site):
            return Outcome(failure="waits for its operator's approval", site=name)
        away = self._delivery.is_away(site)
        return Outcome(failure="is away" if away else f"did not answer within round-timeout = {self.timeout:g} s")

    def _judged(self, site: Site, question: Message, answer: Message, read: Read[R]) -> Outcome[R]:
        """Parse and check a reply."""
        if answer.has_error():
            return Outcome(failure=f"failed: {printable(answer.error.reason or 'it gave no reason', LONGEST)}")
        if refusal := instead(answer, "error"):
            name, text = (printable(str(refusal.get(key, "")), LONGEST) for key in ("site", "message"))
            return Outcome(failure=f"refused: {text or 'it gave no reason'}", site=name)
        try:
            if (node := answer.metadata.src_node_id) != site.node_id:
                raise BadReplyError(f"it claims to be from node {node}, but node {site.node_id} was asked")
            reply = read(site, question, answer)
        except BadValuesError as error:
            return Outcome(failure=f"{error}. {self.advice}, or look at that site's data", values=True)
        except BadReplyError as error:
            return Outcome(failure=f"gave a bad reply: {error}")
        self.bytes_up += _volume([answer])
        return Outcome(reply)


_place = attrgetter("index")


def _volume(messages: Sequence[Message]) -> int:
    """Return the bytes of the vectors in messages, which may share records."""
    total, last, bytes_of_last = 0, None, 0
    for message in messages:
        content = message.content
        arrays = record_in(content, SUM if SUM in content else "arrays", ArrayRecord)
        if arrays is not last:
            last, bytes_of_last = arrays, size(arrays)
        total += bytes_of_last
    return total
