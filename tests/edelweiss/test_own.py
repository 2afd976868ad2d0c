"""Algorithms, problems, models and data sets of a user's own, from the page that says how: docs/extend.md."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import edelweiss as ew
from edelweiss.common import PlugInError, Registry
from edelweiss.config import ConfigError
from edelweiss.federation import RunError, StrategyError
from edelweiss.models import ModelError
from edelweiss.models.storage import StoredTensors, write_tensors
from edelweiss.problems import ProblemError
from edelweiss.problems.trained_model import TrainedModel
from tests.said import has

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
QUICK: dict[str, Any] = {"rounds": 2, "local_steps": 2, "report": False, "progress": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside the repository with the page's files."""
    place = tmp_path_factory.mktemp("outside")
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL):
        (place / name).write_text(code, encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def mine(folder: Path) -> Any:
    """The page's module, imported, as a user's script does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield importlib.import_module("mine")
        del sys.modules["mine"]
    for registry in Registry.all.values():
        for name in list(registry.given):
            del registry[name]


@pytest.fixture(scope="module")
def run(mine: Any, folder: Path) -> ew.Run:
    """A run of all four."""
    return simulated(mine, folder, workers=1)


def simulated(mine: Any, folder: Path, **more: Any) -> ew.Run:
    own = {"model": mine.Net, "metrics": [mine.sensitivity], "runs_dir": folder / "runs"}
    return ew.simulate(mine.Proximal(mu=0.1), mine.Focal(gamma=1.0), mine.hospitals, **own, **QUICK | more)


def in_a_fresh_process(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(code, encoding="utf-8")
    return subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=600)


def test_all_of_ones_own_is_a_run_like_any(run: ew.Run) -> None:
    assert (run.config.algorithm, run.config.problem) == ("proximal", "focal")
    assert list(run.metrics[-1]["sites"]) == ["north", "south"]
    assert run.config.hyper["mu"] == 0.1
    assert run.config.options == {"gamma": 1.0}
    assert run.evidence
    assert len(run.predict(np.zeros((3, 6), np.float32))) == 3
    assert np.array_equal(ew.load_run(run.folder).arrays["x"], run.arrays["x"])


def test_a_metric_is_of_each_site_and_of_all_together(run: ew.Run) -> None:
    last = run.metrics[-1]
    own = [last["sites"][site]["sensitivity"] for site in ("north", "south")]
    assert all(0 <= value <= 1 for value in (*own, last["pooled"]["sensitivity"], last["sensitivity"]))
    assert "sensitivity" in run.to_frame()
    assert "sensitivity" in run._repr_html_()


def test_a_metric_that_raises_is_said(mine: Any, folder: Path) -> None:
    def broken(labels: Any, scores: Any, weights: Any = None) -> float:
        raise ZeroDivisionError

    with pytest.raises(ProblemError):
        ew.simulate("fedavg", "bce", mine.hospitals, metrics=[broken], runs_dir=folder / "runs", **QUICK, workers=1)


def test_the_algorithm_is_what_its_code_says(run: ew.Run, mine: Any, folder: Path) -> None:
    # Without its pull, it is FedAvg but for the last bits; with it, it is not.
    plain = ew.simulate(mine.Proximal(mu=0.0), ew.Bce(), mine.hospitals, runs_dir=folder / "runs", **QUICK)
    average = ew.simulate(ew.FedAvg(lr=0.1), ew.Bce(), mine.hospitals, runs_dir=folder / "runs", **QUICK)
    assert np.allclose(plain.arrays["x"], average.arrays["x"], atol=1e-6)
    pulled = ew.simulate(mine.Proximal(mu=5.0), ew.Bce(), mine.hospitals, runs_dir=folder / "runs", **QUICK)
    assert not np.allclose(pulled.arrays["x"], average.arrays["x"])


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_worker_processes_have_the_classes(run: ew.Run, mine: Any, folder: Path, threads: int) -> None:
    # With one thread they are forks; with two they are fresh processes, and are told.
    other = simulated(mine, folder, workers=2, threads=threads)
    assert np.allclose(other.arrays["x"], run.arrays["x"], atol=1e-6)


@pytest.mark.slow
def test_a_script_and_a_notebook_may_define_what_fresh_processes_need(folder: Path) -> None:
    code = """
import sys
import edelweiss as ew
from torch import nn
from mine import hospitals
class Own(nn.Sequential):
    def __init__(self, shape, outputs):
        super().__init__(nn.Flatten(), nn.Linear(6, outputs))
if __name__ == "__main__":
    quick = dict(rounds=1, local_steps=1, report=False, workers=2, threads=2)
    first = ew.simulate("fedavg", "bce", hospitals, model=Own, **quick)
    del sys.modules["__main__"].__file__  # as in a notebook: fresh processes cannot import what it defines
    second = ew.simulate("fedavg", "bce", hospitals, model=lambda shape, outputs: Own(shape, outputs), **quick)
    print((first.arrays["x"] == second.arrays["x"]).all())
"""
    done = in_a_fresh_process(folder, code)
    assert done.stdout.strip() == "True", done.stderr


def test_a_model_knows_the_columns_of_a_function_s_table(mine: Any, folder: Path) -> None:
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(80, 3)), columns=["b", "c", "a"])
    rows["clinic"], rows["died"] = ["north", "south"] * 40, (rows["c"] > 0.5) * 1

    def clinics() -> Any:
        return ew.table(rows, sites="clinic", label="died")

    run = ew.simulate("fedavg", "bce", clinics, model=mine.Net, runs_dir=folder / "runs", **QUICK)
    assert TrainedModel.read(run.folder).model_schema.features == ("a", "b", "c")
    assert list(run.predict(rows[["c", "a", "b"]])["score"]) == list(run.predict(rows)["score"])


def test_what_differs_by_its_arguments_is_told_apart(mine: Any, folder: Path) -> None:
    """Of one function: two networks, whose runs are no seeds of each other, and two metrics."""

    def wide(width: int, shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], width), nn.Linear(width, outputs))

    def share(level: float, labels: Any, scores: Any, weights: Any = None) -> float:
        return float((scores >= level).mean())

    models = [partial(wide, 2), partial(wide, 3), lambda shape, outputs: wide(4, shape, outputs)]
    keys = QUICK | {"rounds": 1, "runs_dir": folder / "runs", "metrics": [partial(share, -50.0), partial(share, 50.0)]}
    runs = [ew.simulate("fedavg", "bce", mine.hospitals, model=each, **keys) for each in models]
    assert [len(run.arrays["x"]) for run in runs] == [6 * n + n + n + 1 for n in (2, 3, 4)]
    assert len(ew.compare(*runs).groups) == 3
    for run in runs:
        of = {name: value for name, value in run.metrics[-1]["pooled"].items() if name.startswith("share")}
        assert sorted(of.values()) == [0.0, 1.0]
    for run in runs:  # also those that were not the last
        assert len(ew.load_run(run.folder).predict(np.zeros((3, 6), np.float32))) == 3


@pytest.mark.slow
def test_a_stopped_run_goes_on_in_a_fresh_process_that_is_given_the_classes_again(
    run: ew.Run, mine: Any, folder: Path
) -> None:
    from edelweiss.server_app.console import Progress

    class Stops(Progress):
        def round(self, record: dict[str, Any], rounds: int) -> None:
            if record["round"] == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulated(mine, folder, progress=Stops(quiet=True), run_name="stopped", workers=1)
    goes_on = 'run = ew.simulate(resume="runs/stopped"{}); print(run.arrays["x"].tolist())'
    without = in_a_fresh_process(folder, "import edelweiss as ew\n" + goes_on.format(""))
    assert "PlugInError" in without.stderr
    assert "proximal" in without.stderr
    given = (
        ", algorithm=mine.Proximal, problem=mine.Focal, model=mine.Net, data=mine.hospitals, metrics=[mine.sensitivity]"
    )
    done = in_a_fresh_process(folder, "import edelweiss as ew, mine\n" + goes_on.format(given))
    assert done.stdout.strip() == str(run.arrays["x"].tolist()), done.stderr


def test_keys_name_them_too(run: ew.Run, mine: Any, folder: Path) -> None:
    keys = {"algorithm": "mine:Proximal", "problem": "mine:Focal", "model": "mine:Net", "dataset": "mine:hospitals"}
    keys["metrics"] = "mine:sensitivity"
    named = {**keys, "sites": 2, "partition": "sites", "proximal.mu": 0.1, "focal.gamma": 1.0}
    other = ew.simulate({**named, "runs-dir": str(folder / "runs")}, **QUICK, workers=1)
    assert np.array_equal(other.arrays["x"], run.arrays["x"])


def test_a_model_file_makes_no_process_import_what_it_names(run: ew.Run, tmp_path: Path) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit('it was imported')", encoding="utf-8")
    stored = StoredTensors.read(run.folder / "model.safetensors")
    for key, error in (("model", ModelError), ("problem", ModelError)):
        file = tmp_path / f"{key}.safetensors"
        write_tensors(file, stored.tensors, {**stored.facts, key: "trap:Net"})
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(tmp_path))
            with pytest.raises(error):
                TrainedModel.read(file)
        assert "trap" not in sys.modules


def test_a_run_folder_makes_no_process_import_what_it_names(run: ew.Run, tmp_path: Path) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit('it was imported')", encoding="utf-8")
    text = (run.folder / "config.toml").read_text(encoding="utf-8")
    (tmp_path / "config.toml").write_text(text.replace('"proximal"', '"trap:Proximal"'), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        with pytest.raises(ConfigError):
            ew.simulate(resume=tmp_path, progress=False)
    assert "trap" not in sys.modules


def test_a_class_that_is_written_anew_replaces_the_one_before(folder: Path, mine: Any) -> None:
    # As a cell of a notebook that is run again: same name, other code.
    def net(width: int) -> Any:
        def make(shape: tuple[int, ...], outputs: int) -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(6, width), nn.Linear(width, outputs))

        return make

    sizes = []
    for width in (2, 3):
        run = ew.simulate("fedavg", "bce", mine.hospitals, model=net(width), runs_dir=folder / "runs", **QUICK)
        sizes.append(len(run.arrays["x"]))
    assert sizes == [6 * 2 + 2 + 2 + 1, 6 * 3 + 3 + 3 + 1]


class FedAvg(ew.Algorithm):
    """Named as one that is built in."""

    name = "fedavg"
    solves = frozenset({"minimisation"})
    info = ew.AlgorithmInfo(gradients="q")

    def local_update(self, sent: Any, memory: Any, oracle: Any, context: Any) -> Any:
        return sent, {}


class Undeclared(ew.Algorithm):
    """Its field is no field yet."""

    mu: float = ew.Field(0.1, ge=0)

    def local_update(self, sent: Any, memory: Any, oracle: Any, context: Any) -> Any:
        return sent, {}


class Unfinished(ew.NetworkProblem):
    """It has no loss."""

    kind = "minimisation"


@pytest.mark.parametrize(
    "arguments",
    [
        {"algorithm": FedAvg},
        {"algorithm": Undeclared},
        {"algorithm": 3},
        {"problem": Unfinished},
        {"problem": "mine:Nowhere"},
        {"algorithm": "nowhere:Proximal"},
        {"model": nn.Linear(2, 1)},
        {"data": "mine:Net.forward.__name__"},
    ],
)
def test_what_is_none_of_its_kind_is_refused(arguments: dict[str, Any], mine: Any) -> None:
    with pytest.raises(PlugInError):
        ew.simulate(**{"algorithm": "fedavg", "problem": "bce", **arguments}, **QUICK)


class Careless(ew.FedAvg):
    """Its local update does something else."""

    harm = ""

    def local_update(self, sent: Any, memory: Any, oracle: Any, context: Any) -> Any:
        reply, kept = super().local_update(sent, memory, oracle, context)
        if self.harm == "raises":
            reply["nothing"]
        if self.harm == "in place":
            sent["x"].add_(1)
            return reply, kept
        return {"one dict": reply, "numbers": ({"x": 1.0}, kept), "three": (reply, kept, kept)}[self.harm]


@pytest.mark.parametrize("stack", [0, 1])
@pytest.mark.parametrize(
    ("harm", "named"),
    [
        ("one dict", ["Careless", "(reply, memory)", "one dict"]),
        ("numbers", ["Careless", "(reply, memory)"]),
        ("three", ["Careless", "(reply, memory)"]),
        ("in place", ["Careless", "sent['x']", "clone()"]),
        ("raises", ["KeyError", "'nothing'", f"{__file__}:"]),
    ],
)
def test_a_mistake_in_a_local_update_is_said_once_with_its_place(
    harm: str, named: list[str], stack: int, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = type("Careless", (Careless,), {"harm": harm})
    with pytest.raises(RunError, check=has("3 sites", *named)):
        ew.simulate(own, "bce", sites=3, stack=stack, workers=1, runs_dir=folder / "runs", **QUICK)
    assert caplog.text.count("Traceback") == (harm == "raises")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "Careless"),
        ({"x": 1.0}, "Careless"),
        ({"w": torch.zeros(3)}, "'x'"),
        ({"x": torch.zeros(2, 7)}, "(2, 7)"),
        ({"x": torch.zeros(7, dtype=torch.float64)}, "float64"),
    ],
)
def test_what_an_aggregation_returns_is_checked(state: Any, said: str, folder: Path) -> None:
    own = type("Careless", (ew.FedAvg,), {"aggregate": lambda *_: state})
    with pytest.raises(StrategyError, check=has("Careless", "`aggregate`", said)):
        ew.simulate(own, "bce", sites=3, workers=1, runs_dir=folder / "runs", **QUICK)


@pytest.mark.parametrize(
    ("loss", "said"),
    [(lambda logits: logits, "shape"), (lambda logits: 1.0, "float"), (lambda logits: None, "NoneType")],
)
def test_a_loss_that_is_no_number_is_said(loss: Any, said: str, folder: Path) -> None:
    own = type("Vague", (ew.Bce,), {"loss": lambda self, logits, *_: loss(logits)})
    with pytest.raises((ProblemError, RunError), check=has("Vague", "`loss`", said)):
        ew.simulate("fedavg", own, sites=3, workers=1, runs_dir=folder / "runs", **QUICK)


def test_a_metric_that_is_no_number_where_both_classes_are_is_said(folder: Path) -> None:
    with pytest.raises((ProblemError, RunError), check=has("'nowhere'", "nan")):
        ew.simulate("fedavg", "bce", sites=3, workers=1, metrics=nowhere, runs_dir=folder / "runs", **QUICK)


def nowhere(labels: Any, scores: Any, weights: Any = None) -> float:
    return float("nan")


def test_sites_that_fail_are_called_by_their_names(folder: Path, mine: Any) -> None:
    own = type("Careless", (Careless,), {"harm": "numbers"})
    with pytest.raises(RunError, check=has("north", "south")):
        ew.simulate(own, "bce", mine.hospitals, workers=1, runs_dir=folder / "runs", **QUICK)


INFO = {"info": ew.AlgorithmInfo(gradients="q")}


@pytest.mark.parametrize(
    ("says", "named"),
    [
        ({"solves": frozenset({"minimisation"})}, ["info = ew.AlgorithmInfo("]),
        (INFO, ["solves = frozenset("]),
        ({}, ["solves", "info"]),
        ({"solves": "minimisation", **INFO}, ["solves", "frozenset("]),
        ({"solves": frozenset(), **INFO}, ["solves", "frozenset("]),
        ({"solves": frozenset({"minimization"}), **INFO}, ["'minimisation'", "conditional, minimax, minimisation"]),
        ({"solves": frozenset({"minimisation"}), "info": {}}, ["info", "ew.AlgorithmInfo("]),
    ],
)
def test_an_algorithm_that_does_not_say_what_it_is_for_is_not_registered(says: Any, named: list[str]) -> None:
    own = type("Own", (ew.Algorithm,), {"local_update": FedAvg.local_update, **says})
    with pytest.raises(PlugInError, check=has("Own", *named)):
        ew.register(own)
    assert "own" not in Registry.all["algorithm"]


@pytest.mark.parametrize("says", [{}, {"kind": "minimization"}, {"kind": "Minimax"}, {"kind": ""}, {"kind": None}])
def test_a_problem_that_does_not_say_its_kind_is_not_registered(says: Any) -> None:
    own = type("Own", (ew.NetworkProblem,), {"loss": lambda *_: None, **says})
    with pytest.raises(PlugInError, check=has("Own", "kind")):
        ew.register(own)
    assert "own" not in Registry.all["problem"]


def test_an_algorithm_and_a_problem_may_have_a_kind_of_their_own() -> None:
    says = {"solves": frozenset({"bilevel"}), **INFO, "local_update": FedAvg.local_update}
    own = type("OwnBilevel", (ew.Algorithm,), says)
    of_it = type("Nested", (ew.Bce,), {"kind": "bilevel"})
    try:
        ew.register(of_it, own)
        with pytest.raises(ConfigError, check=has("take algorithm own-bilevel, or")):
            ew.simulate("fedavg", "nested", "digits", **QUICK)
        with pytest.raises(ConfigError, check=has("take algorithm acc-fcsg-m or", "or problem nested")):
            ew.simulate("own-bilevel", "maml", "digits", **QUICK)
        del Registry.all["problem"]["nested"]
        with pytest.raises(ConfigError, check=lambda error: ", or problem" not in str(error)):
            ew.simulate("own-bilevel", "maml", "digits", **QUICK)
    finally:
        for kind, name in (("problem", "nested"), ("algorithm", "own-bilevel")):
            if name in Registry.all[kind].given:
                del Registry.all[kind][name]


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        nn.Linear,
        lambda shape: nn.Sequential(nn.Flatten(), nn.Linear(6, 2)),
        lambda shape: nn.Sequential(nn.Flatten(), nn.Linear(5, 1)),
        lambda shape: torch.zeros(3),
    ],
)
def test_a_model_that_does_not_fit_is_refused(model: Any, mine: Any, folder: Path) -> None:
    with pytest.raises(ModelError):
        ew.simulate("fedavg", "bce", mine.hospitals, model=model, runs_dir=folder / "runs", **QUICK)


def test_what_cannot_be_handed_to_a_fresh_process_is_said(mine: Any, folder: Path) -> None:
    from threading import Lock

    lock = Lock()

    def locked(shape: tuple[int, ...], outputs: int) -> nn.Module:
        with lock:
            return nn.Sequential(nn.Flatten(), nn.Linear(6, outputs))

    with pytest.raises(PlugInError):
        ew.simulate("fedavg", "bce", mine.hospitals, model=locked, runs_dir=folder, **QUICK, workers=2, threads=2)


def test_a_class_without_a_name_is_called_as_itself_and_not_as_its_parent() -> None:
    class MyAUCLoss(ew.Auc):
        pass

    class FedAvgTwice(ew.FedAvg):
        pass

    assert (MyAUCLoss.name, FedAvgTwice.name) == ("my-aucloss", "fed-avg-twice")


@pytest.mark.slow
def test_a_sweep_compares_and_tunes_ones_own(mine: Any, folder: Path) -> None:
    study = {
        "base": {"problem": "bce", "rounds": 1, "local_steps": 1},
        "compare": {"algorithm": ["fedavg", mine.Proximal]},
        "tune": {"proximal.mu": [0.1, 1.0], "fedavg.lr": [0.1, 0.2]},
        "seeds": [0],
        "grow": 0,
    }
    found = ew.sweep(study, mine.hospitals, model=mine.Net, to=folder / "sweep", jobs=1, metrics=["auroc"])
    assert {each.run.settings.get("algorithm", "codasca") for each in found.found} == {"fedavg", "proximal"}
    assert (folder / "sweep" / "winner.toml").exists()


def test_keys_may_be_objects_too(mine: Any, run: ew.Run, folder: Path) -> None:
    keys = {"algorithm": mine.Proximal(mu=0.1), "problem": mine.Focal(gamma=1.0), "dataset": mine.hospitals}
    keys |= {"model": mine.Net, "metrics": [mine.sensitivity], "runs-dir": str(folder / "runs")}
    other = ew.simulate(keys, workers=1, **QUICK)
    assert np.array_equal(other.arrays["x"], run.arrays["x"])
    base = {"problem": mine.Focal(gamma=0.5), "metrics": [mine.sensitivity], "rounds": 1, "local_steps": 1}
    study = {"base": base, "compare": {"algorithm": ["fedavg", "fedprox"]}, "seeds": [0]}
    found = ew.sweep(study, mine.hospitals, to=folder / "objects", jobs=1, metrics="sensitivity")
    assert {each.run.settings["focal.gamma"] for each in found.found} == {0.5}


def test_a_sweep_s_file_may_name_data_whose_sites_have_names(mine: Any, folder: Path) -> None:
    (folder / "named.toml").write_text(
        'seeds = [0]\n[base]\ndataset = "mine:hospitals"\nproblem = "bce"\nrounds = 1\nlocal-steps = 1\n'
        '[compare]\nalgorithm = ["fedavg", "fedprox"]\n'
    )
    found = ew.sweep(folder / "named.toml", to=folder / "named", jobs=1)
    assert [each.run.settings["sites"] for each in found.found] == [2, 2]


@pytest.mark.parametrize(
    "compared",
    [
        {"algorithm": ["fedavg", ew.FedProx]},
        [{"algorithm": ew.FedAvg}, {"algorithm": ew.FedProx, "problem": ew.Bce}],
    ],
)
def test_a_sweep_takes_built_in_classes(compared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[str] = []
    monkeypatch.setattr(
        "edelweiss.lab.sweep.folder.sweep", lambda file, *_, **__: (None, files.append(file.read_text()))
    )
    ew.sweep({"base": {"problem": "bce"}, "compare": compared, "seeds": [0]}, "digits")
    assert {"fedavg", "fedprox"} <= set(re.findall(r'"([\w-]+)"', files[0]))


@pytest.mark.slow
def test_recipes_are_recommended_for_ones_own(mine: Any, folder: Path) -> None:
    how = {"draws": 1, "seeds": 2, "jobs": 1}
    found = ew.recommend(mine.hospitals, model=mine.Net, to=folder / "found", rounds=1, local_steps=1, **how)
    assert {each.run.settings["algorithm"] for each in found.found} == {"fedavg", "local-sgda", "ditto"}
    assert {each.run.settings["model"] for each in found.found} == {ew.load_run(found.found[0].path).config.model}
    assert (folder / "found" / "winner.toml").exists()
