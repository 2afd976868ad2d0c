"""Admission: whether the site takes part in a run, checked for every message before anything is computed."""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from edelweiss.client_app.audit import AuditError, require_whole
from edelweiss.client_app.doubts import copy_doubt
from edelweiss.client_app.errors import AwaitsApprovalError, RefusedError
from edelweiss.client_app.policy.advance import Terms, decision_for
from edelweiss.client_app.policy.preview import preview
from edelweiss.client_app.policy.records import DAY, RunRecord
from edelweiss.client_app.policy.suppression import counts_by_class, few_of_a_class, patients
from edelweiss.client_app.request import EvaluateRequest
from edelweiss.common.files import locked
from edelweiss.config.resume import lasting
from edelweiss.datasets import DataError
from edelweiss.federation.ticket import config_hash, signer
from edelweiss.problems import PROBLEMS
from edelweiss.problems.capabilities import ClosedFormDual

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from edelweiss.client_app.audit import Audit
    from edelweiss.client_app.policy.records import Records, Rows
    from edelweiss.client_app.request import Incoming, Request
    from edelweiss.client_app.site import OpenSite
    from edelweiss.datasets import SiteData

log = logging.getLogger("edelweiss")

REFUSED = "its operator refused the run"
CHANGED = "the run's key, this site's place or the data summary has changed since the run began: start a new run"
UNBEGUN = 10  # runs that never ask for a round, for each that runs-per-day allows
DECIDE = 7 * DAY  # seconds that the operator may take to decide, from the coordinator's last question


def admit(
    site: OpenSite, incoming: Incoming, request: Request | None, serial: int = 0, audit: Audit | None = None
) -> None:
    """Admit a message of an allowed run; the first one may need the operator's approval, and is logged.

    Parameters
    ----------
    site : OpenSite
        This site in the run.
    incoming : Incoming
        The message.
    request : Request, optional
        What it asks for; None for what has no place in the run.
    serial : int
        That of the run's ticket, which is good for one run: a later one, resumed or not, needs a higher one.
    audit : Audit, optional
        The site's log.

    Raises
    ------
    RefusedError
        If the policy, the data or the operator does not allow it; the text holds only counts.
    AwaitsApprovalError
        If the operator has not decided yet.
    DataError
        If the policy is strict and the table has likely mistakes.
    """
    with locked(site.records.folder / "lock"):  # of two processes, one begins a run that may begin once
        _admit(site, incoming, request, serial, audit)


def _admit(site: OpenSite, incoming: Incoming, request: Request | None, serial: int, audit: Audit | None) -> None:
    policy, key = site.policy, str(incoming.config.get("run", ""))
    if site.guarded and policy.strict and not site.node.names_label:
        raise RefusedError("this site names no label column, and its policy does not let a run choose one (strict)")
    records, data = site.records, site.data() if site.guarded else None
    record, new = records.run(site.run_id), _current_record(site, data, key, serial)
    # A resumed run has another number but the same key.
    earlier = records.begun_as(new.key) if new.key and (record is None or record.key != new.key) else None
    if serial and serial != (record.serial if record else 0) and serial <= records.latest_serial(site.study):
        raise RefusedError("its ticket was used for another run, or is older than one that was: sign a new one")
    _require_same(record, earlier, new)
    if record is None and earlier:
        new = replace(new, resumes=[one.run for one in records.runs() if one.key == new.key])
    if data is not None and site.privacy is not None:
        site.privacy.resume((record or new).resumes)
    phases = site.run.strategy.phases
    if record and record.open:
        if data is not None:
            _require_enough(site, data)
        if (advanced := _advance(record, incoming, request, phases)) != record:
            if advanced.rounds and not record.rounds:
                _require_day(site, record)
            records.note(advanced)
        if advanced.key != record.key:
            records.take_over(advanced)
        return
    if data is not None and site.privacy is not None:
        site.privacy.require_affordable(site.run.sites)
    if fresh := record is None:
        _require_log(site)
        records.forget_decision(site.run_id)
        if not site.node.state_dir:
            log.warning("no state-dir: the held-out split and the record of reported sums will be lost; set one")
        record = replace(_new_record(site, earlier, new), shown=preview(site, data))
    who = "its operator" if policy.asks else "its rules"
    if earlier and earlier.decision == record.decision and policy.asks:
        who += f", as run {earlier.run}, which it resumes"
    if record.decision == "waiting":
        terms = _terms(site, incoming, signed=bool(serial))
        record = replace(record, terms=asdict(terms))
        if found := decision_for(records, record.run, terms, asks=policy.asks):
            record, who = replace(record, decision=found.decision, advance=found.number), found.who()
            log.warning("run %s is %s by %s", record.run, record.decision, who)
    if record.turned_away:
        records.note(record)
        if audit:
            audit.ruled(incoming.message, policy.in_words(), who, serial, refused=True)
        raise RefusedError(REFUSED)
    if policy.asks and record.decision == "waiting":
        _await_approval(records, record)
    if data is not None:  # after the approval: a run names the label column, so these refusals are about any column
        _require_enough(site, data)
        _require_safe(site, data)
    if not fresh:  # the state may have been put back while the run waited
        _require_log(site)
    for kind, rows, _ in _patient_sets(site, data) if data is not None and site.privacy is None else ():
        records.tell(kind, rows, site.key)
    opened = _advance(replace(record, decision="approved", open=True), incoming, request, phases)
    records.take_over(opened)
    records.note(opened)  # last: otherwise the rows are recorded again at the next message
    if audit:
        audit.ruled(incoming.message, policy.in_words(), who, serial)


