"""What of each source becomes what in labels.csv: labels, views, patients, splits, paths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edelweiss.lab.importers import LABELS, Release, chexpert, padchest
from tests.lab.importers import published
from tests.lab.importers.published import CHEXPERT, imported, picture, write


def values(frame: object, label: str) -> list[str]:
    return list(frame[label])  # type: ignore[index]


def test_chexpert_s_example_becomes_what_it_says(tmp_path: Path) -> None:
    frame = imported("chexpert", published.chexpert(tmp_path / "chexpert"))
    study = "images/train/patient{}/study1/view{}.jpg"
    assert list(frame.index) == [
        study.format(*image)
        for image in (("00001", "1_frontal"), ("00001", "2_lateral"), ("00002", "1_frontal"), ("64540", "1_frontal"))
    ]
    assert values(frame, "patient") == ["patient00001", "patient00001", "patient00002", "patient64540"]
    assert values(frame, "view") == ["AP", "lateral", "PA", "other"]
    assert values(frame, "Cardiomegaly") == ["1", "1", "", ""]
    assert values(frame, "Edema") == ["0", "", "1", ""]
    assert values(frame, "Consolidation") == ["-1", "", "", ""]
    assert values(frame, "Atelectasis") == ["", "", "", "-1"]


def test_chexpert_s_values_stay_apart_at_random(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    said = rng.choice(["1.0", "0.0", "-1.0", "", "1", "0", "-1", " 1.0 "], (300, 6))
    labels = (*LABELS, "No Finding")
    rows = [
        {
            "Path": f"CheXpert-v1.0/train/patient{i:05}/study1/view1_frontal.jpg",
            "Frontal/Lateral": "Frontal",
            "AP/PA": "AP",
            **dict(zip(labels, row, strict=True)),
        }
        for i, row in enumerate(said)
    ]
    write(tmp_path / "train.csv", CHEXPERT, rows)
    frame = chexpert.read(Release(tmp_path), "train").frame
    assert frame[list(labels)].to_numpy().tolist() == [[v and str(int(float(v))) for v in row] for row in said]


@pytest.mark.parametrize(("split", "count"), [("train", 4), ("valid", 1), ("all", 5)])
def test_chexpert_s_splits_are_its_files(tmp_path: Path, split: str, count: int) -> None:
    frame = imported("chexpert", published.chexpert(tmp_path / "chexpert"), "--split", split)
    assert len(frame) == count
    assert frame.index.str.contains("/valid/").sum() == (split != "train")


@pytest.mark.parametrize(("ending", "packed"), [(".jpg", ".gz"), (".dcm", "")])
def test_mimic_s_images_have_the_labels_of_their_study(tmp_path: Path, ending: str, packed: str) -> None:
    frame = imported("mimic", published.mimic(tmp_path / "mimic", ending, packed), "--split", "all")
    assert [path.rpartition("/")[2] for path in frame.index] == [f"{n}{ending}" for n in ("a1", "a2", "b1", "c1", "c2")]
    assert frame.index[0] == f"images/files/p10/p10000032/s50414267/a1{ending}"
    assert values(frame, "patient") == ["10000032"] * 3 + ["19999987"] * 2
    assert values(frame, "view") == ["PA", "lateral", "AP", "", "lateral"]
    assert values(frame, "Edema") == ["", "", "-1", "", ""]
    assert values(frame, "Pleural Effusion") == ["", "", "1", "", ""]
    assert values(frame, "Atelectasis") == ["", "", "", "0", "0"]
    assert values(frame, "No Finding") == ["1", "1", "", "", ""]


@pytest.mark.parametrize(("split", "kept"), [("train", "a1 a2 c1 c2"), ("validate", "b1")])
def test_mimic_s_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str], split: str, kept: str) -> None:
    frame = imported("mimic", published.mimic(tmp_path / "mimic"), "--split", split)
    assert [Path(path).stem for path in frame.index] == kept.split()
    said = capsys.readouterr().out
    assert f"in another split than {split}" in said
    assert ("1 images: their study has no row of labels" in said) == (split == "train")


def test_mimic_s_special_views_are_others(tmp_path: Path) -> None:
    folder = published.mimic(tmp_path / "mimic", packed="")
    file = folder / "mimic-cxr-2.0.0-metadata.csv"
    file.write_text(file.read_text().replace("LATERAL", "xtable lateral").replace(",LL,", ",AP AXIAL,"))
    assert values(imported("mimic", folder, "--split", "all"), "view") == ["PA", "other", "AP", "", "other"]


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("place", ["images_{:03}/images", "images", "images/images_{:03}"])
def test_nih_s_findings_are_all_known(tmp_path: Path, old: bool, place: str) -> None:
    frame = imported("nih", published.nih(tmp_path / "nih", old, place), "--split", "all")
    assert frame.index[2] == f"images/{place.format(2)}/00000002_000.png"
    assert values(frame, "patient") == ["1", "1", "2", "2", "3", "3"]
    assert values(frame, "view") == ["AP", "PA"] * 3
    assert values(frame, "Cardiomegaly") == list("110000")
    assert values(frame, "Pleural Effusion") == list("010010")
    assert values(frame, "Edema") == list("000100")
    assert set(frame["Consolidation"]) == set(frame["Atelectasis"]) == {"0"}


def test_nih_s_splits_are_its_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = published.nih(tmp_path / "nih")
    assert values(imported("nih", folder), "patient") == ["1", "1", "2", "2"]
    assert values(imported("nih", folder, "--split", "test"), "patient") == ["3", "3"]
    assert "4 images" in capsys.readouterr().out
    (folder / "train_val_list.txt").write_text("00000001_000.png\n")
    assert len(imported("nih", folder)) == 1
    assert "3 images" in capsys.readouterr().out


KINDS = {
    "['cardiomegaly']": "10000",
    "[' cardiomegaly', 'cardiomegaly']": "10000",
    "['pulmonary edema',  'consolidation']": "01100",
    "['laminar atelectasis']": "00010",
    "['atelectasis basal', ' total atelectasis']": "00010",
    "['loculated pleural effusion']": "00001",
    "['hydropneumothorax']": "00001",
    "['normal']": "00000",
    "['', 'scoliosis']": "00000",
    "['pericardial effusion', 'air bronchogram', 'kerley lines', 'heart insufficiency', 'volume loss']": "00000",
    "['unchanged']": "-----",
    "['suboptimal study', ' lobar atelectasis']": "---1-",
    "['']": "-----",
}


def test_padchest_s_terms_are_found_in_its_lists(tmp_path: Path) -> None:
    frame = imported("padchest", published.padchest(tmp_path / "padchest", list(KINDS)))
    found = ["".join(value or "-" for value in row) for row in frame[list(LABELS)].to_numpy()]
    assert dict(zip(KINDS, found, strict=True)) == KINDS


def test_padchest_s_useless_reports_and_projections_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = ["nan", "[]", "['exclude']", "['cardiomegaly', ' exclude']", "['normal']", "['mass']"]
    folder = published.padchest(tmp_path / "padchest", lists)
    file = folder / padchest.TABLE
    file.write_text(file.read_text().replace("COSTAL", "EXCLUDE"))
    frame = imported("padchest", folder)
    assert list(frame.index) == ["images/50/5_k6ga29.png"]
    said = capsys.readouterr().out
    assert "2 images: there is no list of labels (0_k6ga29.png, 1_k6ga29.png)" in said
    assert "2 images: the report is of no use" in said
    assert "1 images: the projection is EXCLUDE (4_k6ga29.png)" in said


@pytest.mark.parametrize(("packed", "flat"), [("", False), (".gz", True)])
def test_padchest_s_views_patients_and_folders(tmp_path: Path, packed: str, flat: bool) -> None:
    folder = published.padchest(tmp_path / "padchest", ["['normal']"] * 6, packed, flat)
    frame = imported("padchest", folder)
    assert values(frame, "view") == ["PA", "lateral", "AP", "AP", "other", ""]
    assert values(frame, "patient") == ["1", "1", "2", "3", "4", "5"]
    assert [path.count("/") for path in frame.index] == [1 if flat else 2] * 6


@pytest.mark.parametrize(
    ("readers", "hearts"),
    [("majority", ["0", "0", "1", "1"]), ("any", ["0", "1", "1", "1"]), ("uncertain", ["0", "-1", "-1", "1"])],
)
@pytest.mark.parametrize("kaggle", [True, False])
def test_vindr_s_readers_by_each_rule(tmp_path: Path, readers: str, hearts: list[str], kaggle: bool) -> None:
    folder = published.vindr(tmp_path / "vindr", kaggle=kaggle)
    frame = imported("vindr", folder, "--readers", readers)
    assert values(frame, "Cardiomegaly") == hearts
    assert set(frame["Edema"]) == ({""} if kaggle else {"0"}), "a label that Kaggle's part lacks"
    assert set(frame["Pleural Effusion"]) == {"0"}
    assert set(frame["view"]) == {"PA"}
    assert frame["patient"].is_unique
    assert [Path(path).stem for path in frame.index] == list(frame["patient"])


def test_vindr_s_readers_in_equal_parts_are_uncertain_by_the_majority(tmp_path: Path) -> None:
    folder = published.vindr(tmp_path / "vindr")
    file = folder / "annotations/image_labels_train.csv"
    file.write_text("".join(line for line in file.read_text().splitlines(True) if ",R10," not in line))
    assert values(imported("vindr", folder), "Cardiomegaly") == ["0", "-1", "1", "1"]


@pytest.mark.parametrize("ending", [".dicom", ".dcm", ".png"])
def test_vindr_s_test_part_has_a_consensus(tmp_path: Path, ending: str) -> None:
    folder = published.vindr(tmp_path / "vindr", ending)
    frame = imported("vindr", folder, "--split", "test")
    assert list(frame.index) == [f"images/test/{'f' * 32}{ending}"]
    assert values(frame, "Pleural Effusion") == ["1"]
    assert len(imported("vindr", folder, "--split", "all")) == 5


def test_of_two_formats_the_first_counts(tmp_path: Path) -> None:
    folder = published.mimic(tmp_path / "mimic")
    picture(folder / "files/p10/p10000032/s50414267/a1.dcm")
    assert imported("mimic", folder).index[0].endswith("a1.jpg")
