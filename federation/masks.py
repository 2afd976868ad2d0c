"""Masks of secure aggregation: each pair of sites adds and subtracts the same pseudorandom numbers.

Once for each ticket a site makes a key pair and signs its public half, `KeyShare`. From all shares follow a secret for
each pair of sites, and from it a chain of keys, one for each exchange::

    κ_ij ← HKDF(X25519(i, j), salt = SHA-256 of all shares, info = "pair" ‖ both names)
    k_ij ← HKDF-Expand(κ_ij, "mask" ‖ e)
    u_i  = x_i + Σ_{j>i} AES-256-CTR(k_ij) - Σ_{j<i} AES-256-CTR(k_ij)   mod 2^64
    κ_ij ← HKDF-Expand(κ_ij, "step" ‖ e)

where e is the exchange: its place in the run, the whole question, and what is summed. So masks cancel only in the sum
over all sites that were asked the same, and a key that is stored opens nothing earlier.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from edelweiss.common import FieldError
from edelweiss.federation.seals import SIGNATURE, hash_of, joined, key_hash

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from edelweiss.federation.sums import Integers
    from edelweiss.federation.ticket import Ticket

KEYS, PAIR, MASK, STEP = (f"edelweiss/masks/{what}/1" for what in ("keys", "pair", "mask", "step"))
SHARE = "share"  # the record of an answer that has a site's key, and what is in it
NONCE = 32  # bytes
CHUNK = 2**17  # numbers of a mask at a time: they fit into the cache


class MaskError(FieldError):
    """Keys that masks cannot be made of."""


@dataclass(frozen=True)
class KeyShare:
    """What a site tells the others: the public half of a key made for one ticket, signed."""

    name: str  # the site's, in the ticket
    key: str  # its public key (SubjectPublicKeyInfo), this and what follows in hexadecimal digits
    point: str  # of X25519
    nonce: str
    signature: str

    @classmethod
    def made(cls, ticket: bytes, name: str, key: EllipticCurvePrivateKey) -> tuple[bytes, KeyShare]:
        """Make a key pair for the ticket with this hash; return its private half and the share."""
        private, nonce = X25519PrivateKey.generate(), secrets.token_bytes(NONCE)
        point = private.public_key().public_bytes_raw()
        der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        signature = key.sign(_statement(ticket, name, point, nonce), SIGNATURE)
        return private.private_bytes_raw(), cls(name, der.hex(), point.hex(), nonce.hex(), signature.hex())

    def pack(self) -> bytes:
        """Return it as it is sent."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def signed(cls, data: bytes, ticket: Ticket, ticket_hash: bytes) -> KeyShare:
        """Read a share that a site of the ticket has signed.

        Raises
        ------
        MaskError
            If it is none.
        """
        try:
            share = cls(**json.loads(data))
            public: Any = load_der_public_key(bytes.fromhex(share.key))
            if not isinstance(public, EllipticCurvePublicKey) or share.pack() != data:
                raise ValueError
            said = _statement(ticket_hash, share.name, bytes.fromhex(share.point), bytes.fromhex(share.nonce))
            public.verify(bytes.fromhex(share.signature), said, SIGNATURE)
        except (ValueError, TypeError, AttributeError, InvalidSignature):
            raise MaskError("a key of the exchange is signed by nobody, or for another run", key="shares") from None
        if ticket.sites.get(share.name) != key_hash(public):
            raise MaskError(f"a key in the name of {share.name[:100]!r} is not of that site", key="shares")
        return share


def _statement(ticket: bytes, name: str, point: bytes, nonce: bytes) -> bytes:
    return joined(KEYS, ticket, name, point, nonce)


@dataclass(frozen=True)
class Chains:
    """A site's chains of keys with all others, at one exchange."""

    own: str  # this site's name
    keys: Mapping[str, bytes]  # κ of each other site, by its name

    @classmethod
    def agreed(cls, private: bytes, own: KeyShare, shares: Sequence[KeyShare]) -> Chains:
        """Return the chains that follow from all sites' shares, this site's among them.

        Raises
        ------
        MaskError
            If this site's is not among them as it was made, one is there twice, or has a key of low order.
        """
        if own not in shares:
            raise MaskError("the keys of the exchange have another than this site made", key="shares")
        if len({share.name for share in shares}) < len(shares) or len(
            {bytes.fromhex(share.point) for share in shares}
        ) < len(shares):
            raise MaskError("the keys of the exchange have one twice", key="shares")
        salt, secret = hashlib.sha256(joined(*sorted(share.pack() for share in shares))).digest(), {}
        for share in shares:
            if share.name != own.name:
                try:
                    point = X25519PublicKey.from_public_bytes(bytes.fromhex(share.point))
                    found = X25519PrivateKey.from_private_bytes(private).exchange(point)
                except ValueError:
                    raise MaskError(f"the key of site {share.name!r} has a low order", key="shares") from None
                info = joined(PAIR, *sorted((own.name, share.name)))
                secret[share.name] = HKDF(SHA256(), 32, salt, info).derive(found)
        return cls(own.name, secret)

    def mask(self, integers: Integers, exchange: bytes) -> Integers:
        """Add the masks of an exchange to a vector, in place, and return it."""
        nothing = bytes(8 * CHUNK)
        for peer, chain in self.keys.items():
            key = HKDFExpand(SHA256(), 32, joined(MASK, exchange)).derive(chain)
            stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
            add = np.add if self.own < peer else np.subtract
            for at in range(0, len(integers), CHUNK):
                part = integers[at : at + CHUNK]
                add(part, np.frombuffer(stream.update(nothing[: 8 * len(part)]), "<u8"), out=part)
        return integers

    def stepped(self, exchange: bytes) -> Chains:
        """Return the chains of the next exchange."""
        info = joined(STEP, exchange)
        return Chains(self.own, {peer: HKDFExpand(SHA256(), 32, info).derive(key) for peer, key in self.keys.items()})


def exchange_of(place: int, question: bytes, layout: bytes) -> bytes:
    """Return e: the place in the run, the hash of the question, and that of what is summed."""
    return hash_of(place, question, layout)
