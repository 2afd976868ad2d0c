"""The coordinator's page in a real Chromium, over a SuperLink with three hospitals as docker-compose.yml starts them.

One deployment and one test: a run is started by keyboard, watched, loses a hospital, is stopped, resumed and complete.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from edelweiss.lab.dashboard import ROLES
from edelweiss.lab.dashboard.page import Dashboard
from edelweiss.lab.submission import REPO, flower_environment, started
from edelweiss.web import Accounts
from tests.browser import ENTER, TAB, Browser, browser
from tests.deployment.host import HOSPITALS, SERVICES, Host
from tests.deployment.processes import process_logs, until
from tests.server_app.sites import table, write_table

pytestmark = pytest.mark.deployments

PICTURES = os.environ.get("EDELWEISS_PICTURES", "")  # a folder, such as docs/: pictures of the page are written there
KILLED, STAYS, ASKS = HOSPITALS
HOSTILE = "<img src=x onerror=alert(1)>"  # a hospital's name, and a run's
RUN = "first"
TYPED = {
    "run-name": RUN,
    "model": "",
    "sites": "3",
    "rounds": "10",
    "config": 'workers = 1\ndevice = "cpu"\nhidden = 8\n',
}


class Coordinator:
    """The SuperLink with its hospitals, and the page's process."""

    def __init__(self, host: Host, stack: ExitStack) -> None:
        self.host, self.stack = host, stack
        self.runs = host.folder("serverapp", "/results") / "runs"
        self.sites = host.root / "sites"
        shutil.copytree(host.certificates / "public", self.sites)
        (self.sites / f"{ASKS}.pub").rename(self.sites / f"{HOSTILE}.pub")
        with (host.folder(ASKS, "/") / "site.toml").open("a", encoding="utf-8") as rules:
            rules.write('approve = "ask"\n')
        self.hospitals = host.federation(stack)
        self.passwords = {name: self._account(name, role) for name, role in {"rita": "run", "leo": "look"}.items()}
        options = [f"--superlink=127.0.0.1:{host.ports['superlink', '8000']}", f"--runs-dir={self.runs}"]
        made = {"root-certificates": "ca.crt", "certificate": "operator.crt", "key": "operator.key"}
        made |= {"study-key": "study.key", "executor": "executor.pub"}
        options += [f"--{name}={host.certificates / file}" for name, file in made.items()]
        log = host.root / "dashboard.log"
        self._start([*options, f"--sites={self.sites}", "--page=127.0.0.1:0"], log)
        until(lambda: "http" in log.read_text(), log.read_text)
        self.url = log.read_text().split()[-1].rstrip("/")

    def _start(self, options: list[str], log: Path) -> None:
        stream = self.stack.enter_context(log.open("w"))
        environment = flower_environment(self.host.root)
        self.stack.enter_context(started(self._words(*options), environment, cwd=REPO, stdout=stream, stderr=stream))

    def _words(self, *options: str) -> list[str]:
        accounts = f"--accounts={self.host.root / 'accounts.json'}"
        return [sys.executable, "-m", "edelweiss.lab.cli", "dashboard", accounts, *options]

    def _account(self, name: str, role: str) -> str:
        words = self._words(f"--account={name}:{role}")
        return subprocess.run(words, cwd=REPO, capture_output=True, text=True, check=True).stdout.split()[-1]

    @property
    def status(self) -> str:
        """How the run's folder says it stands."""
        file = self.runs / RUN / "status.json"
        return str(json.loads(file.read_text())["status"]) if file.exists() else ""

    @property
    def rounds(self) -> int:
        """How many rounds the run's folder has."""
        file = self.runs / RUN / "metrics.jsonl"
        return file.read_text().count("\n") if file.exists() else 0

    def approve(self) -> None:
        """Approve the run at the hospital that asks."""
        state = self.host.folder(ASKS, "/state")
        words = [sys.executable, "-m", "edelweiss.client_app.cli"]
        said = subprocess.run([*words, "runs", f"--state-dir={state}"], cwd=REPO, capture_output=True, text=True).stdout
        number = re.findall(r"run (\d+): waiting", said)[-1]
        subprocess.run([*words, "approve", number, f"--state-dir={state}"], cwd=REPO, check=True, capture_output=True)


@contextmanager
def coordinator(folder: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinator]:
    """Run all of it through the block."""
    command = [word.replace(f"--site={ASKS}", f"--site={HOSTILE}") for word in SERVICES[ASKS]["command"]]
    monkeypatch.setitem(SERVICES[ASKS], "command", command)
    for number, name in enumerate(HOSPITALS):
        write_table(folder / name / "data", *table(200, number))
    with ExitStack() as stack:
        yield Coordinator(Host(folder, certificates), stack)


def hostile_run(root: Path) -> None:
    """Write a run that says nothing but HTML."""
    folder = root / HOSTILE
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'algorithm = "{HOSTILE}"\nstarted-by = "{HOSTILE}"\n')
    (folder / "status.json").write_text(json.dumps({"status": "failed", "reason": HOSTILE, "since": HOSTILE}))


def login(window: Browser, url: str, name: str, password: str) -> None:
    window.cdp("Network.clearBrowserCookies")
    window.open(f"{url}/login")
    window.fill("#name", name)
    window.fill("#password", password)
    window.click("main button")


def tab_to(window: Browser, selector: str) -> None:
    """Press the tabulator until an element has the focus, which has to be seen."""
    for _ in range(60):
        if window.js("return document.activeElement.matches(arguments[0])", selector):
            assert window.js("return getComputedStyle(document.activeElement).outlineStyle") != "none", selector
            return
        window.keys(TAB)
    raise AssertionError(f"no way to {selector} by keyboard")


