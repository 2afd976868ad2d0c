"""`make demo`, as somebody new to it goes through it: log in, approve, watch the run end, Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from edelweiss.lab.submission import REPO
from tests.browser import browser
from tests.deployment.processes import PATIENCE, until

pytestmark = pytest.mark.deployments

PICTURES = os.environ.get("EDELWEISS_PICTURES", "")  # a folder, such as docs/: the site's page is drawn there


@contextmanager
def login(url: str, name: str, password: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
        form = {"name": name, "password": password, "before": hidden(client.get("/login").text, "before")}
        assert client.post("/login", data=form).status_code == 303
        yield client


def hidden(page: str, name: str) -> str:
    """Return the value of a hidden field."""
    return str(re.findall(rf'name="{name}" value="([^"]+)"', page)[-1])


def draw(url: str, password: str, file: Path) -> None:
    """Write a picture of a page of the site's."""
    with browser() as window:
        window.look(1100, "light")
        window.open(url)
        window.fill("#name", "operator")
        window.fill("#password", password)
        window.click("main button")
        window.picture(file)


def has(page: str, *words: str) -> bool:
    return all(word in page for word in words)


def living(folder: Path) -> list[str]:
    """Return the commands of the processes that have a folder in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if bytes(folder) in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # of somebody else, or gone
            continue
    return found


def test_the_demo_runs_when_its_hospital_approves_and_leaves_nothing(tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    home = tmp_path / "home"
    home.mkdir()
    environment = os.environ | {"EDELWEISS_DATA": "", "TMPDIR": str(home)}
    with log.open("w") as stream:
        words = [sys.executable, str(REPO / "bin" / "demo.py")]
        demo = subprocess.Popen(words, env=environment, cwd=home, stdout=stream, stderr=stream, start_new_session=True)
    try:
        until(lambda: "waits for" in log.read_text() or demo.poll() is not None, log.read_text)
        said = log.read_text()
        urls, passwords = re.findall(r"page\b.* (http://127\S+)/", said), re.findall(r"password (\S+)", said)
        with login(urls[1], "operator", passwords[1]) as site, login(urls[0], "admin", passwords[0]) as coordinator:
            path = "/runs/" + re.findall(r"Run (\d+) waits", said)[0]
            if PICTURES:
                draw(f"{urls[1]}{path}", passwords[1], Path(PICTURES) / "site-page.png")
            form = {"decision": "approved", "seen": "waiting", "comment": ""}
            assert site.post(path, data=form | {"token": "guessed"}).status_code == 403
            until(lambda: has(coordinator.get("/runs/demo").text, "awaits approval"), log.read_text)
            assert site.post(path, data=form | {"token": hidden(site.get(path).text, "token")}).status_code == 303
            ended = ("30 of 30", ">complete<", "/runs/demo/report")
            until(lambda: has(coordinator.get("/runs/demo").text, *ended), log.read_text)
            assert coordinator.get("/runs/demo/report").status_code == 200
        assert living(home)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(PATIENCE) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
        assert living(home) == []
        assert list(home.iterdir()) == []
    finally:
        demo.kill()  # what it has started ends with it
        demo.wait()
