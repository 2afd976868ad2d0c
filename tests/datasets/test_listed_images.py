"""The images that a hospital's labels.csv lists: views, bad ones, links, names; whatever goes, goes with its row."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edelweiss.datasets import DataConfig, DataError, table_warnings
from edelweiss.datasets.image_cache import ImageCache
from edelweiss.datasets.image_faults import LINKED, MISNAMED, OUTSIDE, TWICE, TWIN
from edelweiss.datasets.image_file import ImageForm
from edelweiss.datasets.labels import Labels
from edelweiss.datasets.site import read_site
from edelweiss.datasets.site.images import ImageRules
from edelweiss.datasets.site.survey import Survey
from edelweiss.datasets.source import Source
from tests.datasets.dicoms import dataset, ramp, write
from tests.datasets.helpers import sites_of
from tests.said import has

ROWS = 20
HTML = b"<!DOCTYPE html><title>404</title>"


def folder(tmp_path: Path, views: str = "", rows: int = ROWS) -> Path:
    """Write grey images whose shade is their row, with two to a patient, in views that take turns."""
    place = tmp_path / "data"
    place.mkdir(parents=True)
    lines = ["path,label,pid" + ",view" * bool(views)]
    for row in range(rows):
        Image.new("L", (6, 4), row).save(place / f"p{row}.png")
        view = [f",{view}" for view in views.split(",")][row % len(views.split(","))] if views else ""
        lines.append(f"p{row}.png,{row % 2},patient-{row // 2}{view}")
    (place / "labels.csv").write_text("\n".join(lines))
    return place


def read(place: Path, patient: str = "", **rules: object) -> Source:
    return read_site(str(place), "label", True, ImageRules(**rules), patient)  # type: ignore[arg-type]


def refusal(place: Path, **rules: object) -> DataError:
    with pytest.raises(DataError) as caught:
        read(place, **rules)
    assert str(place) not in caught.value.public
    assert ".png" not in caught.value.public
    return caught.value


def shades(source: Source) -> list[int]:
    found: list[int] = source.inputs[:, 0, 0, 0].tolist()
    return found


def test_the_same_picture_in_two_files_is_a_doubt_and_kept_with_what_was_decoded(tmp_path: Path) -> None:
    place = folder(tmp_path)
    (place / "copy.png").write_bytes((place / "p3.png").read_bytes())
    with (place / "labels.csv").open("a") as lines:
        lines.write("\ncopy.png,0,patient-99")
    for cache in (None, *[ImageCache(tmp_path / "cache", 10**9)] * 2):
        source = read(place, cache=cache)
        [doubt] = source.warnings
        assert has(TWIN.wrong, "row 21 ('copy.png')", "row 4 ('p3.png')")(doubt)
        assert doubt.public == f"labels.csv: 1 images {TWIN.wrong}"
        assert len(source.inputs) == ROWS + 1


def spoil(place: Path, rows: list[int]) -> None:
    """Damage files in turn: one that is cut behind its header, one that is a page of the web, one that is not there."""
    for context, row in enumerate(rows):
        file = place / f"p{row}.png"
        content = file.read_bytes()
        file.unlink()
        if context % 3 < 2:
            file.write_bytes(HTML if context % 3 else content[:45])


def consistent(source: Source, rows: list[int], complete: Source) -> None:
    """Check that everything that a source says of a row is what the complete one says of it."""
    assert shades(source) == rows
    assert source.classes.tolist() == [row % 2 for row in rows]
    assert source.patient_ids is not None
    assert source.row_ids is not None
    assert complete.patient_ids is not None
    assert complete.row_ids is not None
    assert np.array_equal(source.patient_ids, complete.patient_ids[rows])
    assert np.array_equal(source.row_ids, complete.row_ids[rows])
    assert source.class_count == 2


# ---------------------------------------------------------------------- bad images


@pytest.mark.parametrize("patient", ["", "pid"])
@pytest.mark.parametrize("cached", [False, True])
def test_bad_images_go_with_all_that_belongs_to_them(tmp_path: Path, patient: str, cached: bool) -> None:
    place = folder(tmp_path)
    complete = read(place, patient)
    spoil(place, [0, 7, 19])
    cache = ImageCache(tmp_path / "cache", 10**6) if cached else None
    rows = [row for row in range(ROWS) if row not in (0, 7, 19)]
    for _ in range(2):  # the second time of the cache
        source = read(place, patient, bad_images=0.2, cache=cache)
        consistent(source, rows, complete)
        said = " ".join(map(str, source.warnings))
        for part in ("row 1 ('p0.png')", "row 8 ('p7.png'): HTML or XML", "row 20 ('p19.png')", "left out of 20"):
            assert part in said
        assert len(source.warnings) == 3, "three kinds of fault"
        assert not any(".png" in doubt.public for doubt in source.warnings)


@pytest.mark.parametrize("cached", [False, True])
def test_the_share_is_a_bound_that_may_be_reached(tmp_path: Path, cached: bool) -> None:
    place = folder(tmp_path)
    spoil(place, [3, 4, 5, 6, 8])
    cache = ImageCache(tmp_path / "cache", 10**6) if cached else None
    assert len(read(place, bad_images=5 / ROWS, cache=cache).inputs) == ROWS - 5
    error = refusal(place, bad_images=0.2499, cache=cache)
    assert has("5 of 20", "bad-images = 0.2499", "p3.png")(error)
    assert "5 of 20" in error.public
    assert "bad-images" not in refusal(place, cache=cache).public


def test_a_mended_file_is_back_and_a_damaged_one_goes(tmp_path: Path) -> None:
    place, cache = folder(tmp_path), ImageCache(tmp_path / "cache", 10**6)
    spoil(place, [2, 3])
    assert 2 not in shades(read(place, bad_images=0.5, cache=cache))
    Image.new("L", (6, 4), 2).save(place / "p2.png")
    spoil(place, [11])
    found = read(place, bad_images=0.5, cache=cache)
    assert shades(found) == [row for row in range(ROWS) if row not in (3, 11)]


def test_all_that_is_kept_may_be_mapped_and_what_was_bad_is_not_forgotten(tmp_path: Path) -> None:
    """The images come from the cache, not from the files: theirs are replaced behind its back."""
    place, cache = folder(tmp_path), ImageCache(tmp_path / "cache", 10**6)
    spoil(place, [0])
    before = read(place, bad_images=0.5, cache=cache)
    status = (place / "p5.png").stat()
    (place / "p5.png").write_bytes(b"x" * status.st_size)
    os.utime(place / "p5.png", ns=(status.st_atime_ns, status.st_mtime_ns))
    again = read(place, bad_images=0.5, cache=cache)
    assert shades(again) == shades(before) == list(range(1, ROWS))
    assert [*map(str, again.warnings)] == [*map(str, before.warnings)]


def test_what_the_list_says_wrong_is_never_left_out(tmp_path: Path) -> None:
    place = folder(tmp_path)
    with (place / "labels.csv").open("a") as file:
        file.write("\n../p0.png,0,x\np1.png,0,x")
    error = refusal(place, bad_images=0.9)
    assert has(f"{OUTSIDE.wrong}: row 21", f"{TWICE.wrong}: row 22 ('p1.png')", "row 2")(error)


BOXES = """path,x,width,Target,age,who
p0.png,,,0,40,a
p1.png,10,5,1,50,b
./p1.png,60,7,1.0,50,b
p1.png,90,3,1,51,b
p2.png,,,0,60,a
"""


@pytest.mark.parametrize("patient", ["", "who"])
def test_a_row_for_each_box_is_one_image(tmp_path: Path, patient: str) -> None:
    """As in the list of RSNA's pneumonia challenge; whatever else the rows say."""
    place = folder(tmp_path)
    (place / "labels.csv").write_text(BOXES)
    source = read_site(str(place), "Target", True, ImageRules(), patient)
    assert (shades(source), source.classes.tolist()) == ([0, 1, 2], [0, 1, 0])
    [note] = source.notes
    assert "2 of 5 rows repeat an image" in note
    several = Labels(("Target", "x"), ("", ""), "ignore")  # of which one is another in each row
    (place / "labels.csv").write_text(BOXES.replace("10,5", "1,5").replace("60,7", "1,7").replace("90,3", "0,3"))
    with pytest.raises(DataError, check=has(f"{TWICE.wrong}: row 4 ('p1.png')", "row 2")):
        read_site(str(place), "Target,x", True, ImageRules(), patient, labels=several)
    survey = Survey.of(str(place), follow_links=False)
    assert survey is not None
    assert (survey.rows, len(survey.headers)) == (5, 4)


