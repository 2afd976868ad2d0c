"""``study key FILE``: the key of a study, with which its person signs runs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

SUMMARY = "make the key of a study, which signs its runs"
DESCRIPTION = (
    "Make a private key (Ed25519) that signs the runs of a study, see `edelweiss submit --study-key`, and print the "
    "rule for the hospitals that take part. Keep the file off the coordinator's servers."
)


def takes(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("key", choices=["key"], metavar="key", help="what to make")
    parser.add_argument("file", metavar="FILE", help="where; the public half goes beside it, as FILE.pub")


def main(options: argparse.Namespace) -> int:
    """Make a key; returns the exit code."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    public = key.public_key()
    try:
        with open(os.open(options.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        with open(f"{options.file}.pub", "xb") as file:
            file.write(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    except OSError as error:
        mend = ": a key is not replaced, remove it first" if isinstance(error, FileExistsError) else ""
        print(f"error: {error.filename} cannot be written: {error.strerror}{mend}", file=sys.stderr)
        return 1
    print(f"{options.file}: keep it to yourself. Each hospital adds to its table [policy]:")
    print(f'study-keys = ["{public.public_bytes_raw().hex()}"]')
    return 0
