"""report.html, model-card.md and tripod-ai.md: complete, true to the run's files, alone on a disk without network."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edelweiss.config import RunConfig
from edelweiss.federation import RunError
from edelweiss.lab.cli import main
from edelweiss.lab.report import write_report
from edelweiss.lab.report.account import site_table
from edelweiss.lab.report.content import UNKNOWN, Content
from edelweiss.lab.report.drawing import save, style
from edelweiss.lab.report.figures import estimate, forest
from edelweiss.lab.report.page import drawings, html
from edelweiss.problems.metrics import HEADLINE, METRICS, format_named
from edelweiss.server_app import simulate
from tests.lab.read_page import Page
from tests.said import has, lines
from tests.server_app.sites import REPORT, job, run_at, saddle_job, site_job, table, write_table

ROOT = Path(__file__).resolve().parents[2]
ABOUT = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's, over real patients."""
    return simulate(job(tmp_path_factory.mktemp("run"), problem="auc", sites=3)).folder


@pytest.fixture(scope="module")
def written(folder: Path) -> list[str]:
    """What the command of docs/report.md says that it has written there: the page, and each picture."""
    [options] = re.findall(r"^edelweiss report \S+ (.*)$", ABOUT, re.MULTILINE)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["report", str(folder), *options.split()]) == 0
    return out.getvalue().split()


@pytest.mark.slow
@pytest.mark.usefixtures("written")
def test_the_command_writes_every_file_that_the_page_about_it_names_and_no_other(folder: Path) -> None:
    named = set(re.findall(r"`([\w-]+\.\w+)`", "".join(row for row in ABOUT.splitlines() if row.startswith("| `"))))
    assert named == set(REPORT), "what a run leaves, see tests/server_app/test_app.py"
    assert all((folder / name).exists() for name in named)
    assert (folder / "pictures" / "curves.pdf").exists()


def test_the_page_needs_nothing_but_itself(written: list[str]) -> None:
    text = Path(written[0]).read_text()
    page = Page(text)
    assert not [target for target in page.fetched if not target.startswith("#")]
    assert not {"script", "link", "iframe", "img", "object", "base"} & {*page.tags}
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert page.tags.count("svg") >= 1
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert "#010203" not in text, "axes have the colour of the page's text"


def test_it_says_all_that_the_run_folder_does(folder: Path, written: list[str]) -> None:
    said = Page(Path(written[0]).read_text()).said
    for key, value in RunConfig.parse({"problem": "auc"}).written().items():
        assert re.search(rf"\b{re.escape(key)}\b", said), (key, value)
    about = json.loads((folder / "about.json").read_text())
    assert len(about["sites"]) == 3
    for name, told in about["sites"].items():
        row = said[said.index(f" {name} ") :]
        assert re.match(rf"\W+{name}\W+{told['examples']}\W+{told['positives']}\W+{told['held-out']}\b", row), row[:99]
    for package, version in about["versions"].items():
        assert re.search(rf"{package}\s+{re.escape(version)}", said)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert f"{sum(line['gradients'] for line in lines):,.0f}" in said
    assert f"{len(lines)} of {len(lines)}" in said
    assert "control variates" in said, "what left each site"


def test_it_shows_the_evidence_with_its_intervals(folder: Path, written: list[str]) -> None:
    text = Path(written[0]).read_text()
    evidence, page = json.loads((folder / "evidence.json").read_text()), Page(text)
    assert page.tags.count("svg") == 6, "curves, ROC, precision and recall, each site, calibration, net benefit"
    for one in (evidence["pooled"]["auroc"], evidence["within-sites"]["auroc"], evidence["common-test-set"]["auroc"]):
        assert f"{one['value']:.2f}" in page.said
        assert f"{one['low']:.2f} to {one['high']:.2f}" in page.said
    for name, site in evidence["sites"].items():
        row = page.said[page.said.index(f" {name} ") :][:200]
        assert estimate(site["auroc"]) in row
        assert estimate(site["auprc"]) in row
    for note in evidence["notes"]:
        assert note in page.said
    performance = (folder / "tripod-ai.md").read_text().split("| 23 |")[1].splitlines()[0]
    assert estimate(evidence["pooled"]["auroc"]) in performance
    assert len(re.findall(r"mean radius|worst area", (folder / "model-card.md").read_text())) == 2, "names of inputs"


