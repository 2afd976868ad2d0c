"""A run with a site whose notifications all fail: it notices nothing of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bin.run import free_port
from edelweiss.common import Value
from tests.client_app.mailbox import mailbox
from tests.deployment.processes import PATIENCE, deployment, until
from tests.server_app.sites import table, write_table

pytestmark = pytest.mark.deployments

RULES = """
[notify]
webhook = "http://127.0.0.1:{port}/"
command = ["/bin/sleep", "1000"]
mail-to = ["anna@hospital.example"]
mail-from = "site@hospital.example"
smtp = "{mail}"
smtp-tls = "none"
"""


def test_a_run_ends_though_nobody_can_be_told(tmp_path: Path) -> None:
    """A dead webhook, a program that hangs and a mail server that says nothing; a run that its rules refuse."""
    with mailbox(silent=True) as box:
        (tmp_path / "site.toml").write_text(RULES.format(port=free_port(), mail=box.address))
        data, state = write_table(tmp_path / "data", *table(200, seed=0)), tmp_path / "state"
        node: dict[str, Value] = {"site": "north", "data-dir": str(data), "state-dir": str(state)}
        with deployment(tmp_path, [node | {"policy": f"{tmp_path}/site.toml"}]) as running:
            until((state / "notify" / "told.json").exists)
            job: dict[str, Value] = {"dataset": "site", "sites": 1, "local-steps": 1}
            refused = running.submit(job | {"rounds": 201})
            assert not refused.ok
            assert "200" in refused.log
            outcome = running.submit(job | {"rounds": 2})
            assert outcome.ok, outcome.log

            def said() -> str:
                return (tmp_path / "site-0.log").read_text()

            until(lambda: "webhook fails" in said(), said)
            running.sites[0].terminate()
            assert running.sites[0].wait(timeout=PATIENCE) == 0
            assert said().count("webhook fails") == 1
