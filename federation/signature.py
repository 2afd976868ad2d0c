"""A site's signature at the end of a page, in OpenSSH's format: whoever has the public key can check it.

A site signs a file with the key that it is registered with, a key of OpenSSH, so ``ssh-keygen -Y verify`` checks it
without this app. The signature stands in a comment behind the page's last line and covers all bytes before it; what is
signed begins with OpenSSH's own mark and a namespace, so it cannot pass for a seal of an answer, nor a seal for it.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from edelweiss.federation.seals import key_hash

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

NAMESPACE = b"edelweiss-audit"
MAGIC, HASH = b"SSHSIG", b"sha512"
BEGIN, END = b"-----BEGIN SSH SIGNATURE-----\n", b"-----END SSH SIGNATURE-----\n"
OPEN, CLOSE = b"<!--\n", b"-->\n"
WIDTH = 70  # characters of a line, as OpenSSH writes them
CURVES: dict[str, hashes.HashAlgorithm] = {
    "secp256r1": hashes.SHA256(),
    "secp384r1": hashes.SHA384(),
    "secp521r1": hashes.SHA512(),
}
"""The hash that OpenSSH signs with, by curve."""


class SignatureError(ValueError):
    """A page whose signature is missing or wrong."""


def signed(page: bytes, key: EllipticCurvePrivateKey) -> bytes:
    """Return a page with its signature in a comment behind it; the page ends with a line's end."""
    name, blob = _public(key.public_key())
    r, s = decode_dss_signature(key.sign(_statement(page), ECDSA(CURVES[key.curve.name])))
    signature = _string(name) + _string(_number(r) + _number(s))
    data = MAGIC + (1).to_bytes(4, "big") + b"".join(map(_string, (blob, NAMESPACE, b"", HASH, signature)))
    text = b64encode(data)
    lines = b"".join(text[i : i + WIDTH] + b"\n" for i in range(0, len(text), WIDTH))
    return page + OPEN + BEGIN + lines + END + CLOSE


def verified(file: bytes, key: str) -> bytes:
    """Return the page in a signed file without its signature.

    Parameters
    ----------
    file : bytes
        As `signed` returned it; anything else, a byte more at its end too, is refused.
    key : str
        The `key_hash` of the site's public key.

    Raises
    ------
    SignatureError
        If the file has no signature, another key has signed it, or it was changed.
    """
    page, found, rest = file.rpartition(OPEN + BEGIN)
    if not found:
        raise SignatureError("it has no signature")
    try:
        public, number = _read(rest)
    except (ValueError, NotImplementedError, UnsupportedAlgorithm):  # of a curve's points some are not implemented
        raise SignatureError("its signature cannot be read, so it was changed") from None
    if (own := key_hash(public)) != key:
        raise SignatureError(f"another key has signed it, SHA-256 {own}")
    try:
        public.verify(number, _statement(page), ECDSA(CURVES[public.curve.name]))
    except InvalidSignature:
        raise SignatureError("it was changed after it was signed") from None
    return page


def _read(rest: bytes) -> tuple[EllipticCurvePublicKey, bytes]:
    """Return the key and the signature (DER) of what follows `BEGIN`; the one text that `signed` writes for them."""
    text = rest.removesuffix(END + CLOSE)
    data = b64decode(text.replace(b"\n", b""), validate=True)
    wrapped = b64encode(data)
    lines = b"".join(wrapped[i : i + WIDTH] + b"\n" for i in range(0, len(wrapped), WIDTH))
    if rest != lines + END + CLOSE or data[:10] != MAGIC + (1).to_bytes(4, "big"):
        raise ValueError("another text")
    blob, namespace, reserved, hashed, signature = _strings(data[10:], 5)
    name, numbers = _strings(signature, 2)
    r, s = (int.from_bytes(each, "big", signed=True) for each in _strings(numbers, 2))
    public: Any = load_ssh_public_key(name + b" " + b64encode(blob))
    if (namespace, reserved, hashed) != (NAMESPACE, b"", HASH) or not isinstance(public, EllipticCurvePublicKey):
        raise ValueError("of something else")
    if (name, blob) != _public(public):
        raise ValueError("another encoding of the key")
    if r < 1 or s < 1 or numbers != _number(r) + _number(s) or public.curve.name not in CURVES:
        raise ValueError("other numbers")
    return public, encode_dss_signature(r, s)


def _public(key: EllipticCurvePublicKey) -> tuple[bytes, bytes]:
    """Return the name and the bytes of a public key as OpenSSH has them."""
    name, text = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[:2]
    return name, b64decode(text)


def _statement(page: bytes) -> bytes:
    """Return what is signed of a page."""
    return MAGIC + b"".join(map(_string, (NAMESPACE, b"", HASH, hashlib.sha512(page).digest())))


def _string(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _strings(data: bytes, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        size = int.from_bytes(data[:4], "big")
        if len(data) < 4 + size:
            raise ValueError("cut off")
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    if data:
        raise ValueError("more than that")
    return found


def _number(value: int) -> bytes:
    """Return a whole number above 0 as OpenSSH writes it: signed, in as few bytes as possible."""
    return _string(value.to_bytes(value.bit_length() // 8 + 1, "big"))
