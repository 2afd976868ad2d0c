"""A proxy between a site and its coordinator: which one is used, as gRPC itself does; and what is said of a bad one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress

import grpc  # type: ignore[import-untyped,unused-ignore]
import pytest

from edelweiss.client_app.connection import JoinConfig
from edelweiss.client_app.doctor.coordinator import examine_connection
from edelweiss.client_app.fleet import connected
from edelweiss.client_app.proxy import EXCLUDED, NAMES, OTHERS, Proxy, proxy_for
from tests.client_app.proxies import proxy


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy but those of a test."""
    for name in (*NAMES, *EXCLUDED, *OTHERS, *map(str.upper, EXCLUDED)):
        monkeypatch.delenv(name, raising=False)


def said_by_join(address: str) -> str:
    """Return what ``join`` says of a connection that fails, with gRPC's own call."""
    said: list[str] = []

    def give_up(_: float) -> None:
        raise SystemExit

    with suppress(SystemExit), connected(address, None, None, wait=give_up, say=said.append):
        return ""
    return said[-1]


def said_by_doctor(address: str) -> tuple[str, str, str]:
    """Return the last finding of ``doctor`` about the way there."""
    config = JoinConfig.read("", {"superlink": address, "insecure": True})
    found = [one for one in examine_connection(config) if one.about != "TLS"][-1]
    return found.level, found.about, found.text


CASES: list[dict[str, str]] = [
    *({name: "http://{}"} for name in (*NAMES, *OTHERS)),
    *(
        {"http_proxy": text}
        for text in ("{}", "https://{}", "socks5://{}", "http://", "junk", "http://u:p@{}", "http://{}/")
    ),
    *(
        {"http_proxy": "http://{}", "no_proxy": text}
        for text in (
            "127.0.0.1",
            "127.0.0.0/8",
            "10.0.0.0/8",
            "*",
            "localhost",
            ".0.0.1",
            "0.0.1",
            "a, 127.0.0.1",
            "a,b",
            ",",
            "1/x",
        )
    ),
    *({"http_proxy": "http://{}", name: "127.0.0.1"} for name in (*EXCLUDED, "NO_PROXY", "NO_GRPC_PROXY")),
    {"http_proxy": "http://{}", "no_proxy": "127.0.0.1", "no_grpc_proxy": "elsewhere"},
    {"http_proxy": "http://{}", "https_proxy": "junk"},
    {"http_proxy": "junk", "grpc_proxy": "http://{}"},
]


@pytest.fixture
def silent() -> Iterator[int]:
    """A port at which nothing listens, nor can while a test runs: it is bound."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize("variables", CASES, ids=str)
def test_a_proxy_is_used_where_grpc_uses_it(
    monkeypatch: pytest.MonkeyPatch, silent: int, variables: dict[str, str]
) -> None:
    """The rules are gRPC's, which differ from those of other programs: it is asked."""
    address = f"127.0.0.1:{silent}"
    with proxy() as there:
        for name, text in variables.items():
            monkeypatch.setenv(name, text.format(f"127.0.0.1:{there.port}"))
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary("/a/b")(b"", timeout=5)
        assert bool(there.asked) == (proxy_for(address) is not None)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required", "wants a name and a password"),
        (b"HTTP/1.1 403 Forbidden", "answers 403: it does not let this machine through to {address}; ask"),
        (b"HTTP/1.1 502 Bad Gateway", "answers 502: it does not let this machine through to {address}, or does not"),
        (b"SSH-2.0-OpenSSH", "is not an HTTP proxy"),
        (b"", "nothing listens at the proxy"),
    ],
    ids=["login", "forbidden", "beyond", "other", "dead"],
)
def test_join_and_doctor_say_what_a_proxy_does(
    monkeypatch: pytest.MonkeyPatch, silent: int, line: bytes, said: str
) -> None:
    """The coordinator runs: whoever reads that nobody listens there looks in the wrong place. No password is shown."""
    with socket.create_server(("127.0.0.1", 0)) as coordinator, proxy(line) as there:
        address = f"127.0.0.1:{coordinator.getsockname()[1]}"
        port = there.port if line else silent
        monkeypatch.setenv("https_proxy", f"http://nurse:secret@127.0.0.1:{port}")
        level, about, text = said_by_doctor(address)
        assert (level, about) == ("error", "proxy")
        for words in (text, said_by_join(address)):
            assert said.format(address=address) in words
            assert f"127.0.0.1:{port} (https_proxy)" in words
            assert "secret" not in words


def test_a_proxy_that_lets_through_is_all_right_and_one_that_is_excluded_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as coordinator, proxy(b"HTTP/1.1 200 OK") as there:
        address = f"127.0.0.1:{coordinator.getsockname()[1]}"
        assert said_by_doctor(address)[:2] == ("ok", "port")
        monkeypatch.setenv("http_proxy", f"http://nurse:secret@127.0.0.1:{there.port}")
        assert said_by_doctor(address)[:2] == ("ok", "proxy")
        assert b"Proxy-Authorization: Basic bnVyc2U6c2VjcmV0\r\n" in there.asked[0]
        there.asked.clear()
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert said_by_doctor(address)[:2] == ("ok", "port")
        assert not there.asked


@pytest.mark.parametrize("variables", [{"HTTPS_PROXY": "http://x:1"}, {"http_proxy": "https://x:1"}], ids=str)
def test_a_proxy_that_grpc_passes_over_is_named(
    monkeypatch: pytest.MonkeyPatch, silent: int, variables: dict[str, str]
) -> None:
    [(name, value)] = variables.items()
    monkeypatch.setenv(name, value)
    address = f"127.0.0.1:{silent}"
    level, about, text = said_by_doctor(address)
    assert (level, about) == ("error", "port")
    assert "set https_proxy=http://HOST:PORT" in text
    assert f"{name} is not used" in said_by_join(address)
    config = JoinConfig.read("", {"superlink": address, "insecure": True})
    assert ("warning", "proxy") in [(one.level, one.about) for one in examine_connection(config)]
    assert os.environ[name] == value


def test_a_port_is_no_answer_of_a_proxy() -> None:
    dead = Proxy("https_proxy", "127.0.0.1", 44075)
    said = dead.failed("connect to ipv4:127.0.0.1:44075: Connection refused", "coordinator:9092")
    assert "nothing listens at the proxy" in said
