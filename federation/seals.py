"""Seals: who asked a question and who answered it, signed so that no SuperLink and no other site can say it for them.

The executor (the coordinator's ServerApp) signs each question with its own key; a site signs each answer with the key
that it is registered with. Both signatures cover the run's ticket, the question, and a nonce of this copy of it, so
that none can be used again in another run, round or copy.

A site seals the head of its audit log with each answer. A question brings every site the latest seals of all of them,
its own among these: receipts, by which a log that somebody has cut or rewritten differs from what others hold. Answers
are hashed with a salt that only the coordinator sees, so that receipts tell other sites nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_ssh_public_key,
)

from edelweiss.common import plain, printable
from edelweiss.common.files import TEXT, read_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

    from edelweiss.federation.ticket import Ticket

SEAL = "seal"
"""The record of a message that holds its seal."""

QUESTION, ANSWER = "edelweiss/question/1", "edelweiss/answer/1"
NONCE = 16  # bytes
SIGNATURE = ECDSA(hashes.SHA384())


UNREADABLE = (KeyError, TypeError, ValueError, UnsupportedAlgorithm)
"""What is raised by keys and signatures that are none; an unknown curve has an error of its own."""


def _is_end(line: object, head: object) -> bool:
    """Whether these are a number of lines and the hash of the last; without a log 0 and nothing."""
    return type(line) is int and line >= 0 and isinstance(head, str) and bool(re.fullmatch("|[0-9a-f]{64}", head))


def joined(*parts: bytes | str | int) -> bytes:
    """Encode parts so that no two lists of parts have the same bytes: each with its type and length before it."""
    written = []
    for part in parts:
        kind, data = {bytes: b"b", str: b"s", int: b"i"}[type(part)], part if isinstance(part, bytes) else b""
        if not isinstance(part, bytes):
            data = str(part).encode()
        written.append(kind + len(data).to_bytes(8, "big") + data)
    return b"".join(written)


def hash_of(*parts: bytes | str | int) -> bytes:
    """Return the SHA-256 of `joined` parts."""
    return hashlib.sha256(joined(*parts)).digest()


def arrays_hash(record: ArrayRecord) -> bytes:
    """Return the SHA-256 of a record of vectors: names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name, array in sorted(record.items()):
        head = joined(name, array.dtype, array.stype, repr(tuple(array.shape)), len(array.data))
        digest.update(head)
        digest.update(array.data)
    return digest.digest()


def content_hash(content: RecordDict, *, arrays: Mapping[int, bytes] | None = None) -> bytes:
    """Return the SHA-256 of a message's content without its seal.

    Parameters
    ----------
    content : RecordDict
        Of the message.
    arrays : mapping of int to bytes, optional
        Known hashes of records of vectors, by their ``id``.
    """
    from flwr.app import ArrayRecord  # slow to import, and a signed page of the log does without

    parts: list[bytes | str] = []
    for name, record in sorted(content.items()):
        if name == SEAL:
            continue
        if isinstance(record, ArrayRecord):
            known = (arrays or {}).get(id(record))
            parts += [name, "arrays", known or arrays_hash(record)]
        else:
            parts += [name, type(record).__name__, repr(sorted(record.items()))]
    return hash_of(*parts)


def key_hash(key: EllipticCurvePublicKey) -> str:
    """Return the SHA-256 of a site's public key (SubjectPublicKeyInfo) in hexadecimal digits, as a ticket names it."""
    return hashlib.sha256(_der(key)).hexdigest()


def public_key_hash(file: Path) -> str:
    """Return the `key_hash` of a site's public key in a file, in OpenSSH's format.

    Raises
    ------
    ValueError
        If it holds none.
    """
    try:
        key = load_ssh_public_key(read_file(file, TEXT))
    except (OSError, ValueError, NotImplementedError, UnsupportedAlgorithm):  # a point that is compressed
        key = None
    if not isinstance(key, EllipticCurvePublicKey):
        raise ValueError(f"{file} is no public ECDSA key in OpenSSH's format")
    return key_hash(key)


