"""Two honest-looking questions used to give away a patient; and what a site remembers against it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_breast_cancer

from edelweiss.client_app.cli import main
from edelweiss.client_app.site import OpenSite
from edelweiss.common import Value
from edelweiss.config import ConfigError, RunConfig
from edelweiss.datasets import Facts, load_site
from edelweiss.datasets.files import SearchPath
from edelweiss.datasets.image_file import ImageForm
from edelweiss.datasets.patient_ids import keyed_holdout
from edelweiss.datasets.site import read_site
from edelweiss.datasets.site.images import ImageRules
from edelweiss.datasets.sources import SOURCES
from tests.client_app.policies import Hospital, told, train
from tests.said import has
from tests.server_app.sites import images, question, site_job, table, write_table

Answer = Callable[[RunConfig], Facts | str]
KEY = "0badc0de" * 8


def patients() -> tuple[np.ndarray, np.ndarray]:
    """The 303 patients of Cleveland; without the file, as many of the breast cancer data."""
    if os.environ.get("EDELWEISS_DATA"):
        source = SOURCES["heart-disease"].read(SearchPath.of("", False))
        here = source.groups == source.group_names.index("cleveland")
        return source.inputs.numpy()[here].astype(float), source.classes[here]
    features, labels = load_breast_cancer(return_X_y=True)
    return features[:303].astype(np.float32).astype(float), labels[:303]


def attack(answer: Answer, folder: Path) -> tuple[np.ndarray, int] | None:
    """Ask about all patients, and about all but the sixth part of 303: one patient's features and label, or nothing."""
    every = answer(site_job(folder, sites=1, holdout_share=0.0))
    without = answer(site_job(folder, sites=1, folds=303, fold=5))
    if isinstance(every, str) or isinstance(without, str) or every.examples == without.examples:
        return None
    assert every.positives is not None
    assert without.positives is not None
    return np.subtract(every.total, without.total), every.positives - without.positives


@pytest.mark.parametrize(("mixing", "graph"), [("server", "data.csv"), ("client", "none.csv")])
def test_no_run_has_a_file_read_at_a_site(tmp_path: Path, mixing: str, graph: str) -> None:
    """A graph is the coordinator's: a site plays its part without, whatever lies there. Its table was told a row of."""
    features, labels = table(400, seed=0, positives=200)
    hospital = Hospital(tmp_path, np.rint(10 * features), labels)
    keys: dict[str, Value] = {"algorithm": "d-psgd", "sites": 2, "d-psgd.mixing": mixing}
    with hospital.run(**keys, **{"d-psgd.topology": "file", "d-psgd.graph-file": str(hospital.data / graph)}) as grid:
        assert isinstance(told(grid), Facts)
        plain = RunConfig.parse(
            {key: value for key, value in grid.config.flat().items() if "graph" not in key}
            | {"d-psgd.topology": "full"}
        )
        for server_round in (1, 2):
            answer = grid.ask("train", 0, question(plain, "train", None, round=server_round))
            assert "error" not in answer.content.config_records


def test_a_problem_reads_no_file_at_a_site_of_its_own(tmp_path: Path) -> None:
    node = {"data-dir": str(tmp_path), "partition-id": 0, "num-partitions": 2}
    config = RunConfig.parse({"problem": "saddle", "algorithm": "local-sgda", "sites": 2, "saddle.file": "there.npz"})
    context = Context(1, 1, node, RecordDict(), config.flat())
    with pytest.raises(ConfigError, check=has(keys=["saddle.file"])):
        OpenSite.from_context(context)


def test_the_attack_finds_a_patient_without_the_rules_and_nothing_with_them(tmp_path: Path) -> None:
    features, labels = patients()
    hospital = Hospital(tmp_path, features, labels)

    def without_rules(run: RunConfig) -> Facts:
        data = load_site(run.data(str(hospital.data)), 0, 1)
        return Facts.of(data, name="north", partition_id=-1, multiclass=False, standardise=True)

    def with_rules(run: RunConfig) -> Facts | str:
        return hospital.described(**{key.replace("-", "_"): value for key, value in run.flat().items()})

    found = attack(without_rules, tmp_path)
    assert found is not None
    by_name = sorted(range(features.shape[1]), key=lambda column: f"marker_{column}")
    near = np.abs(np.nan_to_num(features)[:, by_name] - found[0]).max(1)
    assert near.min() < 1e-3
    assert labels[near.argmin()] == found[1]

    assert attack(with_rules, tmp_path) is None


