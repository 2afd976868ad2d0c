"""A site's connection to its coordinator; with `federation.chunking` and `batching`, all that uses Flower's internals.

`connected` opens Flower's connection (gRPC, TLS, signed calls, heartbeats) and yields a `Fleet`, which receives
messages, sends replies, and reads a run's configuration from its bundle. Nothing of a bundle is executed or written.

The internals are those of flwr 1.39; `tests/client_app/test_fleet.py` lists them.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped,unused-ignore]  # has no types
from flwr.app import Message
from flwr.client.grpc_rere_client.connection import grpc_request_response
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
    from contextlib import AbstractContextManager

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from edelweiss.common import Value

RETRY = (0.2, 1.5, 5.0)  # seconds until a failed call is retried: first, growth, longest
AWAY = 5.0  # seconds that a restarted site waits so that its coordinator notices the restart
TRANSIENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

INVALID_BUNDLE = ErrorCode.INVALID_FAB
"""Error code of the reply if a run's bundle cannot be read."""

ENDED = (RunNotRunningException, ObjectPullError)
"""Errors that end a message but not the connection: its run is over, or its content never arrived."""


class ForgottenError(Exception):
    """The coordinator no longer knows this site."""


@dataclass(frozen=True)
class Fleet:
    """An open connection to the coordinator."""

    node_id: int  # the coordinator's id of this site, constant while its key is registered
    _receive: Callable[[], tuple[Message, Any] | None]
    _send: Callable[[Message, Any, float], tuple[set[str], str]]
    _get_run: Callable[[int], Any]
    _get_fab: Callable[[str, int], Any]
    _pull_object: Callable[[int, str], bytes]
    _push_object: Callable[[int, str, str, bytes], None]
    _confirm: Callable[[int, str], None]

    def receive(self) -> Message | None:
        """Return the next message with its content, or None.

        Raises
        ------
        ENDED
            If the next message is obsolete.
        """
        if (received := self._receive()) is None:
            return None
        envelope, tree = received
        run_id = envelope.metadata.run_id
        contents = pull([part.object_id for part in iterate_object_tree(tree)], partial(self._pull_object, run_id))
        self._confirm(run_id, tree.object_id)
        try:
            message = whole(tree.object_id, contents)
        except (ValueError, LookupError, TypeError):
            message = None
        if not isinstance(message, Message):
            raise ObjectPullError(tree.object_id, "it is no message")
        message.metadata.__dict__["_message_id"] = tree.object_id  # its hash, which its content lacks
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run_id, 1, self.node_id  # of the answer
        return message

    def send(self, answer: Message, seconds: float) -> None:
        """Send a reply, with the seconds that it took.

        Raises
        ------
        ENDED
            If it is obsolete.
        """
        if answer.has_content():
            cut(answer.content)
        with no_object_id_recompute():
            answer.metadata.__dict__["_message_id"] = answer.object_id
            missing, session = self._send(answer, get_object_tree(answer), seconds)
            push_one = partial(self._push_object, answer.metadata.run_id, session)
            push(get_all_nested_objects(answer), push_one, object_ids_to_push=missing)

    def run_config(self, run_id: int) -> dict[str, Value]:
        """Return the run-config: the defaults in the run's bundle, with the changes for this run.

        Raises
        ------
        ValueError
            If the bundle is invalid or not the announced one.
        """
        run = self._get_run(run_id)
        fab = self._get_fab(run.fab_hash, run_id)
        if hashlib.sha256(fab.content).hexdigest() != run.fab_hash:
            raise ValueError("the bundle's hash is not the one that the run announced")
        return run_config_in(fab.content, run.override_config)


@dataclass
class _Line:
    """The state of a connection; see `connected`."""

    address: str
    root_certificates: bytes | None
    key: EllipticCurvePrivateKey | None
    _: KW_ONLY
    wait: Callable[[float], None]
    say: Callable[[str], None]
    known: Callable[[], bool]
    problem: str = ""  # why there is none, as last logged
    open: bool = False
    refused: bool = False  # whether the coordinator has refused this site once

    def connected(self) -> AbstractContextManager[tuple[Any, ...]]:
        """Return Flower's connection."""
        invoker = RetryInvoker(
            retries,
            grpc.RpcError,
            max_tries=None,
            max_time=None,
            on_success=self.back,
            on_backoff=self.note_backoff,
            jitter=None,
            should_giveup=self.hopeless,
            wait_function=self.wait,
        )
        return grpc_request_response(
            self.address,
            self.root_certificates is None,
            invoker,
            root_certificates=self.root_certificates,
            authentication_keys=(self.key, self.key.public_key()) if self.key else None,
        )

    def note_backoff(self, state: Any) -> None:
        """Log why a call that is retried failed, unless it was logged before."""
        refused = _refused(state.exception)
        self.refused = self.refused or refused
        if (text := why(state.exception, self.address, refused=refused, known=self.known())) != self.problem:
            self.problem = text
            self.say(text)

    def back(self, _: Any) -> None:
        """Log that calls succeed again, if a failure was logged."""
        if self.problem:
            self.problem = ""
            self.say("the coordinator answers")

    def hopeless(self, error: Exception) -> bool:
        """Whether a retry is useless; raises the errors that a caller can handle."""
        assert isinstance(error, grpc.RpcError)
        if self.open and error.code() == grpc.StatusCode.PERMISSION_DENIED:  # Flower's code for a run that has ended
            raise RunNotRunningException
        if self.open and error.code() == grpc.StatusCode.UNAUTHENTICATED and "node id" in str(error.details()).lower():
            raise ForgottenError
        return self.open and error.code() not in TRANSIENT


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
    """Open a connection, retrying until the coordinator accepts it; failed calls are repeated.

    Parameters
    ----------
    address : str
        ``HOST:PORT`` of the SuperLink's Fleet API.
    root_certificates : bytes, optional
        The certificate authority of the coordinator's certificate, as PEM; None: no TLS.
    key : EllipticCurvePrivateKey, optional
        The site's identity; None: a new key, which an open SuperLink accepts.
    wait : callable
        Waits for a number of seconds; may raise to end the program.
    say : callable
        Logs in one line why there is no connection, whenever that changes, and that there is one again.
    known : callable
        Whether the coordinator has accepted this key before.

    Raises
    ------
    ForgottenError
        If the coordinator has unregistered the site or lost its registration.
    """
    line = _Line(address, root_certificates, key, wait=wait, say=say, known=known)
    forgotten = False
    with ExitStack() as stack:
        calls = stack.enter_context(line.connected())
        if line.refused:
            stack.close()
            wait(AWAY)
            calls = stack.enter_context(line.connected())
        line.open = True
        try:
            yield Fleet(*calls)  # other errors within the block end it; Flower logs them
        except ForgottenError:
            line.open, forgotten = False, True
    if forgotten:
        raise ForgottenError


def public_half(key: EllipticCurvePrivateKey) -> bytes:
    """Return the public half of a key in Flower's format."""
    return public_key_to_bytes(key.public_key())


def introduced(address: str, root_certificates: bytes, key: EllipticCurvePrivateKey, *, known: bool) -> str:
    """Ask once whether the coordinator accepts this site; return the refusal, or an empty text."""
    refusals: list[str] = []

    def give_up(_: float) -> None:
        raise SystemExit

    try:
        with connected(address, root_certificates, key, wait=give_up, say=refusals.append, known=lambda: known):
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
