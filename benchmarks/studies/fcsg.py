"""FCSG (Wu et al., NeurIPS 2023): conditional expectations."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.studies.study import FCSG, REPO, STEPS, Method, Settings, Study, method

_FINE_STEPS = (0.001, 0.003, 0.01, 0.03)

INVARIANT = Study(
    name="invariant-logistic",
    title="Invariant logistic regression, d = 10, 16 sites, q = 50, one outer sample per step",
    experiment=REPO / "experiments/fcsg/invariant-logistic.toml",
    methods=tuple(method(name, *_FINE_STEPS, full=(0.0003, *_FINE_STEPS, 0.1)) for name in FCSG),
    report={"central.accuracy": "accuracy", "central.loss": "objective"},
    compare={"invariant-logistic.sigma-ratio": (1.0, 1.5, 2.0), "invariant-logistic.inner-samples": (1, 10, 100)},
    reduced={"evaluate-every": 4},
    size="The paper's d, sites, q and batches; it names no number of rounds. The curves have a point every 4 rounds.",
    note=(
        "The paper has FCSG and FCSG-M. The held-out samples are drawn too: 50,000 of the run's seed. Sample gradients "
        "count outer samples only; each has m inner ones."
    ),
    select="pooled.accuracy",
    reference="fcsg",
    curves=("accuracy",),
)

_BETA = "acc-fcsg-m has β = 0.5: with 0.1 it falls behind, or fails, at step sizes that suit the others."


def _fcsg(*steps: float) -> tuple[Method, ...]:
    """Return FCSG's three methods for networks."""
    beta: Settings = {"acc-fcsg-m.beta": 0.5}
    return tuple(method(name, *steps, full=STEPS, settings=beta if name == "acc-fcsg-m" else None) for name in FCSG)


def _auprc(steps: tuple[float, float], *, fedavg: tuple[float, float], coda: tuple[float, float]) -> tuple[Method, ...]:
    """Return the methods of the AUPRC studies."""
    return (
        method("fedavg", *fedavg, full=STEPS, label="fedavg-bce", settings={"problem": "bce"}),
        method(
            "coda-plus", *coda, full=STEPS, settings={"problem": "auc", "auc.normalise": False, "sampler": "uniform"}
        ),
        *_fcsg(*steps),
    )


def _ap(*values: float) -> Mapping[str, Mapping[str, float]]:
    """Return a line of Table 2, in the order of its columns."""
    return {label: {"AP": value} for label, value in zip(("fedavg-bce", "coda-plus", *FCSG), values, strict=True)}


_PRECISION = {"central.auprc": "AP", "central.auroc": "AUROC"}
_FCSG_TABLE_2 = (
    "Paper: Table 2 of Wu et al., NeurIPS 2023 (FCSG), which names no network, number of sites, batch, step size or "
    "number of rounds."
)

AUPRC_MNIST = Study(
    name="auprc-mnist",
    title="Average precision on MNIST, 80 % of the positives removed, 16 sites",
    experiment=REPO / "experiments/fcsg/auprc-mnist.toml",
    methods=_auprc((0.1, 0.3), fedavg=(0.1, 0.3), coda=(0.3, 1.0)),
    report=_PRECISION,
    reduced={"model": "mlp", "hidden": 64, "rounds": 60, "evaluate-every": 6},
    size="Reduced: an MLP of 64 + 64 instead of LeNet5, 60 rounds instead of 400, 2 step sizes instead of 5.",
    note=_BETA,
    select="pooled.auprc",
    reference="fedavg-bce",
    curves=("AP",),
    paper=_ap(0.9357, 0.9733, 0.9868, 0.9878, 0.9879),
    paper_note=_FCSG_TABLE_2,
)

AUPRC_CIFAR = Study(
    name="auprc-cifar10",
    title="Average precision on CIFAR-10, 80 % of the positives removed, 16 sites",
    experiment=REPO / "experiments/fcsg/auprc-cifar10.toml",
    methods=_auprc((0.1, 0.3), fedavg=(0.1, 0.3), coda=(0.3, 1.0)),
    report=_PRECISION,
    reduced={"model": "mlp", "hidden": 64, "rounds": 60, "evaluate-every": 6},
    size=(
        "Reduced: an MLP of 64 + 64 instead of cnn-cifar, 60 rounds instead of 400, 2 step sizes instead of 5. The "
        "images are recompressed JPEGs."
    ),
    note=_BETA,
    select="pooled.auprc",
    reference="fedavg-bce",
    curves=("AP",),
    paper=_ap(0.5059, 0.6039, 0.7130, 0.7157, 0.7184),
    paper_note=_FCSG_TABLE_2,
)


_WEIGHTS = (0.1, 0.5, 0.9)  # of fresh gradients or values, as the paper tries
_MAML_STEPS = (0.1, 0.3, 1.0)
_MAML_FINE = (0.1, 0.13, 0.18, 0.24, 0.32, 0.42, 0.56, 0.75, 1.0)


def _few_shot(algorithm: str, *weights: str) -> Method:
    """Return a method with a grid of nine points: step sizes times weights, or as many step sizes where it has none."""
    grid = tuple(
        {f"{algorithm}.lr": step, **{f"{algorithm}.{key}": weight for key in weights}}
        for weight in (_WEIGHTS if weights else (0.0,))
        for step in (_MAML_STEPS if weights else _MAML_FINE)
    )
    return Method(label=algorithm, algorithm=algorithm, grid=grid)


def _omniglot(shots: int, rounds: int) -> Study:
    """Return a few-shot study. The paper has curves, and no numbers to compare with."""
    return Study(
        name=f"omniglot-{shots}shot",
        title=f"Omniglot, 5-way {shots}-shot, 16 sites",
        experiment=REPO / f"experiments/fcsg/omniglot-5way-{shots}shot.toml",
        methods=(
            _few_shot("fcsg"),
            _few_shot("fcsg-m", "beta"),
            _few_shot("acc-fcsg-m", "beta"),
            _few_shot("local-scgd", "beta"),
            _few_shot("local-scgdm", "beta", "mu"),
        ),
        report={"central.accuracy": "accuracy", "central.loss": "loss"},
        reduced={
            "hidden": 16,
            "maml.queries": 5,
            "batch-size": 2,
            "local-steps": 5,
            "rounds": rounds,
            "maml.test-tasks": 40,
            "holdout-share": 0.2,
            "evaluate-every": 4,
        },
        size=(
            "Reduced: 16 channels instead of 64, 5 queries of each class instead of 15, 2 tasks per step instead of 4, "
            f"{rounds} rounds of 5 steps instead of 100 of 10, 40 test tasks instead of 100, a fifth of a site's "
            "characters held out instead of a seventh."
        ),
        note=(
            "Grids of nine points with the same reach: step sizes of 0.1, 0.3 and 1 times weights of fresh gradients "
            "and values (β, μ; the same for both) of 0.1, 0.5 and 0.9; for fcsg, which has no weight, nine step sizes."
        ),
        select="pooled.accuracy",
        reference="fcsg",
    )


OMNIGLOT_1, OMNIGLOT_5 = _omniglot(1, 20), _omniglot(5, 12)

STUDIES = (INVARIANT, AUPRC_MNIST, AUPRC_CIFAR, OMNIGLOT_1, OMNIGLOT_5)
