"""The hospitals that a SuperLink knows, and its runs' end."""

from __future__ import annotations

import ssl
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from edelweiss.common.files import reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flwr.supercore.control import ControlHttpClient

    from edelweiss.lab.commands.submit import Connection

OLD = 3.0  # seconds after which the SuperLink is asked again
TIMEOUT = 5.0  # seconds for an answer


@dataclass
class SuperLink:
    """A SuperLink and the names of its hospitals, by their public keys in a folder (NAME.pub)."""

    connection: Connection
    names: str = ""
    _nodes: list[dict[str, Any]] = field(default_factory=list, init=False)
    _problems: list[str] = field(default_factory=list, init=False)
    _asked: float = field(default=-1e9, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def nodes(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return each node's ``node``, ``name``, ``online`` and ``since``, and what is wrong."""
        with self._lock:
            if time.monotonic() - self._asked > OLD:
                self._problems = []
                try:
                    self._nodes = self._ask()
                except Exception as error:  # of httpx, ssl or flwr: a page shows it
                    said = f"The SuperLink at {self.connection.address} does not answer: {error}"
                    self._problems.append(said + ("; what is shown is older" if self._nodes else ""))
                self._asked = time.monotonic()
            return self._nodes, self._problems

    def stop(self, run: int) -> None:
        """Stop a run, which then writes what it has reached.

        Raises
        ------
        Exception
            Of httpx, ssl or flwr: the SuperLink does not answer, or the run has ended.
        """
        from flwr.proto.control_pb2 import StopRunRequest

        with self._client() as client:
            client.StopRun(StopRunRequest(run_id=run))

    @contextmanager
    def _client(self) -> Iterator[ControlHttpClient]:
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
            timeout=TIMEOUT,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="edelweiss dashboard")],
        )
        try:
            yield client
        finally:
            client.close()

    def _ask(self) -> list[dict[str, Any]]:
        from flwr.proto.control_pb2 import ListNodesRequest

        with self._client() as client:
            nodes = client.ListNodes(ListNodesRequest()).nodes_info
        names = self._by_key()
        found = []
        for node in nodes:
            if node.status == "unregistered":  # a former key, or who has left the study
                continue
            online = node.status == "online"
            since = node.last_activated_at if online else (node.last_deactivated_at or node.registered_at)
            name = names.get(node.public_key.strip()) or node.name
            found.append({"node": str(node.node_id), "name": name, "online": online, "since": since})
        return found

    def _by_key(self) -> dict[bytes, str]:
        found: dict[bytes, str] = {}
        folder = Path(self.names).expanduser()
        if self.names and not folder.is_dir():
            self._problems.append(f"{folder} is no folder: --sites names one with each hospital's NAME.pub")
        for file in sorted(folder.glob("*.pub")) if self.names else ():
            try:
                key = load_ssh_public_key(file.read_bytes())
            except (OSError, ValueError, UnsupportedAlgorithm) as error:
                self._problems.append(f"{file} is no public key: {reason(error)}")
                continue
            found[key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).strip()] = file.stem
        return found
