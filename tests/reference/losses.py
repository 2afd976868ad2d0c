"""The losses as they are written down, sample by sample, on a linear network: x holds weights, bias, then a and b.

Of several classes the weights come class by class, then the biases.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.reference.games import Vector


def value(variant: dict[str, Any], x: Vector, y: Vector, inputs: Vector, labels: Vector) -> float:
    """Return f(x, y; batch)."""
    if "classes" in variant:
        return of_several_classes(variant, x, y, inputs, labels)
    name, p = variant["name"], variant["prior"]
    features = inputs.shape[1]
    total = 0.0
    for row, label in zip(inputs, labels, strict=True):
        logit = float(row @ x[:features] + x[features])
        if name.startswith("bce"):
            if name == "bce-adjusted":
                logit += variant["tau"] * math.log(p / (1 - p))
            probability = 1 / (1 + math.exp(-logit))
            right = probability if label else 1 - probability
            own = variant.get("alpha", 0.5)
            weight = {
                "bce-weighted": 1 / (2 * p) if label else 1 / (2 * (1 - p)),
                "bce-focal": 2 * (own if label else 1 - own) * (1 - right) ** variant.get("gamma", 0),
            }.get(name, 1.0)
            total -= weight * math.log(right)
            continue
        h = logit if variant["score"] == "identity" else 1 / (1 + math.exp(-logit))
        a, b, alpha = x[features + 1], x[features + 2], y[0]
        positive, negative = (1.0, 0.0) if label else (0.0, 1.0)
        total += (1 - p) * (h - a) ** 2 * positive + p * (h - b) ** 2 * negative
        gap = p * h * negative - (1 - p) * h * positive
        if name == "auc":
            total += 2 * (1 + alpha) * gap - p * (1 - p) * alpha**2
        else:
            total += 2 * alpha * (p * (1 - p) * variant["margin"] + gap) - p * (1 - p) * alpha**2
    return float(total / len(labels))


def trained(variant: dict[str, Any]) -> float:
    """Return what the gradients are of, as a multiple of f: AUC is normalised by default."""
    p = variant.get("prior", 0.5)
    normalised = variant["name"] in ("auc", "auc-margin") and variant.get("normalise", True)
    return 1 / (4 * p * (1 - p)) if normalised else 1.0


def of_several_classes(variant: dict[str, Any], x: Vector, y: Vector, inputs: Vector, labels: Vector) -> float:
    """Return f(x, y; batch) of ``cross-entropy``, ``robust`` or ``fair``."""
    classes, features = variant["classes"], inputs.shape[1]
    weights = [x[c * features : (c + 1) * features] for c in range(classes)]
    biases = x[classes * features :]
    total = 0.0
    for row, label in zip(inputs, labels, strict=True):
        seen = row + y if variant["name"] == "robust" else row
        logits = [float(weights[c] @ seen + biases[c]) for c in range(classes)]
        if variant.get("criterion") == "squared":
            total += sum((logits[c] - (c == label)) ** 2 for c in range(classes))
            continue
        if variant["name"] == "cross-entropy-adjusted":
            logits = [h + variant["tau"] * math.log(p) for h, p in zip(logits, variant["shares"], strict=True)]
        right = math.exp(logits[label]) / sum(map(math.exp, logits))
        weight = 1.0
        if variant["name"] == "fair":
            weight = y[label] / variant["shares"][label]
        elif variant["name"] == "cross-entropy-weighted":
            weight = 1 / (classes * variant["shares"][label])
        elif variant["name"] == "cross-entropy-focal":
            weight = (1 - right) ** variant["gamma"]
        total -= weight * math.log(right)
    return float(total / len(labels))


def finite_differences(function: Any, at: Vector, step: float = 1e-5) -> Vector:
    """Return the gradient of a function of a vector, by central differences."""
    gradient = np.zeros_like(at)
    for i in range(len(at)):
        forward, backward = at.copy(), at.copy()
        forward[i] += step
        backward[i] -= step
        gradient[i] = (function(forward) - function(backward)) / (2 * step)
    return gradient


def double_loop(scores: Vector, labels: Vector, margin: float) -> float:
    """Return the mean over positives of -g₁/g₂, pair by pair."""
    terms = []
    for h_plus, label in zip(scores, labels, strict=True):
        if label != 1:
            continue
        among_positives = among_all = 0.0
        for h, other in zip(scores, labels, strict=True):
            loss = max(margin - h_plus + h, 0.0) ** 2
            among_all += loss / len(labels)
            among_positives += loss * (other == 1) / len(labels)
        terms.append(-among_positives / among_all)
    return float(np.mean(terms))


def sigmoid(logits: Vector) -> Vector:
    return np.asarray(1 / (1 + np.exp(-logits)))
