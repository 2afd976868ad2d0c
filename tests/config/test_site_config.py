"""The node-config: what a site's operator sets."""

from __future__ import annotations

import pytest

from edelweiss.config import ConfigError, RunConfig, SiteConfig
from tests.said import has


def test_every_key_is_optional_and_has_dashes() -> None:
    assert SiteConfig.parse({}) == SiteConfig()
    node = SiteConfig.parse(
        {
            "site": "ward 3",
            "data-dir": "/data",
            "data-root": "/public",
            "state-dir": "/state",
            "label": "died",
            "device": "cpu",
            "partition-id": 2,
            "num-partitions": 5,
        }
    )
    assert (node.site, node.data_dir, node.data_root, node.state_dir) == ("ward 3", "/data", "/public", "/state")
    assert (node.label, node.device, node.partition_id, node.num_partitions) == ("died", "cpu", 2, 5)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, ""),  # the data has to say
        ({"partition-id": 0}, "site-0"),
        ({"partition-id": 3}, "site-3"),
        ({"partition-id": 3, "site": "north"}, "north"),
    ],
)
def test_the_name(values: dict[str, bool | int | float | str], name: str) -> None:
    assert SiteConfig.parse(values).name == name


@pytest.mark.parametrize(
    ("values", "key", "said"),
    [
        ({"data_dir": "/x"}, "data_dir", "'data-dir'?"),
        ({"patient": 1}, "patient", "data-dir"),
        ({"partition-id": "0"}, "partition-id", "'0'"),
        ({"partition-id": -2}, "partition-id", "-2"),
        ({"num-partitions": -1}, "num-partitions", "-1"),
        ({"site": 7}, "site", "7"),
        *(({"site": name}, "site", repr(name)) for name in (" ", "a ", "\ta", "a/b", "zero\u200bwidth", "x" * 101)),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, bool | int | float | str], key: str, said: str) -> None:
    with pytest.raises(ConfigError, check=has(said, keys=[key])):
        SiteConfig.parse(values)


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        SiteConfig.parse({"data_dir": "/x", "site": 7, "partition-id": 1.5})
    assert len(caught.value.problems) == 3


def test_an_unknown_key_keeps_its_value_to_itself() -> None:
    # The text reaches the coordinator; a path of the site has no business there.
    with pytest.raises(ConfigError) as caught:
        SiteConfig.parse({"data_dir": "/mnt/ward-7"})
    assert "ward-7" not in str(caught.value)


def test_what_an_operator_says_of_the_data_wins_over_the_run() -> None:
    run = RunConfig.parse({"dataset": "site", "label": "sick", "data-root": "theirs"})
    mine = run.data("folder", "ill", "mine")
    assert (mine.label, mine.data_root) == ("ill", "mine")
    assert (run.data("folder").label, run.data("folder").data_root) == ("sick", ""), "its own folder may be there"
    assert (run.data().label, run.data().data_root) == ("sick", "theirs")


def test_a_hospitals_patients_are_all_used() -> None:
    assert RunConfig.parse({"dataset": "site", "thin-share": 0.1}).data("folder").thin_share == 0
    assert RunConfig.parse({"dataset": "breast-cancer", "thin-share": 0.1}).data().thin_share == 0.1


def test_a_site_with_data_of_its_own_is_none_of_a_simulation() -> None:
    """Whatever number it is given: files that a run names are those of the machine that simulates."""
    for folder in ("", "/data"):
        for parts in (0, 1, 3):
            node = SiteConfig.parse({"data-dir": folder, "partition-id": 0, "num-partitions": parts})
            assert node.simulated == (parts > 0 and not folder)
