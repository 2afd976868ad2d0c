"""Where a site has a y of its own, p of AUC is its own too: in training, in evaluations, and over one network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

from edelweiss.client_app.memory import Memory
from edelweiss.client_app.personalise import FinishedRun, personalise
from edelweiss.client_app.request import Request
from edelweiss.client_app.site import OpenSite
from edelweiss.config import RunConfig, SiteConfig
from edelweiss.datasets import DataSummary
from edelweiss.federation import unpack
from edelweiss.problems import PROBLEMS
from edelweiss.problems.base import Batch
from edelweiss.problems.network import NetworkProblem
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import Result, coordinate
from edelweiss.strategies import ALGORITHMS, can_solve
from tests.client_app.newcomer import at_home
from tests.problems.example import BINARY_MINIMAX, changed_by_a_constant
from tests.said import warnings
from tests.server_app.labelled import LABELS, folders
from tests.server_app.sites import SiteGrid, run_at, site_job, table, write_table
from tests.strategies.closed_form import build
from tests.strategies.memories import ends

pytestmark = pytest.mark.usefixtures("public_batches")

SITES = {"north": (40, 30), "south": (50, 5)}  # samples, and how many of them are positive
MINIMAX = [name for name in ALGORITHMS if can_solve(ALGORITHMS[name], PROBLEMS["auc"])]
OWN = [name for name in MINIMAX if ALGORITHMS[name].own_dual]


@pytest.mark.parametrize("name", MINIMAX)
def test_an_algorithm_says_so_if_and_only_if_its_sites_end_with_a_y_each(name: str) -> None:
    models, _ = ends(build(name, local_steps=1), rounds=3)
    assert ALGORITHMS[name].own_dual == any(not torch.equal(models[0]["y"], model["y"]) for model in models)


# ---------------------------------------------------------------------- the property


def hospitals(folder: Path, counts: Mapping[str, tuple[int, int]] = SITES) -> list[dict[str, Any]]:
    """Write a table for each hospital."""
    data = ((name, table(rows, seed, positives)) for seed, (name, (rows, positives)) in enumerate(counts.items()))
    return [{"site": name, "data-dir": str(write_table(folder / name, *one))} for name, one in data]


def opened(config: RunConfig, data_summary: DataSummary, place: str) -> tuple[NetworkProblem, Batch]:
    """Return the objective of a hospital as its app trains on it, and all its training samples."""
    request = Request(
        context=config.strategy.context(1, 1, "train", config.sites),
        site=0,
        name="",
        run="",
        committed=0,
        data_summary=data_summary,
    )
    here = OpenSite(config, SiteConfig.parse({"data-dir": place}))
    problem, samples = here.in_run(request).own_problem, here.in_run(request).samples[0]
    assert isinstance(problem, NetworkProblem)
    assert samples is not None
    assert problem.network is here.in_run(request).problem.network, "one for all sites of a process"
    return problem, samples.batch(torch.arange(len(samples)))


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("problem", BINARY_MINIMAX)
@pytest.mark.parametrize("algorithm", ["alone", "fedrep", "deprl"])
def test_a_constant_added_to_all_of_a_sites_scores_changes_nothing(
    algorithm: str, problem: str, several: bool, tmp_path: Path
) -> None:
    """Nor does it with several labels, each of which is known of some patients."""
    keys: dict[str, Any] = {"problem": problem, f"{problem}.score": "identity", "model": "mlp", "hidden": 4}
    data_summary = DataSummary(shape=(4,), prior=0.5)
    if several:
        keys |= {"label": ",".join(LABELS), "uncertain": "ignore", "blank": "ignore"}
        data_summary = DataSummary(shape=(3,), labels=LABELS, priors=(0.7, 0.6, 0.5))
        data = folders(tmp_path)
        places = [str(data / site) for site in ("alpha", "beta")]
    else:
        places = [node["data-dir"] for node in hospitals(tmp_path)]
    for place in places:
        own, common = (
            opened(site_job(tmp_path, algorithm=name, **keys), data_summary, place)
            for name in (algorithm, "local-sgda")
        )
        assert changed_by_a_constant(*own) < 1e-5
        assert changed_by_a_constant(*common) > 0.1


# ---------------------------------------------------------------------- runs


class Keeping(SiteGrid):
    """The local engine; it keeps what sites remember before the last evaluation, and knows what they sent."""

    def push_messages(self, messages: Sequence[Message]) -> Sequence[str]:  # type: ignore[override]
        if messages[0].metadata.message_type == "evaluate" and not hasattr(self, "memories"):
            self.memories = []
            for place, message in enumerate(messages):
                config = message.content.config_records["config"]
                store = Memory(f"{self.scratch.path}/state/{place}", str(config["run"]), str(config["name"]))
                self.memories.append(store.load(torch.device("cpu"), before=(99, 0)))
        return list(super().push_messages(messages))

    @property
    def replies(self) -> list[dict[str, torch.Tensor]]:
        """What the sites sent, without evaluations."""
        return [unpack(answer.content["arrays"]) for answer in self.answers if "cost" in answer.content]


def a_round(folder: Path, algorithm: str, **keys: Any) -> tuple[Keeping, Result]:
    """Play one round at the hospitals."""
    common = {"problem": "auc", "model": "mlp", "hidden": 4, "sites": 2, "rounds": 1}
    config = site_job(folder, algorithm=algorithm, **{**common, **keys})
    with Keeping(config, hospitals(folder)) as grid:
        return grid, coordinate(config, grid, Progress(quiet=True))


def shares(run: Keeping) -> list[float]:
    """Return the share of positives among each hospital's training samples, as all are told of it."""
    facts = [answer.content["facts"] for answer in run.answers if "facts" in answer.content]
    return [one["positives"] / one["examples"] for one in sorted(facts, key=lambda one: one["name"])]  # type: ignore


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", OWN)
def test_each_site_trains_as_if_its_own_share_were_that_of_all(algorithm: str, tmp_path: Path) -> None:
    """In the first round, when nothing of the others has come yet. What Ditto's sites send is another model's."""
    own = a_round(tmp_path, algorithm)[0]
    for site, share in enumerate(shares(own)):
        given = a_round(tmp_path, algorithm, **{"auc.prior": share})[0]
        here = [place == site for place in range(2)]
        assert [same(*pair) for pair in zip(own.memories, given.memories, strict=True)] == here
        if algorithm not in ("alone", "ditto"):
            assert [same(*pair) for pair in zip(own.replies, given.replies, strict=True)] == here


