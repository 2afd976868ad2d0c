"""A site's connection to its coordinator: a client of Flower's Fleet API over gRPC.

`connected` opens it (TLS, with the site's certificate where the coordinator asks for one; signed calls; heartbeats) and
yields a `Fleet`, which receives messages, sends replies, and reads a run's configuration from its bundle. Nothing of a
bundle is executed or written. Flower's own client cannot present a certificate.

The protocol is that of flwr 1.39 and 1.42; `tests/client_app/test_fleet.py` lists what is used of Flower's inside.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import flwr
import grpc  # type: ignore[import-untyped,unused-ignore]  # has no types
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP384R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto, user_config_from_proto
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.error import FlowerError
from flwr.supercore.grpc_health import run_health_server_grpc_no_tls as answer_health_checks
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError, ObjectUnavailableError
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity

from edelweiss.client_app.bundle import run_config_in
from edelweiss.client_app.connection_errors import why
from edelweiss.federation.chunking import cut, pull, push, whole

__all__ = [
    "ENDED",
    "INVALID_BUNDLE",
    "Fleet",
    "ForgottenError",
    "answer_health_checks",
    "connected",
    "introduced",
    "public_half",
]

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from edelweiss.common import Value

RETRY = (0.2, 1.5, 5.0)  # seconds until a failed call is retried: first, growth, longest
AWAY = 5.0  # seconds that a restarted site waits so that its coordinator notices the restart
INTERVAL, BEAT, BEAT_TIMEOUT = 30.0, 20.0, 5.0  # seconds: between heartbeats as promised, and as sent; of one call
LARGEST = 2**25  # bytes of a call in either direction: Flower cuts arrays into pieces of 5 MB
TRANSIENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
RUNTIME = (
    ("flwr-package-name", "flwr"),
    ("flwr-package-version", flwr.__version__),
    ("flwr-component-name", "SuperNode"),
)

INVALID_BUNDLE = ErrorCode.INVALID_FAB
"""Error code of the reply if a run's bundle cannot be read."""

ENDED = (RunNotRunningException, ObjectPullError)
"""Errors that end a message but not the connection: its run is over, or its content never arrived."""


class ForgottenError(Exception):
    """The coordinator no longer knows this site."""


class Line:
    """Signed calls of the Fleet API, repeated until the coordinator answers.

    Parameters
    ----------
    address : str
        ``HOST:PORT``.
    root_certificates : bytes, optional
        The authority of the coordinator's certificate, PEM; None: no TLS.
    key : EllipticCurvePrivateKey
        Signs each call.
    certificate : bytes, optional
        The site's, for its key, PEM.
    wait, say, known
        As in `connected`.
    """

    def __init__(
        self,
        address: str,
        root_certificates: bytes | None,
        key: EllipticCurvePrivateKey,
        certificate: bytes | None,
        *,
        wait: Callable[[float], None],
        say: Callable[[str], None],
        known: Callable[[], bool],
    ) -> None:
        self.address, self.key, self.public = address, key, public_half(key)
        self.wait, self.say, self.known = wait, say, known
        self.problem = ""  # why there is no connection, as last logged
        self.open = False
        self.refused = False  # whether the coordinator has refused this site once
        options = [("grpc.max_send_message_length", LARGEST), ("grpc.max_receive_message_length", LARGEST)]
        if root_certificates is None:
            self.channel = grpc.insecure_channel(address, options)
        else:
            own = (key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),) if certificate else (None,)
            credentials = grpc.ssl_channel_credentials(root_certificates, *own, certificate)
            self.channel = grpc.secure_channel(address, credentials, options)
        self.stub = FleetStub(self.channel)

    def call(self, method: str, request: Any, *, repeat: bool = True, timeout: float | None = None) -> Any:
        """Make a call and return the response.

        Parameters
        ----------
        method : str
            Of the Fleet API.
        request
            Its message.
        repeat : bool
            Whether to repeat it while there is no connection, logging why.
        timeout : float, optional
            Seconds until it fails.

        Raises
        ------
        ENDED, ForgottenError
            If the coordinator says so.
        grpc.RpcError
            If it is useless to repeat it, or not wanted.
        """
        pauses = retries()
        while True:
            try:
                response = getattr(self.stub, method)(request, metadata=self._signed(), timeout=timeout)
            except grpc.RpcError as error:
                if not repeat or self._hopeless(error):
                    raise
                self._note(error)
                self.wait(next(pauses))
            else:
                if self.problem:
                    self.problem = ""
                    self.say("the coordinator answers")
                return response

    def _signed(self) -> tuple[tuple[str, str | bytes], ...]:
        """Return the metadata by which the coordinator knows the site: a signed time."""
        now = datetime.now(UTC).isoformat()
        signature = self.key.sign(now.encode("ascii"), ECDSA(SHA256()))
        own = ("flwr-public-key-bin", self.public), ("flwr-timestamp", now), ("flwr-signature-bin", signature)
        return (*own, *RUNTIME)

    def _note(self, error: grpc.RpcError) -> None:
        """Log why a call failed, unless it was logged before."""
        refused = _refused(error)
        self.refused = self.refused or refused
        if (text := why(error, self.address, refused=refused, known=self.known())) != self.problem:
            self.problem = text
            self.say(text)

    def _hopeless(self, error: grpc.RpcError) -> bool:
        """Whether a retry is useless; raises the errors that a caller can handle."""
        if self.open and error.code() == grpc.StatusCode.PERMISSION_DENIED:  # Flower's code for a run that has ended
            raise RunNotRunningException from None
        if self.open and error.code() == grpc.StatusCode.UNAUTHENTICATED and "node id" in str(error.details()).lower():
            raise ForgottenError from None
        return self.open and error.code() not in TRANSIENT


