"""HARBox: one table of windows per user."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from edelweiss.datasets import DataConfig, DataError, load_site, load_test
from edelweiss.datasets.files import SearchPath
from edelweiss.datasets.sources import harbox
from edelweiss.datasets.sources.harbox import FEATURES
from tests.datasets.helpers import write_users
from tests.said import has


def config(root: Path, **fields: object) -> DataConfig:
    keys = {"dataset": "harbox", "data_root": str(root), "binary": False, "partition": "sites", **fields}
    return DataConfig(**keys)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("place", "header"), [("harbox", ""), (".", ",".join([*FEATURES, "activity"]))], ids=["bare", "header"]
)
def test_every_user_is_a_site(tmp_path: Path, place: str, header: str) -> None:
    tables = write_users(tmp_path / place, header=header)
    bare = config(tmp_path, test_share=0.0, holdout_share=0.0)
    for site, user in enumerate(map(str, range(1, 13))):  # user 10 comes behind user 9
        part = load_site(bare, site, 12)
        assert (part.name, part.classes, part.features, part.missing) == (user, 5, FEATURES, 0)
        inputs, labels = part.train.batch(torch.arange(10))
        assert torch.equal(inputs, torch.from_numpy(tables[user]))
        assert labels.tolist() == [0, 1, 2, 3, 4] * 2
    assert len(set(FEATURES)) == 900
    assert FEATURES[8:10] == ("magnetometer z 0", "accelerometer x 1"), "the nine axes of a moment, then the next"


def test_users_are_tested_on_windows_of_their_own(tmp_path: Path) -> None:
    write_users(tmp_path / "harbox", users=3, windows=40)
    own = config(tmp_path, personal_test=True)
    test = load_test(own)
    assert test is not None
    assert len(test) == 30
    for site in range(3):
        part = load_site(own, site, 3)
        assert part.held_out.targets().bincount().tolist() == [2] * 5
        assert part.train.targets().bincount().tolist() == [6] * 5
        assert all(row // 40 == site for row in [*part.held_out.rows.tolist(), *part.train.rows.tolist()])


def test_fewer_sites_than_users_get_whole_users(tmp_path: Path) -> None:
    write_users(tmp_path / "harbox", users=6)
    grouped = config(tmp_path, partition="by-group", test_share=0.0, holdout_share=0.0)
    owners = [{row // 10 for row in load_site(grouped, site, 3).train.rows.tolist()} for site in range(3)]
    assert [len(users) for users in owners] == [2, 2, 2]
    assert set.union(*owners) == set(range(6))
    with pytest.raises(DataError, check=has(key="sites", value=5, allowed=6)):
        load_site(config(tmp_path), 0, 5)


def test_tables_are_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_users(tmp_path / "harbox", users=2)
    places = SearchPath.of(str(tmp_path), False)
    first = harbox.read(places)
    monkeypatch.setattr(harbox, "decode", lambda files: pytest.fail("parsed again"))
    assert torch.equal(harbox.read(places).inputs, first.inputs)


def spoilt(change: Callable[[list[str]], str]) -> Callable[[Path], None]:
    """Return what rewrites the fourth line of a table."""

    def spoil(file: Path) -> None:
        lines = file.read_text().splitlines()
        lines[3] = change(lines[3].split(", "))
        file.write_text("\n".join(lines))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "said", "public"),
    [
        (spoilt(lambda f: ",".join(f[1:])), "line 4 has 899", "1 bad lines"),
        (spoilt(lambda f: ",".join([*f[:16], "fast", *f[17:]])), "line 4 has 'fast' as number 17", "1 bad lines"),
        (spoilt(lambda f: ",".join([*f[:16], "nan", *f[17:]])), "line 4 has 'nan' as number 17", "1 bad lines"),
        (spoilt(lambda f: ",".join([*f[:16], "1e99", *f[17:]])), "line 4 has '1e99' as number 17", "1 bad lines"),
        (spoilt(lambda f: ",".join([*f[:16], "", *f[17:]])), "line 4 has '' as number 17", "1 bad lines"),
        (spoilt(lambda f: ",".join([*f[:-1], "swim"])), "line 4 has the activity 'swim'", "1 bad lines"),
        (spoilt(lambda f: ",".join([*f[:-1], "5"])), "line 4 has the activity '5'", "1 bad lines"),
        (lambda file: file.write_text(""), "no rows", "no rows"),
        (lambda file: file.write_bytes(b"\xff\xfe\x00"), "cannot be read", "cannot be read"),
    ],
    ids=["short", "text", "nan", "infinite", "empty", "name", "number", "nothing", "bytes"],
)
def test_a_bad_line_is_named(tmp_path: Path, spoil: Callable[[Path], None], said: str, public: str) -> None:
    folder = tmp_path / "harbox"
    write_users(folder, users=3)
    spoil(folder / "2.csv")
    with pytest.raises(DataError) as caught:
        load_site(config(tmp_path), 0, 3)
    assert f"{folder / '2.csv'}" in str(caught.value)
    assert said in str(caught.value)
    assert caught.value.public == f"harbox: 2.csv {'has ' * ('cannot' not in public)}{public}"


def test_all_bad_tables_are_named_at_once(tmp_path: Path) -> None:
    write_users(tmp_path / "harbox", users=3)
    for user in ("1", "3"):
        (tmp_path / "harbox" / f"{user}.csv").write_text("1,2,3\n4,5,6\n")
    with pytest.raises(DataError, check=has("1.csv", "3.csv", "line 1", "line 2")):
        load_site(config(tmp_path), 0, 3)


def test_missing_tables_say_where_they_were_sought(tmp_path: Path) -> None:
    with pytest.raises(DataError, check=has("<user>.csv", key="data-root")) as caught:
        load_site(config(tmp_path), 0, 3)
    assert str(tmp_path) not in caught.value.public
