"""The people who may open a page: names, roles and hashed passwords, in one file."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from edelweiss.common import ConfigError, shown
from edelweiss.common.files import read_json, reason

VERSION = 1
MEMORY, BLOCK, LANES = 2**15, 8, 1  # of scrypt: 32 MiB, some 0.1 s of one core
SHORTEST, LONGEST, LONGEST_NAME = 10, 200, 40  # characters of a password, and of a name
FREE, SLOWEST = 3, 60.0  # wrong passwords for a name without a pause; the longest pause, in seconds
REMEMBERED = 1000  # names whose wrong passwords are counted


class AccountsError(ConfigError):
    """A name, role or password that cannot be used, or an unreadable file of accounts."""

    def __init__(self, *problems: str) -> None:
        super().__init__("accounts", problems)


class SlowDown(Exception):  # noqa: N818 -- no error: it says when
    """Too many wrong passwords for a name; ``seconds`` says when the next one is looked at."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"wait {seconds:.0f} s")
        self.seconds = seconds


@dataclass(frozen=True)
class Account:
    """A person and their role."""

    name: str
    role: str


class Accounts:
    """The accounts of one page.

    Parameters
    ----------
    file : Path
        Where they are; it need not exist.
    roles : sequence of str
        The page's roles, each of which includes the earlier ones, such as ``("look", "decide")``.
    """

    def __init__(self, file: Path, roles: Sequence[str]) -> None:
        self.file, self.roles = file, tuple(roles)
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()  # by name: how many, and until when to wait
        self._lock = threading.Lock()  # one hash at a time: it takes memory

    @property
    def name(self) -> str:
        """A random name of this set of accounts, for the cookie: a browser shares cookies between ports."""
        return str(self._read()["name"])

    def everybody(self) -> list[Account]:
        """Return all accounts, by name."""
        return [Account(name, entry["role"]) for name, entry in sorted(self._read()["people"].items())]

    def role_of(self, name: str) -> str:
        """Return the present role of a person; empty for nobody."""
        return str(self._read()["people"].get(name, {}).get("role", ""))

    def stamp_of(self, name: str) -> str:
        """Return what changes with a person's password; empty for nobody."""
        return str(self._read()["people"].get(name, {}).get("salt", ""))

    def allows(self, account: Account, role: str) -> bool:
        """Whether an account's role includes another one."""
        return account.role in self.roles and self.roles.index(account.role) >= self.roles.index(role)

    def set(self, name: str, role: str, password: str = "") -> str:
        """Add a person, or give one another password and role; return the password, generated if empty.

        Raises
        ------
        AccountsError
            Listing everything that is wrong.
        """
        wrong = []
        if not (0 < len(name) <= LONGEST_NAME and name.isprintable() and name.strip() == name):
            wrong.append(f"name = {shown(name)}: it needs 1 to {LONGEST_NAME} characters, none of them a line's end")
        if role not in self.roles:
            wrong.append(f"role = {shown(role)}: must be one of {', '.join(self.roles)}")
        if password and not SHORTEST <= len(password) <= LONGEST:
            wrong.append(f"password: it has {len(password)} characters; {SHORTEST} to {LONGEST} are allowed")
        if wrong:
            raise AccountsError(*wrong)
        password = password or "-".join(secrets.token_hex(2) for _ in range(5))  # 80 bits
        salt = secrets.token_bytes(16)
        entry = {"role": role, "salt": salt.hex(), "hash": _scrypt(salt).derive(password.encode()).hex()}
        with self._changed() as content:
            content["people"][name] = entry
        return password

    def remove(self, name: str) -> None:
        """Remove a person.

        Raises
        ------
        AccountsError
            If there is nobody of this name.
        """
        with self._changed() as content:
            if name not in content["people"]:
                known = ", ".join(map(shown, sorted(content["people"]))) or "nobody"
                raise AccountsError(f"name = {shown(name)}: nobody is called that; there is {known}")
            del content["people"][name]

    def check(self, name: str, password: str) -> Account | None:
        """Return the account of a name and its password; None for a wrong one.

        Raises
        ------
        SlowDown
            If too many for this name were wrong just before: the password is not looked at.
        """
        with self._lock:
            count, until = self._wrong.get(name, (0, 0.0))
            if (wait := until - time.monotonic()) > 0:
                raise SlowDown(wait)
            entry = self._read()["people"].get(name, {"role": "", "salt": "00" * 16, "hash": "00" * 32})
            try:  # a name that nobody has takes as long
                _scrypt(bytes.fromhex(entry["salt"])).verify(password.encode()[:1000], bytes.fromhex(entry["hash"]))
            except InvalidKey:
                count += 1
                pause = min(SLOWEST, 2.0 ** (count - FREE)) if count >= FREE else 0.0
                self._wrong[name] = (count, time.monotonic() + pause)
                self._wrong.move_to_end(name)
                while len(self._wrong) > REMEMBERED:
                    self._wrong.popitem(last=False)
                return None
            self._wrong.pop(name, None)
            return Account(name, entry["role"]) if entry["role"] in self.roles else None

    def _read(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = read_json(self.file)
            for entry in content["people"].values():
                bytes.fromhex(entry["salt"]), bytes.fromhex(entry["hash"]), str(entry["role"])
            if content["version"] != VERSION:
                raise ValueError(f"its version is {content['version']!r}, and this release reads {VERSION}")
            return content
        except FileNotFoundError:
            return {"version": VERSION, "name": secrets.token_hex(4), "people": {}}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            mend = "remove it, and set the passwords again"
            raise AccountsError(f"{self.file} cannot be read ({reason(error)}): {mend}") from None

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        """Read the file, and write it at the block's end."""
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.file.with_name(f".{self.file.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                content = self._read()
                yield content
                draft = self.file.with_name(f".{self.file.name}")
                with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
                    json.dump(content, stream, indent=1)
                os.replace(draft, self.file)
        except OSError as error:
            raise AccountsError(f"{self.file} cannot be written: {reason(error)}") from None


def _scrypt(salt: bytes) -> Scrypt:
    return Scrypt(salt=salt, length=32, n=MEMORY, r=BLOCK, p=LANES)
