"""The ways to tell somebody: a program, a webhook, an e-mail. None takes longer than `DEADLINE` or logs a secret.

A run's text reaches no shell, no header and no address: it is a program's input, a value in JSON, an e-mail's body.
"""

from __future__ import annotations

import json
import os
import signal
import smtplib
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from functools import partial
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from edelweiss.common.files import read_file, reason

DEADLINE = 30.0  # seconds
SECRET = 4096  # bytes of a file with one
TOKEN, PASSWORD = "EDELWEISS_WEBHOOK_TOKEN", "EDELWEISS_SMTP_PASSWORD"
SUBJECTS = {
    "waits": "a run waits for your decision",
    "begins": "a run that you approved in advance",
    "ends": "a run has ended",
    "refused": "a run was refused",
    "budget": "little is left of the privacy budget",
    "lost": "the connection to the coordinator",
    "test": "a test",
}

Settings = Mapping[str, Any]
"""The keys of `config.notify.Notify`, and ``site``, the site's name."""


@dataclass(frozen=True)
class Notice:
    """What is told: a sentence about one event; no patient data."""

    event: str
    run: str  # Flower's number; empty: it is about no run
    text: str
    at: float  # seconds since 1970


class UntoldError(Exception):
    """It was not told, so it may be tried again; the text holds no secret."""


class UnsureError(UntoldError):
    """Perhaps it was told: nobody is told twice, so it is not tried again."""


class LateError(TimeoutError):
    """It took longer than `DEADLINE`."""


def ways_in(settings: Settings) -> dict[str, Callable[[Notice], None]]:
    """Return the ways that the operator has chosen, by name; each raises `UntoldError` when it fails."""
    found = {"command": _command, "webhook": _webhook, "mail-to": _mail}
    return {name: partial(way, settings) for name, way in found.items() if settings.get(name)}


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise LateError if the block takes longer, however slowly another machine answers; for the main thread."""

    def late(*_: object) -> None:
        raise LateError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _secret(file: str, variable: str) -> str:
    """Return a secret of a file, if one is named, else of the environment."""
    if not file:
        return os.environ.get(variable, "")
    try:
        text = read_file(file, SECRET).decode().strip()
    except (OSError, ValueError) as error:
        raise UntoldError(f"{file} cannot be read: {reason(error)}") from None
    if not text.isprintable():
        raise UntoldError(f"{file} must have one line")
    return text


def _command(settings: Settings, notice: Notice) -> None:
    """Start the operator's program; what it prints is discarded."""
    words = settings["command"]
    own = {"EDELWEISS_EVENT": notice.event, "EDELWEISS_RUN": notice.run, "EDELWEISS_SITE": settings["site"]}
    others = {name: value for name, value in os.environ.items() if name not in (TOKEN, PASSWORD)}
    nowhere = subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            words, env=others | own, start_new_session=True, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere
        )
    except OSError as error:
        raise UntoldError(f"{words[0]} cannot be started: {reason(error)}") from None
    try:
        process.communicate(f"{notice.text}\n".encode(), timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise UnsureError(f"{words[0]} took longer than {DEADLINE:.0f} s") from None
    if process.returncode:
        raise UntoldError(f"{words[0]} ended with {process.returncode}")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows none: the operator has chosen who is told, and who gets the token."""

    def redirect_request(self, *_: Any) -> None:
        """Return none."""


def _webhook(settings: Settings, notice: Notice) -> None:
    """Post JSON."""
    address, token = settings["webhook"], _secret(settings["webhook-token-file"], TOKEN)
    if address.startswith("/"):
        file, address = address, _secret(address, "")
        if urlsplit(address).scheme not in ("https", "http") or "@" in urlsplit(address).netloc or " " in address:
            raise UntoldError(f"{file} must have https://HOST/... and nothing else")
    said = {"text": notice.text, "event": notice.event, "run": notice.run, "site": settings["site"]}
    said["time"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(notice.at))
    headers = {"Content-Type": "application/json", "User-Agent": "Edelweiss"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    name = urlsplit(address).hostname
    try:
        request = urllib.request.Request(address, json.dumps(said).encode(), headers, method="POST")
        with within(DEADLINE), urllib.request.build_opener(_NoRedirects).open(request, timeout=DEADLINE):
            pass
    except HTTPError as error:
        error.close()
        more = ", another address, which is not followed: name it" if 300 <= error.code < 400 else ""
        raise UntoldError(f"{name} answers {error.code}{more}") from None
    except URLError as error:  # nothing was sent
        raise UntoldError(f"{name} cannot be reached: {_why(error.reason)}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise UnsureError(f"{name} has not answered: {_why(error)}") from None


def _mail(settings: Settings, notice: Notice) -> None:
    """Send an e-mail."""
    host, _, port = settings["smtp"].rpartition(":")
    host, user, tls = host.strip("[]"), settings["smtp-user"], settings["smtp-tls"]
    password = _secret(settings["smtp-password-file"], PASSWORD) if user else ""
    sender, domain = settings["mail-from"], settings["mail-from"].rpartition("@")[2]
    message = EmailMessage()
    message["From"], message["To"] = sender, ", ".join(settings["mail-to"])
    message["Subject"] = f"Edelweiss{', ' * bool(settings['site'])}{settings['site']}: {SUBJECTS[notice.event]}"
    message["Date"], message["Message-ID"] = formatdate(notice.at), make_msgid(domain=domain)
    message["Auto-Submitted"] = "auto-generated"  # so that no absence is answered
    message.set_content(f"{notice.text}\n")
    sent = False
    try:
        with within(DEADLINE):
            trust = ssl.create_default_context()
            line = (
                smtplib.SMTP_SSL(host, int(port), domain, timeout=DEADLINE, context=trust)
                if tls == "tls"
                else smtplib.SMTP(host, int(port), domain, timeout=DEADLINE)
            )
            try:
                if tls == "starttls":
                    line.starttls(context=trust)
                if user:
                    line.login(user, password)
                sent = True
                refused = line.sendmail(sender, settings["mail-to"], message.as_bytes())
            finally:
                line.close()
    except smtplib.SMTPException as error:
        code = getattr(error, "smtp_code", None)
        text = f"answers {code}" if code else f"does not take it ({type(error).__name__})"
        raise UntoldError(f"{host} {text}") from None
    except (OSError, ValueError) as error:
        kind = UnsureError if sent else UntoldError
        raise kind(f"{host} {'has not answered' if sent else 'cannot be reached'}: {_why(error)}") from None
    if refused:
        raise UnsureError(f"{host} refused {', '.join(refused)}")


def _why(error: object) -> str:
    """Return an error in words that have neither an address nor a secret."""
    if isinstance(error, LateError | TimeoutError):
        return f"it took longer than {DEADLINE:.0f} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason})"
    return getattr(error, "strerror", None) or type(error).__name__
