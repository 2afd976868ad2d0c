"""`edelweiss compare`: groups, means, paired differences, costs, pictures; and what cannot be compared."""

from __future__ import annotations

import contextlib
import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image
from scipy.stats import ttest_rel

from edelweiss.config import ConfigError, RunConfig
from edelweiss.lab.cli import main
from edelweiss.lab.compare.comparison import COSTS, Comparison
from edelweiss.lab.compare.folders import read
from edelweiss.lab.compare.pictures import COLOURS, curves, panels
from edelweiss.lab.compare.text import latex
from edelweiss.server_app import simulate
from tests.lab.compared import COST, leave
from tests.said import lines

FEDAVG = {"algorithm": "fedavg", "problem": "bce"}
VALUES = {"fedavg": (0.5, 0.7, 0.9), "codasca": (0.52, 0.71, 0.93)}  # by seed, after the last round


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two algorithms with three seeds each, of two rounds."""
    for name, values in VALUES.items():
        for seed, value in enumerate(values):
            keys = FEDAVG if name == "fedavg" else {"algorithm": name}
            leave(tmp_path / "runs" / f"{name}-{seed}", [value / 2, value], seed=seed, **keys)
    return tmp_path / "runs"


def compared(*names: str | Path, **options: Any) -> Comparison:
    found, notes = read([str(name) for name in names])
    return Comparison.of(found, notes=notes, **options)


def refused(*names: str | Path, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as told:
        compared(*names, **options)
    return told.value.problems


# ---------------------------------------------------------------------- groups and their numbers


def test_means_spreads_and_paired_differences_are_those_of_numpy_and_scipy(runs: Path) -> None:
    heading, codasca, fedavg = compared(runs / "*", versus="fedavg").lines()
    ours, theirs = (np.array(VALUES[name]) for name in ("codasca", "fedavg"))
    assert codasca[:3] == ["codasca", "3", f"{ours.mean():.4f} ± {ours.std(ddof=1):.4f}"]
    interval = ttest_rel(ours, theirs).confidence_interval(0.95)
    wanted = f"{(ours - theirs).mean():+.4f} ({interval.low:+.4f} to {interval.high:+.4f})"
    assert dict(zip(heading, codasca, strict=True))["difference in AUROC, test set"] == wanted
    assert fedavg[heading.index("difference in AUROC, test set")] == "–"
    # Two rounds of two sites.
    costs = {"rounds": "2", "MB per site": "4", "gradients per site": "8", "seconds": "1"}
    assert {name: dict(zip(heading, codasca, strict=True))[name] for name in costs} == costs


def test_pairs_are_of_equal_seeds_whatever_the_order_of_the_folders(runs: Path) -> None:
    (runs / "codasca-0").rename(runs / "zz")
    lines = compared(runs / "fedavg-*", runs / "codasca-*", runs / "zz").lines()
    assert lines == compared(runs / "fedavg-*", runs / "zz", runs / "codasca-*").lines()
    assert lines[2][3].startswith("+0.0200 (")


def test_groups_are_named_by_what_differs(runs: Path) -> None:
    both = compared(runs / "*")
    assert [group.label for group in both.groups] == ["codasca", "fedavg"]
    (note,) = [note for note in both.notes if "own keys" in note]
    assert "fedavg with problem=bce" in note
    for seed in (0, 1):
        keys = {"codasca.lr": 0.5, "algorithm": "codasca", "seed": seed}
        leave(runs / f"codasca-fast-{seed}", [0.1, 0.2], **keys)
    usual = RunConfig.parse({"algorithm": "codasca"}).hyper["lr"]
    labels = {group.label for group in compared(runs / "*").groups}
    assert labels == {f"codasca, lr={usual}", "codasca, lr=0.5", "fedavg"}
    assert {group.label for group in compared(runs / "codasca*").groups} == {f"lr={usual}", "lr=0.5"}
    # Where and how a run was computed makes no other group.
    leave(runs / "elsewhere", [0.1, 0.2], algorithm="codasca", seed=7, engine="local", workers=2, evidence=False)
    assert len(compared(runs / "*").groups) == 3


def test_a_run_that_diverged_is_counted_and_no_part_of_a_mean(runs: Path) -> None:
    leave(runs / "lost", [0.1], reason="the run diverges: loss 1e9", rounds=2, seed=3, **FEDAVG)
    line = next(line for line in compared(runs / "*").lines() if line[0].startswith("fedavg"))
    assert line[:2] == ["fedavg (1 of 4 runs diverged)", "4"]
    assert line[2].startswith("0.7000 ±")


def test_where_every_run_diverged_there_is_no_number_and_no_cost(runs: Path) -> None:
    for seed in range(2):
        leave(runs / f"lost-{seed}", [0.1, 0.1], reason="the run diverges: loss 1e9", seed=seed, algorithm="npa")
    heading, *lines = compared(runs / "*").lines()
    line = dict(zip(heading, next(line for line in lines if line[0].startswith("npa")), strict=True))
    assert line["setting"] == "npa (2 of 2 runs diverged)"
    assert [line[cost] for cost in ("rounds", *COSTS.values())] == ["0"] * (1 + len(COSTS))


def test_the_same_run_twice_counts_once(runs: Path) -> None:
    leave(runs / "zz", [0.1, 0.9], algorithm="codasca", seed=0)
    comparison = compared(runs / "codasca*", runs / "zz", runs / "codasca-1")
    assert comparison.lines()[1][1] == "3"
    assert "Of runs with equal settings and seeds the last one counts: 1 left out." in comparison.notes
    assert comparison.groups[0].values("central.auroc") == pytest.approx([0.9, 0.71, 0.93])


def test_folds_are_repeats_and_are_paired(tmp_path: Path) -> None:
    for fold in range(3):
        for name, lr in (("a", 0.1), ("b", 0.5)):
            keys = {"folds": 3, "fold": fold, "codasca.lr": lr}
            leave(tmp_path / f"{name}{fold}", [0.5 + fold / 10 + lr / 10], **keys)
    comparison = compared(tmp_path / "*", metrics=["pooled.auroc"])
    assert len(comparison.groups) == 2
    assert comparison.lines()[2][3].startswith("+0.0400 (+0.0400 to +0.0400)")


# ---------------------------------------------------------------------- the edge of a grid


@pytest.mark.parametrize(("best", "edge"), [(0, "lr=0.003"), (1, ""), (2, "lr=0.3")])
def test_a_best_step_size_on_the_edge_of_its_grid_is_said(tmp_path: Path, best: int, edge: str) -> None:
    for place, lr in enumerate((0.01, 0.03, 0.1)):
        # The test set says otherwise, and has no part in it.
        keys = {"codasca.lr": lr, "algorithm": "codasca"}
        leave(tmp_path / f"run-{place}", [0.1 * place], [0.9 if place == best else 0.5], **keys)
    notes = [note for note in compared(tmp_path / "*").notes if "edge" in note]
    assert [edge in note for note in notes] == [True] * bool(edge)


def test_on_a_grid_of_two_step_sizes_each_has_edges_of_its_own(tmp_path: Path) -> None:
    for x, lr in enumerate((0.01, 0.03, 0.1)):
        for y, dual in enumerate((0.01, 0.03, 0.1)):
            keys = {"local-sgda.lr": lr, "local-sgda.lr-dual": dual, "algorithm": "local-sgda"}
            leave(tmp_path / f"run-{x}{y}", [0.9 if (x, y) == (1, 2) else 0.5], **keys)
    (note,) = [note for note in compared(tmp_path / "*").notes if "edge" in note]
    assert "lr-dual=0.1," in note
    assert "lr-dual=0.3" in note


# ---------------------------------------------------------------------- what cannot be compared


def test_all_folders_that_cannot_be_used_are_named_at_once(runs: Path, tmp_path: Path) -> None:
    leave(tmp_path / "cut", [0.5], rounds=7)
    leave(tmp_path / "stopped", [0.5], reason="it was interrupted", rounds=7)
    (tmp_path / "empty").mkdir()
    damaged, older = leave(tmp_path / "damaged", [0.5]), leave(tmp_path / "older", [0.5])
    (damaged / "metrics.jsonl").write_text('{"round": 1, "cen')
    (older / "config.toml").write_text("rate = 3\n" + (older / "config.toml").read_text())
    none = leave(tmp_path / "none", [0.5])
    (none / "status.json").unlink()
    names = ("cut", "stopped", "empty", "damaged", "older", "none", "no-such")
    told = refused(runs, *(tmp_path / name for name in names))
    for text, name in zip(told, ("runs", *names), strict=True):
        assert name in text.partition(":")[0]
    wanted = (
        re.escape(str(runs / "*")),
        "1 of 7 rounds",
        "[(]it was interrupted[)]",
        "config.toml",
        "damaged",
        "older.*'rate'",
        "none",
        "no-such",
    )
    assert [bool(re.search(pattern, text)) for pattern, text in zip(wanted, told, strict=True)] == [True] * len(told)


@pytest.mark.slow
@pytest.mark.parametrize("value", [None, {}, [], "x", 1e308, -1, True, {"auroc": None}, {"auroc": {"mean": 1}}])
@pytest.mark.parametrize("key", ["round", "bytes-up", "seconds", "central", "pooled"])
def test_what_a_line_holds_in_a_place_of_another_thing_is_compared_or_refused(runs: Path, key: str, value: Any) -> None:
    path = runs / "fedavg-1" / "metrics.jsonl"
    records = [json.loads(line) | {key: value} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    with contextlib.suppress(ConfigError):  # and nothing else
        assert len(compared(runs / "*").markdown().splitlines()) > 4


@pytest.mark.parametrize(
    ("keys", "metric", "why"),
    [
        ({"test_share": 0.5}, "auroc", "test samples .*test-share = 0.5, 0.25 "),
        ({"dataset": "digits"}, "auroc", "dataset = 'digits', 'breast-cancer' "),
        ({"concentration": 0.3}, "pooled.auroc", "held-out samples .*concentration = 0.3, 1.0 "),
        ({"n": 101, "hidden": 8}, "auroc", "test samples .*101, 10 .*100, 10 "),
        ({"concentration": 0.3}, "auroc", ""),
        ({"thin_share": 0.3}, "pooled.auroc", ""),  # of training samples alone
    ],
)
def test_runs_on_other_samples_are_named(runs: Path, keys: dict[str, Any], metric: str, why: str) -> None:
    leave(runs / "other", [0.1, 0.2], algorithm="codasca", seed=0, **keys)
    if not why:
        assert len(compared(runs / "*", metrics=[metric]).groups) == 3
        return
    (text,) = refused(runs / "*", metrics=[metric])
    assert text.startswith(str(runs / "other"))
    assert re.search(why, text)


def judged_on(folder: Path, **samples: str) -> None:
    """Note the digests of the samples that a run was judged on."""
    (folder / "about.json").write_text(json.dumps({"samples": {k.replace("_", "-"): v for k, v in samples.items()}}))


@pytest.mark.parametrize("metric", ["auroc", "pooled.auroc"])
@pytest.mark.parametrize("keys", [{"data_seed": 5}, {"test_share": 0.2}])
def test_the_same_samples_are_compared_whatever_the_words(runs: Path, keys: dict[str, Any], metric: str) -> None:
    """Of seeds that both have; and what is equal at one seed is at a seed that only one of them has."""
    for seed in range(3):
        for name in VALUES:
            judged_on(runs / f"{name}-{seed}", central=f"c{seed}", held_out=f"h{seed}")
        if seed:
            other = leave(runs / f"other-{seed}", [0.1, 0.2], algorithm="codasca", seed=seed, **keys)
            judged_on(other, central=f"c{seed}", held_out=f"h{seed}")
    leave(runs / "other-7", [0.1, 0.2], algorithm="codasca", seed=7, **keys)
    assert len(compared(runs / "*", metrics=[metric]).groups) == 3
    judged_on(runs / "other-1", central="another", held_out="another")
    assert all(str(runs / "other-") in text for text in refused(runs / "*", metrics=[metric]))


def test_other_samples_under_the_same_words_are_refused(runs: Path) -> None:
    """As of a file that was changed between two runs, without a row more or less."""
    for seed in range(3):
        for name in VALUES:
            judged_on(runs / f"{name}-{seed}", central=f"c{seed}", held_out=f"h{seed}")
    assert compared(runs / "*")
    leave(runs / "again", [0.1, 0.2], algorithm="codasca", seed=1, hidden=8)
    judged_on(runs / "again", central="changed", held_out="h1")
    (text,) = refused(runs / "*")
    assert re.search(f"^{re.escape(str(runs / 'again'))}: .*seed 1.*test samples.* {re.escape(str(runs))}/", text)
    assert len(compared(runs / "*", metrics=["pooled.auroc"]).groups) == 3, "the held-out ones are the same"


@pytest.mark.parametrize("told", ["", "[]", "{", '{"samples": 3}', '{"samples": {"central": null}}', '{"samples": []}'])
def test_runs_without_digests_are_compared_by_their_words(runs: Path, told: str) -> None:
    (runs / "fedavg-0" / "about.json").write_text(told)
    assert len(compared(runs / "*").groups) == 2
    leave(runs / "other", [0.1, 0.2], algorithm="codasca", seed=0, data_seed=5)
    (text,) = refused(runs / "*")
    assert "data-seed = 5, -1 in most" in text


def test_a_metric_or_a_group_that_is_not_there_is_refused_with_the_nearest(runs: Path) -> None:
    assert "Did you mean 'pooled.auroc'?" in refused(runs / "*", metrics=["poled.auroc"])[0]
    assert "Did you mean 'codasca'?" in refused(runs / "*", versus="codaska")[0]


@pytest.mark.parametrize("place", ["a\0b", "~nobody-of-this-name/x", "/dev/null/x"])
@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_a_place_for_results_that_cannot_be_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, place: str
) -> None:
    assert main([command, str(tmp_path / "none.toml"), "--to", place]) == 2
    assert lines(capsys.readouterr().err, f"--to {place!r}")


# ---------------------------------------------------------------------- what is written


@pytest.mark.slow
def test_every_form_is_written(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "out"
    told = {"pooled": None, "common-test-set": {"auroc": {"value": 0.71, "low": 0.6, "high": 0.8}}}
    (runs / "codasca-1" / "evidence.json").write_text(json.dumps(told))
    assert main(["compare", str(runs / "*"), "--to", str(to), "--against", "bytes", "--against", "rounds"]) == 0
    printed = capsys.readouterr().out
    pictures = {f"curves-{against}.{form}" for against in ("bytes", "rounds") for form in ("png", "pdf")}
    names = {"runs.csv", "table.md", "table.tex"} | pictures
    assert {path.name for path in to.iterdir()} == names
    assert (to / "table.md").read_text().splitlines()[0] == printed.splitlines()[0]
    table = [line for line in printed.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1, "or its rule is none, and it is no table"
    assert set(table[1]) == set("| -:")
    rows = list(csv.DictReader((to / "runs.csv").open()))
    assert {(row["group"], float(row["central.auroc"])) for row in rows} == {
        (name, value) for name, values in VALUES.items() for value in values
    }
    low = {row["folder"].rpartition("/")[2]: row["central.auroc, low over patients"] for row in rows}
    assert {name: float(value) for name, value in low.items() if value} == {"codasca-1": 0.6}
    tex = (to / "table.tex").read_text()
    body = tex[tex.index(r"\begin{tabular}") :].splitlines()
    assert [line for line in body if line.startswith("\\") and "&" not in line][1:] == [
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    cells = [line for line in body if "&" in line]
    assert {line.count(" & ") for line in cells} == {len(re.findall("[lr]", body[0].rpartition("{")[2])) - 1}
    assert all(line.endswith(r" \\") for line in cells)
    assert "±" not in tex.replace("% Mean ±", "")
    assert (to / "curves-bytes.pdf").read_bytes().startswith(b"%PDF")
    assert Image.open(to / "curves-bytes.png").width > 600


def test_a_link_to_itself_is_no_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert main(["compare", str(tmp_path / "loop")]) == 2
    assert "loop" in capsys.readouterr().err


TOKENS = re.compile(
    r"\\text(?P<word>backslash|asciitilde|asciicircum|less|greater|bar|endash)\{\}|\\(?P<escaped>[&%$#_{}])|\{(?P<braced>[\[*])\}|"
    r"\$(?P<formula>\\pm|\\\||\^2|-)\$|(?P<hyphen>-)(?:\{\}|(?!-))|(?P<plain>[^-\\{}$&#%_^~<>|\[*])"
)
MEANT = {
    "backslash": "\\",
    "asciitilde": "~",
    "asciicircum": "^",
    "less": "<",
    "greater": ">",
    "bar": "|",
    "endash": "–",
    r"\pm": "±",
    r"\|": "‖",
    "^2": "²",
    "-": "-",
}


def typeset(cell: str) -> str:
    """Return what TeX prints of a cell; an assertion fails where a character would do something else."""
    printed, place = "", 0
    while place < len(cell):
        token = TOKENS.match(cell, place)
        assert token, f"TeX takes {cell[place:]!r} for something else"
        found = next(filter(None, token.groups()))
        printed, place = printed + MEANT.get(found, found), token.end()
    return printed


@settings(deadline=None, max_examples=100)
@given(st.lists(st.text("a_%&#$x {}~^\\[]*<>|±–‖².-0", min_size=1, max_size=12), min_size=2, max_size=4))
def test_whatever_a_label_holds_the_table_for_latex_prints_it(cells: list[str]) -> None:
    lines = latex([["setting", *cells[1:]], cells, cells], ["a note with 100 % of a\nsecond line"]).splitlines()
    start = lines.index(rf"\begin{{tabular}}{{l{'r' * (len(cells) - 1)}}}")
    assert all(line.startswith("%") for line in lines[:start])
    rows = [line for line in lines[start:] if line.endswith(r" \\")]
    assert len(rows) == 3
    for row in rows[1:]:
        told = re.split(r"(?<!\\) & ", row.removesuffix(r" \\"))
        assert [typeset(cell) for cell in told] == [" ".join(cell.split()) for cell in cells]
        assert row[0] not in "[*", "the line before it would take that for its own"


@pytest.mark.parametrize(("against", "step"), [("rounds", 1.0), ("bytes", 2.0), ("gradients", 4.0), ("seconds", 0.5)])
def test_curves_stand_over_what_was_spent(runs: Path, against: str, step: float) -> None:
    axes = Figure().subplots()
    comparison = compared(runs / "*")
    curves(axes, comparison.groups, "central.auroc", against)
    for line, group in zip(axes.lines, comparison.groups, strict=True):
        assert list(line.get_xdata()) == pytest.approx([step, 2 * step])
        mean = np.mean(VALUES[group.label])
        assert list(line.get_ydata()) == pytest.approx([mean / 2, mean])
        assert line.get_color() in COLOURS
    assert COST["seconds"] == 0.5


@pytest.mark.parametrize("values", [[0.99, 0.9, 1.0], [0.01, 0.2, 0.0]])
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_band_stays_within_what_a_metric_can_be(tmp_path: Path, values: list[float], rounds: int) -> None:
    for seed, value in enumerate(values):
        leave(tmp_path / f"{seed}", [value] * rounds, seed=seed, **FEDAVG)
    axes = Figure().subplots()
    curves(axes, compared(tmp_path / "*").groups, "central.auroc")
    ends = np.concatenate([path.vertices[:, 1] for drawn in axes.collections for path in drawn.get_paths()])
    assert ends.min() >= 0
    assert ends.max() <= 1
    assert ends.max() - ends.min() > 0.05


def test_the_legend_names_every_group_and_covers_no_curve(runs: Path) -> None:
    comparison = compared(runs / "*")
    figure = panels(comparison.groups, {"central.auroc": "AUROC", "pooled.auroc": "held out"}, "rounds")
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [group.label for group in comparison.groups]
    below = min(axes.get_tightbbox().y0 for axes in figure.axes)
    assert 0 <= legend.get_window_extent().y0 < legend.get_window_extent().y1 <= below


def test_runs_of_other_code_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [
        leave(tmp_path / f"{lr}-{seed}", [0.5, 0.6], seed=seed, **{"codasca.lr": lr})
        for lr in (0.1, 0.2)
        for seed in (0, 1)
    ]
    for codes in (["aaaa1111"] * 4, ["aaaa1111"] * 3 + ["bbbb2222"]):
        for folder, code in zip(folders, codes, strict=True):
            status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
            (folder / "status.json").write_text(json.dumps(status | {"app": code}), encoding="utf-8")
        assert main(["compare", *map(str, folders)]) == 0
        said = lines(capsys.readouterr().out, "aaaa1111")
        assert len(said) == len(set(codes)) - 1
    assert lines("\n".join(said), "bbbb2222")


@pytest.mark.slow
def test_real_runs_are_compared_in_several_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = {"problem": "saddle", "sites": 2, "rounds": 3, "local-steps": 2, "workers": 1}
    job |= {"runs-dir": str(tmp_path / "runs")}
    for algorithm in ("local-sgda", "sagda"):
        for seed in (0, 1):
            simulate({**job, "algorithm": algorithm, "seed": seed})
    arguments = ["compare", str(tmp_path / "runs" / "*"), "--to", str(tmp_path / "out")]
    for against in ("rounds", "seconds"):
        arguments += ["--against", against]
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert "| local-sgda | 2 |" in told
    assert not lines(told, json.loads(next(tmp_path.glob("runs/*/status.json")).read_text())["app"])
    assert len(list((tmp_path / "out").glob("*.pdf"))) == 2
    assert main(["compare", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
