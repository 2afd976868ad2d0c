"""The certificate that the coordinator's own commands show at the SuperLink's port for jobs.

``edelweiss-superlink`` lets nobody else in. ``edelweiss-flower`` is Flower's command ``flwr`` with the certificate; the
executor and ``edelweiss submit`` show it, too.
"""

from __future__ import annotations

import os
import ssl
import sys
from typing import Any

from edelweiss.common.files import reason

CERTIFICATE, KEY = "EDELWEISS_OPERATOR_CERTIFICATE", "EDELWEISS_OPERATOR_KEY"
"""Environment variables: the files of the operator's certificate and its private key, PEM."""


def show_certificate() -> None:
    """Let Flower's clients in this process show the certificate, if the environment names one. For flwr 1.39.

    Ends the process with one line if there is no such certificate with its key.
    """
    if not (certificate := os.environ.get(CERTIFICATE)):
        return
    key = os.environ.get(KEY)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key)
    except OSError as error:
        given = f"{CERTIFICATE} = {certificate}, {KEY} = {key or 'missing'}"
        sys.exit(f"error: {given}: must be a certificate and its private key, PEM: {reason(error)}")
    from flwr.supercore.protobuf.client import ProtobufClient

    plain = ProtobufClient.__init__

    def showing(
        self: ProtobufClient, base_url: str, *, verify: ssl.SSLContext | bool | str = True, **rest: Any
    ) -> None:
        if verify is not False:
            if not isinstance(verify, ssl.SSLContext):
                verify = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
            verify.load_cert_chain(certificate, key)
        plain(self, base_url, verify=verify, **rest)

    ProtobufClient.__init__ = showing  # type: ignore[method-assign]


def flower() -> None:
    """Run Flower's command line; the command ``edelweiss-flower``."""
    from importlib.metadata import entry_points

    show_certificate()
    next(iter(entry_points(group="console_scripts", name="flwr"))).load()(prog_name="flwr")
