"""What a hospital tells for evidence.json: by its own rules no more than its evaluation tells, whatever it is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from edelweiss.federation import pack
from edelweiss.problems.histogram import Histogram
from tests.client_app.policies import Hospital, reading
from tests.server_app.sites import SiteGrid, question, table

FEWEST = 5
LAST: dict[str, Any] = {"standardise": False, "evidence": True}


def answer(grid: SiteGrid, **told: Any) -> Message:
    """Ask about a model that is one feature, at the end of a run."""
    content = question(grid.config, "evaluate", {"x": reading(2, 1, 0)}, **told)
    return grid.ask("evaluate", 0, content)


def record(message: Message) -> dict[str, Any]:
    return dict(message.content.config_records["evidence"])


def refused(message: Message) -> str:
    records = message.content.config_records
    return str(records["error"]["message"]) if "error" in records else ""


def hospital(folder: Path, fewest: int, rows: int = 400, **policy: Any) -> Hospital:
    return Hospital(folder, *table(rows, seed=0), seed="a", fewest_of_each_class=fewest, **policy)


def test_with_them_nothing_that_is_told_depends_on_any_score(tmp_path: Path) -> None:
    """Two models, of which one reads a feature and the other another: what is added to the evaluation is the same."""
    told = []
    for feature in (1, 2):
        with hospital(tmp_path / str(feature), FEWEST).run(**LAST) as grid:
            content = question(grid.config, "evaluate", {"x": reading(feature, 1, 0)})
            told.append(repr(record(grid.ask("evaluate", 0, content))))
    assert told[0] == told[1]


def test_a_run_without_evidence_may_not_ask_for_it(tmp_path: Path) -> None:
    with hospital(tmp_path, 1).run(**LAST | {"evidence": False}) as grid:
        assert set(answer(grid).content) == {"metrics"}
        assert "'merged' is an unknown key" in refused(answer(grid, merged=[b""] * 4))


@pytest.mark.parametrize("policy", [{"fewest_held_out": 1000}, {"fewest_of_each_class": 100}], ids=str)
def test_below_the_minimum_counts_nothing_is_told(policy: dict[str, Any], tmp_path: Path) -> None:
    with Hospital(tmp_path, *table(400, seed=0), seed="a", **policy).run(**LAST) as grid:
        content = answer(grid).content
        assert dict(content["metrics"]) == {}
        assert dict(content["evidence"]) == {}


def test_patients_with_several_samples_are_told_of_by_their_number_only(tmp_path: Path) -> None:
    features, labels = table(400, seed=0)
    features[:, 0] = np.arange(400) // 4
    designs = {}
    for fewest in (1, FEWEST):
        where = Hospital(
            tmp_path / str(fewest), features, labels, seed="a", fewest_of_each_class=fewest, patient="marker_0"
        )
        with where.run(**LAST) as grid:
            content = question(grid.config, "evaluate", {"x": reading(2, 1, 0)[[0, 2, 3, 4, 5, 6]]}, shape=[3])
            designs[fewest] = record(grid.ask("evaluate", 0, content))["design"]
    assert set(designs[FEWEST]) == {4.0}
    assert designs[1][-1] == 4, "the largest"
    assert all(0.3 < one <= 4.5 for one in designs[1])
    assert len(set(designs[1])) > 5, "as their scores are"


COMPARED: dict[str, Any] = {**LAST, "compare_with": "runs/other"}


def of_two(grid: SiteGrid, **told: Any) -> Message:
    """Ask about a model that is one feature, and another that is another one."""
    content = question(grid.config, "evaluate", {"x": reading(2, 1, 0)}, **told)
    content["other"] = pack({"x": reading(1, 1, 0)})
    return grid.ask("evaluate", 0, content)


def asked_first(grid: SiteGrid) -> list[bytes]:
    """Ask for the first answer; return what the second is asked with: this site's counts."""
    message = of_two(grid)
    own, other = dict(message.content.config_records["metrics"]), record(message)
    kinds = ("positive-scores", "negative-scores")
    return [*(own[kind] for kind in kinds), *(other[f"other-{kind}"] for kind in kinds)]


def changed(merged: list[bytes], place: int, by: int) -> list[bytes]:
    """Return counts of all sites, with one more or less in the first bin of one of the histograms."""
    found = Histogram.unpacked(merged[place])
    counts = found.counts.copy()
    counts[0] += by
    return [*merged[:place], Histogram(found.bins[counts > 0], counts[counts > 0]).packed(), *merged[place + 1 :]]


def test_of_two_models_a_site_tells_sums_over_its_patients(tmp_path: Path) -> None:
    with hospital(tmp_path, 1).run(**COMPARED) as grid:
        told = record(of_two(grid, merged=asked_first(grid)))
        assert {key: len(value) if isinstance(value, list) else 1 for key, value in told.items()} == {
            "squares": 2,
            "products": 1,
            "patients": 3,
        }
        assert told["products"] == 0, "each patient has one sample"


def test_two_models_are_compared_once(tmp_path: Path) -> None:
    with hospital(tmp_path, 1).run(**COMPARED) as grid:
        merged = asked_first(grid)
        assert record(of_two(grid, merged=merged)) == record(of_two(grid, merged=merged))
        more = changed(changed(merged, 0, 1), 2, 1)
        assert "over here, or was requested differently" in refused(of_two(grid, merged=more))
        assert "over here, or was requested differently" in refused(of_two(grid))


@pytest.mark.parametrize("change", [(0, 1), (1, -1), (3, 1)], ids=str)
def test_counts_of_all_sites_that_lack_a_patient_of_this_one_are_refused(
    change: tuple[int, int], tmp_path: Path
) -> None:
    """Of fewer than it told, or of more for one model than for the other: such sums would be about another set."""
    with hospital(tmp_path, 1).run(**COMPARED) as grid:
        merged = changed(asked_first(grid), *change)
        assert "lack some that this site reported" in refused(of_two(grid, merged=merged))


@pytest.mark.parametrize(
    ("merged", "said"),
    [
        ([b""], "merged = "),
        ([1] * 4, "merged = "),
        ([b""] * 4, "merged: empty"),
        ([b"\0" * 8, b"", b"", b""], "merged: its bins must not be empty"),
        ([b"\0" * 4 + b"\1" * 4, b"\0" * 8 + b"\1" * 8, b"", b""], "merged: its bins must be finite"),
    ],
    ids=str,
)
def test_a_comparison_that_is_none_is_refused(merged: list[Any], said: str, tmp_path: Path) -> None:
    with hospital(tmp_path, 1).run(**COMPARED) as grid:
        asked_first(grid)
        assert said in refused(of_two(grid, merged=merged))


def test_with_groups_only_two_models_are_not_compared(tmp_path: Path) -> None:
    with hospital(tmp_path, FEWEST).run(**COMPARED) as grid:
        told = record(of_two(grid))
        assert (told["other-positive-scores"], told["other-negative-scores"]) == (b"", b"")
        assert np.isnan([told["other-auroc"], told["covariance"]]).all()
        assert "in groups of 5" in refused(of_two(grid, merged=[Histogram.of(np.zeros(9)).packed()] * 4))


def test_a_run_without_a_second_model_is_told_nothing_of_one(tmp_path: Path) -> None:
    with hospital(tmp_path, 1).run(**LAST) as grid:
        answer(grid)
        assert "'merged' is an unknown key" in refused(answer(grid, merged=[b""] * 4))
        assert "'other' is an unexpected record" in refused(of_two(grid))