@pytest.mark.parametrize("dataset", ["site-folders", "image-folder", "table"])
def test_no_run_finds_the_hospitals_folder_under_another_name(tmp_path: Path, dataset: str) -> None:
    """As public data it would be told of without the rules; this site plays a part of such data, too."""
    hospital = Hospital(tmp_path, *table(90, seed=0))
    for kind in ("well", "ill"):
        (place := hospital.data / "train" / kind).mkdir(parents=True)
        for number in range(10):
            Image.new("L", (4, 4), number).save(place / f"{number}.png")
    hospital.node |= {"partition-id": 0}
    names = {"data_file": str(hospital.data / "data.csv")} if dataset == "table" else {}
    root = hospital.data if dataset == "image-folder" else hospital.data.parent
    for parts in (0, 1):
        hospital.node["num-partitions"] = parts
        said = hospital.described(dataset=dataset, data_root=str(root), partition="iid", **names)
        assert isinstance(said, str), "it tells of nobody"


@pytest.mark.parametrize(
    "other",
    [{"holdout_share": 0.0}, {"holdout_share": 0.5}, {"seed": 7}, {"algorithm": "fedavg", "problem": "bce"}],
    ids=str,
)
def test_whatever_a_run_asks_the_answer_is_about_the_same_patients(tmp_path: Path, other: dict[str, Value]) -> None:
    hospital = Hospital(tmp_path, *patients())
    first, second = hospital.described(), hospital.described(**other)
    assert isinstance(first, Facts)
    assert isinstance(second, Facts)
    assert (first.examples, first.positives, first.total) == (second.examples, second.positives, second.total)
    assert bool(second.notes) == ("holdout_share" in other)


def test_another_label_column_leaves_the_patients_as_they_are(tmp_path: Path) -> None:
    features, labels = patients()
    features[:, 0] = features[:, 0] > np.median(features[:, 0])
    hospital = Hospital(tmp_path, features, labels, seed="a")
    first, second = hospital.described(), hospital.described(label="marker_0")
    assert isinstance(first, Facts)
    assert isinstance(second, Facts)
    assert (first.examples, first.total[1:]) == (second.examples, second.total[1:])
    assert first.total[0] != second.total[0]  # the other label in its place


def test_folds_are_those_that_the_operator_allows(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path, *patients(), folds=5)
    assert "folds = 4: the held-out split is this site's decision, and it allows folds = 5" in str(
        hospital.described(folds=4)
    )
    folds = [hospital.described(folds=5, fold=fold) for fold in range(5)]
    assert sum(one.held_out or 0 for one in folds if isinstance(one, Facts)) == 303
    share = hospital.described()
    assert isinstance(share, Facts)
    assert share.total == folds[0].total  # type: ignore[union-attr]  # the first fold is who a share of a fifth chooses


@pytest.mark.parametrize(("more", "refused"), [(1, True), (12, True), (150, False), (0, False)])
def test_few_patients_more_are_not_told_of(tmp_path: Path, more: int, refused: bool) -> None:
    """The difference to the answer before would be about these few."""
    features, labels = patients()
    hospital = Hospital(tmp_path, features[more:], labels[more:])
    before = hospital.described()
    assert isinstance(before, Facts), before
    write_table(hospital.data, features, labels)
    after = hospital.described()
    assert isinstance(after, str) == refused
    assert not refused or "fewer than" in str(after)


@pytest.mark.parametrize("patient", ["", "marker_0"])
def test_a_corrected_value_is_one_patients_difference(tmp_path: Path, patient: str) -> None:
    features, labels = patients()
    features[:, 0] = np.arange(len(features))
    hospital = Hospital(tmp_path, features, labels, holdout_share=0.0, patient=patient)
    hospital.described()
    features[17, 3] += 1
    write_table(hospital.data, features, labels)
    assert "differ by fewer than 20 patients" in str(hospital.described())


# ---------------------------------------------------------------------- who is held out


row = st.tuples(*[st.integers(0, 5)] * 3)


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(row, min_size=1, max_size=30), extra=row, place=st.integers(0, 30), patient=st.booleans())
def test_another_row_never_moves_the_others(
    rows: list[tuple[int, ...]], extra: tuple[int, ...], place: int, patient: bool
) -> None:
    """Nor does the order matter; rows of the same patient, or the same values, go together."""
    before, after = held_out(rows, patient), held_out([*rows[:place], extra, *rows[place:]][::-1], patient)
    assert before.items() <= after.items()


def held_out(rows: list[tuple[int, ...]], patient: bool) -> dict[object, bool]:
    """Whether each patient is held out; a table of who it is, a value, and a label."""
    with tempfile.TemporaryDirectory() as folder:
        labels = [last % 2 for *_, last in rows]
        write_table(Path(folder), np.array([values[:2] for values in rows]), labels, names=["who", "value"])
        whose = read_site(folder, "label", True, patient="who" if patient else "").patient_ids
    assert whose is not None
    chosen = keyed_holdout(whose, KEY, 0.4, 0, 0).tolist()
    names = [values[0] if patient else (*values[:2], values[2] % 2) for values in rows]
    found = dict(zip(names, chosen, strict=True))
    assert [found[name] for name in names] == chosen  # the same patient is on one side
    return found


