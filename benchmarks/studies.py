"""The published experiments as studies: which methods are compared, over which grids, at which size.

A study's run-config under experiments/ has the paper's setting, or what fits of it, with one algorithm. ``reduced`` is
what a default run changes so that two CPU cores finish within the hour; ``--full`` leaves it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

Value = bool | int | float | str
Settings = Mapping[str, Value]
"""Run-config keys, flat."""

REPO = Path(__file__).resolve().parent.parent
CODA = ("coda", "coda-plus", "codasca")
FCSG = ("fcsg", "fcsg-m", "acc-fcsg-m")
SCGD = ("local-scgd", "local-scgdm")
ONE_STEP_SIZE = ("fedavg", *CODA, *FCSG, *SCGD)  # the same for x and y, or there is no y


@dataclass(frozen=True, kw_only=True)
class Method:
    """One line of a table.

    Attributes
    ----------
    label : str
        How it is called.
    algorithm : str
        A name in ``strategies.ALGORITHMS``.
    settings : Settings
        What it changes besides; wins over everything but a seed, a fold and a point of the grid.
    grid, full_grid : tuple of Settings
        Points to choose from, at the default size and with ``--full`` (empty: the same). One: no choice.
    """

    label: str
    algorithm: str
    settings: Settings = field(default_factory=dict)
    grid: tuple[Settings, ...] = ({},)
    full_grid: tuple[Settings, ...] = ()


def method(
    algorithm: str,
    *steps: float,
    full: tuple[float, ...] = (),
    label: str = "",
    settings: Settings | None = None,
) -> Method:
    """Return a method with a grid of step sizes, the same for x and y."""
    names = [f"{algorithm}.lr"] + [f"{algorithm}.lr-dual"] * (algorithm not in ONE_STEP_SIZE)
    grid, full_grid = (tuple(dict.fromkeys(names, step) for step in values) for values in (steps, full))
    label = label or algorithm
    return Method(label=label, algorithm=algorithm, settings=settings or {}, grid=grid, full_grid=full_grid)


@dataclass(frozen=True, kw_only=True)
class Study:
    """One published experiment.

    Attributes
    ----------
    name, title : str
        Of the command and the files; of the picture.
    experiment : Path
        The run-config.
    methods : tuple of Method
        All with grids of one length: equal budgets for tuning.
    report : dict
        Metrics of a run's last round, by their path in a line of metrics.jsonl → how they are called. The first is
        compared at equal cost.
    compare : dict
        Keys and their values; each combination has its own table, or its own rows where there are several keys.
    repeat : dict
        Keys and their values; what is averaged.
    reduced : Settings, note : str
        What a default run changes, and that in words.
    select : str
        The metric on the sites' held-out samples by which a point of the grid is chosen: the largest.
    tuning_seed : int
        Of the runs that choose.
    reference : str
        The method whose budget the others get in the columns at equal cost; empty: no such columns.
    paper : dict, paper_note : str
        Published numbers, by method and by name of the metric; where they are from and what was different.
    picture : str
        ``"curves"`` over rounds, or ``"points"``.
    curves : tuple of str
        The metrics to draw; empty: all.
    target : float
        Where set, a column says in which round the first metric reached it.
    """

    name: str
    title: str
    experiment: Path
    methods: tuple[Method, ...]
    report: Mapping[str, str]
    compare: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    repeat: Mapping[str, tuple[Value, ...]] = field(default_factory=lambda: {"seed": (0, 1, 2)})
    reduced: Settings = field(default_factory=dict)
    note: str = ""
    select: str = "pooled.auroc"
    tuning_seed: int = 100
    reference: str = ""
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    paper_note: str = ""
    picture: str = "curves"
    curves: tuple[str, ...] = ()
    target: float | None = None


# ---------------------------------------------------------------------- AdaFGDA: the saddle problem, robust training

_STEPS = (0.01, 0.03, 0.1, 0.3, 1.0)  # the grid of --full
_SMALL_STEPS = (0.0003, 0.001, 0.003, 0.01, 0.03)  # AdaFGDA divides by √a + ρ
_CUBE_ROOT = "cube-root"


def _saddle(algorithm: str, lr: float = 0.01, **own: Value) -> Method:
    """Return a method with steps of 0.01, unless given, and without a proximal term."""
    settings = {f"{algorithm}.{key}": value for key, value in own.items()}
    if algorithm in CODA:
        settings |= {f"{algorithm}.gamma": 0.0}
    if algorithm == "npa":
        settings |= {"local-steps": 1}
    label = f"{algorithm}, {_CUBE_ROOT}" if own.get("schedule") == _CUBE_ROOT else algorithm
    return method(algorithm, lr, label=label, settings=settings)


SADDLE = Study(
    name="saddle",
    title="Quadratic saddle problem, K = 10, d = 20, q = 10",
    experiment=REPO / "experiments/adafgda/saddle.toml",
    methods=(
        _saddle("npa"),
        _saddle("local-sgda"),
        _saddle("local-sgda-plus"),
        _saddle("momentum-local-sgda"),
        _saddle("momentum-local-sgda-plus"),
        _saddle("coda"),
        _saddle("coda-plus"),
        _saddle("codasca"),
        _saddle("fmgda"),
        _saddle("fmgda", 0.02, schedule=_CUBE_ROOT),  # times η_t, which falls from 0.46 to 0.17
        _saddle("fgda"),
        _saddle("fgda", 0.02, schedule=_CUBE_ROOT),
        # The step of AdaFGDA is up to lr / ρ as the gradients vanish, and has to stay below 2 / τ = 0.2.
        _saddle("adafgda", 0.001, rho=0.01),
        _saddle("sagda"),
        _saddle("cdma"),
        _saddle("fednest"),
    ),
    report={"central.distance-x": "‖x-x*‖²", "central.distance-y": "‖y-y*‖²"},
    compare={"heterogeneity": (1.0, 10.0)},
    reduced={"evaluate-every": 4},
    note=(
        "The paper's size; only the curves have a point every 4 rounds. CODA and CODA+ return the average of a stage, "
        "which is the whole run here. A round of FEDNEST has four exchanges, one of SAGDA and CDMA two."
    ),
    select="central.distance-x",
)

ROBUST = Study(
    name="robust-mnist",
    title="Robust training on MNIST, 3-layer MLP, 10 sites",
    experiment=REPO / "experiments/adafgda/robust-mnist.toml",
    methods=(
        method("npa", 0.1, 0.3, full=_STEPS, settings={"local-steps": 1, "npa.batch": 300}),
        method("local-sgda", 0.1, 0.3, full=_STEPS),
        method("local-sgda-plus", 0.1, 0.3, full=_STEPS),
        method("momentum-local-sgda", 0.1, 0.3, full=_STEPS),
        method("momentum-local-sgda-plus", 0.1, 0.3, full=_STEPS),
        method("coda-plus", 0.1, 0.3, full=_STEPS),
        method("codasca", 0.1, 0.3, full=_STEPS),
        method("fmgda", 0.03, 0.1, full=_STEPS),
        method("fgda", 0.03, 0.1, full=_STEPS),
        method("adafgda", 0.001, 0.003, full=_SMALL_STEPS),
        method("sagda", 0.1, 0.3, full=_STEPS),
        method("cdma", 0.03, 0.1, full=_STEPS),
        method("fednest", 0.1, 0.3, full=_STEPS),
    ),
    report={"central.robust-accuracy": "accuracy under ν", "central.accuracy": "accuracy, clean"},
    compare={"local-steps": (6, 12)},
    reduced={"rounds": 50, "evaluate-every": 10},
    note=(
        "Reduced: 50 rounds in place of 500, 2 step sizes in place of 5; smaller ones for the methods that carry "
        "gradient differences along (FMGDA diverges with 0.1 and 0.3, CDMA with 0.3)."
    ),
    select="pooled.robust-accuracy",
    reference="local-sgda",
)

# ---------------------------------------------------------------------- FMGDA: AUC on images

_RANKING = {"central.auroc": "AUROC", "central.auprc": "AUPRC"}
_TABLE_2 = (
    "Paper: Table 2 of Wu et al., NeurIPS 2023 (FMGDA), at the paper's size and step sizes; Momentum SGDA there is "
    "momentum-local-sgda here."
)


def _auc(steps: tuple[float, float], small: tuple[float, float]) -> tuple[Method, ...]:
    """Return the methods of the AUC studies; cross-entropy with FedAvg is what they have to beat."""
    return (
        method("fedavg", *steps, full=_STEPS, label="fedavg-bce", settings={"problem": "bce"}),
        method("momentum-local-sgda", *steps, full=_STEPS),
        method("coda", *steps, full=_STEPS),
        method("coda-plus", *steps, full=_STEPS),
        method("codasca", *steps, full=_STEPS),
        method("fmgda", *steps, full=_STEPS),
        method("adafgda", *small, full=_SMALL_STEPS),
    )


AUC_MNIST = Study(
    name="auc-mnist",
    title="AUC on MNIST, 5 % positive, LeNet5, 16 sites by class, q = 10",
    experiment=REPO / "experiments/fmgda/auc-mnist.toml",
    methods=(
        *_auc((0.3, 1.0), (0.003, 0.01)),
        method("npa", 0.3, 1.0, full=_STEPS, settings={"local-steps": 1, "npa.batch": 500}),
        *(
            method(name, 0.3, 1.0, full=_STEPS)
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
    note=(
        "Reduced: 24 rounds in place of 400, 2 step sizes in place of 5. Step sizes are divided by 3 every 8 rounds; "
        "npa, whose rounds are single steps on 10 batches, keeps its own."
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
    note="Reduced: 24 rounds in place of 400, 2 step sizes in place of 5. Step sizes are divided by 3 every 8 rounds.",
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
    note=(
        "Reduced: LeNet5 in place of cnn-cifar, 16 rounds in place of 400, 2 step sizes in place of 5. Step sizes are "
        "divided by 3 every 80 iterations: once with q = 10, three times with q = 20. The images are JPEGs, "
        "recompressed."
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

# ---------------------------------------------------------------------- CODASCA: AUC on images

CODASCA_MNIST = Study(
    name="codasca-mnist",
    title="AUC on MNIST, 10 % positive, 16 sites by class, q = 20",
    experiment=REPO / "experiments/codasca/mnist.toml",
    methods=(
        method("fedavg", 0.3, 1.0, label="fedavg-bce", settings={"problem": "bce"}),
        method("coda-plus", 0.3, 1.0),
        method("codasca", 0.3, 1.0),
    ),
    report=_RANKING,
    reference="fedavg-bce",
    curves=("AUROC",),
    note="Nothing is reduced: the file itself has what two cores can do, MNIST in place of the paper's larger sets.",
)

# ---------------------------------------------------------------------- FCSG: conditional expectations

_FINE_STEPS = (0.001, 0.003, 0.01, 0.03)

INVARIANT = Study(
    name="invariant-logistic",
    title="Invariant logistic regression, d = 10, 16 sites, q = 50, one outer sample per step",
    experiment=REPO / "experiments/fcsg/invariant-logistic.toml",
    methods=tuple(method(name, *_FINE_STEPS, full=(0.0003, *_FINE_STEPS, 0.1)) for name in FCSG),
    report={"central.accuracy": "accuracy", "central.loss": "objective"},
    compare={"sigma-ratio": (1.0, 1.5, 2.0), "inner-samples": (1, 10, 100)},
    reduced={"evaluate-every": 4},
    note=(
        "The paper's size; only the curves have a point every 4 rounds. What the sites hold out is drawn here too: "
        "50,000 samples of the seed. Sample gradients count the outer samples only, each of which has m inner ones."
    ),
    select="pooled.accuracy",
    reference="fcsg",
    curves=("accuracy",),
)

_BETA = "acc-fcsg-m has β = 0.5: with 0.1 it falls behind, or fails, at step sizes that the others bear."


def _fcsg(*steps: float) -> tuple[Method, ...]:
    """Return FCSG's three methods for networks."""
    beta: Settings = {"acc-fcsg-m.beta": 0.5}
    return tuple(method(name, *steps, full=_STEPS, settings=beta if name == "acc-fcsg-m" else None) for name in FCSG)


