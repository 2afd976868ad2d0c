"""CODASCA (Yuan et al., ICML 2021): AUC on images."""

from __future__ import annotations

from benchmarks.studies.study import REPO, Settings, Study, method

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

_INTERVALS = (1, 8, 32, 64, 128, 512, 1024)
_FULL_STEPS = (0.03, 0.1, 0.3, 1.0, 3.0)


def _intervals(share: float, sites: int) -> Study:
    """Return the study of the communication interval, for a share of positives and a number of sites K."""
    reduced: Settings = {"model": "mlp", "hidden": 64, "rounds": 128, "stage-iterations": 2048}
    return Study(
        name="codasca-intervals" + ("-30" if share == 0.3 else "") + (f"-{sites}-sites" if sites != 8 else ""),
        title=(
            f"AUC against the communication interval I: pairs of digits, {share:.0%} positive, {sites} sites, no class "
            "at two of them"
        ),
        experiment=REPO / "experiments/codasca/mnist-pairs.toml",
        methods=tuple(
            method(algorithm, 0.3, 1.0, 3.0, full=_FULL_STEPS, settings={"thin-share": share})
            for algorithm in ("codasca", "coda-plus")
        ),
        report={"central.auroc": "AUROC"},
        compare={"local-steps": _INTERVALS},
        tune_by=("local-steps",),
        equal_iterations=True,
        reduced=reduced | {"sites": sites},
        size=(
            "Reduced: an MLP of 64 + 64 instead of LeNet5 (DenseNet121 in the paper), 4,096 iterations instead of "
            "20,000, step sizes divided by 3 once, after 2,048 instead of every 2,000."
        ),
        note=(
            "local-steps is I. Every run takes the same number of iterations, so I = 1 exchanges 1,024 times as often "
            "as I = 1,024. A stage of CODASCA begins without control variates, so of the two rounds of a stage at "
            "I = 1,024 the second is corrected. Its server's step size is 1."
        ),
        within=0.02,
        picture="axis",
        paper_note=(
            "The paper (Figure 1 and Appendix F of Yuan et al., ICML 2021) has curves of DenseNet121 on CIFAR-100 and "
            "ImageNet. On ImageNet with 10 % positives, it says, CODASCA bears I = 512 with K = 8 and 128 with K = 16, "
            "CODA+ 128 and 32; how much may be lost it does not say."
        ),
    )


_CLAIM = tuple(_intervals(share, sites) for share in (0.1, 0.3) for sites in (8, 16))

CODASCA_SERVER = Study(
    name="codasca-server-step",
    title="CODASCA's step size of the server: pairs of digits, 10 % positive, 8 sites, no class at two sites",
    experiment=REPO / "experiments/codasca/mnist-pairs.toml",
    methods=tuple(
        method("codasca", 1.0, label=f"codasca, ηg = {step:g}", settings={"codasca.server-lr": step})
        for step in (1.1, 1.0, 0.99, 0.999)
    ),
    report={"central.auroc": "AUROC"},
    compare={"local-steps": (32, 512)},
    equal_iterations=True,
    reduced=_CLAIM[0].reduced,
    size=_CLAIM[0].size,
    note="The four values are those that the paper tunes over. The sites' step size is 1 in all runs.",
    versus="codasca, ηg = 1",
    picture="axis",
)

STUDIES = (CODASCA_MNIST, *_CLAIM, CODASCA_SERVER)
