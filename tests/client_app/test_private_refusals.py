"""What a private site refuses, and how, says nothing of its patients without noise, and says what would go."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from edelweiss.client_app.policy.records import Records
from edelweiss.client_app.policy.rules import Budget
from edelweiss.client_app.privacy.ledger import FILE, Ledger
from edelweiss.common import Value
from edelweiss.config.privacy import evaluation_cost, price
from edelweiss.datasets import Facts
from edelweiss.federation.privacy_plan import Plan, plan_of
from tests.client_app.policies import WAITS, Hospital, told
from tests.server_app.sites import site_job, table

BUDGET: dict[str, Value] = {"epsilon": 6.0, "delta": 1e-4}
RUN: dict[str, Value] = {
    "algorithm": "codasca", "problem": "auc", "rounds": 20, "local_steps": 2, "batch_size": 64,
    "dp.epsilon": 5.0, "dp.delta": 1e-4,
}  # fmt: skip


def hospital(folder: Path, positives: int = 60, budget: dict[str, Value] | None = None) -> Hospital:
    features, labels = table(200, seed=3, positives=positives)
    return Hospital(folder, features, list(labels), privacy=BUDGET if budget is None else budget)


# ---------------------------------------------------------------------- what it does not say


def test_no_refusal_says_how_many_patients_have_the_outcome(tmp_path: Path) -> None:
    """CODA's sums are noised, so few of a class are no reason; the rule about counts would be one without noise."""
    keys: dict[str, Value] = {"algorithm": "coda", "sampler": "uniform"}
    for budget, asked in ((BUDGET, RUN), ({}, {})):
        few, enough = (
            hospital(tmp_path / f"{len(budget)} {count}", count, budget).described(**asked | keys) for count in (3, 60)
        )
        assert isinstance(enough, Facts), enough
        assert isinstance(few, Facts) if budget else "fewer than" in str(few)


def test_with_a_budget_no_run_chooses_the_label(tmp_path: Path) -> None:
    """Else the number of patients would tell how many have a value in any column."""
    site = hospital(tmp_path)
    site.node["label"] = ""
    named = [str(site.described(**RUN | {"label": name})) for name in ("label", "marker_0", "no such column")]
    assert len(set(named)) == 1
    assert "label is missing" in named[0]
    assert not list(site.state.rglob("ledger.jsonl"))
    site.node["label"] = "label"
    assert isinstance(site.described(**RUN), Facts)


@pytest.mark.parametrize("budget", [BUDGET, {}], ids=["with a budget", "without"])
def test_what_is_wrong_with_the_data_is_not_counted(tmp_path: Path, budget: dict[str, Value]) -> None:
    """A run says how labels are read; how many it could not read would be a count, of any that it asks for."""
    said = []
    for missing in (3, 4):
        site = hospital(tmp_path / str(missing), budget=budget)
        lines = (site.data / "data.csv").read_text().splitlines()
        place = lines[0].split(",").index("label")
        for row in range(1, 1 + missing):
            lines[row] = ",".join("" if at == place else cell for at, cell in enumerate(lines[row].split(",")))
        (site.data / "data.csv").write_text("\n".join(lines))
        said.append(str(site.described(**RUN if budget else {})))
    assert "log" in said[0] if budget else "missing in 3 rows" in said[0]
    assert (said[0] == said[1]) == bool(budget)


@pytest.mark.parametrize("algorithm", ["fedavg", "coda"])
def test_before_an_operator_approves_a_run_nothing_of_any_column_is_counted(tmp_path: Path, algorithm: str) -> None:
    """A run may call any column the label, and who sends only queries leaves nothing that anybody approved."""

    def said(label: list[str], **policy: Any) -> str:
        site = Hospital(tmp_path / str(len(list(tmp_path.iterdir()))), *table(200, seed=3), **policy)
        file = site.data / "data.csv"
        head, *rows = file.read_text().splitlines()
        lines = [f"{head},stage", *(f"{row},{stage}" for row, stage in zip(rows, label, strict=True))]
        file.write_text("\n".join(lines))
        problem = "auc" if algorithm == "coda" else "bce"
        return str(site.described(algorithm=algorithm, problem=problem, label="stage", sampler="uniform"))

    usable = ["0", "1"] * 100
    tables = [[*usable[:-wrong], *["2"] * wrong] for wrong in (1, 2)] + [
        [*usable[:-wrong], *[""] * wrong] for wrong in (1, 2)
    ]
    assert len({said(label) for label in tables}) > 1, "where nobody approves, it is told what has to be mended"
    assert len({said(label, approve="ask") for label in tables}) == 1
    few = [*["0"] * 198, "1", "1"]
    assert said(usable, approve="ask") == said(few, approve="ask") == WAITS
    assert said(usable, approve="ask", fewest_training=1000) == WAITS


