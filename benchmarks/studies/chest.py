"""Chest X-rays of five sources (CODASCA, sections 6.1 and 6.2), on generated images: `benchmarks.xrays`."""

from __future__ import annotations

from benchmarks.studies.study import REPO, Method, Settings, Study, method

_FINDINGS = {
    "central.auroc.Cardiomegaly": "Cardiomegaly",
    "central.auroc.Edema": "Edema",
    "central.auroc.Consolidation": "Consolidation",
    "central.auroc.Atelectasis": "Atelectasis",
    "central.auroc.Pleural Effusion": "Effusion",
}
_HOSPITALS = {
    "sites.chexpert.auroc": "at CheXpert",
    "sites.nih.auroc": "at NIH",
    "sites.padchest.auroc": "at PadChest",
    "sites.mimic.auroc": "at MIMIC",
    "sites.vindr.auroc": "at VinDr",
}
_SMALL: Settings = {"model": "mlp", "hidden": 64, "image-size": 0, "stage-iterations": 640, "evaluate-every": 0}
_SIZE = (
    "generated images of 32 x 32 pixels, a hundredth of each source's number, instead of the sources' at 320 x 320; "
    "an MLP of 64 + 64 instead of DenseNet121; 1,280 iterations instead of 20,000, step sizes divided by 3 once, after "
    "640"
)
_DATA = "The command draws the images first (`python -m benchmarks.xrays`, seed 0), in the folder of its runs."
_STEPS, _STEPS_BCE = (0.3, 1.0, 3.0), (0.1, 0.3, 1.0)
_POOLED: Settings = {"sites": 1, "partition": "iid", "batch-size": 160}

CHEST = Study(
    name="chest-xrays",
    title="Five findings in generated chest X-rays of five sources, a hospital each",
    experiment=REPO / "experiments/codasca/chest-xrays.toml",
    methods=(
        method("alone", *_STEPS_BCE, label="each hospital alone", settings={"problem": "bce"}),
        method("fedavg", *_STEPS_BCE, label="fedavg-bce", settings={"problem": "bce"}),
        method("coda-plus", *_STEPS),
        method("codasca", *_STEPS),
        method("fedavg", *_STEPS_BCE, label="all pooled, fedavg-bce", settings={"problem": "bce", **_POOLED}),
        method("codasca", *_STEPS, label="all pooled, codasca", settings=_POOLED),
    ),
    report={"central.auroc": "AUROC", **_FINDINGS, **_HOSPITALS},
    repeat={"seed": (0, 1, 2, 3, 4)},
    reduced=_SMALL | {"sites": 5, "partition": "sites", "local-steps": 32, "rounds": 40, "test-share": 0.25},
    size=(
        f"Reduced: {_SIZE}; exchanges every 32 iterations instead of every 512; 5 sites instead of 16; a common test "
        "set of 25 % of every source instead of 5 %."
    ),
    note=(
        f"{_DATA} AUROC is the mean over the five findings on the common test set, which the next columns have one by "
        "one; it is drawn anew with each seed. The last columns are means over the findings on the patients that each "
        "hospital held out. A hospital alone has a model of its own, and none for the common test set; it trains by "
        "cross-entropy. `all pooled` is one site that has all patients, with batches five times as large."
    ),
    versus="codasca",
    versus_in=("AUROC", *_HOSPITALS.values()),
    picture="points",
    generated=True,
)

_FIRST = ("K = 1: CheXpert", "K = 2: and NIH", "K = 3: and PadChest", "K = 4: and MIMIC", "K = 5: and VinDr")


def _sources(count: int, label: str, settings: Settings | None = None) -> Method:
    return method("codasca", *_STEPS, label=label, settings={"sites": count, **(settings or {})})


SOURCES = Study(
    name="chest-sources",
    title="Do more sources help CheXpert? Two stages on generated chest X-rays",
    experiment=REPO / "experiments/codasca/chest-xrays-sources.toml",
    methods=(
        *(_sources(count, label) for count, label in enumerate(_FIRST, start=1)),
        _sources(5, "K = 5, by size", {"weighting": "examples"}),
        _sources(5, "K = 5, one stage", {"init-from": "", "init-head": "keep"}),
    ),
    report={"central.auroc": "AUROC", **_FINDINGS},
    repeat={"seed": (0, 1, 2, 3, 4)},
    select="sites.chexpert.auroc",
    reduced=_SMALL | {"local-steps": 16, "rounds": 80, "holdout-share": 0.3},
    size=f"Reduced: {_SIZE}; held out are 30 % of the patients instead of 10 %.",
    note=(
        f"{_DATA} AUROC is on 1,000 images of CheXpert's validation patients, which no site has. Each seed has a first "
        "stage of its own: chest-xrays-first-stage.toml at CheXpert alone, for two epochs with Adam and a step size of "
        "0.001; all K go on from it. Each K adds a source to those of the line above. "
        "Sites count alike, and `by size` with their images."
    ),
    versus=_FIRST[0],
    picture="points",
    paper_note=(
        "The paper (Table 4 of Yuan et al., ICML 2021) has a mean AUROC of 0.9353, 0.9361, 0.9356, 0.9372 and 0.9376 "
        "for K = 1 to 5 with DenseNet121 on the true images, without spreads, and (Table 5) 0.9316, 0.9333, 0.9356, "
        "0.9367 and 0.9370 with DenseNet161."
    ),
    generated=True,
    first_stage=REPO / "experiments/codasca/chest-xrays-first-stage.toml",
    first_reduced=_SMALL | {"local-steps": 98, "fedavg.lr": 0.001, "holdout-share": 0.3},
)

STUDIES = (CHEST, SOURCES)
