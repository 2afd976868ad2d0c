"""DePRL (Xiong et al., AAAI 2024): personal models."""

from __future__ import annotations

from benchmarks.studies.deprl_tables import CIFAR10, FASHION_MNIST, ByMix
from benchmarks.studies.study import REPO, Method, Settings, Study
from edelweiss.common import Value

_MIXES = {"concentration": (0.1, 0.3, 0.5)}
_PERSONAL = {
    "over-sites.accuracy.mean": "accuracy",
    "over-sites.accuracy.worst-decile": "worst decile",
    "consensus-error": "consensus error",
}
_SHORT: Settings = {"rounds": 20, "batch-size": 16, "evaluate-every": 5}
_GRAPHS = ("ring", "random", "full")
_PAPER: Settings = {"decay": 0.96, "weight-decay": 1e-5}
PLAIN: Settings = {"decay": 1.0, "weight-decay": 0.0}


def personal(
    algorithm: str,
    *steps: float,
    topology: str = "",
    body_steps: int = 0,
    local_steps: int = 10,
    dual: bool = False,
    sgd: Settings = _PAPER,
) -> Method:
    """Return a method with one step size for all parts of the model, and a number of steps that costs ten gradients.

    ``sgd`` is what all methods of a study have alike.
    """
    settings: dict[str, Value] = {"local-steps": local_steps}
    settings |= {f"{algorithm}.{key}": value for key, value in sgd.items()}
    settings |= {f"{algorithm}.topology": topology} if topology else {}
    settings |= {f"{algorithm}.body-steps": body_steps} if body_steps else {}
    names = {"deprl": ("lr-head", "lr-body"), "fedrep": ("lr-head", "lr-body"), "fedrod": ("lr", "lr-head")}
    keys = [f"{algorithm}.{name}" for name in (*names.get(algorithm, ("lr",)), *(["lr-dual"] if dual else []))]
    grid = tuple(dict.fromkeys(keys, step) for step in steps)
    return Method(
        label=f"{algorithm}, {topology}" if topology else algorithm, algorithm=algorithm, settings=settings, grid=grid
    )


def _sevenfold(*steps: float, graphs: tuple[str, ...] = _GRAPHS) -> tuple[Method, ...]:
    """Return the methods of the DePRL paper, decentralised ones on each graph, and every worker by itself."""
    return (
        personal("alone", *steps),
        personal("fedavg", *steps),
        personal("fedrep", *steps, local_steps=5, body_steps=5),
        personal("ditto", *steps, local_steps=5),
        personal("fedrod", *steps, local_steps=5),
        *(personal("d-psgd", *steps, topology=graph) for graph in graphs),
        *(personal("dispfl", *steps, topology=graph, local_steps=9) for graph in graphs),
        *(personal("deprl", *steps, topology=graph, local_steps=5, body_steps=5) for graph in graphs),
    )


_TEN = (
    "Every method takes ten gradients per worker and round: ten steps; or five with two gradients each (ditto, "
    "fedrod); or five on the head and five on the body (deprl, fedrep); or nine and one that moves the masks (dispfl). "
    "A worker is tested on test images in its own class mix; step sizes were chosen on training images that it held "
    "out. Accuracy is the mean over the workers, `worst decile` the mean over the worst tenth of them. The consensus "
    "error is that of the shared parameters after the last round, summed over their entries."
)


_TABLES = "Paper: Tables 1 and 7 of Xiong et al., AAAI 2024 (DePRL), {}, 128 workers, at its step sizes, with τ = 2."
_THEIRS = _TABLES.format("Fashion-MNIST instead of MNIST, AlexNet")


def _personal_images(
    data: str, reduced: str, sites: Settings, paper: ByMix, paper_note: str, remark: str = ""
) -> Study:
    """Return the study of a data set; ``reduced`` says what a default run changes, ``sites`` how many."""
    file = data.lower().replace("-", "")
    return Study(
        name=f"deprl-{file}",
        title=f"Personal models on {data}",
        experiment=REPO / f"experiments/deprl/{file}.toml",
        methods=_sevenfold(0.05, 0.15),
        report=_PERSONAL,
        curves=("accuracy", "consensus error"),
        compare=_MIXES,
        reduced={"model": "lenet5", **sites, **_SHORT},
        size=f"Reduced: LeNet5 instead of {reduced}, 20 rounds instead of 100.{remark}",
        note=_TEN,
        select="over-sites.accuracy.mean",
        paper={label: {"accuracy": numbers} for label, numbers in paper.items()},
        paper_note=paper_note,
    )


DEPRL_MNIST = _personal_images(
    "MNIST", "AlexNet, 32 workers instead of 128, batches of 16 as in the paper", {}, FASHION_MNIST, _THEIRS
)
DEPRL_CIFAR = _personal_images(
    "CIFAR-10",
    "VGG-11, 32 workers instead of 128",
    {"sites": 32},
    CIFAR10,
    _TABLES.format("CIFAR-10, VGG-11"),
    " The images are recompressed JPEGs.",
)

DEPRL_SHALLOW = Study(
    name="deprl-mnist-128",
    title="Personal models on MNIST, 128 workers, a shallow network",
    experiment=REPO / "experiments/deprl/mnist-128.toml",
    methods=_sevenfold(0.05, 0.15),
    report=_PERSONAL,
    compare=_MIXES,
    curves=("accuracy", "consensus error"),
    reduced=_SHORT,
    size="Reduced: 20 rounds instead of 100, batches of 16 as in the paper. An MLP of 64 + 64.",
    note=_TEN,
    select="over-sites.accuracy.mean",
    paper=DEPRL_MNIST.paper,
    paper_note=_THEIRS,
)


def _of(workers: int) -> Method:
    """Return DePRL with so many workers, and a step size of the body that grows with √N, as in the theory."""
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
    size=(
        "Reduced: an MLP of 64 + 64 instead of AlexNet, 60 rounds instead of 100, batches of 8 instead of 16, two "
        "steps on the head and four on the body."
    ),
    note=(
        "The images are split across all workers, so each of 32 has an eighth of what each of 4 has. The step size of "
        "the body is 0.05 √(N/4), as in Corollary 1. `rounds to`: the first round after which the mean over the "
        "workers, each on its own part of the test set, was as high. The paper's Figure 4 and Table 9 have seconds."
    ),
    target=0.8,
    curves=("accuracy",),
)

STUDIES = (DEPRL_MNIST, DEPRL_CIFAR, DEPRL_SHALLOW, DEPRL_SPEEDUP)
