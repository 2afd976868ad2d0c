"""What the papers state: the settings of their experiments in our files, and the sums of the numbers beside ours."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.studies import REPO, STUDIES
from benchmarks.studies.deprl_tables import NEWCOMERS
from edelweiss.common import Value
from edelweiss.config import flatten

IMBALANCED: dict[str, Value] = {
    "batch-size": 32,
    "local-steps": 32,
    "rounds": 625,
    "stage-iterations": 2000,
    "sites": 16,
    "thin-share": 0.1,
    "model": "densenet121",
    "codasca.gamma": 0.002,
}
NEGATIVES: dict[str, Value] = {"batch-size": 50, "sites": 16, "thin-class": "negative", "thin-share": 1 / 6}
FEW_SHOT: dict[str, Value] = {
    "sites": 16,
    "model": "conv4",
    "hidden": 64,
    "holdout-share": 0.1433,
    "maml.ways": 5,
    "maml.queries": 15,
    "maml.inner-lr": 0.4,
    "maml.test-inner-steps": 3,
}
STATED: dict[str, dict[str, Value]] = {
    "codasca/cifar100-ih": IMBALANCED | {"dataset": "cifar100"},
    "codasca/imagenet-ih": IMBALANCED | {"dataset": "image-folder"},
    "fmgda/auc-cifar10": NEGATIVES | {"dataset": "cifar10", "positive-classes": "5-9", "local-steps": 10},
    "fmgda/auc-fashion-mnist": NEGATIVES | {"dataset": "fashion-mnist", "positive-classes": "5-9", "local-steps": 20},
    "fmgda/auc-tiny-imagenet": NEGATIVES | {"positive-classes": "100-199", "model": "resnet18", "local-steps": 20},
    "adafgda/auc-mnist": {"dataset": "mnist", "thin-share": 0.05, "model": "lenet5", "local-steps": 12},
    "adafgda/auc-cifar10": {"dataset": "cifar10", "thin-share": 0.05, "model": "cnn7", "local-steps": 20},
    "adafgda/auc-cifar100": {"dataset": "cifar100", "model": "resnet50", "local-steps": 20},
    "adafgda/robust-mnist": {"dataset": "mnist", "model": "mlp", "local-steps": 6},
    "adafgda/robust-fashion-mnist": {"dataset": "fashion-mnist", "model": "mlp", "local-steps": 6},
    "fcsg/invariant-logistic": {"sites": 16, "batch-size": 1, "local-steps": 50, "invariant-logistic.dimension": 10},
    "fcsg/omniglot-5way-1shot": FEW_SHOT | {"maml.shots": 1},
    "fcsg/omniglot-5way-5shot": FEW_SHOT | {"maml.shots": 5},
}
# Of every row of a table, for π = 0.1, 0.3 and 0.5, in percent: four methods with a server, and three on three graphs.
ACCURACIES = {"deprl-cifar10": (1011.87, 934.52, 900.97), "deprl-mnist": (1199.32, 1179.91, 1171.79)}
OF_NEWCOMERS = {"deprl-cifar10": (971.91, 757.72, 680.18), "deprl-mnist": (1114.80, 1005.54, 921.77)}


@pytest.mark.parametrize("name", STATED)
def test_a_file_has_what_its_paper_states(name: str) -> None:
    written = flatten(tomllib.loads((REPO / "experiments" / f"{name}.toml").read_text(encoding="utf-8")))
    assert {key: written.get(key) for key in STATED[name]} == STATED[name]


@pytest.mark.parametrize("file", sorted((REPO / "experiments").glob("*/*.toml")), ids=lambda file: file.stem)
def test_run_configs_train_the_papers_own_loss_on_uniform_batches(file: Path) -> None:
    """By default AUC is divided by 4p(1-p), and the positives of a batch are fixed where they are rare."""
    keys = flatten(tomllib.loads(file.read_text(encoding="utf-8")))
    if keys.get("problem") in ("auc", "auc-margin"):
        assert keys[f"{keys['problem']}.normalise"] is False
        assert keys["sampler"] == "uniform"


@pytest.mark.parametrize(
    ("name", "share"),
    [(f"codasca-intervals{third}{more}", 0.3 if third else 0.1) for third in ("", "-30") for more in ("", "-16-sites")],
)
def test_codascas_main_claim_is_tried_at_its_intervals_shares_and_sites(name: str, share: float) -> None:
    study = STUDIES[name]
    assert study.compare == {"local-steps": (1, 8, 32, 64, 128, 512, 1024)}
    assert {method.algorithm for method in study.methods} == {"codasca", "coda-plus"}
    assert all(method.settings["thin-share"] == share for method in study.methods)
    assert study.reduced["sites"] == (16 if name.endswith("-16-sites") else 8)
    assert study.equal_iterations


def test_codascas_server_has_the_four_step_sizes_that_it_tunes_over() -> None:
    steps = [method.settings["codasca.server-lr"] for method in STUDIES["codasca-server-step"].methods]
    assert steps == [1.1, 1.0, 0.99, 0.999]


def sums(table: Mapping[str, Mapping[float, float]]) -> tuple[float, ...]:
    """Return the sum over the methods, in percent, for each π."""
    return tuple(round(100 * sum(row[mix] for row in table.values()), 2) for mix in (0.1, 0.3, 0.5))


@pytest.mark.parametrize("name", ACCURACIES)
def test_deprls_numbers_add_up_to_what_its_tables_do(name: str) -> None:
    paper = {label: found["accuracy"] for label, found in STUDIES[name].paper.items()}
    assert sums(paper) == ACCURACIES[name]  # type: ignore[arg-type]  # each depends on π
    assert sums(NEWCOMERS[name]) == OF_NEWCOMERS[name]
