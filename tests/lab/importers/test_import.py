"""The command: what it makes, what it says of it, and what each mistake is told."""

from __future__ import annotations

import gzip
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from edelweiss.config import RunConfig, read_overrides
from edelweiss.datasets import load_site
from edelweiss.lab.cli import main
from edelweiss.lab.importers import IMPORTERS, LABELS, Listing, Release, padchest
from edelweiss.lab.importers.release import Images
from tests.lab.importers import published
from tests.lab.importers.published import MAKE, imported, picture, put
from tests.said import has, lines

Said = pytest.CaptureFixture[str]


def refused(name: str, folder: Path, said: Said, *options: str) -> list[str]:
    """Import what cannot be; nothing is left of it. Returns the lines that say why."""
    target = folder.parent / "site"
    before = sorted(folder.parent.iterdir())
    assert main(["import", name, str(folder), str(target), *options]) == 1
    assert sorted(folder.parent.iterdir()) == before
    text = said.readouterr()
    assert text.err.startswith("error: ")
    lines = text.err.removeprefix("error: ").splitlines()
    assert len([line for line in lines if "problems with the data" in line]) == (len(lines) > 1)
    assert all(line.startswith("- ") for line in lines[1:])
    return lines


# ---------------------------------------------------------------------- what comes out


@pytest.mark.parametrize("name", MAKE)
def test_what_is_kept_and_what_is_left_out_are_all_rows(name: str, tmp_path: Path, capsys: Said) -> None:
    folder = MAKE[name](tmp_path / name)
    images = sorted(file for file in folder.rglob("*") if file.suffix in (".jpg", ".png", ".dicom"))
    gone = images[-1 if name == "vindr" else 0]  # whose first one is for testing
    gone.unlink()
    frame = imported(name, folder)
    said = capsys.readouterr().out
    count = lambda pattern: [int(n.replace(",", "")) for n in re.findall(pattern, said, re.MULTILINE)]  # noqa: E731
    [rows], [kept], left_out = count(r"^read .*: (\S+) images$"), count(r"^kept +(\S+)"), count(r"^left out +(\S+)")
    assert kept == len(frame)
    assert kept + sum(left_out) == rows
    assert f"1 images: missing, or out of reach ({gone.stem.partition('.')[0]}" in re.sub(r"\(\S*/", "(", said)
    for label in LABELS:
        row = next(line for line in said.splitlines() if line.startswith(f"{label} "))
        numbers = [int(number) for number in row.removeprefix(label).split()]
        assert numbers == [Counter(frame[label])[value] for value in ("1", "0", "-1", "")]


def test_images_are_reached_by_one_link(tmp_path: Path, capsys: Said) -> None:
    folder = published.chexpert(tmp_path / "chexpert")
    imported("chexpert", folder)
    links = [path for path in (tmp_path / "site-1").rglob("*") if path.is_symlink()]
    assert links == [tmp_path / "site-1" / "images"]
    assert links[0].resolve() == folder
    said = capsys.readouterr().out.replace("\n  ", "\n")
    [site] = re.findall(r"^data-dir.*?^\[policy\]\n.*?$", said, re.MULTILINE | re.DOTALL)
    assert tomllib.loads(site) == {
        "data-dir": f"{tmp_path}/site-1",
        "label": ",".join(LABELS),
        "follow-links": True,
        "policy": {"patient": "patient"},
    }


def test_the_run_configs_that_it_ends_with_can_be_used(tmp_path: Path, capsys: Said) -> None:
    imported("nih", published.nih(tmp_path / "nih"))
    runs = re.findall(r"--run-config '(.*)'", capsys.readouterr().out)
    assert [RunConfig.parse(read_overrides([text])).dataset for text in runs] == ["site", "site-folders"]