def _auprc(steps: tuple[float, float], *, fedavg: tuple[float, float], coda: tuple[float, float]) -> tuple[Method, ...]:
    """Return the methods of the AUPRC studies."""
    return (
        method("fedavg", *fedavg, full=_STEPS, label="fedavg-bce", settings={"problem": "bce"}),
        method("coda-plus", *coda, full=_STEPS, settings={"problem": "auc"}),
        *_fcsg(*steps),
    )


def _ap(*values: float) -> Mapping[str, Mapping[str, float]]:
    """Return a line of Table 2, in the order of its columns."""
    return {label: {"AP": value} for label, value in zip(("fedavg-bce", "coda-plus", *FCSG), values, strict=True)}


_PRECISION = {"central.auprc": "AP", "central.auroc": "AUROC"}
_FCSG_TABLE_2 = "Paper: Table 2 of Wu et al., NeurIPS 2023 (FCSG), at the paper's size, network and step sizes."

AUPRC_MNIST = Study(
    name="auprc-mnist",
    title="Average precision on MNIST, 80 % of the positives removed, 16 sites",
    experiment=REPO / "experiments/fcsg/auprc-mnist.toml",
    methods=_auprc((0.1, 0.3), fedavg=(0.1, 0.3), coda=(0.3, 1.0)),
    report=_PRECISION,
    reduced={"model": "mlp", "hidden": 64, "rounds": 60, "evaluate-every": 6},
    note=(
        f"Reduced: an MLP of 64 + 64 in place of LeNet5, 60 rounds in place of 400, 2 step sizes in place of 5. {_BETA}"
    ),
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
    note=(
        "Reduced: an MLP of 64 + 64 in place of cnn-cifar, 60 rounds in place of 400, 2 step sizes in place of 5. The "
        f"images are JPEGs, recompressed. {_BETA}"
    ),
    select="pooled.auprc",
    reference="fedavg-bce",
    curves=("AP",),
    paper=_ap(0.5059, 0.6039, 0.7130, 0.7157, 0.7184),
    paper_note=_FCSG_TABLE_2,
)


