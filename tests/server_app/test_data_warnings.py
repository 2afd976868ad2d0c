"""What may be wrong with data is said by every way in: a simulation of a table or of folders, hospitals, doctor."""

from __future__ import annotations

import json
import logging
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from edelweiss.client_app.connection import JoinConfig
from edelweiss.client_app.doctor import examine
from edelweiss.common import Value
from edelweiss.config.study import read_study
from edelweiss.datasets import DataConfig, DataError, Facts, load_site
from edelweiss.federation import Site
from edelweiss.server_app import Result, simulate
from edelweiss.server_app.console import Progress
from edelweiss.server_app.data_warnings import data_warnings
from tests.said import has
from tests.server_app.sites import STUDY, run_at, site_job, with_study, write_table

LEAK = "predict the label almost without error"
N = 90


def tables(units: bool = False) -> list[tuple[np.ndarray, np.ndarray]]:
    """Three hospitals' rows; the second feature is what defines the label, the third in another unit at one."""
    rng = np.random.default_rng(0)
    made = []
    for site in range(3):
        features, labels = rng.normal(100, 20, (N, 4)), (rng.random(N) < 0.4).astype(int)
        features[:, 1] = np.where(labels, 5, 1) + rng.random(N)
        features[:, 2] /= 18.02 if units and site == 1 else 1
        made.append((features, labels))
    return made


def folders(place: Path, units: bool = False) -> list[Path]:
    rows = zip(("east", "north", "west"), tables(units), strict=True)
    return [write_table(place / name, *own) for name, own in rows]


def warned(text: str, said: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("warning: ") and said in line]


def page(result: Result) -> str:
    return (result.folder / "report.html").read_text(encoding="utf-8")


def config_of(tmp_path: Path, **keys: Value) -> dict[str, Value]:
    given = {"algorithm": "fedavg", "problem": "bce", "model": "linear", "rounds": 1, "sites": 3, "label": "label"}
    return {**given, "runs-dir": str(tmp_path / "runs"), "thin-share": 0.0, **keys}


@pytest.mark.parametrize("way", ["table", "site-folders"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("curves")
def test_a_simulation_names_the_column_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str, workers: int
) -> None:
    places = folders(tmp_path / "data" / "site-folders")
    if way == "table":
        features, labels = (np.concatenate(part) for part in zip(*tables(), strict=True))
        own = {"data-file": str(write_table(tmp_path / "one", features, labels) / "data.csv"), "partition": "iid"}
    else:
        own = {"data-root": str(places[0].parents[1]), "partition": "sites"}
    result = simulate(config_of(tmp_path, dataset=way, workers=workers, **own), quiet=False)
    out = capsys.readouterr().out
    [line] = warned(out, LEAK)
    assert "'marker_1'" in line
    assert [LEAK in text for text in json.loads((result.folder / "about.json").read_text())["data-warnings"]] == [True]
    assert page(result).count(LEAK) == 1
    assert LEAK in (result.folder / "model-card.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("curves")
def test_hospitals_tell_counts_and_their_own_logs_the_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [{"site": place.name, "data-dir": str(place)} for place in folders(tmp_path)]
    with caplog.at_level(logging.WARNING):
        result = run_at(site_job(tmp_path, algorithm="fedavg", problem="bce", sites=3), nodes, quiet=False)
    [line] = warned(capsys.readouterr().out, LEAK)
    assert "'east', 'north', 'west'" in line
    assert "1 columns" in line
    assert "marker" not in line + page(result)
    assert LEAK in page(result)
    assert [record for record in caplog.records if LEAK in record.getMessage() and "'marker_1'" in record.getMessage()]


@pytest.mark.parametrize("way", ["site-folders", "site", "study"])
@pytest.mark.usefixtures("curves")
def test_a_feature_in_another_unit_is_said_with_the_site(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    """By its name where that is known at the coordinator."""
    places = folders(tmp_path / "data" / "site-folders", units=True)
    if way == "site-folders":
        where = {"data-root": str(tmp_path / "data"), "partition": "sites", "problem": "bce", "dataset": way}
        result = simulate(config_of(tmp_path, **where), quiet=False)
    else:
        text = STUDY.replace("range = [-50, 50]\n", "")
        study = {"study": with_study(tmp_path, text)} if way == "study" else {}
        nodes = [{"site": place.name, "data-dir": str(place), **study} for place in places]
        result = run_at(site_job(tmp_path, algorithm="fedavg", problem="bce", sites=3, **study), nodes, quiet=False)
    [line] = warned(capsys.readouterr().out, "feature 3 " if way == "site" else "'marker_2'")
    assert "'north'" in line
    assert unescape(page(result)).count(line.removeprefix("warning: ")) == 1


def test_without_moments_a_study_s_ranges_are_what_a_site_checks(tmp_path: Path) -> None:
    """What leaves says how many values do not fit; the site's own log names column and rows."""
    ranged = STUDY.replace("[columns.marker_2]", "[columns.marker_2]\nrange = [20, 300]")
    text = ranged.replace("range = [-50, 50]\n", "")
    study = read_study(with_study(tmp_path, text))
    east, north, _ = folders(tmp_path, units=True)
    load_site(DataConfig(dataset="site", data_dir=str(east), study=study), 0, 1)
    with pytest.raises(DataError, check=has("'marker_2'", "20", "300")) as error:
        load_site(DataConfig(dataset="site", data_dir=str(north), study=study), 0, 1)
    assert str(N) in error.value.public
    assert "marker" not in error.value.public


@pytest.mark.usefixtures("curves")
def test_sites_that_are_alike_are_said_nothing_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    file = write_table(tmp_path, rng.normal(0, 1, (N, 4)), (rng.random(N) < 0.4).astype(int)) / "data.csv"
    given = {"dataset": "table", "data-file": str(file), "partition": "iid"}
    result = simulate(config_of(tmp_path, **given), quiet=False)
    assert "warning" not in capsys.readouterr().out
    assert "What may be wrong with the data" not in page(result)


def test_a_warning_of_a_thousand_sites_is_one_that_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    sites = {}
    for index in range(1000):
        values = rng.normal(100, 20, 30) / (18.02 if index == 700 else 1)
        facts = Facts(name=f"h{index}", shape=(1,), count=(30.0,), total=(values.sum(),), squares=(values @ values,))
        sites[Site(index, facts.name, index)] = facts
    config = site_job(tmp_path, algorithm="fedavg", problem="bce", sites=1000)
    [line] = data_warnings(config, sites, ["glucose"], Progress(quiet=True))
    assert "'h700' 5." in line, "its own mean is among those that are shown"
    assert len(line) < 1000


def test_doctor_says_the_same(tmp_path: Path) -> None:
    options = {"superlink": "127.0.0.1:1", "insecure": True, "data-dir": str(folders(tmp_path)[0]), "label": "label"}
    [finding] = [finding for finding in examine(JoinConfig.read("", options)) if LEAK in finding.text]
    assert (finding.level, finding.about) == ("warning", "data")
    assert "'marker_1'" in finding.text
