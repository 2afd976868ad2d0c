"""What the coordinator makes of what the sites tell before a run: their order, and what is said of their data."""

from __future__ import annotations

import numpy as np
import pytest

from edelweiss.config import RunConfig
from edelweiss.datasets import Facts
from edelweiss.federation import RunError
from edelweiss.server_app.console import Progress
from edelweiss.server_app.data_summary import assign_places, pooled
from tests.said import has


def test_sites_are_in_the_order_in_which_people_count() -> None:
    """Site 10 behind site 9, whoever comes when: by number where a machine plays them, else by name."""
    config = RunConfig.parse({"dataset": "site"})
    names = [*(f"site-{number}" for number in range(12)), "ward 2b", "ward 10a"]
    for numbered in (True, False):
        arrived = np.random.default_rng(0).permutation(len(names))
        told = {
            100 - int(place): Facts(
                name=names[place], partition_id=int(place) if numbered else -1, examples=10, positives=5, shape=(3,)
            )
            for place in arrived
        }
        sites = list(assign_places(config, told))
        assert [site.name for site in sites] == names
        assert [site.index for site in sites] == list(range(len(names)))


@pytest.mark.parametrize("positives", [0, 10])
def test_a_site_without_training_samples_is_none_of_the_other_class(positives: int) -> None:
    config = RunConfig.parse({"dataset": "site", "sites": 2})
    told = {
        1: Facts(name="full", examples=10, held_out=2, positives=positives, shape=(3,)),
        2: Facts(name="empty", examples=0, held_out=2, positives=0, shape=(3,)),
    }
    with pytest.raises(RunError, check=has(key="classes", value={positives > 0})):
        pooled(config, assign_places(config, told), Progress(quiet=True))
