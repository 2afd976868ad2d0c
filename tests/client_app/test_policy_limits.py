"""What bounds an answer while it is computed: patients in a batch, and seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from edelweiss.client_app.handlers import HANDLERS
from edelweiss.client_app.policy import limits
from edelweiss.common import Value
from edelweiss.datasets import Facts, Samples
from edelweiss.problems import PROBLEMS
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from edelweiss.strategies import ALGORITHMS, can_solve
from tests.client_app.policies import Hospital, site_toml, train
from tests.fitting import fitting
from tests.server_app.sites import SiteGrid, hospitals, question, site_job, table, write_table

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict

    from edelweiss.client_app.request_pipeline import Steps
    from edelweiss.client_app.site import OpenSite

FEWEST = 10  # fewest-in-update, by default
SOLVED = [
    (algorithm, problem)
    for algorithm in ALGORITHMS
    for problem in PROBLEMS
    if PROBLEMS[problem].needs_data and can_solve(ALGORITHMS[algorithm], PROBLEMS[problem])
]
# Of each algorithm a problem of each kind, and of each problem an algorithm: what a batch is for depends on no more.
RUNS = sorted(
    {
        **{(algorithm, PROBLEMS[problem].kind): (algorithm, problem) for algorithm, problem in reversed(SOLVED)},
        **{problem: (algorithm, problem) for algorithm, problem in reversed(SOLVED)},
    }.values()
)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[list[set[int]]]:
    """Of each answer of a training message that left a site: the training samples in each batch of it."""
    gather, handler, answers = Samples.batch, HANDLERS["train"], list[list[set[int]]]()
    batches: list[tuple[int, set[int]]] = []

    def noted(self: Samples, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batches.append((len(self), set(self.rows[index].tolist())))
        return gather(self, index)

    def watched(message: Message, site: OpenSite) -> Steps[RecordDict]:
        batches.clear()
        steps = handler(message, site)
        assert isinstance(steps, Iterator)
        content = yield from steps
        data = site.data()
        assert data is not None
        answers.append([rows for size, rows in batches if size == len(data.train)])
        return content

    monkeypatch.setattr(Samples, "batch", noted)
    monkeypatch.setitem(HANDLERS, "train", watched)
    return answers


def hostile(algorithm: str) -> Iterator[tuple[str, dict[str, Value]]]:
    """Yield settings of a coordinator that wants an answer about one patient, and one that does not."""
    names = [f.name.replace("_", "-") for f in fields(ALGORITHMS[algorithm])]
    most = {"weight-decay": 1.0, "lr": 1.0, "fresh-weight": 1.0, "beta": 1.0}
    whole = {f"{algorithm}.{name}": value for name, value in most.items() if name in names}
    yield "small batches in ten steps", {"batch_size": 2, "positives_per_batch": 1, "local_steps": 10, **whole}
    for name in names:
        if name == "batch" or name.endswith("-batch"):
            yield f"{name} = 1", {"batch_size": 16, "local_steps": 2, f"{algorithm}.{name}": 1}
    yield "", {"batch_size": 16, "local_steps": 2}


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "problem"), RUNS, ids=lambda name: str(name))
def test_no_batch_of_an_answer_is_over_few_patients(
    tmp_path: Path, left: list[list[set[int]]], algorithm: str, problem: str
) -> None:
    """Whatever the batch is for, and however many of them one answer is made of."""
    nodes: list[dict[str, Value]] = [{**node, "policy": ""} for node in hospitals(tmp_path, (75, 80))]
    tasks: dict[str, Value] = {"maml.ways": 2, "maml.queries": 2} if problem == "maml" else {}
    for what, keys in hostile(algorithm):
        left.clear()
        keys |= {"local_steps": 1} if algorithm == "npa" else {}  # which takes no more
        job = site_job(
            tmp_path,
            sites=2,
            rounds=2,
            hidden=4,
            algorithm=algorithm,
            problem=problem,
            evidence=False,
            **tasks,
            **keys,
            **{"model": "mlp"} | fitting(algorithm),
        )
        ended = False
        with SiteGrid(job, nodes) as grid, suppress(Exception):
            coordinate(job, grid, Progress(quiet=True))
            ended = True
        assert all(len(rows) >= FEWEST for batches in left for rows in batches), what
        errors = [str(a.content["error"]["message"]) for a in grid.answers if "error" in a.content]
        assert ended or errors, what
        assert all("fewest-in-update" in text for text in errors), (what, errors)
        if not what:
            assert ended, errors


def several(folder: Path, rows: int, patients: int, **policy: object) -> Hospital:
    """Return a hospital whose patients have many rows."""
    features, labels = table(rows, seed=0, positives=rows // 2)
    hospital = Hospital(folder, features, labels, **policy)
    whose = np.arange(rows) % patients
    write_table(
        hospital.data,
        np.column_stack([features, whose]),
        labels,
        names=[*(f"marker_{place}" for place in range(4)), "who"],
    )
    return hospital


@pytest.mark.parametrize(("size", "told"), [(10, False), (14, False), (32, True), (200, True)])
def test_a_batch_counts_patients_and_not_their_samples(tmp_path: Path, size: int, told: bool) -> None:
    """Fourteen rows of 32 patients are of ten patients by luck only: they are refused before luck runs out."""
    hospital = several(tmp_path, 500, 40, patient="who")
    with hospital.run(batch_size=size, local_steps=1) as grid:
        said = train(grid)
    advice = "as patients have several samples here" if size >= FEWEST else "raise it to at least 10, and higher where"
    refused = "computed from fewer than 10 patients" in said and advice in said
    assert refused != told


@pytest.mark.parametrize("private", [False, True])
def test_with_differential_privacy_batches_may_be_of_few(tmp_path: Path, private: bool) -> None:
    """Each patient's part is clipped and noised: how many there are is no protection, and is not asked."""
    budget = {"privacy": {"epsilon": 20.0}} if private else {}
    hospital = Hospital(tmp_path, *table(400, seed=0, positives=200), **budget)
    with hospital.run(**{"batch_size": 4, "local_steps": 1, **({"dp.epsilon": 4.0} if private else {})}) as grid:
        said = train(grid)
    assert said == "no evaluation" if private else "computed from fewer than 10 patients" in said