def _omniglot(shots: int, rounds: int) -> Study:
    """Return a few-shot study. The paper has curves: no numbers to put beside."""
    return Study(
        name=f"omniglot-{shots}shot",
        title=f"Omniglot, 5-way {shots}-shot, 16 sites",
        experiment=REPO / f"experiments/fcsg/omniglot-5way-{shots}shot.toml",
        methods=(
            *_fcsg(0.3, 1.0),
            *(method(name, 0.1, 0.3, full=_STEPS) for name in SCGD),
        ),
        report={"central.accuracy": "accuracy", "central.loss": "loss"},
        reduced={
            "hidden": 16,
            "queries": 5,
            "batch-size": 2,
            "local-steps": 5,
            "rounds": rounds,
            "test-tasks": 40,
            "evaluate-every": 4,
        },
        note=(
            "Reduced: 16 channels in place of 64, 5 queries of each class in place of 15, 2 tasks per step in place of "
            f"4, {rounds} rounds of 5 steps in place of 100 of 10, 40 test tasks in place of 100, 2 step sizes in "
            f"place of 5. {_BETA}"
        ),
        select="pooled.accuracy",
        reference="fcsg",
    )


OMNIGLOT_1, OMNIGLOT_5 = _omniglot(1, 20), _omniglot(5, 12)

