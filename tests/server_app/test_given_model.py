"""Runs that start from a file: what they take of it, that all sites have it, and what is refused in one clear line."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from edelweiss.client_app.process_cache import cached_problem
from edelweiss.common import Value, from_record
from edelweiss.config import RunConfig
from edelweiss.config.tables import own_options
from edelweiss.datasets import DataSummary
from edelweiss.datasets.vision import import_torchvision
from edelweiss.lab.cli import main
from edelweiss.models import ModelError, build, networks
from edelweiss.models.storage import StoredTensors, write_tensors
from edelweiss.problems.network import NetworkProblem
from edelweiss.server_app import Result, simulate
from edelweiss.server_app.init_model import InitModel
from edelweiss.strategies import ALGORITHMS
from tests.said import has, lines
from tests.server_app.sites import hospitals, images, job, run_at, site_job, table, write_table

STILL = 1e-30  # a step size that changes no float but zero: what a run returns is what it started from
HEAD = {"head.weight", "head.bias"}  # of mlp
IN_ORDER = [f"body.{layer}.{part}" for layer in (1, 3) for part in ("weight", "bias")] + ["head.weight", "head.bias"]
AUC = {"a", "b", "alpha"}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a first stage: cross-entropy, with Adam."""
    return stage(tmp_path_factory.mktemp("first"), "fedavg", problem="bce", **{"fedavg.optimiser": "adam"}).folder


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on AUC, whose scalars have moved."""
    return stage(tmp_path_factory.mktemp("ranked"), "codasca").folder


def stage(folder: Path, algorithm: str, **keys: Value) -> Result:
    """Two sites, so that means of equal numbers are exact."""
    return simulate(job(folder, algorithm=algorithm, **{"sites": 2, "rounds": 2, **keys}))


def start(folder: Path, algorithm: str = "codasca", **keys: Value) -> Result:
    """A run that stands still."""
    rates = {f"{algorithm}.{key}": STILL for key in own_options(ALGORITHMS[algorithm]) if key.startswith("lr")}
    return stage(folder, algorithm, **{"rounds": 1, "local-steps": 1, **rates, **keys})


def left(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the facts of a run's model."""
    file = folder / "model.safetensors"
    return load_file(file), StoredTensors.read(file).facts


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> set[str]:
    """Return the names of tensors that are equal in both."""
    assert one.keys() == other.keys()
    return {name for name in one if torch.allclose(one[name], other[name], rtol=0, atol=1e-20)}


# ---------------------------------------------------------------------- what is taken


@pytest.mark.slow
def test_the_second_of_two_stages_has_the_body_of_the_first_and_a_fresh_head(first: Path, tmp_path: Path) -> None:
    given, _ = left(first)
    warm, facts = left(start(tmp_path, init_from=str(first), init_head="fresh").folder)
    cold, _ = left(start(tmp_path).folder)
    assert same(warm, given) == given.keys() - HEAD
    assert same(warm, cold) == HEAD, "drawn by the seed, as without a file"
    assert [facts[name] for name in AUC] == pytest.approx([0, 0, 0], abs=1e-20)
    trained, _ = left(stage(tmp_path, "codasca", init_from=str(first), init_head="fresh").folder)
    assert same(trained, warm) == set()