@pytest.mark.parametrize("private", [False, True])
def test_with_differential_privacy_a_patient_may_come_or_go(tmp_path: Path, private: bool) -> None:
    """The difference of two answers is about one, and noised as each of them."""
    keys: dict[str, Value] = {"dp.epsilon": 4.0} if private else {}
    features, labels = table(400, seed=0, positives=200)
    hospital = Hospital(tmp_path, features, list(labels))
    assert isinstance(hospital.described(), Facts)
    write_table(hospital.data, features[1:], list(labels[1:]))
    hospital.node["policy"] = site_toml(tmp_path, **({"privacy": {"epsilon": 20.0}} if private else {}))
    hospital.node["label"] = "label"
    said = hospital.described(**keys)
    assert isinstance(said, Facts) if private else "differ by fewer than" in str(said)


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"batch_size": 9}, "batch-size = 9: "),
        ({"algorithm": "npa", "problem": "auc", "npa.batch": 9, "local_steps": 1}, "npa.batch = 9: "),
        ({"algorithm": "sagda", "sagda.control-batch": 3, "phase": "control"}, "sagda.control-batch = 3: "),
    ],
    ids=str,
)
def test_the_key_to_change_is_named(tmp_path: Path, keys: dict[str, Value], key: str) -> None:
    phase = {"phase": keys.pop("phase")} if "phase" in keys else {}
    hospital = Hospital(tmp_path, *table(400, seed=0, positives=200))
    with hospital.run(**keys) as grid:
        assert train(grid, **phase).startswith(key)


@pytest.mark.parametrize(("positives", "told"), [(4, False), (5, True), (15, True), (16, False)])
def test_sums_over_a_class_are_of_enough_samples_in_a_batch_too(tmp_path: Path, positives: int, told: bool) -> None:
    """Of one positive the sum of the positives' scores is its own: by a linear model, the patient's features."""
    size = 20
    keys: dict[str, Value] = {"algorithm": "coda", "coda.dual-batch": size, "sampler": "fixed-positives"}
    keys |= {"batch_size": 2 * size, "positives_per_batch": 2 * positives, "stage_iterations": 3}
    hospital = Hospital(tmp_path, *table(400, seed=0, positives=200))
    with hospital.run(**keys) as grid:
        assert not train(grid)
        content = question(grid.config, "train", {"x": torch.linspace(-1, 1, 7), "y": torch.zeros(1)}, phase="dual")
        answer = grid.ask("train", 0, content)
    refused = "error" in answer.content
    assert refused != told
    assert not refused or "coda.dual-batch = 20: sums over the samples of a class" in str(answer.content["error"])


def test_a_policy_bounds_what_a_message_may_take(tmp_path: Path) -> None:
    """A message that would keep a site for minutes is given up; the site is free for the next one."""
    split: dict[str, Value] = {"seed": "tests"}  # one in fifty holds out too few positives to judge by
    hospital = Hospital(tmp_path, *table(200, seed=0), most_seconds=1, **split)
    with hospital.run(local_steps=10**6) as grid:
        assert "longer than 1 s" in train(grid)
    site_toml(tmp_path, most_seconds=0, **split)
    with hospital.run(local_steps=2) as grid:
        assert train(grid, run="another") == ""


def test_the_time_of_a_private_answer_is_bounded_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hospital = Hospital(tmp_path, *table(200, seed=0), most_seconds=1, privacy={"epsilon": 20.0})
    with hospital.run(**{"dp.epsilon": 4.0}) as grid:
        monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: math.inf))
        assert "longer than 1 s" in train(grid)
        monkeypatch.undo()
        assert train(grid) == "no evaluation"
