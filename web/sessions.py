"""Sessions of people who gave their password, in this process's memory: a restart ends them."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edelweiss.web.accounts import Account, Accounts

IDLE, LONGEST = 3600.0, 12 * 3600.0  # seconds without a request, and from the password, after which a session ends
MOST = 1000  # sessions at a time; the oldest ends


@dataclass
class Session:
    """One person in one browser."""

    account: Account
    token: str  # that each of its forms carries
    stamp: str  # of the password it began with
    began: float
    used: float


class Sessions:
    """The sessions of one page; a changed password or role ends those of its person."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._open: dict[str, Session] = {}
        self._lock = threading.Lock()

    def begin(self, account: Account) -> str:
        """Return the secret of a new session, for the cookie."""
        secret, now = secrets.token_urlsafe(32), time.monotonic()
        session = Session(account, secrets.token_urlsafe(32), self._accounts.stamp_of(account.name), now, now)
        with self._lock:
            while len(self._open) >= MOST:
                del self._open[next(iter(self._open))]
            self._open[_hash(secret)] = session
        return secret

    def of(self, secret: str, *, active: bool = True) -> Session | None:
        """Return the session of a cookie, if it lasts; ``active``: a person asks, and no page that refreshes itself."""
        with self._lock:
            session, now = self._open.get(_hash(secret)), time.monotonic()
            if session is None:
                return None
            name, ended = session.account.name, now - session.used > IDLE or now - session.began > LONGEST
            known = (self._accounts.stamp_of(name), self._accounts.role_of(name))
            if ended or known != (session.stamp, session.account.role):
                del self._open[_hash(secret)]
                return None
            if active:
                session.used = now
            return session

    def end(self, secret: str) -> None:
        """End a session."""
        with self._lock:
            self._open.pop(_hash(secret), None)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
