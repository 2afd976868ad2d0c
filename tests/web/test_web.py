"""The frame of the pages, with a real server and a real HTTP client: passwords, sessions, forms, headers, addresses."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import h11
import httpx
import pytest
from starlette.responses import PlainTextResponse, Response

from edelweiss.common import ConfigError
from edelweiss.web import Accounts, AccountsError, Page, PageError, act, address_of, application, listen, public, view
from edelweiss.web import page as page_module
from edelweiss.web import server as server_module
from edelweiss.web.accounts import FREE
from edelweiss.web.server import server_of
from tests.said import has

PASSWORD = "correct horse battery"


class Served:
    """A page with a counter, and what its forms did."""

    def __init__(self, folder: Path) -> None:
        self.accounts = Accounts(folder / "accounts.json", ("look", "decide"))
        self.accounts.set("anna", "decide", PASSWORD)
        self.accounts.set("<b>ben</b>", "look", PASSWORD)
        self.done: list[str] = []
        page = Page(
            title="<i>north</i>",
            accounts=self.accounts,
            templates=folder,
            places=[("/", "State")],
            routes=[
                view("/", lambda request: Response(f"hello {request.state.account.name}")),
                view("/broken", lambda _: 1 / 0),  # type: ignore[arg-type,return-value]
                act("/do", self.do, role="decide"),
                public("/healthz", lambda _: PlainTextResponse("ok")),
            ],
        )
        self.socket = listen("127.0.0.1:0")
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.server = server_of(application(page))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self.thread.start()

    def do(self, request: object, form: object) -> Response:
        self.done.append(str(dict(form)["what"]))  # type: ignore[call-overload]
        if self.done[-1] == "wrong":
            raise PageError(409, "Too late", "<b>somebody</b> was faster")
        return Response("done")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    it = Served(tmp_path)
    yield it
    it.server.should_exit = True
    it.thread.join(600)


def login(served: Served, name: str = "anna", password: str = PASSWORD) -> tuple[httpx.Client, httpx.Response]:
    client = httpx.Client(base_url=served.url, verify=False, timeout=600)  # there is no TLS here
    before = re.search(r'name="before" value="([^"]+)"', client.get("/login").text)
    assert before
    return client, client.post("/login", data={"name": name, "password": password, "before": before[1]})


def token(client: httpx.Client) -> str:
    found = re.search(r'name="token" value="([^"]+)"', client.get("/nowhere").text)
    return found[1] if found else ""


def test_nothing_is_shown_or_done_without_a_password(served: Served) -> None:
    assert httpx.get(f"{served.url}/", timeout=600).headers["location"] == "/login?next=/"
    assert httpx.post(f"{served.url}/do", data={"what": "x"}, timeout=600).status_code == 303
    client, answer = login(served, password="wrong horse battery")
    assert answer.status_code == 401
    assert client.get("/").status_code == 303
    assert httpx.get(f"{served.url}/healthz", timeout=600).text == "ok"
    assert served.done == []


def test_a_form_needs_the_sessions_token_and_the_role(served: Served) -> None:
    client, answer = login(served)
    assert (answer.status_code, client.get("/").text) == (303, "hello anna")
    good = token(client)
    for bad in ({}, {"token": ""}, {"token": good[:-1]}, {"token": "é" * 9}):
        assert client.post("/do", data={"what": "x", **bad}).status_code == 403
    looker, _ = login(served, "<b>ben</b>")
    assert looker.post("/do", data={"what": "x", "token": token(looker)}).status_code == 403
    assert looker.post("/do", data={"what": "x", "token": good}).status_code == 403
    assert served.done == []
    assert client.post("/do", data={"what": "y", "token": good}).text == "done"
    assert served.done == ["y"]


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": ""},
        {"host": "[::"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
def test_another_pages_form_does_nothing(served: Served, headers: dict[str, str]) -> None:
    client, _ = login(served)
    answer = client.post("/do", data={"what": "x", "token": token(client)}, headers=headers)
    assert answer.status_code == 403
    assert served.done == []


@pytest.mark.parametrize("path", ["/", "/login", "/healthz", "/static/style.css"])
def test_under_another_name_nothing_is_shown(served: Served, path: str) -> None:
    """As after a DNS server has given a name elsewhere this machine's address."""
    client, _ = login(served)
    for host in (
        "evil.example",
        f"evil.example:{served.socket.getsockname()[1]}",
        "127.0.0.1.evil.example",
        "127.0.0.2",
    ):
        answer = client.get(path, headers={"host": host})
        assert answer.status_code == 403
        assert len(answer.content) < 100
        assert "set-cookie" not in answer.headers


