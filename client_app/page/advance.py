"""Decisions in advance on the site's page: the form, the list, and how one is withdrawn."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse, Response

from edelweiss.client_app.policy.advance import (
    LIMITS,
    READ,
    Advance,
    Damaged,
    Decision,
    advance_of,
    decide_in_advance,
    next_number,
    read_advances,
    terms_in,
    withdraw,
    withdrawn_by,
)
from edelweiss.common import ConfigError
from edelweiss.federation.fingerprint import release
from edelweiss.web import PageError, act, render, view

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.routing import Route

    from edelweiss.client_app.connection import JoinConfig
    from edelweiss.client_app.page.seen import Runs
    from edelweiss.client_app.policy.records import Records
    from edelweiss.web.page import Form

LABELS = {
    "algorithm": ("Algorithm", "Several with commas between them"),
    "problem": ("Problem", "Likewise"),
    "model": ("Model", "Likewise"),
    "until": ("Until the end of", "A day, as in 2026-12-31"),
    "runs": ("Runs", "How many may begin; a resumed run counts again"),
    "rounds": ("Rounds", "At most, of each run"),
    "epsilon": ("ε", "Differential privacy: at most, of all these runs together; empty: runs without"),
    "release": ("Release", "Of the app; with plug-ins as this site logs it"),
    "label": ("Label", "That the runs train on; empty where your keys name it"),
}


class InAdvance:
    """The decisions in advance of one site, on its page."""

    def __init__(self, config: JoinConfig, records: Records, runs: Runs) -> None:
        self.config, self.records, self.runs = config, records, runs

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            view("/advance", self.show),
            act("/advance", self.decide, role="decide"),
            act("/advance/{number}/withdraw", self.withdraw, role="decide"),
        ]

    def listed(self) -> list[tuple[Advance, str, bool]]:
        """Return each decision with its state and whether it stands, the newest first."""
        now, runs = time.time(), self.runs.all()
        return [(each, each.state(runs, now), each.stands(now)) for each in reversed(read_advances(self.records)[0])]

    def damaged(self) -> list[Damaged]:
        """Return the decisions that cannot be read, of which a person has withdrawn none."""
        return read_advances(self.records)[1]

    def show(self, request: Request) -> Response:
        """Return the form; with ``run`` in the address for runs like that one."""
        run = request.query_params.get("run", "")
        record = next((each for each in self.runs.all() if each.run == run), None)
        begins = terms_in(record) if record and record.terms else {"release": release()}
        return self._form(request, {**begins, "number": str(next_number(self.records))})

    def _form(
        self, request: Request, texts: Mapping[str, str], problems: Sequence[str] = (), status: int = 200
    ) -> Response:
        from edelweiss.client_app.policy.rules import Policy  # slow to import, and most pages do without

        try:
            keys = Policy.read(self.config.policy).pinned
        except ConfigError:
            keys = []
        asks = {"fields": LABELS, "limits": LIMITS, "keys": keys, "texts": texts, "problems": problems}
        return render(request, "advance.html", status, **asks)

    def decide(self, request: Request, form: Form) -> Response:
        """Decide in advance, once for each form; of two operators the first one's decision stands."""
        said, seen = form.get("decision", ""), form.get("number", "")
        if said not in ("approved", "refused"):
            raise PageError(400, "Not a decision", "Approve or refuse.")
        decision: Decision = "approved" if said == "approved" else "refused"
        given = {key: form.get(key, "") for key in READ if decision == "approved" or key not in LIMITS}
        number = int(seen) if seen.isascii() and seen.isdecimal() and len(seen) < 10 else 0
        if damaged := self.damaged():
            raise PageError(409, "Nothing was decided", "; ".join(each.in_words() for each in damaged))
        if number != next_number(self.records):
            raise self._late()
        try:
            found = advance_of(given, decision, request.state.account.name, number)
        except ConfigError as error:
            return self._form(request, {**form}, error.problems, 400)
        if not decide_in_advance(self.records, found, "on the page"):
            raise self._late()
        return RedirectResponse("/runs", 303)

    def _late(self) -> PageError:
        known, _ = read_advances(self.records)
        last = f"{known[-1].by} has {known[-1].decision}: {known[-1].in_words()}. " if known else ""
        text = f"{last}That stands. Look at the runs, and decide again if more is needed."
        return PageError(409, "Somebody has decided in advance meanwhile", text)

    def withdraw(self, request: Request, form: Form) -> Response:
        """Withdraw a decision; what has begun goes on."""
        number = request.path_params["number"]
        whole = number.isascii() and number.isdecimal() and len(number) < 10
        try:
            done = withdraw(self.records, int(number) if whole else 0, request.state.account.name, "on the page")
        except LookupError:
            text = "This site has no decision in advance of this number."
            raise PageError(404, "No such decision", text) from None
        if not done:
            by = withdrawn_by(self.records, int(number))
            raise PageError(409, "Already withdrawn", f"Decision {number} was withdrawn before, {by}.")
        return RedirectResponse("/runs", 303)