def test_a_run_reads_what_was_imported(tmp_path: Path) -> None:
    imported("chexpert", published.chexpert(tmp_path / "from"), "--copy")
    label = ",".join(LABELS)
    run = RunConfig.parse({"dataset": "site", "sites": 1, "label": label, "label-preset": "chexpert"})
    data = load_site(replace(run.data(str(tmp_path / "site-1")), holdout_share=0.0, patient="patient"), 0, 1)
    assert data.train.shape == (1, 2, 3)
    frame = pd.read_csv(tmp_path / "site-1" / "labels.csv", dtype=str, keep_default_na=False)
    ones = {"Edema": {"1", "-1"}, "Atelectasis": {"1", "-1"}}
    columns = [frame[name].isin(ones.get(name, {"1"})).astype(int) for name in LABELS]
    columns[-1] = -1 - columns[-1]  # pleural effusion is blank in all rows, as of a site that lacks it
    expected = set(zip(*columns, strict=True))
    assert {tuple(row) for row in data.train.labels.tolist()} <= expected
    assert len(data.train) >= 2


def test_a_simulation_follows_the_links_of_several_sources(tmp_path: Path) -> None:
    """Frontal images of CheXpert only, by its preset; NIH's all; a patient's images at one of the two."""
    for name in ("chexpert", "nih"):
        source = getattr(published, name)(tmp_path / f"from-{name}")
        assert main(["import", name, str(source), str(tmp_path / "all" / name), "--split", "all"]) == 0
    keys = {
        "dataset": "site-folders",
        "data-root": str(tmp_path / "all"),
        "partition": "sites",
        "sites": 2,
        "label": ",".join(LABELS),
        "label-preset": "chexpert",
        "test-share": 0.0,
        "holdout-share": 0.0,
    }
    run = RunConfig.parse(keys)
    sites = [load_site(run.data(), site, 2) for site in range(2)]
    assert [data.name for data in sites] == ["chexpert", "nih"]
    for data, name in zip(sites, ("chexpert", "nih"), strict=True):
        frame = pd.read_csv(tmp_path / "all" / name / "labels.csv", dtype=str, keep_default_na=False)
        assert 0 < len(data.train) == frame["view"].isin(["AP", "PA"]).sum()
    everything = pd.read_csv(tmp_path / "all" / "chexpert" / "labels.csv", dtype=str, keep_default_na=False)
    assert (everything["view"] == "lateral").any()


def test_copies_are_those_of_what_is_kept(tmp_path: Path, capsys: Said) -> None:
    folder = published.nih(tmp_path / "nih")
    frame = imported("nih", folder, "--copy")
    site = tmp_path / "site-1"
    assert {path.relative_to(site).as_posix() for path in site.rglob("*.png")} == set(frame.index)
    assert not (site / "images").is_symlink()
    assert (site / frame.index[0]).read_bytes() == (folder / frame.index[0].removeprefix("images/")).read_bytes()
    assert "follow-links" not in capsys.readouterr().out


def test_images_may_lie_elsewhere_than_the_tables(tmp_path: Path) -> None:
    tables, images = published.mimic(tmp_path / "tables"), tmp_path / "store"
    images.mkdir()
    (tables / "files").rename(images / "files")
    frame = imported("mimic", tables, "--images", str(images))
    assert len(frame) == 4


def test_an_empty_folder_may_become_the_site(tmp_path: Path) -> None:
    folder = published.vindr(tmp_path / "vindr")
    (tmp_path / "site").mkdir()
    assert main(["import", "vindr", str(folder), str(tmp_path / "site")]) == 0
    assert sorted(path.name for path in (tmp_path / "site").iterdir()) == ["images", "labels.csv"]
    assert not list(tmp_path.glob(".site*"))


def test_a_label_that_a_source_lacks_is_empty_and_said(tmp_path: Path, capsys: Said) -> None:
    imported("vindr", published.vindr(tmp_path / "vindr", kaggle=True))
    assert re.search(r"^Edema +\D+$", capsys.readouterr().out, re.MULTILINE), "no counts"


def test_a_folder_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for patient in range(3):
        for image in range(50):
            put(tmp_path / f"train/{patient}/{image}.jpg", b"")
    listed: Counter[str] = Counter()
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (listed.update([str(path)]), real(path))[1])
    images = Images(tmp_path, endings=("", ".jpg"))
    found = [images.find(f"train/{patient}/{image}") for patient in range(4) for image in range(60)]
    assert sum(map(bool, found)) == 150
    assert max(listed.values()) == 1


