"""Federated learning for rare outcomes, on Flower: algorithms, problems and engines under one name.

>>> import edelweiss as ew
>>> run = ew.simulate(ew.Codasca(lr=0.05), ew.Auc(), ew.table("patients.csv", sites="clinic", label="died"), rounds=10)
>>> run.to_frame(); run.evidence; run.predict("new.csv"); run.plot()

Importing this package costs nothing: each name is loaded when it is first used.

Each folder at the top of the repository is a package of this one: ``strategies`` is ``strategies/``. In a
checkout a symbolic link leads there, in a wheel it is a folder. Where links are lost (Flower's bundle, a checkout on
Windows), the folders beside this one are on its path.
"""

from __future__ import annotations

import os

_HERE = os.path.dirname(os.path.realpath(__file__))
if not os.path.isdir(os.path.join(_HERE, "strategies")):
    # Only then: otherwise everything beside this folder, such as torch in site-packages, would be a module of it.
    # First of all: another thread may look for a module of this package as soon as it is known.
    __path__.append(os.path.dirname(_HERE))

from importlib import import_module  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

if TYPE_CHECKING:
    from pydantic import Field as Field

    from edelweiss.datasets.given import arrays as arrays
    from edelweiss.datasets.given import table as table
    from edelweiss.federation import AlgorithmInfo as AlgorithmInfo
    from edelweiss.federation import FederatedStrategy as Algorithm  # noqa: F401
    from edelweiss.problems import *  # noqa: F403
    from edelweiss.problems import metrics as metrics
    from edelweiss.problems.metrics import Metric as Metric
    from edelweiss.run import Run as Run
    from edelweiss.run import load_run as load_run
    from edelweiss.simulation import compare as compare
    from edelweiss.simulation import recommend as recommend
    from edelweiss.simulation import register as register
    from edelweiss.simulation import simulate as simulate
    from edelweiss.simulation import sweep as sweep
    from edelweiss.strategies import *  # noqa: F403

_HOMES = {
    "edelweiss.datasets.given": "arrays table",
    "edelweiss.federation": "AlgorithmInfo FederatedStrategy",
    "edelweiss.problems": (
        "Arrays Auc AucMargin Auprc Batch Bce BceAdjusted BceFocal BceWeighted CrossEntropy CrossEntropyAdjusted "
        "CrossEntropyFocal CrossEntropyWeighted Fair InvariantLogistic Maml Metrics NetworkProblem PartialAuc Problem "
        "Robust Saddle Setting"
    ),
    "edelweiss.problems.metrics": "Metric",
    "edelweiss.run": "Run load_run",
    "edelweiss.simulation": "compare recommend register simulate sweep",
    "pydantic": "Field",
    "edelweiss.strategies": (
        "AccFCSGM AdaFgda Alone Cdma Coda CodaPlus Codasca DPSGD DePRL DisPFL Ditto FCSG FCSGM FedAdam FedAvg FedBN "
        "FedDyn FedGdaGt FedNest FedProx FedRep FedRoD FedYogi FessGda Fgda Fmgda LocalSCGD LocalSCGDM LocalSGDA "
        "LocalSGDAPlus MomentumLocalSGDA MomentumLocalSGDAPlus NPA Sagda Scaffold"
    ),
}
"""The public names of this package, by the module that defines them."""

_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    """Load a name when it is first used."""
    if name == "metrics":
        return import_module("edelweiss.problems.metrics")
    real = "FederatedStrategy" if name == "Algorithm" else name
    if real not in _HOME:
        raise AttributeError(f"module 'edelweiss' has no attribute {name!r}")
    found: object = getattr(import_module(_HOME[real]), real)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, "metrics"})
