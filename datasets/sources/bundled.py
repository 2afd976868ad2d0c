"""Two data sets bundled with scikit-learn."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from edelweiss.datasets.files import SearchPath
from edelweiss.datasets.source import Source

_MEASURES = "radius,texture,perimeter,area,smoothness,compactness,concavity,concave points,symmetry,fractal dimension"
BREAST_CANCER = tuple(f"{kind} {measure}" for kind in ("mean", "error", "worst") for measure in _MEASURES.split(","))


def breast_cancer(search_path: SearchPath) -> Source:
    """Breast cancer Wisconsin (diagnostic): 569 rows of 30 features; class 1 is malignant."""
    table = np.loadtxt(_path("breast_cancer.csv"), delimiter=",", skiprows=1)
    # scikit-learn codes malignant as 0.
    classes = 1 - table[:, -1].astype(np.int64)
    return Source(torch.from_numpy(table[:, :-1].astype(np.float32)), classes, 2, features=BREAST_CANCER)


def digits(search_path: SearchPath) -> Source:
    """Handwritten digits: 1,797 grey images of 8x8 with levels 0 to 16, 10 classes."""
    table = np.loadtxt(_path("digits.csv.gz"), delimiter=",").astype(np.uint8)
    inputs = torch.from_numpy(table[:, :-1].reshape(-1, 1, 8, 8))
    return Source(inputs, table[:, -1].astype(np.int64), 10)


def _path(name: str) -> Path:
    """Return the path of a table without importing scikit-learn, which takes over a second."""
    spec = find_spec("sklearn")
    assert spec is not None, "scikit-learn is a dependency"
    assert spec.origin is not None
    return Path(spec.origin).parent / "datasets" / "data" / name
