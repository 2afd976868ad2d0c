"""What join and doctor do for the page: join starts its process, and both note in the state folder what it shows."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edelweiss.client_app.beside import kept
from edelweiss.common import ConfigError
from edelweiss.common.files import read_json
from edelweiss.web.accounts import Accounts

if TYPE_CHECKING:
    from edelweiss.client_app.connection import JoinConfig

log = logging.getLogger("edelweiss")

ROLES = ("look", "decide")
FIRST = "operator"  # who gets a password when nobody has one
ENDS = 5.0  # seconds that the page has to end


def accounts_in(state_dir: str) -> Accounts:
    """Return the accounts of a site's page."""
    return Accounts(Path(state_dir).expanduser() / "page" / "accounts.json", ROLES)


class Connection:
    """The connection to the coordinator, as noted in the state folder for the page."""

    def __init__(self, config: JoinConfig) -> None:
        self._file = Path(config.state_dir).expanduser() / "page" / "connection.json" if config.state_dir else None
        self._noted: dict[str, Any] = {"superlink": config.superlink, "number": 0, "problem": "not joined yet"}
        self._note()

    def joined(self, number: int) -> None:
        """Note a connection, with the coordinator's number for this site."""
        self._noted |= {"number": number, "problem": ""}
        self._note()

    def say(self, text: str) -> None:
        """Log that there is no connection and why, or that there is one again."""
        log.warning("%s", text)
        self._noted["problem"] = "" if text == "the coordinator answers" else text
        self._note()

    def _note(self) -> None:
        if self._file is not None:
            _write(self._file, {**self._noted, "since": time.time()})


def connection_in(state: Path) -> dict[str, Any]:
    """Return what join has noted last; empty for nothing."""
    try:
        found = read_json(state / "page" / "connection.json")
        return {key: found[key] for key in ("superlink", "number", "problem", "since")}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def note_findings(state: Path, findings: Sequence[tuple[str, str, str]]) -> None:
    """Note what `doctor` found: each finding's level, subject and text."""
    _write(state / "page" / "doctor.json", {"at": time.time(), "findings": findings})


def findings_in(state: Path) -> tuple[float, list[tuple[str, str, str]]]:
    """Return when `doctor` was last run, in seconds since 1970, and what it found; 0 and nothing if it was not."""
    try:
        found = read_json(state / "page" / "doctor.json")
        return float(found["at"]), [(str(level), str(about), str(text)) for level, about, text in found["findings"]]
    except (OSError, ValueError, LookupError, TypeError):
        return 0.0, []


def _write(file: Path, content: dict[str, Any]) -> None:
    with suppress(OSError):  # the page is not worth a run
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}")
        draft.write_text(json.dumps(content), encoding="utf-8")
        os.replace(draft, file)


@contextmanager
def page_beside(config: JoinConfig) -> Iterator[None]:
    """Run the page's process through the block; it is started again when it ends.

    Raises
    ------
    ConfigError
        If there is no state folder, or the accounts in it cannot be used.
    """
    if not config.state_dir:
        raise ConfigError("join", ["page: it needs a state-dir, where runs, log and passwords are"])
    accounts = accounts_in(config.state_dir)
    if not accounts.everybody():
        password = accounts.set(FIRST, ROLES[-1])
        log.info("page: name %s, password %s (said once; edelweiss-site password sets others)", FIRST, password)
    text = json.dumps(config.model_dump(by_alias=True, exclude_defaults=True))
    with kept("the page", "edelweiss.client_app.page.process", text, ends=ENDS):
        yield
