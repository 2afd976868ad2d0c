"""Both pages while a run trains: how long a page takes, and what it takes of a core.

    python -m benchmarks.site_page --runs 200 --lines 100 --seconds 60

It starts a SuperLink, a site with its page, whose state folder has so many earlier runs with so many lines of the audit
log each, and the coordinator's page over a folder of as many runs with so many rounds each; then a run that trains for
the time of the measurement. The processor's time is that of a page's process alone, looked up in /proc (Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from bin.run import free_port  # noqa: E402
from edelweiss.client_app.audit import Audit  # noqa: E402
from edelweiss.client_app.page.beside import accounts_in  # noqa: E402
from edelweiss.client_app.policy.records import Records, RunRecord  # noqa: E402
from edelweiss.lab.submission import started  # noqa: E402
from edelweiss.server_app import simulate  # noqa: E402
from tests.deployment.processes import deployment, until  # noqa: E402
from tests.server_app.sites import table, write_table  # noqa: E402

if TYPE_CHECKING:
    from edelweiss.common import Value
    from tests.deployment.processes import Federation

PASSWORD = "correct horse battery"
OF_SITE = ("/", "/runs", "/runs/1", "/audit", "/metrics")
OF_COORDINATOR = ("/", "/hospitals", "/runs/active", "/runs/1", "/new", "/compare?run=1&run=2")
LIVE = ("/live", "/hospitals/live", "/runs/active/live")  # what an open page of the coordinator's listens to
SCRAPE = 15.0  # seconds between two looks of a monitoring system
JOB: dict[str, Value] = {
    "dataset": "site",
    "sites": 1,
    "algorithm": "fedavg",
    "problem": "bce",
    "model": "mlp",
    "local-steps": 50,
}


@dataclass
class Taken:
    """What the requests of a page took."""

    wall: list[float] = field(default_factory=list)  # seconds
    processor: list[float] = field(default_factory=list)

    def cells(self) -> str:
        """Return median and 95th percentile in ms, and the processor's time."""
        wall = sorted(self.wall)
        late = wall[min(len(wall) - 1, int(0.95 * len(wall)))]
        return " | ".join(f"{1000 * s:.0f}" for s in (statistics.median(wall), late, statistics.mean(self.processor)))


class Page:
    """A page in a process, and somebody who has logged in."""

    def __init__(self, url: str, pid: int, name: str, password: str) -> None:
        self.url, self.pid, self.client = url, pid, build_opener(HTTPCookieProcessor())
        before = re.search(r'name="before" value="([^"]+)"', self.get("/login"))
        assert before
        self.client.open(f"{url}/login", urlencode({"name": name, "password": password, "before": before[1]}).encode())

    def get(self, path: str) -> str:
        """Return a page."""
        with self.client.open(self.url + path, timeout=60) as answer:
            return str(answer.read().decode())

    def processor(self) -> float:
        """Return the processor's time of its process."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def measured(self, paths: Iterable[str], seconds: float) -> dict[str, Taken]:
        """Ask for pages in turn, for so long."""
        found = {path: Taken() for path in paths}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for path, taken in found.items():
                before, began = self.processor(), time.perf_counter()
                text = self.get(path)
                taken.wall.append(time.perf_counter() - began)
                taken.processor.append(self.processor() - before)
                assert ("edelweiss_audit_whole 1.0" if path == "/metrics" else "Log out") in text, text
                time.sleep(0.05)
        return found

    def scraped(self, seconds: float) -> float:
        """Return the share of a core that it takes when a monitoring system looks at it."""
        before, began = self.processor(), time.monotonic()
        while time.monotonic() < began + seconds:
            self.get("/metrics")
            time.sleep(SCRAPE)
        return (self.processor() - before) / (time.monotonic() - began)

    def open(self, path: str, seconds: float) -> float:
        """Return the share of a core that it takes while a browser listens to what is live."""
        with self.client.open(self.url + path, timeout=60) as stream:
            assert stream.readline()
            time.sleep(1)  # the first look
            before, began = self.processor(), time.monotonic()
            time.sleep(min(seconds, 50.0))  # after a minute a browser asks anew
            return (self.processor() - before) / (time.monotonic() - began)


def of_site(url: str, state: Path) -> Page:
    """Return the site's page, when it answers."""

    def is_it(cmdline: Path) -> bool:
        with suppress(OSError):
            mark = f"EDELWEISS_MEASURED={state}".encode()
            return b"page.process" in cmdline.read_bytes() and mark in (cmdline.parent / "environ").read_bytes()
        return False

    def answers() -> bool:
        with suppress(URLError, OSError):
            build_opener().open(f"{url}/healthz", timeout=60).close()
            return True
        return False

    accounts_in(str(state)).set("anna", "decide", PASSWORD)
    until(answers)
    [pid] = [int(one.parent.name) for one in Path("/proc").glob("[0-9]*/cmdline") if is_it(one)]
    return Page(url, pid, "anna", PASSWORD)