@pytest.mark.parametrize("judged", [True, False])
def test_each_number_of_a_site_stands_under_its_head_and_none_twice(folder: Path, judged: bool) -> None:
    """With evidence a site's AUROC has an interval, and is not told once more without."""
    run = Content.read(folder)
    run = run if judged else replace(run, evidence=None)
    heads, rows = site_table(run)
    assert len({head.partition(" (")[0] for head in heads}) == len(heads)
    for site, row in zip(run.sites, rows, strict=True):
        told = dict(zip(heads, row, strict=True))
        of = {METRICS[name].label: format_named(site["metrics"], name) for name in HEADLINE if name in site["metrics"]}
        assert {head: cell for head, cell in told.items() if head in of}.items() <= of.items()
        assert of.keys() - told.keys() == ({METRICS["auroc"].label, METRICS["auprc"].label} if judged else set())


@pytest.mark.slow
def test_a_picture_is_what_matplotlib_writes_in_two_passes(folder: Path, tmp_path: Path) -> None:
    once, twice = (drawings(Content.read(folder))["roc"] for _ in range(2))
    save(once, tmp_path / "roc")
    with style():
        twice.savefig(tmp_path / "twice.pdf", metadata={"CreationDate": None})
    assert (tmp_path / "roc.pdf").read_bytes() == (tmp_path / "twice.pdf").read_bytes()


@pytest.mark.slow
def test_names_of_sites_are_text_and_nothing_else(tmp_path: Path) -> None:
    name = "a<img src=x>&'b'"
    nodes = [
        {"site": f"{name}{k}", "data-dir": str(write_table(tmp_path / f"s{k}", *table(60, seed=k)))} for k in range(2)
    ]
    folder = run_at(RunConfig.parse(site_job(tmp_path, sites=2).written()), nodes).folder
    page = Page(html(Content.read(folder)))
    assert "img" not in page.tags
    assert f"{name}0" in page.said


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ditto", "codasca"])
def test_a_run_without_patients_or_with_a_model_for_each_site_has_one(tmp_path: Path, algorithm: str) -> None:
    folder = simulate(saddle_job(tmp_path, algorithm=algorithm) | {"run-name": "it"}).folder
    said = Page(html(Content.read(folder))).said
    assert "needs no patients" in said
    assert ("mean over sites" in said) == (algorithm == "ditto")


@pytest.mark.usefixtures("unpainted")
def test_a_stopped_run_says_so(tmp_path: Path) -> None:
    folder = simulate(saddle_job(tmp_path)).folder
    (folder / "status.json").write_text('{"status": "stopped", "since": "now", "run": "x", "reason": "a <fire>"}')
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:2]))
    said = Page(write_report(folder).read_text()).said
    assert "a <fire>" in said
    assert "2 of 4" in said
    assert "did not end as planned" in (folder / "model-card.md").read_text()


