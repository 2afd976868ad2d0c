"""The records of a site's policy in its state folder: a secret, the runs, and the sets of patients reported on."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import secrets
import time
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edelweiss.client_app.policy.differencing import isolates
from edelweiss.client_app.state_folder import state_folder
from edelweiss.common import ConfigError, shorter
from edelweiss.common.files import read_json, write_private

if TYPE_CHECKING:
    from edelweiss.datasets.source import Digests

    Rows = tuple[Digests, Digests]
    """A set of rows: the patient and the content of each."""

DAY = 24 * 3600.0
DECISIONS = ("approved", "refused")
LATEST = 2.0**37  # seconds since 1970: a time of day can be made of all before


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The record of one run at a site."""

    run: str  # Flower's run id
    began: float  # time of its first message, in seconds since 1970
    asked: str  # a hash of the run-config, so that a decision applies to this run only
    data: str = ""  # a hash of the site's data at that time; empty if the run does not use them
    # "waiting", "approved" or "refused"; the operator's decision is in a separate file, which the site never writes
    decision: str = "waiting"
    over: bool = False  # whether another run with the same key continues it
    open: bool = False  # whether everything needed before the first reply has been recorded
    said: str = (
        ""  # a hash of the run's key, this site's place and the data summary, from the first message that has them
    )
    # position in the run: whether the final evaluation was requested, the round, the index of the phase
    place: list[int] = field(default_factory=list)
    question: str = ""  # a hash of the request at this position
    key: str = ""  # the coordinator's key of the run; a resumed run keeps it under another run id
    lasting: str = ""  # a hash of the run-config keys that a resumed run must keep
    resumes: list[str] = field(default_factory=list)  # the runs before it that have its key
    rounds: int = 0  # rounds requested, including those before a stop and those repeated after it
    serial: int = 0  # of its ticket; 0 without
    study: str = ""  # the operator's name of the study, where it has data of its own
    until: float = 0.0  # time until which it waits for a decision, in seconds since 1970
    advance: int = 0  # the number of the decision in advance that decided it; 0: none, see `advance`
    terms: dict[str, Any] = field(default_factory=dict)  # what such decisions are about, `advance.Terms`
    shown: dict[str, str]  # for the operator: what would be computed and sent

    def is_sound(self, run: str) -> bool:
        """Whether its values, as read, are those of a run of this number."""
        times = (self.began, self.until)
        return (
            self.run == run
            and all(isinstance(at, int | float) and 0 <= at < LATEST for at in times)
            and self.decision in ("waiting", *DECISIONS)
            and isinstance(self.shown, dict)
            and isinstance(self.terms, dict)
            and isinstance(self.place, list)
            and isinstance(self.resumes, list)
            and all(isinstance(run, str) for run in self.resumes)
            and all(isinstance(count, int) for count in (self.rounds, self.serial, self.advance))
        )

    @property
    def once(self) -> tuple[str, float]:
        """What it has in common with the runs that it resumes and that resume it."""
        return self.key or self.run, self.began

    @property
    def turned_away(self) -> bool:
        """Whether the operator refused it."""
        return self.decision == "refused"

    @property
    def waits(self) -> bool:
        """Whether it waits for the operator's decision."""
        return self.decision == "waiting" and time.time() < self.until


