"""Images in a folder for each class: layouts, sizes, colours, and what is said of a folder that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from edelweiss.common import ConfigError
from edelweiss.config import RunConfig
from edelweiss.datasets import DataConfig, DataError, load_site, load_test
from edelweiss.datasets.files import SearchPath
from edelweiss.datasets.image_faults import NO_IMAGE, OTHER_SIZE, UNREADABLE
from edelweiss.datasets.image_file import ImageForm
from edelweiss.datasets.source import Source
from edelweiss.datasets.sources import image_folder
from edelweiss.server_app import simulate
from tests.said import has

Size = tuple[int, int]


def save(file: Path, shade: int, size: Size = (6, 4), mode: str = "RGB") -> None:
    """Write an image of one colour, its red (or its grey) the shade."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade if mode == "L" else (shade, 0, 255)).save(file)


def write_tree(root: Path, test: str = "val", mode: str = "RGB", size: Size = (6, 4)) -> Path:
    """Write four images of each of two classes to train on, two to test on: of shades 0 to 3 and 100 to 103."""
    for name, base in (("cat", 0), ("dog", 100)):
        for number in range(4):
            save(root / f"train/{name}/{number}.png", base + number, size, mode)
            if test and number < 2:
                save(root / f"{test}/{name}/{number}.png", base + number, size, mode)
    return root


def write_tiny(root: Path) -> Path:
    """Write what Tiny-ImageNet's archive holds: boxes beside the images, a list of classes, test images without any."""
    lines = []
    for name, base in (("n02", 100), ("n01", 0)):
        for number in range(3):
            save(root / f"train/{name}/images/{name}_{number}.JPEG", base + number, (64, 64))
        (root / f"train/{name}/{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t10\t63\t58\n")
        save(root / f"val/images/val_{base}.JPEG", base, (64, 64))
        lines.append(f"val_{base}.JPEG\t{name}\t0\t32\t44\t62")
    (root / "val/val_annotations.txt").write_text("\n".join(lines) + "\n")
    save(root / "test/images/test_0.JPEG", 50, (64, 64))
    return root


def read(root: Path, size: int = 0) -> Source:
    return image_folder.read(SearchPath.of(str(root), False), ImageForm(size))


def problem(root: Path, size: int = 0) -> DataError:
    with pytest.raises(DataError) as caught:
        read(root, size)
    assert "secret" not in caught.value.public
    assert "cat" not in caught.value.public
    return caught.value


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "secret"


# ---------------------------------------------------------------------- what is read


@pytest.mark.parametrize("test", ["val", "test"])
@pytest.mark.parametrize("place", ["image-folder", "."])
def test_classes_are_folders_and_the_second_part_is_the_test_set(root: Path, test: str, place: str) -> None:
    write_tree(root / place, test)
    save(root / place / "train/cat/deeper/still/4.JPG", 4)
    (root / place / "train/cat/notes.txt").write_text("no image, by its name")
    source = read(root)
    assert source.inputs.dtype == torch.uint8
    assert source.inputs.shape == (9 + 4, 3, 4, 6)
    assert source.class_count == 2
    assert source.classes.tolist() == [0] * 5 + [1] * 4 + [0, 0, 1, 1]
    assert source.test is not None
    assert source.test.tolist() == [False] * 9 + [True] * 4
    reds = source.inputs[:, 0, 0, 0].tolist()
    assert reds == pytest.approx([0, 1, 2, 3, 4, 100, 101, 102, 103, 0, 1, 100, 101], abs=2)  # one is a JPEG
    assert (source.inputs[:, 2].double().mean((1, 2)) > 250).all()


def test_without_a_test_set_a_share_is_held_out(root: Path) -> None:
    write_tree(root, test="")
    assert read(root).test is None
    test = load_test(DataConfig(dataset="image-folder", data_root=str(root), test_share=0.25, holdout_share=0))
    assert test is not None
    assert test.targets().tolist() == [0, 1]


def test_tiny_imagenet_is_read_as_it_is_downloaded(root: Path) -> None:
    source = read(write_tiny(root))
    assert source.inputs.shape == (6 + 2, 3, 64, 64), "its test images have no classes"
    assert source.classes.tolist() == [0, 0, 0, 1, 1, 1, 0, 1], "in the order of the names"
    assert (source.inputs[:, 0].double().mean((1, 2)) > 50).tolist() == (source.classes == 1).tolist()
    assert source.test is not None
    assert source.test.tolist() == [False] * 6 + [True] * 2


