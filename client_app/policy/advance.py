"""Decisions in advance: an operator approves or refuses the runs of a study before they come.

A decision is a file that the operator's page or command writes once and the site only reads: when a run would wait, and
all rules allow it. An approval names all of a run that its operator would look at, how many runs it is for, and until
when; any other run waits. Each beginning counts, a resumed run's too, so that no run gets more than was approved. To
withdraw a decision is a second file; what has begun goes on. A refusal names a part of that, and precedes approvals.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from edelweiss.client_app.audit import Audit
from edelweiss.client_app.policy.records import LATEST
from edelweiss.common import ConfigError, key_of, shown, text_errors, unknown
from edelweiss.common.files import read_file, read_json, write_private
from edelweiss.common.numbers import number, whole
from edelweiss.config.keys import Keys
from edelweiss.federation.ticket import Hash

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from edelweiss.client_app.policy.records import Records, RunRecord

log = logging.getLogger("edelweiss")

FOLDER = "advance"
MOST_RUNS, MOST_ROUNDS, MOST_EPSILON, MOST_DAYS = 1000, 10**6, 1e6, 366
DAY = 24 * 3600.0
LONGEST = 500  # characters of a comment
HASH = "sha256"  # the key of a file's hash of its other keys: an edit by hand is noticed, though not one that renews it
STEPS_BACK = 60.0  # seconds that a clock may be set back, as it is when it is corrected

Text = Annotated[str, Field(max_length=LONGEST)]
Decision = Literal["approved", "refused"]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What of a run a decision in advance is about; its record keeps them."""

    algorithm: str
    problem: str
    model: str  # empty for a problem without data
    label: str = ""  # that the run chooses; empty where the site does
    release: str = ""  # of the app and the run's plug-ins
    study_key: str = ""  # that has signed the run's ticket, checked; empty: unsigned
    rounds: int = 0
    epsilon: float = 0.0  # what the run costs a patient, at the site's own delta; 0: no differential privacy
    secure_aggregation: bool = False


class Advance(Keys):
    """A decision in advance."""

    number: int = Field(ge=1)
    decision: Decision
    by: Text
    comment: Text = ""
    made: float = Field(ge=0, lt=LATEST)  # seconds since 1970
    until: float = Field(ge=0, lt=LATEST)
    study_key: Hash | Literal[""] = ""
    algorithm: list[Text] = Field([])
    problem: list[Text] = Field([])
    model: list[Text] = Field([])
    label: Text = ""
    release: Text = ""
    rounds: int = Field(0, ge=0, le=MOST_ROUNDS)
    epsilon: float = Field(0.0, ge=0, le=MOST_EPSILON)  # of all its runs together; 0: they have no differential privacy
    secure_aggregation: bool = False  # whether runs without it wait
    runs: int = Field(0, ge=0, le=MOST_RUNS)
    withdrawn: Text = ""  # by whom and when; of the second file

    @property
    def approves(self) -> bool:
        """Whether it is an approval."""
        return self.decision == "approved"

    def stands(self, now: float) -> bool:
        """Whether it is neither withdrawn nor past its end."""
        return not self.withdrawn and now <= self.until

    def covers(self, terms: Terms) -> bool:
        """Whether it is about such a run, whatever others it has decided."""
        if self.study_key and terms.study_key != self.study_key:
            return False
        of = ((self.algorithm, terms.algorithm), (self.problem, terms.problem), (self.model, terms.model))
        if any(names and name not in names for names, name in of):
            return False
        return not self.approves or (
            terms.label == self.label
            and terms.release == self.release
            and terms.rounds <= self.rounds
            and bool(terms.epsilon) == bool(self.epsilon)
            and (terms.secure_aggregation or not self.secure_aggregation)
        )

    def has_room(self, terms: Terms, decided: list[RunRecord]) -> bool:
        """Whether one more run fits, beside those that it has decided."""
        spent = sum(float(run.terms.get("epsilon", 0.0)) for run in decided) + terms.epsilon
        return len(decided) < self.runs and spent <= self.epsilon * (1 + 1e-9)

    def state(self, runs: list[RunRecord], now: float) -> str:
        """Return whether it stands, and what it has decided so far."""
        count = len(decided(runs, self))
        ends = f"withdrawn {self.withdrawn}" if self.withdrawn else "ended" if now > self.until else ""
        counted = f"{count} of {self.runs} runs" if self.approves else f"{count} runs"
        return f"{self.decision} in advance, {counted} so far" + (f", {ends}" if ends else "")

    def who(self) -> str:
        """Return who decided, and by which decision."""
        return f"{self.by}, in advance (decision {self.number} of {_when(self.made)})"

    def in_words(self) -> str:
        """Return what it is about."""
        names = (" or ".join(self.algorithm) or "any algorithm", " or ".join(self.problem) or "any problem")
        parts = [" on ".join(names), " or ".join(self.model) or "any model"]
        if self.approves:
            several = "s" * (self.runs > 1)
            parts.append(f"{self.runs} run{several} of at most {self.rounds} rounds, release {self.release}")
            epsilon = f"differential privacy, ε of all together at most {self.epsilon:g}"
            parts.append(epsilon if self.epsilon else "no differential privacy")
            parts += ["with secure aggregation"] * self.secure_aggregation
            parts += [f"label {self.label}"] * bool(self.label)
        parts.append(f"signed by {self.study_key}" if self.study_key else "signed by anybody or nobody")
        return "; ".join([*parts, f"until {_when(self.until)}"])


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


