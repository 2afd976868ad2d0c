"""The hospitals that a SuperLink knows."""

from __future__ import annotations

import ssl
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from edelweiss.common.files import reason

if TYPE_CHECKING:
    from edelweiss.lab.commands.submit import Connection

OLD = 3.0  # seconds after which the SuperLink is asked again


@dataclass
class SuperLink:
    """A SuperLink and the names of its hospitals, by their public keys in a folder (NAME.pub)."""

    connection: Connection
    names: str = ""
    _nodes: list[dict[str, Any]] = field(default_factory=list, init=False)
    _problem: str = field(default="", init=False)
    _asked: float = field(default=-1e9, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def nodes(self) -> tuple[list[dict[str, Any]], str]:
        """Return each node's ``node``, ``name``, ``online`` and ``since``, and why the SuperLink does not answer."""
        with self._lock:
            if time.monotonic() - self._asked > OLD:
                try:
                    self._nodes, self._problem = self._ask(), ""
                except Exception as error:  # of httpx, ssl or flwr: a page shows it
                    self._problem = f"The SuperLink at {self.connection.address} does not answer: {error}"
                self._asked = time.monotonic()
            return self._nodes, self._problem

    def _ask(self) -> list[dict[str, Any]]:
        from flwr.proto.control_pb2 import ListNodesRequest
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        own, scheme, verify = self.connection, "http", False
        context: ssl.SSLContext | bool = verify
        if own.root_certificates:
            scheme, context = "https", ssl.create_default_context(cafile=own.root_certificates)
            if own.certificate:
                context.load_cert_chain(own.certificate, own.key or None)
        client = ControlHttpClient(
            f"{scheme}://{own.address}",
            verify=context,
            timeout=5,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="edelweiss dashboard")],
        )
        try:
            nodes = client.ListNodes(ListNodesRequest()).nodes_info
        finally:
            client.close()
        names = self._by_key()
        found = []
        for node in nodes:
            online = node.status == "online"
            since = node.last_activated_at if online else (node.last_deactivated_at or node.registered_at)
            name = names.get(node.public_key.strip()) or node.name
            found.append({"node": str(node.node_id), "name": name, "online": online, "since": since})
        return found

    def _by_key(self) -> dict[bytes, str]:
        found = {}
        for file in sorted(Path(self.names).expanduser().glob("*.pub")) if self.names else ():
            try:
                key = load_ssh_public_key(file.read_bytes())
            except (OSError, ValueError) as error:
                self._problem = f"{file} is no public key: {reason(error)}"
                continue
            found[key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).strip()] = file.stem
        return found