def test_numbers_of_classes_make_labels_as_for_any_data_set(root: Path) -> None:
    write_tree(root)
    for number in range(3):
        save(root / f"train/ant/{number}.png", 200)  # class 0: cats and dogs move on
    keys = {"dataset": "image-folder", "data_root": str(root), "holdout_share": 0.0}
    part = load_site(DataConfig(**keys, positive_classes=(1,), negative_classes=(2,)), 0, 1)  # type: ignore[arg-type]
    found = list(zip(shades(part.train.inputs, part.train.rows), part.train.targets().tolist(), strict=True))
    assert sorted(found) == [*((red, 1) for red in range(4)), *((red, 0) for red in range(100, 104))]


def shades(inputs: torch.Tensor, rows: torch.Tensor) -> list[int]:
    found: list[int] = inputs[rows, 0, 0, 0].tolist()
    return found


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_images_are_grey_if_all_are(root: Path, mode: str, channels: int) -> None:
    source = read(write_tree(root, mode=mode))
    assert source.inputs.shape[1] == channels
    assert sorted(set(source.inputs[:, 0, 0, 0].tolist())) == [0, 1, 2, 3, 100, 101, 102, 103]


def test_one_colour_image_makes_all_of_them_colour(root: Path) -> None:
    write_tree(root, mode="L")
    save(root / "train/dog/3.png", 7)
    inputs = read(root).inputs
    assert inputs[[1, 7], :, 0, 0].tolist() == [[1, 1, 1], [7, 0, 255]]


# ---------------------------------------------------------------------- sizes


@pytest.mark.parametrize(("width", "height"), [(30, 10), (10, 30), (4, 2)])
def test_the_shorter_side_is_scaled_and_the_middle_kept(root: Path, width: int, height: int) -> None:
    write_tree(root, mode="L")
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width), np.uint8))
    picture.save(root / "train/cat/0.png")
    scale = 6 / min(width, height)
    whole = picture.resize((round(width * scale), round(height * scale)), Image.Resampling.BILINEAR)
    left, top = (whole.width - 6) // 2, (whole.height - 6) // 2
    middle = np.asarray(whole.crop((left, top, left + 6, top + 6)), np.int64)
    inputs = read(root, size=6).inputs
    assert inputs.shape == (12, 1, 6, 6)
    assert np.abs(inputs[0, 0].numpy() - middle).max() <= 1


def test_scaling_down_averages(root: Path) -> None:
    """A pattern finer than the pixels becomes its mean; picking pixels would keep its black and white."""
    write_tree(root, mode="L", size=(5, 5))
    fine = 255 * (np.indices((60, 60)).sum(0) % 2).astype(np.uint8)
    Image.fromarray(fine).save(root / "train/cat/0.png")
    assert (read(root, size=5).inputs[0].int() - 127).abs().max() <= 2


def test_an_image_of_the_size_stays_as_it_is(root: Path) -> None:
    write_tree(root, mode="L", size=(8, 8))
    noise = np.random.default_rng(0).integers(0, 256, (8, 8), np.uint8)
    Image.fromarray(noise).save(root / "train/cat/0.png")
    assert np.array_equal(read(root, size=8).inputs[0, 0].numpy(), noise)
    assert np.array_equal(read(root).inputs[0, 0].numpy(), noise)


def test_images_of_several_sizes_need_one_to_be_named(root: Path) -> None:
    write_tree(root)
    save(root / "train/cat/wide.png", 5, (9, 4))
    error = problem(root)
    assert has(f"{OTHER_SIZE.wrong}: train/cat/wide.png: 9x4, most 6x4", "image-size")(error)
    assert error.public == f"image-folder: 1 images {OTHER_SIZE.wrong}"


def test_images_that_would_not_fit_into_memory_are_refused(root: Path, cache: Path) -> None:
    error = problem(write_tree(root), size=10**6)
    assert has(12, "1000000x1000000", "36,000.0 GB", "image-size")(error)
    assert not cache.exists()