def test_who_reads_nothing_is_hung_up_on(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much of an answer is still to be taken: else a few hundred of these hold all connections for ever."""
    monkeypatch.setattr(page_module, "SLOWEST", 0.5)
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        deaf.connect(("127.0.0.1", served.socket.getsockname()[1]))
        deaf.settimeout(600)
        deaf.sendall(b"GET /static/htmx.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)
        connections, deadline = served.server.server_state.connections, time.monotonic() + 600
        while not connections:
            assert time.monotonic() < deadline, "it is not served"
            time.sleep(0.01)
        while connections:
            assert time.monotonic() < deadline, "it is still served"
            time.sleep(0.1)


def test_those_who_say_nothing_or_little_hold_nobody_up(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HEAD", 1.0)
    monkeypatch.setattr(page_module, "SLOWEST", 1.0)
    client, _ = login(served)
    port = served.socket.getsockname()[1]
    beginnings = [b"", b"GET / HT", b"GET /login HTTP/1.1\r\nHost: localhost\r\nX: "]
    beginnings += [b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nname="]
    slow = []
    try:
        second = socket.create_connection(("127.0.0.1", port), timeout=600)
        slow.append(second)
        second.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert second.recv(12) == b"HTTP/1.1 200"
        second.sendall(b"GET / HT")
        for beginning in beginnings * 100:  # as many as the page has connections
            slow.append(socket.create_connection(("127.0.0.1", port), timeout=600))
            slow[-1].sendall(beginning)
        for one, beginning in zip(slow, [b"", *beginnings * 100], strict=True):
            answer = one.recv(12)
            if b"POST" in beginning:
                assert answer in (b"HTTP/1.1 408", b"HTTP/1.1 503")
            while b"POST" not in beginning and one.recv(2**16):
                pass
        assert client.get("/").text == "hello anna"
    finally:
        for one in slow:
            one.close()


def test_guesses_at_passwords_leave_room_for_those_who_are_in(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many at a time as there are threads, each for a name of its own, so that none is told to wait."""
    client, _ = login(served)
    at_work, let_go = threading.Semaphore(0), threading.Event()

    def check(name: str, password: str) -> None:
        at_work.release()
        let_go.wait(600)

    monkeypatch.setattr(served.accounts, "check", check)
    guesses = [threading.Thread(target=login, args=(served, f"guess {n}")) for n in range(45)]
    try:
        for one in guesses:
            one.start()
        at_work.acquire()
        assert client.get("/").text == "hello anna"
    finally:
        let_go.set()
        for one in guesses:
            one.join(600)


def test_accounts_that_cannot_be_read_open_nothing(served: Served) -> None:
    client, _ = login(served)
    before = served.accounts.file.read_text()
    served.accounts.file.write_text("{")
    answer = client.get("/")
    assert (answer.status_code, "accounts" in answer.text) == (500, True)
    assert str(served.accounts.file.parent) not in answer.text
    served.accounts.file.write_text(before)
    assert client.get("/").text == "hello anna"


def test_a_login_elsewhere_started_is_none(served: Served) -> None:
    given = {"name": "anna", "password": PASSWORD}
    assert httpx.post(f"{served.url}/login", data=given, timeout=600).status_code == 403
    assert httpx.post(f"{served.url}/login", data={**given, "before": ""}, timeout=600).status_code == 403


def test_wrong_passwords_slow_down_for_their_name_only(served: Served) -> None:
    codes = [login(served, password=f"wrong password {n}")[1].status_code for n in range(FREE + 1)]
    assert codes == [401] * FREE + [429]
    held = login(served)[1]
    assert held.status_code == 429, "the right one, too, or guesses could go on"
    assert int(held.headers["retry-after"]) > 0
    assert login(served, "<b>ben</b>")[1].status_code == 303


def test_a_session_ends_with_the_logout_and_with_a_new_password(served: Served) -> None:
    client, _ = login(served)
    cookie = dict(client.cookies)
    client.post("/logout", data={"token": token(client)})
    assert httpx.get(f"{served.url}/", cookies=cookie, timeout=600).status_code == 303
    client, _ = login(served)
    served.accounts.set("anna", "look", PASSWORD)
    assert client.get("/").status_code == 303
    client, _ = login(served)
    served.accounts.remove("anna")
    assert client.get("/").status_code == 303


def test_every_answer_keeps_scripts_and_frames_out_and_says_nothing_of_the_inside(served: Served) -> None:
    client, _ = login(served)
    answers = [client.get(path) for path in ("/", "/nowhere", "/login", "/broken", "/static/style.css", "/healthz")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["cache-control"] == "no-store"
    assert [answers[n].status_code for n in (1, 3)] == [404, 500]
    assert "ZeroDivision" not in answers[3].text
    cookies = [answer.headers["set-cookie"].lower() for answer in (login(served)[1],)]
    assert all("httponly" in cookie and "samesite=strict" in cookie for cookie in cookies)


def test_names_and_messages_are_text_and_never_markup(served: Served) -> None:
    client, _ = login(served, "<b>ben</b>")
    text = client.get("/nowhere").text
    assert "&lt;b&gt;ben&lt;/b&gt;" in text
    assert "<b>ben" not in text
    assert "<i>north" not in text
    client, _ = login(served)
    answer = client.post("/do", data={"what": "wrong", "token": token(client)})
    assert (answer.status_code, "<b>somebody" in answer.text) == (409, False)


@pytest.mark.parametrize("wanted", ["//evil.example", "/\\evil.example", "https://evil.example", "x", "/\n/x"])
def test_a_login_leads_nowhere_else(served: Served, wanted: str) -> None:
    client = httpx.Client(base_url=served.url, verify=False, timeout=600)  # there is no TLS here
    before = re.search(r'name="before" value="([^"]+)"', client.get("/login").text)
    assert before
    given = {"name": "anna", "password": PASSWORD, "before": before[1], "next": wanted}
    assert client.post("/login", data=given).headers["location"] == "/"


def test_a_form_that_is_none_is_refused(served: Served) -> None:
    client, _ = login(served)
    for body in (b"\xff\xfe=\xff", b"a=b&" * 2000):
        assert client.post("/do", content=body).status_code in (400, 403)
    assert client.post("/do", content=b"x" * (2**20 + 1)).status_code == 413
    assert served.done == []


@pytest.mark.parametrize("more", ["", 'a="(' * 30_000, ";a" * 45_000])
def test_what_a_part_of_a_form_says_of_itself_is_read_as_far_as_a_browser_writes(served: Served, more: str) -> None:
    """A stranger may send what a parser of e-mails takes a minute or all its stack for."""
    client, _ = login(served)
    head = f"--x\r\nContent-Disposition: form-data{more}; name="
    part = f'{head}"token"{more}\r\n\r\n{token(client)}\r\n{head}"what"; filename="a"\r\n\r\nit\r\n--x--\r\n'
    kind = {"content-type": "multipart/form-data; boundary=x"}
    assert client.post("/do", content=part, headers=kind).status_code == (403 if more else 200), part[:100]
    assert client.post("/do", content=part, headers={"content-type": "multipart/form-data"}).status_code == 400


def test_a_form_in_chunks_is_refused_before_they_are_read(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes time, however small: a million of a byte would hold up everybody's page, before any password."""
    read = []
    plain = h11.Connection.next_event

    def noted(self: h11.Connection) -> object:
        read.append(event := plain(self))
        return event

    monkeypatch.setattr(h11.Connection, "next_event", noted)
    with socket.create_connection(("127.0.0.1", served.socket.getsockname()[1]), timeout=600) as stranger:
        head = b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        stranger.sendall(head + b"1\r\nx\r\n" * 1000)
        answer = b""
        while more := stranger.recv(2**16):  # to the end of the connection
            answer += more
    assert answer.startswith(b"HTTP/1.1 411 ")
    assert not any(isinstance(event, h11.Data) for event in read)


def test_a_form_with_files_has_few_parts_and_each_ends_where_a_line_begins(served: Served) -> None:
    client, _ = login(served)
    kind, head = {"content-type": "multipart/form-data; boundary=x"}, "--x\r\nContent-Disposition: form-data; name="
    good = f'{head}"token"\r\n\r\n{token(client)}\r\n'
    client.post("/do", content=f'{good}{head}"what"\r\n\r\na--x\n--x b\r\n--x--\r\n', headers=kind)
    assert served.done == ["a--x\n--x b"]
    for parts, status in ((98, 200), (99, 400)):
        more = "".join(f'{head}"{n}"\r\n\r\n\r\n' for n in range(parts))
        form = f'{good}{more}{head}"what"\r\n\r\nit\r\n--x--\r\n'
        assert client.post("/do", content=form, headers=kind).status_code == status


def test_everything_wrong_with_an_account_is_said_at_once(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path / "a" / "accounts.json", ("look", "decide"))
    with pytest.raises(AccountsError) as caught:
        accounts.set("a\nb", "admin", "short")
    assert len(caught.value.problems) == 3
    assert not accounts.file.exists()
    password = accounts.set("anna", "look")
    assert password not in accounts.file.read_text()
    assert accounts.file.stat().st_mode & 0o077 == 0
    assert accounts.check("anna", password)
    accounts.file.write_text("{")
    with pytest.raises(AccountsError):
        accounts.everybody()


@pytest.mark.parametrize(
    "text", ["0.0.0.1:80", "example.org:80", "10.0.0.1:80", "127.0.0.1", ":80", "127.0.0.1:99999", "unix:x", "unix:"]
)
def test_a_page_is_answered_on_this_machine_only(text: str) -> None:
    with pytest.raises(ValueError, check=has("unix:")):
        address_of(text)


def test_a_taken_port_is_said_and_a_socket_is_its_owners(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, check=has(place, keys=["page"])):
            listen(place)
    with listen(f"unix:{tmp_path}/page.sock"):
        assert (tmp_path / "page.sock").stat().st_mode & 0o077 == 0
    listen(f"unix:{tmp_path}/page.sock").close()  # what a killed process left
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError):
        listen(f"unix:{tmp_path}/file")
    assert (tmp_path / "file").read_text() == "mine"