@dataclass(frozen=True)
class Fleet:
    """An open connection to the coordinator."""

    node_id: int  # the coordinator's id of this site, constant while its key is registered
    _line: Line

    @property
    def _node(self) -> Node:
        return Node(node_id=self.node_id)

    def receive(self) -> Message | None:
        """Return the next message with its content, or None.

        Raises
        ------
        ENDED
            If the next message is obsolete.
        """
        received = self._line.call("PullMessages", PullMessagesRequest(node=self._node))
        if not received.messages_list:
            return None
        run_id, tree = received.messages_list[0].metadata.run_id, received.message_object_trees[0]
        contents = pull([part.object_id for part in iterate_object_tree(tree)], partial(self._pull_object, run_id))
        confirmation = ConfirmMessageReceivedRequest(node=self._node, run_id=run_id, message_object_id=tree.object_id)
        self._line.call("ConfirmMessageReceived", confirmation)
        try:
            message = whole(tree.object_id, contents)
        except (ValueError, LookupError, TypeError):
            message = None
        if not isinstance(message, Message):
            raise ObjectPullError(tree.object_id, "it is no message")
        message.metadata.__dict__["_message_id"] = tree.object_id  # its hash, which its content lacks
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run_id, 1, self.node_id  # of the answer
        return message

    def _pull_object(self, run_id: int, name: str) -> bytes:
        found = self._line.call("PullObject", PullObjectRequest(node=self._node, run_id=run_id, object_id=name))
        if not found.object_found:
            raise ObjectPullError(name, "the object could not be found.")
        if not found.object_available:
            raise ObjectUnavailableError(name)
        content: bytes = found.object_content
        return content

    def send(self, answer: Message) -> None:
        """Send a reply.

        Raises
        ------
        ENDED
            If it is obsolete.
        """
        if answer.has_content():
            cut(answer.content)
        run_id = answer.metadata.run_id
        with no_object_id_recompute():
            answer.metadata.__dict__["_message_id"] = answer.object_id
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(_envelope(answer))],
                message_object_trees=[get_object_tree(answer)],
                clientapp_runtime_list=[0.0],  # how long it took may depend on who was in a batch
            )
            wanted = self._line.call("PushMessages", request)
            push_one = partial(self._push_object, run_id, wanted.session_id)
            push(get_all_nested_objects(answer), push_one, object_ids_to_push=set(wanted.objects_to_push))

    def _push_object(self, run_id: int, session: str, name: str, content: bytes) -> None:
        request = PushObjectRequest(
            node=self._node, run_id=run_id, object_id=name, object_content=content, session_id=session
        )
        if not self._line.call("PushObject", request).stored:
            raise ObjectPushError(name, run_id, session)

    def run_config(self, run_id: int) -> dict[str, Value]:
        """Return the run-config: the defaults in the run's bundle, with the changes for this run.

        Raises
        ------
        ValueError
            If the bundle is invalid or not the announced one.
        """
        run = self._line.call("GetRun", GetRunRequest(node=self._node, run_id=run_id)).run
        fab = self._line.call("GetFab", GetFabRequest(node=self._node, run_id=run_id, hash_str=run.fab_hash)).fab
        if hashlib.sha256(fab.content).hexdigest() != run.fab_hash:
            raise ValueError("the bundle's hash is not the one that the run announced")
        return run_config_in(fab.content, user_config_from_proto(run.override_config))

    def beat(self, ended: threading.Event) -> None:
        """Send heartbeats until it has ended; one that fails is sent again soon."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=INTERVAL)
        pauses = retries()
        pause = BEAT
        while not ended.wait(pause):
            try:
                self._line.call("SendNodeHeartbeat", request, repeat=False, timeout=BEAT_TIMEOUT)
            except grpc.RpcError:
                pause = next(pauses)
            else:
                pause, pauses = BEAT, retries()


def _envelope(message: Message) -> Message:
    """Return a message without its content, which travels as objects."""
    if message.has_error():
        return message
    empty = Message.__new__(Message)
    vars(empty).update(_metadata=message.metadata, _content=RecordDict(), _error=None)
    return empty


@contextmanager
def _opened(line: Line, *, registers: bool) -> Iterator[Fleet]:
    """Activate the site's node, with heartbeats through the block; ``registers``: its key, too, for the block."""
    with ExitStack() as stack:
        stack.callback(line.channel.close)
        if registers:
            line.call("RegisterNode", RegisterNodeFleetRequest(public_key=line.public))
        asked = ActivateNodeRequest(public_key=line.public, heartbeat_interval=INTERVAL)
        fleet, ended = Fleet(line.call("ActivateNode", asked).node_id, line), threading.Event()
        heart = threading.Thread(target=fleet.beat, args=[ended], daemon=True)
        heart.start()
        try:
            yield fleet
        finally:
            ended.set()
            with suppress(grpc.RpcError):
                line.call("DeactivateNode", DeactivateNodeRequest(node_id=fleet.node_id), repeat=False)
                if registers:
                    line.call("UnregisterNode", UnregisterNodeFleetRequest(node_id=fleet.node_id), repeat=False)