@pytest.mark.slow
def test_the_common_model_of_ditto_has_the_p_of_all(tmp_path: Path) -> None:
    _, ditto = a_round(tmp_path, "ditto", rounds=3)
    _, sgda = a_round(tmp_path, "local-sgda", rounds=3)
    assert all((ditto.arrays[name] == sgda.arrays[name]).all() for name in ("x", "y"))


@pytest.mark.slow
def test_a_site_judges_its_model_by_what_it_trained_it_for(tmp_path: Path) -> None:
    run, own = a_round(tmp_path, "alone")
    for name, share in zip(SITES, shares(run), strict=True):
        _, given = a_round(tmp_path, "alone", **{"auc.prior": share})
        assert own.metrics[-1]["sites"][name] == given.metrics[-1]["sites"][name]
    assert own.metrics[-1]["sites"]["north"]["loss"] != given.metrics[-1]["sites"]["north"]["loss"]


def test_a_p_that_is_given_holds_for_everybody(tmp_path: Path) -> None:
    config = site_job(tmp_path, algorithm="alone", problem="auc", sites=2, **{"auc.prior": 0.3})
    for node in hospitals(tmp_path):
        assert opened(config, DataSummary(shape=(4,)), node["data-dir"])[0].p == 0.3  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedrep", "codasca"])
def test_a_head_for_a_new_hospital_has_the_p_of_its_patients(algorithm: str, tmp_path: Path) -> None:
    """Its y is its own, whatever the sites of the run did."""
    config = site_job(tmp_path, algorithm=algorithm, problem="auc", model="mlp", hidden=4, sites=2)
    folder = run_at(config, hospitals(tmp_path)).folder
    given, data = at_home(folder, write_table(tmp_path / "new", *table(60, 7, 40)))
    share = data.train.targets().double().mean().item()
    told = FinishedRun.read(folder, {"auc.prior": share})
    common = FinishedRun.read(folder, {"auc.prior": given.data_summary.prior})
    own, as_told, as_all = (personalise(run, data, steps=20) for run in (given, told, common))
    assert same(own.model, as_told.model)
    assert own.after == as_told.after
    assert not same(own.model, as_all.model)


def test_a_site_of_one_class_moves_nothing_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = site_job(tmp_path, algorithm="alone", problem="auc", sites=2, rounds=1, holdout_share=0.0)
    with Keeping(config, hospitals(tmp_path, {"north": (40, 40), "south": (50, 5)})) as grid:
        coordinate(config, grid, Progress())
    start = config.build_problem(config.setting(DataSummary(shape=(4,)), "cpu")).initial()
    assert [same(memory, start) for memory in grid.memories] == [True, False]
    assert len(warnings("".join(capsys.readouterr()), "'north'", "positive")) == 1
