"""Which process of `make run` is counted as what."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.start import Watch


@pytest.mark.parametrize(
    ("line", "role"),
    [
        ("/venv/bin/python /venv/bin/flower-superlink --insecure", "SuperLink"),
        ('python -c entry_points(group="console_scripts", name="flwr") run /tmp/app', "`flwr run`"),
        ("python /venv/ray/_private/workers/setup_worker.py /venv/ray/default_worker.py", "clients (Ray's workers)"),
        ("ray::ClientAppActor.run", "clients (Ray's workers)"),
        ("ray::DashboardAgent", "Ray's own processes"),
        ("/venv/ray/core/src/ray/raylet/raylet", "Ray's own processes"),
        ("python bin/run.py", "rest"),
    ],
)
def test_a_process_counts_once_and_in_its_role(line: str, role: str) -> None:
    watch = Watch("mark")
    watch.known, watch.seconds = {Path("/proc/1"): line}, {Path("/proc/1"): 2.0}
    found = watch.by_role()
    assert found[role] == 2.0
    assert sum(found.values()) == 2.0