@pytest.mark.parametrize("patient", ["", "who"])
def test_images_are_told_apart_by_path_or_patient(tmp_path: Path, patient: str) -> None:
    node = images(tmp_path, 0, 100)
    listed = Path(str(node["data-dir"])) / "labels.csv"
    lines = [f"{line},{'who' if row == 0 else row // 4}" for row, line in enumerate(listed.read_text().splitlines())]
    listed.write_text("\n".join(lines))
    before = read_site(str(listed.parent), "label", True, patient=patient)
    listed.write_text("\n".join([lines[0], *lines[:0:-1]]))
    scaled = ImageRules(ImageForm(8))
    after = read_site(str(listed.parent), "label", True, scaled, patient)  # in another order and another size
    assert before.patient_ids is not None
    assert after.patient_ids is not None
    assert before.row_ids is not None
    assert before.patient_ids.tolist() == after.patient_ids.tolist()[::-1]
    assert (len(set(before.patient_ids)), len(set(before.row_ids))) == ((3 if patient else 10), 10)


def test_the_share_and_the_secret_decide() -> None:
    whose = np.arange(20_000, dtype=np.uint64)
    chosen = keyed_holdout(whose, KEY, 0.2, 0, 0)
    assert 0.18 < chosen.mean() < 0.22
    assert (chosen != keyed_holdout(whose, KEY[::-1], 0.2, 0, 0)).mean() > 0.25
    folds = [keyed_holdout(whose, KEY, 0.0, 5, fold) for fold in range(5)]
    assert np.sum(folds, axis=0).tolist() == [1] * len(whose)
    assert (folds[0] == chosen).all()


@pytest.mark.parametrize("content", ["", "zz" * 32, "0badc0de"])
def test_a_damaged_secret_is_none(tmp_path: Path, content: str) -> None:
    """An empty one would be no key: anybody could say who is held out, and know the rows that were told of."""
    hospital = Hospital(tmp_path, *table(80, seed=0))
    hospital.described()
    (hospital.state / "policy" / "secret").write_text(content)
    assert "policy/secret in it is damaged" in str(hospital.described())


def test_the_secret_is_made_once_and_is_the_owners(tmp_path: Path) -> None:
    features, labels = table(80, seed=0)
    one, other = (Hospital(tmp_path / name, features, labels) for name in "ab")
    facts = [site.described() for site in (one, one, other)]
    assert facts[0] == facts[1] != facts[2]
    secret = one.state / "policy" / "secret"
    assert secret.stat().st_mode & 0o077 == 0
    assert len(secret.read_text()) == 64
    seeded = [Hospital(tmp_path / name, features, labels, seed="x").described() for name in "cd"]
    assert seeded[0] == seeded[1]


def test_nobody_else_can_look_into_what_the_rules_remember(tmp_path: Path) -> None:
    """Whatever the operator's umask is, which is what a folder that is made on the way to another one has."""
    features, labels = table(400, seed=0)
    hospitals = Hospital(tmp_path / "a", features, labels), Hospital(tmp_path / "b", features, labels, seed="a")
    before = os.umask(0)
    try:
        for hospital in hospitals:
            with hospital.run() as grid:
                assert train(grid) == ""
    finally:
        os.umask(before)
    for policy in (hospital.state / "policy" for hospital in hospitals):
        every = [policy, *policy.rglob("*")]
        assert {path.parent.name for path in every} >= {"state", "policy", "runs", "told"}
        assert [path.name for path in every if path.stat().st_mode & 0o077] == []


def test_a_secret_that_is_gone_is_missed(tmp_path: Path) -> None:
    """Another one would hold out others, and nobody would know whom was told of."""
    hospital = Hospital(tmp_path, *table(80, seed=0))
    before = hospital.described()
    kept = (hospital.state / "policy" / "secret").read_text()
    (hospital.state / "policy" / "secret").unlink()
    assert "policy/secret in it is gone" in str(hospital.described())
    assert not (hospital.state / "policy" / "secret").exists()
    (hospital.state / "policy" / "secret").write_text(kept)
    assert hospital.described() == before


@pytest.mark.parametrize("file", ["runs/*.json", "told/train-*.npy"])
@pytest.mark.parametrize("content", [b"", b"{", b"\x93NUMPY\x01\x00", b"[1]", b'"runs"', b"\xff" * 300])
def test_a_damaged_file_is_named_and_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, content: bytes
) -> None:
    hospital = Hospital(tmp_path, *table(80, seed=0))
    with hospital.run() as grid:
        assert isinstance(told(grid), Facts)
        (path,) = (hospital.state / "policy").glob(file)
        path.write_bytes(content)
        of_a_run = file.startswith("runs")
        for said in ([told(grid)] if of_a_run else []) + [hospital.described()]:
            assert f"policy/{path.parent.name}/{path.name} in it is damaged: restore it" in str(said)
            assert str(tmp_path) not in str(said)
    assert path.read_bytes() == content
    if of_a_run:
        assert main(["runs", "--state-dir", str(hospital.state)]) == 2
        assert path.name in capsys.readouterr().err
