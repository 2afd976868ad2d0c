"""A site's part in secure aggregation: its keys, what it has answered, and the order in which these go to its disk.

A site answers each exchange of a run once, for ever: the answer is masked with keys that only this question has, the
next keys and the answer are on disk, and then it is sent. Asked the same again it sends the same bytes; asked anything
else at that place of the run, it refuses. Where it cannot answer, it sends random numbers: to refuse in the open would
tell something of one site.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import time
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from edelweiss.client_app.errors import RefusedError
from edelweiss.client_app.policy.tickets import identity
from edelweiss.client_app.privacy.ledger import RECENT
from edelweiss.client_app.request import EvaluateRequest, SumsRequest, TrainRequest
from edelweiss.common.files import locked, reason, write_private
from edelweiss.federation.masks import SHARE, Chains, KeyShare, MaskError, exchange_of
from edelweiss.federation.messages import OutgoingReply
from edelweiss.federation.seals import SEAL, content_hash, hash_of, key_hash

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from typing import Any

    from edelweiss.client_app.request import Request
    from edelweiss.client_app.site import OpenSite
    from edelweiss.federation.seals import Question
    from edelweiss.federation.sums import Integers, Layout
    from edelweiss.federation.ticket import Ticket

log = logging.getLogger("edelweiss")

FOLDER, ROSTER, SEAL_FILE = "masks", "roster.json", "masks.seal"
LOST = (
    "this site has no keys for this run: its state was lost or put back from a copy, or the run goes on from before "
    "it. Resume it with a new ticket, which makes new ones"
)


@dataclass(frozen=True)
class _State:
    """What a site's file says of one ticket."""

    private: str = ""  # the private half of its key, until the keys of all are there; this and the others in hex
    share: str = ""  # what it signed
    chains: dict[str, str] = field(default_factory=dict)  # the keys of the next exchange, by peer
    place: int = -1  # of the last answer in the run, see `Masking._place`
    question: str = ""  # its hash
    ends: int = 0  # when the ticket ends, in seconds since 1970
    before: str = (
        ""  # the hash of the state before; what is written is checked against a seal, see `Masking._require_sealed`
    )
    at: float = 0.0  # when it was written, in seconds since 1970