@contextmanager
def of_coordinator(running: Federation, runs: Path) -> Iterator[Page]:
    """Serve the coordinator's page over a folder of runs, and over the SuperLink."""
    address = tomllib.loads((running.home / "config.toml").read_text())["superlink"]["own"]["address"]
    words = [sys.executable, "-m", "edelweiss.lab.cli", "dashboard", f"--runs-dir={runs}", "--page=127.0.0.1:0"]
    words += [f"--superlink={address}", "--insecure", f"--accounts={running.home / 'accounts.json'}"]
    log = running.home / "dashboard.log"
    with log.open("w") as stream, started(words, running.environment, cwd=REPO, stdout=stream, stderr=stream) as page:
        until(lambda: "http" in log.read_text(), log.read_text)
        said = log.read_text()
        yield Page(said.split()[-1].rstrip("/"), page.pid, "admin", said.splitlines()[0].split()[-1])


def ended(root: Path, runs: int, rounds: int) -> None:
    """Write a folder of runs that are complete: copies of a real one, with so many rounds."""
    keys: dict[str, Value] = {"dataset": "breast-cancer", "sites": 3, "rounds": 5, "model": "mlp", "local-steps": 5}
    simulate(keys | {"runs-dir": str(root), "run-name": "1", "workers": 1})
    lines = (root / "1" / "metrics.jsonl").read_text().splitlines()
    more = [json.dumps(json.loads(lines[1 + n % 4]) | {"round": n}) for n in range(rounds)]
    (root / "1" / "metrics.jsonl").write_text("".join(f"{line}\n" for line in more))
    for number in range(2, runs + 1):
        shutil.copytree(
            root / "1", root / str(number), ignore=shutil.ignore_patterns("*.html", "*.p??", "*.safetensors")
        )


def past(state: Path, runs: int, lines: int) -> None:
    """Write a state folder with earlier runs."""
    records, shown = Records(str(state)), {"computes": "codasca on auc, 40 rounds, mlp", "sends in a round": "x, a, b"}
    for number in range(1, runs + 1):
        at = time.time() - 86_400 * (runs - number)
        records.note(
            RunRecord(
                run=str(number), began=at, asked="x", decision="approved", open=True, place=[1, 0, 0], shown=shown
            )
        )
        log = Audit(state, str(number))
        head = {"run": str(number), "kind": "train", "phase": "", "round": 0}
        log._append({"time": "2026-01-01T00:00:00Z", "way": "act", **head, "act": "approved"})
        for line in range(lines - 1):
            arrays = [{"name": "x", "shape": [2083], "norm": 1.25, "bytes": 8332}]
            more = {"arrays": arrays, "numbers": ["round"], "round": line // 2}
            log._append({"time": "2026-01-01T00:00:00Z", "way": ("in", "out")[line % 2], **(head | more)})


def main() -> None:
    """Measure and print Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--lines", type=int, default=100, help="of the audit log, and rounds, of each run")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        folder, port = Path(home), free_port()
        state, runs = folder / "state", folder / "runs"
        past(state, options.runs, options.lines)
        ended(runs, options.runs, options.lines)
        os.environ["EDELWEISS_MEASURED"] = str(state)
        rules = folder / "site.toml"
        rules.write_text("[policy]\nmost-rounds = 0\n")
        node: dict[str, Value] = {"site": "north", "state-dir": str(state), "policy": str(rules)}
        node |= {"data-dir": str(write_table(folder / "data", *table(2000, seed=0))), "page": f"127.0.0.1:{port}"}
        with (
            deployment(folder, [node]) as running,
            of_coordinator(running, runs) as coordinator,
            ThreadPoolExecutor(1) as pool,
        ):
            site, seconds = of_site(f"http://127.0.0.1:{port}", state), options.seconds
            resting = [path for path in OF_COORDINATOR if path != "/runs/active"]
            quiet = site.measured(OF_SITE, seconds), coordinator.measured(resting, seconds)
            idle = site.scraped(seconds), coordinator.open(LIVE[0], seconds)
            job: dict[str, Value] = JOB | {"rounds": 100_000, "runs-dir": str(runs), "run-name": "active"}
            run = pool.submit(running.submit, job, timeout=8 * seconds + 120)
            rounds = runs / "active" / "metrics.jsonl"
            until(lambda: rounds.exists() and rounds.read_bytes().count(b"\n") > 20, lambda: str(run))
            busy = site.measured(OF_SITE, seconds), coordinator.measured(OF_COORDINATOR, seconds)
            looked = site.scraped(seconds), [coordinator.open(path, seconds) for path in LIVE]
            lines = (state / "audit.jsonl").read_bytes().count(b"\n") - options.runs * options.lines
            count = rounds.read_bytes().count(b"\n")
            assert not run.done(), run.result().log
            running.sites[0].terminate()
    head = "median, ms | 95 %, ms | processor, ms"
    for pages, still, training in zip((OF_SITE, OF_COORDINATOR), quiet, busy, strict=True):
        print(f"| | no run: {head} | training: {head} |\n| --- |{' ---: |' * 6}")
        for path in pages:
            print(f"| `{path}` | {still[path].cells() if path in still else '| |'} | {training[path].cells()} |")
        print()
    print(f"The site's page, scraped every {SCRAPE:.0f} s: {idle[0]:.2%} of a core; while training: {looked[0]:.2%}.")
    each = ", ".join(f"`{path}` {share:.2%}" for path, share in zip(LIVE, looked[1], strict=True))
    print(f"The coordinator's, open: {idle[1]:.2%}; while training: {each}.")
    print(f"The run wrote {lines} lines of the audit log and {count} rounds. Load: {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
