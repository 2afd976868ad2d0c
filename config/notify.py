"""``[notify]`` of a site's file: whom it tells of what, besides its log and its page."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from edelweiss.common import ConfigError, shorter, shown, within
from edelweiss.common.files import read_toml, reason
from edelweiss.config.keys import Keys
from edelweiss.config.node import LocalPath

if TYPE_CHECKING:
    from collections.abc import Mapping

Event = Literal["waits", "begins", "ends", "refused", "budget", "lost"]
ALL: list[Event] = ["waits", "begins", "ends", "refused", "budget", "lost"]
LONGEST = 2000  # characters of an address


def local(host: str) -> bool:
    """Whether a host is this machine, so that nobody listens on the way."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def web_address(text: str) -> str:
    """Return a text that is ``https://HOST/...`` or ``http://HOST/...``.

    Raises
    ------
    ValueError
        If it is not; the text may be a secret, so only what is allowed is said.
    """
    allowed = "must be https://HOST/..., without a name and a password in it"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(allowed) from None
    plain = text.isascii() and text.isprintable() and " " not in text and len(text) <= LONGEST
    if parts.scheme not in ("https", "http") or not parts.hostname or "@" in parts.netloc or port == 0 or not plain:
        raise ValueError(allowed)
    return text


def _webhook(text: str) -> str:
    return text if not text or text.startswith("/") else web_address(text)


def _mail_address(text: str) -> str:
    if text and not re.fullmatch(r"[\w.+%~-]{1,64}@[A-Za-z0-9.-]{1,255}", text, re.ASCII):
        raise ValueError("must be NAME@HOST")
    return text


def _server(text: str) -> str:
    if text and not re.fullmatch(r"([A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]+\]):([1-9][0-9]{0,4})", text):
        raise ValueError("must be HOST:PORT, such as mail.hospital.example:587")
    return text


MailAddress = Annotated[str, AfterValidator(_mail_address)]


class Notify(Keys):
    """The table ``[notify]``: without a way to tell, nobody is told."""

    when: list[Event] = Field(
        ALL,
        description="of what: `waits`, a run waits for your decision; `begins`, a run begins that you approved in "
        "advance; `ends`, a run has ended, or has asked nothing for a day; `refused`, your rules or data did not allow "
        "a run; `budget`, little is left of the privacy budget; `lost`, there is no connection to the coordinator, and "
        "there is one again",
    )
    command: list[str] = Field(
        [],
        description="a program and its arguments, started without a shell: the sentence is its input, EDELWEISS_EVENT, "
        "EDELWEISS_RUN and EDELWEISS_SITE are in its environment",
    )
    webhook: Annotated[str, AfterValidator(_webhook)] = Field(
        "",
        description="an https:// address that gets JSON by POST (`text`, `event`, `run`, `site`, `time`), or the file "
        "with it, where the address is itself a secret",
    )
    webhook_token_file: LocalPath = Field(
        "",
        description="file with a token, sent as `Authorization: Bearer`; default: the environment variable "
        "EDELWEISS_WEBHOOK_TOKEN, if it is set",
    )
    mail_to: list[MailAddress] = Field([], description="addresses that get an e-mail")
    mail_from: MailAddress = Field("", description="its sender")
    smtp: Annotated[str, AfterValidator(_server)] = Field("", description="HOST:PORT of the mail server")
    smtp_tls: Literal["starttls", "tls", "none"] = Field(
        "starttls", description="`starttls` as at port 587, `tls` as at port 465, or `none`"
    )
    smtp_user: str = Field("", description="name at the mail server; empty: none is asked for")
    smtp_password_file: LocalPath = Field(
        "", description="file with its password; default: the environment variable EDELWEISS_SMTP_PASSWORD"
    )
    budget_left: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="share of the privacy budget's ε: you are told once when less is left"
    )
    lost_after: Annotated[float, Field(ge=1, le=1e6)] = Field(
        900.0, description="seconds without a connection after which you are told"
    )

    def __bool__(self) -> bool:
        return bool(self.when and (self.command or self.webhook or self.mail_to))

    @classmethod
    def of(cls, table: object) -> tuple[Notify | None, list[str]]:
        """Return the settings of a table, None if they cannot be used, and everything that is wrong with it."""
        if not isinstance(table, dict):
            return None, [f"notify = {shown(table)} must be a table, [notify]"]
        notify, found = cls.checked(table)
        hidden = (re.sub(r"^webhook = .*: ", "webhook: ", text, flags=re.DOTALL) for text in found)  # may be a secret
        wrong = within("notify", hidden)
        if notify is not None and not wrong:
            wrong = within("notify", notify._contradictions(table))
        return notify, wrong

    @classmethod
    def read(cls, file: str) -> Notify:
        """Read the table of a site's file; without one, nobody is told.

        Raises
        ------
        ConfigError
            Listing everything that is wrong.
        """
        try:
            table = read_toml(file).get("notify", {}) if file else {}
        except (OSError, ValueError) as error:
            raise ConfigError("notify", [f"{shorter(file)} cannot be read: {reason(error)}"]) from None
        notify, wrong = cls.of(table)
        if notify is None or wrong:
            raise ConfigError("notify", wrong)
        return notify

    def _contradictions(self, table: Mapping[str, Any]) -> list[str]:
        found = []
        if table and not (self.command or self.webhook or self.mail_to):
            found.append("command, webhook, mail-to: name at least one, or remove the table")
        if self.command and not self.command[0].startswith("/"):
            found.append(f"command = {shown(self.command)}: its first word must be the program's whole path")
        if any("\0" in word for word in self.command):
            found.append("command: a word cannot have a NUL character")
        if self.mail_to and not (self.smtp and self.mail_from):
            found.append("mail-to: it needs smtp, the mail server, and mail-from, the sender")
        if not self.mail_to and (self.smtp or self.mail_from or self.smtp_user or self.smtp_password_file):
            found.append("mail-to is missing: name who gets the e-mail")
        if self.webhook_token_file and not self.webhook:
            found.append("webhook is missing: webhook-token-file is for it")
        parts = urlsplit(self.webhook)
        if self.webhook_token_file and parts.scheme == "http" and not local(parts.hostname or ""):
            found.append("webhook: with a token it must be https://, or others read it on the way")
        if self.smtp_user and self.smtp_tls == "none" and not local(self.smtp.rpartition(":")[0].strip("[]")):
            found.append("smtp-tls = 'none': with a password it must be starttls or tls, or others read it on the way")
        if self.smtp_password_file and not self.smtp_user:
            found.append("smtp-user is missing: smtp-password-file is for it")
        return found