class Masking:
    """A site in a run with secure aggregation.

    Parameters
    ----------
    site : OpenSite
        In the run, whose rules allow it.
    ticket : Ticket
        The run's.
    ticket_hash : bytes
        Of the signed text.
    """

    def __init__(self, site: OpenSite, ticket: Ticket, ticket_hash: bytes) -> None:
        self._ticket, self._hash, self._key = ticket, ticket_hash, identity(site.node.key)
        self._own = ticket.name_of(key_hash(self._key.public_key())) or ""
        self._folder, self._phases = site.records.folder / FOLDER, site.strategy.phases
        self._file = self._folder / f"{ticket.serial}-{ticket_hash.hex()[:16]}"
        records = site.records.folder
        self._seal = Path(site.policy.budget.witness or records.parent) / f"{records.name}-{SEAL_FILE}"
        self._require_roster(site)

    def _require_roster(self, site: OpenSite) -> None:
        """Check that the run's sites are the peers of the rules, and those of the first run."""
        peers, sites = site.policy.peers, self._ticket.sites
        if {**peers, self._own: sites[self._own]} != sites:
            differ = sorted({name for name, key in {*peers.items()} ^ {*sites.items()} if name != self._own})
            raise RefusedError(
                f"the sites of the run's ticket are not this site and the peers of its rules: {', '.join(differ)} "
                "differ"
            )
        write_private(self._folder / ROSTER, json.dumps(sites, sort_keys=True).encode(), once=True)
        if roster(self._folder) != sites:
            raise RefusedError(
                "the run has other sites than the runs before, and the difference of two sums would be about the few "
                "that differ: this site's operator accepts that with `edelweiss-site peers --accept`"
            )

    # ------------------------------------------------------------------ keys

    def offered(self) -> ConfigRecord:
        """Return this site's key for the ticket, made once."""
        with self._locked():
            state, _ = self._read()
            if state is None:
                private, share = KeyShare.made(self._hash, self._own, self._key)
                state = _State(private.hex(), share.pack().decode(), ends=self._ticket.ends)
                self._write(state)
                self._tidy()
            return ConfigRecord({SHARE: state.share.encode()})

    def _opened(self, state: _State, request: SumsRequest) -> _State:
        """Return the state with the keys that follow from those of all sites."""
        try:
            shares = [KeyShare.signed(data, self._ticket, self._hash) for data in request.shares]
            if {share.name for share in shares} != {*self._ticket.sites}:
                raise MaskError("the keys of the exchange are not those of all sites of the ticket", key="shares")
            own = KeyShare.signed(state.share.encode(), self._ticket, self._hash)
            chains = Chains.agreed(bytes.fromhex(state.private), own, shares)
        except MaskError as error:
            raise RefusedError(str(error)) from None
        return replace(state, private="", chains={name: key.hex() for name, key in chains.keys.items()})

    # ------------------------------------------------------------------ answers

    def exchange(self, request: Request | SumsRequest, layout: Layout, content: Mapping[str, Any]) -> MaskedExchange:
        """Begin to answer a question.

        Raises
        ------
        RefusedError
            If this place of the run was answered otherwise, or this site has no keys for it.
        """
        place, question = self._place(request), question_hash(content)
        if isinstance(request, TrainRequest) and request.committed >= request.context.round:
            raise RefusedError("the memory that this round begins with would go, and a repeated one begin without it")
        with self._locked():
            state, answer = self._read()
            if state is None:
                raise RefusedError(LOST)
            if answer is not None and place == state.place and question.hex() == state.question:
                return MaskedExchange(self, place, question, layout, answer)
            self._require_next(state, place)
            if isinstance(request, SumsRequest) and state.private:
                self._write(state := self._opened(state, request))
            if not state.chains:
                raise RefusedError(LOST)
        return MaskedExchange(self, place, question, layout)

    def _place(self, request: Request | SumsRequest) -> int:
        """Number the exchanges of a run: its facts, the phases of its rounds, the final evaluation."""
        if isinstance(request, SumsRequest):
            return 0
        phases, context = len(self._phases) + 1, request.context
        if isinstance(request, EvaluateRequest):
            return (context.round + 1) * phases
        return context.round * phases + self._phases.index(context.phase)

    @staticmethod
    def _require_next(state: _State, place: int) -> None:
        if place <= state.place:
            raise RefusedError(
                "this place of the run is over here, or was asked differently: with secure aggregation each question "
                "is answered once. Resume the run with a new ticket"
            )

    def commit(self, exchange: MaskedExchange, integers: Integers) -> Integers:
        """Mask an answer, write it with the next keys, and return what may now be sent."""
        with self._locked():
            state, answer = self._read()
            if state is None or not state.chains:
                raise RefusedError(LOST)
            if answer is not None and (state.place, state.question) == (exchange.place, exchange.question.hex()):
                return answer  # asked twice at a time
            self._require_next(state, exchange.place)
            chains = Chains(self._own, {name: bytes.fromhex(key) for name, key in state.chains.items()})
            e = exchange_of(exchange.place, exchange.question, exchange.layout.digest)
            masked = chains.mask(integers, e)
            after = {name: key.hex() for name, key in chains.stepped(e).keys.items()}
            state = replace(state, chains=after, place=exchange.place, question=exchange.question.hex())
            self._write(state, masked)
            return masked

    # ------------------------------------------------------------------ the file

    def _locked(self) -> AbstractContextManager[None]:
        """Let one process at a time change the state."""
        return locked(self._folder / "lock")

    def _read(self) -> tuple[_State | None, Integers | None]:
        """Return the state, None without one, and the last answer.

        Raises
        ------
        RefusedError
            If it is damaged, lost, or was put back from a copy.
        """
        try:
            head, _, answer = self._file.read_bytes().partition(b"\n")
            state = _State(**json.loads(head))
        except FileNotFoundError:
            if self._file.name in self._seals():
                raise RefusedError(LOST) from None
            return None, None
        except (OSError, ValueError, TypeError):
            raise RefusedError(LOST) from None
        self._require_sealed(head, state)
        return state, np.frombuffer(answer, "<u8") if answer else None

    def _write(self, state: _State, answer: Integers | None = None) -> None:
        """Write the state that follows the sealed one, and seal it."""
        state = replace(state, before=self._seals().get(self._file.name, {}).get("hash", ""), at=time.time())
        head, data = json.dumps(asdict(state)).encode(), b""
        if answer is not None:
            data = np.ascontiguousarray(answer, "<u8").tobytes()
        write_private(self._file, head + b"\n" + data)
        self._write_seal(head, state)

    def _seals(self) -> dict[str, Any]:
        """Return what the seal says of each ticket's file."""
        try:
            said: dict[str, Any] = json.loads(self._seal.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            raise RefusedError(LOST) from None
        return said

    def _write_seal(self, head: bytes, state: _State) -> None:
        """Say outside the folder which state is the latest, and when the file system saw it: no copy keeps that."""
        lasting = {name: seal for name, seal in self._seals().items() if seal["ends"] > time.time()}
        own = {"hash": sha256(head).hexdigest(), "changed": self._file.stat().st_ctime_ns, "ends": state.ends}
        try:
            write_private(self._seal, json.dumps({**lasting, self._file.name: own}).encode())
        except OSError as error:
            raise RefusedError(f"its seal of secure aggregation cannot be written: {reason(error)}") from None

    def _require_sealed(self, head: bytes, state: _State) -> None:
        """Check that the state is the latest, or the one after it, whose process did not live to seal it."""
        sealed, changed = self._seals().get(self._file.name, {}), self._file.stat().st_ctime_ns
        if (sealed.get("hash"), sealed.get("changed")) == (sha256(head).hexdigest(), changed):
            return
        if sealed.get("hash", "") != state.before or abs(changed / 1e9 - state.at) > RECENT:
            raise RefusedError(LOST)
        self._write_seal(head, state)

    def _tidy(self) -> None:
        """Remove the files of tickets that have ended, for which nothing is answered any more."""
        for file in self._folder.glob("*-*"):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError), file.open("rb") as stream:
                if json.loads(stream.readline())["ends"] < time.time():
                    file.unlink()