def test_of_two_folders_the_first_counts(tmp_path: Path) -> None:
    for place in ("images/a.png", "images_001/images/a.png", "images_002/images/a.png", "images_002/images/b.png"):
        picture(tmp_path / place)
    found = [
        Images(tmp_path, folders).find("a.png") for folders in (("images", "images_*/images"), ("images_*/images",))
    ]
    assert found == ["images/a.png", "images_001/images/a.png"]
    assert Images(tmp_path, ("images", "images_*/images")).find("b.png") == "images_002/images/b.png"


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside.png", "train/../../outside.png", "a\0b/c.png", ""])
def test_no_path_leads_out_of_the_folder(path: str, tmp_path: Path) -> None:
    picture(tmp_path / "outside.png")
    picture(tmp_path / "root" / "train" / "inside.png")
    assert Images(tmp_path / "root").find("train/inside.png") == "train/inside.png"
    assert Images(tmp_path / "root").find(path) == ""


def test_an_image_that_is_listed_twice_counts_once(tmp_path: Path, capsys: Said) -> None:
    folder = published.nih(tmp_path / "nih")
    file = folder / "Data_Entry_2017_v2020.csv"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines, lines[1].replace("Cardiomegaly", "Edema")]))
    frame = imported("nih", folder)
    assert list(frame["Edema"][frame.index.str.endswith("00000001_000.png")]) == ["0"]
    assert re.search(r"^left out +1 images", capsys.readouterr().out, re.MULTILINE)


def test_rows_are_left_out_for_one_reason_each() -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"path": [f"{i}" for i in range(200)], "patient": "p", "view": ""}, index=rng.permutation(200))
    listing = Listing(frame)
    parts = pd.Series(rng.choice(["train", "test", None], 200), index=frame.index)
    listing.choose("train", parts)
    listing.leave_out(pd.Series(rng.random(200) < 0.5, index=frame.index), "by chance")
    gone = [path for paths in listing.left_out.values() for path in paths]
    assert sorted([*gone, *listing.frame["path"]]) == sorted(frame["path"])
    assert set(parts[listing.frame.index]) == {"train"}
    assert listing.lacking == list(LABELS)


# ---------------------------------------------------------------------- mistakes


def test_an_unknown_source(capsys: Said) -> None:
    with pytest.raises(SystemExit) as left:
        main(["import", "chexprt", "a", "b"])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "'chexpert'" in said
    assert all(name in said for name in IMPORTERS)


@pytest.mark.parametrize(
    "line", ["import", "import nih", "import padchest a b --split all", "import nih a b --split validate"]
)
def test_a_command_line_that_is_none(line: str, capsys: Said) -> None:
    with pytest.raises(SystemExit) as left:
        main(line.split())
    assert left.value.code == 2
    assert "usage: edelweiss" in capsys.readouterr().err


def test_both_folders_are_judged_at_once(tmp_path: Path, capsys: Said) -> None:
    put(tmp_path / "site" / "notes.txt", b"mine")
    lines = refused("nih", tmp_path / "nowhere", capsys)
    assert "nowhere" in lines[1]
    assert "site" in lines[2]
    assert (tmp_path / "site" / "notes.txt").read_bytes() == b"mine"


@pytest.mark.parametrize("name", MAKE)
def test_the_folder_of_another_source(name: str, tmp_path: Path, capsys: Said) -> None:
    other = "nih" if name != "nih" else "mimic"
    lines = refused(name, MAKE[other](tmp_path / other), capsys)
    assert Path(IMPORTERS[name].layout[0]).parts[-1] in "".join(lines[:-2])
    assert IMPORTERS[name].layout[0] in lines[-2]
    assert other in lines[-1]


def test_the_folder_above(tmp_path: Path, capsys: Said) -> None:
    published.chexpert(tmp_path / "download" / "CheXpert-v1.0-small")
    lines = refused("chexpert", tmp_path / "download", capsys)
    assert "CheXpert-v1.0-small" in lines[1]


def test_a_source_without_images(tmp_path: Path, capsys: Said) -> None:
    folder = published.chexpert(tmp_path / "chexpert")
    (folder / "train").rename(folder / "trains")
    [line] = refused("chexpert", folder, capsys)
    assert "train/patient00001/study1/view1_frontal.jpg" in line
    assert "--images" in line


