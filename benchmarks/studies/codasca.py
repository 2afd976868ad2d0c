"""CODASCA (Yuan et al., ICML 2021): AUC on images."""

from __future__ import annotations

from benchmarks.studies.study import REPO, Study, method

CODASCA_MNIST = Study(
    name="codasca-mnist",
    title="AUC on MNIST, 10 % positive, 16 sites by class, q = 20",
    experiment=REPO / "experiments/codasca/mnist.toml",
    methods=(
        method("fedavg", 0.3, 1.0, label="fedavg-bce", settings={"problem": "bce"}),
        method("coda-plus", 0.3, 1.0),
        method("codasca", 0.3, 1.0),
    ),
    report={"central.auroc": "AUROC", "central.auprc": "AUPRC"},
    reference="fedavg-bce",
    curves=("AUROC",),
    size="Nothing is reduced: two cores can run the file as it is, with MNIST instead of the paper's larger sets.",
)

STUDIES = (CODASCA_MNIST,)