@dataclass(frozen=True)
class MaskedExchange:
    """One question that is answered under masks."""

    masking: Masking
    place: int
    question: bytes
    layout: Layout
    answer: Integers | None = None  # as it was sent before

    def again(self) -> OutgoingReply | None:
        """Return what was sent before; None for a new question."""
        return None if self.answer is None else OutgoingReply.summed(self.answer)

    def answered(self, reply: OutgoingReply) -> OutgoingReply:
        """Return a reply under masks."""
        assert reply.integers is not None, "handlers sum in such a run"
        return OutgoingReply.summed(self.masking.commit(self, reply.integers))

    def spoilt(self) -> OutgoingReply:
        """Return random numbers of the same form, after which nobody can read the sum."""
        noise = np.frombuffer(secrets.token_bytes(8 * self.layout.length), "<u8").copy()
        return OutgoingReply.summed(self.masking.commit(self, noise))


def masking_of(site: OpenSite, ticket: Ticket | None, question: Question | None) -> Masking | None:
    """Return what masks a site's answers; None in a run without secure aggregation, and in a simulation.

    Raises
    ------
    RefusedError
        With everything that this site's rules need for it.
    """
    policy = site.policy
    if not site.run.secure_aggregation or site.node.simulated:
        return None
    wrong = []
    if ticket is None or question is None:
        wrong.append("this site takes no tickets, without which nobody says who the sites are: set study-keys")
    if not policy.peers:
        wrong.append("this site pins no other: set peers")
    elif ticket and len(ticket.sites) < policy.fewest_sites:
        wrong.append(f"a sum is over {len(ticket.sites)} sites here, and fewest-sites = {policy.fewest_sites}")
    if policy.compare_patients:
        wrong.append("compare-patients sends hashes of single patients, which are no sums: leave it out")
    if wrong or ticket is None or question is None:
        raise RefusedError(f"secure-aggregation = true: {'; '.join(wrong)}")
    return Masking(site, ticket, question.ticket)


def question_hash(content: Mapping[str, Any]) -> bytes:
    """Return the hash of a question as all sites are asked it: without seal, and whom it is addressed to."""
    common = {}
    for name, part in content.items():
        if isinstance(part, ConfigRecord):
            part = ConfigRecord({key: value for key, value in part.items() if key not in ("site", "name")})
        if name != SEAL:
            common[name] = part
    return hash_of(content_hash(RecordDict(common)))


def roster(folder: Path) -> dict[str, str] | None:
    """Return the sites of the runs so far, each with the hash of its key; None before the first."""
    try:
        found: dict[str, str] = json.loads((folder / ROSTER).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return found