def _terms(site: OpenSite, incoming: Incoming, *, signed: bool) -> Terms:
    """Return what a decision in advance is about; ``signed``: the run's ticket was checked."""
    run = site.run
    private = site.privacy.epsilon(run.sites) if site.guarded and site.privacy is not None else run.dp_epsilon
    return Terms(
        algorithm=run.algorithm,
        problem=run.problem,
        model=run.model if PROBLEMS[run.problem].needs_data else "",
        label="" if site.node.label or site.node.study else run.label,
        release=str(incoming.config["app"]),  # as this site's own, or the message was refused
        study_key=signer(run.ticket, site.policy.pinned) if signed else "",
        rounds=run.rounds,
        epsilon=private,
        secure_aggregation=run.secure_aggregation,
    )


def _current_record(site: OpenSite, data: SiteData | None, key: str, serial: int) -> RunRecord:
    """Return the record of a run as of this message."""
    return RunRecord(
        run=str(site.run_id),
        began=time.time(),
        asked=config_hash(site.run.flat()),
        data="" if data is None else site.data_hash(),
        key=key,
        lasting=config_hash(lasting(site.run)),
        serial=serial,
        study=site.study,
        shown={},
    )


def _require_same(record: RunRecord | None, earlier: RunRecord | None, new: RunRecord) -> None:
    """Check that a run has not changed since its beginning or before a resume, and that it may continue."""
    for known in filter(None, (record, earlier)):
        if known.data != new.data:
            raise RefusedError(
                "its data or the held-out split have changed since the run began, so it leaves this run: restore the "
                "data and the policy, or start a new run"
            )
        if known.turned_away:
            raise RefusedError(REFUSED)
    if record and record.over:
        raise RefusedError("the run was resumed under another number with the same key")
    if record and record.asked != new.asked:
        raise RefusedError("the run-config has changed since the run began: start a new run")
    if earlier and earlier.lasting != new.lasting:
        raise RefusedError(
            "the run has the key of an earlier one with another run-config: resume that one with its own config.toml, "
            "or start a new run"
        )


def _require_log(site: OpenSite) -> None:
    """Check that the audit log is whole and was not put back from a copy: otherwise no run begins."""
    if not site.node.state_dir:
        return
    if doubt := copy_doubt(site.records.state):
        raise RefusedError(doubt, "its state was put back from a copy: its operator has to acknowledge that")
    try:
        require_whole(site.records.state)
    except AuditError as error:
        text = f"its audit log was altered ({error}): its operator runs edelweiss-site audit --acknowledge"
        raise RefusedError(text, "its audit log is damaged: its operator has to acknowledge that") from None


def _new_record(site: OpenSite, earlier: RunRecord | None, new: RunRecord) -> RunRecord:
    """Return the record of a run that begins or is resumed.

    A resumed run needs no new approval and does not count again, until it has requested as many rounds as a run may
    have; otherwise repeated resumes would evade the limit.
    """
    policy = site.policy
    if earlier:
        # What was decided in advance is decided anew: it may have ended, and each beginning counts.
        new = replace(new, decision="waiting" if earlier.advance and not earlier.turned_away else earlier.decision)
        if not policy.most_rounds or earlier.rounds < policy.most_rounds:
            return replace(new, began=earlier.began, rounds=earlier.rounds)
    _require_day(site, new)
    return new


