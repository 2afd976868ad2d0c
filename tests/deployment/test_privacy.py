"""Hospitals with a privacy budget, a real SuperLink between them and the coordinator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edelweiss.common import Value
from tests.client_app.policies import site_toml
from tests.deployment.processes import deployment
from tests.server_app.sites import table, write_table

pytestmark = pytest.mark.deployments

NAMES = ("north", "south")
JOB: dict[str, Value] = {
    "algorithm": "codasca",
    "problem": "auc",
    "dataset": "site",
    "sites": 2,
    "rounds": 3,
    "local-steps": 2,
    "dp.epsilon": 2.0,
    "dp.delta": 1e-4,
}


def test_hospitals_pay_from_their_budgets_and_end_when_these_are_spent(tmp_path: Path) -> None:
    nodes: list[dict[str, Value]] = [
        {
            "site": name,
            "data-dir": str(write_table(tmp_path / name / "data", *table(400, seed))),
            "state-dir": str(tmp_path / name / "state"),
            "policy": site_toml(tmp_path / name, privacy={"epsilon": 3.2, "delta": 1e-4}),
            "label": "label",
        }
        for seed, name in enumerate(NAMES)
    ]

    def ledger(name: str) -> list[Any]:
        text = (tmp_path / name / "state" / "policy" / "ledger.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()[1:]]

    def model(run: str) -> bytes:
        return (tmp_path / "runs" / run / "model.safetensors").read_bytes()

    job = JOB | {"runs-dir": str(tmp_path / "runs")}
    with deployment(tmp_path, nodes) as running:
        outcome = running.submit(job | {"run-name": "first"})
        assert outcome.ok, outcome.log
        paid = {name: ledger(name) for name in NAMES}
        for lines in paid.values():  # noised counts, each round, and the histograms at the end
            assert [line["part"] for line in lines] == ["training"] * (1 + 3) + ["held-out"]
        about = json.loads((tmp_path / "runs" / "first" / "about.json").read_text(encoding="utf-8"))
        assert set(about["privacy"]["sites"]) == set(NAMES)

        outcome = running.submit(job | {"run-name": "second"})  # the same questions: the same answers, paid for
        assert outcome.ok, outcome.log
        assert model("first") == model("second")
        assert {name: ledger(name) for name in NAMES} == paid

        outcome = running.submit(job | {"seed": 1, "dp.epsilon": 3.0, "run-name": "refused"})
        assert not outcome.ok
        assert "at most dp.epsilon" in outcome.log, outcome.log
        assert "Traceback" not in outcome.log
        assert {name: ledger(name) for name in NAMES} == paid
