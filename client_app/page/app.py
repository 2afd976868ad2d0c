"""The routes of the site's page."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from edelweiss.client_app.audit import SEAL, Audit, acknowledge, acknowledge_copy
from edelweiss.client_app.audit_page import audit_page
from edelweiss.client_app.commands.audit import COLUMNS, Rows, write_csv
from edelweiss.client_app.connection import read_key
from edelweiss.client_app.doubts import budget_of, copy_doubt, ledger_says
from edelweiss.client_app.page.advance import InAdvance
from edelweiss.client_app.page.beside import accounts_in, connection_in, findings_in, note_findings
from edelweiss.client_app.page.seen import Log, Runs, stat_of
from edelweiss.client_app.policy.records import Records, RunRecord
from edelweiss.client_app.privacy.ledger import FILE, seal_of
from edelweiss.common import ConfigError
from edelweiss.common.files import TEXT, read_file, reason
from edelweiss.federation.fingerprint import release
from edelweiss.web import Page, PageError, act, public, render, view

if TYPE_CHECKING:
    from starlette.requests import Request

    from edelweiss.client_app.connection import JoinConfig
    from edelweiss.web.page import Form

SECRET = re.compile(r"^(.*?(?:seed|compare-patients|webhook)[^=\n]*=).*$", re.MULTILINE)  # shown to nobody
NEWEST = 500  # lines of the audit log on a page; the files have all
LONGEST = 500  # characters of a comment
DOCTOR = 300.0  # seconds


class Site:
    """What the page shows, and the operator's acts."""

    def __init__(self, config: JoinConfig) -> None:
        self.config, self.state = config, Path(config.state_dir).expanduser()
        self.records, self.log = Records(config.state_dir), Log(self.state)
        self.runs = Runs(self.records)
        self.advance = InAdvance(config, self.records, self.runs)
        self._ledger: tuple[tuple[object, ...], tuple[str, str]] | None = None
        self._examining = threading.Lock()

    # ------------------------------------------------------------------ state

    def ledger(self) -> tuple[str, str]:
        """Return what `ledger_says`, read again when something has changed: with many answers that takes a while."""
        files = [Path(self.config.policy), self.state / SEAL, self.records.folder / FILE]
        if budget := budget_of(self.config):
            files.append(seal_of(self.records.folder, budget))
        stamp = tuple(found and (found.st_ctime_ns, found.st_size) for found in map(stat_of, files))
        if self._ledger is None or self._ledger[0] != stamp:
            self._ledger = stamp, ledger_says(self.config)
        return self._ledger[1]

    def show_state(self, request: Request) -> Response:
        """Return the first page."""
        rules = ""
        if self.config.policy:
            try:
                rules = read_file(self.config.policy, TEXT).decode(errors="replace")
                long_text = any(quotes in rules for quotes in ('"""', "'''"))  # a secret may go on in the next line
                rules = (
                    "not shown: it has texts of several lines" if long_text else SECRET.sub(r"\1 (not shown)", rules)
                )
            except OSError as error:
                rules = f"cannot be read: {reason(error)}"
        examined, findings = findings_in(self.state)
        return render(
            request,
            "state.html",
            connection=connection_in(self.state),
            release=release(),
            config=self.config,
            rules=rules.splitlines(),
            findings=findings,
            examined=examined,
            examining=self._examining.locked(),
            waiting=[record for record in self.runs.all() if record.waits],
            disk=_free(self.state),
        )

    def examine(self, request: Request, form: Form) -> Response:
        """Start the doctor, unless it is at work."""
        if self._examining.acquire(blocking=False):
            threading.Thread(target=self._examine, daemon=True).start()
        return RedirectResponse("/", 303)

    def _examine(self) -> None:
        try:
            options = []
            for key, value in self.config.model_dump(by_alias=True, exclude_defaults=True).items():
                options += [f"--{key}"] if value is True else [f"--{key}={value}"]
            command = [sys.executable, "-m", "edelweiss.client_app.cli", "doctor", *options]
            done = subprocess.run(command, capture_output=True, text=True, timeout=DOCTOR, stdin=subprocess.DEVNULL)
            problem = "".join(done.stderr.splitlines()[-1:]) if done.returncode > 1 else ""
        except subprocess.TimeoutExpired:
            problem = f"it took longer than {DOCTOR:.0f} s"
        finally:
            self._examining.release()
        if problem:
            note_findings(self.state, [("error", "doctor", problem)])

    # ------------------------------------------------------------------ runs

    def show_runs(self, request: Request) -> Response:
        """Return the list of runs, the newest first."""
        log = self.log.fresh()
        known = {record.run: record for record in self.runs.all()}
        found: list[tuple[str, tuple[str, str, str], object, dict[str, str]]]
        found = [(record.run, self.state_of(record), record.began, record.shown) for record in known.values()]
        for run, rows in log.rows.items():  # what a rule refused at once has no record
            if run and run not in known:
                found.append((run, ("refused", "bad", self.refusal(run)), rows[0][0], {}))
        found.sort(key=lambda each: _seconds(each[2]), reverse=True)
        return render(
            request,
            "runs.html",
            runs=[(run, word, _when(began), shown) for run, word, began, shown in found],
            advances=self.advance.listed(),
            damaged=self.advance.damaged(),
        )

    def state_of(self, record: RunRecord) -> tuple[str, str, str]:
        """Return a run's state: a word, its colour, and what there is to say."""
        word, colour, text = self._state_of(record)
        ahead = f"{record.decision} in advance (decision {record.advance})" if record.advance else ""
        return word, colour, "; ".join(filter(None, (text, ahead)))

    def _state_of(self, record: RunRecord) -> tuple[str, str, str]:
        if record.waits:
            return "waiting", "warn", "for your decision"
        if record.turned_away:
            return "refused", "bad", "by the operator"
        if not record.open:
            return ("approved", "good", "") if record.decision == "approved" else ("refused", "bad", "nobody decided")
        if record.over:
            return "resumed", "off", "under another number"
        if record.place and record.place[0]:
            return "ended", "off", "its final model was evaluated"
        refused = self.refusal(record.run, last=True)
        return ("refused", "bad", refused) if refused else ("running", "good", f"{record.rounds} rounds so far")

    def refusal(self, run: str, *, last: bool = False) -> str:
        """Return the latest refusal in the log of a run; ``last``: only if nothing follows it."""
        rows = self.log.fresh().rows.get(run, [])
        for row in rows[-1:] if last else reversed(rows):
            if row[-1].startswith("refused: "):
                return row[-1].removeprefix("refused: ")
        return ""

    def record(self, request: Request) -> RunRecord:
        """Return the record that a path names."""
        number = str(request.path_params["run"])
        try:
            record = self.records.run(number) if number.isdecimal() else None
        except ConfigError as error:
            raise PageError(409, "Its record is damaged", "; ".join(error.problems)) from None
        if record is None:
            raise PageError(404, "No such run", f"This site has no record of a run {number}.")
        return record

    def show_run(self, request: Request) -> Response:
        """Return one run: what leaves, before anybody approves it, and who decided what."""
        record = self.record(request)
        rows = self.log.fresh().rows.get(record.run, [])
        acts = [(row[0], row[-1]) for row in rows if row[1] in ("act", "rule")]
        asked = next((row[-1] for row in rows if row[1] == "run"), "")
        return render(
            request,
            "run.html",
            record=record,
            state=self.state_of(record),
            shown=record.shown,
            acts=acts,
            asked=asked,
            began=_when(record.began),
            printed=request.query_params.get("print") == "1",
            sent=[row for row in rows if row[1] == "out"][-20:],
            head=(self.log.lines, self.log.last),
            signs=bool(self.config.key),
        )

    def decide(self, request: Request, form: Form) -> Response:
        """Approve or refuse a run that waits, or withdraw from one that has begun; the first decision stands."""
        record, decision, seen = self.record(request), form.get("decision", ""), form.get("seen", "")
        comment = " ".join(form.get("comment", "").split())
        if decision not in ("approved", "refused") or len(comment) > LONGEST:
            raise PageError(
                400, "Not a decision", f"Approve or refuse, with a comment of at most {LONGEST} characters."
            )
        withdraws = seen == "open" and decision == "refused" and record.open and not record.turned_away
        first = seen == "waiting" and record.waits
        if not (withdraws or first) or not self.records.decide(record, decision, first=not withdraws):
            acts = [row for row in self.log.fresh().rows.get(record.run, []) if row[1] == "act"]
            stands = f": {acts[-1][-1]}, {acts[-1][0]}" if acts else ""
            raise PageError(409, "Already decided", f"Run {record.run} was decided before{stands}. That stands.")
        name = request.state.account.name
        text = f"{'withdrawn' if withdraws else decision} on the page, by {name}" + (f": {comment}" if comment else "")
        Audit(self.state, record.run).operator(text, record.run)
        return RedirectResponse(f"/runs/{quote(record.run)}", 303)

    def spoilt(self) -> list[str]:
        """Return a line for each file of runs and decisions that is damaged, with the way out."""
        self.runs.all()
        return [*self.runs.problems, *(each.in_words() for each in self.advance.damaged())]

    # ------------------------------------------------------------------ audit

    def show_audit(self, request: Request) -> Response:
        """Return the audit log as a table, or as a file."""
        run, kind = request.query_params.get("run", ""), request.query_params.get("as", "")
        log = (Log(self.state) if kind == "html" else self.log).fresh()
        words = request.query_params.get("words", "").casefold()
        rows: Rows = {
            each: [row for row in lines if words in " ".join(row).casefold()] if words else lines
            for each, lines in log.rows.items()
            if each.startswith(run)
        }
        if kind == "csv":
            text = io.StringIO()
            write_csv(rows, text)
            headers = {"content-disposition": 'attachment; filename="audit.csv"'}
            return Response(text.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)
        if kind == "html":
            # a choice of lines says less than all of them
            return self._printed(log, rows, "audit.html", signed=not words)
        newest = sorted(((each, *row) for each, lines in rows.items() for row in lines), key=lambda row: row[1])
        return render(
            request,
            "audit.html",
            log=log,
            columns=COLUMNS,
            rows=newest[: -NEWEST - 1 : -1],
            total=len(newest),
            run=run,
            words=words,
        )

    def show_record(self, request: Request) -> Response:
        """Return one run's lines, decisions and what leaves as a file, signed if the site has a key."""
        run = self.record(request).run
        log = Log(self.state).fresh()  # all of it: what is signed was verified
        return self._printed(log, {run: log.rows.get(run, [])}, f"run-{run}.html", signed=True)

    def _printed(self, log: Log, rows: Rows, name: str, *, signed: bool) -> Response:
        if log.problem:
            raise PageError(409, "The log was altered", "An altered log is not handed out: look at it in its folder.")
        try:
            key = read_key(self.config.key) if signed and self.config.key else None
        except ConfigError as error:
            raise PageError(500, "The key cannot be read", "; ".join(error.problems)) from None
        head = (log.lines, log.last)
        try:
            page = audit_page(rows, COLUMNS, self.records, head, site=self.config.name, key=key)
        except ConfigError as error:
            raise PageError(409, "The state folder is damaged", "; ".join(error.problems)) from None
        return HTMLResponse(page, headers={"content-disposition": f'attachment; filename="{name}"'})

    def acknowledge(self, request: Request, form: Form) -> Response:
        """Put a damaged log aside, or note that somebody knows of a folder that was put back."""
        problem, who = self.log.fresh().problem, f"{request.state.account.name}, on the page"
        if problem:
            acknowledge(self.state, f"{problem} ({who})")
        elif copy_doubt(self.state):
            acknowledge_copy(self.state, who)
        else:
            raise PageError(409, "Nothing to acknowledge", "The log is unaltered, or somebody has acknowledged it.")
        return RedirectResponse("/audit", 303)

    # ------------------------------------------------------------------ for machines

    def metrics(self, _: Request) -> Response:
        """Return the state in Prometheus' format; no patient data."""
        registry = CollectorRegistry()
        runs = Gauge("edelweiss_runs", "runs of this site by state", ["state"], registry=registry)
        for record in self.runs.all():
            runs.labels(self.state_of(record)[0]).inc()
        found = connection_in(self.state)
        connected = Gauge("edelweiss_connected", "1 if the coordinator answers", registry=registry)
        connected.set(float(bool(found) and not found["problem"]))
        Gauge("edelweiss_audit_lines", "lines of the audit log", registry=registry).set(self.log.fresh().lines)
        whole = Gauge("edelweiss_audit_whole", "1 if the audit log is unaltered", registry=registry)
        whole.set(float(not self.log.problem))
        Gauge("edelweiss_state_free_bytes", "free disk space", registry=registry).set(_free(self.state))
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")


