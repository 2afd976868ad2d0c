"""``python -m client_app join``: the site as one process, which stays.

It asks the coordinator for work, hands each message to the ClientApp of this installation, in this process, and sends
the answer. So data, network and GPU stay loaded from one message to the next, and no code of a run is ever executed.
"""

from __future__ import annotations

import gc
import logging
import signal
import threading
import time
import tomllib
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from client_app.fleet import ENDED, Fleet, connected
from config.errors import explain
from config.node import SiteConfig
from keys import ConfigError, Value, unknown

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from flwr.app import Context, Message

log = logging.getLogger("edelweiss")

SOON, GROWTH, LONGEST = 0.02, 1.15, 3.0  # seconds to the first look for work after an answer, and to later ones


def address(text: str) -> str:
    """Return the text if it is HOST:PORT, or empty."""
    host, colon, port = text.rpartition(":")
    if text and not (host and colon and port.isdecimal() and 0 < int(port) < 2**16):
        raise ValueError("must be HOST:PORT, such as coordinator.example.org:9092")
    return text


Address = Annotated[str, AfterValidator(address)]


class JoinConfig(SiteConfig):
    """What ``join`` is told: by its options, or by the top-level keys of the file that ``--policy`` names."""

    superlink: Address = Field("", description="HOST:PORT of the coordinator")
    root_certificates: str = Field("", description="file of the authority that signed the coordinator's certificate")
    key: str = Field("", description="file of this site's private key, ECDSA, without a passphrase")
    insecure: bool = Field(False, description="no TLS and no key: for tests on one machine")
    health: Address = Field("", description="HOST:PORT at which to answer health checks (gRPC); empty: nowhere")

    @classmethod
    def read(cls, file: str, options: Mapping[str, Value]) -> JoinConfig:
        """Read the file, if one is named; options count more.

        Raises
        ------
        ConfigError
            Listing everything that is wrong.
        """
        values: dict[str, Any] = {}
        if file:
            try:
                values = tomllib.loads(Path(file).expanduser().read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:  # of TOML and of UTF-8, too
                raise ConfigError("policy", [f"{file} cannot be read: {error}"]) from None
            values.pop("policy", None)  # the table, which `client_app.policy` reads
        values |= options
        keys = {f.alias or name: f for name, f in cls.model_fields.items()}
        problems = [unknown("key", key, keys) for key in values if key not in keys]
        if not values.get("superlink"):
            problems.append("superlink is missing: name the coordinator, as in 'coordinator.example.org:9092'")
        if bool(values.get("insecure")) == bool(values.get("root-certificates")):
            problems.append("root-certificates: name the coordinator's ca.crt; without TLS, say insecure instead")
        if values.get("insecure") and values.get("key"):
            problems.append("key: it is of no use with insecure; leave one of them out")
        try:
            config = cls.model_validate({key: value for key, value in values.items() if key in keys})
        except ValidationError as error:
            problems += explain(error)
        if problems:
            raise ConfigError("join", problems)
        return config

    def node_config(self) -> dict[str, Value]:
        """Return what the ClientApp reads."""
        own = {f.alias or name for name, f in SiteConfig.model_fields.items()}
        return {key: value for key, value in self.model_dump(by_alias=True, exclude_defaults=True).items() if key in own}


def read_key(file: str) -> EllipticCurvePrivateKey:
    """Read a private key.

    Raises
    ------
    ConfigError
        When there is none that Flower can use.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(Path(file).expanduser().read_bytes(), None)
    except OSError as error:
        raise ConfigError("join", [f"key: {file} cannot be read: {error.strerror}"]) from None
    except TypeError:  # a passphrase was not given
        mend = f"ssh-keygen -p -N '' -f {file} takes it off"
        raise ConfigError("join", [f"key: {file} has a passphrase, and nobody is there to type it; {mend}"]) from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey):
        mend = "ssh-keygen -t ecdsa -b 384 -N '' makes one"
        raise ConfigError("join", [f"key: {file} is no private ECDSA key in OpenSSH's format; {mend}"])
    return key


def read_certificates(file: str) -> bytes:
    """Read certificates in PEM.

    Raises
    ------
    ConfigError
        When there are none.
    """
    from cryptography.x509 import load_pem_x509_certificates

    try:
        pem = Path(file).expanduser().read_bytes()
        load_pem_x509_certificates(pem)
    except OSError as error:
        raise ConfigError("join", [f"root-certificates: {file} cannot be read: {error.strerror}"]) from None
    except ValueError:
        raise ConfigError("join", [f"root-certificates: {file} holds no certificate in PEM"]) from None
    return pem


class Stop:
    """Whether this process was told to end; it does after the message at hand."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.busy = False

    def listen(self) -> None:
        """End by SIGTERM and by Ctrl-C, which count at once where nothing is at hand."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told)

    def _told(self, *_: object) -> None:
        if self._event.is_set() and self.busy:
            log.warning("told to end again: the message at hand is given up")
            raise SystemExit(1)
        self._event.set()
        if self.busy:
            log.info("told to end: after the message at hand")

    def __bool__(self) -> bool:
        """Return whether to end."""
        return self._event.is_set()

    def wait(self, seconds: float) -> None:
        """Wait; told to end meanwhile, end.

        Raises
        ------
        SystemExit
            When told to.
        """
        if self._event.wait(seconds):
            raise SystemExit(0)


@dataclass
class Joined:
    """A site that has joined: what it knows of the runs that it serves."""

    config: JoinConfig
    contexts: dict[int, Context] = field(default_factory=dict)

    def context(self, fleet: Fleet, run_id: int) -> Context:
        """Return the context of a run; its configuration is asked for once.

        The end of a run is not announced, so the coming of another one frees what was kept for those before it.
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

    def answer_next(self, fleet: Fleet) -> bool:
        """Answer a message, if there is one."""
        try:
            if (message := fleet.receive()) is None:
                return False
            started = time.perf_counter()
            answer = self.answer(fleet, message)
            seconds = time.perf_counter() - started
            fleet.send(answer, seconds)
            log.info("run %d: %s, %.2f s", message.metadata.run_id, described(message), seconds)
        except ENDED as error:
            log.warning("a message was given up, its run has ended or it never came (%s)", type(error).__name__)
        return True

    def answer(self, fleet: Fleet, message: Message) -> Message:
        """Let the ClientApp answer."""
        from flwr.app import Error, Message
        from flwr.common.constant import ErrorCode

        from client_app.app import call

        run_id = message.metadata.run_id
        try:
            context = self.context(fleet, run_id)
        except (ValueError, KeyError) as error:  # a bundle that is none
            log.error("run %d: its bundle cannot be read: %s", run_id, error)
            return Message(Error(ErrorCode.INVALID_FAB, "the run's bundle cannot be read"), reply_to=message)
        answer = call(message, context)
        if message.metadata.message_type == "evaluate":
            free()
        return answer


def described(message: Message) -> str:
    """Say what a message asks for."""
    kind, config = message.metadata.message_type, message.content.config_records.get("config")
    return f"{kind} round {config['round']!s}" if kind == "train" and config and "round" in config else kind


def free() -> None:
    """Give memory back between runs, that of the GPU above all."""
    import torch

    from client_app.site import forget_all

    forget_all()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Acquainted:
    """Whether a coordinator has accepted this site's key before: a file in the state folder."""

    def __init__(self, config: JoinConfig, key: EllipticCurvePrivateKey | None) -> None:
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        public = public_key_to_bytes(key.public_key()) if key else b""
        mark = sha256(public + config.superlink.encode()).hexdigest()[:16]
        self.path = Path(config.state_dir).expanduser() / f"joined-{mark}" if config.state_dir and key else None

    def __call__(self) -> bool:
        """Return whether it has."""
        return self.path is not None and self.path.exists()

    def note(self) -> None:
        """Note that it has."""
        if self.path is not None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.touch()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options: the file, and each key of `JoinConfig`."""
    parser.add_argument("--policy", default="", metavar="SITE.toml", help="file with any of these keys, and with your "
                        "rules in its table [policy]")  # fmt: skip
    for name, f in JoinConfig.model_fields.items():
        key = f.alias or name
        if key == "policy":
            continue
        kind: dict[str, Any] = {"type": int} if f.annotation is int else {}
        kind = {"action": "store_const", "const": True} if f.annotation is bool else {"metavar": "VALUE", **kind}
        parser.add_argument(f"--{key}", help=f.description, **kind)


def main(options: argparse.Namespace) -> int:
    """Join, and stay until told to end; returns 0, or 2 for a configuration that cannot be used."""
    given = {key.replace("_", "-"): value for key, value in vars(options).items() if value is not None}
    given.pop("command", None)
    file = str(given.pop("policy", ""))
    config = JoinConfig.read(file, given | ({"policy": file} if file else {}))
    certificates = read_certificates(config.root_certificates) if config.root_certificates else None
    key = read_key(config.key) if config.key else None
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    log.setLevel(logging.INFO)
    flower = logging.getLogger("flwr")
    flower.handlers.clear()  # its lines have no times
    flower.setLevel(logging.WARNING)

    from federation.fingerprint import fingerprint

    stop, known = Stop(), Acquainted(config, key)
    stop.listen()
    log.info("release %s; joining %s as %s", fingerprint(), config.superlink, config.name or "a part of public data")
    with ExitStack() as stack:
        if config.health:
            from flwr.supercore.grpc_health import run_health_server_grpc_no_tls

            stack.callback(run_health_server_grpc_no_tls(config.health).stop, None)
        site = Joined(config)
        try:
            while not stop:
                with connected(
                    config.superlink, certificates, key, wait=stop.wait, say=log.warning, known=known
                ) as fleet:
                    known.note()
                    log.info("joined, as number %d", fleet.node_id)
                    site.serve(fleet, stop)
        except SystemExit as end:
            log.info("ended")
            return int(end.code or 0)
    log.info("ended")
    return 0
