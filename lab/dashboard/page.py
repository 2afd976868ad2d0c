"""The routes of the coordinator's page."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from edelweiss.common import ConfigError, Value, shown
from edelweiss.common.files import LONGEST_NAME, reason
from edelweiss.lab.dashboard.hospitals import hospitals
from edelweiss.lab.dashboard.runs import Shown, all_runs
from edelweiss.lab.dashboard.starts import Starts
from edelweiss.lab.dashboard.superlink import SuperLink
from edelweiss.server_app.run_folder import folder_name
from edelweiss.server_app.run_notes import note_act
from edelweiss.web import Accounts, Page, PageError, act, public, render, view

log = logging.getLogger("edelweiss")

EVERY, STREAM = 2.0, 60.0  # seconds between looks at what is live, and until a browser has to show its session again
REPORT = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; sandbox"
MOST_STREAMS, LATER = 12, 20_000  # live pages of a session; milliseconds after which those beyond it look again
MOST = 20  # warnings of a run that are shown, the newest
NUMBERS = ("rounds", "sites")  # fields of the form that are numbers
FIELDS = ("run-name", "algorithm", "problem", "model", "dataset", *NUMBERS)

Parts = Callable[[], Mapping[str, str]]
"""Returns the changing parts of a page as HTML, by the ids of their elements."""


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
    there : str
        The folder's path where the ServerApp runs, if it is another one.
    """

    root: Path
    superlink: SuperLink | None
    submitting: tuple[str, ...] = ()
    there: str = ""
    starts: Starts = field(init=False)
    one: threading.Lock = field(init=False, default_factory=threading.Lock)  # of two starts at once, one is first

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", Starts(self.root))

    def page(self, accounts: Accounts) -> Page:
        """Return the page."""
        return Page(
            "Coordinator",
            accounts,
            Path(__file__).parent / "templates",
            [("/", "Runs"), ("/hospitals", "Hospitals")],
            [
                view("/", self.runs),
                view("/live", lambda request: live(request, self._runs(request))),
                view("/hospitals", self.hospitals),
                view("/hospitals/live", lambda request: live(request, self._hospitals(request))),
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
            view("/runs/{name}/live", lambda request: live(request, self._run(request, self._shown(request).folder))),
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
        named = name not in (".", "..") and "/" not in name and len(os.fsencode(name)) <= LONGEST_NAME
        if not named or folder.is_symlink() or not (folder / "config.toml").is_file():
            raise PageError(404, "No such run", f"There is no run {shown(name)} in {self.root}.")
        return Shown.read(folder)

    # ------------------------------------------------------------------ what is live

    def _runs(self, request: Request) -> Parts:
        text = rendering(request, "run-table.html")
        return lambda: {"runs": text(runs=all_runs(self.root), starts=self.starts.pending(), root=self.root)}

    def _run(self, request: Request, folder: Path) -> Parts:
        names = ("actions", "status", "progress", "curves", "run-sites", "notes")
        texts = {name: rendering(request, f"{name}.html") for name in names}

        def parts() -> dict[str, str]:
            run = Shown.read(folder)
            nodes = self.superlink.nodes()[0] if self.superlink else []
            sites = run.sites({each["node"]: each["name"] for each in nodes})
            values = {"run": run, "sites": sites, "missing": run.missing(sites, nodes), "most": MOST}
            return {name: text(**values) for name, text in texts.items()}

        return parts

    def _hospitals(self, request: Request) -> Parts:
        text = rendering(request, "hospital-table.html")

        def parts() -> dict[str, str]:
            nodes, problems = self.superlink.nodes() if self.superlink else ([], [])
            sites = hospitals(all_runs(self.root), nodes, every=self.superlink is None)
            return {"hospitals": text(sites=sites, problems=problems)}

        return parts

    # ------------------------------------------------------------------ pages

    def runs(self, request: Request) -> Response:
        """Show all runs."""
        return render(request, "runs.html", parts=self._runs(request)())

    def run(self, request: Request) -> Response:
        """Show one."""
        run = self._shown(request)
        config = (run.folder / "config.toml").read_text(encoding="utf-8", errors="replace")
        return render(request, "run.html", run=run, config=config, parts=self._run(request, run.folder)())

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
        return render(request, "sites.html", parts=self._hospitals(request)())

    def form(self, request: Request) -> Response:
        """Show the form for a new run."""
        return self._form(request, {"dataset": "site"} if self.superlink else {})

    def _form(self, request: Request, given: Mapping[str, str], wrong: str = "") -> Response:
        from edelweiss.config import RunConfig
        from edelweiss.models import MODELS
        from edelweiss.problems import PROBLEMS
        from edelweiss.strategies import ALGORITHMS

        choices = {"algorithm": sorted(ALGORITHMS), "problem": sorted(PROBLEMS), "model": sorted(MODELS)}
        return render(
            request,
            "new.html",
            422 if wrong else 200,
            given=given,
            wrong=wrong,
            fields=FIELDS,
            numbers=NUMBERS,
            choices=choices,
            defaults=RunConfig.parse({}).flat(),
        )

    def start(self, request: Request, form: Mapping[str, str]) -> Response:
        """Check a run-config as the command line does, and start the run."""
        by = request.state.account.name
        try:
            keys = checked(form) | {"started-by": by}
            name = folder_name(str(keys.get("run-name") or f"{datetime.now():%Y%m%d-%H%M%S}-{by}"))
            if keys.get("runs-dir") or keys.get("resume"):
                raise ConfigError("run-config", [f"runs-dir, resume: this page starts new runs in {self.root}"])
            if len(os.fsencode(name)) > LONGEST_NAME:
                raise ConfigError("run-config", [f"run-name = {shown(name)}: at most {LONGEST_NAME} bytes"])
            with self.one:
                if os.path.lexists(self.root / name) or self.starts.starting(name):
                    raise ConfigError("run-config", [f"run-name = {shown(name)}: there is a run of this name"])
                self._launch(name, by, keys | {"run-name": name, "runs-dir": self.there or str(self.root)})
        except ConfigError as error:
            return self._form(request, {**form, "config": form.get("file") or form.get("config", "")}, str(error))
        return RedirectResponse("/", 303)

    def do(self, request: Request, form: Mapping[str, str]) -> Response:
        """Stop or resume a run; who comes second is told."""
        run, wanted = self._shown(request), form.get("do", "")
        if wanted == "stop":
            if run.status != "running":
                raise PageError(409, "It has ended", f"The run is {run.status} since {run.since}.")
            self._stop(run, request.state.account.name)
        elif wanted == "resume":
            folder, by = (
                f"{self.there}/{run.name}" if self.there else str(run.folder.resolve()),
                request.state.account.name,
            )
            with self.one:
                if not run.resumable or self.starts.starting(run.name):
                    raise PageError(409, "Nothing to resume", f"The run is {run.status} since {run.since}.")
                self._launch(run.name, by, {"resume": folder, "started-by": by})
        else:
            raise PageError(400, "Not possible", "A run can be stopped or resumed.")
        return RedirectResponse(f"/runs/{run.name}", 303)

    def _stop(self, run: Shown, by: str) -> None:
        """Stop a run at its SuperLink, or by its process on this machine; its record says who did.

        Raises
        ------
        PageError
            If neither is possible.
        """
        number, host, said = str(run.state.get("flower-run", "")), run.state.get("host"), ""
        if self.superlink and number.isdecimal():
            try:
                self.superlink.stop(int(number))
                _note_stop(run, by)
                return
            except Exception as error:  # of httpx, ssl or flwr: also where it is another SuperLink's run
                said = f"The SuperLink at {self.superlink.connection.address} did not stop it: {error}. "
        if host != socket.gethostname():
            raise PageError(409, "Not stopped", f"{said}It runs on {host}: stop it there.")
        try:
            os.kill(process := int(run.state["process"]), 0)
            _note_stop(run, by)  # before the run notes who has stopped it
            os.kill(process, signal.SIGINT)
        except ProcessLookupError:
            raise PageError(409, "It has ended", f"{said}Its process is gone: the run has ended or is lost.") from None
        except (OSError, LookupError, ValueError) as error:
            raise PageError(409, "Not stopped", f"{said}Its process cannot be told: {reason(error)}") from None

    def _launch(self, name: str, by: str, keys: Mapping[str, Value]) -> None:
        try:
            self.starts.start(name, by, self.submitting, keys)
        except OSError as error:
            raise PageError(500, "Not started", f"{self.root}: {reason(error)}") from None


def _note_stop(run: Shown, by: str) -> None:
    try:
        note_act(run.folder, "stopped", by)
    except OSError as error:  # a folder that the page may only read: the run is stopped all the same
        log.warning("%s was stopped by %s, which its record does not say: %s", run.name, by, reason(error))


def rendering(request: Request, template: str) -> Callable[..., str]:
    """Return a function that renders a part of a page for who asks."""
    found = request.app.state.templates.get_template(template)
    page, session = request.app.state.page, request.state.session

    def text(**values: object) -> str:
        return str(
            found.render(token=session.token, may=lambda role: page.accounts.allows(session.account, role), **values)
        )

    return text


class Streams:
    """How many live pages there are, by session: of any more each gets one look, and comes again later."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def one(self, session: str) -> Iterator[bool]:
        """Count one through the block; whether it may stay."""
        self._open[session] += 1
        try:
            yield self._open[session] <= MOST_STREAMS and self._open.total() <= 4 * MOST_STREAMS
        finally:
            self._open[session] -= 1
            self._open += Counter()  # without those that have none


STREAMS = Streams()


def live(request: Request, parts: Parts) -> Response:
    """Stream the parts of a page that have changed, as long as who asks may look."""
    page, secret = request.app.state.page, request.cookies.get(request.app.state.page.cookie, "")

    async def events() -> AsyncIterator[str]:
        before: Mapping[str, str] = {}
        with STREAMS.one(secret) as stays:
            yield f"retry: {1000 if stays else LATER}\n\n"
            ends = asyncio.get_running_loop().time() + STREAM
            while (now := await asyncio.to_thread(parts)) and page.sessions.of(secret, active=False):
                if new := {name: text for name, text in now.items() if text != before.get(name)}:
                    yield f"data: {json.dumps(new)}\n\n"
                if not stays or asyncio.get_running_loop().time() > ends:
                    break
                before = now
                await asyncio.sleep(EVERY)

    return StreamingResponse(events(), media_type="text/event-stream")


def checked(form: Mapping[str, str]) -> dict[str, Value]:
    """Return the keys of a form's fields and its TOML, checked.

    Raises
    ------
    ConfigError
        With everything that is wrong.
    """
    import tomllib

    from edelweiss.config import RunConfig, flatten
    from edelweiss.config.plug_ins import load_named

    text = form.get("file") or form.get("config", "")
    try:
        keys: dict[str, Value] = flatten(tomllib.loads(text.replace("\r\n", "\n")))
    except ValueError as error:
        raise ConfigError("run-config", [f"it is no TOML: {error}"]) from None
    wrong = []
    for key in FIELDS:
        if not (value := form.get(key, "").strip()):
            continue
        if key in NUMBERS and not (value.isascii() and value.isdecimal()):
            wrong.append(f"{key} = {shown(value)}: must be a whole number")
            continue
        own: Value = int(value) if key in NUMBERS else value
        if keys.setdefault(key, own) != own:
            wrong.append(f"{key} = {shown(value)}: the TOML says {shown(keys[key])}: leave one out")
    if wrong:
        raise ConfigError("run-config", wrong)
    RunConfig.parse(load_named(keys))
    return keys
