"""The site's page, by a real client: approve, refuse, withdraw, what leaves, the audit log, and what it never does."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from edelweiss.client_app.audit import Audit, require_whole
from edelweiss.client_app.cli import main
from edelweiss.client_app.connection import JoinConfig
from edelweiss.client_app.doubts import doubts
from edelweiss.client_app.page.app import Site, page_of
from edelweiss.client_app.page.beside import page_beside
from edelweiss.client_app.policy.advance import advances
from edelweiss.client_app.policy.rules import Budget
from edelweiss.client_app.privacy.ledger import Ledger, seal_of
from edelweiss.common import ConfigError
from edelweiss.web.page import application
from tests.client_app.ledgers import COST
from tests.client_app.site_pages import HOSTILE, TERMS, SitePage, site_page, token
from tests.said import has

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SitePage]:
    with site_page(tmp_path_factory.mktemp("page")) as it:
        yield it


def decide(page: SitePage, client: httpx.Client, run: str, decision: str, seen: str, comment: str = "") -> int:
    given = {"token": token(client), "decision": decision, "seen": seen, "comment": comment}
    return client.post(f"/runs/{run}", data=given).status_code


def acts(page: SitePage) -> list[str]:
    return [line["act"] for _, line in Audit(page.state).lines() if line["way"] == "act"]


def test_a_run_is_approved_with_a_name_and_a_comment_in_the_log(page: SitePage) -> None:
    page.note("21")
    client = page.login()
    assert "with single patients" in client.get("/runs/21").text, "what leaves, before the approval"
    assert decide(page, client, "21", "approved", "waiting", "board\nsaid yes") == 200
    assert page.decision("21") == "approved"
    [said] = [act for act in acts(page) if act.startswith("approved on the page, by anna")]
    assert "board said yes" in said
    assert "board said yes" in client.get("/runs/21?print=1").text
    require_whole(page.state)


def test_what_the_doctor_found_is_shown_until_it_is_asked_again(page: SitePage, tmp_path: Path) -> None:
    client = page.login()
    assert "has not been run here" in client.get("/").text
    (folder := tmp_path / HOSTILE).mkdir()
    (folder / "data.csv").write_text("age,died\n" + "40,0\n50,1\n" * 60)
    data = f"--data-dir={folder}"
    main(["doctor", data, "--label=died", f"--state-dir={page.state}", "--device=cpu"])
    shown = client.get("/").text
    assert "120 samples, 60 positive" in shown
    assert time.strftime("%Y-%m-%d") in shown.partition("Tested")[2]
    main(["doctor", data, "--label=dead", f"--state-dir={page.state}", "--device=cpu"])
    again = client.get("/").text
    assert "120 samples" not in again
    assert "dead" in again
    assert HOSTILE not in again
    (page.state / "page" / "doctor.json").write_text('{"at": "now", "findings": 7}')
    assert "has not been run here" in client.get("/").text


def test_the_first_decision_stands_and_the_second_is_told(page: SitePage) -> None:
    page.note("22")
    anna, berta = page.login("anna"), page.login("berta")
    assert decide(page, anna, "22", "refused", "waiting") == 200
    assert decide(page, berta, "22", "approved", "waiting") == 409
    assert page.decision("22") == "refused"
    page.note("23")
    codes: list[int] = []
    both = [(anna, "approved", token(anna)), (berta, "refused", token(berta))]

    def click(client: httpx.Client, decision: str, own: str) -> None:
        codes.append(client.post("/runs/23", data={"token": own, "decision": decision, "seen": "waiting"}).status_code)

    threads = [threading.Thread(target=click, args=each) for each in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [200, 409]


def test_a_running_run_is_left_only_by_who_saw_that_it_runs(page: SitePage) -> None:
    record = page.note("24", open=True)
    page.records.decide(record, "approved")
    client = page.login()
    assert decide(page, client, "24", "refused", "waiting") == 409
    assert page.decision("24") == "approved"
    assert decide(page, client, "24", "approved", "open") == 409
    assert decide(page, client, "24", "refused", "open") == 200
    assert page.decision("24") == "refused"


def in_advance(client: httpx.Client, decision: str = "approved", **more: str) -> httpx.Response:
    """Send the form as a person would who has opened it: with what it has in it, and these."""
    text = client.get("/advance").text
    found = dict(re.findall(r'name="([a-z-]+)" value="([^"]*)"', text))
    limits = {"algorithm": "codasca", "problem": "auc", "model": "mlp", "rounds": "40", "runs": "2"}
    limits["until"] = time.strftime("%Y-%m-%d")
    found.pop("secure-aggregation", None)  # a box that is not ticked
    return client.post("/advance", data={**found, **limits, "decision": decision, "study-key": "", **more})


def test_runs_are_approved_in_advance_once_for_each_form(page: SitePage) -> None:
    anna, berta = page.login("anna"), page.login("berta")
    answer = in_advance(anna, comment=f"board {HOSTILE}")
    assert answer.status_code == 200
    assert answer.request.url.path == "/runs"
    assert HOSTILE not in answer.text
    assert "board &lt;img" in answer.text
    number = advances(page.records)[-1].number
    assert in_advance(berta, number=str(number)).status_code == 409, "two operators with the same form, or one twice"
    assert in_advance(berta, number=str(number + 2)).status_code == 409
    assert [each.number for each in advances(page.records)] == [*range(1, number + 1)]
    for client, code in ((page.login("carl"), 403), (berta, 200), (anna, 409)):
        assert client.post(f"/advance/{number}/withdraw", data={"token": token(client)}).status_code == code
    assert "berta" in advances(page.records)[-1].withdrawn
    assert [act for act in acts(page) if act.startswith("approved in advance on the page, by anna") and "board" in act]
    assert [act for act in acts(page) if "withdrawn on the page, by berta" in act]
    assert anna.post("/advance/99/withdraw", data={"token": token(anna)}).status_code == 404
    require_whole(page.state)


def test_a_form_that_is_wrong_decides_nothing_and_keeps_what_was_typed(page: SitePage) -> None:
    before, client = len(advances(page.records)), page.login()
    answer = in_advance(client, algorithm=f"codsca{HOSTILE}", rounds="", runs="5000", **{"study-key": "/etc/passwd"})
    assert answer.status_code == 400
    for text in ("rounds is missing", "runs = ", "study-key = ", "codsca&lt;img"):
        assert text in answer.text, text
    assert HOSTILE not in answer.text
    assert in_advance(client, decision="perhaps").status_code == 400
    assert in_advance(page.login("carl")).status_code == 403
    assert in_advance(client, token="x").status_code == 403
    assert len(advances(page.records)) == before


def test_a_damaged_file_is_a_red_line_on_each_page_until_it_is_withdrawn(page: SitePage) -> None:
    page.note("29", advance=50)
    decision, record = page.records.folder / "advance" / "50.json", page.records.folder / "runs" / "66.json"
    decision.parent.mkdir(exist_ok=True)
    decision.write_text('{"number": 50, "until": 1e300}')
    record.write_text(json.dumps({**json.loads(record.with_name("29.json").read_text()), "run": "66", "began": 1e300}))
    before, carl, anna = acts(page), page.login("carl"), page.login()
    for path in ("/", "/runs", "/runs/29", "/runs/29?print=1", "/advance", "/advance?run=66", "/audit", "/nowhere"):
        answer = carl.get(path)
        assert answer.status_code in (200, 404), path
        for name in ("advance/50.json", "runs/66.json"):
            assert len(re.findall(f'<p class="note bad"[^\n]*{name}', answer.text)) == (path != "/nowhere"), path
    for path in ("/runs/66", "/runs/29/record", "/audit?as=html"):
        assert anna.get(path).status_code == 409, path
    assert in_advance(anna, number="51").status_code == 409
    assert httpx.get(f"{page.url}/metrics", timeout=600).status_code == 200
    for client, code in ((carl, 403), (anna, 200), (anna, 409)):
        assert client.post("/advance/50/withdraw", data={"token": token(client)}).status_code == code
    record.unlink()
    assert "note bad" not in anna.get("/runs").text
    assert anna.get("/runs/29/record").status_code == 200
    [act] = acts(page)[len(before) :]
    assert act.startswith("decision 50 in advance withdrawn on the page, by anna")


def test_a_run_lends_its_terms_to_a_decision(page: SitePage) -> None:
    page.note("26", terms={**TERMS, "study_key": "ab" * 32, "label": HOSTILE})
    text = page.login().get("/advance?run=26").text
    for name, value in (("rounds", "40"), ("release", "0123456789ab"), ("model", "mlp")):
        assert f'name="{name}" value="{value}"' in text
    assert HOSTILE not in text
    for run in ("99", "x", "../1"):
        assert page.login().get("/advance", params={"run": run}).status_code == 200


def test_a_run_says_that_it_was_decided_in_advance(page: SitePage) -> None:
    page.note("27", open=True, decision="approved", advance=3, rounds=2)
    page.note("28", decision="refused", advance=4)
    text = page.login().get("/runs").text
    assert "approved in advance (decision 3)" in text
    assert "refused in advance (decision 4)" in text
    assert "approved in advance (decision 3)" in page.login().get("/runs/27").text


def test_who_may_look_decides_nothing(page: SitePage) -> None:
    page.note("25")
    client = page.login("carl")
    assert "Approve" not in client.get("/runs/25").text
    assert decide(page, client, "25", "approved", "waiting") == 403
    assert page.decision("25") == "waiting"


def test_names_of_sites_and_runs_are_text(page: SitePage) -> None:
    client = page.login()
    for path in ("/", "/runs", "/runs/11", "/audit"):
        assert "<img src=x" not in client.get(path).text, path
    assert HOSTILE.replace("<", "&lt;").replace(">", "&gt;") in client.get("/runs/11").text


def test_a_secret_rule_is_shown_to_nobody(page: SitePage) -> None:
    text = page.login().get("/").text
    assert "approve = " in text
    assert "swordfish" not in text


@pytest.mark.parametrize("path", ["/runs/99", "/runs/..%2f..%2fsite", "/runs/x", "/elsewhere"])
def test_a_run_that_is_none_is_said(page: SitePage, path: str) -> None:
    assert page.login().get(path).status_code == 404


def test_the_log_is_filtered_and_given_as_files(page: SitePage) -> None:
    client = page.login()
    everything, other = (client.get("/audit", params={"as": "csv", "run": run}).text for run in ("11", "9"))
    assert "looked at it" in everything
    assert "looked at it" not in other
    assert "<table" in client.get("/audit?as=html").text


def test_the_record_of_a_run_is_signed_by_the_sites_key(page: SitePage, tmp_path: Path) -> None:
    page.note("110")
    Audit(page.state, "110").operator("looked at another", "110")
    assert decide(page, page.login(), "11", "approved", "waiting", f"board {HOSTILE}") == 200
    file = tmp_path / "record.html"
    for client in (page.login(), page.login("carl")):
        file.write_bytes(client.get("/runs/11/record").content)
        assert main(["audit", "--verify", str(file), "--by", str(page.public)]) == 0
    text = file.read_text()
    assert "approved on the page, by anna: board &lt;img" in text
    assert "with single patients" in text, "what leaves"
    assert "looked at another" not in text
    assert HOSTILE not in text
    assert Audit(page.state).head()[1] in text
    file.write_text(text.replace("anna", "carl"))
    assert main(["audit", "--verify", str(file), "--by", str(page.public)]) == 1
    for query, code in (("", 0), ("&words=board", 1)):
        file.write_bytes(page.login().get(f"/audit?as=html{query}").content)
        assert main(["audit", "--verify", str(file), "--by", str(page.public)]) == code, "a choice of words is unsigned"
    assert page.login().get("/runs/99/record").status_code == 404
    assert httpx.get(f"{page.url}/runs/11/record", timeout=600).status_code == 303, "not without a password"


def test_machines_ask_without_a_password_and_learn_no_patient(page: SitePage) -> None:
    text = httpx.get(f"{page.url}/metrics", timeout=600).text
    assert "edelweiss_connected 1.0" in text
    assert 'edelweiss_runs{state="waiting"}' in text


def test_a_broken_chain_is_said_until_somebody_acknowledges_it(tmp_path: Path) -> None:
    with site_page(tmp_path) as page:
        client = page.login()
        assert "unaltered" in client.get("/audit").text
        file = page.state / "audit.jsonl"
        file.write_bytes(file.read_bytes().replace(b"looked", b"locked"))
        for path in ("/", "/runs", "/audit"):
            assert "was altered" in client.get(path).text
        for path in ("/runs/11/record", "/audit?as=html"):
            assert client.get(path).status_code == 409, "nothing of it is signed"
        assert "edelweiss_audit_whole 0.0" in httpx.get(f"{page.url}/metrics", timeout=600).text
        assert client.post("/audit/acknowledge", data={"token": token(client)}).status_code == 200
        assert "was altered" not in client.get("/").text
        assert "anna" in acts(page)[0]
        assert list(page.state.glob("audit-1.jsonl"))


def test_a_folder_that_was_put_back_is_said_until_somebody_who_may_decide_acknowledges_it(tmp_path: Path) -> None:
    """With a privacy ledger, which nobody accepts on a page."""
    with site_page(tmp_path) as page:
        with (tmp_path / "site.toml").open("a") as rules:
            rules.write("[privacy]\nepsilon = 20.0\ndelta = 1e-5\n")
        client, budget = page.login(), Budget.model_validate({"epsilon": 20.0, "delta": 1e-5})
        ledger = Ledger(page.records.folder, page.records.secret, budget, "data")
        ledger.charge([b"1"], COST)
        assert "is spent on patients trained on" in client.get("/").text
        assert 'role="alert"' not in client.get("/").text
        for name in ("audit.jsonl", "policy/ledger.jsonl"):
            shutil.copy2(page.state / name, tmp_path / "copy")
            (page.state / name).unlink()
            shutil.copy2(tmp_path / "copy", page.state / name)
        for path in ("/", "/runs", "/audit"):
            assert "No run begins:" in client.get(path).text
            assert "Nothing is answered:" in client.get(path).text
        looks = page.login("carl")
        assert looks.post("/audit/acknowledge", data={"token": token(looks)}).status_code == 403
        assert client.post("/audit/acknowledge", data={"token": token(client)}).status_code == 200
        assert "anna, on the page" in acts(page)[-1]
        assert client.post("/audit/acknowledge", data={"token": token(client)}).status_code == 409
        text = client.get("/").text
        assert "No run begins:" not in text
        assert "Nothing is answered:" in text
        words = ["budget", "--state-dir", str(page.state), "--policy", str(tmp_path / "site.toml"), "--accept"]
        assert main(words) == 0
        assert 'role="alert"' not in client.get("/").text
        seal_of(page.records.folder, budget).unlink()
        assert "Nothing is answered:" in client.get("/").text


def test_files_that_cannot_be_read_are_red_lines_and_read_for_nobody_without_an_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders in their places: whoever runs this test may be allowed to read any file."""
    it = SitePage(tmp_path, "north")
    with (tmp_path / "site.toml").open("a") as rules:
        rules.write("[privacy]\nepsilon = 20.0\ndelta = 1e-5\n")
    (it.records.folder / "randomness").mkdir()
    shutil.rmtree(it.records.folder / "runs")
    (it.records.folder / "runs").write_text("")
    assert any("cannot be read" in doubt for doubt in doubts(it.config))
    page = page_of(it.config)
    said = page.common()
    assert "cannot be read" in str(said["ledger"])
    assert "policy/runs" in str(said["spoilt"])
    asked: list[Site] = []

    def ledger(site: Site) -> tuple[str, str]:
        asked.append(site)
        return "", ""

    monkeypatch.setattr(Site, "ledger", ledger)
    client = TestClient(application(page), base_url="http://127.0.0.1")
    assert client.get("/login").status_code == 200
    assert client.get("/nowhere").status_code == 404
    assert not asked


def test_a_page_needs_a_state_folder_and_a_loopback_address(tmp_path: Path) -> None:
    config = JoinConfig.read("", {"superlink": "a:1", "insecure": True, "page": "127.0.0.1:0"})
    with pytest.raises(ConfigError, check=has("state-dir", keys=["page"])), page_beside(config):
        pass
    with pytest.raises(ConfigError, check=has("127.0.0.1:PORT", keys=["page"])):
        JoinConfig.read("", {"superlink": "a:1", "insecure": True, "page": "10.0.0.1:80"})