def shows(window: Browser, *words: str) -> None:
    """Wait until the page, which is not loaded anew, has these words."""
    until(lambda: all(word in window.text() for word in words), window.text)


def press(window: Browser, button: str, token: str = "") -> None:
    """Press a button of a run, at once: the page replaces what has changed."""
    script = """const button = document.querySelector(`button[value=${arguments[0]}]`);
    if (arguments[1]) button.form.elements.token.value = arguments[1];
    button.click();"""
    with window.leaving():
        window.js(script, button, token)


def row_of(window: Browser, hospital: str) -> str:
    """Return what the table of hospitals says of one, and the class of its first badge."""
    script = """const row = [...document.querySelectorAll("tbody tr")].find(r => r.cells[0].innerText === arguments[0]);
    return row ? row.innerText + " " + row.querySelector(".badge").className : "";"""
    return str(window.js(script, hospital))


def start_by_keyboard(window: Browser, it: Coordinator) -> None:
    window.cdp("Network.clearBrowserCookies")
    window.open(f"{it.url}/")
    window.keys(*"rita", TAB, *it.passwords["rita"], ENTER, leads=True)
    tab_to(window, "a[href='/new']")
    window.keys(ENTER, leads=True)
    for key, text in TYPED.items():
        if text:
            tab_to(window, f"#{key}")
            window.js("document.activeElement.value = ''")
            window.keys(*(ENTER if character == "\n" else character for character in text))
    tab_to(window, "main button")
    window.keys(ENTER, leads=True)
    shows(window, RUN, "starting")
    until(lambda: it.status == "running", lambda: window.text() + process_logs(it.host.root))
    shows(window, "running", "rita")


def looks(window: Browser, *addresses: str) -> None:
    """Narrow and light, wide and dark: no horizontal scroll, no HTML of others, nothing that axe finds."""
    for width, scheme in ((360, "light"), (1440, "dark")):
        window.look(width, scheme)
        for address in addresses:
            window.open(address)
            assert window.js("return document.documentElement.scrollWidth") <= width, address
            assert window.js("return document.querySelectorAll('main img').length") == 0, address
            assert window.off_keyboard() == [], address
            assert window.violations() == [], (address, width, scheme)
    window.look(1440, "light")


def pages(window: Browser, it: Coordinator) -> list[str]:
    """Return the addresses of every page while a run goes on, and of what is none."""
    routes = Dashboard(it.runs, None).page(Accounts(it.host.root / "accounts.json", ROLES)).routes
    found = window.pages(it.url, routes, name=RUN)
    assert {"/", "/hospitals", f"/runs/{RUN}", "/new", "/compare"} <= {*found}
    return [it.url + page for page in (*found, f"/runs/{HOSTILE.replace(' ', '%20')}", "/nowhere")]


def test_a_run_from_its_start_to_its_end(tmp_path: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with browser() as window, coordinator(tmp_path, certificates, monkeypatch) as it:
        hostile_run(it.runs)
        login(window, it.url, "rita", "not her password")
        assert "wrong" in window.text()
        assert window.js("return location.pathname") == "/login"
        window.look(1440, "light")
        start_by_keyboard(window, it)

        window.open(f"{it.url}/runs/{RUN}")
        shows(window, "Waits for the operator's approval", HOSTILE)
        window.open(f"{it.url}/hospitals")
        until(lambda: "connected" in row_of(window, HOSTILE), window.text)
        assert "awaits approval" in row_of(window, HOSTILE)
        it.approve()
        until(lambda: it.rounds >= 2, lambda: process_logs(it.host.root))
        os.kill(it.hospitals[KILLED].pid, signal.SIGKILL)  # the run waits for it, and the SuperLink for its heartbeats
        until(lambda: "ours" not in row_of(window, STAYS) and "unknown" not in row_of(window, STAYS), window.text)
        assert "badge good" in row_of(window, KILLED), "not known yet"

        window.open(f"{it.url}/runs/{RUN}")
        shows(window, "AUROC", "of 10", "Stop")
        press(window, "stop", token="guessed")
        assert "Not from this page" in window.text()
        assert it.status == "running"
        looks(window, *pages(window, it))

        window.open(f"{it.url}/hospitals")
        until(lambda: "badge bad" in row_of(window, KILLED), window.text)
        assert re.search(r"away\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", row_of(window, KILLED)), "since when"
        assert "badge good" in row_of(window, STAYS)
        window.open(f"{it.url}/runs/{RUN}")
        shows(window, f"Away: {KILLED}")
        press(window, "stop")
        shows(window, "stopped", "Resume")
        press(window, "resume")
        shows(window, "running", "Waits until 3 hospitals", f"Away: {KILLED}")
        it.stack.enter_context(it.host.up(KILLED))
        shows(window, "complete", "10 of 10", "Report")
        assert it.status == "complete"
        window.open(f"{it.url}/runs/{RUN}/report")
        assert "In short" in window.text()
        looks(window, f"file://{it.runs / RUN}/report.html")  # the same, where axe's script may run
        window.open(f"{it.url}/runs/{RUN}")
        if PICTURES:
            window.look(1100, "light")
            window.picture(Path(PICTURES) / "coordinator-page.png")
        (it.sites / "broken.pub").write_text("no key")
        window.open(f"{it.url}/hospitals")
        until(lambda: "badge good" in row_of(window, KILLED), window.text)
        shows(window, "broken.pub is no public key")
        login(window, it.url, "leo", it.passwords["leo"])
        assert "Start a run" not in window.text()
        window.open(f"{it.url}/runs/{RUN}")
        assert window.js("return document.querySelectorAll('main button').length") == 0
