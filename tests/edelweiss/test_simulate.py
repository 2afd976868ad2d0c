"""``import edelweiss as ew``: runs from Python objects, and what can be done with one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import edelweiss as ew
from edelweiss.common import Registry
from edelweiss.config import ConfigError
from edelweiss.datasets import DataError
from tests.said import has

QUICK: dict[str, Any] = {"rounds": 2, "local_steps": 2, "report": False, "workers": 1, "progress": False}
CLINICS = ("north", "south", "west")


@pytest.fixture(scope="module")
def patients() -> pd.DataFrame:
    """Three clinics' patients: five features, the clinic, and whether they died."""
    draws = np.random.default_rng(0)
    frame = pd.DataFrame(draws.normal(size=(240, 5)).round(3), columns=list("abcde"))
    frame["died"] = (frame["a"] + draws.normal(size=240) > 0.8).astype(int)
    frame["clinic"] = draws.choice(CLINICS, 240)
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs go."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def run(patients: pd.DataFrame, folder: Path) -> ew.Run:
    """A run on the clinics' patients."""
    return ew.simulate(ew.Codasca(lr=0.05), ew.Auc(), by_clinic(patients), runs_dir=folder, **QUICK)


def by_clinic(patients: pd.DataFrame | str) -> Any:
    return ew.table(patients, sites="clinic", label="died")


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys, edelweiss; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert not {"torch", "flwr", "pandas", "numpy", "pydantic"} & set(done.stdout.split())


def test_every_public_name_is_there_and_every_algorithm_and_problem_is_public() -> None:
    from edelweiss.problems import PROBLEMS
    from edelweiss.strategies import ALGORITHMS

    for name in ew.__all__:
        assert getattr(ew, name) is not None
    public = {getattr(ew, name) for name in ew.__all__}
    assert {*ALGORITHMS.values(), *PROBLEMS.values()} <= public
    with pytest.raises(AttributeError):
        ew.Codsca  # noqa: B018


