"""The site as one long-running process.

It polls the coordinator and answers each message with this installation's ClientApp, in this process. Data, network and
GPU stay loaded between messages, and no code of a run is executed.
"""

from __future__ import annotations

import fcntl
import gc
import logging
import signal
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord

from edelweiss.client_app.connection import read_certificate, read_certificates, read_key, root_problem
from edelweiss.client_app.doubts import doubts
from edelweiss.client_app.fleet import (
    ENDED,
    INVALID_BUNDLE,
    Fleet,
    ForgottenError,
    answer_health_checks,
    connected,
    public_half,
)
from edelweiss.client_app.notify.beside import notices_beside
from edelweiss.client_app.page.beside import Connection, page_beside
from edelweiss.common import ConfigError, record_in
from edelweiss.common.memory import keep_freed_memory
from edelweiss.config.notify import Notify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from flwr.app import Context, Message

    from edelweiss.client_app.connection import JoinConfig

log = logging.getLogger("edelweiss")

SOON, GROWTH, LONGEST = 0.02, 1.15, 3.0  # seconds between polls: first after a reply, growth, longest
FETCHED = 2.0  # seconds until the coordinator has fetched a reply; if the site leaves earlier, it is lost

ANEW = "it was restarted; joining again"  # why a coordinator no longer knows a site without a key
NEW_KEY = (
    "it has unregistered its key, or was set up again. An unregistered key is not accepted again: make another one and "
    "send its public half"
)


class Stop:
    """Whether this process was told to end, which it does after the current message."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.busy = False

    def listen(self) -> None:
        """End on SIGTERM or Ctrl-C: at once if idle, else after the current message."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        if self._event.is_set() and self.busy:
            log.warning("told to end again: the current message is given up")
            raise SystemExit(1)
        self._event.set()
        if self.busy:
            log.info("told to end: after the current message")

    def __bool__(self) -> bool:
        """Return whether to end."""
        return self._event.is_set()

    def wait(self, seconds: float) -> None:
        """Wait.

        Raises
        ------
        SystemExit
            If told to end meanwhile.
        """
        if self._event.wait(seconds):
            raise SystemExit(0)


@dataclass
class Joined:
    """A joined site and the contexts of its runs."""

    config: JoinConfig
    contexts: dict[int, Context] = field(default_factory=dict)

    def context(self, fleet: Fleet, run_id: int) -> Context:
        """Return the context of a run, whose configuration is fetched once.

        The end of a run is not announced, so a new run frees the memory of earlier ones.
        """
        from flwr.app import Context, RecordDict

        if run_id not in self.contexts:
            self.contexts.clear()
            free()
            self.contexts[run_id] = Context(
                run_id=run_id,
                node_id=fleet.node_id,
                node_config=self.config.node_config(),
                state=RecordDict(),
                run_config=fleet.run_config(run_id),
            )
        return self.contexts[run_id]

    def serve(self, fleet: Fleet, stop: Stop) -> None:
        """Answer messages until told to end."""
        pause = SOON
        while not stop:
            stop.busy = True
            try:
                worked = self.answer_next(fleet)
            finally:
                stop.busy = False
            pause = SOON if worked else min(pause * GROWTH, LONGEST)
            if not stop:
                stop.wait(pause)
            elif worked:
                time.sleep(FETCHED)

    def answer_next(self, fleet: Fleet) -> bool:
        """Answer a message, if there is one."""
        try:
            if (message := fleet.receive()) is None:
                return False
            started = time.perf_counter()
            answer = self.answer(fleet, message)
            seconds = time.perf_counter() - started
            fleet.send(answer)
            log.info("run %d: %s, %.2f s", message.metadata.run_id, described(message), seconds)
        except ENDED as error:
            log.warning("a message was dropped: its run has ended or it never arrived (%s)", type(error).__name__)
        return True

    def answer(self, fleet: Fleet, message: Message) -> Message:
        """Let the ClientApp answer."""
        from flwr.app import Error, Message

        from edelweiss.client_app.app import call
        from edelweiss.client_app.audit import Audit

        run_id = message.metadata.run_id
        try:
            context = self.context(fleet, run_id)
        except ValueError as error:  # an invalid bundle
            log.error("run %d: its bundle cannot be read: %s", run_id, error)
            if self.config.state_dir:
                audit = Audit(Path(self.config.state_dir).expanduser(), str(run_id))
                audit.turned_away(message, "the run's bundle cannot be read")
            return Message(Error(INVALID_BUNDLE, "the run's bundle cannot be read"), reply_to=message)
        answer = call(message, context)
        if message.metadata.message_type == "evaluate":
            free()
        return answer