def _der(key: EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


# ---------------------------------------------------------------------- at a site


@dataclass(frozen=True)
class Question:
    """What a site has to know of a question to check its seal and to seal the answer."""

    ticket: bytes  # the hash of the run's ticket
    content: bytes  # the hash of the question's content
    nonce: bytes
    node: int  # the number that it is addressed to
    signature: bytes = b""
    receipts: tuple[bytes, ...] = ()  # the latest seals of all sites, see `Receipt`

    @classmethod
    def of(cls, message: Message, ticket: bytes) -> Question:
        """Read the seal of a received message, unchecked."""
        from flwr.app import ConfigRecord

        content = message.content
        seal = plain(content, SEAL, ConfigRecord)
        nonce, signature = (part if isinstance(part := seal.get(key), bytes) else b"" for key in ("nonce", "signature"))
        listed = seal.get("receipts")
        receipts = tuple(each for each in listed if isinstance(each, bytes)) if isinstance(listed, list) else ()
        return cls(ticket, content_hash(content), nonce, message.metadata.dst_node_id, signature, receipts)

    def is_by(self, executor: str) -> bool:
        """Whether the executor with this public key (64 hexadecimal digits) signed it."""
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(executor)).verify(self.signature, self._signed)
        except (InvalidSignature, ValueError):
            return False
        return True

    @property
    def _signed(self) -> bytes:
        return joined(QUESTION, self.ticket, self.content, self.node, self.nonce, hash_of(*self.receipts))

    def sealed_by(self, key: Ed25519PrivateKey) -> ConfigRecord:
        """Return the record that seals this question."""
        from flwr.app import ConfigRecord

        seal = {"nonce": self.nonce, "signature": key.sign(self._signed)}
        return ConfigRecord({**seal, "receipts": list(self.receipts)} if self.receipts else {**seal})

    def answered(self, content: RecordDict, key: EllipticCurvePrivateKey, line: int, head: str) -> ConfigRecord:
        """Return the record that seals an answer.

        Parameters
        ----------
        content : RecordDict
            Of the answer.
        key : EllipticCurvePrivateKey
            The site's.
        line, head : int, str
            The number of lines of the site's audit log, and the hash of the last.
        """
        from flwr.app import ConfigRecord

        public, salt = key.public_key(), secrets.token_bytes(NONCE)
        answer = hash_of(salt, content_hash(content))
        signed = self.statement(key_hash(public), answer, line, head)
        signature = key.sign(signed, SIGNATURE)
        return ConfigRecord({"key": _der(public), "salt": salt, "line": line, "head": head, "signature": signature})

    def statement(self, key: str, answer: bytes, line: int, head: str) -> bytes:
        """Return what the site with this key hash signs for an answer with this salted hash."""
        return joined(ANSWER, self.ticket, self.content, key, self.node, self.nonce, answer, line, head)


@dataclass(frozen=True)
class Receipt:
    """A seal of an answer as other sites get it: who signed which head of an audit log, and for which question."""

    key: str  # the site's public key (SubjectPublicKeyInfo), this and other bytes in hexadecimal digits
    content: str
    node: int
    nonce: str
    answer: str
    line: int
    head: str
    signature: str

    def pack(self) -> bytes:
        """Return it as it is sent."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def signed(cls, data: bytes, ticket: Ticket, ticket_hash: bytes) -> tuple[str, Receipt] | None:
        """Return the site's name and its receipt; None for one that no site of the ticket has signed."""
        try:
            receipt = cls(**json.loads(data))
            public: Any = load_der_public_key(bytes.fromhex(receipt.key))
            question = Question(ticket_hash, bytes.fromhex(receipt.content), bytes.fromhex(receipt.nonce), receipt.node)
            name, answer = ticket.name_of(key_hash(public)), bytes.fromhex(receipt.answer)
            said = question.statement(key_hash(public), answer, receipt.line, receipt.head)
            public.verify(bytes.fromhex(receipt.signature), said, SIGNATURE)
        except (*UNREADABLE, AttributeError, RecursionError, InvalidSignature):
            return None
        return (name, receipt) if name is not None and _is_end(receipt.line, receipt.head) else None