def test_a_frame_a_file_and_keys_are_the_same_run(
    run: ew.Run, patients: pd.DataFrame, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "patients.csv"
    patients.to_csv(file, index=False)
    from_file = ew.simulate("codasca", "auc", by_clinic(str(file)), runs_dir=folder, **QUICK | {"codasca.lr": 0.05})
    keys = {
        "codasca": {"lr": 0.05},
        "dataset": "table",
        "data-file": str(file),
        "label": "died",
        "group-column": "clinic",
        "partition": "sites",
        "sites": 3,
        "rounds": 2,
        "local-steps": 2,
        "report": False,
        "runs-dir": str(folder),
    }
    from_keys = ew.simulate(keys, workers=1, progress=False)
    for other in (from_file, from_keys):
        assert np.array_equal(run.arrays["x"], other.arrays["x"])


def test_what_is_given_as_arguments_is_written_and_read_back(run: ew.Run) -> None:
    assert run.config.strategy == ew.Codasca(lr=0.05, local_steps=2)
    again = ew.load_run(run.folder)
    assert {name: vector.tolist() for name, vector in again.arrays.items()} == {
        name: vector.tolist() for name, vector in run.arrays.items()
    }
    assert again.metrics == run.metrics
    assert run.evidence
    assert list(run.to_frame().index) == [1, 2]
    assert list(run.to_frame(sites=True).index) == [(number, clinic) for number in (1, 2) for clinic in CLINICS]


def test_a_run_scores_a_frame_a_file_and_an_array_alike(run: ew.Run, patients: pd.DataFrame, tmp_path: Path) -> None:
    new = patients.head(7).set_index(pd.Index(range(100, 107)))
    scored = run.predict(new)
    assert list(scored.index) == list(range(100, 107))
    assert scored["probability"].between(0, 1).all()
    named = new.assign(patient=["007", "NA", "1e3", "", "0x1", "-0", "nan"])
    assert list(run.predict(named)["patient"]) == list(named["patient"])
    named.to_csv(tmp_path / "named.csv", index=False)
    assert list(run.predict(tmp_path / "named.csv")["patient"]) == list(named["patient"])
    new.to_csv(tmp_path / "new.csv", index=False)
    others = [name for name in new.columns if name not in set("abcde")]
    assert "died" in others
    assert scored[others].equals(new[others])
    assert run.predict(tmp_path / "new.csv")["score"].tolist() == pytest.approx(scored["score"].tolist(), abs=1e-6)
    assert run.predict(new[list("abcde")].to_numpy()).tolist() == pytest.approx(scored["score"].tolist(), abs=1e-6)
    with pytest.raises(DataError, check=has("DataFrame", "'c'")):
        run.predict(new.drop(columns="c"))
    with pytest.raises(DataError):
        run.predict(np.full((2, 5), np.inf))
    with pytest.raises(DataError):
        run.predict(np.zeros((2, 4)))
    for nonsense in (None, {"a": 1}, np.array([["x"] * 5])):
        with pytest.raises(DataError):
            run.predict(nonsense)


def test_a_run_shows_itself(run: ew.Run) -> None:
    assert str(run.folder) in repr(run)
    html = run._repr_html_()
    assert all(clinic in html for clinic in CLINICS)
    assert len(run.plot().axes) >= 2


def test_runs_are_compared(run: ew.Run, patients: pd.DataFrame, folder: Path) -> None:
    other = ew.simulate(ew.FedAvg(lr=0.05), ew.Bce(), by_clinic(patients), runs_dir=folder, **QUICK)
    found = ew.compare(run, str(other.folder), metrics=["auroc"])
    assert repr(found) == found.markdown() == ew.compare([run, other], metrics="auroc").markdown()
    lines = list(found.runs.to_dict("records"))
    assert len(lines) == 2


SAMPLES = {
    "pairs by name": lambda: {"north": (np.ones((9, 4)), [0, 1] * 4 + [0]), "south": (np.eye(8, 4), [1, 0] * 4)},
    "tensors in a list": lambda: [(torch.rand(8, 4), torch.arange(8) % 2) for _ in range(2)],
    "torch Datasets": lambda: [TensorDataset(torch.rand(8, 1, 6, 6), torch.arange(8) % 2) for _ in range(2)],
    "levels of images": lambda: [(np.full((8, 6, 6), 7, np.uint8), np.arange(8) % 2) for _ in range(2)],
    "one pair with sites": lambda: (np.random.default_rng(0).normal(size=(16, 4)), [0, 1] * 8, ["a", "b"] * 8),
}


@pytest.mark.parametrize("form", SAMPLES)
def test_data_come_in_many_forms(form: str, folder: Path) -> None:
    run = ew.simulate(ew.FedAvg(), ew.Bce(), SAMPLES[form](), model="linear", runs_dir=folder, test_share=0.0, **QUICK)
    assert run.config.sites == 2
    assert len(run.metrics[-1]["sites"]) == 2
    assert not Path(run.config.data_file).exists(), "it went with the run"


def test_processes_are_given_the_same_data(folder: Path) -> None:
    data = {"north": (np.random.default_rng(1).normal(size=(30, 4)), np.arange(30) % 2)}
    data["south"] = (data["north"][0] * 2, data["north"][1])
    one, two = (ew.simulate("fedavg", "bce", data, runs_dir=folder, **QUICK | {"workers": n}) for n in (1, 2))
    assert np.array_equal(one.arrays["x"], two.arrays["x"])


def test_a_hugging_face_dataset_is_recognised_by_what_it_can_do(run: ew.Run, patients: pd.DataFrame) -> None:
    class Dataset:
        column_names = tuple(patients.columns)

        def to_pandas(self) -> pd.DataFrame:
            return patients

    other = ew.simulate(ew.Codasca(lr=0.05), "auc", by_clinic(Dataset()), runs_dir=run.folder.parent, **QUICK)  # type: ignore[arg-type]
    assert np.array_equal(run.arrays["x"], other.arrays["x"])


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        ({"algorithm": "codascaa", "rounds": 0}, ["codascaa", "rounds"]),
        ({"round": 3}, ["round"]),
        ({"algorithm": ew.Codasca(local_steps=5), "local_steps": 6}, ["local-steps"]),
        ({"algorithm": ew.Auc()}, ["algorithm"]),
        ({"problem": ew.Codasca()}, ["problem"]),
        ({"algorithm": "sagda", "problem": "saddle", "data": ([[1.0]], [0])}, ["problem"]),
        ({"metrics": "auroc"}, ["metrics"]),
    ],
)
def test_all_that_is_wrong_with_arguments_is_said_by_its_key(arguments: dict[str, Any], keys: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        ew.simulate(**arguments)
    assert len(error.value.problems) == len(keys)
    assert all(key in problem for key, problem in zip(keys, error.value.problems, strict=True))


@pytest.mark.parametrize(
    "data",
    [
        3.5,
        [],
        {"north": np.zeros((3, 2))},
        {"north": (np.zeros((3, 2)), [0, 1])},
        {"north": (np.zeros((3, 2)), [0, 1, 0.5])},
        {"north": (np.full((3, 2), np.inf), [0, 1, 0])},
        {"north": (np.zeros((3, 2)), [0, 1, 0]), "south": (np.zeros((3, 4)), [0, 1, 0])},
        (np.zeros((40, 8, 8, 3), np.uint8), [0, 1] * 20),
    ],
)
def test_data_that_do_not_fit_are_refused(data: Any) -> None:
    with pytest.raises(DataError):
        ew.simulate("fedavg", "bce", data, **QUICK)


@pytest.mark.parametrize("wrong", [np.nan, -1, 0.5, 1000])
def test_a_label_that_is_none_has_its_row(wrong: float) -> None:
    with pytest.raises(DataError, check=has("row 3", f"{wrong:g}", row=3)):
        ew.arrays(np.ones((4, 2)), [0, 1, wrong, 1])


@pytest.mark.parametrize("classes", [[1, 2], [0, 1, 2]])
def test_which_of_several_classes_are_positive_is_said_by_who_gives_them(classes: list[int], folder: Path) -> None:
    data = np.random.default_rng(0).normal(size=(60, 2)), np.resize(classes, 60)
    with pytest.raises(DataError, check=has(key="positive-classes")):
        ew.simulate("codasca", "auc", data, **QUICK)
    run = ew.simulate("codasca", "auc", data, positive_classes="2", sites=2, runs_dir=folder, **QUICK)
    assert 0 < run.metrics[-1]["central"]["positives"] < run.metrics[-1]["central"]["n"]


def test_an_error_about_a_frame_names_the_frame_and_not_its_temporary_file(patients: pd.DataFrame) -> None:
    mixed = patients.astype({"a": object})
    mixed.loc[3, "a"] = "hello"
    wrong = {
        ("'survived'", "died"): ew.table(patients, sites="clinic", label="survived"),
        ("'ward'", "clinic"): ew.table(patients, sites="ward", label="died"),
        ("'a'", "row 4 ('hello')"): by_clinic(mixed),
    }
    for named, table in wrong.items():
        with pytest.raises(DataError, check=has("DataFrame", *named)) as error:
            ew.simulate("fedavg", "bce", table, **QUICK)
        assert ".parquet" not in str(error.value)
    with pytest.raises(DataError, check=has("a")):
        ew.table(pd.concat([patients, patients[["a"]]], axis=1))


def test_recommend_has_algorithms_of_its_own(patients: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, check=has("'codasca'", keys=["algorithm"])):
        ew.recommend(by_clinic(patients), to=tmp_path / "found", algorithm="codasca")
    assert not any(tmp_path.iterdir())


def test_a_site_whose_name_no_file_can_have_is_named_with_why(tmp_path: Path) -> None:
    pair = np.ones((9, 4)), [0, 1] * 4 + [0]
    with pytest.raises(DataError) as caught:
        ew.simulate("fedavg", "bce", {"north/east": pair, "south": pair}, rounds=1, runs_dir=tmp_path, progress=False)
    assert "'north/east'" in str(caught.value)


def test_what_is_registered_is_known_by_its_name() -> None:
    @dataclass(frozen=True, kw_only=True)
    class OwnAverage(ew.FedAvg):
        name = "own-average"

    @dataclass(eq=False, kw_only=True)
    class OwnLoss(ew.Bce):
        name = "own-loss"

    given = {"model": partial(nn.Linear, 3), "dataset": lambda: (np.ones((9, 4)), [0, 1] * 4 + [0]), "metric": np.mean}
    before = {kind: set(registry) for kind, registry in Registry.all.items()}
    for kind, thing in given.items():
        ew.register(**{kind: thing})
        assert [set(registry) - before[name] for name, registry in Registry.all.items() if set(registry) - before[name]]
        for name in set(Registry.all[kind]) - before[kind]:
            assert Registry.all[kind].given[name] is thing
            del Registry.all[kind][name]
        assert {each: set(registry) for each, registry in Registry.all.items()} == before
    ew.register(OwnAverage, OwnLoss)
    for kind, name in (("algorithm", "own-average"), ("problem", "own-loss")):
        assert set(Registry.all[kind]) - before[kind] == {name}
        del Registry.all[kind][name]


def test_two_descriptions_of_arrays_can_be_compared() -> None:
    """By identity: a tensor has no single truth value."""
    inputs, labels = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
    first, second = ew.arrays(inputs, labels), ew.arrays(inputs, labels)
    assert first == first != second


def test_a_sweep_of_a_file_takes_its_data_and_model_from_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, check=has("[base]")):
        ew.sweep(tmp_path / "study.toml", "digits")
    with pytest.raises(ConfigError, check=has("[base]")):
        ew.sweep(tmp_path / "study.toml", model="mlp")
