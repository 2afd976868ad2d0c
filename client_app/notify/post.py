"""What is still to be told, kept in the state folder: each event is told once, and a way that fails is tried again."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from edelweiss.client_app.notify.watch import Seen
from edelweiss.client_app.notify.ways import SUBJECTS, Notice, UnsureError, UntoldError
from edelweiss.common.files import read_json, reason

log = logging.getLogger("edelweiss")

VERSION = 1
MOST, HOUR = 10, 3600.0  # notices of an event within so many seconds; the others are counted, and told as one
AGAIN = (60.0, 2.0, 3600.0)  # seconds until a way that failed is tried again: first, growth, longest
KEPT = 24 * 3600.0  # seconds for which a notice is tried


@dataclass
class Post:
    """The notices of a site.

    Parameters
    ----------
    file : Path
        In the state folder; it need not exist.
    site : str
        The site's name.
    ways : mapping
        By name; each tells a notice, or raises `UntoldError`.
    seen : Seen, optional
        What `Watch` was told before; None: nothing is known.
    """

    file: Path
    site: str
    ways: Mapping[str, Callable[[Notice], None]]
    seen: Seen | None = None
    _waiting: list[tuple[str, Notice]] = field(default_factory=list)  # way and notice, the oldest first
    _recent: dict[str, list[float]] = field(default_factory=dict)  # by event: when notices were accepted
    _more: dict[str, int] = field(default_factory=dict)  # by event: how many were not
    _failing: dict[str, tuple[float, float]] = field(default_factory=dict)  # by way: the pause, and until when

    def __post_init__(self) -> None:
        try:
            content = read_json(self.file)
            if content["version"] != VERSION:
                raise ValueError(f"its version is {content['version']!r}")
            self.seen = Seen(**content["seen"])
            self._waiting = [(way, Notice(**one)) for way, one in content["waiting"] if way in self.ways]
            self._recent = {event: [*map(float, times)] for event, times in content["recent"].items()}
            self._more = {event: int(count) for event, count in content["more"].items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            log.warning("notify: %s cannot be read (%s): what is there now counts as told", self.file, reason(error))
            self.seen = None

    def add(self, notices: Sequence[Notice], seen: Seen) -> None:
        """Accept notices, which are on disk when this returns, unless the disk is full."""
        before, self.seen = self.seen, seen
        now, accepted = time.time(), []
        for notice in notices:
            recent = self._recent[notice.event] = self._within_the_hour(notice.event, now)
            if len(recent) < MOST:
                recent.append(now)
                accepted.append(notice)
            else:
                self._more[notice.event] = self._more.get(notice.event, 0) + 1
        for event, count in [*self._more.items()]:
            if len(self._within_the_hour(event, now)) < MOST and event in SUBJECTS:
                del self._more[event]
                self._recent[event] = [*self._within_the_hour(event, now), now]
                name = f"{self.site}: " if self.site else ""
                text = f"{name}{count} times more: {SUBJECTS[event]}; the site's log has them"
                accepted.append(Notice(event, "", text, now))
        self._waiting += [(way, notice) for notice in accepted for way in self.ways]
        if notices or accepted or before is None:
            self._save()

    def tell(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Tell what is due, one after the other; what fails is said once, until it works again."""
        for way in self.ways:
            pause, until = self._failing.get(way, (0.0, 0.0))
            if time.monotonic() < until:
                continue
            for notice in [one for name, one in self._waiting if name == way]:
                if ended():
                    return
                problem = self._told(way, notice)
                if problem is None:
                    if way in self._failing:
                        log.warning("notify: %s works again", way)
                        del self._failing[way]
                    self._done(way, notice)
                    continue
                first, growth, longest = AGAIN
                pause = min(pause * growth, longest) or first
                if way not in self._failing:
                    log.warning("notify: %s fails: %s; runs go on", way, problem)
                self._failing[way] = pause, time.monotonic() + pause
                if isinstance(problem, UnsureError) or time.time() - notice.at > KEPT:
                    self._done(way, notice)
                break

    def _told(self, way: str, notice: Notice) -> UntoldError | None:
        try:
            self.ways[way](notice)
        except UntoldError as error:
            return error
        except Exception as error:  # of ours; it may hold a secret
            return UnsureError(type(error).__name__)
        return None

    def _done(self, way: str, notice: Notice) -> None:
        self._waiting.remove((way, notice))
        self._save()

    def _within_the_hour(self, event: str, now: float) -> list[float]:
        return [at for at in self._recent.get(event, []) if now - HOUR < at <= now]

    def _save(self) -> None:
        content = {
            "version": VERSION,
            "seen": asdict(self.seen or Seen()),
            "waiting": [(way, asdict(notice)) for way, notice in self._waiting],
            "recent": self._recent,
            "more": self._more,
        }
        with suppress(OSError):  # a full disk: it is told all the same
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = self.file.with_name(f".{self.file.name}")
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
                json.dump(content, stream)
            os.replace(draft, self.file)