def test_all_tables_and_columns_that_are_missing_are_named(tmp_path: Path, capsys: Said) -> None:
    folder = published.mimic(tmp_path / "mimic", packed="")
    (folder / "mimic-cxr-2.0.0-split.csv").rename(folder / "mimic-cxr-2.0.0-splits.csv")
    labels = folder / "mimic-cxr-2.0.0-chexpert.csv"
    labels.write_text(labels.read_text().replace("Cardiomegaly", "Cardiomegalia").replace("Edema", "Oedema"))
    text = "\n".join(refused("mimic", folder, capsys))
    assert lines(text, "'Cardiomegaly'", "'Cardiomegalia'")
    assert lines(text, "'Edema'", "'Oedema'")
    assert lines(text, "mimic-cxr-2.0.0-split.csv", "'mimic-cxr-2.0.0-splits.csv'")


BAD = {
    "chexpert": (
        "train.csv",
        "/study1/view1_frontal.jpg,,,Frontal,AP,,,1.0",
        "/view1.jpg,,,Upright,AX,,,2.0",
        [
            "column 'Path': row 1 ('CheXpert-v1.0-small/train/patient00001/view1.jpg'): allowed: a path that ends in",
            "column 'Frontal/Lateral': row 1 ('Upright'): allowed: Frontal, Lateral",
            "column 'AP/PA': row 1 ('AX'): allowed: AP, PA, LL, RL, empty",
            "column 'Cardiomegaly': row 1 ('2.0'): allowed: 1, 0, -1, empty",
        ],
    ),
    "mimic": (
        "mimic-cxr-2.0.0-chexpert.csv",
        "10000032,53189527,,,,-1.0",
        "10000032,50414267,,,,maybe",
        [
            "column 'study_id': row 2 ('50414267'): allowed: a value that no earlier row has",
            "column 'Edema': row 2 ('maybe')",
        ],
    ),
    "nih": (
        "Data_Entry_2017_v2020.csv",
        "Cardiomegaly|Effusion,,1,58,,PA",
        "Cardiomegaly|Efusion,,one,58,,LL",
        [
            "column 'Finding Labels': row 2 ('Cardiomegaly|Efusion'): allowed: Atelectasis, ",
            "column 'Patient ID': row 2 ('one'): allowed: digits",
            "column 'View Position': row 2 ('LL'): allowed: PA, AP",
        ],
    ),
    "padchest": (
        padchest.TABLE,
        "RNN_model,['normal']",
        "RNN_model,['normal",
        ["column 'Labels': row 2 (\"['normal\"): allowed: a list such as ['cardiomegaly', 'pleural effusion'], or"],
    ),
    "vindr": (
        "annotations/image_labels_train.csv",
        f"{2:032x},R9,0,0,0,1",
        f"{2:032x},R9,0,x,0,1",
        ["column 'Atelectasis': row 8 ('x'): allowed: 1, 0"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_values_that_cannot_be_are_named_by_row(name: str, tmp_path: Path, capsys: Said) -> None:
    folder = published.mimic(tmp_path / name, packed="") if name == "mimic" else MAKE[name](tmp_path / name)
    table, good, bad, says = BAD[name]
    text = (folder / table).read_text()
    assert text.count(good) == 1
    (folder / table).write_text(text.replace(good, bad))
    lines = refused(name, folder, capsys)
    for line in says:
        assert any(line in said for said in lines), f"{line}\n{lines}"
    assert len([line for line in lines if table in line]) == len(says)


@pytest.mark.slow
def test_many_bad_values_are_counted(tmp_path: Path, capsys: Said) -> None:
    folder = published.padchest(tmp_path / "padchest", ["cardiomegaly"] * 2000)
    [line] = refused("padchest", folder, capsys)
    assert "row 5 ('cardiomegaly') and 1995 more" in line


def cut(data: bytes) -> bytes:
    return gzip.compress(data)[:-30]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (cut, "Compressed file ended before the end-of-stream marker"),
        (lambda data: gzip.compress(data)[:20] + b"\0" * 50, "cannot be read"),
        (lambda data: b"", "train.csv is empty"),
        (lambda data: b"<!DOCTYPE html><html>Sign in", "it is HTML or XML"),
        (lambda data: data.splitlines(True)[0], "has a header and no rows"),
        (lambda data: data + b"CheXpert-v1.0/train/patient1/study1/a.jpg,Male\n", "has 19 columns, but row 5 has 2"),
        (lambda data: data + b"a," * 30 + b"\n", "but row 5 has 31"),
        (lambda data: data.replace(b"\n", b",\n").replace(b",\n", b"\n", 1), "but row 1 has 20, row 2 has 20"),
        (lambda data: data[:-30], "but row 4 has"),
        (lambda data: data.replace(b",Edema,", b",Cardiomegaly,"), "'Cardiomegaly' names more than one column"),
        (lambda data: data.replace(b"Frontal,AP", b"Fr\xfcntal,AP"), "cannot be read: 'utf-8' codec"),
        (lambda data: data.replace(b",", b";"), "no column 'Path'"),
    ],
)
def test_a_damaged_table(damage: Callable[[bytes], bytes], says: str, tmp_path: Path, capsys: Said) -> None:
    folder = published.chexpert(tmp_path / "chexpert")
    file = folder / "train.csv"
    file.write_bytes(damage(file.read_bytes()))
    text = "\n".join(refused("chexpert", folder, capsys))
    assert says in text
    assert "train.csv" in text


def test_a_damaged_list_of_images(tmp_path: Path, capsys: Said) -> None:
    folder = published.nih(tmp_path / "nih")
    (folder / "test_list.txt").write_bytes(cut(b"00000001_000.png\n" * 1000))
    (folder / "train_val_list.txt").unlink()
    text = "\n".join(refused("nih", folder, capsys))
    assert lines(text, "test_list.txt", "Compressed file ended")
    assert lines(text, "train_val_list.txt")
    assert len(imported("nih", folder, "--split", "all")) == 6, "which reads neither"


def test_a_split_without_images(tmp_path: Path, capsys: Said) -> None:
    [line] = refused("mimic", published.mimic(tmp_path / "mimic"), capsys, "--split", "test")
    assert all(name in line for name in ("6 images", "test"))


def test_a_target_that_cannot_be_written(tmp_path: Path, capsys: Said) -> None:
    folder = published.nih(tmp_path / "nih")
    put(tmp_path / "file", b"")
    assert main(["import", "nih", str(folder), str(tmp_path / "file" / "site")]) == 1
    assert lines(capsys.readouterr().err, "TARGET", "Not a directory")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError(28, "No space left on device", "x.png")])