def _free(folder: Path) -> int:
    import shutil

    return shutil.disk_usage(folder).free


def _seconds(at: object) -> float:
    import calendar

    return at if isinstance(at, float) else calendar.timegm(time.strptime(str(at), "%Y-%m-%dT%H:%M:%SZ"))


def _when(at: object) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(_seconds(at)))


def page_of(config: JoinConfig) -> Page:
    """Return the page of a site."""
    site = Site(config)

    def common() -> dict[str, object]:
        broken, (spent, doubt) = site.log.fresh().problem, site.ledger()
        copied = "" if broken else copy_doubt(site.state)
        doubts = {"broken": broken, "copied": copied, "ledger": doubt, "spoilt": site.spoilt()}
        return {**doubts, "spent": spent, "when": _when}

    return Page(
        title=config.name or "This site",
        accounts=accounts_in(config.state_dir),
        templates=Path(__file__).parent / "templates",
        places=[("/", "State"), ("/runs", "Runs"), ("/audit", "Audit")],
        routes=[
            view("/", site.show_state),
            act("/doctor", site.examine, role="look"),
            view("/runs", site.show_runs),
            view("/runs/{run}", site.show_run),
            act("/runs/{run}", site.decide, role="decide"),
            view("/runs/{run}/record", site.show_record),
            *site.advance.routes(),
            view("/audit", site.show_audit),
            act("/audit/acknowledge", site.acknowledge, role="decide"),
            public("/metrics", site.metrics),
            public("/healthz", lambda _: PlainTextResponse("ok\n")),
        ],
        common=common,
    )
