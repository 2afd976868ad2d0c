"""DePRL (Xiong et al., AAAI 2024): how its methods scale with workers, and with steps on the head (Figures 4, 7-9)."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.studies.deprl import personal
from benchmarks.studies.study import REPO, Method, Settings, Study

_SMALL: Settings = {"model": "mlp", "hidden": 64, "batch-size": 16}
_ACCURACY = {"over-sites.accuracy.mean": "accuracy", "over-sites.accuracy.worst-decile": "worst decile"}
_STEPS = (0.05, 0.15)
_FOUR = (
    personal("fedrep", *_STEPS, local_steps=5, body_steps=5),
    personal("d-psgd", *_STEPS, topology="ring"),
    personal("dispfl", *_STEPS, topology="ring", local_steps=9),
    personal("deprl", *_STEPS, topology="ring", local_steps=5, body_steps=5),
)
_EQUAL = "Every method takes ten gradients per worker and round."

SPEEDUP = Study(
    name="deprl-speedup-methods",
    title="Personal models on MNIST: rounds and seconds to a mean accuracy, four methods",
    experiment=REPO / "experiments/deprl/mnist.toml",
    methods=_FOUR,
    report=_ACCURACY | {"pooled.loss": "loss"},
    compare={"sites": (4, 8, 16, 32)},
    tune_by=("sites",),
    reduced={**_SMALL, "rounds": 40, "evaluate-every": 1},
    size="Reduced: an MLP of 64 + 64 instead of AlexNet, 40 rounds instead of 100, batches of 16 as in the paper.",
    note=(
        f"{_EQUAL} The images are split across all workers. Step sizes were chosen for each number of workers, by the "
        "accuracy after the last round. Seconds are those of the process that played all workers one after the other, "
        "divided by their number: what a worker of its own would take, without the network. The loss is the mean over "
        "the workers' test images."
    ),
    select="over-sites.accuracy.mean",
    target=0.9,
    curves=("accuracy", "loss"),
    paper={
        label: {"accuracy": dict(zip((4, 8, 16, 32), accuracies, strict=True))}
        for label, accuracies in (
            ("fedrep", (0.741, 0.6856, 0.5961, 0.5337)),
            ("d-psgd, ring", (0.5576, 0.4987, 0.424, 0.3671)),
            ("dispfl, ring", (0.6896, 0.6287, 0.5663, 0.4795)),
            ("deprl, ring", (0.7798, 0.7158, 0.6135, 0.5494)),
        )
    },
    paper_note=(
        "Paper: Table 9 of Xiong et al., AAAI 2024 (DePRL), CIFAR-100 with ResNet-18 on GPUs. Its seconds to an "
        "accuracy of 0.35, with 4, 8, 16 and 32 workers: FedRep 381.5, 194.1, 105.4, 59.7; D-PSGD 427.6, 221.3, 121.0, "
        "66.1; DisPFL 356.5, 185.9, 107.5, 55.8; DePRL 332.8, 167.5, 87.6, 47.5."
    ),
)


def _any_steps(method: Method) -> Method:
    """Return a method that leaves its local steps to what is compared."""
    return replace(method, settings={key: value for key, value in method.settings.items() if key != "local-steps"})


HEAD_STEPS = Study(
    name="deprl-head-steps",
    title="Personal models on MNIST: steps on the head in a round, 32 workers, π = 0.3",
    experiment=REPO / "experiments/deprl/mnist.toml",
    methods=tuple(map(_any_steps, _FOUR)),
    report=_ACCURACY,
    compare={"local-steps": (1, 2, 5, 10)},
    tune_by=("local-steps",),
    reduced={**_SMALL, "rounds": 20, "evaluate-every": 0},
    size="Reduced: an MLP of 64 + 64 instead of AlexNet, 20 rounds instead of 100, batches of 16 as in the paper.",
    note=(
        "local-steps is τ: steps on the head of DePRL and FedRep, which then take five on the body; of the two others "
        "all their steps. Figure 8 of the paper, which has CIFAR-100 and HARBox."
    ),
    select="over-sites.accuracy.mean",
    picture="axis",
)

WORKERS = Study(
    name="deprl-workers",
    title="Personal models on MNIST: the number of workers, π = 0.3",
    experiment=REPO / "experiments/deprl/mnist.toml",
    methods=(personal("fedavg", *_STEPS), *_FOUR),
    report=_ACCURACY,
    compare={"sites": (8, 32, 128)},
    tune_by=("sites",),
    reduced={**_SMALL, "rounds": 20, "evaluate-every": 0},
    size="Reduced: an MLP of 64 + 64 instead of AlexNet, 20 rounds instead of 100, batches of 16 as in the paper.",
    note=f"{_EQUAL} Figure 9 of the paper, which has CIFAR-100 and HARBox.",
    select="over-sites.accuracy.mean",
    picture="axis",
)

STUDIES = (SPEEDUP, HEAD_STEPS, WORKERS)
