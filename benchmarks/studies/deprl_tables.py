"""What the DePRL paper measured (Xiong et al., AAAI 2024), at its size: 128 workers, deep networks, GPUs."""

from __future__ import annotations

from collections.abc import Mapping

ByMix = Mapping[str, Mapping[float, float]]
"""Accuracy by method and π."""

_MIXES = (0.1, 0.3, 0.5)
_METHODS = (
    *("fedavg", "fedrep", "ditto", "fedrod"),
    *(f"{name}, {graph}" for graph in ("ring", "random", "full") for name in ("d-psgd", "dispfl", "deprl")),
)


def _table(*lines: tuple[float, ...]) -> ByMix:
    """Return percentages as accuracies: a line per π, a column per method."""
    columns = zip(_METHODS, zip(*lines, strict=True), strict=True)
    return {
        label: {mix: round(value / 100, 4) for mix, value in zip(_MIXES, column, strict=True)}
        for label, column in columns
    }


# Tables 7 (the first four methods and the ring) and 1 (the other graphs).
CIFAR10 = _table(
    (43.09, 87.86, 86.84, 87.07, 53.91, 86.38, 89.57, 57.69, 89.01, 91.03, 58.90, 89.19, 91.33),
    (56.33, 74.60, 73.70, 75.57, 59.17, 73.48, 76.41, 64.12, 77.36, 79.60, 65.82, 78.52, 79.84),
    (57.91, 70.19, 68.45, 72.21, 60.45, 68.83, 72.51, 65.48, 73.30, 74.80, 67.30, 74.50, 75.04),
)
FASHION_MNIST = _table(
    (84.19, 94.27, 95.23, 95.93, 77.45, 95.74, 96.66, 84.74, 96.59, 97.16, 87.24, 96.76, 97.36),
    (86.58, 89.57, 90.82, 92.29, 81.95, 91.52, 92.81, 87.76, 93.47, 94.81, 89.80, 93.50, 95.03),
    (86.89, 88.53, 89.12, 90.92, 84.63, 89.49, 91.36, 88.93, 91.99, 93.55, 90.38, 92.13, 93.87),
)

# Tables 8 and 2, of new workers.
_NEW_ON_CIFAR10 = _table(
    (72.30, 74.67, 72.66, 73.49, 73.81, 70.85, 75.93, 74.78, 73.62, 80.22, 75.39, 73.71, 80.48),
    (55.47, 57.94, 55.45, 56.55, 57.34, 51.89, 59.01, 58.86, 57.08, 65.60, 59.68, 57.18, 65.67),
    (47.84, 51.56, 48.64, 49.07, 50.92, 47.36, 52.72, 52.51, 49.75, 63.04, 53.67, 49.81, 63.29),
)
_NEW_ON_FASHION_MNIST = _table(
    (83.78, 86.12, 84.24, 84.56, 84.76, 83.72, 87.34, 85.37, 85.44, 88.48, 86.48, 85.65, 88.86),
    (75.75, 77.28, 75.76, 76.66, 74.84, 73.07, 78.29, 78.54, 76.92, 80.74, 79.16, 77.69, 80.84),
    (69.26, 69.96, 68.01, 69.87, 67.54, 65.64, 71.14, 71.97, 70.31, 77.37, 72.57, 70.61, 77.52),
)
NEWCOMERS = {
    "deprl-cifar10": _NEW_ON_CIFAR10,
    "deprl-mnist": _NEW_ON_FASHION_MNIST,
    "deprl-mnist-128": _NEW_ON_FASHION_MNIST,
}
NEWCOMERS_NOTE = (
    "Paper: Tables 2 and 8 of Xiong et al., AAAI 2024 (DePRL), 64 new workers after 128, VGG-11 on CIFAR-10; where "
    "this is MNIST, AlexNet on Fashion-MNIST."
)
