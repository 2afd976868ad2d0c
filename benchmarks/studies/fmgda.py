"""FMGDA (On the Convergence of Federated Deep AUC Maximization, withdrawn from ICLR 2023): AUC on images."""

from __future__ import annotations

from benchmarks.studies.adafgda import RANKING, auc_methods
from benchmarks.studies.study import REPO, Study

_TABLE_2 = (
    "Paper: Table 2 of the FMGDA paper, at its size and step sizes, with networks that it does not print and for a q "
    "that it does not name. Its Momentum SGDA is momentum-local-sgda here."
)
_METHODS = tuple(m for m in auc_methods((0.1, 0.3), (0.001, 0.003)) if m.algorithm != "coda-plus")
_DIVIDED = "Step sizes are divided by 3 every 80 iterations: once with q = 10, three times with q = 20."

AUC_FASHION = Study(
    name="auc-fashion-mnist",
    title="AUC on Fashion-MNIST, 80 % of the negatives removed, 16 sites by class",
    experiment=REPO / "experiments/fmgda/auc-fashion-mnist.toml",
    methods=_METHODS,
    report=RANKING,
    compare={"local-steps": (10, 20)},
    reduced={"rounds": 16, "stage-iterations": 80, "evaluate-every": 4},
    size=f"Reduced: 16 rounds instead of 200, 2 step sizes instead of 5. {_DIVIDED}",
    reference="fedavg-bce",
    curves=("AUROC",),
    paper={
        "coda": {"AUROC": 0.9366},
        "momentum-local-sgda": {"AUROC": 0.9369},
        "codasca": {"AUROC": 0.9369},
        "fmgda": {"AUROC": 0.9382},
    },
    paper_note=_TABLE_2,
)

AUC_CIFAR = Study(
    name="auc-cifar10",
    title="AUC on CIFAR-10, 80 % of the negatives removed, 16 sites by class",
    experiment=REPO / "experiments/fmgda/auc-cifar10.toml",
    methods=_METHODS,
    report=RANKING,
    compare={"local-steps": (10, 20)},
    reduced={"model": "lenet5", "rounds": 16, "stage-iterations": 80, "evaluate-every": 4},
    size=(
        "Reduced: LeNet5 instead of cnn-cifar, 16 rounds instead of 400, 2 step sizes instead of 5. "
        f"{_DIVIDED} The images are recompressed JPEGs."
    ),
    reference="fedavg-bce",
    curves=("AUROC",),
    paper={
        "coda": {"AUROC": 0.6009},
        "momentum-local-sgda": {"AUROC": 0.6038},
        "codasca": {"AUROC": 0.5608},
        "fmgda": {"AUROC": 0.6093},
    },
    paper_note=_TABLE_2,
)

STUDIES = (AUC_FASHION, AUC_CIFAR)