@pytest.mark.parametrize(("column", "other"), [("Target", "0"), ("who", "c"), ("view", "lateral")])
def test_rows_of_an_image_that_contradict_each_other_are_refused(tmp_path: Path, column: str, other: str) -> None:
    place = folder(tmp_path)
    names = ["path", "Target", "who", "view"]
    row = dict(zip(names, ("p1.png", "1", "b", "PA"), strict=True))
    rows = [row, {**row, column: other}, {**row, "path": "p2.png", "Target": "0"}]
    (place / "labels.csv").write_text("\n".join(",".join(line) for line in [names, *(r.values() for r in rows)]))
    with pytest.raises(DataError, check=has(f"{TWICE.wrong}: row 2 ('p1.png')", "row 1")) as told:
        read_site(str(place), "Target", True, ImageRules(), "who")
    assert told.value.public == f"labels.csv: 1 images {TWICE.wrong}"


def test_a_dicom_file_among_others_is_read(tmp_path: Path) -> None:
    place = folder(tmp_path)
    write(place / "p4.png", dataset(ramp((4, 6)), 12))
    Image.new("L", (6, 4), 5).save(place / "x.png")
    (place / "x.png").replace(place / "p5.jpg")
    text = (place / "labels.csv").read_text()
    (place / "labels.csv").write_text(text.replace("p5.png", "p5.jpg"))
    source = read(place)
    assert len(source.inputs) == ROWS
    [doubt] = source.warnings
    assert has(MISNAMED.wrong, "row 5 ('p4.png'): DICOM", "row 6 ('p5.jpg'): PNG")(doubt)
    assert doubt.public == f"labels.csv: 2 images {MISNAMED.wrong}"


