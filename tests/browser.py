"""A real headless Chromium, driven by chromedriver's protocol; skips where there is none."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from PIL import Image

from bin.run import free_port

if TYPE_CHECKING:
    from starlette.routing import Route

OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
TAB, ENTER, SPACE = "\ue004", "\ue007", " "
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
PATIENCE = 600.0  # seconds, of a busy machine

STOPS = """
const usable = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']";
window.stops = [...document.querySelectorAll(usable)].filter(e => !e.disabled && e.checkVisibility());
window.focused = new Set();
document.addEventListener("focusin", event => {
  if (getComputedStyle(event.target).outlineStyle !== "none") window.focused.add(event.target);
});
return window.stops.length;
"""


class Browser:
    """One window."""

    def __init__(self, session: str) -> None:
        self._client = httpx.Client(base_url=session, timeout=PATIENCE, trust_env=False)

    def _ask(self, path: str, **values: object) -> Any:
        answer = self._client.post(path, json=values).json()["value"]
        assert not (isinstance(answer, dict) and "error" in answer), answer
        return answer

    def open(self, url: str) -> None:
        """Open an address."""
        self._ask("url", url=url)

    def js(self, text: str, *arguments: object) -> Any:
        """Run JavaScript in the page and return its value."""
        return self._ask("execute/sync", script=text, args=list(arguments))

    def cdp(self, command: str, **values: object) -> None:
        """Send a command of Chromium's own protocol."""
        self._ask("goog/cdp/execute", cmd=command, params=values)

    def look(self, width: int, scheme: str) -> None:
        """Set the window's width in pixels, and light or dark."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.cdp("Emulation.setDeviceMetricsOverride", **size)
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def find(self, selector: str) -> str:
        """Return an element."""
        return str(self._ask("element", using="css selector", value=selector)[ELEMENT])

    def click(self, selector: str) -> None:
        """Click what leads to another page, and wait for that."""
        with self.leaving():
            self._ask(f"element/{self.find(selector)}/click")

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Wait for the next page: Chromium may return before it has begun."""
        self.js("window.left = true")
        yield
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with suppress(AssertionError):  # between two pages there is none to ask
                if self.js("return window.left === undefined && document.readyState === 'complete'"):
                    return
            time.sleep(0.02)
        raise AssertionError("no other page came")

    def fill(self, selector: str, text: str) -> None:
        """Type into an element."""
        self._ask(f"element/{self.find(selector)}/value", text=text)

    def keys(self, *keys: str, leads: bool = False) -> None:
        """Press keys one after another, wherever the focus is; wait for another page if they lead to one."""
        pressed = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        with self.leaving() if leads else nullcontext():
            self._ask("actions", actions=[{"type": "key", "id": "keyboard", "actions": pressed}])

    def text(self) -> str:
        """Return the page's visible text."""
        return str(self.js("return document.body.innerText"))

    def off_keyboard(self) -> list[str]:
        """Return what can be used and is not reached by the tabulator, or not seen to have the focus.

        What a live page has replaced meanwhile does not count.
        """
        count = self.js(STOPS)
        self.keys(*[TAB] * 2 * (count + 2))  # from wherever the focus is, once around
        return list(
            self.js("return window.stops.filter(e => e.isConnected && !window.focused.has(e)).map(e => e.outerHTML)")
        )

    def pages(self, url: str, routes: Iterable[Route], **values: str) -> list[str]:
        """Return the paths of the pages that an app has for who has logged in here.

        Parameters
        ----------
        url : str
            Where it answers.
        routes : iterable of Route
            All of the app: what it answers tells what is a page.
        **values : str
            For the parameters in paths.
        """
        cookies = {each["name"]: each["value"] for each in self._client.get("cookie").json()["value"]}
        found = []
        with httpx.Client(base_url=url, cookies=cookies, timeout=PATIENCE, trust_env=False) as client:
            for path in [route.path.format(**values) for route in routes if "GET" in (route.methods or ())]:
                with client.stream("GET", path) as answer:
                    kind, file = answer.headers.get("content-type", ""), "content-disposition" in answer.headers
                if kind.startswith("text/html") and not file:
                    found.append(path)
        return found

    def picture(self, file: Path) -> None:
        """Write a PNG of the window, of 256 colours, the rare ones too."""
        whole = Image.open(BytesIO(base64.b64decode(self._client.get("screenshot").json()["value"]))).convert("RGB")
        whole.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(file, optimize=True)

    def violations(self) -> list[str]:
        """Return what axe-core finds; skips without it."""
        self.js(_axe())
        script = "return axe.run().then(r => r.violations.map(v => v.id + ': ' + v.nodes.map(n => n.html).join(' | ')))"
        return list(self.js(script))


@cache
def _axe() -> str:
    folder = os.environ.get("EDELWEISS_AXE", "")
    if not folder and (npm := shutil.which("npm")):
        root = subprocess.run([npm, "root", "-g"], capture_output=True, text=True, timeout=PATIENCE).stdout.strip()
        folder = f"{root}/axe-core"
    file = Path(folder) / "axe.min.js"
    if not file.is_file():
        pytest.skip("axe-core is not here: npm install -g axe-core")
    return file.read_text(encoding="utf-8")


@contextmanager
def browser() -> Iterator[Browser]:
    """Open a browser through the block."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if not (driver and chromium):
        pytest.skip("Chromium is not here: apt-get install chromium chromium-driver")
    port = free_port()
    with tempfile.TemporaryDirectory() as profile:
        process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            base = f"http://127.0.0.1:{port}"
            for _ in range(6000):
                try:
                    httpx.get(f"{base}/status", timeout=PATIENCE, trust_env=False)
                    break
                except httpx.HTTPError:
                    time.sleep(0.1)
            chrome = {"binary": chromium, "args": [*OPTIONS, f"--user-data-dir={profile}"]}
            patient = dict.fromkeys(("script", "pageLoad"), int(1000 * PATIENCE))
            wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": chrome, "timeouts": patient}}}
            made = httpx.post(f"{base}/session", json=wanted, timeout=PATIENCE, trust_env=False).json()["value"]
            session = f"{base}/session/{made['sessionId']}/"
            try:
                yield Browser(session)
            finally:
                httpx.delete(session.rstrip("/"), timeout=PATIENCE, trust_env=False)
        finally:
            process.terminate()
            process.wait(PATIENCE)