def _require_day(site: OpenSite, record: RunRecord) -> None:
    """Check that a run is within the limit of a day, both when it begins and when it asks for its first round.

    A run that another site refuses ends before its first round. It does not count, yet it was told sums: so there may
    be several times as many of those, and no more.
    """
    limit = site.policy.runs_per_day
    if not (site.guarded and limit):
        return
    begun, others = site.records.today(record)
    if begun >= limit:
        raise RefusedError(f"this site has taken part in {limit} runs within 24 hours, its limit (runs-per-day)")
    if others >= UNBEGUN * limit:
        raise RefusedError(
            f"this site has told {others} runs about its data within 24 hours that never asked for a round; that is "
            f"{UNBEGUN} times its limit of runs (runs-per-day)"
        )


def _advance(record: RunRecord, incoming: Incoming, request: Request | None, phases: Sequence[str]) -> RunRecord:
    """Return a run's record updated with a message.

    The site's index, which determines its batches, and the data summary, which standardises its inputs, must stay the
    same; otherwise a run could select single patients. And rounds only advance; otherwise a run could send many models
    in one round and evade the limit of rounds.

    Raises
    ------
    RefusedError
        If a message violates this.
    """
    key = str(incoming.config.get("run", ""))
    if key and record.key not in ("", key):
        raise RefusedError(CHANGED)
    record = replace(record, key=record.key or key)
    if request is None:
        return record
    constants = hashlib.sha256(repr(request.lasting).encode()).hexdigest()
    if record.said not in ("", constants):
        raise RefusedError(CHANGED)
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
            f"{'the final evaluation' if last else f'round {number}'} is over here, or was requested differently: "
            "rounds only advance, and a repeated request must be identical"
        )
    rounds = record.rounds + (place[:2] != record.place[:2])
    return replace(record, said=constants, place=place, question=question, rounds=rounds)


def _require_enough(site: OpenSite, data: SiteData) -> None:
    """Check that there are enough patients; the policy may have changed since the run began."""
    policy, run = site.policy, site.run
    if patients(data, data.train) < policy.fewest_training:
        raise RefusedError(
            f"this site has fewer than {policy.fewest_training} training patients; an update from so few would reveal "
            "much about each, so it does not take part"
        )
    if run.secure_aggregation and not run.private and not len(data.held_out):
        raise RefusedError(
            "this site holds nobody out, and with secure aggregation the sum of the evaluations would be of the other "
            "sites alone: set holdout-share in [policy] above 0"
        )
    # Under differential privacy these sums are noised, and a refusal by exact counts would be a count without noise.
    if (
        not run.private
        and ClosedFormDual in run.strategy.needs
        and few_of_a_class(counts_by_class(data.train.targets(), data.classes), policy)
    ):
        raise RefusedError(
            f"algorithm = {run.algorithm!r} sends sums over each class, but one has fewer than "
            f"{policy.fewest_of_each_class} samples here: use another algorithm, such as coda-plus"
        )


def _require_safe(site: OpenSite, data: SiteData) -> None:
    """Check the sets of patients behind the replies."""
    policy = site.policy
    if data.warnings and policy.strict and not site.run.private:
        raise DataError.join(data.warnings)
    for text in (*data.warnings, *data.notes):
        log.warning("%s", text)
    if site.privacy is not None:
        return  # the noise hides who is new, and more
    for kind, rows, fewest in _patient_sets(site, data):
        if site.records.too_near(kind, rows, fewest, site.key):
            raise RefusedError(
                f"its data differ by fewer than {fewest} patients from those of earlier runs, so differences between "
                "replies would be about these few: restore the data, request the same ones as before, or wait until "
                "more have changed"
            )


def _patient_sets(site: OpenSite, data: SiteData) -> Iterator[tuple[str, Rows, int]]:
    """Yield each set of patients behind the replies: its kind, its rows, and the smallest allowed difference."""
    assert data.patient_ids is not None, "a hospital's own data have patient ids"
    assert data.row_ids is not None
    for kind, samples, fewest in (
        ("train", data.train, site.policy.fewest_training),
        ("held-out", data.held_out, site.policy.fewest_held_out),
    ):
        rows = samples.rows.numpy()
        yield kind, (data.patient_ids[rows], data.row_ids[rows]), fewest


def _await_approval(records: Records, record: RunRecord) -> None:
    """Note that a run waits for the operator, and let the coordinator ask again: other runs go on meanwhile.

    Raises
    ------
    AwaitsApprovalError
        Always.
    """
    if not record.waits:
        log.warning("run %s waits for you: edelweiss-site runs, then approve or refuse it", record.run)
    records.note(replace(record, until=time.time() + DECIDE))
    raise AwaitsApprovalError
