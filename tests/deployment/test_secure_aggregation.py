"""Secure aggregation with differential privacy on docker-compose.yml's own services, submitted as its user does."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from edelweiss.client_app.audit import Audit
from edelweiss.client_app.cli import main
from edelweiss.common import Value
from tests.deployment.host import HOSPITALS, Host, answered, wait_until
from tests.deployment.processes import PATIENCE, process_logs
from tests.server_app.sites import table, write_table

pytestmark = pytest.mark.deployments


def test_a_private_run_under_masks_though_a_hospital_is_stopped_in_it(
    tmp_path: Path, certificates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every hospital pins all and demands masks; one is started anew between two rounds, and goes on by its disk."""
    assert main(["peers", *map(str, sorted((certificates / "public").glob("*.pub")))]) == 0
    rules = f'secure-aggregation = "required"\n{capsys.readouterr().out}\n[privacy]\nepsilon = 20.0\n'
    run_config: dict[str, Value] = {"algorithm": "codasca", "problem": "auc", "dataset": "site", "model": "linear"}
    run_config |= {"sites": len(HOSPITALS), "rounds": 4, "local-steps": 2, "secure-aggregation": True, "workers": 1}
    run_config |= {"dp.epsilon": 8.0, "batch-size": 32, "device": "cpu"}
    victim = HOSPITALS[0]
    with ExitStack() as stack:
        host = Host(tmp_path, certificates)
        for seed, name in enumerate(HOSPITALS):
            write_table(host.folder(name, "/data"), *table(200, seed))
            file = host.folder(name, "/") / "site.toml"
            named = file.read_text().replace('# label = "outcome"', 'label = "label"')  # a budget needs it
            file.write_text(f"{named}\n{rules}")
        processes = host.federation(stack)
        run = stack.enter_context(ThreadPoolExecutor(1)).submit(host.submit, run_config)
        wait_until(run, lambda: answered(host, victim) > 2)  # its key, its facts, and a round
        processes[victim].terminate()
        processes[victim].wait(timeout=PATIENCE)
        processes[victim] = stack.enter_context(host.up(victim))
        outcome = run.result()
        for process in processes.values():  # all at once: each takes seconds
            process.terminate()
    assert outcome.ok, f"{outcome.status}: {outcome.details}\n{outcome.log}{process_logs(tmp_path)}"
    (folder,) = host.folder("serverapp", "/results").glob("runs/*")
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["round"] == 4
    assert "noised" in last
    for name in HOSPITALS:
        sent = [line for _, line in Audit(host.folder(name, "/state")).lines() if line["way"] == "out"]
        assert not [line for line in sent if "refused" in line], sent
        arrays = [array["name"] for line in sent for array in line["arrays"]]
        assert set(arrays) == {"sum"}, "nothing but sums leaves"