def test_a_kept_head_goes_on_where_the_first_stage_ended(first: Path, tmp_path: Path) -> None:
    for file in (first, first / "model.safetensors"):
        result = start(tmp_path, "fedavg", problem="bce", init_from=str(file))
        given, _ = left(first)
        assert same(left(result.folder)[0], given) == given.keys()
    lines = (first / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert f'"auroc": {result.metrics[-1]["auroc"]}' in lines[-1], "the same model, on the same samples"


@pytest.mark.parametrize(
    ("problem", "head", "kept"), [("auc", "keep", True), ("auc", "fresh", False), ("auc-margin", "keep", False)]
)
def test_scalars_stay_with_a_kept_head_of_the_same_problem(
    ranked: Path, tmp_path: Path, problem: str, head: str, kept: bool
) -> None:
    """α of auc-margin is another than that of auc."""
    given, theirs = left(ranked)
    assert all(theirs[name] != 0 for name in AUC)
    state, facts = left(start(tmp_path, problem=problem, init_from=str(ranked), init_head=head).folder)
    assert [facts[name] for name in AUC] == pytest.approx([theirs[name] * kept for name in AUC], rel=0, abs=1e-20)
    assert same(state, given) == given.keys() - (HEAD if head == "fresh" else set())


def given_start(config: RunConfig, data_summary: DataSummary) -> tuple[dict[str, Tensor], str, NetworkProblem]:
    """Return what a run would send its sites first, what it would say of it, and its problem."""
    given, problem = InitModel.read(config), config.build_problem(config.setting(data_summary, "cpu"))
    assert given
    assert isinstance(problem, NetworkProblem)
    return *given.start(problem), problem


def test_a_long_y_is_kept_as_far_as_it_is_feasible(tmp_path: Path) -> None:
    keys: dict[str, Value] = {"problem": "robust", "dataset": "digits"}
    folder = stage(tmp_path, "codasca", **keys).folder
    facts = left(folder)[1]
    y = torch.tensor(facts["y"])
    for radius in (1.0, float(y.norm() / 2)):
        config = RunConfig.parse(job(tmp_path, init_from=str(folder), **keys, **{"robust.radius": radius}))
        start_y = given_start(config, from_record(DataSummary, facts))[0]["y"]
        torch.testing.assert_close(start_y, y * min(1.0, radius / float(y.norm())))
    file = rewritten(lambda state, facts: facts.update(y=[1.0] * 3), folder, tmp_path)
    refused(tmp_path / "again", "y", "3", "64", 'init-head = "fresh"', init_from=str(file), **keys)


def test_the_body_of_ten_classes_serves_two(tmp_path: Path) -> None:
    keys: dict[str, Value] = {"dataset": "digits"}
    result = stage(tmp_path, "fedavg", problem="cross-entropy", **keys)
    given, _ = left(result.folder)
    warm, _ = left(start(tmp_path, init_from=str(result.folder), init_head="fresh", **keys).folder)
    assert warm["head.weight"].shape != given["head.weight"].shape
    assert all(torch.equal(warm[name], given[name]) for name in given.keys() - HEAD)


def test_a_head_of_two_layers_is_drawn_anew_as_a_whole(first: Path, tmp_path: Path) -> None:
    given, _ = left(first)
    warm, _ = left(start(tmp_path, init_from=str(first), init_head="fresh", head="body.3").folder)
    assert same(warm, given) == {"body.1.weight", "body.1.bias"}


def test_inputs_are_standardised_as_the_model_was_trained(first: Path, tmp_path: Path) -> None:
    """Other samples have other moments, with which the same weights would be another function."""
    theirs = left(first)[1]
    for init_from in ("", str(first)):
        facts = left(start(tmp_path, thin_share=0.3, init_from=init_from).folder)[1]
        assert [facts[key] == theirs[key] for key in ("shift", "scale")] == [bool(init_from)] * 2
        assert facts["prior"] != theirs["prior"], "what is about the samples stays theirs"


def normalised(name: str, shape: tuple[int, ...], outputs: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, outputs))