class Records:
    """The records of one site.

    Parameters
    ----------
    state_dir : str
        The site's own folder, which is no other site's; empty: a private one for temporary files.
    site : str
        The site's name, where several share the folder.
    """

    def __init__(self, state_dir: str, site: str = "") -> None:
        self.state = state_folder(state_dir)
        self.folder = self.state / "policy" / site.replace("/", "_")

    def key(self, seed: str) -> str:
        """Return the secret that determines the held-out split: from the policy's seed, or generated here once.

        Raises
        ------
        ConfigError
            If the generated one is damaged.
        """
        if seed:
            return hashlib.sha256(seed.encode()).hexdigest()
        file, has_records = self.folder / "secret", any((self.folder / "told").glob("*.npy"))
        if not file.exists() and has_records:
            raise ConfigError(
                "state-dir",
                [
                    "policy/secret in it is gone, which determined the held-out split: restore it, or the seed of your "
                    "policy. To hold out others and reset the record of reported patients, remove policy/told as well"
                ],
            )
        if not file.exists():
            write_private(file, secrets.token_hex(32).encode(), once=True)
        if not re.fullmatch(rb"[0-9a-f]{64}", key := file.read_bytes()):
            raise self.damaged(file, "the held-out split changes")
        return key.decode()

    @property
    def _secret(self) -> Path:
        return self.folder / "randomness"

    @property
    def has_secret(self) -> bool:
        """Whether `secret` was made already."""
        return self._secret.exists()

    @cached_property
    def secret(self) -> bytes:
        """The secret that whom a batch holds follows from, made here once; unlike `key` never of the policy's text.

        Raises
        ------
        ConfigError
            If it is damaged.
        """
        file = self._secret
        if not file.exists():
            write_private(file, secrets.token_hex(32).encode(), once=True)
        if not re.fullmatch(rb"[0-9a-f]{64}", text := file.read_bytes()):
            raise self.damaged(file, "batches hold others")
        return bytes.fromhex(text.decode())

    # ------------------------------------------------------------------ runs

    def run(self, number: int | str) -> RunRecord | None:
        """Return what is known of a run; None for a new one.

        Raises
        ------
        ConfigError
            When that is damaged.
        """
        file = self.folder / "runs" / f"{number}.json"
        unknown: list[str] = []
        try:
            said = read_json(file)
            if not isinstance(said, dict):
                raise TypeError(said)
            unknown = sorted({*said} - RunRecord.__dataclass_fields__.keys())
            record = RunRecord(**said)
            if not record.is_sound(str(number)):
                raise ValueError(number)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):
            if unknown:
                name, keys = file.relative_to(self.state), ", ".join(map(shorter, unknown[:3]))
                mend = "install the release that wrote it"
                raise ConfigError("state-dir", [f"{name} in it has keys of a later release ({keys}): {mend}"]) from None
            raise self.damaged(file, "the site does not know this run and asks you again") from None
        if record.turned_away:  # in advance: what an operator says at the same moment does not undo it
            return record
        file = self._decision(record)
        try:
            decision = file.read_text(encoding="ascii")
        except FileNotFoundError:
            return record
        except (OSError, ValueError):
            decision = ""
        if decision not in DECISIONS:
            raise self.damaged(file, "the site asks you again")
        return replace(record, decision=decision)

    def begun_as(self, key: str) -> RunRecord | None:
        """Return the latest record of an admitted, approved or refused run by its key."""
        decided = [record for record in self.runs() if record.open or record.decision != "waiting"]
        known = [record for record in decided if record.key == key]
        return max(known, key=lambda record: (record.turned_away, record.rounds, not record.advance), default=None)

    def latest_serial(self, study: str = "") -> int:
        """Return the highest serial of a ticket of a study that has come here; 0 for none. Each signs its own."""
        return max((record.serial for record in self.runs() if record.study == study), default=0)

    def note(self, record: RunRecord) -> None:
        """Write the record of a run."""
        write_private(self.folder / "runs" / f"{record.run}.json", json.dumps(asdict(record), indent=1).encode())

    def decide(self, record: RunRecord, decision: str, *, first: bool = False) -> bool:
        """Write the operator's decision, in a file of its own that the site's records do not overwrite.

        ``first``: unless there is one, which stands. Return whether it was written.
        """
        return write_private(self._decision(record), decision.encode(), once=first)

    def forget_decision(self, number: int) -> None:
        """Remove the decision about a run without a record."""
        (self.folder / "runs" / f"{number}.decision").unlink(missing_ok=True)

    def _decision(self, record: RunRecord) -> Path:
        return self.folder / "runs" / f"{record.run}.decision"

    def take_over(self, record: RunRecord) -> None:
        """Mark other runs with this one's key as superseded."""
        for other in self.runs():
            if record.key and other.key == record.key and other.run != record.run and not other.over:
                self.note(replace(other, over=True))

    def runs(self) -> list[RunRecord]:
        """Return all runs, the oldest first."""
        found = (self.run(file.stem) for file in (self.folder / "runs").glob("*.json"))
        return sorted((record for record in found if record), key=lambda record: record.began)

    def readable(self) -> tuple[list[RunRecord], list[str]]:
        """Return the runs whose records can be read, the oldest first, and what is wrong with the others."""
        found, problems = [], []
        for file in sorted((self.folder / "runs").glob("*.json")):
            try:
                found += [record] if (record := self.run(file.stem)) else []
            except ConfigError as error:
                problems += error.problems
        return sorted(found, key=lambda record: record.began), problems

    def today(self, record: RunRecord) -> tuple[int, int]:
        """Count the other runs on the site's own data that began within 24 hours, without those refused here.

        Returns
        -------
        tuple of int
            Those that asked for a round, and those that never came so far, as when another site refused them. A run
            that was stopped and resumed counts once.
        """
        since = time.time() - DAY
        counted = [each for each in self.runs() if each.data and each.open and each.began > since]
        counted = [each for each in counted if not each.turned_away]
        begun, all_ = ({each.once for each in those} for those in ((e for e in counted if e.rounds), counted))
        return len(begun - {record.once}), len(all_ - begun - {record.once})

    # ------------------------------------------------------------------ the sets that replies are about

    def too_near(self, kind: str, rows: Rows, fewest: int, key: str) -> bool:
        """Whether a set differs by too few patients from an earlier one.

        Parameters
        ----------
        kind : str
            Of set: sums of other kinds cannot be compared.
        rows : tuple of ndarray
            Shape (n,) each: patient and content of each row.
        fewest : int
            Smaller differences are too few.
        key : str
            The site's secret, which keys the hashes of rows.
        """
        before = [self._read(file) for file in sorted((self.folder / "told").glob(f"{kind}-*.npy"))]
        return isolates(_keyed(rows, key), before, fewest)

    def tell(self, kind: str, rows: Rows, key: str) -> None:
        """Record a set that replies are about; an identical set shares its file."""
        digests = _keyed(rows, key)
        digests = digests[:, np.lexsort(digests)]
        name = f"{kind}-{hashlib.sha256(digests.tobytes()).hexdigest()[:16]}.npy"
        if not (self.folder / "told" / name).exists():
            write_private(self.folder / "told" / name, _npy(digests))

    def _read(self, file: Path) -> Digests:
        with contextlib.suppress(OSError, EOFError, ValueError):
            digests: Digests = np.load(file)
            if digests.ndim == 2 and len(digests) == 2 and digests.dtype == np.uint64:
                return digests
        raise self.damaged(file, "the site forgets that it reported on these patients")

    def damaged(self, file: Path, loss: str) -> ConfigError:
        """Return the error for a damaged file of the state folder, with what is lost without it."""
        name = file.relative_to(self.state)
        return ConfigError("state-dir", [f"{name} in it is damaged: restore it from a backup; without it {loss}"])


def _keyed(rows: Rows, key: str) -> Digests:
    from edelweiss.datasets.patient_ids import keyed  # brings torch, which an operator's commands do without

    return np.stack([keyed(part, key) for part in rows])


def _npy(array: Digests) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
