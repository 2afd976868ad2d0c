"""What differential privacy at the sites costs in AUROC, at several ε; see `benchmarks.price`."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.studies.study import REPO, Method, Settings, Study
from edelweiss.common import Value

EPSILON = "dp.epsilon"
EPSILONS = (0.0, 8.0, 3.0, 1.0)
CLIP = 1.0
_STEPS = (0.1, 0.3, 1.0)
_ALIKE = "`dp.clip` is 1 if a name says nothing else."
_OWN = (
    "ditto has a model for each site, and none for the common test set: its AUROC is that of held-out patients, "
    "without privacy the sites' mean (`held out`), under privacy over the pairs within sites, from noised histograms "
    "(`noised`); where positives do not stand out of the noise at every seed it has none."
)


def _method(algorithm: str, problem: str, clip: float = CLIP) -> Method:
    """Return a method with a step size for x, and the same for y where there is one."""
    keys = [f"{algorithm}.lr", *([f"{algorithm}.lr-dual"] if algorithm == "fmgda" else [])]
    settings: Settings = {"problem": problem, "dp.clip": clip}
    return Method(
        label=f"{algorithm}-{problem}{f', clip {clip:g}' * (clip != CLIP)}",
        algorithm=algorithm,
        settings=settings,
        grid=tuple(dict.fromkeys(keys, step) for step in _STEPS),
    )


_METHODS = (
    _method("fedavg", "bce"),
    _method("fedprox", "bce"),
    _method("codasca", "auc"),
    _method("codasca", "auc", clip=3.0),
    _method("fmgda", "auc"),
    _method("ditto", "bce"),
)


def _study(
    name: str,
    title: str,
    note: str,
    seeds: int,
    compare: Mapping[str, tuple[Value, ...]] | None = None,
    names: Mapping[str, Mapping[Value, str]] | None = None,
    *,
    generated: bool = False,
) -> Study:
    """Return a study of all methods, with a choice of their own for every value that is compared."""
    compare = {**(compare or {}), EPSILON: EPSILONS}
    return Study(
        name=f"privacy-{name}",
        title=title,
        experiment=REPO / f"experiments/privacy/{name}.toml",
        methods=_METHODS,
        report={"central.auroc": "AUROC", "noised.auroc": "noised", "over-sites.auroc.mean": "held out"},
        compare=compare,
        repeat={"seed": tuple(range(seeds))},
        note=f"{note} {_ALIKE} {_OWN}",
        tune_by=tuple(compare),
        extend=0,
        picture="axis",
        names={EPSILON: {0.0: "∞"}, **(names or {})},
        generated=generated,
    )


PATIENTS: Mapping[Value, int] = {0.2: 6000, 0.7333: 2000, 0.9733: 200}
"""Patients that each of 8 sites trains on, of 7,500, by the share that it holds out."""

MNIST = _study(
    "mnist",
    "What privacy costs on MNIST, one digit of ten positive, 8 sites",
    "AUROC on MNIST's test set, digit 8 against the rest. A site has 7,500 images, each a patient, and holds out what "
    "it does not train on: with 200 patients 7,300, which no hospital of that size has, so that its steps are chosen "
    "with less noise than such a hospital's would be.",
    seeds=5,
    compare={"holdout-share": tuple(PATIENTS)},
    names={"holdout-share": {share: f"{count:,} patients a site" for share, count in PATIENTS.items()}},
)

HEART = _study(
    "heart",
    "What privacy costs on heart disease, the four hospitals",
    "AUROC on a common test set of a quarter of all patients, drawn anew with each seed; δ = 0.0001. A linear model.",
    seeds=5,
)

XRAYS = _study(
    "xrays",
    "What privacy costs on generated chest X-rays, five hospitals",
    "AUROC of Atelectasis on a common test set of a quarter of all patients, drawn anew with each seed; δ = 0.0001. "
    "Images of 32 x 32 pixels (`python -m benchmarks.xrays`, seed 0, a hundredth of each source's number), an MLP of "
    "64 + 64. A patient may have several images, and counts once.",
    seeds=5,
    generated=True,
)

STUDIES = (MNIST, HEART, XRAYS)
