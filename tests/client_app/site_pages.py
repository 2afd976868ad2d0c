"""A site's page in its own process, as `join` starts it, over a state folder with runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from bin.run import free_port
from edelweiss.client_app.audit import Audit
from edelweiss.client_app.connection import JoinConfig
from edelweiss.client_app.page.beside import Connection, accounts_in, page_beside
from edelweiss.client_app.policy.records import Records, RunRecord
from tests.server_app.studies import new_key

PASSWORD = "correct horse battery"
HOSTILE = "<img src=x onerror=alert(1)>"
TERMS: dict[str, object] = {
    "algorithm": "codasca",
    "problem": "auc",
    "model": "mlp",
    "label": "",
    "release": "0123456789ab",
}
TERMS |= {"study_key": "", "rounds": 40, "epsilon": 0.0, "secure_aggregation": False}


class SitePage:
    """A page and the folder below it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.state = folder / "state"
        rules = folder / "site.toml"
        rules.write_text('superlink = "a:1"\n[policy]\napprove = "ask"\nseed = "swordfish"  # no seed = "x"\n')
        self.public = folder / "site.key.pub"
        self.public.write_text(new_key(folder / "site.key"))
        self.port = free_port()
        self.config = JoinConfig.read(
            str(rules),
            {
                "site": name,
                "key": str(folder / "site.key"),
                "state-dir": str(self.state),
                "insecure": True,
                "page": f"127.0.0.1:{self.port}",
                "policy": str(rules),
            },
        )
        self.url = f"http://127.0.0.1:{self.port}"
        for name, role in (("anna", "decide"), ("berta", "decide"), ("carl", "look")):
            accounts_in(str(self.state)).set(name, role, PASSWORD)
        self.records = Records(str(self.state))
        for number in ("11", "12", "13"):
            self.note(number)
        Audit(self.state, "11").operator("looked at it", "11")
        Connection(self.config).joined(7)

    def note(self, number: str, **more: object) -> RunRecord:
        """Note a run that waits."""
        shown = more.pop("shown", {"computes": f"codasca on auc {HOSTILE}", "trust": "with single patients' rows"})
        record = RunRecord(
            run=number,
            began=time.time(),
            asked="x",
            until=time.time() + 3600,
            shown=shown,
            **more,  # type: ignore[arg-type]
        )
        self.records.note(record)
        return record

    def decision(self, number: str) -> str:
        """Return what was decided about a run."""
        record = self.records.run(number)
        assert record
        return record.decision

    def login(self, name: str = "anna") -> httpx.Client:
        """Return a client with a session."""
        client = httpx.Client(base_url=self.url, follow_redirects=True, timeout=600)
        before = re.search(r'name="before" value="([^"]+)"', client.get("/login").text)
        assert before
        answer = client.post("/login", data={"name": name, "password": PASSWORD, "before": before[1]})
        assert answer.status_code == 200
        return client


def token(client: httpx.Client) -> str:
    """Return the token of a session's forms."""
    found = re.search(r'name="token" value="([^"]+)"', client.get("/runs").text)
    assert found
    return found[1]


@contextmanager
def site_page(folder: Path, name: str = f"north {HOSTILE}") -> Iterator[SitePage]:
    """Serve a site's page through the block."""
    it = SitePage(folder, name)
    with page_beside(it.config):
        for _ in range(6000):
            try:
                httpx.get(f"{it.url}/healthz", timeout=600).raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        yield it