def test_they_are_decoded_once_for_each_size(root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(root)
    first = [read(root, size).inputs for size in (0, 3)]
    assert len(list(cache.iterdir())) == 2
    with monkeypatch.context() as patch:
        patch.setattr(image_folder, "read_images", lambda *_: pytest.fail("decoded again"))
        assert all(torch.equal(read(root, size).inputs, inputs) for size, inputs in zip((0, 3), first, strict=True))
    save(root / "train/cat/0.png", 99)
    assert read(root).inputs[0, 0, 0, 0] == 99


# ---------------------------------------------------------------------- what cannot be used


def test_all_that_is_wrong_with_images_is_told_at_once(root: Path, cache: Path) -> None:
    write_tree(root)
    for number in range(7):
        (root / f"train/cat/broken{number}.png").write_text("no image")
    save(root / "val/bird/0.png", 1)
    error = problem(root)
    assert has(f"{NO_IMAGE.wrong}: train/cat/broken0.png, train/cat/broken1.png", "train/cat/broken4.png")(error)
    assert has("val/", ": bird")(error)
    assert "broken5.png" not in str(error), "the others are counted"
    assert str(root / "train") not in str(error), "images are named by their paths in the folder"
    assert f"image-folder: 7 images {NO_IMAGE.wrong}" in error.public
    assert not cache.exists()


def test_an_image_cut_short_leaves_nothing_behind(root: Path, cache: Path) -> None:
    write_tree(root, size=(60, 40))
    noise = np.random.default_rng(0).integers(0, 256, (40, 60), np.uint8)
    file = root / "val/cat/0.png"
    Image.fromarray(noise).save(file)
    file.write_bytes(file.read_bytes()[:1000])
    error = problem(root)
    assert f"images {UNREADABLE.wrong}: val/cat/0.png: " in str(error)
    assert error.public == f"image-folder: 1 images {UNREADABLE.wrong}"
    assert not cache.exists()
    Image.fromarray(noise).save(file)
    assert len(read(root).inputs) == 12


def only_cats(root: Path) -> None:
    write_tree(root, test="")
    (root / "train/dog").rename(root / "dog")


def flat(root: Path) -> None:
    save(root / "train/0.png", 1)


def emptied(root: Path) -> None:
    write_tree(root)
    for file in (root / "train/cat").iterdir():
        file.rename(file.with_suffix(".webp"))


def two_test_sets(root: Path) -> None:
    write_tree(write_tree(root, "val"), "test")


def unsorted_test(root: Path) -> None:
    write_tree(root, test="")
    save(root / "test/0.png", 1)


def empty_test(root: Path) -> None:
    write_tree(root)
    for file in (root / "val").rglob("*.png"):
        file.unlink()


def bad_list(root: Path) -> None:
    write_tiny(root)
    with (root / "val/val_annotations.txt").open("a") as file:
        file.write("val_0.JPEG\tn01\ngone.JPEG\tn01\nval_100.JPEG\n")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (only_cats, "(cat)"),
        (flat, ": train/ holds 0 "),
        (emptied, ".png, .jpg, .jpeg: cat"),
        (two_test_sets, "val/ and test/ "),
        (unsorted_test, ": test/ "),
        (empty_test, ": val/ "),
        (bad_list, "val_annotations.txt: line 3 ('val_0.JPEG'), line 4 ('gone.JPEG'), line 5 ('val_100.JPEG')"),
        (lambda root: None, "image-folder: no train/ "),
    ],
)
def test_a_folder_that_cannot_be_used_says_why(root: Path, make: Callable[[Path], None], said: str) -> None:
    make(root)
    assert said in str(problem(root))


def test_a_size_is_for_images_of_any_size() -> None:
    for dataset in ("image-folder", "site"):
        assert RunConfig.parse({"dataset": dataset, "image-size": 64}).data().image_size == 64
    with pytest.raises(ConfigError, check=has("'mnist'", "image-size = 0", keys=["image-size"])):
        RunConfig.parse({"dataset": "mnist", "image-size": 64})


# ---------------------------------------------------------------------- a run on it


def test_a_run_trains_on_it(root: Path, tmp_path: Path) -> None:
    """Mixed sizes, grey and colour, by class: what the coordinator and every site read is one data set."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("val", 4)):
        for name, base in (("cat", 40), ("dog", 160), ("eel", 40), ("fox", 160)):
            for number in range(count):
                sides = rng.integers(9, 14, 2)
                pixels = rng.integers(base, base + 60, (*sides, 3), np.uint8)
                picture = Image.fromarray(pixels).convert("L" if number % 2 else "RGB")
                (root / part / name).mkdir(parents=True, exist_ok=True)
                picture.save(root / part / name / f"{number}.png")
    keys = {"dataset": "image-folder", "data-root": str(root), "image-size": 8, "positive-classes": "1,3"}
    keys |= {"thin-share": 0.25, "sites": 2, "rounds": 1, "engine": "local", "workers": 1, "device": "cpu"}
    result = simulate(keys | {"batch-size": 8, "runs-dir": str(tmp_path / "runs")}, quiet=True)  # type: ignore[arg-type]
    assert result.metrics[-1]["auroc"] > 0.9, "dogs and foxes are bright"
    assert len(result.arrays["x"]) == 3 * 8 * 8 * 32 + 32 + 32 * 32 + 32 + 32 + 1 + 2, "mlp, and a and b of AUC"
