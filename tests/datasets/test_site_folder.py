"""A hospital's own folder: what is read, and what each mistake is told to the site and to the outside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from edelweiss.datasets import DataConfig, DataError, load_site, load_test
from edelweiss.datasets.image_faults import LINKED, MISSING, NO_IMAGE, OTHER_SIZE, OUTSIDE, UNREADABLE
from tests.said import has

Write = Callable[..., DataConfig]

GOOD = "age,label,dose\n" + "".join(f"{20 + i},{i % 2},{i / 4}\n" for i in range(20))


def problem(config: DataConfig) -> DataError:
    with pytest.raises(DataError) as caught:
        load_site(config, 0, 1)
    assert config.data_dir not in caught.value.public
    assert "secret" not in caught.value.public
    return caught.value


def rows(config: DataConfig) -> tuple[list[list[float]], list[int]]:
    part = load_site(config, 0, 1)
    return part.train.inputs.tolist(), part.train.labels.tolist()


def test_a_table_is_split_at_the_site_and_has_no_common_test(table: Write) -> None:
    config = table(GOOD, partition="dirichlet")
    part = load_site(config, 7, 9)
    assert (part.name, len(part.train), len(part.held_out), part.classes) == ("site-7", 16, 4, 2)
    assert part.held_out.targets().sum() == 2
    assert part.features == ("age", "dose")
    assert load_test(config) is None
    assert not set(part.train.rows.tolist()) & set(part.held_out.rows.tolist())


def test_the_order_of_the_columns_plays_no_part(table: Write) -> None:
    here = rows(table(GOOD))
    mirrored = "\n".join(",".join(reversed(line.split(","))) for line in GOOD.splitlines())
    elsewhere = table(mirrored, name="other/data.csv")
    assert rows(elsewhere) == here


@pytest.mark.parametrize(
    ("negative", "positive"),
    [("0", "1"), ("-1", "+1"), ("-1.0", "1.0"), ("No", "YES"), ("false", "True"), (" 0", "1 ")],
)
def test_spellings_of_labels(table: Write, negative: str, positive: str) -> None:
    config = table(f"a,label\n1,{negative}\n2,{positive}\n3,{positive}\n")
    assert rows(config) == ([[1.0], [2.0], [3.0]], [0, 1, 1])


@pytest.mark.parametrize("word", ["", "?", "NA", "nan", "NaN", " "])
def test_missing_values(table: Write, word: str) -> None:
    config = table(f"a,b,label\n1,{word},0\n2,5,1\n{word},6,1\n", holdout_share=0)
    part = load_site(config, 0, 1)
    assert part.missing == 2
    assert part.train.inputs.isnan().nonzero().tolist() == [[0, 1], [2, 0]]


def test_one_class_and_one_row_are_for_the_server_to_judge(table: Write) -> None:
    part = load_site(table("a,label\n3,yes\n"), 0, 1)
    assert (len(part.train), len(part.held_out), part.classes) == (1, 0, 2)
    assert part.train.targets().tolist() == [1]


def test_class_numbers(table: Write) -> None:
    part = load_site(table("a,label\n1,0\n2,2\n3,2.0\n", binary=False), 0, 1)
    assert (part.classes, part.train.labels.tolist()) == (3, [0, 2, 2])
    error = problem(table("a,label\n1,123456789\n2,mild\n", name="other/data.csv", binary=False))
    assert "'123456789' (1 rows)" in str(error)
    assert "123456789" not in error.public


def test_parquet(table: Write) -> None:
    config = table("", name="data.parquet")
    frame = pd.DataFrame({"sick": [True, False, True], "a": [1, 2, 3], "b": [0.5, None, 2.5], "c": ["7", "?", "8"]})
    frame.to_parquet(Path(config.data_dir) / "data.parquet")
    part = load_site(table_with(config, label="sick"), 0, 1)
    assert part.train.labels.tolist() == [1, 0, 1]
    assert part.features == ("a", "b", "c")
    assert part.train.inputs.nan_to_num(-1).tolist() == [[1, 0.5, 7], [2, -1, -1], [3, 2.5, 8]]


def table_with(config: DataConfig, **fields: str) -> DataConfig:
    return DataConfig(dataset="site", data_dir=config.data_dir, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "says", "public", "place"),
    [
        (
            "a,b,label\n1,2,0\n4711,high,1\n2,1,1\n3,low,0\n",
            ["'b'", "row 2 ('high'), row 4 ('low')", 'codes = ["high", "low"]'],
            "data.csv: a column has 2 values that are not numbers",
            ("b", 2),
        ),
        (
            "a,label\n1,0\ninf,1\n1e39,1\n",
            ["'a'", "1e+18", "row 2 ('inf'), row 3 ('1e39')"],
            "data.csv: a column has 2 values that are infinite or beyond 1e+18",
            ("a", 2),
        ),
        (
            "a,label\n1,sick\n2,well\n3,sick\n",
            ["'sick' (2 rows), 'well' (1 rows)", "0/1, -1/+1, no/yes or false/true"],
            "data.csv: the label has 2 distinct values that are not 0/1, -1/+1, no/yes or false/true",
            ("label", None),
        ),
        (
            "a,label\n1,0\n2,1\n3,2\n",
            ["'2' (1 rows)"],
            "data.csv: the label has 3 distinct values that are not 0/1, -1/+1, no/yes or false/true",
            ("label", None),
        ),
        (
            "a,label\n1,0\n2,\n3,?\n",
            ["row 2 (''), row 3 ('?')"],
            "data.csv: the label is missing in 2 rows",
            ("label", 2),
        ),
        (
            "a,labels\n1,0\n",
            ["a, labels", "'labels'?"],
            "data.csv: the label column is not among its 2 columns",
            ("label", None),
        ),
        (
            "a;label\n1,234;0\n",
            ["'1,234'", 'decimal = ","'],
            "data.csv: it is unclear which decimal mark its numbers have",
            ("decimal", None),
        ),
        (
            "a,label\n1,0\n2,1,secret\n\n3\n",
            ["2 columns", "line 3 has 3, line 5 has 1"],
            "data.csv: 2 lines do not have as many values as the header",
            ("", None),
        ),
        (
            "a,a,label\n1,2,0\n",
            ["'a'"],
            "data.csv: 1 names stand for more than one column",
            ("a", None),
        ),
        ("a,label\n", ["a header and no rows"], "data.csv has no rows", ("", None)),
        ("", ["is empty"], "data.csv is empty", ("", None)),
        ("label\n0\n1\n", ["no feature column"], "data.csv has no feature column", ("", None)),
    ],
)
def test_a_bad_table(table: Write, text: str, says: list[str], public: str, place: tuple[str, int | None]) -> None:
    config = table(text)
    error = problem(config)
    for part in [*says, str(Path(config.data_dir) / "data.csv")]:
        assert part in str(error)
    assert error.public == public
    assert (error.key, error.row) == place


def test_all_problems_are_told_at_once(table: Write) -> None:
    error = problem(table("a,b,label\nx1,1,0\n2,inf,7\n"))
    assert str(error).startswith("3 problems")
    assert error.public.count("\n- ") == 3
    assert "x1" in str(error)
    assert "x1" not in error.public


def test_many_bad_values_are_counted_not_listed(table: Write) -> None:
    error = problem(table("a,label\n" + "".join(f"v{i},0\n" for i in range(1000))))
    assert "and 995 more" in str(error)
    assert len(str(error)) < 600


def test_bytes_that_are_not_text(table: Write) -> None:
    config = table(GOOD)
    (Path(config.data_dir) / "data.csv").write_bytes(b"a,label\n\x81\x8d,1\n")  # no letters in any code page
    error = problem(config)
    assert "UTF-8" in str(error)
    assert error.public == "data.csv is not text in a known encoding"


def test_a_damaged_parquet_file(table: Write) -> None:
    error = problem(table("not parquet", name="data.parquet"))
    assert error.public == "data.parquet cannot be read"


def test_a_folder_without_data(tmp_path: Path) -> None:
    folder = tmp_path / "secret"
    config = DataConfig(dataset="site", data_dir=str(folder))
    place = {"key": "data-dir", "value": str(folder)}
    assert has("data.csv", **place)(problem(config))
    folder.mkdir()
    assert has("data.csv", **place)(problem(config))
    (folder / "secret.xlsx").touch()
    assert has("secret.xlsx", "data.xlsx", **place)(problem(config))
    (folder / "data.csv").touch()
    (folder / "labels.csv").touch()
    assert has("data.csv and labels.csv", **place)(problem(config))
    with pytest.raises(DataError, check=has(key="data-dir", value="")):
        load_site(DataConfig(dataset="site"), 0, 1)


def images(config: DataConfig, mode: str = "L", size: tuple[int, int] = (6, 4), count: int = 4) -> Path:
    folder = Path(config.data_dir)
    for number in range(count):
        Image.new(mode, size, number if mode != "RGB" else (number, 0, 255)).save(folder / f"p{number}.png")
    return folder


LISTED = "path,label\n" + "".join(f"p{i}.png,{i % 2}\n" for i in range(4))


def test_grey_images_have_one_channel(table: Write) -> None:
    config = table(LISTED, name="labels.csv")
    images(config)
    part = load_site(config, 0, 1)
    assert part.train.inputs.dtype == torch.uint8
    assert (part.train.shape, part.features) == ((1, 4, 6), ())
    assert part.train.inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 3]


def test_one_colour_image_makes_all_of_them_colour(table: Write) -> None:
    config = table(LISTED, name="labels.csv")
    Image.new("RGB", (6, 4), (7, 8, 9)).save(images(config) / "p2.png")
    part = load_site(config, 0, 1)
    assert part.train.shape == (3, 4, 6)
    assert part.train.inputs[[1, 2], :, 0, 0].tolist() == [[1, 1, 1], [7, 8, 9]]


def test_bad_images(table: Write, tmp_path: Path) -> None:
    lines = ["path,label", "p0.png,0", "p1.png,1", "gone.png,1", "../outside.png,0", "text.png,0", "wide.png,1"]
    config = table("\n".join(lines), name="labels.csv")
    folder = images(config)
    Image.new("L", (6, 4)).save(tmp_path / "outside.png")
    (folder / "text.png").write_text("no image")
    Image.new("L", (9, 4)).save(folder / "wide.png")
    error = problem(config)
    found = [
        f"{MISSING.wrong}: row 3 ('gone.png')",
        f"{OUTSIDE.wrong}: row 4 ('../outside.png')",
        f"{NO_IMAGE.wrong}: row 5 ('text.png')",
        f"{OTHER_SIZE.wrong}: row 6 ('wide.png'): 9x4, most 6x4",
    ]
    assert has(*found, "image-size")(error)
    assert ".png" not in error.public
    assert f"labels.csv: 1 images {MISSING.wrong}" in error.public


def test_images_of_any_size_are_scaled_to_that_of_the_run(table: Write) -> None:
    config = table(LISTED, name="labels.csv", image_size=5)
    Image.new("L", (60, 41), 2).save(images(config) / "p2.png")
    part = load_site(config, 0, 1)
    assert part.train.shape == (1, 5, 5)
    assert part.train.inputs.unique().tolist() == [0, 1, 2, 3]


def test_a_link_may_not_lead_outside(table: Write, tmp_path: Path) -> None:
    config = table("path,label\nlink.png,0\n", name="labels.csv")
    Image.new("L", (6, 4)).save(tmp_path / "outside.png")
    (Path(config.data_dir) / "link.png").symlink_to(tmp_path / "outside.png")
    assert has(f"{LINKED.wrong}: row 1 ('link.png')", "follow-links = true")(problem(config))


def test_an_image_cut_short(table: Write) -> None:
    config = table(LISTED, name="labels.csv")
    folder = Path(config.data_dir)
    rng = np.random.default_rng(0)
    for number in range(4):
        Image.fromarray(rng.integers(0, 256, (40, 60), np.uint8)).save(folder / f"p{number}.png")
    content = (folder / "p3.png").read_bytes()
    (folder / "p3.png").write_bytes(content[: len(content) // 2])
    error = problem(config)
    assert has(f"{UNREADABLE.wrong}: row 4 ('p3.png'")(error)
    assert error.public == f"labels.csv: 1 images {UNREADABLE.wrong}"


def test_labels_without_paths(table: Write) -> None:
    error = problem(table("file,label\np0.png,0\n", name="labels.csv"))
    assert has("'path'", "file, label", key="path")(error)
    assert error.public == "labels.csv: no column 'path'"