@pytest.fixture
def mlp_with_statistics(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(networks.MODELS, "mlp", normalised)
    cached_problem.cache_clear()  # of networks that were built as usual
    yield
    cached_problem.cache_clear()


@pytest.mark.usefixtures("mlp_with_statistics")
def test_batch_norm_statistics_come_along(tmp_path: Path) -> None:
    """With ``bn = "local"`` the coordinator has those that all sites begin with, and it sends them in every round."""
    given = stage(tmp_path, "fedavg", problem="bce").folder
    warm, cold = (start(tmp_path, bn="local", init_from=named).folder for named in (str(given), ""))
    assert same(left(given)[0], left(warm)[0]) >= {"1.running_mean", "1.running_var"}
    assert not same(left(given)[0], left(cold)[0]) & {"1.running_mean", "1.running_var"}


# ---------------------------------------------------------------------- who has it


@pytest.mark.slow
def test_every_site_has_it_with_any_number_of_processes(first: Path, tmp_path: Path) -> None:
    one, two = (
        stage(tmp_path, "codasca", sites=3, init_from=str(first), init_head="fresh", workers=workers)
        for workers in (1, 2)
    )
    assert same(left(one.folder)[0], left(two.folder)[0]) == left(first)[0].keys()
    assert [record["sites"] for record in one.metrics] == [record["sites"] for record in two.metrics]


@pytest.mark.parametrize(("algorithm", "head"), [("fedrep", "fresh"), ("ditto", "keep"), ("alone", "keep")])
def test_a_model_of_each_sites_own_begins_there(first: Path, tmp_path: Path, algorithm: str, head: str) -> None:
    keys: dict[str, Value] = {"problem": "bce", "init-head": head, "state-dir": str(tmp_path / "state")}
    keys |= {"fedrep.first-head": "common"} if algorithm == "fedrep" else {}
    start(tmp_path, algorithm, init_from=str(first), **keys)
    given, cold = left(first)[0], left(start(tmp_path, "fedavg", problem="bce").folder)[0]
    files = [*(tmp_path / "state" / "models").iterdir()]
    assert len(files) == 2
    source = {name: cold if name in HEAD and head == "fresh" else given for name in IN_ORDER}
    x = torch.cat([state[name].flatten() for name, state in source.items()])
    for file in files:
        torch.testing.assert_close(load_file(file)["x"], x, rtol=0, atol=1e-20)


def test_what_a_personalised_run_leaves_has_an_untrained_head_also_if_it_was_given_one(
    first: Path, tmp_path: Path
) -> None:
    state, facts = left(start(tmp_path, "ditto", problem="bce", init_from=str(first)).folder)
    assert facts["head"] == "fresh"
    assert same(state, left(start(tmp_path, "fedavg", problem="bce").folder)[0]) == HEAD
    assert same(state, left(first)[0]) == state.keys() - HEAD


# ---------------------------------------------------------------------- what is said and written


def test_the_run_says_and_writes_which_file_it_was(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = f'algorithm="codasca" init-from="{first}" init-head="fresh" runs-dir="{tmp_path}" run-name="warm"'
    assert main(["--run-config", f"{keys} sites=2 rounds=1 hidden=8 workers=1"]) == 0
    file = first / "model.safetensors"
    assert lines(capsys.readouterr().out, file)
    written = (tmp_path / "warm" / "config.toml").read_text(encoding="utf-8")
    assert written.startswith(f"# init-from: the file's SHA-256 is {hashlib.sha256(file.read_bytes()).hexdigest()}\n")
    assert tomllib.loads(written)["init-from"] == str(first)


# ---------------------------------------------------------------------- what is refused


def refused(folder: Path, key: str, *named: str, **keys: Value) -> ModelError:
    """Return the error of a run that does not start; it leaves no model."""
    with pytest.raises(ModelError, check=has(f"init-from = {keys['init_from']!r}", *named, key=key)) as caught:
        start(folder, **keys)
    assert not [*(folder / "runs").rglob("model.safetensors")]
    return caught.value


def rewritten(change: Callable[[dict[str, Tensor], dict[str, Any]], None], first: Path, folder: Path) -> Path:
    """Return a copy of a run's model with something changed."""
    (state, facts), file = left(first), folder / "changed.safetensors"
    change(state, facts)
    write_tensors(file, state, facts)
    return file


@pytest.mark.parametrize(("written", "key"), [(None, "file"), (b"", "content"), (b"PK\3\4, a zip", "content")])
def test_a_file_that_cannot_be_read_is_refused_before_there_is_a_run(
    tmp_path: Path, written: bytes | None, key: str
) -> None:
    file = tmp_path / "model.safetensors"
    if written is not None:
        file.write_bytes(written)
    for named in (file, tmp_path):
        assert refused(tmp_path, key, init_from=str(named)).value == file
    assert not (tmp_path / "runs").exists()


def test_what_is_no_model_of_a_run_with_a_network_is_refused(first: Path, tmp_path: Path) -> None:
    state, facts = left(first)
    write_tensors(tmp_path / "nothing.safetensors", state, {})
    write_tensors(tmp_path / "own.safetensors", {"x": torch.zeros(3)}, facts | {"d": 3})
    refused(tmp_path, "shape", init_from=str(tmp_path / "nothing.safetensors"))
    refused(tmp_path, "d", init_from=str(tmp_path / "own.safetensors"))


@pytest.mark.parametrize(
    ("keys", "key", "named"),
    [
        ({"model": "linear"}, "model", ["'mlp'", "'linear'"]),
        ({"hidden": 9}, "hidden", ["hidden = 8", "hidden = 9"]),
        ({"standardise": False}, "standardise", ["standardise = true"]),
        ({"dataset": "digits"}, "shape", ["30", "1x8x8"]),
        (
            {"problem": "cross-entropy", "algorithm": "fedavg"},
            "hidden",
            ["'head.weight'", "(2,)", 'init-head = "fresh"'],
        ),
    ],
)
def test_a_model_of_another_network_or_other_inputs_is_refused(
    first: Path, tmp_path: Path, keys: dict[str, Value], key: str, named: list[str]
) -> None:
    refused(tmp_path, key, *named, init_from=str(first), **keys)


def test_all_that_does_not_fit_is_said_at_once(first: Path, tmp_path: Path) -> None:
    error = refused(tmp_path, "shape", init_from=str(first), hidden=9, standardise=False, dataset="digits")
    assert error.value == ["shape", "standardise", "hidden"]


@pytest.mark.parametrize(
    ("change", "keys", "key", "named"),
    [
        (lambda state, facts: state["body.1.bias"].fill_(torch.nan), {}, "x", "body.1.bias"),
        (lambda state, facts: facts.update(head="fresh"), {}, "init-head", "init-head"),
        (lambda state, facts: facts.update(columns="0123abcd", data={}), {}, "columns", ""),
        (lambda state, facts: facts.update(columns="0123abcd"), {}, "content", "data.features"),
        (lambda state, facts: state.pop("body.1.bias"), {}, "hidden", "'body.1.bias'"),
        (lambda state, facts: None, {"head": "body.1", "init-head": "fresh"}, "head", "init-head"),
    ],
    ids=["nan", "untrained", "columns", "names", "missing", "all head"],
)
def test_a_file_that_is_not_right_is_refused(
    first: Path, tmp_path: Path, change: Any, keys: dict[str, Value], key: str, named: str
) -> None:
    refused(tmp_path, key, named, init_from=str(rewritten(change, first, tmp_path)), **keys)


def test_a_body_without_its_head_is_what_a_personalised_run_gives(first: Path, tmp_path: Path) -> None:
    folder = stage(tmp_path / "personal", "fedrep").folder
    refused(tmp_path, "init-head", init_from=str(folder))
    given, warm = left(folder)[0], left(start(tmp_path, init_from=str(folder), init_head="fresh").folder)[0]
    assert same(given, warm) == given.keys(), "an untrained head is that of the seed"


@pytest.mark.slow
def test_hospitals_with_other_columns_are_told(tmp_path: Path) -> None:
    nodes = hospitals(tmp_path)
    folder = run_at(site_job(tmp_path), nodes).folder
    nodes = hospitals(tmp_path / "others")
    for number, node in enumerate(nodes):
        features, labels = table(40, seed=number)
        write_table(Path(str(node["data-dir"])), features, labels, names=["w", "x", "y", "z"])
    with pytest.raises(ModelError, check=has(key="columns")):
        run_at(site_job(tmp_path, init_from=str(folder)), nodes)


# ---------------------------------------------------------------------- torchvision's weights


@pytest.mark.slow
def test_torchvisions_weights_are_a_start(tmp_path: Path) -> None:
    theirs = import_torchvision().models.get_model("resnet18", weights=None)
    theirs.bn1.running_mean.fill_(3.0)
    torch.save(theirs.state_dict(), tmp_path / "resnet18.pth")
    config = site_job(tmp_path, model="resnet18", pretrained=str(tmp_path / "resnet18.pth"))
    data_summary = DataSummary(shape=(1, 16, 16), shift=(0.3,), scale=(0.2,))
    start, said, problem = given_start(config, data_summary)
    assert said.endswith(
        "resnet18.pth: torchvision's weights, fc randomly initialised, conv1 (here 3x3) randomly initialised"
    )
    state, anew = problem.network.state_dict(start["x"], problem.buffers()), {"conv1.weight", "fc.weight", "fc.bias"}
    drawn = build("resnet18", (1, 16, 16), seed=config.seed).state_dict()
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(state[name], drawn[name] if name in anew else tensor), name
    assert [*start["x"][-2:].tolist(), *start["y"].tolist()] == [0, 0, 0], "a, b and α at their start"
    given = InitModel.read(config)
    assert given
    assert given.standardising(data_summary) == data_summary, "by the moments of the sites' own images"


def test_what_does_not_fit_torchvisions_network_is_refused(first: Path, tmp_path: Path) -> None:
    nodes, said = [images(tmp_path, k, 100) for k in range(2)], {}
    page = tmp_path / "page.pth"
    page.write_text("<html>", encoding="utf-8")
    torch.save({"fc.weight": torch.zeros(3)}, tmp_path / "other.pth")
    for name in ("nowhere.pth", "page.pth", "other.pth"):
        with pytest.raises(ModelError) as caught:
            run_at(site_job(tmp_path, model="resnet18", pretrained=str(tmp_path / name), sites=2), nodes)
        said[name] = str(caught.value)
        assert said[name].startswith(f"pretrained = {str(tmp_path / name)!r}: ")
        assert len(said[name].splitlines()) == 1
        assert "model = 'resnet18'" in said[name]
    assert "there is no file" in said["nowhere.pth"]
    assert "damaged, or holds more than tensors" in said["page.pth"]
    assert "and 9" in said["other.pth"]
