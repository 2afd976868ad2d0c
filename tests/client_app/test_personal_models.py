"""After a run of a personalised algorithm each site has its own model, in its own state folder, and nothing else."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from edelweiss.client_app.memory import Memory, path_of
from edelweiss.client_app.request import Request
from edelweiss.client_app.site import OpenSite
from edelweiss.common import Value, from_record
from edelweiss.config import RunConfig, SiteConfig
from edelweiss.datasets import DataSummary, load_site
from edelweiss.federation import DivergedError
from edelweiss.models.storage import StoredTensors
from edelweiss.server_app import simulate
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import Result, coordinate
from tests.said import lines, warnings
from tests.server_app.sites import SiteGrid, hospitals, images, saddle_job, site_job

NAMES = ("north", "south", "west")


def run(folder: Path, **keys: Value) -> tuple[Result, SiteGrid]:
    """Run ``alone`` at three hospitals, each with a state folder of its own."""
    config = site_job(folder, **{"algorithm": "alone", "problem": "auc", **keys})
    nodes = [{**node, "state-dir": str(folder / f"state-{node['site']}")} for node in hospitals(folder)]
    with SiteGrid(config, nodes) as grid:
        return coordinate(config, grid, Progress(quiet=True)), grid


def run_key(result: Result) -> str:
    """Return what the sites called the run."""
    return str(json.loads((result.folder / "status.json").read_text())["run"])


def model_file(folder: Path, name: str) -> Path:
    """Return the one file that a site's state folder holds, beside card, log, and what rules and caches keep."""
    files = [path for path in (folder / f"state-{name}").rglob("*") if path.is_file() and path.suffix != ".md"]
    [file] = [path for path in files if not {"policy", "images", "audit.jsonl", "audit.seal"} & set(path.parts)]
    return file


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "vectors"), [("auc", ["x", "y"]), ("bce", ["x"])])
def test_each_sites_model_stays_and_is_the_one_that_was_reported(
    tmp_path: Path, problem: str, vectors: list[str]
) -> None:
    result, grid = run(tmp_path, problem=problem, model="mlp")
    models = {}
    for context, name in zip(grid.contexts, NAMES, strict=True):
        file = model_file(tmp_path, name)
        assert file.relative_to(tmp_path / f"state-{name}") == Path("models") / f"{run_key(result)}-{name}.safetensors"
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        models[name], facts = load_file(file), StoredTensors.read(file).facts
        assert sorted(models[name]) == vectors
        assert {key: facts[key] for key in ("algorithm", "problem", "model", "d", "shape")} == {
            "algorithm": "alone",
            "problem": problem,
            "model": "mlp",
            "d": len(models[name]["x"]),
            "shape": [4],
        }
        # What is in the file is all that it takes to get the reported numbers, but for the data.
        data_summary = from_record(DataSummary, facts)
        data = load_site(OpenSite.from_context(context).data_config, 0, 1)
        held_out = data_summary.standardised(data.held_out)
        problem_here = grid.config.build_problem(grid.config.setting(data_summary, "cpu")).of_site(data.train.targets())
        metrics = problem_here.metrics(models[name]["x"], models[name].get("y"), held_out)
        reported = result.metrics[-1]["sites"][name]
        assert {key: metrics.get(key, 0.0) for key in reported} == reported, "of all scores no order is unknown"
    assert not torch.equal(models["north"]["x"], models["south"]["x"])


@pytest.mark.usefixtures("small_resnet")
@pytest.mark.parametrize(("algorithm", "vectors"), [("alone", {"x", "buffers"}), ("fedavg", {"buffers"})])
def test_batch_norm_statistics_are_part_of_it(tmp_path: Path, algorithm: str, vectors: set[str]) -> None:
    """And all of it where the rest of the model is common."""
    keys: dict[str, Value] = {"model": "resnet18", "sites": 2, "rounds": 1, "local_steps": 1, "batch_size": 4}
    config = site_job(tmp_path, algorithm=algorithm, problem="bce", standardise=False, **keys, bn="local")
    nodes = [{**images(tmp_path, k, 100), "state-dir": str(tmp_path / f"state-s{k}")} for k in range(2)]
    with SiteGrid(config, nodes) as grid:
        coordinate(config, grid, Progress(quiet=True))
    models = [load_file(model_file(tmp_path, f"s{k}")) for k in range(2)]
    assert [{*model} for model in models] == [vectors] * 2
    statistics = [model["buffers"] for model in models]
    fresh = config.build_problem(config.setting(DataSummary(shape=(1, 16, 16)), "cpu")).buffers()
    assert statistics[0].shape == fresh.shape
    assert not torch.equal(statistics[0], fresh)
    assert not torch.equal(statistics[0], statistics[1])


def test_a_common_model_leaves_nothing_at_the_sites(tmp_path: Path) -> None:
    run(tmp_path, algorithm="codasca")
    assert {path.name for name in NAMES for path in (tmp_path / f"state-{name}").glob("[!a]*")} == {"policy"}