def test_nothing_is_left_of_an_import_that_stops(
    stop: BaseException, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, copied = published.nih(tmp_path / "nih"), []

    def full(source: Path, target: Path) -> None:
        copied.append(target)
        if len(copied) == 3:
            raise stop
        target.write_bytes(source.read_bytes())

    monkeypatch.setattr("shutil.copyfile", full)
    code = main(["import", "nih", str(folder), str(tmp_path / "site"), "--copy"])
    assert code == (130 if stop is KeyboardInterrupt else 1)
    assert [path.name for path in tmp_path.iterdir()] == ["nih"]
    assert bool(lines(capsys.readouterr().err, "x.png", "No space left on device")) == (code == 1)


def test_a_release_collects_what_is_wrong(tmp_path: Path) -> None:
    release = Release(tmp_path)
    for file in ("a.csv", "b.csv"):
        assert len(release.table(file, "x")) == 0
    with pytest.raises(ValueError, check=has("a.csv", "b.csv", "b.csv.gz")):
        release.check()


# ---------------------------------------------------------------------- the page


def test_the_page_names_every_source_option_and_term() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "chest-x-rays.md").read_text(encoding="utf-8")
    said = " ".join(page.split())
    for name, importer in IMPORTERS.items():
        words = [name, *importer.options, *(choice for choices in importer.options.values() for choice in choices)]
        assert [word for word in words if f"`{word}`" not in said and f"`--{word}`" not in said] == []
    terms = {term for own in padchest.TERMS.values() for term in own}
    assert [term for term in terms if term not in said and term.removesuffix(" atelectasis") not in said] == []
