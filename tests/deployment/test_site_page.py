"""The site's page in a real Chromium: decisions by mouse and by keyboard, both schemes, narrow and wide, axe-core."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edelweiss.client_app.page.app import page_of
from edelweiss.client_app.policy.advance import advances
from tests.browser import ENTER, SPACE, TAB, Browser, browser
from tests.client_app.site_pages import HOSTILE, PASSWORD, TERMS, SitePage, site_page

pytestmark = pytest.mark.deployments


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SitePage, Browser]]:
    with browser() as window, site_page(tmp_path_factory.mktemp("page")) as page:
        yield page, window


def login(page: SitePage, window: Browser, name: str = "anna") -> None:
    window.cdp("Network.clearBrowserCookies")
    window.open(f"{page.url}/login")
    window.fill("#name", name)
    window.fill("#password", PASSWORD)
    window.click("main button")


def test_an_operator_approves_and_refuses(opened: tuple[SitePage, Browser]) -> None:
    page, window = opened
    window.look(1440, "light")
    login(page, window)
    for number, decision in (("12", "approved"), ("13", "refused")):
        window.open(f"{page.url}/runs/{number}")
        window.fill("#comment", "as agreed")
        window.click(f"button[value={decision}]")
        assert f"{decision} on the page, by anna: as agreed" in window.text()
        assert page.decision(number) == decision


def test_a_wrong_password_opens_nothing(opened: tuple[SitePage, Browser]) -> None:
    page, window = opened
    window.cdp("Network.clearBrowserCookies")
    window.open(f"{page.url}/runs")
    window.fill("#name", "berta")
    window.fill("#password", "wrong password")
    window.click("main button")
    assert "wrong" in window.text()
    assert window.js("return location.pathname") == "/login"


def test_a_form_with_another_token_decides_nothing(opened: tuple[SitePage, Browser]) -> None:
    page, window = opened
    page.note("31")
    login(page, window)
    window.open(f"{page.url}/runs/31")
    window.js("document.querySelector('main input[name=token]').value = 'x'")
    window.click("button[value=approved]")
    assert page.decision("31") == "waiting"


def test_the_keyboard_is_enough(opened: tuple[SitePage, Browser]) -> None:
    page, window = opened
    page.note("32")
    window.cdp("Network.clearBrowserCookies")
    window.open(f"{page.url}/login?next=/runs/32")
    window.keys(*"anna", TAB, *PASSWORD, ENTER, leads=True)
    assert "What leaves" in window.text()
    for _ in range(40):
        window.keys(TAB)
        if window.js("return document.activeElement.value") == "approved":
            break
    assert window.js("return getComputedStyle(document.activeElement).outlineStyle") != "none", "it is seen"
    window.keys(SPACE, leads=True)
    assert page.decision("32") == "approved"


def test_runs_like_one_are_approved_in_advance_by_keyboard_and_withdrawn(opened: tuple[SitePage, Browser]) -> None:
    page, window = opened
    page.note("34", terms=TERMS)
    window.look(1440, "light")
    login(page, window)
    window.open(f"{page.url}/runs/34")
    window.click("main a[href='/advance?run=34']")
    until = time.strftime("%Y-%m-%d")
    typed = {"until": until, "runs": "2", "comment": HOSTILE}
    for _ in range(60):
        window.keys(TAB)
        name = window.js("return document.activeElement.name")
        if name in typed:
            window.keys(*typed.pop(name))
        if window.js("return document.activeElement.value") == "approved":
            break
    assert typed == {}
    window.keys(SPACE, leads=True)
    [found] = advances(page.records)
    assert (found.algorithm, found.rounds, found.runs, found.by) == (["codasca"], 40, 2, "anna")
    assert HOSTILE in window.text(), "as text"
    assert window.js("return document.querySelectorAll('main img[src=x]').length") == 0
    window.click("button[aria-label='Withdraw decision 1']")
    assert advances(page.records)[0].withdrawn
    assert "withdrawn" in window.text()


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1440, "dark")])
def test_every_page_is_readable_and_accessible(
    opened: tuple[SitePage, Browser], tmp_path: Path, width: int, scheme: str
) -> None:
    """The signed record of a run, too, as the data-protection officer gets it."""
    page, window = opened
    page.note("33", terms=TERMS)
    window.look(width, scheme)
    login(page, window)
    pages = window.pages(page.url, page_of(page.config).routes, run="33")
    assert {"/", "/runs", "/runs/33", "/advance", "/audit"} <= {*pages}
    record = tmp_path / "record.html"
    record.write_bytes(page.login().get("/runs/33/record").content)
    addresses = [page.url + path for path in (*pages, "/runs/33?print=1", "/advance?run=33", "/nowhere")]
    for path in (*addresses, f"file://{record}"):
        window.open(path)
        assert window.js("return document.documentElement.scrollWidth") <= width, path
        assert window.js("return document.querySelectorAll('main img[src=x]').length") == 0
        assert window.violations() == [], path
        assert window.off_keyboard() == [], path
    window.cdp("Network.clearBrowserCookies")
    window.open(f"{page.url}/login")
    assert window.violations() == []
    assert window.off_keyboard() == []
