"""What a user gets wrong, end to end: one clear message, the right exit code, no traceback."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edelweiss.common import Value
from edelweiss.config import ConfigError
from edelweiss.federation import RunError, TooFewRepliesError
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.lab.cli import main
from edelweiss.server_app import simulate
from tests.said import has, lines, warnings
from tests.server_app.command import command as started
from tests.server_app.sites import hospitals, run_at, saddle_job, site_job, table, write_table

pytestmark = pytest.mark.usefixtures("public_batches")

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run ``edelweiss`` in this process; returns exit code, stdout, stderr."""

    def run(*overrides: str) -> tuple[int, str, str]:
        arguments = ["--run-config", f'runs-dir="{tmp_path}/runs" workers=1 rounds=1 sites=3']
        for text in overrides:
            arguments += ["--run-config", text]
        code = main(arguments)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return code, captured.out, captured.err

    return run


# ---------------------------------------------------------------------- exit codes


def test_the_command_itself_ends_with_2_for_a_bad_configuration() -> None:
    with started('algorithm="codsaca" rounds=0') as run:
        assert (run.wait(), run.stdout.read()) == (2, "")
        said = run.stderr.read()
    assert "'codasca'" in said
    assert "rounds = 0" in said
    assert "Traceback" not in said


def test_a_good_run_ends_with_0_and_says_where_the_results_are(command: Command, tmp_path: Path) -> None:
    code, out, err = command('problem="saddle"')
    assert (code, err) == (0, "")
    [folder] = (tmp_path / "runs").iterdir()
    assert str(folder) in out


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ('algorithm="codsaca"', "'codasca'"),
        ("codasca.lrr=1", "'codasca.lr'"),
        ("fraction=2.0", "fraction = 2.0"),
        ('algorithm="fedavg"', "problem = 'auc'"),
        ("rounds 3", "'rounds 3'"),
        ("nowhere.toml", "nowhere.toml"),
    ],
)
def test_a_bad_configuration_ends_with_2_and_makes_no_folder(
    command: Command, tmp_path: Path, override: str, said: str
) -> None:
    code, out, err = command(override)
    assert (code, out) == (2, "")
    assert said in err
    assert not (tmp_path / "runs").exists()


def test_a_device_that_is_not_there_ends_with_2(command: Command) -> None:
    code, _, err = command('device="cuda:99"')
    assert code == 2
    assert "cuda:99" in err


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ('dataset="heart-disease" data-root="DATA/nowhere"', "DATA/nowhere/heart_disease"),
        ('dataset="site"', "data-dir"),
        ('model="lenet5"', "'lenet5' "),
        ('positive-classes="7"', "negative-classes"),
        ('problem="saddle" saddle.file="DATA/nowhere.npz"', "nowhere.npz"),
        ('runs-dir="DATA/a-file"', "a-file"),
    ],
)
def test_a_run_that_cannot_go_on_ends_with_1(command: Command, tmp_path: Path, override: str, said: str) -> None:
    (tmp_path / "a-file").write_text("", encoding="utf-8")
    code, _, err = command(override.replace("DATA", str(tmp_path)))
    assert code == 1
    assert err.startswith("error: ")
    assert said.replace("DATA", str(tmp_path)) in err


def test_data_that_is_damaged_says_which_file_and_what_to_do(command: Command, tmp_path: Path) -> None:
    (tmp_path / "heart_disease").mkdir()
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        (tmp_path / "heart_disease" / f"{name}.data").write_text("63,1,oops\n", encoding="utf-8")
    code, _, err = command(f'dataset="heart-disease" data-root="{tmp_path}" sites=4 partition="sites"')
    assert code == 1
    assert lines(err, "cleveland.data", "63,1,oops")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["..", ".", "../evil", "a/b", " "])
def test_a_run_lands_inside_of_runs_dir_whatever_its_name(tmp_path: Path, name: str) -> None:
    result = simulate(saddle_job(tmp_path, run_name=name))
    assert result.folder.parent == tmp_path / "runs"


@pytest.mark.parametrize("key", ["runs-dir", "state-dir"])
@pytest.mark.parametrize("path", ["FILE", "~nobody-of-this-name/x", "LOOP/x"])
def test_a_folder_that_cannot_be_is_said_before_training(tmp_path: Path, key: str, path: str) -> None:
    (tmp_path / "FILE").touch()
    (tmp_path / "LOOP").symlink_to("LOOP")
    named = path if path.startswith("~") else str(tmp_path / path)
    with pytest.raises(RunError, check=has(key=key, value=named)):
        simulate({**saddle_job(tmp_path), key: named})