# ---------------------------------------------------------------------- in the engines


@pytest.mark.parametrize("workers", [1, 2])
def test_the_local_engine_keeps_models_where_it_is_told_to(tmp_path: Path, workers: int) -> None:
    result = simulate(saddle_job(tmp_path, algorithm="alone", workers=workers, state_dir=str(tmp_path / "state")))
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    names = sorted(re.sub(r"^[0-9a-f]{32}-", "", file.name) for file in files)
    assert names == [f"site-{k}.safetensors" for k in range(4)]
    assert {file.parent for file in files} == {tmp_path / "state" / "models"}
    assert not list(result.folder.glob("*.safetensors")), "the coordinator has none"


def test_a_run_that_stops_leaves_its_memory_where_it_was_told_to(tmp_path: Path) -> None:
    keys = saddle_job(tmp_path, algorithm="alone", state_dir=str(tmp_path / "state"), loss_bound=1e-9)
    with pytest.raises(DivergedError):
        simulate(keys)
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert sorted({file.parent.name for file in files}) == [f"site-{k}.memory" for k in range(4)]
    assert all(re.fullmatch(r"run-[0-9a-f]{32}", file.parent.parent.name) for file in files)


def test_by_default_the_local_engine_leaves_nothing_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    simulate(saddle_job(tmp_path, algorithm="alone"), quiet=False)
    assert list(temporary.rglob("*.safetensors")) == []
    assert lines(capsys.readouterr().out, "state-dir=")
    simulate(saddle_job(tmp_path, algorithm="alone", state_dir=str(tmp_path / "state")), quiet=False)
    assert lines(capsys.readouterr().out, tmp_path / "state" / "models")


@pytest.mark.slow
def test_a_sites_own_state_dir_goes_before_the_runs(tmp_path: Path) -> None:
    run(tmp_path, state_dir=str(tmp_path / "elsewhere"))
    assert [model_file(tmp_path, name).exists() for name in NAMES] == [True] * 3
    assert not (tmp_path / "elsewhere").exists()


def test_a_run_says_where_simulated_sites_write_and_never_where_a_hospital_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    config = RunConfig.parse(site_job(tmp_path, algorithm="alone", problem="auc").flat() | {"state-dir": "/theirs"})
    request = Request(
        context=config.strategy.context(1, 1, "train", 1),
        site=0,
        name="north",
        run="7",
        committed=0,
        data_summary=DataSummary(shape=(4,)),
    )
    private = tmp_path / "temporary" / f"edelweiss-{os.getuid()}"
    own_data = {"data-dir": "data", "partition-id": 0, "num-partitions": 1}
    for node, folder in (({"data-dir": "data"}, private), (own_data, private), ({"partition-id": 0}, Path("/theirs"))):
        path = OpenSite(config, SiteConfig.parse(node)).in_run(request).memory().folder
        assert path == folder / "run-7" / "north.memory"


# ---------------------------------------------------------------------- somebody else's state


class Planting(SiteGrid):
    """The local engine; before round 2, or before the last evaluation, somebody else's file lies at one site."""

    def plant(self, run: str, model: bool) -> None:
        """Write it."""
        theirs = Memory(f"{self.scratch.path}/state", run, "site-1", {"algorithm": "codasca", "problem": "saddle"})
        self.file = theirs.model_path if model else path_of(theirs.folder, (1, 0))
        vectors = {"cx": torch.ones(5)}
        if model:
            theirs.save_own_model(vectors, {})
        else:
            theirs.save(vectors, (1, 0), 1)
        self.planted = self.file.read_bytes()


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_state_folder_of_another_algorithm_is_refused_by_that_site_and_named(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator hears which file and whose, without a path; the site's log has the path; the file stays."""

    class Here(Planting):
        def push_messages(self, messages):  # type: ignore[no-untyped-def]
            messages = list(messages)
            config = messages[0].content.config_records["config"]
            if messages[0].metadata.message_type == kind and config["round"] in (2, 4):
                self.plant(str(config["run"]), model=kind == "evaluate")
            return super().push_messages(messages)

        def __exit__(self, *error):  # type: ignore[no-untyped-def]
            assert self.file.read_bytes() == self.planted
            super().__exit__(*error)

    config = RunConfig.parse(saddle_job(tmp_path, algorithm="alone", min_replies=3))
    nodes: list[dict[str, Value]] = [{"partition-id": k} for k in range(4)]
    with caplog.at_level(logging.ERROR, "edelweiss"), Here(config, nodes) as grid:
        result = coordinate(config, grid, Progress())
    refusals = warnings(capsys.readouterr().out, "'site-1'", grid.file.name)
    [line] = {*lines("\n".join(refusals), "algorithm = 'codasca'", "algorithm = 'alone'")}
    assert str(grid.scratch.path) not in line
    assert str(grid.file) in caplog.text
    assert sorted(result.metrics[-1]["sites"]) == ["site-0", "site-2", "site-3"]
