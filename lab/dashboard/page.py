"""The routes of the coordinator's page."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from edelweiss.common import ConfigError, Value, to_toml
from edelweiss.common.files import reason
from edelweiss.lab.dashboard.runs import Shown, ago, all_runs, by_node
from edelweiss.lab.dashboard.superlink import SuperLink
from edelweiss.web import Accounts, Page, PageError, act, public, render, view

ROLES = ("look", "run")
EXAMPLE = 'dataset = "site"\nsites = 3\nrounds = 40\n'
EVERY, STREAM = 1.0, 60.0  # seconds between looks at a run, and until a browser has to show its session again
REPORT = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; sandbox"


@dataclass(frozen=True)
class Dashboard:
    """The page over a folder of runs and, where there is one, a SuperLink.

    Parameters
    ----------
    root : Path
        The folder.
    superlink : SuperLink, optional
        Where runs are submitted; without, they run on this machine.
    submitting : sequence of str
        Options of ``edelweiss submit`` for this SuperLink.
    """

    root: Path
    superlink: SuperLink | None
    submitting: tuple[str, ...] = ()

    def page(self, accounts: Accounts) -> Page:
        """Return the page."""
        return Page(
            "Coordinator",
            accounts,
            Path(__file__).parent / "templates",
            [("/", "Runs"), ("/hospitals", "Hospitals")],
            [
                view("/", self.runs),
                view("/hospitals", self.hospitals),
                view("/new", self.form),
                act("/new", self.start, role="run"),
                view("/compare", self.compare),
                *self._of_a_run(),
                public("/healthz", lambda request: Response("ok\n", media_type="text/plain")),
            ],
        )

    def _of_a_run(self) -> list[Route]:
        return [
            view("/runs/{name}", self.run),
            view("/runs/{name}/live", self.live),
            view("/runs/{name}/report", self.report),
            act("/runs/{name}/act", self.do, role="run"),
        ]

    def _shown(self, request: Request) -> Shown:
        """Return the run that a path names.

        Raises
        ------
        PageError
            If there is none.
        """
        name = request.path_params["name"]
        folder = self.root / name
        if name in (".", "..") or "/" in name or folder.is_symlink() or not (folder / "config.toml").is_file():
            raise PageError(404, "No such run", f"There is no run {name!r} in {self.root}.")
        return Shown.read(folder)

    def runs(self, request: Request) -> Response:
        """Show all runs."""
        return render(request, "runs.html", runs=all_runs(self.root), root=self.root)

    def run(self, request: Request) -> Response:
        """Show one."""
        shown = self._shown(request)
        config = (shown.folder / "config.toml").read_text(encoding="utf-8", errors="replace")
        report = (shown.folder / "report.html").is_file()
        return render(request, "run.html", config=config, report=report, **parts(shown))

    def live(self, request: Request) -> Response:
        """Stream the changing part of a run's page."""
        folder, template = self._shown(request).folder, request.app.state.templates.get_template("live.html")

        async def events() -> AsyncIterator[str]:
            before, ends = "", asyncio.get_running_loop().time() + STREAM
            while asyncio.get_running_loop().time() < ends:
                shown = await asyncio.to_thread(Shown.read, folder)
                if (text := template.render(**parts(shown))) != before:
                    before = text
                    yield f"data: {json.dumps(text)}\n\n"
                await asyncio.sleep(EVERY)

        return StreamingResponse(events(), media_type="text/event-stream")

    def report(self, request: Request) -> Response:
        """Show the final report, which is a page of its own and runs no script."""
        try:
            text = (self._shown(request).folder / "report.html").read_text(encoding="utf-8")
        except OSError:
            raise PageError(404, "No report", "A run writes its report at its end.") from None
        return HTMLResponse(text, headers={"content-security-policy": REPORT})

    def compare(self, request: Request) -> Response:
        """Compare the runs that were chosen."""
        from edelweiss.lab.compare.comparison import Comparison
        from edelweiss.lab.compare.folders import read

        names = {run.name: str(run.folder) for run in all_runs(self.root)}
        chosen = [names[name] for name in request.query_params.getlist("run") if name in names]
        text = wrong = ""
        try:
            if len(chosen) < 2:
                raise ConfigError("compare", ["choose two runs or more"])
            found, notes = read(chosen)
            text = "\n".join([Comparison.of(found).markdown(), *notes])
        except (ConfigError, ValueError) as error:
            wrong = str(error)
        return render(request, "compare.html", text=text, wrong=wrong)

    def hospitals(self, request: Request) -> Response:
        """Show the hospitals: of the SuperLink, and what the latest run knows of them."""
        nodes, problem = self.superlink.nodes() if self.superlink else ([], "")
        runs = all_runs(self.root)
        known: dict[str, dict[str, Any]] = {}
        for run in reversed(runs):
            known |= {node: each | {"running": run.status == "running"} for node, each in by_node(run.folder).items()}
        listed = {each["node"]: each for each in nodes}
        now = datetime.now().timestamp()
        sites = []
        for node in dict.fromkeys([*listed, *(known if not self.superlink else ())]):
            link, own = listed.get(node, {}), known.get(node, {})
            online = link.get("online")
            sites.append(
                {
                    "name": link.get("name") or own.get("name") or f"number {node}",
                    "connection": "connected" if online else "away" if link else "unknown",
                    "tone": "good" if online else "bad" if link else "off",
                    "since": local(str(link.get("since", ""))),
                    "state": own.get("state", "") if own.get("running") else "",
                    "release": "ours" if own.get("answered") else "",
                    "answered": ago(own.get("answered"), now),
                    "seconds": f"{own['seconds']:.2f}" if isinstance(own.get("seconds"), float) else "",
                }
            )
        sites.sort(key=lambda site: str(site["name"]))
        return render(request, "sites.html", sites=sites, problem=problem)

    def form(self, request: Request) -> Response:
        """Show the form for a new run."""
        return render(request, "new.html", config=EXAMPLE, wrong="")

    def start(self, request: Request, form: Mapping[str, str]) -> Response:
        """Check a run-config as the command line does, and start the run."""
        text = form.get("config", "")
        try:
            keys = checked(text) | {"started-by": request.state.account.name}
            name = str(keys.get("run-name") or f"{datetime.now():%Y%m%d-%H%M%S}-{request.state.account.name}")
            if (self.root / name).exists():
                raise ConfigError("run-config", [f"run-name = {name!r}: there is a run of this name: choose another"])
            if keys.get("runs-dir", "") and not self.superlink:
                raise ConfigError("run-config", [f"runs-dir: this page starts runs in {self.root}: leave it out"])
            self._launch(keys | {"run-name": name})
        except ConfigError as error:
            return render(request, "new.html", 422, config=text, wrong=str(error))
        return RedirectResponse("/", 303)

    def do(self, request: Request, form: Mapping[str, str]) -> Response:
        """Stop or resume a run; who comes second is told."""
        shown, wanted = self._shown(request), form.get("do", "")
        if wanted == "stop":
            if shown.status != "running":
                raise PageError(409, "It has ended", f"The run is {shown.status} since {shown.since}.")
            if shown.state.get("host") != socket.gethostname():
                text = f"It runs on {shown.state.get('host')}: stop it there, or with edelweiss-flower stop."
                raise PageError(409, "Not on this machine", text)
            os.kill(int(shown.state["process"]), signal.SIGINT)
        elif wanted == "resume":
            if not shown.resumable:
                raise PageError(409, "Nothing to resume", f"The run is {shown.status} since {shown.since}.")
            self._launch({"resume": str(shown.folder.resolve())})
        else:
            raise PageError(400, "Not possible", "A run can be stopped or resumed.")
        return RedirectResponse(f"/runs/{shown.name}", 303)

    def _launch(self, keys: Mapping[str, Value]) -> None:
        """Start the command line in a session of its own: the run goes on when this page ends."""
        if not self.superlink and "resume" not in keys:
            keys = {**keys, "runs-dir": str(self.root)}
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            handle, file = tempfile.mkstemp(".toml", "run-")
            with os.fdopen(handle, "w", encoding="utf-8") as settings:
                settings.write(to_toml(keys))
            with (self.root / "dashboard.log").open("ab") as log:
                command = [sys.executable, "-m", "edelweiss.lab.cli", *self.submitting, "--run-config", file]
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        except OSError as error:
            raise PageError(500, "Not started", f"{self.root}: {reason(error)}") from None


def checked(text: str) -> dict[str, Value]:
    """Return the keys of a run-config in TOML, checked.

    Raises
    ------
    ConfigError
        With everything that is wrong.
    """
    import tomllib

    from edelweiss.config import RunConfig, flatten
    from edelweiss.config.plug_ins import load_named

    try:
        keys: dict[str, Value] = flatten(tomllib.loads(text))
    except ValueError as error:
        raise ConfigError("run-config", [f"it is no TOML: {error}"]) from None
    RunConfig.parse(load_named(keys))
    return keys


def parts(shown: Shown) -> dict[str, Any]:
    """Return what the template of a run's changing part takes."""
    return {"run": shown, "curves": shown.curves(), "sites": shown.sites(), "missing": shown.missing()}


def local(moment: str) -> str:
    """Write Flower's time as this machine's."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S}"
    except ValueError:
        return moment
