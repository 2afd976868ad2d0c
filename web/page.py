"""A page: its routes, who may use them, and the headers and templates of every response."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from edelweiss.web.accounts import Account, Accounts, AccountsError, SlowDown
from edelweiss.web.sessions import LONGEST, Session, Sessions

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("edelweiss")

HERE = Path(__file__).parent
FORM = 2**20  # bytes of a form, at most
PARTS = 100  # fields of a form with files, at most
HEAD = 1000  # bytes of what a part of it says of itself that are read
BOUNDARY, NAME = re.compile(r'boundary="?([^\s";]{1,70})'), re.compile(rb'[; ]name="([^"\r\n]*)"')
SLOWEST = 30.0  # seconds for a form to come, and for a part of an answer to be taken
HASHING = 2  # passwords that are looked at in threads: of these, other requests need some, too
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")

Form = Mapping[str, str]


class PageError(Exception):
    """What a person is told in place of a page: a status, a title and a sentence that says what to do."""

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(text)
        self.status, self.title, self.text = status, title, text


@dataclass(frozen=True)
class Page:
    """One page and its parts.

    Parameters
    ----------
    title : str
        Whose it is, such as a hospital's name; it may come from anywhere, templates escape it.
    accounts : Accounts
        Who may open it.
    templates : Path
        Folder of its templates, which extend ``frame.html``.
    places : sequence of (str, str)
        Path and label of each entry of its navigation; the first is where a login leads.
    routes : sequence of Route
        Made by `view`, `act` and `public`.
    hosts : sequence of str
        Names in the address bar under which it may be opened besides those of the loopback interface.
    common : callable
        Returns what every template gets besides, such as a warning; called for each response to a person with an
        account, so a template asks for ``account`` first.
    """

    title: str
    accounts: Accounts
    templates: Path
    places: Sequence[tuple[str, str]]
    routes: Sequence[Route]
    hosts: Sequence[str] = ()
    common: Callable[[], Mapping[str, object]] = dict
    sessions: Sessions = field(init=False)
    cookie: str = field(init=False)
    hashing: asyncio.Semaphore = field(init=False, default_factory=lambda: asyncio.Semaphore(HASHING))

    def __post_init__(self) -> None:
        object.__setattr__(self, "sessions", Sessions(self.accounts))
        object.__setattr__(self, "cookie", f"edelweiss-{self.accounts.name}")

    def session(self, request: Request) -> Session | None:
        """Return the session of a request; one that a page makes by itself does not prolong it."""
        by_itself = request.headers.get("x-by-itself") == "1"
        secret = request.cookies.get(self.cookie, "")
        return self.sessions.of(secret, active=not by_itself) if secret else None


def view(path: str, show: Callable[[Request], Response]) -> Route:
    """Return the route of something that each person with an account may look at.

    ``show(request)`` runs in a thread; ``request.state.account`` says who asks.
    """

    async def endpoint(request: Request) -> Response:
        if _page(request).session(request) is None:
            return _to_login(request)
        return await run_in_threadpool(show, request)

    return Route(path, endpoint, methods=["GET"])


def act(path: str, do: Callable[[Request, Form], Response], *, role: str) -> Route:
    """Return the route of a form that people with a role may send.

    ``do(request, form)`` runs in a thread, after session, role and token were checked; a form sent twice is called
    twice, so ``do`` has to tell a second time from the first.
    """

    async def endpoint(request: Request) -> Response:
        page = _page(request)
        session = page.session(request)
        if session is None:
            return _to_login(request)
        form = await form_of(request)
        if not hmac.compare_digest(form.get("token", "").encode(), session.token.encode()):
            raise PageError(403, "Not from this page", "The form did not come from this page: open it again.")
        if not page.accounts.allows(session.account, role):
            text = f"Your role is {session.account.role!r}; this takes {role!r}. Ask who set your password."
            raise PageError(403, "Not your role", text)
        return await run_in_threadpool(do, request, form)

    return Route(path, endpoint, methods=["POST"])


def public(path: str, show: Callable[[Request], Response]) -> Route:
    """Return the route of something that needs no account, such as ``/healthz``."""

    async def endpoint(request: Request) -> Response:
        return await run_in_threadpool(show, request)

    return Route(path, endpoint, methods=["GET"])


def render(request: Request, template: str, status: int = 200, **values: object) -> HTMLResponse:
    """Return a template as a response.

    Templates get ``page``, ``account`` (None before the login), ``token`` (for forms), ``path``, ``may(role)``, what
    ``page.common`` returns (after the login), and ``values``.
    """
    page, session = _page(request), getattr(request.state, "session", None)
    account: Account | None = session.account if session else None
    text = request.app.state.templates.get_template(template).render(
        {
            "page": page,
            "account": account,
            "token": session.token if session else "",
            "path": request.url.path,
            "may": lambda role: account is not None and page.accounts.allows(account, role),
            **(page.common() if account else {}),
            **values,
        }
    )
    return HTMLResponse(text, status)


async def form_of(request: Request) -> dict[str, str]:
    """Read a form; the last value of a name counts, and a file is its text."""
    body = bytearray()
    try:
        async with asyncio.timeout(SLOWEST):
            async for part in request.stream():
                body += part
                if len(body) > FORM:
                    raise PageError(413, "Too large", f"A form may have {FORM:,} bytes.")
        kind = request.headers.get("content-type", "")
        if kind.startswith("multipart/form-data"):
            return _parts(kind, bytes(body))
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=1000))
    except (UnicodeDecodeError, ValueError):
        raise PageError(400, "Not a form", "What was sent cannot be read: open the page again.") from None
    except TimeoutError:
        raise PageError(408, "Too slow", "The form did not come in time: send it again.") from None
    except ClientDisconnect:
        raise PageError(400, "Not a form", "The connection was lost.") from None


def _parts(kind: str, body: bytes) -> dict[str, str]:
    """Read a form with files: the text of each by its field's name, empty where none was chosen."""
    if not (boundary := BOUNDARY.search(kind)):
        raise ValueError("no boundary")
    between, body, found = b"\r\n--" + boundary[1].encode("latin-1"), b"\r\n" + body, {}
    if body.count(between) > PARTS + 1:
        raise ValueError("more parts than any form has")
    for part in body.split(between)[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        if name := NAME.search(head[:HEAD]):
            found[name[1].decode()] = content.decode()
    return found


def application(page: Page) -> ASGIApp:
    """Return the app of a page: its routes, the login, ``/static`` and the headers."""
    app = Starlette(
        routes=[
            Route("/login", _show_login, methods=["GET"]),
            Route("/login", _login, methods=["POST"]),
            Route("/logout", _logout, methods=["POST"]),
            Mount("/static", StaticFiles(directory=HERE / "static")),
            *page.routes,
        ],
        exception_handlers={PageError: _say, HTTPException: _say_status, 500: _say_broken},
    )
    app.state.page = page
    app.state.templates = Environment(
        loader=FileSystemLoader([page.templates, HERE / "templates"]), autoescape=True, undefined=StrictUndefined
    )
    return _Doorkeeper(app, page)


# ---------------------------------------------------------------------- at the door


def hang_up(send: Send) -> None:
    """End a connection at once, whatever it was yet to take: uvicorn itself would wait for that."""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()


class _Doorkeeper:
    """Answers only under the page's own names, refuses what other sites send, and adds headers and the session."""

    def __init__(self, app: ASGIApp, page: Page) -> None:
        self.app, self.page = app, page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in more if pair[0] not in given)]
            try:
                async with asyncio.timeout(SLOWEST):  # who reads nothing is not waited for
                    await send(message)
            except TimeoutError:
                hang_up(send)

        if "transfer-encoding" in request.headers:  # `server_of` reads nothing of it
            text, close = "send a form whole, with its Content-Length\n", {"connection": "close"}
            await Response(text, 411, close, "text/plain")(scope, receive, with_headers)
            return
        if (problem := self._problem(request)) is not None:
            await Response(f"{problem}\n", 403, media_type="text/plain")(scope, receive, with_headers)
            return
        try:
            request.state.session = session = self.page.session(request)
        except AccountsError as error:
            log.error("page: %s", error)
            text = "The accounts of this page cannot be read: the program's log says why.\n"
            await Response(text, 500, media_type="text/plain")(scope, receive, with_headers)
            return
        request.state.account = session.account if session else None
        with contextlib.suppress(Exception):  # answered and logged by `_say_broken`, which then gets raised again
            await self.app(scope, receive, with_headers)

    def _problem(self, request: Request) -> str | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        try:
            name, sender = urlsplit(f"//{host}").hostname or "", urlsplit(origin or "").netloc
        except ValueError:
            name = sender = ""
        if name not in {*LOOPBACK, *self.page.hosts}:  # else a page elsewhere could take this one's for its own
            return "open this page by 127.0.0.1 or localhost"
        if request.method in ("GET", "HEAD"):
            return None
        site = request.headers.get("sec-fetch-site", "same-origin")
        if (origin is not None and sender != host) or site not in ("same-origin", "none"):
            return "another page has sent this form"
        return None