# ---------------------------------------------------------------------- views


@pytest.mark.parametrize(
    ("views", "kept"),
    [("AP", [0]), ("ap,Lateral", [0, 2]), ("blank,PA", [1, 3]), ("AP,PA,lateral,blank", [0, 1, 2, 3])],
)
def test_rows_of_other_views_are_left_out_with_all_that_belongs_to_them(
    tmp_path: Path, views: str, kept: list[int]
) -> None:
    place = folder(tmp_path, "AP,PA,lateral,")
    source = read(place, "pid", views=tuple(views.split(",")))
    consistent(source, [row for row in range(ROWS) if row % 4 in kept], read(place, "pid"))
    assert f"{ROWS - 5 * len(kept)} of 20 rows are left out by views = " in source.notes[0]
    assert not source.warnings


def test_images_of_other_views_need_not_be_readable(tmp_path: Path) -> None:
    place = folder(tmp_path, "AP,PA")
    spoil(place, [1, 3, 4])
    assert len(read(place, views=("AP",), bad_images=0.1).inputs) == 9, "one of ten, and not three of twenty"
    assert "1 of 10 " in str(refusal(place, views=("AP",), bad_images=0.09))


def test_a_view_of_no_row_is_named_with_the_near_ones(tmp_path: Path) -> None:
    place = folder(tmp_path, "AP,PA,lateral")
    [doubt] = read(place, views=("AP", "laterl")).warnings
    assert has("'laterl'", "'lateral'?", "'lateral' (6 rows)")(doubt)
    assert "lateral" not in doubt.public
    assert has("views = 'laterl'", "'lateral'?", key="view")(refusal(place, views=("laterl",)))


def test_views_need_their_column_and_images(tmp_path: Path) -> None:
    place = folder(tmp_path)
    assert has("'view'", "views = 'AP'", "path, label, pid")(refusal(place, views=("AP",)))
    table = tmp_path / "table"
    table.mkdir()
    (table / "data.csv").write_text("a,label\n1,0\n2,1\n")
    assert has("views = 'AP'")(refusal(table, views=("AP",)))


def test_simulated_hospitals_lose_no_image_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("north", "south"):
        folder(tmp_path / "site-folders" / name, "AP,PA")
    for name in ("north", "south"):
        (tmp_path / "site-folders" / name / "data").rename(tmp_path / "site-folders" / f"{name}-1")
        (tmp_path / "site-folders" / name).rmdir()
    spoil(tmp_path / "site-folders" / "south-1", [2])
    config = DataConfig(
        dataset="site-folders", data_root=str(tmp_path), partition="sites", views=("AP",), bad_images=0.1
    )
    sizes = [len(site.train) + len(site.held_out) for site in sites_of(replace(config, test_share=0.0), 2)]
    assert sizes == [10, 9]
    [doubt] = table_warnings(config)
    assert has("south-1: ", "row 3 ('p2.png')")(doubt)
    assert caplog.text.count("10 of 20 rows are left out by views = 'AP'") == 2


