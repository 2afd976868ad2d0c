"""UCI heart disease at the four hospitals that collected it."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.studies.deprl import PLAIN, personal
from benchmarks.studies.study import REPO, Study, method
from edelweiss.common import Value

_HOSPITALS = {
    "sites.cleveland.auroc": "Cleveland",
    "sites.hungarian.auroc": "Hungarian",
    "sites.switzerland.auroc": "Switzerland",
    "sites.va.auroc": "VA",
}
_FOLDS: Mapping[str, tuple[Value, ...]] = {"seed": (0, 1, 2), "fold": (0, 1, 2, 3, 4)}
_WHOLE = "Nothing is reduced."
_ONE_FOLD = (
    "The step size was chosen on one fold at another seed, for every method alike: about a fifth of the patients of "
    "each fold took part."
)

HEART = Study(
    name="heart",
    title="UCI heart disease, the four hospitals, 5-fold cross-validation",
    experiment=REPO / "experiments/heart/hospitals.toml",
    methods=(
        method("alone", 0.03, 0.1, 0.3, label="each hospital alone", settings={"problem": "bce"}),
        method("fedavg", 0.03, 0.1, 0.3, label="fedavg-bce", settings={"problem": "bce"}),
        method("coda-plus", 0.03, 0.1, 0.3),
        method("codasca", 0.03, 0.1, 0.3),
        method("fmgda", 0.03, 0.1, 0.3),
        method("adafgda", 0.001, 0.003, 0.01),
    ),
    report={"pooled.auroc": "all hospitals", **_HOSPITALS},
    repeat=_FOLDS,
    size=_WHOLE,
    note=f"AUROC on the patients of the fold that each hospital held out. {_ONE_FOLD}",
    picture="points",
)

_HEART_STEPS = (0.03, 0.1, 0.3)

HEART_PERSONAL = Study(
    name="heart-personal",
    title="UCI heart disease: a model for each hospital, trained for AUC, 5-fold cross-validation",
    experiment=REPO / "experiments/heart/hospitals.toml",
    methods=(
        method("alone", *_HEART_STEPS, label="each hospital alone"),
        method("local-sgda", *_HEART_STEPS, label="local-sgda: one model"),
        method("codasca", *_HEART_STEPS, label="codasca: one model"),
        # local-sgda and codasca have no decay of the step size, so nobody has, and nobody gets weight decay.
        personal("ditto", *_HEART_STEPS, local_steps=5, dual=True, sgd=PLAIN),
        personal("fedrep", *_HEART_STEPS, local_steps=5, body_steps=5, dual=True, sgd=PLAIN),
        personal("deprl", *_HEART_STEPS, topology="ring", local_steps=5, body_steps=5, dual=True, sgd=PLAIN),
    ),
    report={"over-sites.auroc.mean": "mean", "over-sites.auroc.worst-decile": "worst", **_HOSPITALS},
    repeat=_FOLDS,
    size=_WHOLE,
    note=(
        "AUROC on the patients of the fold that each hospital held out: mean over the four hospitals, the worst of "
        "them, and each. All methods solve the minimax AUC problem; every hospital has ten gradients per round. "
        f"{_ONE_FOLD}"
    ),
    select="over-sites.auroc.mean",
    picture="points",
)

STUDIES = (HEART, HEART_PERSONAL)