# ---------------------------------------------------------------------- files


@dataclass(frozen=True)
class Damaged:
    """A decision in advance that cannot be read, or that was edited by hand."""

    name: str  # of its file, from the state folder on
    number: int  # 0: its name has none

    def in_words(self) -> str:
        """Return what that means, and the way out."""
        mend = f", or take it back: edelweiss-site withdraw {self.number}" if self.number else " or remove it"
        return f"{self.name} is damaged or was edited, so no decision in advance counts: restore it from a backup{mend}"


def _file(records: Records, number: int) -> Path:
    return records.folder / FOLDER / f"{number}.json"


def read_advances(records: Records) -> tuple[list[Advance], list[Damaged]]:
    """Return all decisions in advance, the oldest first, and those that are damaged, but for withdrawn ones."""
    found, damaged = [], []
    for file in (records.folder / FOLDER).glob("*.json"):
        withdrawn = _withdrawn(file)
        try:
            content = read_json(file)
            if content.pop(HASH) != _hash(content):
                raise ValueError("it was edited")
            found.append(Advance.model_validate({**content, "withdrawn": withdrawn}, by_name=False))
            if file.stem != str(found[-1].number):
                found.pop()
                raise ValueError("its name is of another")
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            if not withdrawn:
                damaged.append(Damaged(str(file.relative_to(records.state)), _number(file)))
    return sorted(found, key=lambda each: each.number), sorted(damaged, key=lambda each: (each.number, each.name))


