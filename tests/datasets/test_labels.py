"""Labels that are 1, 0, uncertain or blank: what is read of them, and what each mistake is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edelweiss.common import PROCESS_CACHE
from edelweiss.config import ConfigError, RunConfig
from edelweiss.datasets import DataConfig, DataError, common_test_patients, load_site, load_test
from edelweiss.datasets.labels import UNKNOWN, stratum
from tests.datasets.helpers import sites_of
from tests.said import has

Write = Callable[..., DataConfig]
Rows = list[list[int]]
NAMES = "Edema,Cardiomegaly"
HEADER = "age,Edema,Cardiomegaly\n"


def read(write: Write, text: str, **keys: str) -> np.ndarray:
    """Return the labels of all rows, as the keys of a run-config say that they are read."""
    run = RunConfig.parse({"dataset": "site", "label": NAMES, **{k.replace("_", "-"): v for k, v in keys.items()}})
    config = write(text, labels=run.data().labels, label=run.label, holdout_share=0.0)
    PROCESS_CACHE.forget()  # a test writes the same file twice
    data = load_site(config, 0, 1)
    return data.train.labels.numpy()


def error(write: Write, text: str, **keys: str) -> DataError:
    with pytest.raises(DataError) as caught:
        read(write, text, **keys)
    return caught.value


ROWS = HEADER + "1,1,0\n2,-1,-1.0\n3,,1.0\n4,0,\n"


@pytest.mark.parametrize(
    ("uncertain", "blank", "expected"),
    [
        ("ones", "zeros", [[1, 0], [1, 1], [0, 1], [0, 0]]),
        ("zeros", "ignore", [[1, 0], [0, 0], [-1, 1], [0, -1]]),
        ("ignore", "ignore", [[1, 0], [-1, -1], [-1, 1], [0, -1]]),
        ("Edema=ones,ignore", "zeros", [[1, 0], [1, -1], [0, 1], [0, 0]]),
        ("cardiomegaly=zeros, EDEMA = ignore", "zeros", [[1, 0], [-1, 0], [0, 1], [0, 0]]),
    ],
)
def test_what_uncertain_and_blank_stand_for(table: Write, uncertain: str, blank: str, expected: Rows) -> None:
    assert read(table, ROWS, uncertain=uncertain, blank=blank).tolist() == expected


def test_presets(table: Write) -> None:
    """LibAUC's: an uncertain Edema is one, another zero, blank is zero. TorchXRayVision's: neither is known, but of the
    healthy all is zero."""
    assert read(table, ROWS, label_preset="chexpert").tolist() == [[1, 0], [1, 0], [0, 1], [0, 0]]
    rows = "age,Edema,Cardiomegaly,No Finding\n1,1,,\n2,-1,,\n3,,,1\n4,0,,0\n5,,1,\n"
    expected = [[1, -1], [-1, -1], [0, 0], [0, -1], [-1, 1]]
    assert read(table, rows, label_preset="torchxrayvision").tolist() == expected
    assert read(table, ROWS, label_preset="torchxrayvision").tolist() == [[1, 0], [-1, -1], [-1, 1], [0, -1]]


def test_a_row_whose_labels_are_all_unknown_plays_no_part(table: Write) -> None:
    run = RunConfig.parse({"dataset": "site", "label": NAMES, "uncertain": "ignore", "blank": "ignore"})
    config = table(ROWS + "5,,\n", labels=run.labels, label=run.label, holdout_share=0.0)
    assert load_site(config, 0, 1).train.targets().tolist() == [[1, 0], [-1, 1], [0, -1]]


def test_a_column_that_is_blank_in_all_rows_is_a_label_that_the_site_lacks(table: Write) -> None:
    """Whatever a blank stands for where the column has values."""
    found = read(table, HEADER + "1,1,\n2,0,\n", blank="zeros")
    assert found.tolist() == [[1, UNKNOWN], [0, UNKNOWN]]


def test_one_label_may_be_uncertain_too(table: Write) -> None:
    rows = "age,Edema\n1,1\n2,-1\n3,0\n4,\n"
    assert read(table, rows, label="Edema", uncertain="ones", blank="ignore").tolist() == [1, 1, 0, UNKNOWN]
    assert read(table, "age,Edema\n1,1\n2,-1\n", label="Edema").tolist() == [1, 0], "as ever: two classes"


def test_a_healthy_chest_may_have_devices(table: Write) -> None:
    rows = "age,Edema,Support Devices,No Finding\n1,,1,1\n2,1,,0\n"
    found = read(table, rows, label="Edema,Support Devices", label_preset="torchxrayvision")
    assert found.tolist() == [[0, 1], [1, UNKNOWN]]


@pytest.mark.parametrize("patient", ["", "who"])
def test_whom_a_site_holds_out_does_not_depend_on_how_a_run_reads_its_labels(table: Write, patient: str) -> None:
    """Nor on which columns it takes for labels, or in which order."""
    rng = np.random.default_rng(0)
    values = np.array(["1", "0", "-1", ""])[rng.integers(0, 4, (300, 2))]
    text = "age,Edema,Cardiomegaly,who\n" + "".join(f"{row},{a},{b},{row // 3}\n" for row, (a, b) in enumerate(values))
    held = set()
    for label in (NAMES, "Cardiomegaly,Edema"):
        for uncertain in ("ones", "zeros", "Edema=ones,ignore"):
            for blank in ("zeros", "ignore"):
                keys = {"label": label, "uncertain": uncertain, "blank": blank}
                run = RunConfig.parse({"dataset": "site", **keys})
                config = table(text, labels=run.data().labels, label=label, key="ab" * 16, patient=patient)
                PROCESS_CACHE.forget()
                data = load_site(config, 0, 1)
                out = set(data.held_out.inputs[data.held_out.rows, 0].tolist())
                # A row of which nothing is known is in neither part, so look at those with a 1.
                held.add(tuple(sorted(out & {float(row) for row, said in enumerate(values) if "1" in said})))
    [once] = held
    assert 10 < len(once) < 100


def test_the_run_s_own_names_are_theirs_in_any_order() -> None:
    run = RunConfig.parse({"dataset": "site", "label": NAMES, "uncertain": "Edema=ones,zeros"})
    assert run.data(label="Cardiomegaly,Edema").labels == run.data().labels
    other = run.data(label="odem,herz").labels
    assert other is not None
    assert (other.names, other.uncertain) == (("odem", "herz"), ("ones", "zeros"))
    for label in ("one", "a,a", "Cardiomegaly,herz", "odem,Edema"):
        with pytest.raises(DataError, check=has(key="label")):
            run.data(label=label)


@pytest.mark.parametrize(
    ("text", "key", "row", "said"),
    [
        ("age,Oedema,Cardiomegaly\n1,1,0\n", "label", None, "'Oedema'"),
        (HEADER + "1,2,0\n2,yes,1\n", "Edema", 1, "row 2 ('yes')"),
        (HEADER + "1,-1,0\n2,1,0\n", "uncertain", 1, "'Edema'"),
        (HEADER + "1,1,0\n2,1,\n", "blank", 2, "'Cardiomegaly'"),
        (HEADER + "1,,\n2,,\n", "", None, "data.csv"),
    ],
)
def test_mistakes_are_named_with_the_row(table: Write, text: str, key: str, row: int | None, said: str) -> None:
    found = error(table, text)
    assert has(said, key=key, row=row)(found)
    assert "Edema" not in found.public.replace("Edema'?", ""), "what leaves the site names no column"


def test_all_that_is_wrong_is_said_at_once(table: Write) -> None:
    text = str(error(table, "age,Edema,Cardiomegaly\nold,5,\n2,-1,1\n"))
    assert all(said in text for said in ("column 'age' must hold numbers", "('5')", "uncertain (-1)", "is blank"))


@pytest.mark.parametrize(
    ("keys", "key", "said"),
    [
        ({"label": "a,,b"}, "label", "'a,,b'"),
        ({"label": "a,b,a"}, "label", "'a'"),
        ({"label": "a,b", "uncertain": "ones,zeros"}, "uncertain", "'ones,zeros'"),
        ({"label": "a,b", "uncertain": "A=ones,a=zeros"}, "uncertain", "'A=ones,a=zeros'"),
        ({"label": "a,b", "uncertain": "maybe"}, "uncertain", "'maybe'"),
        ({"label": "Edema,b", "uncertain": "Edemas=ones"}, "uncertain", "'Edema'?"),
        ({"label": "a,b", "label-preset": "chexpert", "blank": "zeros"}, "label-preset", "blank"),
        ({"label": "a,b", "problem": "partial-auc", "algorithm": "fcsg"}, "label", "'partial-auc'"),
        ({"label": "a,b", "problem": "cross-entropy", "algorithm": "fedavg"}, "problem", "'cross-entropy'"),
        ({"dataset": "digits", "uncertain": "ones"}, "uncertain", "'digits'"),
        ({"label": "a,b", "positive-classes": "1"}, "positive-classes", "'1'"),
    ],
)
def test_keys_that_cannot_be(keys: dict[str, str], key: str, said: str) -> None:
    with pytest.raises(ConfigError, check=has(said, keys=[key])):
        RunConfig.parse({"dataset": "site", **keys})


def test_samples_are_dealt_alike_by_their_rarest_positive_label() -> None:
    labels = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0], [-1, 1, -1], [0, -1, 0]])
    assert stratum(labels).tolist() == [3, 1, 1, 0, 2, 0]  # 3 positives of the first, 3 of the second, 1 of the third
    assert stratum(np.array([1, 0, 1])).tolist() == [1, 0, 1]


def write_hospitals(root: Path, sizes: dict[str, int], per_patient: int = 3) -> None:
    """Write folders of tables with several rows of each patient; two hospitals may number theirs alike."""
    rng = np.random.default_rng(0)
    for name, size in sizes.items():
        (root / name).mkdir()
        lines = ["patient,value,Edema,Cardiomegaly"]
        for row in range(size):
            value, edema, heart = rng.normal(), int(rng.random() < 0.3), int(rng.random() < 0.6)
            lines.append(f"p{row // per_patient},{value:.4f},{edema},{heart}")
        (root / name / "data.csv").write_text("\n".join(lines))


def folders(root: Path, **keys: object) -> DataConfig:
    run = RunConfig.parse({"dataset": "site-folders", "label": NAMES, "data-root": str(root)})
    given = {"dataset": "site-folders", "data_root": str(root), "label": NAMES, "labels": run.labels}
    return DataConfig(**{**given, "partition": "sites", "test_share": 0.2, **keys})  # type: ignore[arg-type]


def patients(data: object, part: str) -> set[int]:
    return set(data.patient_ids[getattr(data, part).rows.numpy()].tolist())  # type: ignore[attr-defined]


@pytest.mark.parametrize("keys", [{}, {"folds": 3, "fold": 1}, {"partition": "split-sites"}, {"partition": "iid"}])
def test_rows_of_a_patient_stay_together(tmp_path: Path, keys: dict[str, object]) -> None:
    write_hospitals(tmp_path, {"a": 90, "b": 60})
    config = folders(tmp_path, **keys)
    sites = sites_of(config, 2 if config.partition == "sites" else 5)
    source_rows = [set(part.rows.tolist()) for data in sites for part in (data.train, data.held_out)]
    test = load_test(config)
    tested = set() if test is None else set(test.rows.tolist())
    everybody = sorted(row for rows in [*source_rows, tested] for row in rows)
    assert everybody == list(range(150))
    # A patient is p<number> of one hospital: three rows in a row.
    of = {row: row // 3 for row in range(150)}
    parts = [{of[row] for row in rows} for rows in source_rows if rows]
    if test is not None:
        parts.append({of[row] for row in test.rows.tolist()})
        whose = common_test_patients(config)
        assert whose is not None
        assert len(np.unique(whose)) == len({of[row] for row in test.rows.tolist()})
    assert sum(map(len, parts)) == 50


def test_more_sites_than_hospitals_have_rows_of_one_each(tmp_path: Path) -> None:
    write_hospitals(tmp_path, {"a": 300, "b": 60, "c": 30})
    config = folders(tmp_path, partition="split-sites")
    sites = sites_of(config, 8)
    bounds = {"a": range(300), "b": range(300, 360), "c": range(360, 390)}
    for data in sites:
        hospital = data.name.split("-")[0]
        assert {row in bounds[hospital] for row in data.train.rows.tolist()} == {True}
    names = [data.name.split("-")[0] for data in sites]
    assert names == sorted(names)
    assert names.count("a") > names.count("b") >= names.count("c") >= 1
    with pytest.raises(DataError, check=has("'split-sites'", 3, key="sites", value=2)):
        load_site(config, 0, 2)


def test_each_hospital_has_its_share_of_the_test_rows(tmp_path: Path) -> None:
    write_hospitals(tmp_path, {"a": 300, "b": 60, "c": 90})
    test = load_test(folders(tmp_path))
    assert test is not None
    rows = test.rows.numpy()
    for low, high in ((0, 300), (300, 360), (360, 450)):
        share = ((rows >= low) & (rows < high)).sum() / (high - low)
        assert share == pytest.approx(0.2, abs=0.07)


def test_a_folder_called_test_is_the_common_test_set(tmp_path: Path) -> None:
    write_hospitals(tmp_path, {"a": 90, "z": 60, "test": 30})
    config = folders(tmp_path, test_share=0.5)
    sites = sites_of(config, 2)
    test = load_test(config)
    assert test is not None
    assert [data.name for data in sites] == ["a", "z"]
    assert sum(len(data.train) + len(data.held_out) for data in sites) == 150
    assert sorted(test.rows.tolist()) == list(range(150, 180))


def test_folders_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    write_hospitals(tmp_path, {"a": 30, "b": 30})
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "data.csv").write_text("value,more,Edema,Cardiomegaly\n1,2,1,1\n2,3,0,0\n")
    with pytest.raises(DataError, check=has(key="shape", value={"a": "1", "b": "1", "c": "2"})):
        load_site(folders(tmp_path), 0, 3)
    (tmp_path / "c" / "data.csv").write_text("value,Edema\n1,2\n")
    (tmp_path / "b" / "data.csv").write_text("value,Edema,Cardiomegaly\n1,2,1\n")
    with pytest.raises(DataError, check=has("2 problems", "'Cardiomegaly'", "row 1 ('2')")):
        load_site(folders(tmp_path, seed=1), 0, 3)
    with pytest.raises(DataError, check=has("data.csv", tmp_path / "a", key="data-root")):
        load_site(folders(tmp_path / "a"), 0, 1)
