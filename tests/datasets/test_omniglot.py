"""Omniglot's zip files, on the real ones where they are and on small made ones."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from edelweiss.datasets import DataConfig, DataError, load_site, load_test
from edelweiss.datasets.files import SearchPath
from edelweiss.datasets.source import Source
from edelweiss.datasets.sources import omniglot
from edelweiss.datasets.vision import import_torchvision
from tests.datasets.helpers import write_zips
from tests.said import has

SMALL = omniglot.PARTS[1]


def read(root: Path) -> Source:
    return omniglot.read(SearchPath.of(str(root), False))


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("omniglot", omniglot.PARTS[0]),
        *((place, SMALL) for place in ("omniglot", ".", "omniglot-py", "omniglot/omniglot-py")),
    ],
)
def test_zip_files(tmp_path: Path, place: str, names: tuple[str, ...]) -> None:
    write_zips(tmp_path / place, names=names)
    source = read(tmp_path)
    assert source.inputs.shape == (6 * 4 * 4, 1, 28, 28), "a character in both files counts once"
    assert source.inputs.dtype == torch.uint8
    assert source.class_count == 24
    assert np.bincount(source.classes).tolist() == [4] * 24
    assert source.groups is not None
    assert np.array_equal(source.groups, source.classes // 4)
    assert sorted(path.name for path in (tmp_path / place).iterdir() if path.is_file()) == sorted(names)


def test_ink_is_bright_and_a_pixel_is_the_mean_of_its_square(tmp_path: Path) -> None:
    paper = np.ones((105, 105), bool)
    paper[:15, :30] = False  # 15 of 105 are four pixels of 28
    stream = io.BytesIO()
    Image.fromarray(paper).save(stream, "PNG")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("set/Greek/character01/0001_01.png", stream.getvalue())
    images, characters = omniglot.decode([tmp_path / "a.zip"])
    expected = np.zeros((28, 28))
    expected[:4, :8] = 255
    assert np.array_equal(images[0], expected)
    assert characters.tolist() == [0]


def test_turns_of_a_character_are_new_classes_of_one_group(tmp_path: Path) -> None:
    write_zips(tmp_path)
    source = read(tmp_path)
    for character in range(6):
        upright = source.inputs[torch.from_numpy(source.classes == 4 * character), 0]
        for turns in range(4):
            turned = source.inputs[torch.from_numpy(source.classes == 4 * character + turns), 0]
            assert torch.equal(turned, torch.rot90(upright, turns, (1, 2)))
        assert not torch.equal(torch.rot90(upright, 1, (1, 2)), upright)


def test_held_out_characters_are_the_same_for_every_run_and_keep_their_turns(tmp_path: Path) -> None:
    write_zips(tmp_path, characters=20)
    tests = []
    for seed in (0, 1):
        config = DataConfig(dataset="omniglot", data_root=str(tmp_path), binary=False, seed=seed, download=False)
        test = load_test(config)
        assert test is not None
        tests.append(test.targets().unique().tolist())
    assert tests[0] == tests[1]
    assert len(tests[0]) == 4 * 5  # of 20 characters, 423/1623
    assert all({4 * (c // 4) + turns for turns in range(4)} <= set(tests[0]) for c in tests[0])
    assert int(omniglot.held_out(1623).sum()) == 423
    assert np.array_equal(omniglot.held_out(1623), omniglot.held_out(1623)), "each process draws them for itself"


@pytest.mark.parametrize(("sites", "share", "folds"), [(1, 0.2, 0), (4, 0.3, 0), (7, 0.0, 0), (3, 0.2, 2)])
def test_characters_go_to_sites_whole_and_disjointly(tmp_path: Path, sites: int, share: float, folds: int) -> None:
    write_zips(tmp_path, characters=20)
    base = DataConfig(
        dataset="omniglot",
        data_root=str(tmp_path),
        partition="by-group",
        binary=False,
        holdout_share=share,
        folds=folds,
        download=False,
    )
    test = load_test(base)
    assert test is not None
    parts = [set((test.targets() // 4).tolist())]
    rows = [test.rows.tolist()]
    for site in range(sites):
        data = load_site(base, site, sites)
        for part in (data.train, data.held_out):
            parts.append(set((part.targets() // 4).tolist()))
            rows.append(part.rows.tolist())
            assert len(part) == 16 * len(parts[-1]), "all drawings of all turns"
        assert bool(parts[-1]) == bool(share)
    assert sum(len(part) for part in parts) == 20
    assert set().union(*parts) == set(range(20))
    assert sorted(row for part in rows for row in part) == list(range(20 * 16))
    sizes = [len(a) + len(b) for a, b in zip(parts[1::2], parts[2::2], strict=True)]
    assert max(sizes) - min(sizes) <= 1


def test_more_sites_than_characters_and_data_without_groups_are_refused(tmp_path: Path) -> None:
    write_zips(tmp_path)
    config = DataConfig(dataset="omniglot", data_root=str(tmp_path), partition="by-group", binary=False)
    with pytest.raises(DataError, check=has(4, key="sites", value=5)):
        load_site(config, 0, 5)


def test_it_is_decoded_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_zips(tmp_path)
    first = read(tmp_path)
    assert [file.name.split("-")[0] for file in cache.iterdir()] == ["omniglot"]
    with monkeypatch.context() as patch:
        patch.setattr(omniglot, "decode", lambda files: pytest.fail("decoded again"))
        assert torch.equal(read(tmp_path).inputs, first.inputs)
    write_zips(tmp_path, characters=8)
    assert read(tmp_path).class_count == 32


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:200]), SMALL[1]),
        (lambda file: zipfile.ZipFile(file, "w").close(), "<set>/<alphabet>/<character>/<drawing>.png"),
        (lambda file: zipfile.ZipFile(file, "w").writestr("a/b/c/d.png", b"no picture"), "(a/b/c/d.png)"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, spoil: object, says: str) -> None:
    write_zips(tmp_path)
    spoil(tmp_path / SMALL[1])  # type: ignore[operator]
    with pytest.raises(DataError, check=has(tmp_path / SMALL[1], says)) as caught:
        read(tmp_path)
    assert str(tmp_path) not in caught.value.public


def test_one_of_two_files_is_not_enough(tmp_path: Path) -> None:
    write_zips(tmp_path)
    (tmp_path / SMALL[0]).unlink()
    sought = "images_background_small1.zip,images_background_small2.zip"
    with pytest.raises(DataError, check=has("omniglot", sought, "background=value", key="data-root")):
        read(tmp_path)


def test_the_whole_data_set_comes_before_the_small_ones(tmp_path: Path) -> None:
    write_zips(tmp_path / "omniglot")
    write_zips(tmp_path / "omniglot-py", characters=8, names=omniglot.PARTS[0])
    assert read(tmp_path).class_count == 4 * 8


def test_torchvision_downloads_both_sets_where_none_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(root: Path, background: bool, download: bool) -> None:
        assert download
        asked.append(background)
        write_zips(Path(root) / "omniglot-py", names=omniglot.PARTS[0])

    monkeypatch.setattr(import_torchvision().datasets, "Omniglot", download)
    assert omniglot.read(SearchPath.of(str(tmp_path), True)).class_count == 24
    assert asked == [True, False]


@pytest.mark.slow
def test_real_files(data_root: str) -> None:
    """136 and 156 characters, of which Greek's 24 and Latin's 26 are in both."""
    source = read(Path(data_root))
    assert source.class_count == 4 * (136 + 156 - 24 - 26) == 4 * 242
    assert np.bincount(source.classes).tolist() == [20] * 968
    assert source.test is not None
    assert source.test.sum() == 63 * 80
    assert source.inputs.amax() == 255
    assert 0.03 < source.inputs.float().mean() / 255 < 0.15, "ink is the smaller part"
    config = DataConfig(dataset="omniglot", data_root=data_root, partition="by-group", binary=False, download=False)
    sites = [load_site(config, site, 16) for site in range(16)]
    assert sum(len(site.train) + len(site.held_out) for site in sites) == 179 * 80
    assert min(len(site.held_out.targets().unique()) for site in sites) == 8
    test = load_test(config)
    assert test is not None
    parts = [test, *(part for site in sites for part in (site.train, site.held_out))]
    characters = [set((part.targets() // 4).tolist()) for part in parts]
    assert sum(map(len, characters)) == len(set().union(*characters)) == 242, "no character is in two places"
