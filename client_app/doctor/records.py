"""Tests of what the site has written about itself: its audit log, its runs, its operator's decisions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edelweiss.client_app.doctor import Finding

if TYPE_CHECKING:
    from edelweiss.client_app.connection import JoinConfig


def examine_records(config: JoinConfig) -> Iterator[Finding]:
    """Verify the audit log whole, and read all records."""
    from edelweiss.client_app.audit import AuditError, require_whole
    from edelweiss.client_app.policy.advance import damages
    from edelweiss.client_app.policy.records import Records
    from edelweiss.common.files import reason

    folder = Path(config.state_dir).expanduser()
    if not config.state_dir or not folder.is_dir():
        return  # said already
    records = Records(config.state_dir, config.site if config.partition_id >= 0 else "")
    runs, problems = records.readable()
    try:
        require_whole(folder, has_runs=bool(runs or problems))
        yield Finding("ok", "log", "the audit log is unaltered")
    except AuditError as error:
        mend = "no run begins until you have found out why, and edelweiss-site audit --acknowledge has begun a new one"
        yield Finding("error", "log", f"the audit log was altered ({error}): {mend}")
    except OSError as error:
        yield Finding("error", "log", f"the audit log cannot be read: {reason(error)}")
    found = damages(records)
    for text in found:
        yield Finding("error", "records", text)
    if not found:
        yield Finding("ok", "records", f"of {len(runs)} runs" if runs else "no run has come here yet")
