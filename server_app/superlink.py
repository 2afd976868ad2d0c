"""Flower's SuperLink with its doors shut: the command ``edelweiss-superlink``, which takes the same options.

Flower's own takes calls from anybody who speaks TLS, up to 2 GB each, and activates the node of whatever public key a
call names (docs/activate-node.md). Here

- with TLS, a site shows a certificate that the deployment's authority has signed, or there is no connection;
- the certificate, the signature of a call, and the key that the call is about are of one key;
- no call is larger than `LARGEST`;
- the port for jobs (8000) takes calls from the holder of `control.CERTIFICATE` alone.

It does not start with options that leave one of these doors open. A proxy before the SuperLink could ask for
certificates; it could not compare them with what is inside a call.

The internals are those of flwr 1.39; `tests/deployment/test_doors.py` tries them.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc  # type: ignore[import-untyped,unused-ignore]  # has no types
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import load_pem_x509_certificate
from flwr.common.constant import FLWR_INTERNAL_GRPC_CONTROL_API
from flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor import NodeAuthServerInterceptor
from flwr.superlink.cli import flower_superlink

from edelweiss.common import ConfigError
from edelweiss.common.files import reason
from edelweiss.server_app.control import CERTIFICATE

LARGEST = 2**25
"""Bytes of a call: Flower cuts arrays into pieces of 5 MB, and a bundle has at most 10."""


class OneKey(NodeAuthServerInterceptor):
    """Flower's check of a call's signature, and that the call is about the key that signed it."""

    def intercept_service(
        self, continuation: Callable[[Any], Any], handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        """Check the signature; what cannot even be read is none, and no traceback of the SuperLink's."""
        try:
            return super().intercept_service(continuation, handler_call_details)
        except (AttributeError, TypeError, ValueError, UnsupportedAlgorithm):
            return grpc.unary_unary_rpc_method_handler(_unreadable)

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


def _unreadable(_: bytes, context: grpc.ServicerContext) -> None:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "Key, time or signature of the call cannot be read")


def _key_of(certificate: bytes) -> bytes:
    """Return a certificate's public key in Flower's format."""
    public = load_pem_x509_certificate(certificate).public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def open_doors(config: Any) -> list[str]:
    """Return what leaves a door open in a configuration that Flower's command has read."""
    wrong = []
    if config.insecure:
        wrong.append("--insecure: without TLS nobody shows who they are; flower-superlink takes it, for tests")
    if not config.enable_supernode_auth:
        wrong.append("--enable-supernode-auth is missing: every holder of a certificate would register itself")
    if os.environ.get(FLWR_INTERNAL_GRPC_CONTROL_API) == "1":
        wrong.append(f"{FLWR_INTERNAL_GRPC_CONTROL_API}: the port that it opens takes jobs from hospitals; unset it")
    if not (operator := os.environ.get(CERTIFICATE)):
        wrong.append(f"{CERTIFICATE} is missing: name operator.crt, or whoever reaches the port for jobs is let in")
        return wrong
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(operator)
    except OSError as error:
        wrong.append(f"{CERTIFICATE} = {operator} is no certificate in PEM: {reason(error)}")
    return wrong


def main() -> None:
    """Run the SuperLink."""
    module: Any = sys.modules[flower_superlink.__module__]
    flowers, parsed = grpc.ssl_server_credentials, module._parse_superlink_lifespan_config

    def credentials(pairs: Any, root_certificates: bytes | None = None, **_: Any) -> grpc.ServerCredentials:
        return flowers(pairs, root_certificates=root_certificates, require_client_auth=True)

    def closed() -> Any:
        config = parsed()
        if wrong := open_doors(config):
            print(ConfigError("SuperLink's options", wrong), file=sys.stderr)
            sys.exit(2)
        return config

    grpc.ssl_server_credentials = credentials
    module._parse_superlink_lifespan_config = closed
    module.NodeAuthServerInterceptor = OneKey
    module.GRPC_MAX_MESSAGE_LENGTH = LARGEST
    run = partial(module.uvicorn.run, ssl_ca_certs=os.environ.get(CERTIFICATE), ssl_cert_reqs=ssl.CERT_REQUIRED)
    module.uvicorn = SimpleNamespace(run=run)
    flower_superlink()