@pytest.mark.usefixtures("written")
def test_the_table_has_each_item_once_and_says_what_is_not_known(folder: Path) -> None:
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+) \|$", (folder / "tripod-ai.md").read_text(), re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 28))
    assert len({item for _, item, _ in rows}) == 27
    known = {int(number): text for number, _, text in rows}
    assert known[1] == known[17] == known[19] == UNKNOWN
    told = json.loads((folder / "about.json").read_text())["sites"]
    for name, site in told.items():
        assert f"{name}: {site['examples']} to train on, {site['positives']} of them positive" in known[10]


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("about.json", '{"version": 7}', "about.json has version 7; this release reads 1"),
        ("about.json", "[]", "no JSON object"),
        ("about.json", "{", "about.json is damaged"),
        ("metrics.jsonl", '{"round": 1}\n{"rou', "metrics.jsonl is damaged"),
        ("metrics.jsonl", "3\n", "line 1 is not what a run writes"),
        ("config.toml", "algorithm = 'codaska'\n", "algorithm = 'codaska'"),
        ("status.json", "\x00", "status.json is damaged"),
        ("config.toml", "", "config.toml cannot be read (it is empty)"),
        *((file, None, f"{file} is damaged (it is not a regular file)") for file in ("metrics.jsonl", "status.json")),
    ],
)
def test_a_damaged_folder_is_named_and_left_as_it_is(tmp_path: Path, file: str, content: str | None, said: str) -> None:
    folder = simulate(saddle_job(tmp_path, rounds=1)).folder
    if content is None:
        (folder / file).unlink()
        os.mkfifo(folder / file)
    else:
        (folder / file).write_text(content)
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(RunError, check=has(said)) as caught:
        write_report(folder)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.slow
def test_a_report_is_written_from_evidence_of_version_1(folder: Path, tmp_path: Path) -> None:
    """An operating point said ``told`` there where it says ``measure`` now."""
    old = shutil.copytree(folder, tmp_path / "run")
    file = old / "evidence.json"
    assert '"measure":' in file.read_text()
    content = json.loads(file.read_text().replace('"measure":', '"told":'))
    file.write_text(json.dumps(content | {"version": 1}))
    write_report(old)
    said = Page((old / "report.html").read_text()).said
    assert "sensitivity at specificity 0.90" in said


@pytest.mark.slow
def test_a_long_run_of_many_sites_fits_into_five_megabytes(tmp_path: Path) -> None:
    folder = simulate(saddle_job(tmp_path, rounds=1)).folder
    line = json.loads((folder / "metrics.jsonl").read_text())
    site = next(iter(line["sites"].values()))
    names = [f"hospital-{k}" for k in range(128)]
    lines = [
        line
        | {
            "round": r,
            "sites": {name: {key: value * (1 + k / r) for key, value in site.items()} for k, name in enumerate(names)},
            "site-gradients": dict.fromkeys(names, 20.0),
        }
        for r in range(1, 501)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert len(html(Content.read(folder)).encode()) < 5e6


def test_the_command_writes_it_again_with_each_picture(
    folder: Path, written: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert written[0] == str(folder / "report.html")
    assert len(written) == 1 + 6
    for path in map(Path, written[1:]):
        assert path.read_bytes().startswith(b"%PDF")
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert main(["report", str(folder / "nothing")]) == 1
    assert lines(capsys.readouterr().err, "config.toml")


@pytest.mark.slow
def test_what_the_environment_says_of_pictures_costs_no_report(tmp_path: Path) -> None:
    """Matplotlib reads it when it is imported, so that takes a process of its own."""
    folder = simulate(saddle_job(tmp_path, report=False)).folder
    said = {"MPLBACKEND": "nosuch", "SOURCE_DATE_EPOCH": "x"}
    script = "import sys; from edelweiss.lab.report import write_report; write_report(sys.argv[1])"
    subprocess.run([sys.executable, "-c", script, str(folder)], env=os.environ | said, cwd=ROOT, check=True)
    pdf = (folder / "curves.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert b"Date" not in pdf
    assert "<svg" in (folder / "report.html").read_text()


def test_an_interval_is_drawn_as_wide_as_it_is_written() -> None:
    """Also where sites sent scores of groups, so that nobody knows the order within."""
    auroc = {"value": 0.95, "low": 0.9, "high": 0.98, "ties": 0.3}
    whole = {"pooled": None, "common-test-set": None, "within-sites": {"sites": 1, "auroc": auroc}}
    [bar] = forest({"sites": {"north": {"auroc": auroc}}} | whole).axes[0].containers
    [[start, end]] = bar.lines[2][0].get_segments()
    low, high = re.findall(r"[\d.]+", estimate(auroc))[-2:]
    assert (start[0], end[0]) == pytest.approx((float(low), float(high)))
