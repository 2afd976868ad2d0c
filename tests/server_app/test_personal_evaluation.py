"""Where each site has a model of its own: mean, spread and worst decile over the sites, wherever a run is reported."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from edelweiss.common import Value
from edelweiss.lab.report.figures import VERMILLION, curves
from edelweiss.problems.metrics import METRICS
from edelweiss.problems.pooling import across_sites
from edelweiss.server_app import Result, simulate
from tests.server_app.sites import job, saddle_job

SITES = 12


def personal(folder: Path, **keys: Value) -> Result:
    return simulate(saddle_job(folder, algorithm="alone", sites=SITES, **keys))


# ---------------------------------------------------------------------- the numbers


@pytest.mark.parametrize(("sites", "tenth"), [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (30, 3), (31, 4)])
def test_the_worst_decile_is_the_mean_over_the_worst_tenth(sites: int, tenth: int) -> None:
    values = np.random.default_rng(sites).permutation(sites) / sites
    found = across_sites([{"accuracy": v, "loss": v} for v in values])
    assert sorted(found) == ["accuracy", "loss"]
    by_hand = sorted(values.tolist())
    assert found["accuracy"]["worst-decile"] == pytest.approx(sum(by_hand[:tenth]) / tenth)
    assert found["loss"]["worst-decile"] == pytest.approx(sum(by_hand[-tenth:]) / tenth), "a high loss is a bad one"
    mean = sum(by_hand) / sites
    for name in found:
        assert found[name]["mean"] == pytest.approx(mean)
        assert found[name]["std"] == pytest.approx(math.sqrt(sum((v - mean) ** 2 for v in by_hand) / sites))


def test_a_site_where_a_metric_is_not_defined_has_no_part_in_it() -> None:
    found = across_sites([{"auroc": 0.5, "loss": 1.0}, {"auroc": math.nan, "loss": 3.0}, {"auroc": 0.7, "loss": 2.0}])
    assert found["auroc"]["mean"] == pytest.approx(0.6)
    assert found["auroc"]["worst-decile"] == pytest.approx(0.5)
    assert found["loss"]["mean"] == pytest.approx(2.0)
    nowhere = across_sites([{"auroc": math.nan}])["auroc"]
    assert all(math.isnan(value) for value in nowhere.values())
    assert across_sites([]) == {}


# ---------------------------------------------------------------------- where they are told


@pytest.mark.parametrize("problem", ["auc", "auprc", "cross-entropy"])
def test_the_headline_of_a_round_is_the_mean_over_the_sites(tmp_path: Path, problem: str) -> None:
    keys: dict[str, Value] = {"problem": problem, "model": "linear", "rounds": 2}
    result = simulate(job(tmp_path, algorithm="ditto", **keys))
    names = ("loss", "accuracy", "worst-class") if problem == "cross-entropy" else ("loss", "auroc", "auprc")
    for record in result.metrics:
        sites = list(record["sites"].values())
        assert len(sites) == 3
        assert sorted(record["over-sites"]) == sorted(names)
        for name in names:
            values = [site[name] for site in sites if not math.isnan(site[name])]
            assert record[name] == record["over-sites"][name]["mean"] == pytest.approx(np.mean(values))
            assert record["over-sites"][name]["std"] == pytest.approx(np.std(values))
        # Sites of different sizes: the mean over samples is another number, and is told as what it is.
        assert record["loss"] != pytest.approx(record["pooled"]["loss"])


def test_the_headline_of_a_common_model_is_that_of_all_samples(tmp_path: Path) -> None:
    for record in simulate(job(tmp_path, algorithm="fedavg", problem="bce", rounds=2, central_test=False)).metrics:
        assert record["loss"] == record["pooled"]["loss"] != pytest.approx(record["over-sites"]["loss"]["mean"])


def test_the_run_folder_has_them(tmp_path: Path) -> None:
    result = personal(tmp_path)
    lines = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["over-sites"] for line in lines] == [record["over-sites"] for record in result.metrics]
    assert sorted(lines[0]["over-sites"]["distance-x"]) == ["mean", "std", "worst-decile"]


def test_the_console_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = simulate(saddle_job(tmp_path, algorithm="alone", sites=SITES), quiet=False)
    rows = {
        cells[0]: cells[1:]
        for line in capsys.readouterr().out.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("│").split("│")]) > 1
    }
    assert "all sites, pooled" not in rows
    last = result.metrics[-1]["over-sites"]
    for label, key in (("mean over sites", "mean"), ("spread", "std"), ("worst decile", "worst-decile")):
        shown = [cell for cell in rows[label] if cell]
        assert [float(cell) for cell in shown] == pytest.approx(
            [last[name][key] for name in ("distance-x", "distance-y")], rel=1e-2, abs=1e-4
        )
    assert len([label for label in rows if label.startswith("site-")]) == SITES


@pytest.mark.parametrize(
    ("keys", "red"),
    [
        ({}, "common test set"),
        ({"problem": "saddle", "algorithm": "local-sgda"}, "at the coordinator"),  # there are no samples
        ({"central-test": False}, "all sites, pooled"),
        ({"algorithm": "ditto"}, "mean over sites ± sd"),
    ],
)
def test_each_panel_says_what_its_thick_line_is(tmp_path: Path, keys: dict[str, Value], red: str) -> None:
    records = simulate(job(tmp_path, rounds=2, problem="auc") | keys).metrics
    panels = {axes.get_ylabel(): axes for axes in curves(records, personalised=keys.get("algorithm") == "ditto").axes}
    assert {axes.get_title(loc="left") for axes in panels.values()} == {red}
    for name in {"loss", "auroc", "auprc", "distance-x", "distance-y"} & records[0].keys():  # and it is what is drawn
        axes = panels.pop(METRICS[name].label)
        [line] = [line for line in axes.lines if line.get_color() == VERMILLION and line.get_linestyle() == "-"]
        source = {"common": "central", "at": "central", "all": "pooled"}.get(red.split()[0])
        values = [r[source][name] if source else r["over-sites"][name]["mean"] for r in records]
        assert line.get_ydata() == pytest.approx(values)
    assert not panels


@pytest.mark.slow
def test_the_curves_have_them(tmp_path: Path) -> None:
    records = personal(tmp_path).metrics
    axes = curves(records, personalised=True).axes[0]
    dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert len(dashed) == 1
    assert dashed[0].get_ydata() == pytest.approx([r["over-sites"]["distance-x"]["worst-decile"] for r in records])
    assert axes.lines[-1].get_ydata() == pytest.approx([r["over-sites"]["distance-x"]["mean"] for r in records])
    assert len(axes.lines) == SITES + 2
    assert len(axes.collections) == 1, "the band of one standard deviation"
    assert not curves(simulate(saddle_job(tmp_path)).metrics, personalised=False).axes[0].collections
