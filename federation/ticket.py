"""The ticket of a run: what the study's person signs with the study key, which no server has.

A site that pins study keys takes part in no run without one. The ticket fixes the run-config, the release, the sites,
and the key of the executor that may ask them; it is part of the run-config as the key ``ticket``.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, Annotated, Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from edelweiss.common import FieldError, alike, printable, shorter
from edelweiss.common.files import TEXT, read_file, reason
from edelweiss.common.schema import is_file_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edelweiss.common import Value

LABEL = b"edelweiss/ticket/1\n"
DAYS = 7  # that a ticket lasts, unless said otherwise


class TicketError(FieldError):
    """A ticket that a run cannot use."""


Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def _distinct(sites: dict[str, str]) -> dict[str, str]:
    """Check the roster: names that can be told apart, keys of one site each."""
    if not sites:
        raise ValueError("must name at least one site")
    if wrong := [name for name in sites if not is_file_name(name)]:
        raise ValueError(f"{wrong[0]!r} cannot be a site's name")
    if twice := alike(sites):
        raise ValueError(f"{', '.join(map(repr, twice[0]))} look the same: name one of the sites otherwise")
    if len({*sites.values()}) < len(sites):
        raise ValueError("two sites have the same key: each makes its own")
    return sites


class Ticket(BaseModel):
    """What the study key signs."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: Literal[1] = 1
    serial: int = Field(ge=1, lt=2**63)  # rises from ticket to ticket: microseconds since 1970
    ends: int = Field(ge=1, lt=2**63)  # seconds since 1970; no question is answered later
    release: str = Field(pattern="^[0-9a-f]{12}$")  # of the app and the run's plug-ins
    config: Hash  # see `config_hash`
    sites: Annotated[dict[str, Hash], AfterValidator(_distinct)]  # names, each with the hash of its public key
    executor: Hash  # the public key (Ed25519) that signs the questions

    def name_of(self, key: str) -> str | None:
        """Return the name of the site with this hash of a public key; None for no site of the run."""
        return next((name for name, its in self.sites.items() if its == key), None)

    def sign(self, key: Ed25519PrivateKey) -> str:
        """Return the signed ticket, as the run-config has it."""
        text = json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":")).encode()
        return f"{_text(text)}.{_text(key.sign(LABEL + text))}"


def read(text: str) -> Ticket:
    """Read a signed ticket without checking its signature.

    Raises
    ------
    TicketError
        If it is none.
    """
    try:
        return Ticket.model_validate_json(_bytes(text.partition(".")[0]))
    except ValidationError as error:
        first = error.errors()[0]
        where = printable(".".join(map(str, first["loc"])), 64)
        raise TicketError(f"the ticket cannot be read ({where or 'it'}: {first['msg']})", key="ticket") from None
    except ValueError:
        raise TicketError("the ticket cannot be read", key="ticket") from None


def require_signed(text: str, study_keys: Sequence[str], *, now: float | None = None) -> Ticket:
    """Return a ticket that one of these study keys has signed, and that has not ended.

    Parameters
    ----------
    text : str
        The signed ticket.
    study_keys : sequence of str
        Public keys (Ed25519), of 64 hexadecimal digits each.
    now : float, optional
        Seconds since 1970; default: the present.

    Raises
    ------
    TicketError
        If it is not signed by any of them, or has ended.
    """
    ticket = read(text)
    if not signer(text, study_keys):
        raise TicketError("the ticket is signed by no study key that is pinned here", key="study-keys")
    if (now := time.time() if now is None else now) > ticket.ends:
        ended = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(ticket.ends))
        raise TicketError(f"the ticket has ended ({ended}): submit the run again with a new one", key="ticket")
    return ticket


def signer(text: str, study_keys: Sequence[str]) -> str:
    """Return which of these study keys has signed a ticket; empty for none, or for no ticket."""
    payload, _, signature = text.partition(".")
    try:
        signed = LABEL + _bytes(payload)
    except ValueError:
        return ""
    return next((key for key in study_keys if _verifies(key, signed, signature)), "")


def ticket_hash(text: str) -> bytes:
    """Return the hash of a signed ticket, which all seals of its run cover."""
    return hashlib.sha256(text.encode()).digest()


def config_hash(keys: Mapping[str, Value]) -> str:
    """Return the SHA-256 of a run-config, keys and values without the ticket; 1 and 1.0 are the same."""
    equal = {
        key: float(value) if isinstance(value, int) and float(value) == value else value  # beyond 2^53 some are none
        for key, value in keys.items()
        if key != "ticket"
    }
    return hashlib.sha256(repr(sorted(equal.items())).encode()).hexdigest()


def public_digits(file: str) -> str:
    """Read a public key (Ed25519, PEM) and return its 64 hexadecimal digits.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it holds no such key.
    """
    key = load_pem_public_key(read_file(file, TEXT))
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("no Ed25519 key")
    return key.public_bytes_raw().hex()


def study_key(text: str) -> str:
    """Return a public study key as 64 hexadecimal digits; the text may be the file that has it.

    Raises
    ------
    ValueError
        If it is neither.
    """
    if re.fullmatch("[0-9a-f]{64}", text):
        return text
    try:
        return public_digits(text)
    except (OSError, ValueError):
        raise ValueError(
            "must be the 64 hexadecimal digits that `edelweiss study key` prints, or the file of the public key"
        ) from None


def private_key(file: str) -> Ed25519PrivateKey:
    """Read a private key (Ed25519, PEM, without a passphrase).

    Raises
    ------
    TicketError
        If the file cannot be read, or holds no such key.
    """
    try:
        key = load_pem_private_key(read_file(file, TEXT), None)
    except OSError as error:
        raise TicketError(f"{shorter(file)} cannot be read: {reason(error)}", key="ticket") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise TicketError(f"{shorter(file)} holds no private key that `edelweiss study key` makes", key="ticket")
    return key


def _verifies(key: str, signed: bytes, signature: str) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(_bytes(signature), signed)
    except (InvalidSignature, ValueError):
        return False
    return True


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    """Decode base64; the one encoding that `_text` writes.

    Raises
    ------
    ValueError
        For anything else: otherwise one signed ticket would have several hashes.
    """
    data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _text(data) != text:
        raise ValueError("another encoding")
    return data
