"""What all tests share."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import settings
from torch import nn

from edelweiss.server_app import coordinator

if TYPE_CHECKING:
    from edelweiss.config import RunConfig
    from edelweiss.federation import RoundContext

LEAVE_REPORT = coordinator.leave_report
MEMORY, ENOUGH = Path("/dev/shm"), 2 * 2**30  # bytes; all tests together leave a sixth of that


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C reach what tests start, and keep files in memory: runs are safe against a power cut, which takes time.

    Of Ctrl-C: in the background of a script it is ignored, and children inherit that. Of files: what a run waits for a
    disk was up to two thirds of a test's time. Containers cannot see this folder.
    """
    settings.register_profile("no-deadline", settings.get_profile(settings.get_current_profile_name()), deadline=None)
    settings.load_profile("no-deadline")  # a busy machine is no failure
    os.environ.setdefault("EDELWEISS_ALLOW_ROOT", "1")  # of sites that tests start, in CI's container
    gc.disable()  # until all is collected and imported: of that, nothing is garbage
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    here = "TMPDIR" not in os.environ and config.getoption("markexpr") != "containers"
    if here and os.access(MEMORY, os.W_OK | os.X_OK) and shutil.disk_usage(MEMORY).free > ENOUGH:
        folder = MEMORY / f"tests-of-edelweiss-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        os.environ.setdefault("RAY_TMPDIR", tempfile.gettempdir())  # it leaves its folders behind
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


TARGETS = {
    "deployments": "starts processes again and again, for minutes: make deployments",
    "containers": "needs a Docker engine and minutes: make containers",
}
"""Marks of what is not part of `make test`, and why."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to other targets of make what is theirs, and begin with what takes longest: else the others wait for it."""
    items.sort(key=lambda item: not item.get_closest_marker("deployments"))
    for mark, reason in TARGETS.items():
        if mark not in config.getoption("markexpr"):
            for item in items:
                if item.get_closest_marker(mark):
                    item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Keep the garbage collector from what stays to the end: the tests, and all modules."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute with one thread: batches are tiny, and threads that wait for a busy core make them ten times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def no_curves() -> Iterator[None]:
    """Save seconds per run, which are most of its time, where curves are not what a test, or a fixture, is about."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator, "leave_report", lambda *_: None)
        yield


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runs of a test draw their curves."""
    monkeypatch.setattr(coordinator, "leave_report", LEAVE_REPORT)


@pytest.fixture
def evidence() -> None:
    """Let the runs of a test write evidence.json."""


@pytest.fixture(autouse=True)
def no_evidence(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save a tenth of a second per run, likewise: sites tell what they would tell, and nothing is made of it."""
    if "evidence" not in request.fixturenames:
        monkeypatch.setattr("edelweiss.server_app.coordinator.evidence_of", lambda *_, **__: None)


def _convolution(name: str, shape: tuple[int, ...], outputs: int, hidden: int) -> nn.Module:
    """One convolution with batch norm, and a head."""
    body = nn.Sequential(nn.Conv2d(shape[0], 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
    return nn.Sequential(body, nn.Flatten(), nn.Linear(16, outputs))


@pytest.fixture
def small_resnet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let "resnet18" stand for a network with statistics that takes no seconds; forked workers have it too."""
    from edelweiss.client_app.process_cache import cached_problem
    from edelweiss.models import networks

    monkeypatch.setitem(networks.MODELS, "resnet18", _convolution)
    cached_problem.cache_clear()
    yield
    cached_problem.cache_clear()


@pytest.fixture
def nothing_runs_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that every process that a test started, and every one that those started, has ended."""
    mark = f"EDELWEISS_TEST={uuid.uuid4().hex}"
    monkeypatch.setenv(*mark.split("="))
    yield
    deadline = time.monotonic() + 600
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []


def marked(mark: str) -> list[str]:
    """Command lines of all processes that have this in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended, or is another user's
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save half a second per picture where it is not what a test is about."""
    monkeypatch.setattr("edelweiss.lab.report.drawing.drawn", lambda draw: None)
    monkeypatch.setattr("edelweiss.lab.report.drawing.as_svg", lambda figure: "<svg></svg>")
    monkeypatch.setattr("edelweiss.lab.report.drawing.save", lambda figure, path: None)


@pytest.fixture(autouse=True)
def one_release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the keyed randomness of a site take all releases for one: else every change of code draws other batches.

    A test that trains hospitals would fail with one commit and pass with the next. Those with processes of their own
    or in containers are left as they are: there all have the same release.
    """
    if not any(request.node.get_closest_marker(name) for name in ("deployments", "containers")):
        from edelweiss.client_app.privacy import randomness

        whole = randomness.fingerprint
        monkeypatch.setattr(randomness, "fingerprint", lambda packages: whole(packages) if packages else "a release")


@pytest.fixture
def public_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw batches of hospitals from the run's seed, the site's place and the round alone, as simulated sites do.

    Two runs that differ in something else, or in the sites' secrets, can then be compared.
    """
    monkeypatch.setattr("edelweiss.client_app.policy.records.Records.secret", bytes(32))
    monkeypatch.setattr("edelweiss.client_app.handlers.question", _place)


def _place(run: RunConfig, lasting: tuple[Any, ...], data: str, context: RoundContext, *arrays: Any) -> list[bytes]:
    return [f"{run.seed} {lasting[0]} {context.round} {context.phase}".encode()]
