"""How often the intervals of evidence.json hold the truth: of patients drawn from what is known.

    python -m benchmarks.coverage [--trials 2000]

Scores are normal, of either class with the same spread, and log-odds as they are. So each number has a true value: a
formula for all but average precision, which is an integral. A patient's outcome is drawn; five samples of a patient
share it, and their scores correlate by 0.5. The sizes are those of a site, as expected. The intervals are those of
evidence.json, from what sites tell. Of each kind it counts those that hold the truth, and prints a table, in percent.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from edelweiss.evidence import Counts, Site
from edelweiss.evidence.calibration import IDENTITY
from edelweiss.evidence.comparison import compared
from edelweiss.evidence.curves import GRID, SUBGROUP_SPECIFICITY, threshold
from edelweiss.evidence.delong import exact, paired
from edelweiss.evidence.design import Design
from edelweiss.evidence.reported import Group
from edelweiss.evidence.summary import bands, evaluation
from edelweiss.evidence.within_sites import subgroups, within
from edelweiss.lab.compare.text import markdown

Floats = NDArray[np.float64]

SIZES = ((10, 50), (20, 200), (50, 500))  # positives and negatives of a site
AUROCS = (0.8, 0.9)
SITES, SAMPLES = (1, 4), (1, 5)  # of a patient
ALIKE = 0.5  # correlation of the scores of a patient's samples
OTHERS = 0.36  # of the scores of the two models, within a class
LESS = 0.05  # AUROC of the other model
DECIMALS = 2  # of a score, in standard deviations: fewer bins, less to do
HEADINGS = {
    "auroc": "AUROC",
    "within": "within sites",
    "auprc": "AP",
    "auprc-sites": "AP, other sites",
    "intercept": "intercept",
    "slope": "slope",
    "curve": "calibration curve",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "roc": "ROC band",
    "precision-recall": "PR band",
    "group": "subgroup's AUROC",
    "group-sensitivity": "its sensitivity",
    "group-specificity": "its specificity",
    "difference": "difference",
}


@dataclass(frozen=True)
class Setting:
    """What patients are like, and what is true of them."""

    positives: int
    negatives: int
    auroc: float
    sites: int
    samples: int

    @property
    def share(self) -> float:
        """Of positives."""
        return self.positives / (self.positives + self.negatives)

    @cached_property
    def apart(self) -> float:
        """The distance of the classes' mean scores, in standard deviations."""
        return math.sqrt(2) * NormalDist().inv_cdf(self.auroc)

    def log_odds(self, scores: Floats) -> Floats:
        """Return the true log-odds at a score."""
        return math.log(self.positives / self.negatives) + self.apart * scores - self.apart**2 / 2

    def above(self, log_odds: float) -> tuple[float, float]:
        """Return which shares of the positives and of the negatives have this or more."""
        score = (log_odds - self.log_odds(np.zeros(1))[0]) / self.apart
        return float(ndtr(self.apart - score)), float(ndtr(-score))

    @cached_property
    def average_precision(self) -> float:
        """Return the mean of the precision at the score of a positive."""
        scores = np.linspace(-9, 9 + self.apart, 100_001)
        density = np.exp(-((scores - self.apart) ** 2) / 2) / math.sqrt(2 * math.pi)
        hits, wrong = self.share * ndtr(self.apart - scores), (1 - self.share) * ndtr(-scores)
        return float(np.trapezoid(density * hits / (hits + wrong), scores))

    @cached_property
    def curves(self) -> dict[str, Floats]:
        """Return the true positive rate at each false positive rate of `GRID`, and the precision at each recall."""
        false = ndtr(ndtri(GRID) - self.apart)  # false positive rate at a recall
        precision = self.share * GRID / (self.share * GRID + (1 - self.share) * false)
        return {"roc": ndtr(ndtri(GRID) + self.apart), "precision-recall": precision}


