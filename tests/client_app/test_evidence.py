"""What a hospital tells for evidence.json: by its own rules no more than its evaluation tells, whatever it is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from client_app.evidence import most
from evidence import Told
from federation import pack
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


def near(told: dict[str, Any], features: np.ndarray) -> int:
    """Count the numbers that are some patient's value of the feature that the model reads."""
    numbers = [value for values in told.values() if isinstance(values, list) for value in values]
    floats = np.array([value for value in numbers if isinstance(value, float)])
    return int((np.abs(floats[:, None] - features[None, :, 2]).min(1) < 1e-6).sum()) if len(floats) else 0


def test_the_cuts_read_patients_out_without_the_rules_and_none_with_them(tmp_path: Path) -> None:
    found = {}
    for name, fewest in {"without": 1, "with": FEWEST}.items():
        with hospital(tmp_path / name, fewest).run(**LAST) as grid:
            told = record(answer(grid))
            found[name] = near(told, table(400, seed=0)[0])
            assert Told.of(told).grouped == (fewest > 1)
    assert found["without"] > 40
    assert found["with"] == 0


def test_with_them_nothing_that_is_told_depends_on_any_score(tmp_path: Path) -> None:
    """Two models, of which one reads a feature and the other another: what is added to the evaluation is the same."""
    told = []
    for feature in (1, 2):
        with hospital(tmp_path / str(feature), FEWEST).run(**LAST) as grid:
            content = question(grid.config, "evaluate", {"x": reading(feature, 1, 0)})
            told.append(repr(record(grid.ask("evaluate", 0, content))))
    assert told[0] == told[1]


def test_with_them_no_grid_that_others_choose_is_counted_on(tmp_path: Path) -> None:
    with hospital(tmp_path, FEWEST).run(**LAST) as grid:
        assert record(answer(grid))
        said = refused(answer(grid, cuts=[-1.0, 0.0, 0.001]))
        assert said == "it tells of its patients in groups of 5, so it counts no scores on a grid that others choose"


def test_a_second_grid_is_refused_and_the_first_asked_again_answered_alike(tmp_path: Path) -> None:
    with hospital(tmp_path, 1).run(**LAST) as grid:
        answer(grid)
        counts = record(answer(grid, cuts=[-1.0, 0.0]))
        assert record(answer(grid, cuts=[-1.0, 0.0])) == counts
        assert "over here, or was asked for otherwise" in refused(answer(grid, cuts=[-1.0, 0.5]))
        assert "over here, or was asked for otherwise" in refused(answer(grid))


@pytest.mark.parametrize(
    ("cuts", "said"),
    [
        ([1.0, 0.0], "cuts do not ascend"),
        ([0.0, 0.0], "cuts do not ascend"),
        ([float("nan")], "cuts = [nan]: must be a list of at most 256, each a finite number >= -1e+30 and <= 1e+30"),
        ([float(n) for n in range(257)], "must be a list of at most 256"),
        ("0", "cuts = '0': must be a list"),
    ],
)
def test_a_grid_that_is_none_is_refused(cuts: Any, said: str, tmp_path: Path) -> None:
    with hospital(tmp_path, 1).run(**LAST) as grid:
        answer(grid)
        assert f"a bad message: {said}" in refused(answer(grid, cuts=cuts)) or said in refused(answer(grid, cuts=cuts))


def test_a_run_without_evidence_may_not_ask_for_it(tmp_path: Path) -> None:
    with hospital(tmp_path, 1).run(**LAST | {"evidence": False}) as grid:
        assert set(answer(grid).content) == {"metrics"}
        assert "'cuts' is no key" in refused(answer(grid, cuts=[0.0]))


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
    assert designs[FEWEST] == 4
    assert 0.3 < designs[1] < 3
    assert designs[1] != 1
    assert most(np.array([0, 0, 1])) == 1.75


COMPARED: dict[str, Any] = {**LAST, "compare_with": "runs/other"}
GRIDS: dict[str, Any] = {"cuts": [-1.0, 0.0, 1.0], "other-cuts": [-1.0, 0.5]}


