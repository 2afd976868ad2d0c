"""The picture of a study: where its panels are, and how wide its bands."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from PIL import Image

from benchmarks.pictures import CAPTIONS, axis, draw, panels, points
from benchmarks.sweep import Sweep
from benchmarks.tables import gather
from edelweiss.lab.compare.pictures import curves
from tests.benchmarks.pretended import COST, every_run, leave, pretend


@pytest.mark.slow
def test_a_picture_of_two_keys_has_a_line_of_panels_per_value_of_the_first(sweep: Sweep) -> None:
    keys = {"local-steps": (2, 4), "concentration": (0.5, 1.0, 2.0)}
    sweep = replace(sweep, study=replace(sweep.study, compare=keys))
    for job in every_run(sweep):
        pretend(sweep, job, held_out=0.6)
    figure, _ = panels(gather(sweep), sweep.study.report, 3)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [f"local-steps={q}, concentration={c}" for q in (2, 4) for c in ("0.5", "1", "2")]
    assert {(spec.rowspan.start, spec.colspan.start) for axes in figure.axes if (spec := axes.get_subplotspec())} == {
        (line, column) for line in (0, 1) for column in (0, 1, 2)
    }


VALUES = {0: (0.5, 0.6), 1: (0.7, 0.9), 2: (0.9, 0.9)}  # by seed, after rounds 1 and 2


@pytest.fixture
def three_seeds(sweep: Sweep) -> Sweep:
    sweep = replace(sweep, study=replace(sweep.study, compare={}, repeat={"seed": tuple(VALUES)}))
    for job in every_run(sweep):
        values = VALUES.get(job.settings["seed"], (0.5, 0.5))  # type: ignore[call-overload]
        scores = [{"central": {"auroc": value}, "pooled": {"auroc": value}} for value in values]
        leave(sweep, job, [{"round": r, **COST, **score} for r, score in enumerate(scores, 1)])
    return sweep


def test_bands_are_one_standard_deviation_wide_to_either_side(three_seeds: Sweep) -> None:
    axes = Figure().subplots()
    (rows,) = gather(three_seeds).values()
    curves(axes, rows, "central.auroc")
    assert len(axes.lines) == len(axes.collections) == len(rows)
    by_round = list(zip(*VALUES.values(), strict=True))
    means, deviations = ([f(found) for found in by_round] for f in (statistics.mean, statistics.stdev))
    for line, band in zip(axes.lines, axes.collections, strict=True):
        assert isinstance(band, PolyCollection)
        assert list(line.get_ydata()) == pytest.approx(means)
        corners = np.asarray(band.get_paths()[0].vertices)
        for r, mean, deviation in zip((1, 2), means, deviations, strict=True):
            heights = corners[corners[:, 0] == r, 1]
            assert (heights.min(), heights.max()) == pytest.approx((mean - deviation, mean + deviation))


def test_bars_are_one_standard_deviation_long_to_either_side(three_seeds: Sweep) -> None:
    (rows,) = gather(three_seeds).values()
    _, axes = points(rows, three_seeds.study.report)
    last = [values[-1] for values in VALUES.values()]
    for container in axes.containers:
        (bars,) = container[2]
        ((_, low), (_, high)) = bars.get_segments()[0]
        mean, deviation = statistics.mean(last), statistics.stdev(last)
        assert (low, high) == pytest.approx((mean - deviation, mean + deviation))


def test_an_axis_shows_the_last_values_against_a_key_in_a_panel_for_each_choice_of_the_others(sweep: Sweep) -> None:
    keys = {"concentration": (0.5, 1.0), "local-steps": (2, 4, 8)}
    sweep = replace(sweep, study=replace(sweep.study, compare=keys))
    for job in every_run(sweep):
        pretend(sweep, job, held_out=0.6, test=job.settings["local-steps"] / 10 + job.settings["seed"] / 100)  # type: ignore[operator]
    figure, _ = axis(sweep.study, gather(sweep))
    assert [axes.get_title() for axes in figure.axes] == ["concentration=0.5", "concentration=1"]
    for axes in figure.axes:
        assert len(axes.containers) == len(sweep.study.methods)
        for container in axes.containers:
            line, _, (bars,) = container
            assert list(line.get_xdata()) == [2, 4, 8]
            assert list(line.get_ydata()) == pytest.approx([0.205, 0.405, 0.805])
            (_, low), (_, high) = bars.get_segments()[0]
            assert high - low == pytest.approx(2 * statistics.stdev([0.2, 0.21]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", CAPTIONS)
def test_a_picture_says_what_its_bands_are(
    three_seeds: Sweep, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = {"local-steps": (2,)} if kind == "axis" else {}
    sweep = replace(three_seeds, study=replace(three_seeds.study, picture=kind, compare=compare))
    said: list[str] = []
    save = Figure.savefig

    def noting(figure: Figure, *arguments: object, **keys: object) -> None:
        said.extend(legend.get_title().get_text() for legend in figure.legends)
        save(figure, *arguments, **keys)  # type: ignore[arg-type]

    monkeypatch.setattr(Figure, "savefig", noting)
    draw(sweep, gather(sweep), tmp_path / "small.png")
    assert said == [CAPTIONS[kind]]
    assert "± one standard deviation" in CAPTIONS[kind]
    assert Image.open(tmp_path / "small.png").width > 500
