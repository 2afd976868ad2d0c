"""When does training for AUROC pay? Eleven arms in 30 cells, by a protocol that is fixed beforehand.

A cell is a data set with rare positives, a network and a budget of local steps. Every arm gets the same number of
random draws of its step size, at the same places of a range of its own; the one with the best AUROC on held-out samples
is run at other seeds, each with patients of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

import numpy as np

from benchmarks.rare import Images, Table
from edelweiss.lab.compare.runs import Settings
from edelweiss.lab.sweep.study import Method, Study

NAME = "when-auc-pays"
TITLE = "When does training for AUROC pay?"
DRAWS, SEEDS = 5, 10
TUNING_SEED = 100  # chooses; those that compare are below it
WIDTH = 300.0  # highest over lowest step size of every arm's range
POOLED, WITHIN = "pooled.auroc", "over-sites.auroc.mean"

BASE: Settings = {
    "sites": 4,
    "local-steps": 10,
    "rounds": 20,
    "batch-size": 128,
    "positives-per-batch": 16,
    "holdout-share": 0.5,
    "central-test": False,
    "evaluate-every": 0,
    "evidence": False,
    "stack": 8,  # the sites side by side, which is faster
}


@dataclass(frozen=True)
class Arm:
    """A recipe; ``after`` names the arm whose model it starts from, after half of the rounds."""

    label: str
    algorithm: str
    problem: str
    low: float  # its smallest step size
    after: str = ""

    @property
    def keys(self) -> list[str]:
        """The keys that take the step size: one for x, and one for y where it is another."""
        return [f"{self.algorithm}.lr"] + [f"{self.algorithm}.lr-dual"] * (self.algorithm in ("local-sgda", "fmgda"))


CROSS_ENTROPY, WEIGHTED = "cross-entropy", "class-weighted"
ARMS = (
    Arm(CROSS_ENTROPY, "fedavg", "bce", 0.03),
    Arm(WEIGHTED, "fedavg", "bce-weighted", 0.01),
    Arm("logit-adjusted", "fedavg", "bce-adjusted", 0.03),
    Arm("focal", "fedavg", "bce-focal", 0.03),
    Arm("CODASCA", "codasca", "auc", 0.01),
    Arm("CODA+", "coda-plus", "auc", 0.01),
    Arm("Local SGDA", "local-sgda", "auc-margin", 0.01),
    Arm("FMGDA", "fmgda", "auc", 0.01),
    Arm("FCSG-M on AP", "fcsg-m", "auprc", 0.1),
    Arm("partial AUC", "fcsg-m", "partial-auc", 0.01),
    Arm("warm start", "local-sgda", "auc-margin", 0.01, after=CROSS_ENTROPY),
)
RANKING = tuple(arm.label for arm in ARMS if arm.algorithm != "fedavg")
MISSPECIFIED, RIGHT, NETWORK = "linear, misspecified", "linear, other", "network"
KINDS = (MISSPECIFIED, RIGHT, NETWORK)


@dataclass(frozen=True)
class Cell:
    """Data, a network and a budget; without ``data``, those that ``settings`` names."""

    name: str
    data: Table | Images | None
    settings: Settings = field(default_factory=dict)

    @property
    def needs(self) -> str:
        """The folder under the data root that it reads; empty: none."""
        if self.data is None:
            return "heart_disease"
        return self.data.dataset if isinstance(self.data, Images) else ""

    def base(self) -> Settings:
        """Return the run-config that all of its runs share; where the data lie is said when a run starts."""
        drawn: Settings = {"dataset": "arrays", "data-file": self.name, "partition": "sites"}
        return {**BASE, **(drawn if self.data else {}), **self.settings}

    @property
    def slug(self) -> str:
        """The name of its runs' folder."""
        return re.sub(r"[^a-z0-9.]+", "-", self.name.lower())

    @property
    def kind(self) -> str:
        """One of `KINDS`: whether the model is a network, and whether a linear one can be right."""
        if self.settings["model"] != "linear":
            return NETWORK
        regime = self.data.regime if isinstance(self.data, Table) else ""
        return MISSPECIFIED if regime in ("hard", "miscoded") else RIGHT

    def quantiles(self, draws: int) -> list[float]:
        """Return places in every arm's range: one drawn from each of equal parts of its logarithm."""
        rng = np.random.default_rng(crc32(self.name.encode()))
        return [(part + rng.random()) / draws for part in range(draws)]

    def study(self, arms: Sequence[Arm], draws: int, seeds: int) -> Study:
        """Return the runs of some arms."""
        places = self.quantiles(draws)
        methods = (self.method(arm, [float(f"{arm.low * WIDTH**place:.3g}") for place in places]) for arm in arms)
        return self._study(tuple(methods), tuple(range(seeds)))

    def first_stage(self, step: float, seeds: int) -> Study:
        """Return the runs whose models the others start from: half of the rounds, at all seeds."""
        arm = replace(ARMS[0], label="first stage", after=CROSS_ENTROPY)
        return self._study((self.method(arm, [step]),), (TUNING_SEED, *range(seeds)))

    def _study(self, methods: tuple[Method, ...], seeds: tuple[int, ...]) -> Study:
        return Study(
            base=self.base(),
            methods=methods,
            repeat={"seed": seeds},
            select=POOLED,
            tuning_seed=TUNING_SEED,
            extend=0,
        )

    def method(self, arm: Arm, steps: Sequence[float]) -> Method:
        """Return an arm with the step sizes that it tries; one that follows another has half of the rounds."""
        half: Settings = {"rounds": int(self.base()["rounds"]) // 2} if arm.after else {}
        grid = tuple(dict.fromkeys(arm.keys, step) for step in steps)
        return Method(label=arm.label, algorithm=arm.algorithm, settings={"problem": arm.problem, **half}, grid=grid)


ROWS = {0.005: 40_000, 0.01: 20_000, 0.05: 8_000, 0.2: 8_000}  # by share of positives; half of them are held out
LINEAR: Settings = {"model": "linear"}
MLP: Settings = {"model": "mlp", "hidden": 32}
MODELS = (LINEAR, MLP)
LONG: Settings = {"local-steps": 100, "rounds": 2}
SKEW: Settings = {"partition": "dirichlet", "concentration": 0.3}
FEW: Settings = {"batch-size": 32, "positives-per-batch": 4}
LENET: Settings = {**FEW, "model": "lenet5"}
TITLES = {"clean": "clean", "hard": "hard negatives", "miscoded": "coding errors", "heavy": "heavy tails"}
BY_SITE = (0.01, 0.04, 0.14, 0.5)


def _cell(title: str, share: str, data: Table | Images | None, settings: Settings, more: str = "") -> Cell:
    return Cell(", ".join(part for part in (title, share, str(settings["model"]), more) if part), data, settings)


def _of_regime(
    regime: str, share: float, settings: Settings, more: str = "", *, title: str = "", shift: float = 0.0
) -> Cell:
    dealt = "concentration" in settings
    table = Table(regime, (share,) * int(BASE["sites"]), ROWS[share], shift=shift, dealt=dealt)
    return _cell(title or TITLES[regime], f"{100 * share:g} %", table, settings, more)


CELLS = (
    *(_of_regime(regime, share, LINEAR) for regime in TITLES for share in ROWS),
    _cell("MNIST", "5 %", Images("mnist", 0.05, 8_000), LENET),
    _cell("heart disease", "", None, {**LINEAR, **FEW, "dataset": "heart-disease", "partition": "sites"}),
    *(_of_regime(regime, share, MLP) for regime, share in zip(TITLES, (0.01, 0.01, 0.05, 0.05), strict=True)),
    *(_of_regime("clean", 0.05, {**model, **SKEW}, title="label skew") for model in MODELS),
    _cell("share by site", "1 to 50 %", Table("clean", BY_SITE, 8_000), LINEAR),
    _of_regime("clean", 0.05, LINEAR, title="feature shift", shift=0.7),
    _of_regime("hard", 0.05, {**LINEAR, **LONG}, "q = 100"),
    _of_regime("clean", 0.05, {**MLP, **LONG, **SKEW}, "q = 100", title="label skew"),
    _cell("Fashion-MNIST", "5 %", Images("fashion-mnist", 0.05, 8_000), LENET),
    _cell("CIFAR-10", "5 %", Images("cifar10", 0.05, 8_000), LENET),
)


def protocol(draws: int, seeds: int) -> str:
    """Return what is fixed before the first run, in paragraphs of a page."""
    ranges = "; ".join(f"{arm.label} from {arm.low:g} to {arm.low * WIDTH:g}" for arm in ARMS)
    return f"""\
Protocol, fixed before the first run:

- {len(ARMS)} arms in {len(CELLS)} cells. In a cell all arms have the same data, network, local steps, batches and
  rounds. The warm start takes half of its rounds with cross-entropy, and half with Local SGDA. A step of FMGDA takes
  two gradients.
- Tuning: {draws} step sizes for each arm, for x and y alike, one drawn at random from each of {draws} equal parts of
  the logarithm of its range; the places in the range are the same for all arms of a cell. The ranges are of one width,
  and lie where a trial at a seed of its own (900, a few cells) found the best: {ranges}.
  All else is at its default, but for what the table of cells names.
- Choice: the highest `{POOLED}` on the samples that the sites hold out, at seed {TUNING_SEED}. The warm start's first
  half has the step size that cross-entropy chose; the draws are those of its second half.
- Test: seeds 0 to {seeds - 1} with the chosen step size, on the samples that the sites hold out then. Every seed draws
  other tables and other images; of the heart disease data it deals the same patients anew. Pooled: patients of all
  sites ranked together. Within sites: the mean over sites of each one's AUROC.
- Differences are paired by seed: mean ± half of the 95 % interval by Student's t, corrected for the number of
  comparisons in its line (Bonferroni: all intervals of a cell hold together with 95 %). \\* marks one that leaves out
  zero, \\*\\* one that Holm's procedure over all comparisons of the table shows too.
- A run that diverges is a result: it is never chosen, and where it was to be tested it is counted."""