def reported(setting: Setting, random: np.random.Generator) -> tuple[dict[str, Site], list[float]]:
    """Draw the patients of sites; return what is reported of them, and each site's threshold for its subgroup."""
    patients = setting.positives + setting.negatives
    whose = np.repeat(np.arange(patients), setting.samples)
    of_other = math.sqrt(2) * NormalDist().inv_cdf(setting.auroc - LESS)

    def noise() -> Floats:
        own, each = random.normal(size=patients)[whose], random.normal(size=len(whose))
        return own if setting.samples == 1 else math.sqrt(ALIKE) * own + math.sqrt(1 - ALIKE) * each

    drawn = []
    for _ in range(setting.sites):
        labels = (random.random(patients) < setting.share).astype(float)[whose]
        common = noise()
        scores = setting.log_odds(np.round(common + setting.apart * labels, DECIMALS))
        other = math.sqrt(OTHERS) * common + math.sqrt(1 - OTHERS) * noise() + of_other * labels
        drawn.append((scores, labels, other))
    sites, thresholds = {}, []
    several = whose if setting.samples > 1 else None
    for place, (scores, labels, other) in enumerate(drawn):
        thresholds.append(threshold(scores, labels, SUBGROUP_SPECIFICITY))
        own, theirs, covariance = paired(scores, other, labels, several)
        sites[str(place)] = Site(
            Counts.of(scores, labels),
            own,
            Design.of(scores, labels, several),
            groups=[_group(scores, labels, several, whose < patients / 2, thresholds[-1])],
            other=theirs,
            covariance=covariance,
        )
    return sites, thresholds


def _group(
    scores: Floats, labels: Floats, patients: NDArray[np.int64] | None, which: NDArray[np.bool_], at: float
) -> Group:
    scores, labels = scores[which], labels[which]
    whose = None if patients is None else patients[which]
    hits = int(labels[scores >= at].sum()), int((1 - labels[scores < at]).sum())
    design = Design.of_group(scores, labels, whose, at)
    return Group("half", "first", len(labels), int(labels.sum()), hits, exact(scores, labels, whose), design)


def held(setting: Setting, random: np.random.Generator) -> Iterator[tuple[str, float]]:
    """Yield for one draw which intervals held the truth: 1, 0, NaN for no interval, or a share of several."""

    def one(found: Mapping[str, Any], truth: float, low: str = "low", high: str = "high") -> float:
        return float(found[low] <= truth <= found[high]) if found[low] <= found[high] else math.nan

    by_name, thresholds = reported(setting, random)
    sites = list(by_name.values())
    found = evaluation(sites, [IDENTITY] * len(sites)) | bands(sites)
    yield "auroc", one(found["auroc"], setting.auroc)
    yield "auprc", one(found["auprc"], setting.average_precision)
    if len(sites) > 1:
        yield "within", one(within(sites)["auroc"], setting.auroc)
        yield "auprc-sites", one(found["auprc"], setting.average_precision, "low-sites", "high-sites")
    for key, truth in (("intercept", 0.0), ("slope", 1.0)):
        yield key, one(found["calibration"][key], truth)
    yield "curve", float(np.mean([one(point, point["predicted"]) for point in found["calibration"]["curve"]]))
    for point in found["points"]:
        tpr, fpr = setting.above(point["threshold"])
        yield point["measure"], one(point, tpr if point["measure"] == "sensitivity" else 1 - fpr)
    for key, truth in setting.curves.items():
        if band := found[key].get("band"):
            yield key, float(np.mean((band["low"] <= truth + 1e-9) & (truth <= band["high"] + 1e-9)))
    group = subgroups(sites)["half"]["first"]
    yield "group", one(group["auroc"], setting.auroc)
    for kind, key in enumerate(("sensitivity", "specificity")):
        true = [setting.above(at)[kind] if kind == 0 else 1 - setting.above(at)[kind] for at in thresholds]
        sizes = [site.groups[0].sizes[kind] for site in sites]
        if sum(sizes):
            yield f"group-{key}", one(group[key], float(np.average(true, weights=sizes)))
    if both := compared(by_name, None):
        yield "difference", one(both["difference"], LESS)


def covered(setting: Setting, trials: int) -> dict[str, float]:
    """Return which share of the intervals of each kind held the truth, of those that there were."""
    seed = [setting.positives, round(100 * setting.auroc), setting.sites, setting.samples]
    random, found = np.random.default_rng(seed), defaultdict(list)
    for _ in range(trials):
        for key, value in held(setting, random):
            found[key].append(value)
    return {key: float(np.nanmean(values)) for key, values in found.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, count and print; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coverage", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=2000, help="draws of each setting")
    options = parser.parse_args(arguments)
    lines = [["positives/negatives", "AUROC", "sites", "samples", *HEADINGS.values()]]
    lines.append(["---", *["---:"] * (len(lines[0]) - 1)])
    print(markdown(lines), flush=True)
    for (positives, negatives), auroc, sites, samples in product(SIZES, AUROCS, SITES, SAMPLES):
        found = covered(Setting(positives, negatives, auroc, sites, samples), options.trials)
        cells = [f"{100 * found[key]:.1f}" if key in found else "" for key in HEADINGS]
        print(markdown([[f"{positives}/{negatives}", f"{auroc}", str(sites), str(samples), *cells]]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