def of_two(grid: SiteGrid, **told: Any) -> Message:
    """Ask about a model that is one feature, and another that is another one."""
    content = question(grid.config, "evaluate", {"x": reading(2, 1, 0)}, **told)
    content["other"] = pack({"x": reading(1, 1, 0)})
    return grid.ask("evaluate", 0, content)


def asked_twice(grid: SiteGrid) -> dict[str, Any]:
    """Ask for both answers that come before the third; return what that is asked with: this site's counts."""
    assert record(of_two(grid))
    found = record(of_two(grid, **GRIDS))
    kinds = ("positives", "negatives", "other-positives", "other-negatives")
    return {**GRIDS, "merged": [count for kind in kinds for count in found[kind]]}


def test_of_two_models_a_site_tells_sums_over_its_patients(tmp_path: Path) -> None:
    with hospital(tmp_path, 1).run(**COMPARED) as grid:
        told = record(of_two(grid, **asked_twice(grid)))
        assert {key: len(value) if isinstance(value, list) else 1 for key, value in told.items()} == {
            "squares": 2, "products": 1, "patients": 3
        }  # fmt: skip
        assert told["products"] == 0, "each patient has one sample"


def test_two_models_are_compared_on_the_grids_that_were_counted_on_and_once(tmp_path: Path) -> None:
    with hospital(tmp_path, 1).run(**COMPARED) as grid:
        last = asked_twice(grid)
        assert "on the grids that scores were counted on before" in refused(
            of_two(grid, **last | {"cuts": [0.0, 1.0, 2.0]})
        )
        assert record(of_two(grid, **last)) == record(of_two(grid, **last))
        more = [*last["merged"]]
        more[0], more[6] = more[0] + 1, more[6] + 1
        assert "over here, or was asked for otherwise" in refused(of_two(grid, **last | {"merged": more}))


@pytest.mark.parametrize("change", [(0, 1), (1, -1), (6, 1)], ids=str)
def test_counts_of_all_sites_that_lack_a_patient_of_this_one_are_refused(
    change: tuple[int, int], tmp_path: Path
) -> None:
    """Of fewer than it told, or of more on one grid than on the other: such sums would be about another set."""
    with hospital(tmp_path, 1).run(**COMPARED) as grid:
        last = asked_twice(grid)
        last["merged"][change[0]] += change[1]
        assert "has not all that this site told" in refused(of_two(grid, **last))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"merged": [1]}, "merged has 1 counts: must be two for each bin"),
        ({"merged": [-1] * 10}, "merged = [-1, -1, -1"),
        ({"other-cuts": None}, "'merged' is no key"),
        ({"other-cuts": [1.0, 0.0]}, "other-cuts do not ascend"),
        ({"other-cuts": []}, "other-cuts are empty"),
        ({"cuts": None}, "is no key"),
    ],
    ids=str,
)
def test_a_comparison_that_is_none_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with hospital(tmp_path, 1).run(**COMPARED) as grid:
        content = {**asked_twice(grid), **change}
        content = question(grid.config, "evaluate", {"x": reading(2, 1, 0)}, **content)
        if "other-cuts" in content["config"] or "cuts" not in content["config"]:
            content["other"] = pack({"x": reading(1, 1, 0)})
        assert said in refused(grid.ask("evaluate", 0, content))


def test_with_groups_only_two_models_are_not_compared(tmp_path: Path) -> None:
    with hospital(tmp_path, FEWEST).run(**COMPARED) as grid:
        told = record(of_two(grid))
        assert (told["other-positive-cuts"], told["other-negative-cuts"]) == ([], [])
        assert np.isnan([told["other-auroc"], told["covariance"]]).all()
        assert "in groups of 5" in refused(of_two(grid, **GRIDS))
        assert "in groups of 5" in refused(of_two(grid, **GRIDS, merged=[1] * 10))


def test_a_run_without_a_second_model_is_told_nothing_of_one(tmp_path: Path) -> None:
    with hospital(tmp_path, 1).run(**LAST) as grid:
        answer(grid)
        assert "'other-cuts' is no key" in refused(answer(grid, **GRIDS))