def _hash(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _number(file: Path) -> int:
    return int(file.stem) if re.fullmatch("[1-9][0-9]{0,8}", file.stem) else 0


def _withdrawn(file: Path) -> str:
    """Return by whom and when a decision was withdrawn; empty where it was not."""
    try:
        text = read_file(file.with_suffix(".withdrawn"), LONGEST * 4).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError:
        text = ""
    return text[:LONGEST].strip() or "by somebody"


def advances(records: Records) -> list[Advance]:
    """Return all decisions in advance, the oldest first.

    Raises
    ------
    ConfigError
        If some are damaged, and were not withdrawn.
    """
    found, damaged = read_advances(records)
    if damaged:
        raise ConfigError("state-dir", [each.in_words() for each in damaged])
    return found


def damages(records: Records) -> list[str]:
    """Return a line for each damaged record of a run and decision in advance, with the way out."""
    return [*records.readable()[1], *(each.in_words() for each in read_advances(records)[1])]


def next_number(records: Records) -> int:
    """Return the number of the next decision in advance, which no file has."""
    folder = records.folder / FOLDER
    return max((_number(file) for kind in ("json", "withdrawn") for file in folder.glob(f"*.{kind}")), default=0) + 1


def decide_in_advance(records: Records, advance: Advance, where: str) -> bool:
    """Write a decision and log it; return False, without either, if another one has taken its number meanwhile."""
    content = advance.model_dump(by_alias=True, exclude={"withdrawn"})
    text = json.dumps({**content, HASH: _hash(content)}, indent=1)
    if not write_private(_file(records, advance.number), text.encode(), once=True):
        return False
    comment = f": {advance.comment}" if advance.comment else ""
    said = f"{advance.decision} in advance {where}, by {advance.by}, as decision {advance.number}{comment}"
    Audit(records.state).operator(f"{said} ({advance.in_words()})")
    return True


def withdraw(records: Records, number: int, by: str, where: str) -> bool:
    """Withdraw a decision, damaged or not, and log that; what has begun goes on. Return False if somebody did before.

    Raises
    ------
    LookupError
        If there is none of this number.
    """
    file = _file(records, number)
    if number < 1 or not file.exists():
        raise LookupError(number)
    if not write_private(file.with_suffix(".withdrawn"), f"by {by}, {_when(time.time())}".encode(), once=True):
        return False
    Audit(records.state).operator(f"decision {number} in advance withdrawn {where}, by {by}")
    return True


def withdrawn_by(records: Records, number: int) -> str:
    """Return by whom and when a decision was withdrawn; empty where it was not."""
    return _withdrawn(_file(records, number))


# ---------------------------------------------------------------------- for a run


def decision_for(records: Records, run: str, terms: Terms, *, asks: bool) -> Advance | None:
    """Return the decision in advance about a run that would wait; None if there is none.

    Parameters
    ----------
    records : Records
        Of the site.
    run : str
        Flower's number of the run.
    terms : Terms
        What it is, as of this message.
    asks : bool
        Whether runs need an approval here; a refusal counts in any case.

    Raises
    ------
    ConfigError
        If decisions are damaged, and the run would not wait for another one.
    """
    now, (known, damaged) = time.time(), read_advances(records)
    if damaged:  # it may have been a refusal, so what would not wait does not begin
        if not asks:
            raise ConfigError("state-dir", [each.in_words() for each in damaged])
        if records.run(run) is None:
            log.error("%s", "; ".join(each.in_words() for each in damaged))
        return None
    about = [each for each in known if each.stands(now) and each.covers(terms)]
    if refusal := next((each for each in about if not each.approves), None):
        return refusal
    if not asks or not about:
        return None
    runs = [record for record in records.runs() if record.run != run]
    if (latest := max(*(record.began for record in runs), *(each.made for each in known), 0.0)) > now + STEPS_BACK:
        log.warning("this machine's clock is behind %s, when a run came: no decision in advance counts", _when(latest))
        return None
    return next((each for each in about if each.has_room(terms, decided(runs, each))), None)


def decided(runs: list[RunRecord], advance: Advance) -> list[RunRecord]:
    """Return the runs that a decision has decided."""
    return [record for record in runs if record.advance == advance.number]


# ---------------------------------------------------------------------- from a form or a command


def terms_in(record: RunRecord) -> dict[str, str]:
    """Return the texts that a form or command begins with for runs like this one."""
    texts = {key_of(name): str(value) for name, value in record.terms.items()}
    texts["secure-aggregation"] = "yes" if record.terms.get("secure_aggregation") else ""
    cost = float(record.terms.get("epsilon", 0.0))
    return {**texts, "epsilon": f"{cost * 1.0001:.4g}" if cost else ""}  # rounded, it is not below its own cost


def advance_of(texts: Mapping[str, str], decision: Decision, by: str, number: int) -> Advance:
    """Return a decision in advance from texts, as of a form.

    Parameters
    ----------
    texts : mapping of str to str
        By the keys of `READ`; several names have commas between them, and an empty text is none.
    decision : str
        "approved" or "refused".
    by : str
        Who decides.
    number : int
        Its number.

    Raises
    ------
    ConfigError
        Listing everything that is wrong.
    """
    approves = decision == "approved"
    given = {key: text for key, found in texts.items() if (text := " ".join(found.split()))}
    wrong = [problem for key, text in given.items() for problem in text_errors(key, text)]
    if not approves:
        wrong += [f"{key}: it limits approvals, and this is a refusal" for key in LIMITS if key in given]
    for key in NEEDED if approves else ("until",):
        if key not in given:
            wrong.append(f"{key} is missing: it must be {READ[key][1]}")
    values: dict[str, Any] = {"number": number, "decision": decision, "by": by[:LONGEST], "made": time.time()}
    for key, text in given.items():
        parse, must = READ[key]
        try:
            values[key] = parse(text)
        except ConfigError as error:
            wrong += [f"{key}: {problem}" for problem in error.problems]
        except (ValueError, OverflowError):
            wrong.append(f"{key} = {shown(text)}: must be {must}")
    if wrong:
        raise ConfigError("decision in advance", wrong)
    return Advance.model_validate(values, by_name=False)


def _names(kind: str) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        from edelweiss.config.plug_ins import KINDS  # slow to import, and the page shows runs without it

        known = KINDS[kind]
        names = [name for part in text.split(",") if (name := part.strip())]
        # a plug-in's name is known only where it is loaded, and the rules say which ones are
        wrong = [unknown(kind, name, known) for name in names if name not in known and ":" not in name]
        if wrong or not names:
            raise ConfigError(kind, wrong or ["it names nothing"])
        return names

    return parse


def _whole(most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not 1 <= (found := whole(text)) <= most:
            raise ValueError
        return found

    return parse


def _epsilon(text: str) -> float:
    if not 0 < (found := number(text)) <= MOST_EPSILON:
        raise ValueError
    return found


def _text(pattern: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError
        return text

    return parse


def _end_of(text: str) -> float:
    day = datetime.strptime(text, "%Y-%m-%d")
    end = (day + timedelta(days=1)).timestamp() - 1
    if not time.time() < end <= time.time() + MOST_DAYS * DAY:
        raise ValueError
    return end


READ: dict[str, tuple[Callable[[str], object], str]] = {
    "study-key": (_text("[0-9a-f]{64}"), "the 64 hexadecimal digits of a study key"),
    "algorithm": (_names("algorithm"), "one algorithm or more, with commas between them"),
    "problem": (_names("problem"), "one problem or more, with commas between them"),
    "model": (_names("model"), "one model or more, with commas between them"),
    "rounds": (_whole(MOST_ROUNDS), f"a whole number from 1 to {MOST_ROUNDS:,}"),
    "runs": (_whole(MOST_RUNS), f"a whole number from 1 to {MOST_RUNS:,}"),
    "epsilon": (_epsilon, f"a number above 0, up to {MOST_EPSILON:g}"),
    "release": (_text("[0-9a-f]{12}"), "the 12 hexadecimal digits that a site logs as its version"),
    "label": (_text(f".{{1,{LONGEST}}}"), f"at most {LONGEST} characters"),
    "secure-aggregation": (lambda text: _text("yes")(text) == "yes", "yes, or nothing"),
    "until": (_end_of, f"a day from today on, as in 2026-12-31, and at most {MOST_DAYS} days from now"),
    "comment": (_text(f".{{1,{LONGEST}}}"), f"at most {LONGEST} characters"),
}
"""The keys of a form or command: how each is read, and what it must be."""

LIMITS = ("rounds", "runs", "epsilon", "release", "label", "secure-aggregation")  # what approvals have alone
NEEDED = ("algorithm", "problem", "model", "rounds", "runs", "release", "until")  # what no approval lacks