# ---------------------------------------------------------------------- at the coordinator


@dataclass
class Seals:
    """The coordinator's side: seals the questions of one run, and checks the seals of answers.

    Attributes
    ----------
    names : dict of int to str
        The site that answers at each node, from its first sealed answer on.
    receipts : dict of str to Receipt
        The latest seal of each site, by its name.
    """

    ticket: Ticket
    ticket_hash: bytes
    key: Ed25519PrivateKey  # the executor's
    names: dict[int, str] = field(default_factory=dict, init=False)
    receipts: dict[str, Receipt] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._latest: tuple[ArrayRecord | None, bytes] = (None, b"")

    def seal(self, message: Message) -> None:
        """Seal a question, with a new nonce; a repeated one anew."""
        content = message.content
        question = Question(
            self.ticket_hash,
            content_hash(content, arrays=self._hashed(content)),
            secrets.token_bytes(NONCE),
            message.metadata.dst_node_id,
            receipts=tuple(receipt.pack() for receipt in self.receipts.values()),
        )
        content[SEAL] = question.sealed_by(self.key)

    def _hashed(self, content: RecordDict) -> dict[int, bytes]:
        """Return the hash of the vectors, which the messages of a phase share."""
        from flwr.app import ArrayRecord

        vectors = content.get("arrays")
        if not isinstance(vectors, ArrayRecord):
            return {}
        if vectors is not self._latest[0]:
            self._latest = (vectors, arrays_hash(vectors))
        return {id(vectors): self._latest[1]}

    def fault(self, question: Message, answer: Message) -> str:
        """Return why an answer counts as none, completing a sentence about it; empty for one that its site sealed.

        The seal is removed from the answer's content.
        """
        from flwr.app import ConfigRecord

        if answer.has_error():
            return f"nobody sealed it ({printable(answer.error.reason or 'an error', 200)})"
        seal = plain(answer.content, SEAL, ConfigRecord)
        answer.content.pop(SEAL, None)
        if not seal:
            return "it has no seal"
        try:
            key, salt, line, head, signature = (seal[name] for name in ("key", "salt", "line", "head", "signature"))
            public: Any = load_der_public_key(key)
            if not isinstance(public, EllipticCurvePublicKey) or not _is_end(line, head):
                return "its seal cannot be read"
            sealed = plain(question.content, SEAL, ConfigRecord)
            asked = Question(
                self.ticket_hash,
                content_hash(question.content, arrays=self._hashed(question.content)),
                sealed["nonce"],
                question.metadata.dst_node_id,
            )
            hashed = hash_of(salt, content_hash(answer.content))
            public.verify(signature, asked.statement(key_hash(public), hashed, line, head), SIGNATURE)
        except UNREADABLE:
            return "its seal cannot be read"
        except InvalidSignature:
            return "its seal is of another answer, question, run or site"
        name = self.ticket.name_of(key_hash(public))
        if name is None:
            return "its seal is of no site of the ticket"
        node = question.metadata.dst_node_id
        if (known := self.names.get(node, name)) != name:
            return f"site {name!r} sealed it, and {known!r} was asked"
        if any(other != node and taken == name for other, taken in self.names.items()):
            return f"site {name!r} answers for two nodes, of which at most one is its own"
        if (before := self.receipts.get(name)) and line < before.line:
            return f"the site's audit log has {line} lines, after {before.line}: its operator must look into it"
        self.names[node] = name
        hexes = (asked.nonce.hex(), hashed.hex(), line, head, signature.hex())
        self.receipts[name] = Receipt(key.hex(), asked.content.hex(), node, *hexes)
        return ""
