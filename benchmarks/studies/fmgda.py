"""FMGDA (Wu et al., NeurIPS 2023): AUC on images."""

from __future__ import annotations

from benchmarks.studies.adafgda import SMALL_STEPS
from benchmarks.studies.study import REPO, STEPS, Method, Study, method

_RANKING = {"central.auroc": "AUROC", "central.auprc": "AUPRC"}
_TABLE_2 = (
    "Paper: Table 2 of Wu et al., NeurIPS 2023 (FMGDA), at the paper's size and step sizes. Its Momentum SGDA is "
    "momentum-local-sgda here."
)


def _auc(steps: tuple[float, float], small: tuple[float, float]) -> tuple[Method, ...]:
    """Return the methods of the AUC studies; cross-entropy with FedAvg is what they have to beat."""
    return (
        method("fedavg", *steps, full=STEPS, label="fedavg-bce", settings={"problem": "bce"}),
        method("momentum-local-sgda", *steps, full=STEPS),
        method("coda", *steps, full=STEPS),
        method("coda-plus", *steps, full=STEPS),
        method("codasca", *steps, full=STEPS),
        method("fmgda", *steps, full=STEPS),
        method("adafgda", *small, full=SMALL_STEPS),
    )


AUC_MNIST = Study(
    name="auc-mnist",
    title="AUC on MNIST, 5 % positive, LeNet5, 16 sites by class, q = 10",
    experiment=REPO / "experiments/fmgda/auc-mnist.toml",
    methods=(
        *_auc((0.3, 1.0), (0.003, 0.01)),
        method("npa", 0.3, 1.0, full=STEPS, settings={"local-steps": 1, "npa.batch": 500}),
        *(
            method(name, 0.3, 1.0, full=STEPS)
            for name in (
                "local-sgda",
                "local-sgda-plus",
                "momentum-local-sgda-plus",
                "fgda",
                "sagda",
                "cdma",
                "fednest",
            )
        ),
    ),
    report=_RANKING,
    reduced={"rounds": 24, "stage-iterations": 80, "evaluate-every": 6},
    size=(
        "Reduced: 24 rounds instead of 400, 2 step sizes instead of 5. Step sizes are divided by 3 every 8 rounds, "
        "except those of npa, whose rounds are single steps on 10 batches."
    ),
    reference="fedavg-bce",
    curves=("AUROC",),
)

AUC_FASHION = Study(
    name="auc-fashion-mnist",
    title="AUC on Fashion-MNIST, 5 % positive, LeNet5, 16 sites by class, q = 10",
    experiment=REPO / "experiments/fmgda/auc-fashion-mnist.toml",
    methods=_auc((0.3, 1.0), (0.003, 0.01)),
    report=_RANKING,
    reduced=AUC_MNIST.reduced,
    size="Reduced: 24 rounds instead of 400, 2 step sizes instead of 5. Step sizes are divided by 3 every 8 rounds.",
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
    methods=tuple(m for m in _auc((0.1, 0.3), (0.001, 0.003)) if m.algorithm != "coda-plus"),
    report=_RANKING,
    compare={"local-steps": (10, 20)},
    reduced={"model": "lenet5", "rounds": 16, "stage-iterations": 80, "evaluate-every": 4},
    size=(
        "Reduced: LeNet5 instead of cnn-cifar, 16 rounds instead of 400, 2 step sizes instead of 5. Step sizes are "
        "divided by 3 every 80 iterations: once with q = 10, three times with q = 20. The images are recompressed "
        "JPEGs."
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

STUDIES = (AUC_MNIST, AUC_FASHION, AUC_CIFAR)