# ---------------------------------------------------------------------- DePRL: personal models

_MIXES = {"concentration": (0.1, 0.3, 0.5)}
_PERSONAL = {
    "over-sites.accuracy.mean": "accuracy",
    "over-sites.accuracy.worst-decile": "worst decile",
    "consensus-error": "consensus error",
}
_SHORT: Settings = {"rounds": 20, "batch-size": 16, "evaluate-every": 5}
_GRAPHS = ("ring", "random", "full")


def _personal(
    algorithm: str, *steps: float, topology: str = "", body_steps: int = 0, local_steps: int = 10, dual: bool = False
) -> Method:
    """Return a method with one step size for all parts of the model, and a number of steps that costs ten gradients."""
    settings: dict[str, Value] = {"local-steps": local_steps}
    settings |= {f"{algorithm}.topology": topology} if topology else {}
    settings |= {f"{algorithm}.body-steps": body_steps} if body_steps else {}
    names = {"deprl": ("lr-head", "lr-body"), "fedrep": ("lr-head", "lr-body"), "fedrod": ("lr", "lr-head")}
    keys = [f"{algorithm}.{name}" for name in (*names.get(algorithm, ("lr",)), *(["lr-dual"] if dual else []))]
    grid = tuple(dict.fromkeys(keys, step) for step in steps)
    return Method(label=f"{algorithm}, {topology}" if topology else algorithm, algorithm=algorithm, settings=settings,
                  grid=grid)  # fmt: skip


