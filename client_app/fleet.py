"""The line from a site to its coordinator; with `federation.pieces` and `parcels` all that touches Flower's inside.

`connected` opens Flower's own connection (gRPC, TLS, a signature on each call, heartbeats) and gives a `Fleet`, which
receives messages with their content, sends answers, and reads a run's configuration out of its bundle. Of the bundle it
reads ``pyproject.toml`` and no more: nothing of it is ever executed or written.

The names come from flwr 1.39; `tests/client_app/test_fleet.py` says which they are.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped,unused-ignore]
from flwr.app import Message
from flwr.client.grpc_rere_client.connection import grpc_request_response
from flwr.common.config import get_fused_config_from_fab
from flwr.common.constant import ErrorCode
from flwr.supercore.error import FlowerError
from flwr.supercore.grpc_health import run_health_server_grpc_no_tls as answer_health_checks
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.retry import RetryInvoker
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity

from federation.pieces import cut, pull, push, whole

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
    from contextlib import AbstractContextManager

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from keys import Value

RETRY = (0.2, 1.5, 5.0)  # seconds to the first try of a call that failed, growth, longest
AWAY = 5.0  # a site that was taken for alive until now stays away so long, for its coordinator to see that it was
TRANSIENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

INVALID_BUNDLE = ErrorCode.INVALID_FAB
"""The code of the error that answers a message of a run whose bundle cannot be read."""

ENDED = (RunNotRunningException, ObjectPullError)
"""What ends a message and not the connection: its run is over, or its content never came."""


class ForgottenError(Exception):
    """The coordinator does not know this site any more."""


@dataclass(frozen=True)
class Fleet:
    """An open connection.

    Attributes
    ----------
    node_id : int
        The coordinator's number for this site; the same as long as its key is registered.
    """

    node_id: int
    _receive: Callable[[], tuple[Message, Any] | None]
    _send: Callable[[Message, Any, float], tuple[set[str], str]]
    _get_run: Callable[[int], Any]
    _get_fab: Callable[[str, int], Any]
    _pull_object: Callable[[int, str], bytes]
    _push_object: Callable[[int, str, str, bytes], None]
    _confirm: Callable[[int, str], None]

    def receive(self) -> Message | None:
        """Return the next message with its content; None if there is none.

        Raises
        ------
        ENDED
            When there is one that nobody waits for any more.
        """
        if (received := self._receive()) is None:
            return None
        envelope, tree = received
        run_id = envelope.metadata.run_id
        contents = pull([part.object_id for part in iterate_object_tree(tree)], partial(self._pull_object, run_id))
        self._confirm(run_id, tree.object_id)
        message = whole(tree.object_id, contents)
        if not isinstance(message, Message):
            raise ObjectPullError(tree.object_id, "it is no message")
        message.metadata.__dict__["_message_id"] = tree.object_id  # its own hash, which is no part of what it holds
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run_id, 1, self.node_id  # of the answer
        return message

    def send(self, answer: Message, seconds: float) -> None:
        """Send an answer; the coordinator is told how many seconds it took.

        Raises
        ------
        ENDED
            When nobody waits for it any more.
        """
        if answer.has_content():
            cut(answer.content)
        with no_object_id_recompute():
            answer.metadata.__dict__["_message_id"] = answer.object_id
            missing, session = self._send(answer, get_object_tree(answer), seconds)
            push_one = partial(self._push_object, answer.metadata.run_id, session)
            push(get_all_nested_objects(answer), push_one, object_ids_to_push=missing)

    def run_config(self, run_id: int) -> dict[str, Value]:
        """Return the run-config: the defaults in the run's bundle, and what was changed by who started it.

        Raises
        ------
        ValueError
            When the bundle is not the one that was announced.
        """
        run = self._get_run(run_id)
        fab = self._get_fab(run.fab_hash, run_id)
        if hashlib.sha256(fab.content).hexdigest() != run.fab_hash:
            raise ValueError("the run's bundle has another hash than the run")
        config: dict[str, Value] = get_fused_config_from_fab(fab.content, run)
        return config


@contextmanager
def connected(
    address: str,
    root_certificates: bytes | None,
    key: EllipticCurvePrivateKey | None,
    *,
    wait: Callable[[float], None],
    say: Callable[[str], None],
    known: Callable[[], bool] = lambda: False,
) -> Iterator[Fleet]:
    """Open a connection, trying until the coordinator accepts it; lost calls are repeated until it is back.

    Parameters
    ----------
    address : str
        ``HOST:PORT`` of the SuperLink's Fleet API.
    root_certificates : bytes, optional
        The authority that signed the coordinator's certificate, as PEM; None: a connection without TLS.
    key : EllipticCurvePrivateKey, optional
        Who this site is; None: a new key, which an open SuperLink takes.
    wait : callable
        Waits so many seconds; may raise to end the program.
    say : callable
        Told in one line why there is no connection, whenever that changes, and when there is one.
    known : callable
        Whether the coordinator has accepted this key before.

    Raises
    ------
    ForgottenError
        When the coordinator has unregistered the site, or has lost what it knew of it.
    """
    problem, open_, refused, forgotten = "", False, False, False

    def told(state: Any) -> None:
        nonlocal problem, refused
        refused = refused or _refused(state.exception)
        if (line := why(state.exception, address, known=known())) != problem:
            problem = line
            say(line)

    def back(_: Any) -> None:
        nonlocal problem
        if problem:
            problem = ""
            say("the coordinator answers")

    def hopeless(error: Exception) -> bool:
        assert isinstance(error, grpc.RpcError)
        if open_ and error.code() == grpc.StatusCode.PERMISSION_DENIED:  # what Flower says of a run that has ended
            raise RunNotRunningException
        if open_ and error.code() == grpc.StatusCode.UNAUTHENTICATED and "node id" in str(error.details()).lower():
            raise ForgottenError
        return open_ and error.code() not in TRANSIENT

    def opened() -> AbstractContextManager[tuple[Any, ...]]:
        invoker = RetryInvoker(
            retries,
            grpc.RpcError,
            max_tries=None,
            max_time=None,
            on_success=back,
            on_backoff=told,
            jitter=None,
            should_giveup=hopeless,
            wait_function=wait,
        )
        return grpc_request_response(
            address,
            root_certificates is None,
            invoker,
            root_certificates=root_certificates,
            authentication_keys=(key, key.public_key()) if key else None,
        )

    with ExitStack() as stack:
        calls = stack.enter_context(opened())
        if refused:
            stack.close()
            wait(AWAY)
            calls = stack.enter_context(opened())
        open_ = True
        try:
            yield Fleet(*calls)  # another error of a call within the block ends it, and is Flower's to log
        except ForgottenError:
            open_, forgotten = False, True
    if forgotten:
        raise ForgottenError


def public_half(key: EllipticCurvePrivateKey) -> bytes:
    """Return the public half of a key, as Flower sends it."""
    return public_key_to_bytes(key.public_key())


def introduced(address: str, root_certificates: bytes, key: EllipticCurvePrivateKey, *, known: bool) -> str:
    """Ask once whether the coordinator accepts this site; returns why not, or nothing."""
    refusals: list[str] = []

    def give_up(_: float) -> None:
        raise SystemExit

    try:
        with connected(address, root_certificates, key, wait=give_up, say=refusals.append, known=lambda: known):
            return ""
    except SystemExit:
        return refusals[-1]


def retries() -> Generator[float, None, None]:
    """Yield the seconds to wait before each next try."""
    wait, growth, longest = RETRY
    while True:
        yield wait
        wait = min(wait * growth, longest)


def _refused(error: Exception | None) -> bool:
    """Whether the coordinator said that it does not accept this site (for now)."""
    return isinstance(error, grpc.RpcError) and FlowerError.from_json(error.details()) is not None


def why(error: Exception | None, address: str, *, known: bool) -> str:
    """Say in one line why a connection failed, and what mends it."""
    if not isinstance(error, grpc.RpcError):
        return f"no connection to {address}: {error}"
    details = str(error.details())
    if FlowerError.from_json(details):
        if known:
            return ("the coordinator takes this site's key to be in use, by another process or by one that was killed "
                    "less than a minute ago; trying on. If it stays so, the key may be unregistered")  # fmt: skip
        return ("this site's key is not registered: give its public half to the coordinator, who enters it with "
                "'flwr supernode register'; trying on")  # fmt: skip
    for pattern, text in FAILURES:
        if re.search(pattern, details, re.IGNORECASE):
            return text.format(address=address, host=address.rpartition(":")[0])
    return f"no connection to {address}: {error.code().name}, {details}"


FAILURES = (
    ("invalid timestamp", "the clocks of site and coordinator differ by more than a few seconds: set them by NTP"),
    ("wrong.?version.?number", "{address} answers without TLS: a coordinator that does is for tests on one machine "
     "only, with --insecure; else the port is wrong"),
    ("hostname verification|peer name .* not in", "the coordinator's certificate is not for the name {host}: connect "
     "by a name that is in it, or let the coordinator issue another one"),
    ("certificate.?verify.?failed|self.?signed|unknown ca", "the coordinator's certificate was not signed by the "
     "authority in root-certificates: get the ca.crt of this coordinator"),
    ("certificate has expired", "the coordinator's certificate has expired: it must issue a new one"),
    ("dns|name resolution|domain name", "the name {host} cannot be resolved: check superlink, and this machine's DNS"),
    ("connection refused", "nobody listens at {address}: the coordinator is not running yet, or the port is wrong"),
    ("timed? ?out|deadline|unreachable|no route", "{address} does not answer: a firewall may be in between"),
    ("socket closed|connection reset|broken pipe|goaway|handshak|recvmsg", "the coordinator ended the connection; if "
     "it stays so, one side uses TLS and the other does not"),
)  # fmt: skip
"""What gRPC says of a connection that fails, as a pattern, and what we say."""
