"""The experiments of DePRL hold for each of the paper's graphs and class mixes."""

from __future__ import annotations

import pytest

from benchmarks.studies import REPO
from config import RunConfig, read_overrides


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
@pytest.mark.parametrize("topology", ["ring", "random", "full"])
@pytest.mark.parametrize("concentration", [0.1, 0.3, 0.5])
def test_graphs_and_mixes_are_chosen_as_the_file_says(name: str, topology: str, concentration: float) -> None:
    file = REPO / "experiments" / "deprl" / f"{name}.toml"
    changes = f'deprl.topology="{topology}" concentration={concentration}'
    run = RunConfig.parse(read_overrides([str(file), changes]))
    assert (run.sites, run.hyper["topology"], run.concentration) == (32, topology, concentration)
    assert run.data().personal_test
    for words in changes.split():
        default = words in ('deprl.topology="ring"', "concentration=0.3")
        assert default or f"'{words}'" in file.read_text(encoding="utf-8"), "the comment names it"
