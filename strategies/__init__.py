"""One file per algorithm, one row per algorithm here."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from edelweiss.common import PlugInError, Registry, by_name, require_declared, require_kinds
from edelweiss.federation import AlgorithmInfo, FederatedStrategy
from edelweiss.problems import KINDS
from edelweiss.strategies.acc_fcsg_m import AccFCSGM
from edelweiss.strategies.adafgda import AdaFgda
from edelweiss.strategies.cdma import Cdma
from edelweiss.strategies.coda import Coda
from edelweiss.strategies.coda_plus import CodaPlus
from edelweiss.strategies.codasca import Codasca
from edelweiss.strategies.d_psgd import DPSGD
from edelweiss.strategies.deprl import DePRL
from edelweiss.strategies.dispfl import DisPFL
from edelweiss.strategies.ditto import Ditto
from edelweiss.strategies.fcsg import FCSG, FCSGM
from edelweiss.strategies.fedavg import FedAvg
from edelweiss.strategies.fedbn import FedBN
from edelweiss.strategies.feddyn import FedDyn
from edelweiss.strategies.fedgda_gt import FedGdaGt
from edelweiss.strategies.fednest import FedNest
from edelweiss.strategies.fedopt import FedAdam, FedYogi
from edelweiss.strategies.fedprox import FedProx
from edelweiss.strategies.fedrep import FedRep
from edelweiss.strategies.fedrod import FedRoD
from edelweiss.strategies.fess_gda import FessGda
from edelweiss.strategies.fgda import Fgda
from edelweiss.strategies.fmgda import Fmgda
from edelweiss.strategies.local_only import Alone
from edelweiss.strategies.local_scgd import LocalSCGD, LocalSCGDM
from edelweiss.strategies.local_sgda import LocalSGDA
from edelweiss.strategies.local_sgda_plus import LocalSGDAPlus
from edelweiss.strategies.momentum_sgda import MomentumLocalSGDA, MomentumLocalSGDAPlus
from edelweiss.strategies.npa import NPA
from edelweiss.strategies.sagda import Sagda
from edelweiss.strategies.scaffold import Scaffold

if TYPE_CHECKING:
    from edelweiss.problems import Problem

__all__ = ["ALGORITHMS", "can_solve"]

SAYS = {"solves": 'frozenset({"minimisation"})', "info": 'ew.AlgorithmInfo(gradients="q")'}


def _accept(name: str, thing: Any) -> tuple[str, type[FederatedStrategy]]:
    """Check an algorithm from outside; it is called as its class says."""
    require_declared("algorithm", thing, FederatedStrategy, "frozen=True, kw_only=True", SAYS)
    if not isinstance(thing.info, AlgorithmInfo):
        raise PlugInError(f"algorithm {thing.__name__}: info must be such as {SAYS['info']}")
    if isinstance(thing.solves, str) or not isinstance(thing.solves, Collection) or not thing.solves:
        raise PlugInError(f"algorithm {thing.__name__}: solves must be such as {SAYS['solves']}")
    require_kinds("algorithm", thing, "solves", thing.solves, KINDS)
    return thing.name, thing


_BUILT_IN = by_name(
    Alone,
    FedAvg,
    FedProx,
    Scaffold,
    FedDyn,
    FedAdam,
    FedYogi,
    LocalSGDA,
    LocalSGDAPlus,
    NPA,
    MomentumLocalSGDA,
    MomentumLocalSGDAPlus,
    FessGda,
    Coda,
    CodaPlus,
    Codasca,
    Fmgda,
    Fgda,
    AdaFgda,
    Sagda,
    FedGdaGt,
    Cdma,
    FedNest,
    FCSG,
    FCSGM,
    AccFCSGM,
    LocalSCGD,
    LocalSCGDM,
    DPSGD,
    DePRL,
    DisPFL,
    FedBN,
    FedRep,
    Ditto,
    FedRoD,
)
ALGORITHMS: Registry[type[FederatedStrategy]] = Registry("algorithm", _BUILT_IN, _accept)


def can_solve(algorithm: type[FederatedStrategy], problem: type[Problem]) -> bool:
    """Return whether an algorithm is for problems of this kind, and this one offers what it needs."""
    return problem.kind in algorithm.solves and all(need in problem.__mro__ for need in algorithm.needs)
