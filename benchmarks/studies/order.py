"""Which method ranks best, when each searches its own ranges with the same number of trials."""

from __future__ import annotations

from benchmarks.studies.study import REPO, Method, Settings, Study
from edelweiss.lab.sweep.study import Between, Ranges

_SHARED: Ranges = {
    "batch-size": (32, 64, 128),
    "stage-iterations": (0, 200, 400),
    "sampler": ("uniform", "fixed-positives"),
    "positives-per-batch": (4, 8, 16),
}
_OBJECTIVE: Ranges = {"problem": ("auc", "auc-margin"), "auc.score auc-margin.score": ("sigmoid", "identity")}
_WEIGHTS = (0.1, 0.3, 0.5, 0.9)


def searched(algorithm: str, own: Ranges, *, label: str = "", settings: Settings | None = None) -> Method:
    """Return a method with the ranges that all share, those of the objective unless it is given, and its own."""
    given = settings or {}
    ranges = {f"{algorithm}.{key}": values for key, values in own.items()}
    ranges |= _SHARED | ({} if "problem" in given else _OBJECTIVE)
    return Method(label=label or algorithm, algorithm=algorithm, settings=given, ranges=ranges)


def _methods(step: Between) -> tuple[Method, ...]:
    two: Ranges = {"lr": step, "lr-dual": step}
    return (
        searched("fedavg", {"lr": step}, label="fedavg-bce", settings={"problem": "bce"}),
        searched("coda-plus", {"lr": step, "gamma": (0.0, 0.001, 0.002)}),
        searched("codasca", {"lr": step, "gamma": (0.0, 0.001, 0.002), "server-lr": (0.99, 0.999, 1.0, 1.1)}),
        searched("local-sgda", two),
        searched("momentum-local-sgda", two | {"beta": _WEIGHTS, "beta-dual": _WEIGHTS}),
        searched("fmgda", two | {"fresh-weight": _WEIGHTS, "fresh-weight-dual": _WEIGHTS}),
        searched("sagda", two | {"server-lr": (0.5, 1.0, 1.5)}),
    )


_NOTE = (
    "Every method has the same iterations, and draws step sizes, batch size, stages and sampler; methods for AUC also "
    "the loss (with margin or without) and the scores, and each what is its own. A trial with larger batches, or of a "
    "method that takes two gradients per step, costs more: the columns of costs say how much the chosen one did."
)


def _order(
    data: str, step: Between, reduced: Settings, size: str, trials: int, name: str = "", only: tuple[str, ...] = ()
) -> Study:
    file = data.lower().replace("-", "")
    return Study(
        name=name or f"order-{file}",
        title=f"The order of methods by random search: AUC on {data}, 10 % positive, 10 sites by class, q = 20",
        experiment=REPO / f"experiments/codasca/{file}.toml",
        methods=tuple(method for method in _methods(step) if not only or method.label in only),
        report={"central.auroc": "AUROC", "central.auprc": "AUPRC"},
        repeat={"seed": (0, 1, 2, 3, 4)},
        trials=trials,
        versus="fedavg-bce",
        reference="fedavg-bce",
        reduced={"evaluate-every": 8} | reduced,
        size=size,
        note=_NOTE,
        curves=("AUROC",),
    )


_MLP: Settings = {"sites": 10, "rounds": 40, "model": "mlp", "hidden": 64}

ORDER_MNIST = _order(
    "MNIST",
    Between(0.01, 3.0),
    {"auc.normalise": True, **_MLP},
    "Reduced: an MLP of 64 + 64 instead of cnn-mnist, 10 sites instead of 16, but 40 rounds.",
    12,
)
# As it was run: on the papers' scale of the loss, and in narrower ranges.
ORDER_CIFAR = _order(
    "CIFAR-10",
    Between(0.03, 1.5),
    {"auc-margin.normalise": False, "model": "lenet5", "rounds": 24},
    "Reduced: LeNet5 instead of cnn-cifar, 24 rounds instead of 40. The images are recompressed JPEGs.",
    12,
)
# CODA+ chose near the end of its range there.
ORDER_CIFAR_WIDER = _order(
    "CIFAR-10",
    Between(0.01, 3.0),
    {"auc.normalise": True, "model": "lenet5", "rounds": 24},
    "Reduced: as order-cifar10, CODA+ beside FedAvg alone.",
    12,
    name="order-cifar10-wider",
    only=("fedavg-bce", "coda-plus"),
)

STUDIES = (ORDER_MNIST, ORDER_CIFAR, ORDER_CIFAR_WIDER)
