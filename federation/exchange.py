"""One exchange with the sites: send, wait for the replies, yield the usable ones, parsed, in the order of the sites."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message

from edelweiss.common import printable, record_in
from edelweiss.federation.delivery import Delivery, named
from edelweiss.federation.errors import BadAnswerError, BadValuesError, DivergedError, RunError, TooFewRepliesError
from edelweiss.federation.wire import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from flwr.serverapp import Grid

    from edelweiss.federation.sites import Site

    Read = Callable[[Site, Message, Message], "R"]
    """Given a site, what it was sent and its reply, returns that parsed; raises BadAnswerError, or BadValuesError."""

R = TypeVar("R")

LONGEST = 500  # characters of a reason that came from elsewhere


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """What came of a message.

    Attributes
    ----------
    reply : R, optional
        The reply, parsed when it came; None where it cannot be used.
    failure : str
        Why it cannot, as the rest of a sentence that names the site.
    site : str
        What a site calls itself that refuses, and has no name yet.
    values : bool
        Whether it is in order but for its values.
    """

    reply: R | None = None
    failure: str = ""
    site: str = ""
    values: bool = False


@dataclass
class Exchange:
    """The exchanges of one run: which replies count, and what messages carried so far.

    Parameters
    ----------
    grid, timeout, heard, say
        See `Delivery`.
    sites : sequence of Site
        All sites, sorted by index.
    min_replies : int
        Fewer usable answers than this stop the run; with as many, it does not wait for sites that are away. 0: every
        site has to answer, but an update that is left out for its values is an answer too, as long as one is usable.
    on_bad_update : str
        ``"skip"`` leaves an update with a NaN or an infinity out; ``"stop"`` ends the run there.
    warn : Callable[[str], None]
        Told about every answer that is left out.
    advice : str
        What to do about an update that is not finite.

    Attributes
    ----------
    by_node : dict of int to Site
        The sites by their address.
    bytes_down, bytes_up : int
        Of all vectors sent to and received from the sites.
    """

    grid: Grid
    timeout: float
    sites: Sequence[Site]
    min_replies: int = 0
    on_bad_update: str = "skip"
    warn: Callable[[str], None] = print
    heard: Callable[[int, int], None] = lambda answered, asked: None
    advice: str = "Lower the step size"
    say: Callable[[str], None] = print
    bytes_down: int = 0
    bytes_up: int = 0
    by_node: dict[int, Site] = field(init=False)

    def __post_init__(self) -> None:
        """Index the sites by their address."""
        self.by_node = {site.node_id: site for site in self.sites}
        self._delivery = Delivery(self.grid, self.timeout, self.by_node, self.heard, self.say)

    def cost(self) -> dict[str, float]:
        """Return what this run has cost so far: bytes-down, bytes-up, seconds-waiting."""
        return {"bytes-down": self.bytes_down, "bytes-up": self.bytes_up, "seconds-waiting": self._delivery.waiting}

    def __call__(
        self,
        messages: Sequence[Message],
        *,
        read: Read[R],
        min_replies: int | None = None,
        first_come: np.random.Generator | None = None,
        wait_for_all: bool = False,
    ) -> Iterator[tuple[Site, R]]:
        """Send the messages and yield the usable replies, sorted by site, each as soon as its turn has come.

        Summing in this order gives the same bits whatever order the replies arrive in; yielding early lets the
        caller fold a reply into a mean and drop it, so that memory does not grow with the number of sites.

        Parameters
        ----------
        messages : sequence of Message
            At most one to each site.
        read : callable
            Parses a reply; raises BadAnswerError for one that cannot be used.
        min_replies : int, optional
            How many usable replies are needed, in place of the run's; then nobody's reply is dropped for being late.
        first_come : numpy.random.Generator, optional
            If given, the exchange ends as soon as ``min_replies`` usable replies are there, unless that is 0, and drops
            later ones. It draws the order in which messages leave; otherwise the last of the sites that share a process
            would never come in time.
        wait_for_all : bool
            Whether sites that are away are waited for, even where enough others have answered.

        Raises
        ------
        RunError
            After the last reply, when too few were usable; at a bad update, if the run is to stop there.
        """
        wanted, asked = self.min_replies if min_replies is None else min_replies, len(messages)
        required = min(wanted, asked) or asked
        # Then it does not wait for those who are away.
        enough = asked if wait_for_all else max(required, min(self.min_replies, asked) or asked)
        failures: dict[str, list[str]] = {}  # names by reason: a mistake is often everybody's
        usable = skipped = 0
        rush = first_come if wanted else None
        if rush is None:
            outcomes = self._in_order(messages, enough, read)
        else:
            outcomes = self._first(messages, required, rush, read)
        del messages  # here and below: a message's vectors live until it has been answered, not until all have been
        for site, outcome in outcomes:
            if outcome.reply is not None:
                usable += 1
                yield site, outcome.reply
                continue
            if outcome.values and self.on_bad_update == "stop":
                text = f'site {site.name!r} {outcome.failure} (stopped because on-bad-update = "stop")'
                raise RunError(text, key="on-bad-update", value="stop", sites=[site.name])
            skipped += outcome.values
            failures.setdefault(outcome.failure, []).append(outcome.site or site.name)
        listed = [f"{named(names)} {reason}" for reason, names in failures.items()]
        for text in listed:
            self.warn(f"{text} [left out]")
        if 2 * skipped > asked:  # not one broken site, then
            raise DivergedError("the run diverges:\n  " + "\n  ".join(listed), sites=chain(*failures.values()))
        if not usable or usable + (0 if wanted else skipped) < required:
            advice = f" (min-replies={usable} would go on without the others)" if usable and min_replies is None else ""
            raise TooFewRepliesError(
                f"{usable} of {asked} sites gave a usable answer, {required} are needed"
                f"{advice}:\n  " + "\n  ".join(listed),
                key="min-replies",
                value=usable,
                allowed=required,
                sites=chain(*failures.values()),
            )
        if usable < asked and rush is None:
            self.say(f"goes on with {usable} of {asked} sites")

    def _in_order(self, messages: Sequence[Message], enough: int, read: Read[R]) -> Iterator[tuple[Site, Outcome[R]]]:
        """Yield every addressed site with what came of its message, in the order of the sites."""
        by_site = {self._delivery.addressee(message): message for message in messages}
        sites = sorted(by_site, key=_place)
        arrivals = self._arrivals([by_site.pop(site) for site in sites], enough, read)
        del messages
        arrived: dict[Site, Outcome[R] | None] = {}
        for site in sites:
            while site not in arrived and (arrival := next(arrivals, None)):
                arrived[arrival[0]] = arrival[1]
            yield site, arrived.pop(site, None) or self._silence(site)

    def _first(
        self, messages: Sequence[Message], enough: int, random: np.random.Generator, read: Read[R]
    ) -> Iterator[tuple[Site, Outcome[R]]]:
        """Yield the sites that replied until there were enough usable replies; if they never are, all sites."""
        messages = [messages[i] for i in random.permutation(len(messages))]
        sites = [self._delivery.addressee(message) for message in messages]
        arrivals = self._arrivals(messages, enough, read)
        del messages
        arrived: dict[Site, Outcome[R] | None] = {}
        usable = 0
        for site, outcome in arrivals:
            arrived[site] = outcome
            usable += outcome.reply is not None
            if usable == enough:
                sites = list(arrived)
                break
        for site in sorted(sites, key=_place):
            yield site, arrived.pop(site, None) or self._silence(site)

    def _arrivals(self, messages: Sequence[Message], enough: int, read: Read[R]) -> Iterator[tuple[Site, Outcome[R]]]:
        """Yield what comes of messages, as it comes; with enough usable ones not for sites that are away."""
        self.bytes_down += _volume(messages)
        usable = 0
        arrivals = self._delivery.arrivals(messages, lambda: usable < enough)
        del messages
        for site, question, answer in arrivals:
            outcome = self._judged(site, question, answer, read)
            usable += outcome.reply is not None
            yield site, outcome

    def _silence(self, site: Site) -> Outcome[R]:
        away = self._delivery.is_away(site)
        return Outcome(failure="is away" if away else f"did not answer within round-timeout = {self.timeout:g} s")

    def _judged(self, site: Site, question: Message, answer: Message, read: Read[R]) -> Outcome[R]:
        """Return a reply, parsed, if it can be used, or why not. What it says has not been looked at before."""
        if answer.has_error():
            return Outcome(failure=f"failed: {printable(answer.error.reason or 'it gave no reason', LONGEST)}")
        if "error" in answer.content and (refusal := record_in(answer.content, "error", ConfigRecord)):
            name, text = (printable(str(refusal.get(key, "")), LONGEST) for key in ("site", "message"))
            return Outcome(failure=f"refused: {text or 'it gave no reason'}", site=name)
        try:
            if (node := answer.metadata.src_node_id) != site.node_id:
                raise BadAnswerError(f"it says that it is from node {node}, and node {site.node_id} was asked")
            reply = read(site, question, answer)
        except BadValuesError as error:
            return Outcome(failure=f"{error}. {self.advice}, or look at that site's data", values=True)
        except BadAnswerError as error:
            return Outcome(failure=f"gave a bad answer: {error}")
        self.bytes_up += _volume([answer])
        return Outcome(reply)


_place = attrgetter("index")


def _volume(messages: Sequence[Message]) -> int:
    """Return the bytes of the vectors in messages, many of which may share a record."""
    total, last, bytes_of_last = 0, None, 0
    for message in messages:
        arrays = record_in(message.content, "arrays", ArrayRecord)
        if arrays is not last:
            last, bytes_of_last = arrays, size(arrays)
        total += bytes_of_last
    return total
