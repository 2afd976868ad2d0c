#!/usr/bin/env python3
"""A coordinator and three hospitals on this machine, for a look: ``make demo``.

A SuperLink, its executor, three sites and the coordinator's page are processes that end with this one. The hospitals'
tables are generated; with EDELWEISS_DEMO_DATA=FOLDER each takes FOLDER/hospital-a/data.csv and so on. hospital-c asks
its operator: its first run waits until somebody approves it, on its page or by a command.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

# After the path, by which a script finds the repository.
from bin.run import free_port, superlink  # noqa: E402
from edelweiss.common.scratch import Scratch  # noqa: E402
from edelweiss.lab.submission import flower_environment, started  # noqa: E402

HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
ROWS = 300
START = 60.0  # seconds for a site to say how to log in
RUN = 'dataset = "site"\nsites = 3\nrounds = 60\nlocal-steps = 20\nmodel = "linear"\nrun-name = "demo"\n'


def main() -> int:
    """Start everything and wait for Ctrl-C or SIGTERM, either of which ends all of it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Scratch() as home, ExitStack() as stack:
        folder = Path(os.environ.get("EDELWEISS_DEMO", home / "demo"))
        folder.mkdir(parents=True, exist_ok=True)
        environment = {"EDELWEISS_ALLOW_ROOT": "1"} | flower_environment(home)  # its hospitals are only for a look
        fleet = f"127.0.0.1:{free_port()}"
        stack.enter_context(superlink(home, environment, "--fleet-api-type", "grpc-rere", "--fleet-api-address", fleet))
        control = (home / "config.toml").read_text(encoding="utf-8").split('address = "')[1].split('"')[0]
        for number, name in enumerate(HOSPITALS):
            site = folder / name
            data = data_of(site, name, number)
            (site / "site.toml").write_text(f'[policy]\napprove = "{"ask" if name == "hospital-c" else "always"}"\n')
            command = [sys.executable, "-m", "edelweiss.client_app.cli", "join", "--insecure", f"--superlink={fleet}"]
            command += [f"--site={name}", f"--data-dir={data}", f"--state-dir={site / 'state'}", "--label=outcome"]
            command += [f"--policy={site / 'site.toml'}"]
            if name == "hospital-c":
                command += [f"--page=127.0.0.1:{(port := free_port())}"]
            log = stack.enter_context((site / "site.log").open("w"))
            stack.enter_context(started(command, environment, cwd=REPO, stdout=log, stderr=log))
        print(f"Three hospitals have joined. Their folders and the runs are in {folder}.")
        print("Log in to the page below and start a run, such as\n")
        print("  " + RUN.replace("\n", "\n  "))
        print(f"hospital-c then waits for its operator, who decides at http://127.0.0.1:{port}/")
        print(f"({said(folder / 'hospital-c' / 'site.log', 'page: name')}), or in another shell:\n")
        state = folder / "hospital-c" / "state"
        print(f"  {sys.executable} -m edelweiss.client_app.cli runs --state-dir {state}")
        print(f"  {sys.executable} -m edelweiss.client_app.cli approve RUN --state-dir {state}\n", flush=True)
        page = [sys.executable, "-m", "edelweiss.lab.cli", "dashboard", "--superlink", control, "--insecure"]
        page += ["--runs-dir", str(folder / "runs"), "--accounts", str(folder / "accounts.json")]
        page += ["--page", os.environ.get("EDELWEISS_DEMO_PAGE", "127.0.0.1:0")]
        served = stack.enter_context(started(page, environment, cwd=REPO))
        print("Ctrl-C ends all of it.", flush=True)
        try:
            return served.wait(threading.TIMEOUT_MAX)
        except KeyboardInterrupt:
            return 0


def said(log: Path, words: str) -> str:
    """Wait until a log has a line with these words; return the line from there on."""
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        for line in log.read_text(encoding="utf-8").splitlines():
            if words in line:
                return line[line.index(words) :]
        time.sleep(0.1)
    return f"its log is {log}"


def data_of(site: Path, name: str, number: int) -> Path:
    """Return a hospital's data folder: a given one, or one with a generated table."""
    if given := os.environ.get("EDELWEISS_DEMO_DATA"):
        site.mkdir(parents=True, exist_ok=True)
        return Path(given).expanduser().absolute() / name
    import numpy as np

    random, data = np.random.default_rng(number), site / "data"
    data.mkdir(parents=True, exist_ok=True)
    age, pressure, cholesterol = random.normal((54, 132, 246), (9, 18, 52), (ROWS, 3)).T
    risk = (age - 54) / 9 + 0.7 * (pressure - 132) / 18 + 0.4 * (cholesterol - 246) / 52 + random.logistic(size=ROWS)
    lines = ["age,pressure,cholesterol,outcome"]
    for row in zip(age, pressure, cholesterol, risk > 1.5, strict=True):
        lines.append("{:.0f},{:.0f},{:.0f},{:d}".format(*row))
    (data / "data.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return data


if __name__ == "__main__":
    sys.exit(main())
