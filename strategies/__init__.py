"""One file per algorithm, one row per algorithm here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keys import by_name
from strategies.acc_fcsg_m import AccFCSGM
from strategies.adafgda import AdaFgda
from strategies.alone import Alone
from strategies.cdma import Cdma
from strategies.coda import Coda
from strategies.coda_plus import CodaPlus
from strategies.codasca import Codasca
from strategies.d_psgd import DPSGD
from strategies.deprl import DePRL
from strategies.dispfl import DisPFL
from strategies.ditto import Ditto
from strategies.fcsg import FCSG, FCSGM
from strategies.fedavg import FedAvg
from strategies.fedgda_gt import FedGdaGt
from strategies.fednest import FedNest
from strategies.fedrep import FedRep
from strategies.fedrod import FedRoD
from strategies.fgda import Fgda
from strategies.fmgda import Fmgda
from strategies.local_scgd import LocalSCGD, LocalSCGDM
from strategies.local_sgda import LocalSGDA
from strategies.local_sgda_plus import LocalSGDAPlus
from strategies.momentum_sgda import MomentumLocalSGDA, MomentumLocalSGDAPlus
from strategies.npa import NPA
from strategies.sagda import Sagda

if TYPE_CHECKING:
    from federation import FederatedStrategy
    from problems import Problem

__all__ = ["ALGORITHMS", "can_solve"]

ALGORITHMS: dict[str, type[FederatedStrategy]] = by_name(
    Alone,
    FedAvg,
    LocalSGDA,
    LocalSGDAPlus,
    NPA,
    MomentumLocalSGDA,
    MomentumLocalSGDAPlus,
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
    FedRep,
    Ditto,
    FedRoD,
)


def can_solve(algorithm: type[FederatedStrategy], problem: type[Problem]) -> bool:
    """Return whether an algorithm is for problems of this kind, and this one offers what it needs."""
    return problem.kind in algorithm.solves and all(need in problem.__mro__ for need in algorithm.needs)