def _sevenfold(*steps: float, graphs: tuple[str, ...] = _GRAPHS) -> tuple[Method, ...]:
    """Return the methods of the DePRL paper, decentralised ones on each graph, and every worker by itself."""
    return (
        _personal("alone", *steps),
        _personal("fedavg", *steps),
        _personal("fedrep", *steps, local_steps=5, body_steps=5),
        _personal("ditto", *steps, local_steps=5),
        _personal("fedrod", *steps, local_steps=5),
        *(_personal("d-psgd", *steps, topology=graph) for graph in graphs),
        *(_personal("dispfl", *steps, topology=graph, local_steps=9) for graph in graphs),
        *(_personal("deprl", *steps, topology=graph, local_steps=5, body_steps=5) for graph in graphs),
    )


_TEN = (
    "Every method has ten gradients per worker and round: ten steps, or five with two gradients each (ditto, fedrod), "
    "or five on the head and five on the body (deprl, fedrep), or nine and the one by which masks move (dispfl). "
    "A worker is tested on images of the test set in its own proportions; step sizes were chosen on training images "
    "that it held out. Accuracy is the mean over the workers, `worst decile` that over the worst tenth of them; the "
    "consensus error is that of what workers share after the last round, summed over its entries."
)


def _personal_images(data: str, network: str, remark: str = "") -> Study:
    """Return the study of a data set; what the paper has is named after it."""
    file = data.lower().replace("-", "")
    return Study(
        name=f"deprl-{file}",
        title=f"Personal models on {data}, 32 workers",
        experiment=REPO / f"experiments/deprl/{file}.toml",
        methods=_sevenfold(0.05, 0.15),
        report=_PERSONAL,
        curves=("accuracy", "consensus error"),
        compare=_MIXES,
        reduced={"model": "lenet5", **_SHORT},
        note=(
            f"Reduced: LeNet5 in place of {network}, 20 rounds in place of 100, batches of 16 in place of 64. {remark}"
            f"{_TEN}"
        ),
        select="over-sites.accuracy.mean",
    )


DEPRL_MNIST = _personal_images("MNIST", "AlexNet")
DEPRL_CIFAR = _personal_images("CIFAR-10", "VGG-11", "The images are JPEGs, recompressed. ")

DEPRL_SHALLOW = Study(
    name="deprl-mnist-128",
    title="Personal models on MNIST, 128 workers, π = 0.3, a shallow network",
    experiment=REPO / "experiments/deprl/mnist-128.toml",
    methods=_sevenfold(0.05, 0.15, graphs=("ring",)),
    report=_PERSONAL,
    curves=("accuracy", "consensus error"),
    reduced=_SHORT,
    note=f"Reduced: 20 rounds in place of 100, batches of 16 in place of 64, the ring only. An MLP of 64 + 64. {_TEN}",
    select="over-sites.accuracy.mean",
)


def _of(workers: int) -> Method:
    """Return DePRL with so many workers, and a step size of the body that grows with √N, as the theory has it."""
    lr = round(0.05 * (workers / 4) ** 0.5, 4)
    settings: dict[str, Value] = {"sites": workers, "deprl.lr-body": lr, "evaluate-every": 1}
    return Method(label=f"{workers} workers", algorithm="deprl", settings=settings)


