"""AUROC, its variance and the covariance of two, as DeLong et al. (1988) write them: over all pairs of patients."""

from __future__ import annotations

import numpy as np


def components(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return V10 of each positive and V01 of each negative, equations (4) and (5)."""
    positives, negatives = scores[labels == 1], scores[labels == 0]
    psi = (positives[:, None] > negatives[None, :]) + 0.5 * (positives[:, None] == negatives[None, :])
    return psi.mean(1), psi.mean(0)


def delong(labels: np.ndarray, *models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the AUROCs of several models on the same patients, and their covariance matrix."""
    v10, v01 = (np.stack(part) for part in zip(*(components(labels, scores) for scores in models), strict=True))
    covariance = np.atleast_2d(np.cov(v10)) / v10.shape[1] + np.atleast_2d(np.cov(v01)) / v01.shape[1]
    return v10.mean(1), covariance


def clustered(labels: np.ndarray, scores: np.ndarray, patients: np.ndarray) -> float:
    """Return the variance of Obuchowski (1997) by its sums over patients."""
    return _over_patients(*components(labels, scores), labels, patients)


def clustered_difference(labels: np.ndarray, one: np.ndarray, other: np.ndarray, patients: np.ndarray) -> float:
    """Return that of the difference of two AUROCs: of the components' differences."""
    both = zip(components(labels, one), components(labels, other), strict=True)
    v10, v01 = (first - second for first, second in both)
    return _over_patients(v10, v01, labels, patients)


def _over_patients(v10: np.ndarray, v01: np.ndarray, labels: np.ndarray, patients: np.ndarray) -> float:
    theta, m, n = v10.mean(), len(v10), len(v01)
    own = {}
    for patient in np.unique(patients):
        a = v10[patients[labels == 1] == patient] - theta
        b = v01[patients[labels == 0] == patient] - theta
        own[patient] = (a.sum(), b.sum(), len(a), len(b))
    sums = np.array(list(own.values()))
    i10, i01, i = (sums[:, 2] > 0).sum(), (sums[:, 3] > 0).sum(), len(sums)
    s10 = i10 / ((i10 - 1) * m) * (sums[:, 0] ** 2).sum()
    s01 = i01 / ((i01 - 1) * n) * (sums[:, 1] ** 2).sum()
    s11 = i / (i - 1) * (sums[:, 0] * sums[:, 1]).sum()
    return float(s10 / m + s01 / n + 2 * s11 / (m * n))