# ---------------------------------------------------------------------- what it does say


def noise(folder: Path, patients: int, **keys: Value) -> float:
    return price(site_job(folder, **RUN | {"sites": 1} | keys), 1, patients).noise


def test_a_run_that_is_too_expensive_is_refused_before_the_first_answer_with_what_fits(tmp_path: Path) -> None:
    site = hospital(tmp_path, budget=BUDGET | {"epsilon": 2.0})
    text = str(site.described(**RUN))
    assert "\n" not in text
    assert text.startswith("dp.epsilon = 5: ")
    offers = [re.search(rf"{key} = ([0-9.]+) (?:fits|instead)", text) for key in ("dp.epsilon", "rounds", "batch-size")]
    assert all(offers), text
    epsilon, rounds, size = (float(found[1]) for found in offers if found)
    assert not list(site.state.rglob("ledger.jsonl"))
    fitting = {"dp.epsilon": epsilon}
    assert "budget" in str(site.described(**RUN | {"dp.epsilon": 1.1 * epsilon}))
    facts = site.described(**RUN | fitting)
    assert isinstance(facts, Facts), facts
    patients = facts.examples or 0  # whom a site holds out, and so how many are left, follows from its own secret
    meant = noise(tmp_path, patients)
    assert noise(tmp_path, patients, **fitting) > meant
    for key, most in (("rounds", int(rounds)), ("batch_size", int(size))):
        assert 0 < most < RUN[key]  # type: ignore[operator]
        assert noise(tmp_path, patients, **fitting | {key: most}) <= meant * 1.001
        assert noise(tmp_path, patients, **fitting | {key: most + 1}) > meant
    for key, most in (("rounds", int(rounds)), ("batch_size", int(size))):
        again = hospital(tmp_path / key, budget=BUDGET | {"epsilon": 2.0})
        assert isinstance(again.described(**RUN | fitting | {key: most}), Facts)


def test_smaller_batches_that_take_too_many_gradients_are_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edelweiss.federation.privacy_plan.MOST_GRADIENTS", 300)
    keys: dict[str, Value] = {"algorithm": "fedrep", "problem": "bce", "fedrep.head-unit": "epochs", "rounds": 19}
    asked = {key: value for key, value in RUN.items() if key != "local_steps"} | keys
    text = str(hospital(tmp_path, budget=BUDGET | {"epsilon": 2.0}).described(**asked))
    assert "at most dp.epsilon = " in text
    assert "batch-size" not in text


def test_a_long_run_is_played_once_however_often_it_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[object] = []

    def counted(*arguments: Any) -> Plan:
        played.append(arguments)
        return plan_of(*arguments)

    monkeypatch.setattr("edelweiss.config.privacy.plan_of", counted)
    monkeypatch.setattr("edelweiss.config.privacy.LONGEST_SEARCH", 10)
    with hospital(tmp_path, budget=BUDGET | {"epsilon": 2.0}).run(**RUN) as grid:
        text = str(told(grid))
        monkeypatch.setattr("edelweiss.client_app.privacy.site.what_fits", None)
        assert str(told(grid)) == text
    assert "at most dp.epsilon = " in text
    assert "instead of 20" not in text
    assert len(played) == 1


def test_where_only_the_evaluation_does_not_fit_the_way_out_is_to_leave_it_out(tmp_path: Path) -> None:
    site = hospital(tmp_path)
    assert isinstance(site.described(**RUN), Facts)
    records = Records(str(site.state))
    data = json.loads((records.folder / FILE).read_text().splitlines()[-1])["data"]
    ledger = Ledger(records.folder, records.secret, Budget.model_validate(BUDGET), data)
    ledger.charge([b"judged"], evaluation_cost(site_job(tmp_path, **RUN | {"sites": 1})), "held-out")
    assert "evidence = false" in str(site.described(**RUN | {"seed": 1}))
    assert isinstance(site.described(**RUN | {"seed": 1, "evidence": False}), Facts)
    ledger.charge([b"trained"], evaluation_cost(site_job(tmp_path, **RUN | {"sites": 1})))
    assert "evidence = false" not in str(site.described(**RUN | {"seed": 2}))