def _page(request: Request) -> Page:
    page: Page = request.app.state.page
    return page


def _to_login(request: Request) -> Response:
    if request.headers.get("hx-request"):
        return Response(status_code=401, headers={"hx-refresh": "true"})
    back = request.url.path if request.method == "GET" else "/"
    return RedirectResponse(f"/login?next={quote(back)}", 303)


# ---------------------------------------------------------------------- login


def _start(page: Page, wanted: str = "") -> str:
    """Return a path of this page, that which is wanted if it is one."""
    inside = wanted.startswith("/") and wanted[1:2] not in ("/", "\\") and wanted.isprintable()
    return wanted if inside else page.places[0][0]


async def _show_login(request: Request) -> Response:
    if _page(request).session(request):
        return RedirectResponse(_start(_page(request)), 303)
    return _login_form(request, wanted=request.query_params.get("next", ""))


def _login_form(request: Request, *, wanted: str, name: str = "", wrong: str = "", status: int = 200) -> Response:
    page, before = _page(request), secrets.token_urlsafe(16)
    response = render(request, "login.html", status, wanted=_start(page, wanted), name=name, wrong=wrong, before=before)
    response.set_cookie(f"{page.cookie}-login", before, httponly=True, samesite="strict", path="/login")
    return response


async def _login(request: Request) -> Response:
    page, form = _page(request), await form_of(request)
    name, wanted = form.get("name", "").strip(), form.get("next", "")
    before = request.cookies.get(f"{page.cookie}-login", "")
    if not before or not hmac.compare_digest(before.encode(), form.get("before", "").encode()):
        return _login_form(request, wanted=wanted, name=name, wrong="This form had expired. Try again.", status=403)
    try:
        async with page.hashing:
            account = await run_in_threadpool(page.accounts.check, name, form.get("password", ""))
    except SlowDown as slow:
        wrong = f"Too many wrong passwords for this name. Try again in {slow.seconds + 0.5:.0f} s."
        response = _login_form(request, wanted=wanted, name=name, wrong=wrong, status=429)
        response.headers["retry-after"] = f"{slow.seconds + 1:.0f}"
        return response
    if account is None:
        log.warning("page: a wrong password for %r", name[:64])
        return _login_form(request, wanted=wanted, name=name, wrong="Name or password is wrong.", status=401)
    log.info("page: %s has logged in (%s)", account.name, account.role)
    if old := request.cookies.get(page.cookie):
        page.sessions.end(old)
    response = RedirectResponse(_start(page, wanted), 303)
    secret = page.sessions.begin(account)
    response.set_cookie(page.cookie, secret, max_age=int(LONGEST), httponly=True, samesite="strict")
    return response


async def _logout(request: Request) -> Response:
    page, form = _page(request), await form_of(request)
    session = page.session(request)
    if session and hmac.compare_digest(form.get("token", "").encode(), session.token.encode()):
        page.sessions.end(request.cookies.get(page.cookie, ""))
    response = RedirectResponse("/login", 303)
    response.delete_cookie(page.cookie)
    return response


# ---------------------------------------------------------------------- errors


Handler = Callable[[Request, Exception], Awaitable[Response]]


async def _say(request: Request, error: Exception) -> Response:
    assert isinstance(error, PageError)
    return render(request, "error.html", error.status, title=error.title, text=error.text)


async def _say_status(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    title, text = {
        404: ("Not found", "There is no such page here."),
        405: ("Not this way", "This page is opened by a link, or sent by a form; this was the other."),
    }.get(error.status_code, ("Not possible", str(error.detail)))
    return render(request, "error.html", error.status_code, title=title, text=text)


async def _say_broken(request: Request, error: Exception) -> Response:
    log.error("page: %s %s broke", request.method, request.url.path, exc_info=error)
    return HTMLResponse("<!doctype html><title>Broken</title><p>This page broke. The program's log says why.", 500)