def described(message: Message) -> str:
    """Describe a message."""
    kind, config = message.metadata.message_type, record_in(message.content, "config", ConfigRecord)
    number = config.get("round")
    return f"{kind} round {number}" if kind == "train" and isinstance(number, int) else kind


def free() -> None:
    """Free memory between runs, especially the GPU's."""
    import torch

    from edelweiss.client_app.process_cache import forget_all

    forget_all()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Acquainted:
    """Whether a coordinator has accepted this site's key before: a file in the state folder."""

    def __init__(self, config: JoinConfig, key: EllipticCurvePrivateKey | None) -> None:
        mark = sha256((public_half(key) if key else b"") + config.superlink.encode()).hexdigest()[:16]
        self.path = Path(config.state_dir).expanduser() / f"joined-{mark}" if config.state_dir and key else None

    def __call__(self) -> bool:
        """Return whether the key was accepted before."""
        return self.path is not None and self.path.exists()

    def forget(self) -> None:
        """Record that the key is no longer accepted."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def note(self) -> None:
        """Record that the key was accepted."""
        if self.path is not None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.touch()


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock the state folder for this process.

    Raises
    ------
    ConfigError
        If another process has locked it, or it cannot be written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (folder / "lock").open("w")
    except OSError as error:
        raise ConfigError("join", [f"state-dir: {folder} cannot be written: {error.strerror}"]) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            mend = "end it, or give each site a folder of its own"
            raise ConfigError("join", [f"state-dir: another process has joined with {folder}; {mend}"]) from None
        yield


def say_rules(policy: str) -> None:
    """Log the site's own rules, from this file, so that its operator sees one that a damaged file has lost."""
    from edelweiss.client_app.policy.rules import Policy, PolicyError

    try:
        log.info("rules %s: %s", f"of {policy}" if policy else "without a file", Policy.read(policy).in_words())
    except PolicyError as error:
        log.error("%s", error)


def begin_on_whole_log(folder: Path) -> None:
    """Check the site's audit log before anything is added to it.

    Raises
    ------
    ConfigError
        If it was altered, or is gone.
    """
    from edelweiss.client_app.audit import AuditError, require_whole
    from edelweiss.client_app.policy.advance import damages
    from edelweiss.client_app.policy.records import Records

    records = Records(str(folder))
    for text in damages(records):
        log.error("%s", text)
    try:
        require_whole(folder, has_runs=any(records.readable()))
    except AuditError as error:
        mend = "find out why, then edelweiss-site audit --state-dir ... --acknowledge begins a new one"
        raise ConfigError("join", [f"state-dir: its audit log was altered ({error}): {mend}"]) from None


def join(config: JoinConfig) -> int:
    """Join and serve until told to end; return the exit code.

    Raises
    ------
    ConfigError
        If the process is root, or the key, the certificates or the state folder are unusable.
    """
    from edelweiss.federation.fingerprint import fingerprint

    if problem := root_problem():
        raise ConfigError("join", [problem])
    keep_freed_memory()
    certificates = read_certificates(config.root_certificates) if config.root_certificates else None
    key = read_key(config.key) if config.key and not config.insecure else None
    certificate = read_certificate(config.certificate, key) if key else None
    notify = Notify.read(config.policy)
    stop, known = Stop(), Acquainted(config, key)
    stop.listen()
    log.info("release %s; joining %s as %s", fingerprint(), config.superlink, config.name or "the name of its data")
    if config.data_dir and not config.names_label:
        log.warning("no label: each run chooses the column of your data; set yours, as in label = 'outcome'")
    say_rules(config.policy)
    with ExitStack() as stack:
        if config.state_dir:
            stack.enter_context(alone_in(folder := Path(config.state_dir).expanduser()))
            begin_on_whole_log(folder)
            for doubt in doubts(config):
                log.error("no run begins: %s", doubt)
        if config.health:
            stack.callback(answer_health_checks(config.health).stop, None)
        site = Joined(config)
        noted = Connection(config)
        if config.page:
            stack.enter_context(page_beside(config))
        if notify:
            stack.enter_context(notices_beside(config, notify))
        try:
            while not stop:
                try:
                    with connected(
                        config.superlink, certificates, key, certificate, wait=stop.wait, say=noted.say, known=known
                    ) as fleet:
                        known.note()
                        noted.joined(fleet.node_id)
                        log.info("joined, as number %d", fleet.node_id)
                        site.serve(fleet, stop)
                except ForgottenError:
                    known.forget()
                    log.warning("the coordinator no longer knows this site: %s", NEW_KEY if key else ANEW)
        except SystemExit as end:
            log.info("ended")
            return int(end.code or 0)
    log.info("ended")
    return 0