@contextmanager
def connected(
    address: str,
    root_certificates: bytes | None,
    key: EllipticCurvePrivateKey | None,
    certificate: bytes | None = None,
    *,
    wait: Callable[[float], None],
    say: Callable[[str], None],
    known: Callable[[], bool] = lambda: False,
) -> Iterator[Fleet]:
    """Open a connection, retrying until the coordinator accepts it; failed calls are repeated.

    Parameters
    ----------
    address : str
        ``HOST:PORT`` of the SuperLink's Fleet API.
    root_certificates : bytes, optional
        The certificate authority of the coordinator's certificate, as PEM; None: no TLS.
    key : EllipticCurvePrivateKey, optional
        The site's identity; None: a new key, which an open SuperLink accepts.
    certificate : bytes, optional
        The site's certificate for that key, PEM, where the coordinator asks for one.
    wait : callable
        Waits for a number of seconds; may raise to end the program.
    say : callable
        Logs in one line why there is no connection, whenever that changes, and that there is one again.
    known : callable
        Whether the coordinator has accepted this key before.

    Raises
    ------
    ForgottenError
        If the coordinator has unregistered the site or lost its registration. Any other error within the block ends it,
        and is logged.
    """
    registers, key = key is None, key or generate_private_key(SECP384R1())

    def line() -> Line:
        return Line(address, root_certificates, key, certificate, wait=wait, say=say, known=known)

    first = line()
    with ExitStack() as stack:
        fleet = stack.enter_context(_opened(first, registers=registers))
        if first.refused:
            stack.close()
            wait(AWAY)
            fleet = stack.enter_context(_opened(line(), registers=registers))
        fleet._line.open = True
        try:
            yield fleet
        except ForgottenError:
            raise
        except Exception as error:  # the caller connects again
            say(f"the connection ended: {type(error).__name__}: {error}")
            wait(AWAY)


def public_half(key: EllipticCurvePrivateKey) -> bytes:
    """Return the public half of a key in Flower's format."""
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def introduced(
    address: str, root_certificates: bytes, key: EllipticCurvePrivateKey, certificate: bytes | None, *, known: bool
) -> str:
    """Ask once whether the coordinator accepts this site; return the refusal, or an empty text."""
    refusals: list[str] = []

    def give_up(_: float) -> None:
        raise SystemExit

    try:
        with connected(
            address, root_certificates, key, certificate, wait=give_up, say=refusals.append, known=lambda: known
        ):
            return ""
    except SystemExit:
        return refusals[-1]


def retries() -> Generator[float, None, None]:
    """Yield the seconds to wait before each retry."""
    wait, growth, longest = RETRY
    while True:
        yield wait
        wait = min(wait * growth, longest)


def _refused(error: Exception | None) -> bool:
    """Whether the coordinator does not accept this site at present."""
    return isinstance(error, grpc.RpcError) and FlowerError.from_json(error.details()) is not None
