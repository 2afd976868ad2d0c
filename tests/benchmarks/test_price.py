"""What ε costs: the page's sentences follow from the runs, and what tuning adds to a site's account."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.pages import markdown
from benchmarks.price import held_out, trained_on
from benchmarks.studies import REPO, STUDIES
from benchmarks.studies.private import PATIENTS
from benchmarks.sweep import Sweep
from benchmarks.tables import gather
from edelweiss.config import RunConfig
from edelweiss.config.privacy import price
from edelweiss.federation.privacy_account import epsilon
from edelweiss.lab.commands.privacy import EPSILONS, STUDY
from tests.benchmarks.pretended import lines, pretend, run

PRIVATE = {name: study for name, study in STUDIES.items() if name.startswith("privacy-")}


@pytest.fixture
def private(sweep: Sweep) -> Sweep:
    names = {"dp.epsilon": {0.0: "∞"}}
    study = replace(sweep.study, compare={"dp.epsilon": (0.0, 3.0)}, tune_by=("dp.epsilon",), names=names)
    return replace(sweep, study=study)


def test_losses_are_of_the_same_seed_and_the_sentence_has_the_highest_means(private: Sweep) -> None:
    fedavg = {(0.0, 0): 0.9, (0.0, 1): 0.8, (3.0, 0): 0.85, (3.0, 1): 0.76}
    codasca = {(0.0, 0): 0.91, (0.0, 1): 0.85, (3.0, 0): 0.6, (3.0, 1): 0.7}
    run(private, {"fedavg": fedavg, "codasca": codasca})
    assert lines(private, "| method | ε = ∞ |") == [
        "| method | ε = ∞ | ε = 3 |",
        "| --- | ---: | ---: |",
        "| fedavg | 0.8500 ± 0.0707 | 0.8050 ± 0.0636 |",
        "| codasca | 0.8800 ± 0.0424 | 0.6500 ± 0.0707 |",
    ]
    assert lines(private, "| method | ε = 3 |")[2] == "| fedavg | 0.045 (-0.019 to 0.109) |"
    assert lines(private, "- The highest mean") == [
        "- The highest mean is 0.880 without privacy (codasca); at ε = 3 0.805 (fedavg), 0.075 less."
    ]


def test_the_choice_goes_by_noised_histograms_where_there_is_privacy(private: Sweep) -> None:
    [fedavg, _] = private.study.methods
    for job in private.tuning(fedavg):
        pretend(private, job, held_out=0.5 + job.point["fedavg.lr"])  # type: ignore[operator]
        if job.cell["dp.epsilon"]:
            file = private.folder / job.name / "metrics.jsonl"
            line = json.loads(file.read_text()) | {"pooled": {}, "noised": {"auroc": 0.9 - job.point["fedavg.lr"]}}  # type: ignore[operator]
            file.write_text(json.dumps(line) + "\n")
    assert private.choose(fedavg, {"dp.epsilon": 0.0}) == {"fedavg.lr": 0.1}
    assert private.choose(fedavg, {"dp.epsilon": 3.0}) == {"fedavg.lr": 0.01}


def test_runs_without_privacy_have_neither_a_delta_nor_a_clip(private: Sweep) -> None:
    private = replace(private, changes={"dp.clip": 2.0, "dp.delta": 1e-4})
    private.check()
    for method in private.study.methods:
        for job in private.reported(method, private.grid(method)[0]):
            given = RunConfig.parse(job.settings)
            assert (given.dp_epsilon, given.dp_clip) == ((3.0, 2.0) if job.cell["dp.epsilon"] else (0.0, 0.0))


@pytest.mark.parametrize("name", PRIVATE)
def test_tuning_costs_more_than_a_run_and_less_than_the_sum_and_counts_are_paid_once(name: str) -> None:
    sweep = Sweep(PRIVATE[name], Path())
    for method in sweep.study.methods:
        cell = {key: values[-1] for key, values in sweep.study.compare.items()} | {"dp.epsilon": 8.0}
        [job] = sweep.reported(method, sweep.grid(method)[0], cell)[:1]
        one = RunConfig.parse(job.settings)
        assert trained_on(one, one.sites, 200, 1) == pytest.approx(8, abs=0.01)
        whole = epsilon(4 * price(one, one.sites, 200).curve, one.dp_delta)
        assert 8 < trained_on(one, one.sites, 200, 4) < whole < 32
        assert 8 < held_out(one, 4) < 32


def test_noise_of_an_account_is_that_of_the_runs(private: Sweep) -> None:
    run(private, {label: {} for label in ("fedavg", "codasca")})
    assert "with tuning" not in markdown(private, gather(private)), "no run is there"
    site = {"patients": 200, "noise": 12.345, "epsilon": 3.0, "tight-epsilon": 2.5}
    for method in private.study.methods:
        [job] = private.reported(method, private.grid(method)[0], {"dp.epsilon": 3.0})[:1]
        pretend(private, job, held_out=0.6)
        (private.folder / job.name / "about.json").write_text(json.dumps({"privacy": {"sites": {"north": site}}}))
    [line] = lines(private, "| ε | noise |")[2:]
    assert line.startswith("| 3 | 12.35 | 2.50 | ")


def test_sites_train_on_as_many_patients_as_the_page_says() -> None:
    for share, patients in PATIENTS.items():
        assert abs(60_000 / 8 * (1 - float(share)) - patients) < 1


def means(name: str, method: str, **cell: float) -> dict[float, float]:
    """Return the mean AUROC of a published study at each ε."""
    runs = pd.read_csv(REPO / "docs" / "results" / f"{name}.csv").query("use == 'reported' and method == @method")
    for key, value in cell.items():
        runs = runs[runs[key.replace("_", "-")] == value]
    found: pd.Series[float] = runs.groupby("dp.epsilon")["AUROC"].mean()
    return {float(str(epsilon)): mean for epsilon, mean in found.items()}


def test_a_plan_says_what_the_study_found() -> None:
    shares = {patients: float(share) for share, patients in PATIENTS.items()}
    for patients, aurocs in STUDY.items():
        found = means("privacy-mnist", "fedavg-bce", holdout_share=shares[patients])
        assert aurocs == pytest.approx([found[epsilon] for epsilon in (0.0, *EPSILONS)], abs=5e-4)


def test_the_table_of_the_docs_has_the_studies_figures() -> None:
    text = (REPO / "docs" / "differential-privacy.md").read_text(encoding="utf-8").partition("in AUROC\n")[2]
    rows = re.findall(r"^\| \[.*?\]\(results/([\w-]+)\.md\) \| (.*?) \| ([\w, =-]+) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) >= 9
    shares = {f"{patients:,}": float(share) for share, patients in PATIENTS.items()}
    for name, patients, method, cells in rows:
        found = means(name, method, **({"holdout_share": shares[patients]} if patients in shares else {}))
        said = [float(cell) for cell in cells.split(" | ")]
        assert said == pytest.approx([found[epsilon] for epsilon in (0.0, *EPSILONS)], abs=5e-4), (name, method)
