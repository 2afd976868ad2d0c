"""Flower's SuperLink with its doors shut: the command ``edelweiss-superlink``, which takes the same options.

Flower's own takes calls from anybody who speaks TLS, up to 2 GB each, and activates the node of whatever public key a
call names (docs/activate-node.md). Here

- with TLS, a site shows a certificate that the deployment's authority has signed, or there is no connection;
- the certificate, the signature of a call, and the key that the call is about are of one key;
- no call is larger than `LARGEST`;
- with `control.CERTIFICATE` in the environment the port for jobs (8000) takes calls from its holder alone.

A proxy before the SuperLink could ask for certificates; it could not compare them with what is inside a call.

The internals are those of flwr 1.39; `tests/deployment/test_doors.py` tries them.
"""

from __future__ import annotations

import os
import ssl
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc  # type: ignore[import-untyped,unused-ignore]  # has no types
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import load_pem_x509_certificate
from flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor import NodeAuthServerInterceptor
from flwr.superlink.cli import flower_superlink

from edelweiss.server_app.control import CERTIFICATE

LARGEST = 2**25
"""Bytes of a call: Flower cuts arrays into pieces of 5 MB, and a bundle has at most 10."""


class OneKey(NodeAuthServerInterceptor):
    """Flower's check of a call's signature, and that the call is about the key that signed it."""

    def _wrap_method_handler(
        self, method_handler: grpc.RpcMethodHandler, received_public_key: bytes
    ) -> grpc.RpcMethodHandler:
        flowers = super()._wrap_method_handler(method_handler, received_public_key)

        def checked(request: Any, context: grpc.ServicerContext) -> Any:
            named = getattr(request, "public_key", received_public_key)  # of a node that is registered or activated
            shown = context.auth_context().get("x509_pem_cert", [])
            if {named, *map(_key_of, shown)} != {received_public_key}:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "Certificate, signature and node are of different keys")
            return flowers.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(
            checked,
            request_deserializer=flowers.request_deserializer,
            response_serializer=flowers.response_serializer,
        )


def _key_of(certificate: bytes) -> bytes:
    """Return a certificate's public key in Flower's format."""
    public = load_pem_x509_certificate(certificate).public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def main() -> None:
    """Run the SuperLink."""
    module: Any = sys.modules[flower_superlink.__module__]
    flowers = grpc.ssl_server_credentials

    def credentials(pairs: Any, root_certificates: bytes | None = None, **_: Any) -> grpc.ServerCredentials:
        return flowers(pairs, root_certificates=root_certificates, require_client_auth=True)

    grpc.ssl_server_credentials = credentials
    module.NodeAuthServerInterceptor = OneKey
    module.GRPC_MAX_MESSAGE_LENGTH = LARGEST
    if operator := os.environ.get(CERTIFICATE):
        run = partial(module.uvicorn.run, ssl_ca_certs=operator, ssl_cert_reqs=ssl.CERT_REQUIRED)
        module.uvicorn = SimpleNamespace(run=run)
    flower_superlink()