# ---------------------------------------------------------------------- links


def test_a_store_of_links_is_read_where_the_operator_says_so(tmp_path: Path) -> None:
    plain = read(folder(tmp_path))
    store = tmp_path / "store"
    (tmp_path / "data").rename(store)
    (site := tmp_path / "data").mkdir()
    (site / "labels.csv").write_bytes((store / "labels.csv").read_bytes())
    for row in range(ROWS):
        (site / f"p{row}.png").symlink_to(store / f"p{row}.png")
    assert np.array_equal(read(site, follow_links=True).inputs, plain.inputs)
    error = refusal(site)
    assert has(f"{LINKED.wrong}: row 1 ('p0.png')", "follow-links = true")(error)


@pytest.mark.parametrize("follow", [False, True])
def test_links_open_no_other_way_out(tmp_path: Path, follow: bool) -> None:
    place = folder(tmp_path)
    (tmp_path / "outside.png").write_bytes((place / "p0.png").read_bytes())
    (place / "round.png").symlink_to(place / "about.png")
    (place / "about.png").symlink_to(place / "round.png")
    (place / "nowhere.png").symlink_to(place / "gone.png")
    (place / "within.png").symlink_to(place / "p1.png")
    text = (place / "labels.csv").read_text()
    for path in ("../outside.png", str(tmp_path / "outside.png"), "round.png", "nowhere.png", "within.png"):
        text += f"\n{path},1,x"
    (place / "labels.csv").write_text(text)
    said = str(refusal(place, follow_links=follow))
    assert "lie outside the folder: row 21 ('../outside.png'), row 22 (" in said
    assert "are symlink loops: row 23 ('round.png')" in said
    assert "are missing: row 24 ('nowhere.png')" in said
    assert "are listed more than once: row 25 ('within.png'): as row 2" in said


# ---------------------------------------------------------------------- a survey


def test_a_survey_counts_kinds_bits_sizes_and_views(tmp_path: Path) -> None:
    place = folder(tmp_path, "AP,PA")
    write(place / "p4.png", dataset(ramp((9, 8)), 12))
    Image.new("RGB", (30, 20)).save(place / "p5.png")
    survey = Survey.of(str(place), follow_links=False)
    assert survey
    assert not survey.one_size
    assert survey.in_words() == (
        "20 rows; 18 PNG of 8 bits, grey; 1 DICOM of 12 bits, grey; 1 PNG of 8 bits, colour; from 6x4 to 30x20, so a "
        "run needs image-size; views AP 10, PA 10"
    )
    assert read(place, form=ImageForm(4)).inputs.shape == (20, 3, 4, 4)


def test_the_keys_reach_the_reader() -> None:
    form = {"image_size": 9, "image_fit": "pad", "image_colour": "rgb"}
    config = DataConfig(dataset="site", **form, views=("AP",), bad_images=0.1, follow_links=True)  # type: ignore[arg-type]
    assert config.images == ImageRules(ImageForm(9, "pad", "rgb"), ("AP",), 0.1, True)


def test_a_preset_of_frontal_images_reads_no_others(tmp_path: Path) -> None:
    """Where views are called otherwise than it knows, it reads nothing, and says so."""
    preset = Labels.of("label", "", "", "chexpert")
    place = folder(tmp_path, views="PA,lateral,AP")
    source = read_site(str(place), "label", True, labels=preset)
    assert shades(source) == [row for row in range(ROWS) if row % 3 != 1]
    assert shades(read_site(str(place), "label", True, ImageRules(views=("lateral",)), labels=preset))[0] == 1
    listed = place / "labels.csv"
    listed.write_text(listed.read_text().replace(",PA", ",Frontal").replace(",AP", ",Frontal"))
    with pytest.raises(DataError, check=has("'AP, PA'", "'Frontal' (13 rows)", key="view")):
        read_site(str(place), "label", True, labels=preset)


def test_a_column_of_patients_that_nobody_names_is_doubtful(tmp_path: Path) -> None:
    place = folder(tmp_path)
    (place / "labels.csv").write_text((place / "labels.csv").read_text().replace(",pid", ",patient"))
    [doubt] = read(place).warnings
    assert has("'patient'")(doubt)
    assert not read(place, "patient").warnings
    assert read_site(str(place), "label", True, patient=None).by_patient
