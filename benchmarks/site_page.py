"""The site's page while a run trains: how long a page takes, and what it takes of a core.

    python -m benchmarks.site_page --runs 200 --lines 100 --seconds 60

It starts a SuperLink and a site with its page, whose state folder has so many earlier runs with so many lines of the
audit log each; then a run that trains for the time of the measurement. The processor's time is that of the page's
process alone, looked up in /proc (Linux).
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
from tests.deployment.processes import deployment, until  # noqa: E402
from tests.server_app.sites import table, write_table  # noqa: E402

if TYPE_CHECKING:
    from urllib.request import OpenerDirector

    from edelweiss.common import Value

PASSWORD = "correct horse battery"
PAGES = ("/", "/runs", "/runs/1", "/audit", "/metrics")
SCRAPE = 15.0  # seconds between two looks of a monitoring system
JOB = {"dataset": "site", "sites": 1, "algorithm": "fedavg", "problem": "bce", "model": "mlp", "local-steps": 50}


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
    """The page of the site, and its process."""

    def __init__(self, url: str, state: Path) -> None:
        self.url, self.client = url, build_opener(HTTPCookieProcessor())
        accounts_in(str(state)).set("anna", "decide", PASSWORD)
        until(self._answers)
        before = re.search(r'name="before" value="([^"]+)"', self.get("/login", self.client))
        assert before
        self.client.open(
            f"{url}/login", urlencode({"name": "anna", "password": PASSWORD, "before": before[1]}).encode()
        )
        [self.pid] = [int(one.parent.name) for one in Path("/proc").glob("[0-9]*/cmdline") if self._is(one, state)]

    def _answers(self) -> bool:
        with suppress(URLError, OSError):
            self.get("/healthz", self.client)
            return True
        return False

    @staticmethod
    def _is(cmdline: Path, state: Path) -> bool:
        with suppress(OSError):
            mark = f"EDELWEISS_MEASURED={state}".encode()
            return b"page.process" in cmdline.read_bytes() and mark in (cmdline.parent / "environ").read_bytes()
        return False

    def get(self, path: str, client: OpenerDirector) -> str:
        """Return a page."""
        with client.open(self.url + path, timeout=60) as answer:
            return str(answer.read().decode())

    def processor(self) -> float:
        """Return the processor's time of its process."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def measured(self, seconds: float) -> dict[str, Taken]:
        """Ask for all pages in turn, for so long."""
        found = {path: Taken() for path in PAGES}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for path, taken in found.items():
                before, began = self.processor(), time.perf_counter()
                text = self.get(path, self.client)
                taken.wall.append(time.perf_counter() - began)
                taken.processor.append(self.processor() - before)
                assert ("edelweiss_audit_whole 1.0" if path == "/metrics" else "Log out") in text
                time.sleep(0.05)
        return found

    def idle(self, seconds: float) -> float:
        """Return the share of a core that it takes, opened in a browser and looked at by a monitoring system."""
        before, began = self.processor(), time.monotonic()
        while time.monotonic() < began + seconds:
            self.get("/metrics", self.client)
            time.sleep(SCRAPE)
        return (self.processor() - before) / (time.monotonic() - began)


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
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--lines", type=int, default=100, help="of the audit log, for each run")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        folder, port = Path(home), free_port()
        state = folder / "state"
        past(state, options.runs, options.lines)
        os.environ["EDELWEISS_MEASURED"] = str(state)
        rules = folder / "site.toml"
        rules.write_text("[policy]\nmost-rounds = 0\n")
        node: dict[str, Value] = {"site": "north", "state-dir": str(state), "policy": str(rules)}
        node |= {"data-dir": str(write_table(folder / "data", *table(2000, seed=0))), "page": f"127.0.0.1:{port}"}
        with deployment(folder, [node]) as running, ThreadPoolExecutor(1) as pool:
            page = Page(f"http://127.0.0.1:{port}", state)
            before = (state / "audit.jsonl").stat().st_size
            quiet = page.measured(options.seconds)
            idle = page.idle(options.seconds)
            run = pool.submit(running.submit, {**JOB, "rounds": 100_000}, timeout=2 * options.seconds + 40)
            until(lambda: (state / "audit.jsonl").stat().st_size > before + 20_000, lambda: str(run))
            busy = page.measured(options.seconds)
            looked = page.idle(options.seconds)
            lines = (state / "audit.jsonl").read_bytes().count(b"\n") - options.runs * options.lines
            assert not run.done(), run.result().log
            running.sites[0].terminate()
    head = "median, ms | 95 %, ms | processor, ms"
    print(f"| | no run: {head} | training: {head} |\n| --- |{' ---: |' * 6}")
    for path in PAGES:
        print(f"| `{path}` | {quiet[path].cells()} | {busy[path].cells()} |")
    print(f"\nOpen and scraped every {SCRAPE:.0f} s: {idle:.2%} of a core; while training: {looked:.2%}.")
    print(f"The run wrote {lines} lines of the audit log.")


if __name__ == "__main__":
    main()
