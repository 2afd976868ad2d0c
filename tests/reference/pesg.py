"""LibAUC's AUCMLoss, version v1, and PESG on a linear model, in NumPy and float64, with gradients written out by hand.

Nothing here is shared with the product. x holds the weights, the bias, then a and b.
"""

from __future__ import annotations

import numpy as np

from tests.reference.games import Rows, Vector


def scores(x: Vector, inputs: Vector) -> Vector:
    """Return h, the sigmoid of the model's outputs."""
    return np.asarray(1 / (1 + np.exp(-(inputs @ x[:-3] + x[-3]))))


def gradient(x: Vector, alpha: float, margin: float, inputs: Vector, labels: Rows) -> Vector:
    """Return the gradient by x of the loss, which takes p from the batch; the margin only moves its value."""
    h, (a, b), count = scores(x, inputs), x[-2:], len(labels)
    p = sum(labels == 1) / count
    g = np.zeros_like(x)
    for i in range(count):
        if labels[i] == 1:
            by_h = 2 * (1 - p) * (h[i] - a) - 2 * alpha * (1 - p)
            g[-2] -= 2 * (1 - p) * (h[i] - a) / count
        else:
            by_h = 2 * p * (h[i] - b) + 2 * alpha * p
            g[-1] -= 2 * p * (h[i] - b) / count
        by_output = by_h * h[i] * (1 - h[i]) / count
        g[:-3] += by_output * inputs[i]
        g[-3] += by_output
    return g


def pesg(
    x: Vector, batches: list[tuple[Vector, Rows]], lr: float, epoch_decay: float, margin: float
) -> tuple[list[Vector], list[float]]:
    """Take PESG's steps without momentum, weight decay and clipping; return all x, and all α from the first on.

    α's step is at the new a and b, without p(1-p), and takes nothing from the batch.
    """
    alpha, reference = 0.0, x.copy()
    points, alphas = [x.copy()], [alpha]
    for inputs, labels in batches:
        x = x - lr * (gradient(x, alpha, margin, inputs, labels) + epoch_decay * (x - reference))
        alpha = max(0.0, alpha + lr * 2 * (margin + x[-1] - x[-2] - alpha))
        points.append(x.copy())
        alphas.append(alpha)
    return points, alphas
