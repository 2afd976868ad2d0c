"""AdaFGDA (Huang et al., AISTATS 2024): the saddle problem, robust training, AUC on MNIST."""

from __future__ import annotations

from benchmarks.studies.study import CODA, REPO, STEPS, Method, Study, method
from edelweiss.common import Value

SMALL_STEPS = (0.0003, 0.001, 0.003, 0.01, 0.03)  # AdaFGDA divides by √a + ρ
_CUBE_ROOT = "cube-root"
RANKING = {"central.auroc": "AUROC", "central.auprc": "AUPRC"}


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
        _saddle("adafgda", 0.01, rho=0.1),
        _saddle("sagda"),
        _saddle("cdma"),
        _saddle("fednest"),
    ),
    report={"central.distance-x": "‖x-x*‖²", "central.distance-y": "‖y-y*‖²"},
    compare={"saddle.heterogeneity": (1.0, 10.0)},
    reduced={"evaluate-every": 4},
    size=(
        "200 rounds, for the paper's 200 epochs; K, d and q are ours, for it names none. The curves have a point every "
        "4 rounds. FEDNEST exchanges four times a round, SAGDA and CDMA twice."
    ),
    select="central.distance-x",
)

ROBUST = Study(
    name="robust-mnist",
    title="Robust training on MNIST, 3-layer MLP, 10 sites",
    experiment=REPO / "experiments/adafgda/robust-mnist.toml",
    methods=(
        method("npa", 0.1, 0.3, full=STEPS, settings={"local-steps": 1, "npa.batch": 300}),
        method("local-sgda", 0.1, 0.3, full=STEPS),
        method("local-sgda-plus", 0.1, 0.3, full=STEPS),
        method("momentum-local-sgda", 0.1, 0.3, full=STEPS),
        method("momentum-local-sgda-plus", 0.1, 0.3, full=STEPS),
        method("coda-plus", 0.1, 0.3, full=STEPS),
        method("codasca", 0.1, 0.3, full=STEPS),
        method("fmgda", 0.03, 0.1, full=STEPS),
        method("fgda", 0.03, 0.1, full=STEPS),
        method("adafgda", 0.001, 0.003, full=SMALL_STEPS),
        method("sagda", 0.1, 0.3, full=STEPS),
        method("cdma", 0.03, 0.1, full=STEPS),
        method("fednest", 0.1, 0.3, full=STEPS),
    ),
    report={"central.robust-accuracy": "accuracy under ν", "central.accuracy": "accuracy, clean"},
    compare={"local-steps": (6, 12)},
    reduced={"rounds": 50, "evaluate-every": 10},
    size=(
        "Reduced: 50 rounds instead of 500, 2 step sizes instead of 5. Methods that carry gradient differences along "
        "get smaller ones: FMGDA diverges with 0.1 and 0.3, CDMA with 0.3."
    ),
    note="The loss is cross-entropy, where the paper prints a squared one.",
    select="pooled.robust-accuracy",
    reference="local-sgda",
)


def auc_methods(steps: tuple[float, float], small: tuple[float, float]) -> tuple[Method, ...]:
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
    title="AUC on MNIST, 5 % positive, LeNet5, 16 sites by class",
    experiment=REPO / "experiments/adafgda/auc-mnist.toml",
    methods=(
        *auc_methods((0.3, 1.0), (0.003, 0.01)),
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
    report=RANKING,
    reduced={"local-steps": 10, "rounds": 24, "stage-iterations": 80, "evaluate-every": 6},
    size=(
        "Reduced: q = 10 instead of 12, 24 rounds instead of 400, 2 step sizes instead of 5. Step sizes are divided by "
        "3 every 8 rounds, except those of npa, whose rounds are single steps on 10 batches."
    ),
    reference="fedavg-bce",
    curves=("AUROC",),
)

STUDIES = (SADDLE, ROBUST, AUC_MNIST)