def test_simulate_raises_what_the_command_prints(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        simulate({"round": 1, "codasca": {"lr": -1}})
    assert set(caught.value.keys) == {"round", "codasca.lr"}
    with pytest.raises(RunError, check=has("data-dir")):
        simulate({"dataset": "site", "sites": 2, "workers": 1, "runs-dir": str(tmp_path / "runs")})


def test_real_data_from_a_folder(tmp_path: Path) -> None:
    import os

    root = os.environ.get("EDELWEISS_DATA")
    if not root:
        pytest.skip("EDELWEISS_DATA is not set: it names the folder with the real data sets")
    job: dict[str, Value] = {
        "dataset": "heart-disease",
        "data-root": root,
        "partition": "sites",
        "thin-share": 0.0,
        "sites": 4,
        "rounds": 2,
        "workers": 1,
        "runs-dir": str(tmp_path),
    }
    result = simulate(job)
    assert list(result.metrics[-1]["sites"]) == ["cleveland", "hungarian", "switzerland", "va"]


# ---------------------------------------------------------------------- hospitals whose data do not go together


def test_three_hospitals_with_tables_of_their_own(tmp_path: Path) -> None:
    result = run_at(site_job(tmp_path, rounds=10, local_steps=10), hospitals(tmp_path))
    last = result.metrics[-1]
    assert list(last["sites"]) == ["north", "south", "west"]  # as their operators call them
    assert "central" not in last  # nobody has everybody's data
    assert last["auroc"] == last["pooled"]["auroc"] > 0.8
    assert last["pooled"]["n"] == sum(site["n"] for site in last["sites"].values())


@pytest.mark.parametrize("mistake", ["features", "names", "value"])
def test_one_bad_table_stops_the_run_before_training(
    tmp_path: Path, mistake: str, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = hospitals(tmp_path)
    features, labels = table(40, seed=9)
    folder = tmp_path / "private-south"
    file = folder / "data.csv"
    match mistake:
        case "features":
            write_table(folder, features[:, :3], labels)
        case "names":
            write_table(folder, features, labels, names=["w", "x", "y", "z"])
        case "value":
            file.write_text(file.read_text().replace(f"{table(40, seed=1)[0][2, 0]}", "patient-4711"))
    with pytest.raises(RunError) as caught:
        run_at(site_job(tmp_path), nodes)
    if mistake == "value":
        assert caught.value.sites == ("south",)
    else:
        assert caught.value.key == {"features": "shape", "names": "columns"}[mistake]
    # What reached the coordinator holds no path and no value; the site's own log has both.
    assert not [secret for secret in ("private-south", str(tmp_path), "4711") if secret in str(caught.value)]
    if mistake == "value":  # other mistakes of a site are told in the same way, see tests/client_app/test_messages.py
        assert "private-south" in caplog.text
        assert "4711" in caplog.text
    [run] = (tmp_path / "runs").iterdir()
    kept = {path.name: path.read_text() for path in run.iterdir()}
    assert {*kept} <= {"config.toml", "status.json", "warnings.jsonl"}, "none of a run that trained"
    assert not [name for name, text in kept.items() if "private-south" in text or "4711" in text]


def test_changes_of_images_are_refused_where_sites_have_tables(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        run_at(site_job(tmp_path, augment_flip=True, augment_rotate=5.0), hospitals(tmp_path))
    assert [(error.key, error.sites) for error in caught.value.problems] == [
        (key, ("north", "south", "west")) for key in ("augment-flip", "augment-rotate")
    ]


def test_every_bad_site_is_named_at_once(tmp_path: Path) -> None:
    nodes = hospitals(tmp_path)
    for name in ("north", "west"):
        (tmp_path / f"private-{name}" / "data.csv").unlink()
    with pytest.raises(TooFewRepliesError, check=has(value=1, sites=("north", "west"))):
        run_at(site_job(tmp_path), nodes)


@pytest.mark.slow
@pytest.mark.parametrize("order", [[3, 1, 0, 2], [2, 3, 1, 0]])
def test_columns_in_another_order_are_the_same_data(tmp_path: Path, order: list[int]) -> None:
    names = [f"marker_{column}" for column in range(4)]
    nodes = hospitals(tmp_path)
    expected = run_at(site_job(tmp_path), nodes)
    features, labels = table(40, seed=1)
    shuffled = write_table(tmp_path / "shuffled", features[:, order], labels, names=[names[i] for i in order])
    nodes[1]["data-dir"] = str(shuffled)
    result = run_at(site_job(tmp_path), nodes)
    assert np.array_equal(result.arrays["x"], expected.arrays["x"])


@pytest.mark.slow
@pytest.mark.parametrize("positives", [0, 40])
def test_a_site_with_one_class_trains_with_a_warning_and_no_auroc(
    tmp_path: Path, positives: int, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    if positives:
        request.getfixturevalue("curves")  # which have gaps
    nodes = hospitals(tmp_path)
    write_table(tmp_path / "private-south", *table(40, seed=1, positives=positives))
    result = run_at(site_job(tmp_path), nodes, quiet=False)
    out = capsys.readouterr().out
    only = "positive" if positives else "negative"
    assert warnings(out, "'south'", only)
    for record in result.metrics:
        assert math.isnan(record["sites"]["south"]["auroc"])
        assert math.isnan(record["sites"]["south"]["auprc"])
        assert 0 <= record["auroc"] <= 1  # pooled over all sites it is defined
    for line in (result.folder / "metrics.jsonl").read_text().splitlines():
        assert json.loads(line)["sites"]["south"]["auroc"] is None


def test_one_class_at_all_sites_stops_the_run(tmp_path: Path) -> None:
    nodes = hospitals(tmp_path)
    for name in ("north", "south", "west"):
        write_table(tmp_path / f"private-{name}", *table(40, seed=1, positives=0))
    with pytest.raises(RunError, check=has(key="classes", value={False})):
        run_at(site_job(tmp_path), nodes)


def test_missing_values_are_imputed_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = hospitals(tmp_path)
    features, labels = table(40, seed=1)
    features[:, 0] = np.nan
    write_table(tmp_path / "private-south", features, labels)
    result = run_at(site_job(tmp_path, holdout_share=0.0), nodes, quiet=False)
    assert lines(capsys.readouterr().out, "'south'", 40)
    assert np.isfinite(result.arrays["x"]).all()


@pytest.mark.parametrize("name", ["north", "North", "n\u043erth", "n\u00f3rth", "nor th"])
def test_two_sites_of_one_name_are_told_apart_by_nobody(tmp_path: Path, name: str) -> None:
    """Nor are those whose names look the same."""
    nodes = hospitals(tmp_path)
    nodes[2]["site"] = name
    with pytest.raises(RunError, check=has(ascii("north"), ascii(name), key="site")):
        run_at(site_job(tmp_path), nodes)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("rows", [(400, 30), (4000, 40, 40, 40), (90, 60, 40)])
def test_a_site_that_outweighs_the_others_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], weighting: str, rows: tuple[int, ...]
) -> None:
    """What a site says of its size counts, and nobody else can check it."""
    nodes = hospitals(tmp_path, rows)
    run_at(site_job(tmp_path, sites=len(rows), rounds=1, **{"weighting": weighting}), nodes, quiet=False)
    assert bool(warnings(capsys.readouterr().out, "'north'")) == (rows[0] >= 400)


@pytest.mark.slow
def test_the_order_of_the_sites_is_that_of_their_names(tmp_path: Path) -> None:
    # Node numbers change from run to run; the model must not.
    nodes = hospitals(tmp_path)
    expected = run_at(site_job(tmp_path), nodes)
    result = run_at(site_job(tmp_path), nodes[::-1])
    assert list(result.metrics[-1]["sites"]) == list(expected.metrics[-1]["sites"])
    assert np.array_equal(result.arrays["x"], expected.arrays["x"])


# ---------------------------------------------------------------------- another number of sites than the run is for


@pytest.mark.parametrize("connected", [2, 5])
def test_the_number_of_sites_must_be_the_runs(tmp_path: Path, connected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from edelweiss.server_app.local import LocalGrid

    monkeypatch.setattr(LocalGrid, "get_node_ids", lambda grid: range(1, connected + 1))
    job = saddle_job(tmp_path, sites=3, wait_timeout=0.2)
    named = (f"sites={connected}", "num-supernodes=3")
    with pytest.raises(RunError, check=has(*named, key="sites", value=connected, allowed=3)):
        simulate(job)


def test_another_version_of_the_app_at_the_coordinator_is_one_clear_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edelweiss.server_app.data_summary.fingerprint", lambda: "0123456789ab")
    sites = tuple(f"site-{k}" for k in range(4))
    with pytest.raises(TooFewRepliesError, check=has("0123456789ab", fingerprint(), sites=sites)):
        simulate(saddle_job(tmp_path))
