"""``/metrics`` of a site's page, read by Prometheus itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from bin.run import free_port
from edelweiss.lab.submission import started
from tests.client_app.site_pages import site_page
from tests.deployment.processes import PATIENCE, until

pytestmark = [
    pytest.mark.deployments,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed: apt install prometheus"),
]


def test_prometheus_reads_a_sites_metrics(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with site_page(tmp_path) as page:
        (tmp_path / "prometheus.yml").write_text(
            "global: {scrape_interval: 3s, scrape_timeout: 3s}\n"
            f"scrape_configs: [{{job_name: edelweiss, static_configs: [{{targets: ['127.0.0.1:{page.port}']}}]}}]\n"
        )
        command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--web.listen-address={address}"]
        command += [f"--storage.tsdb.path={tmp_path}/tsdb"]
        with (
            (tmp_path / "prometheus.log").open("w") as log,
            started(command, {"FLWR_HOME": str(tmp_path)}, stdout=log, stderr=log),
        ):

            def asked(query: str) -> list[dict[str, Any]]:
                try:
                    answer = httpx.get(f"http://{address}/api/v1/query", params={"query": query}, timeout=PATIENCE)
                    found: list[dict[str, Any]] = answer.json()["data"]["result"] if answer.is_success else []
                except httpx.HTTPError:
                    return []
                return found

            until(lambda: bool(asked("edelweiss_runs and on () up == 1")), (tmp_path / "prometheus.log").read_text)
            values = {
                (one["metric"]["__name__"], one["metric"].get("state")): one["value"][1]
                for one in asked("{job='edelweiss'}")
            }
            assert values["up", None] == "1"
            assert values["edelweiss_connected", None] == "1"
            assert values["edelweiss_audit_whole", None] == "1"
            assert values["edelweiss_runs", "waiting"] == "3"
            page.records.decide(page.note("12"), "approved")
            until(lambda: [one["value"][1] for one in asked("edelweiss_runs{state='waiting'}")] == ["2"])
        text = httpx.get(f"{page.url}/metrics", timeout=PATIENCE).content
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
