#!/usr/bin/env python3
"""A coordinator and three hospitals on this machine, for a look: ``make demo``.

A SuperLink, its executor, three sites, the coordinator's page and a first run are processes that end with this one. The
third hospital asks its operator: the run waits until somebody approves it, on its page or by a command. The hospitals
have the heart disease data of the UCI if EDELWEISS_DATA names a folder with them, else generated tables.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

# After the path, by which a script finds the repository.
from bin.run import free_port, superlink  # noqa: E402
from edelweiss.common.scratch import Scratch  # noqa: E402
from edelweiss.lab.submission import flower_environment, started  # noqa: E402

HEART = ("cleveland", "hungarian", "va")  # the fourth, Switzerland, has eight patients without the disease
GENERATED = ("hospital-a", "hospital-b", "hospital-c")
ROWS = 300  # of a generated table
START = 120.0  # seconds for a process to say how to log in
RUN = {"dataset": "site", "sites": 3, "rounds": 60, "local-steps": 20, "model": "linear", "run-name": "demo"}


def main() -> int:
    """Start everything and wait for Ctrl-C or SIGTERM, either of which ends all of it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Scratch() as home, ExitStack() as stack:
        folder = Path(os.environ.get("EDELWEISS_DEMO", home / "demo")).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        hospitals, what = data_in(folder)
        environment = {"EDELWEISS_ALLOW_ROOT": "1"} | flower_environment(home)  # its hospitals are only for a look
        fleet = f"127.0.0.1:{free_port()}"
        stack.enter_context(superlink(home, environment, "--fleet-api-type", "grpc-rere", "--fleet-api-address", fleet))
        control = (home / "config.toml").read_text(encoding="utf-8").split('address = "')[1].split('"')[0]
        asks = hospitals[-1]
        port = free_port()

        def start(log: Path, *words: str) -> None:
            stream = stack.enter_context(log.open("w"))
            command = [sys.executable, "-m", *words]
            stack.enter_context(started(command, environment, cwd=REPO, stdout=stream, stderr=stream))

        for name in hospitals:
            site = folder / name
            (site / "site.toml").write_text(f'[policy]\napprove = "{"ask" if name == asks else "always"}"\n')
            own = [f"--site={name}", f"--data-dir={site / 'data'}", f"--state-dir={site / 'state'}", "--label=outcome"]
            own += [f"--policy={site / 'site.toml'}", *([f"--page=127.0.0.1:{port}"] if name == asks else [])]
            start(site / "site.log", "edelweiss.client_app.cli", "join", "--insecure", f"--superlink={fleet}", *own)
        for name in hospitals:
            said(folder / name / "site.log", "joined, as number")
        there = ["--superlink", control, "--insecure"]
        page = ["dashboard", *there, "--runs-dir", str(folder / "runs"), "--accounts", str(folder / "accounts.json")]
        page += ["--page", os.environ.get("EDELWEISS_DEMO_PAGE", "127.0.0.1:0")]
        start(folder / "page.log", "edelweiss.lab.cli", *page)
        address = said(folder / "page.log", "http")
        word = said(folder / "page.log", "user admin", "the password of the first start")
        keys = " ".join(
            f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}" for key, value in RUN.items()
        )
        if not (folder / "runs" / "demo").exists():
            keys += f' runs-dir="{folder / "runs"}"'
            start(folder / "submit.log", "edelweiss.lab.cli", "submit", *there, "--run-config", keys)
        state = f"--state-dir {folder / asks / 'state'}"
        site_cli = f"{sys.executable} -m edelweiss.client_app.cli"
        print(
            f"A coordinator and three hospitals with {what}; their files and the runs are in {folder}.\n\n"
            f"The coordinator's page:  {address}\n  {word}\n"
            f"The page of {asks}:  http://127.0.0.1:{port}/\n"
            f"  {said(folder / asks / 'site.log', 'page: name', f'its password is in {folder / asks}/site.log')}\n\n"
            f"A run has been started; {asks} asks its operator: approve it on its page, or in another shell:\n\n"
            f"  {site_cli} runs {state}\n  {site_cli} approve RUN {state}\n\nCtrl-C ends all of it.",
            flush=True,
        )
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
        return 0


def said(log: Path, words: str, otherwise: str = "") -> str:
    """Wait until a log has a line with these words; return the line from there on."""
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if words in line:
                return line[line.index(words) :]
        if otherwise and "http" in log.read_text(encoding="utf-8", errors="replace"):
            return otherwise
        time.sleep(0.1)
    sys.exit(f"{log} does not say {words!r}:\n{log.read_text(encoding='utf-8', errors='replace')[-2000:]}")


def data_in(folder: Path) -> tuple[tuple[str, ...], str]:
    """Write each hospital's table into its folder; return the hospitals' names and what their data are."""
    import numpy as np

    if os.environ.get("EDELWEISS_DATA"):
        from edelweiss.datasets.errors import DataError
        from edelweiss.datasets.files import SearchPath
        from edelweiss.datasets.sources.heart_disease import FEATURES, read

        try:
            source = read(SearchPath.of("", False))
        except DataError as error:
            print(f"generated tables, for EDELWEISS_DATA has no heart disease data: {error}", file=sys.stderr)
        else:
            for name in HEART:
                rows = source.groups == source.group_names.index(name)
                write(folder / name / "data", FEATURES, source.inputs[rows].numpy(), source.classes[rows])
            return HEART, "the UCI heart disease data"
    for number, name in enumerate(GENERATED):
        random = np.random.default_rng(number)
        age, pressure, cholesterol = random.normal((54, 132, 246), (9, 18, 52), (ROWS, 3)).round().T
        risk = (
            (age - 54) / 9 + 0.7 * (pressure - 132) / 18 + 0.4 * (cholesterol - 246) / 52 + random.logistic(size=ROWS)
        )
        table = np.stack([age, pressure, cholesterol], axis=1)
        write(folder / name / "data", ("age", "pressure", "cholesterol"), table, risk > 1.5)
    return GENERATED, "generated tables"


def write(folder: Path, features: Sequence[str], table: np.ndarray, labels: np.ndarray) -> None:
    """Write a hospital's data.csv; missing values are empty."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [",".join([*features, "outcome"])]
    for row, label in zip(table, labels, strict=True):
        lines.append(",".join([*("" if value != value else f"{value:g}" for value in row), str(int(label))]))
    (folder / "data.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
