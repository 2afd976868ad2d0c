"""The coordinator's page as a process, with real runs in its folder."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from edelweiss.lab.dashboard import ROLES
from edelweiss.lab.dashboard.runs import Shown
from edelweiss.lab.submission import REPO
from edelweiss.server_app import simulate
from edelweiss.server_app.run_notes import ACTS, WARNINGS, RunWarnings, note_act, read_notes
from edelweiss.web import Accounts
from tests.server_app.sites import saddle_job

pytestmark = pytest.mark.slow

NASTY = "a<script>alert(1)</script>"
PATIENCE = 300.0  # seconds, of a busy machine


class Browser:
    """A browser that follows redirects and remembers its token."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(
            base_url=url, follow_redirects=True, timeout=PATIENCE, verify=False
        )  # there is no TLS here

    def login(self, name: str, password: str) -> httpx.Response:
        before = found(r'name="before" value="([^"]+)"', self.client.get("/login").text)
        return self.client.post("/login", data={"name": name, "password": password, "before": before})

    def post(self, path: str, **form: str) -> httpx.Response:
        return self.client.post(path, data={"token": self.token, **form})

    @property
    def token(self) -> str:
        return found(r'name="token" value="([^"]+)"', self.client.get("/").text)


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match, text
    return match[1]


def until(reached: Callable[[], bool], shown: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline, shown()
        time.sleep(0.05)


class Served:
    """A page that is served, and its two accounts."""

    def __init__(self, root: Path, url: str, passwords: dict[str, str]) -> None:
        self.root, self.url, self.passwords = root, url, passwords

    def browser(self, name: str = "rita") -> Browser:
        browser = Browser(self.url)
        assert browser.login(name, self.passwords[name]).status_code == 200
        return browser

    @property
    def started(self) -> list[Path]:
        return [*(self.root / ".started").glob("*.toml")]

    def status(self, name: str) -> str:
        file = self.root / name / "status.json"
        return str(json.loads(file.read_text())["status"]) if file.exists() else ""

    def becomes(self, name: str, status: str) -> None:
        until(lambda: self.status(name) == status, lambda: f"{name} is {self.status(name)}, not {status}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("dashboard")
    root, there = folder / "here", folder / "runs"  # one folder, by two paths
    there.mkdir()
    root.symlink_to(there)
    for seed in (0, 1):
        simulate(saddle_job(folder, rounds=4, run_name=f"seed-{seed}", seed=seed))
    (root / "hostile").mkdir()
    (root / "hostile" / "config.toml").write_text(f'algorithm = "{NASTY}"\nstarted-by = "{NASTY}"\n')
    (root / "hostile" / "status.json").write_text(json.dumps({"status": "failed", "reason": NASTY, "since": "now"}))
    for number in range(50):
        RunWarnings(root / "hostile").keep(f"warning {number} {NASTY}\x1b[31m\nforged" + number * "x" * 10_000)
    with (root / "hostile" / WARNINGS).open("a") as file:
        file.write('[]\n{"at": 1e300, "text": {"a": 1}}\n{"at": ')
    note_act(root / "hostile", "stopped", f"{NASTY}\n{'x' * 10_000}")
    (root / "seed-0" / "report.html").write_text("<html><p>its report")
    base = [sys.executable, "-m", "edelweiss.lab.cli", "dashboard", "--accounts", str(folder / "accounts.json")]
    said = subprocess.run([*base, "--account", "rita:run"], cwd=REPO, capture_output=True, text=True)
    others = {"leo": "look", "rolf": "run"}
    passwords = {name: Accounts(folder / "accounts.json", ROLES).set(name, role) for name, role in others.items()}
    passwords["rita"] = said.stdout.split()[-1]
    command = [*base, "--runs-dir", str(root), "--runs-there", str(there), "--page", "127.0.0.1:0"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        try:
            yield Served(root, process.stdout.readline().split()[-1], passwords)
        finally:
            process.terminate()


def test_nobody_sees_anything_without_a_password(served: Served) -> None:
    for path in ("/", "/hospitals", "/runs/seed-0", "/runs/seed-0/live", "/runs/seed-0/report", "/compare", "/new"):
        response = httpx.get(served.url.rstrip("/") + path)
        assert response.status_code == 303, path
        assert response.headers["location"].startswith("/login")
    assert Browser(served.url).login("rita", "not her password").status_code == 401
    assert httpx.get(served.url + "healthz").status_code == 200


def test_it_shows_runs_their_report_and_how_they_compare(served: Served) -> None:
    client = served.browser("leo").client
    assert all(name in client.get("/").text for name in ("seed-0", "seed-1", "complete", "failed"))
    assert "4 of 4" in client.get("/runs/seed-0").text
    assert "its report" in client.get("/runs/seed-0/report").text
    assert "sandbox" in client.get("/runs/seed-0/report").headers["content-security-policy"]
    assert client.get("/runs/seed-1/report").status_code == 404
    assert client.get("/runs/no-such").status_code == client.get("/runs/..%2fruns").status_code == 404
    assert "|" in client.get("/compare", params={"run": ["seed-0", "seed-1"]}).text
    assert "two runs" in client.get("/compare").text


@pytest.mark.parametrize("path", ["/", "/runs/hostile", "/runs/hostile/live"])
def test_names_full_of_html_are_text(served: Served, path: str) -> None:
    with served.browser().client.stream("GET", path) as response:
        text = ""
        for line in response.iter_lines():
            text += line
            if line.startswith("data: "):
                break
    assert "alert(1)" in text
    assert "<script>alert" not in text


def test_the_newest_warnings_are_shown_and_no_more(served: Served) -> None:
    text = served.browser().client.get("/runs/hostile").text.partition('id="notes"')[2]
    numbers = [int(number) for number in re.findall(r"<td>warning (\d+) ", text)]
    assert numbers == [*range(49, 49 - len(numbers), -1)]
    assert 10 <= len(numbers) <= 20
    assert "\x1b" not in text
    assert len(text) < 60_000


def test_who_may_only_look_starts_and_stops_nothing(served: Served) -> None:
    leo, before = served.browser("leo"), {*served.root.iterdir()}
    for path, form in {"/new": {"config": "rounds = 1"}, "/runs/hostile/act": {"do": "resume"}}.items():
        assert leo.post(path, **form).status_code == 403
    assert served.browser().client.post("/new", data={"token": "guessed", "config": "rounds = 1"}).status_code == 403
    assert {*served.root.iterdir()} == before


def test_the_form_and_a_toml_file_make_one_run_config(served: Served) -> None:
    rita, before = served.browser(), {*served.root.iterdir()}
    token = found(r'name="token" value="([^"]+)"', rita.client.get("/").text)
    given = {"token": token, "algorithm": "coda", "rounds": "5", "config": "left = 'out'"}
    for content, said in (("roundz = 4", "roundz"), ("rounds = 6", "the TOML says 6"), ("sites = 0", "sites")):
        response = rita.client.post("/new", data=given, files={"file": ("run.toml", content, "application/toml")})
        assert response.status_code == 422
        wrong = response.text.partition("Nothing was started")[2].partition("<form")[0]
        assert said in wrong
        assert "left" not in wrong, "the file is in place of the text"
        assert content in response.text.partition("<textarea")[2], "it can be mended"
    assert {*served.root.iterdir()} == before


def test_what_did_not_start_is_shown_with_the_reason(served: Served) -> None:
    rita = served.browser()
    config = 'dataset = "table"\ndata-file = "/nowhere/at-all.csv"\nlabel = "died"\nrun-name = "no start"\n'
    assert rita.post("/new", config=config).status_code == 200
    until(lambda: "not started" in rita.client.get("/").text)
    text = rita.client.get("/").text
    assert "at-all.csv" in text
    assert "no-start" in text
    assert not (served.root / "no-start").exists()


@pytest.mark.parametrize("name", ["x" * 300, "x" * 10**6, "é" * 200, "a\x1b[31mb", "a\0b", NASTY * 20], ids=len)
def test_a_run_with_an_impossible_name_is_said(served: Served, name: str) -> None:
    rita, before = served.browser(), {*served.root.iterdir()}
    answer = rita.post("/new", **{"run-name": name, "problem": "saddle", "algorithm": "coda"})
    assert (answer.status_code, "run-name" in answer.text.partition("Nothing was started")[2]) == (422, True)
    assert "<script>alert" not in answer.text
    assert {*served.root.iterdir()} == before
    for path in ("", "/live", "/report"):
        assert rita.client.get(f"/runs/{quote(name[:5000], safe='')}{path}").status_code == 404


def test_two_who_resume_a_run_at_once_start_it_once(served: Served) -> None:
    folder = served.root / "twice"
    shutil.copytree(served.root / "seed-0", folder)
    status = json.loads((folder / "status.json").read_text()) | {"status": "stopped"}
    (folder / "status.json").write_text(json.dumps(status))
    browsers, started = [served.browser(name) for name in ("rita", "rolf")], len(served.started)
    codes: list[int] = []
    both = [(one, one.token) for one in browsers]

    def press(one: Browser, token: str) -> None:
        codes.append(one.client.post("/runs/twice/act", data={"token": token, "do": "resume"}).status_code)

    threads = [threading.Thread(target=press, args=each) for each in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [200, 409]
    assert len(served.started) == started + 1


def test_a_flood_of_live_pages_keeps_nobody_else_out(served: Served) -> None:
    rita, leo = served.browser(), served.browser("leo")
    cookies = "; ".join(f"{name}={value}" for name, value in rita.client.cookies.items())
    head = f"GET /runs/hostile/live HTTP/1.1\r\nHost: localhost\r\nCookie: {cookies}\r\n\r\n".encode()
    address = ("127.0.0.1", int(served.url.rstrip("/").rpartition(":")[2]))
    flood = [socket.create_connection(address, timeout=PATIENCE) for _ in range(200)]
    try:
        for one in flood:
            one.sendall(head)
        assert [one.recv(12) for one in flood] == [b"HTTP/1.1 200"] * 200
        for browser in (leo, rita):
            assert browser.client.get("/runs/hostile").status_code == 200
        with leo.client.stream("GET", "/runs/hostile/live") as response:
            assert "retry: 1000" in next(response.iter_lines())
        with rita.client.stream("GET", "/runs/hostile/live") as response:
            said = [*response.iter_lines()]  # which ends
        assert "retry: 1000" not in said[0]
        assert any(line.startswith("data: ") for line in said), "it has a look all the same"
    finally:
        for one in flood:
            one.close()


def test_a_live_page_ends_with_the_password(served: Served) -> None:
    accounts = Accounts(served.root.parent / "accounts.json", ROLES)
    served.passwords["mia"] = accounts.set("mia", "run")
    stolen = served.browser("mia")
    token = stolen.token
    with stolen.client.stream("GET", "/runs/hostile/live") as response:
        lines = response.iter_lines()
        next(line for line in lines if line.startswith("data: "))
        accounts.set("mia", "run")
        RunWarnings(served.root / "hostile").keep("nothing for thieves")
        assert not [line for line in lines if "thieves" in line]
    stolen.client.follow_redirects = False
    for answer in (
        stolen.client.get("/"),
        stolen.client.post("/runs/hostile/act", data={"token": token, "do": "resume"}),
    ):
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/login")


@pytest.mark.parametrize(("host", "title"), [(socket.gethostname(), "It has ended"), ("elsewhere", "Not stopped")])
def test_a_run_that_cannot_be_stopped_from_here_is_said(served: Served, host: str, title: str) -> None:
    folder = served.root / "locked"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text("rounds = 3\n")
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    (folder / "status.json").write_text(json.dumps({"status": "running", "process": gone.pid, "host": host}))
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        response = served.browser().post("/runs/locked/act", do="stop")
    finally:
        os.close(lock)
    assert response.status_code == 409
    assert title in response.text
    assert "lost" in served.browser().client.get("/runs/locked").text, "and once nobody holds it, it is lost"


@pytest.mark.parametrize("command", ["dashboard", "resume"])
def test_nobody_talks_to_a_superlink_in_the_open_by_mistake(command: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "edelweiss.lab.cli", command, "--superlink", "far.example:8000"]
    words += ["--accounts", str(tmp_path / "accounts.json")] if command == "dashboard" else []
    done = subprocess.run(words, cwd=REPO, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert "--root-certificates" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("config", "key"),
    [("rounds = 0", "rounds"), ("roundz = 4", "roundz"), ("= 4", "TOML"), ('run-name = "hostile"', "hostile")],
)
def test_a_mistake_is_said_as_on_the_command_line_and_starts_nothing(served: Served, config: str, key: str) -> None:
    before = {*served.root.iterdir()}
    response = served.browser().post("/new", config=config)
    assert response.status_code == 422
    assert key in response.text.partition("Nothing was started")[2].partition("<form")[0]
    assert {*served.root.iterdir()} == before


def test_a_run_is_started_watched_stopped_and_resumed(served: Served) -> None:
    rita, rolf, folder = served.browser(), served.browser("rolf"), served.root / "new"
    config = 'algorithm = "local-sgda"\nproblem = "saddle"\nsites = 2\nworkers = 1\nrounds = 100000000\n'
    assert rita.post("/new", config=config + 'run-name = "new"\nreport = false\nlocal-steps = 20\n').status_code == 200
    until(lambda: (folder / "metrics.jsonl").exists())
    assert f'runs-dir = "{served.root.resolve()}"' in (folder / "config.toml").read_text(), "the path of --runs-there"
    with rita.client.stream("GET", "/runs/new/live") as response:
        lines = response.iter_lines()
        seen = next(line for line in lines if line.startswith("data: "))
        assert "lost a site" not in seen
        RunWarnings(folder).keep(f"lost a site {NASTY}")  # as the run's own process does
        later = next(line for line in lines if "lost a site" in line)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert "rita" in json.loads(seen.removeprefix("data: "))["progress"]
    notes = json.loads(later.removeprefix("data: "))["notes"]
    assert "alert(1)" in notes
    assert "<script" not in notes
    assert rolf.post("/runs/new/act", do="stop").status_code == 200
    served.becomes("new", "stopped")
    assert rita.post("/runs/new/act", do="stop").status_code == 409, "who comes second is told"
    assert "Resume" in rita.client.get("/runs/new").text
    assert "lost a site" in rita.client.get("/runs/new").text, "it stays"
    assert rolf.post("/runs/new/act", do="resume").status_code == 200
    served.becomes("new", "running")
    assert rita.post("/runs/new/act", do="stop").status_code == 200
    served.becomes("new", "stopped")
    acts = [("stopped", "rolf"), ("resumed", "rolf"), ("stopped", "rita")]
    assert [(note["act"], note["by"]) for note in read_notes(folder / ACTS)] == acts
    text = rita.client.get("/runs/new").text
    assert re.findall(r"<td>(\w+) by (\w+)</td>", text) == acts[::-1]
    assert re.search(r"Started by</dt><dd>rita<", text)


def test_warnings_are_collected_once_until_a_new_one_comes(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(json.dumps({"status": "complete", "warnings": ["early"]}))
    kept = RunWarnings(tmp_path)
    kept.keep("first")
    run = Shown.read(tmp_path)
    assert [text for _, text in run.warnings] == ["first", "early"]
    assert run.warnings is run.warnings
    kept.keep("second")
    assert [text for _, text in run.warnings] == ["second", "first", "early"]
