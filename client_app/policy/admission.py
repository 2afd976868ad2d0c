"""Every message of a run passes here before anything is computed: whether the site takes part at all."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from edelweiss.client_app.errors import RefusedError
from edelweiss.client_app.policy.preview import shown
from edelweiss.client_app.policy.records import RunRecord
from edelweiss.client_app.policy.suppression import counts_by_class, few_of_a_class, patients
from edelweiss.client_app.request import EvaluateRequest
from edelweiss.config.resume import lasting
from edelweiss.datasets import DataError
from edelweiss.problems.capabilities import ClosedFormDual

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from edelweiss.client_app.policy.records import Records, Rows
    from edelweiss.client_app.request import Incoming, Request
    from edelweiss.client_app.site import OpenSite
    from edelweiss.common import Value
    from edelweiss.datasets import SiteData

log = logging.getLogger("edelweiss")

REFUSED = "its operator refused the run"
OTHERWISE = "what the run says of itself, of this site, or of all sites, is other than before: start a new run"
POLL = 0.2  # seconds between two looks for the operator's decision

waiting = threading.Event()
"""Set while a message waits for the operator: a process that is told to end need not wait along."""


def admit(site: OpenSite, incoming: Incoming, request: Request | None) -> None:
    """Let a site answer a message of a run that is allowed; at the first its operator may have to say so.

    Raises
    ------
    RefusedError
        When the policy, the data or the operator does not allow it; the text holds counts only.
    DataError
        When the policy is strict and something in the table may be a mistake.
    """
    policy, key = site.policy, str(incoming.config.get("run", ""))
    if site.guarded and policy.strict and not site.node.names_label:
        raise RefusedError("this site names no label column, and its rules do not let a run choose one (strict)")
    records, data = site.records, site.data() if site.guarded else None
    record, new = records.run(site.run_id), _as_it_is_now(site, data, key)
    # A run that was stopped goes on under another number, and keeps its key.
    earlier = records.begun_as(new.key) if new.key and (record is None or record.key != new.key) else None
    _require_same(record, earlier, new)
    if data is not None:
        _require_enough(site, data)
    phases = site.run.strategy.phases
    if record and record.open:
        if (followed := _followed(record, incoming, request, phases)) != record:
            records.note(followed)
        if followed.key != record.key:
            records.take_over(followed)
        return
    if data is not None:
        _require_safe(site, data)
    if record is None:
        records.forget_decision(site.run_id)
        if not site.node.state_dir:
            log.warning("no state-dir: who is held out here, and whom sums were told of, will be forgotten; set one")
        record = replace(_counted(site, earlier, new), shown=shown(site, data))
    if policy.asks and record.decision == "waiting":
        _wait(records, record, site.run.round_timeout)
        if data is not None:
            _require_safe(site, data)  # another run may have been told of others meanwhile
    for kind, rows, _ in _told(site, data) if data is not None else ():
        records.tell(kind, rows, site.key)
    opened = _followed(replace(record, decision="approved", open=True), incoming, request, phases)
    records.take_over(opened)
    records.note(opened)  # last: else the rows are told of at the next message


def _as_it_is_now(site: OpenSite, data: SiteData | None, key: str) -> RunRecord:
    """Return the record of a run that begins with this message."""
    return RunRecord(
        run=str(site.run_id),
        began=time.time(),
        asked=_hash(site.run.flat()),
        data="" if data is None else site.data_hash(),
        key=key,
        lasting=_hash(lasting(site.run)),
        shown={},
    )


def _hash(config: Mapping[str, Value]) -> str:
    """Return a hash of keys and values; 1 and 1.0 are the same."""
    equal = {key: float(value) if isinstance(value, int) else value for key, value in config.items()}
    return hashlib.sha256(repr(sorted(equal.items())).encode()).hexdigest()


def _require_same(record: RunRecord | None, earlier: RunRecord | None, new: RunRecord) -> None:
    """Check that a run is what it was, at its beginning and before it was stopped, and that it may go on."""
    for known in filter(None, (record, earlier)):
        if known.data != new.data:
            raise RefusedError(
                "its data have changed since the run began, or who of them is held out, so it goes no further in this "
                "run: bring back the data and the rules as they were, or start a new run"
            )
        if known.turned_away:
            raise RefusedError(REFUSED)
    if record and record.over:
        raise RefusedError("it goes on as another run, under the same key, and no longer as this one")
    if record and record.asked != new.asked:
        raise RefusedError("the run-config is another than when the run began: start a new run")
    if earlier and earlier.lasting != new.lasting:
        raise RefusedError(
            "the run has the key of an earlier one, which had another run-config: go on with the config.toml of that "
            "one, or start a new run"
        )


def _counted(site: OpenSite, earlier: RunRecord | None, new: RunRecord) -> RunRecord:
    """Return the record of a run that begins, or goes on: then it needs no other approval.

    Nor does it count again, until it has asked for as many rounds as a run may have; else a run that is stopped again
    and again had no limit.
    """
    policy = site.policy
    if earlier:
        new = replace(new, decision=earlier.decision)
        if not policy.most_rounds or earlier.rounds < policy.most_rounds:
            return replace(new, began=earlier.began, rounds=earlier.rounds)
    if site.guarded and policy.runs_per_day and site.records.today() >= policy.runs_per_day:
        raise RefusedError(
            f"this site takes part in {policy.runs_per_day} runs within 24 hours, and has done so (runs-per-day)"
        )
    return new


def _followed(record: RunRecord, incoming: Incoming, request: Request | None, phases: Sequence[str]) -> RunRecord:
    """Return a run's record with what a message says.

    What holds for a whole run stays: a site's batches follow from its place, and its inputs from the cohort's moments,
    so a run that could change them would choose patient by patient whom an answer is about. And a run goes forward:
    whoever could ask about many models in one round would not need more rounds than a site allows.

    Raises
    ------
    RefusedError
        When it is otherwise.
    """
    key = str(incoming.config.get("run", ""))
    if key and record.key not in ("", key):
        raise RefusedError(OTHERWISE)
    record = replace(record, key=record.key or key)
    if request is None:
        return record
    said = hashlib.sha256(repr(request.lasting).encode()).hexdigest()
    if record.said not in ("", said):
        raise RefusedError(OTHERWISE)
    last, number = isinstance(request, EvaluateRequest), request.context.round
    merged = isinstance(request, EvaluateRequest) and bool(request.merged)
    place = [1, 0, merged] if last else [0, number, phases.index(request.context.phase)]
    digest = hashlib.blake2b(repr(sorted(incoming.config.items())).encode())
    for vectors in incoming.vectors.values():
        for name, array in vectors.arrays.items():
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.data)
    question = digest.hexdigest()
    if place < record.place or (place == record.place and question != record.question):
        raise RefusedError(
            f"{'the last evaluation' if last else f'round {number}'} is over here, or was asked for otherwise: a run "
            "goes forward, and asks again what it asked before"
        )
    rounds = record.rounds + (place[:2] != record.place[:2])
    return replace(record, said=said, place=place, question=question, rounds=rounds)


def _require_enough(site: OpenSite, data: SiteData) -> None:
    """Check that there are enough to learn from; the rules may be others than when the run began."""
    policy, run = site.policy, site.run
    if patients(data, data.train) < policy.fewest_training:
        raise RefusedError(
            f"there are fewer than {policy.fewest_training} patients to train on here, and an update that so few have "
            "made would say much of each, so this site does not take part"
        )
    if ClosedFormDual in run.strategy.needs and few_of_a_class(
        counts_by_class(data.train.targets(), data.classes), policy
    ):
        raise RefusedError(
            f"algorithm = {run.algorithm!r} sends sums over the samples of each class, and of one there are fewer than "
            f"{policy.fewest_of_each_class} here: take another, such as coda-plus"
        )


def _require_safe(site: OpenSite, data: SiteData) -> None:
    """Check what is about to be told of."""
    policy = site.policy
    if data.warnings and policy.strict:
        raise DataError.join(data.warnings)
    for text in (*data.warnings, *data.notes):
        log.warning("%s", text)
    for kind, rows, fewest in _told(site, data):
        if site.records.too_near(kind, rows, fewest, site.key):
            raise RefusedError(
                f"its data differ by fewer than {fewest} patients from those of an earlier run, or of several taken "
                "together, and the difference between the answers would be about these few: bring back the data as "
                "they were, ask about the same of them as before, or wait until more have changed"
            )


def _told(site: OpenSite, data: SiteData) -> Iterator[tuple[str, Rows, int]]:
    """Yield each set of patients that answers are about: its kind, its rows, and the fewest that it may differ by."""
    assert data.patient_ids is not None, "a hospital's own data say whose each row is"
    assert data.row_ids is not None
    for kind, samples, fewest in (
        ("train", data.train, site.policy.fewest_training),
        ("held-out", data.held_out, site.policy.fewest_held_out),
    ):
        rows = samples.rows.numpy()
        yield kind, (data.patient_ids[rows], data.row_ids[rows]), fewest


def _wait(records: Records, record: RunRecord, seconds: float) -> None:
    """Wait for the operator, while a message of the run can still be answered."""
    until = time.time() + seconds
    if record.decision == "waiting":
        records.note(replace(record, until=until))
        log.warning("run %s waits for you: edelweiss-site runs, then approve or refuse it", record.run)
    waiting.set()
    try:
        while (now := records.run(record.run)) is not None and now.decision == "waiting":
            if time.time() > until:
                raise RefusedError(f"its operator did not approve the run within round-timeout = {seconds:g} s")
            time.sleep(POLL)
        if now is None or now.decision == "refused":
            raise RefusedError(REFUSED)
    finally:
        waiting.clear()