DEPRL_SPEEDUP = Study(
    name="deprl-speedup",
    title="DePRL on MNIST: rounds to a mean accuracy",
    experiment=REPO / "experiments/deprl/mnist.toml",
    methods=tuple(_of(workers) for workers in (4, 8, 16, 32)),
    report={"over-sites.accuracy.mean": "accuracy", "consensus-error": "consensus error"},
    compare={"deprl.topology": ("ring", "random", "full")},
    reduced={
        "model": "mlp",
        "hidden": 64,
        "batch-size": 8,
        "local-steps": 2,
        "deprl.body-steps": 4,
        "deprl.lr-head": 0.02,
        "rounds": 60,
    },
    note=(
        "Reduced: an MLP of 64 + 64 in place of AlexNet, 60 rounds in place of 100, batches of 8 in place of 64, two "
        "steps on the head and four on the body. The images are dealt to all workers, so that each of 32 has an eighth "
        "of what each of 4 has. The step size of the body is 0.05 √(N/4), as the theorem has it. `rounds to`: the "
        "first after which the mean over the workers, each on its own part of the test set, was as high."
    ),
    target=0.8,
    curves=("accuracy",),
)

# ---------------------------------------------------------------------- four hospitals

_HOSPITALS = {
    "sites.cleveland.auroc": "Cleveland",
    "sites.hungarian.auroc": "Hungarian",
    "sites.switzerland.auroc": "Switzerland",
    "sites.va.auroc": "VA",
}
_FOLDS: Mapping[str, tuple[Value, ...]] = {"seed": (0, 1, 2), "fold": (0, 1, 2, 3, 4)}
_ONE_FOLD = (
    "Nothing is reduced. The step size was chosen on one fold at another seed, for every method alike: about a fifth "
    "of the patients of each fold took part."
)

HEART = Study(
    name="heart",
    title="UCI heart disease, the four hospitals, 5-fold cross-validation",
    experiment=REPO / "experiments/heart/hospitals.toml",
    methods=(
        method("alone", 0.03, 0.1, 0.3, label="each hospital alone", settings={"problem": "bce"}),
        method("fedavg", 0.03, 0.1, 0.3, label="fedavg-bce", settings={"problem": "bce"}),
        method("coda-plus", 0.03, 0.1, 0.3),
        method("codasca", 0.03, 0.1, 0.3),
        method("fmgda", 0.03, 0.1, 0.3),
        method("adafgda", 0.001, 0.003, 0.01),
    ),
    report={
        "pooled.auroc": "all hospitals",
        **_HOSPITALS,
    },
    repeat=_FOLDS,
    note=f"AUROC on the patients of the fold that each hospital held out. {_ONE_FOLD}",
    picture="points",
)

_HEART_STEPS = (0.03, 0.1, 0.3)

HEART_PERSONAL = Study(
    name="heart-personal",
    title="UCI heart disease: a model for each hospital, trained for AUC, 5-fold cross-validation",
    experiment=REPO / "experiments/heart/hospitals.toml",
    methods=(
        method("alone", *_HEART_STEPS, label="each hospital alone"),
        method("local-sgda", *_HEART_STEPS, label="local-sgda: one model"),
        method("codasca", *_HEART_STEPS, label="codasca: one model"),
        _personal("ditto", *_HEART_STEPS, local_steps=5, dual=True),
        _personal("fedrep", *_HEART_STEPS, local_steps=5, body_steps=5, dual=True),
        _personal("deprl", *_HEART_STEPS, topology="ring", local_steps=5, body_steps=5, dual=True),
    ),
    report={
        "over-sites.auroc.mean": "mean",
        "over-sites.auroc.worst-decile": "worst",
        **_HOSPITALS,
    },
    repeat=_FOLDS,
    note=(
        "AUROC on the patients of the fold that each hospital held out: mean over the four hospitals, the worst of "
        "them, and each. All methods solve the minimax AUC problem; every hospital has ten gradients per round. "
        f"{_ONE_FOLD}"
    ),
    select="over-sites.auroc.mean",
    picture="points",
)

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        SADDLE,
        ROBUST,
        AUC_MNIST,
        AUC_FASHION,
        AUC_CIFAR,
        CODASCA_MNIST,
        INVARIANT,
        AUPRC_MNIST,
        AUPRC_CIFAR,
        OMNIGLOT_1,
        OMNIGLOT_5,
        DEPRL_MNIST,
        DEPRL_CIFAR,
        DEPRL_SHALLOW,
        DEPRL_SPEEDUP,
        HEART,
        HEART_PERSONAL,
    )
}
