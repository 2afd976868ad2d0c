"""Images that look a little like chest X-rays, as five hospitals have them: nobody's, drawn by this program.

    python -m benchmarks.xrays FOLDER

FOLDER gets a site folder for each source of CODASCA's Table 6 (Yuan et al., ICML 2021), with a hundredth of its images
and its share of positives of each label; and ``first-1`` to ``first-5``, links to the first sources in the order of
Table 4, each with CheXpert's validation patients as the common ``test`` set.

What is as in the sources: several images of a patient, who stays ill in most of them; labels that are uncertain (-1) or
blank at CheXpert and MIMIC-CXR; no Edema at VinDr-CXR, where the column is blank; brightness and contrast of each
source. The shares of positives are those after the reading of ``label-preset = "chexpert"``. What is not: everything
else. The findings are five simple shapes, and a network that finds them knows nothing of patients.

The same seed gives the same pixels on any machine: integers of PCG64 and the four operations on them, no more.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SIDE = 32  # pixels
SHARE = 0.01  # of the sources' images
LABELS = ("Cardiomegaly", "Edema", "Consolidation", "Atelectasis", "Pleural Effusion")
TEST, TEST_IMAGES = "test", 1000  # CheXpert's own has 234, too few to tell methods apart

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Hospital:
    """What a source is like."""

    images: int  # of the source; Table 6
    positive: tuple[float, ...]  # share of positives, by label; Table 6. 0: the source lacks the label
    per_patient: int  # images of a patient, on average
    # brightness, contrast: what grey levels are moved by, and multiplied with, in percent
    brightness: int
    contrast: int
    # by label, the share that is uncertain: of the positives where the preset counts an uncertain label as one, else of
    # the negatives. One in two of these images shows the finding
    uncertain: tuple[float, ...] = (0.0,) * len(LABELS)
    blank: float = 0.0  # share of the negatives whose label is blank: not mentioned in the report


_REPORTS = (0.04, 0.2, 0.15, 0.5, 0.08)  # by CheXpert's own table of its labels, roughly
ONES = ("Edema", "Atelectasis")  # what the preset counts an uncertain label of as one

HOSPITALS = {  # in the order of Table 4
    "chexpert": Hospital(224_316, (0.211, 0.342, 0.120, 0.310, 0.414), 3, 0, 100, _REPORTS, blank=0.85),
    "nih": Hospital(112_120, (0.025, 0.021, 0.042, 0.103, 0.119), 4, 18, 80),
    "padchest": Hospital(110_641, (0.089, 0.012, 0.015, 0.056, 0.064), 2, -16, 120),
    "mimic": Hospital(377_110, (0.196, 0.179, 0.047, 0.246, 0.237), 6, -8, 90, _REPORTS, blank=0.85),
    "vindr": Hospital(15_000, (0.153, 0.000, 0.024, 0.012, 0.069), 1, 30, 70),
}


@dataclass(frozen=True, eq=False)
class Images:
    """The images of a hospital, with what is in them and what is said of it."""

    pixels: Bytes  # shape (n, SIDE, SIDE)
    seen: Mask  # shape (n, 5): which findings are drawn
    labels: NDArray[np.str_]  # shape (n, 5), of texts: 1, 0, -1 or empty
    patient: Ints  # shape (n,)


def generate(name: str, seed: int = 0, share: float = SHARE, images: int = 0, certain: bool = False) -> Images:
    """Draw the images of a hospital.

    Parameters
    ----------
    name
        A key of `HOSPITALS`.
    seed
        At least 0.
    share
        Of the source's images, above 0.
    images
        So many instead, if above 0, and of other patients.
    certain
        Whether every label is 1 or 0, and true.
    """
    hospital = HOSPITALS[name]
    count = images or max(10, round(hospital.images * share))
    rng = np.random.default_rng([seed, list(HOSPITALS).index(name), images])
    patients = max(1, count // hospital.per_patient)
    patient = np.sort(np.concatenate([np.arange(patients), rng.integers(patients, size=count - patients)]))
    seen, labels = _labels(hospital, patient, certain, rng)
    return Images(draw(hospital, patient, seen, rng), seen, labels, patient)


def draw(hospital: Hospital, patient: Ints, seen: Mask, rng: np.random.Generator) -> Bytes:
    """Draw images of patients (n,) with findings (n, 5); what is drawn besides does not depend on the findings."""
    grey = _bodies(patient, rng)
    for place, finding in enumerate(_FINDINGS):
        grey += finding(patient, rng) * seen[:, place, None, None]
    grey = _noisy(grey, rng)
    exposure = _between(rng, -12, 12, len(patient))[:, None, None]
    grey = (grey + exposure - 128) * hospital.contrast / 100 + 128 + hospital.brightness
    return np.clip(np.rint(grey), 0, 255).astype(np.uint8)


# ---------------------------------------------------------------------- who is ill, and what the reports say


def _labels(
    hospital: Hospital, patient: Ints, certain: bool, rng: np.random.Generator
) -> tuple[Mask, NDArray[np.str_]]:
    """Return which findings are seen and what their labels say, both (n, 5)."""
    count, patients = len(patient), int(patient.max()) + 1
    sick = _between(rng, 0, 100, patients)[patient]  # in general: findings come together
    seen = np.zeros((count, len(LABELS)), np.bool_)
    labels = np.full((count, len(LABELS)), "0", dtype="<U2")
    for place, name in enumerate(LABELS):
        illness = _between(rng, 0, 200, patients)[patient] + _between(rng, 0, 100, count) + sick
        if not hospital.positive[place]:
            labels[:, place] = ""
            continue
        order = np.argsort(-illness, kind="stable")
        positive = np.zeros(count, np.bool_)
        positive[order[: max(1, round(hospital.positive[place] * count))]] = True
        seen[:, place], labels[positive, place] = positive, "1"
        if certain:
            continue
        among = np.flatnonzero(positive if name in ONES else ~positive)
        doubtful = rng.permutation(among)[: round(hospital.uncertain[place] * len(among))]
        seen[doubtful, place], labels[doubtful, place] = rng.integers(2, size=len(doubtful)) == 1, "-1"
        healthy = rng.permutation(np.flatnonzero(labels[:, place] == "0"))
        labels[healthy[: round(hospital.blank * len(healthy))], place] = ""
    return seen, labels


# ---------------------------------------------------------------------- what is drawn

_ROW, _COLUMN = (np.arange(SIDE)[:, None] / SIDE, np.arange(SIDE)[None, :] / SIDE)


def _between(rng: np.random.Generator, low: float, high: float, size: int) -> Floats:
    """Draw evenly, in 1000 steps."""
    return low + rng.integers(1001, size=size) * ((high - low) / 1000)


def _of_patients(rng: np.random.Generator, low: float, high: float, patient: Ints) -> Floats:
    """Draw a number for each patient; shape (n, 1, 1)."""
    return _between(rng, low, high, int(patient.max()) + 1)[patient][:, None, None]


def _of_images(rng: np.random.Generator, low: float, high: float, patient: Ints) -> Floats:
    """Draw a number for each image; shape (n, 1, 1)."""
    return _between(rng, low, high, len(patient))[:, None, None]


def _ellipse(row: Floats | float, column: Floats | float, height: Floats | float, width: Floats | float) -> Floats:
    """Return 1 in the middle of an ellipse, falling to 0 at its edge and beyond."""
    down, right = (_ROW - row) / height, (_COLUMN - column) / width
    return np.maximum(0.0, 1 - down * down - right * right)


def _lung(side: Ints | Floats | int, size: Floats | float = 1.0) -> Floats:
    """Return a lung, the left (0) or the right one (1) of the image, with a soft edge."""
    return np.minimum(1.0, 3 * _ellipse(0.5, 0.27 + 0.46 * side, 0.40 * size, 0.17 * size))


def _bodies(patient: Ints, rng: np.random.Generator) -> Floats:
    """Return chests without findings, (n, SIDE, SIDE): what varies from patient to patient, and how they stood."""
    size = _of_patients(rng, 0.88, 1.12, patient)
    lungs = np.maximum(_lung(0, size), _lung(1, size))
    heart = np.minimum(1.0, 3 * _ellipse(0.64, 0.55, 0.20, _of_patients(rng, 0.12, 0.18, patient)))
    phase, dense = _of_patients(rng, 0.0, 1.0, patient), _of_patients(rng, -10, 10, patient)
    ribs = (_ROW * 7 + phase + np.abs(_COLUMN - 0.5)) % 1.0
    bones = 10 * (ribs < 0.35) + 12 * (np.abs(_COLUMN - 0.5) < 0.05)
    grey: Floats = 150 + dense - 70 * lungs + 55 * heart * lungs + 25 * heart * (1 - lungs) + bones
    return grey


def _heart(patient: Ints, rng: np.random.Generator) -> Floats:
    """Cardiomegaly: the shadow of the heart is wider, and covers more of the lungs."""
    wide = np.minimum(1.0, 3 * _ellipse(0.64, 0.55, 0.22, _of_images(rng, 0.20, 0.25, patient)))
    usual = np.minimum(1.0, 3 * _ellipse(0.64, 0.55, 0.20, 0.15))
    return _of_images(rng, 0, 40, patient) * np.maximum(0.0, wide - usual)


def _haze(patient: Ints, rng: np.random.Generator) -> Floats:
    """Edema: haze over both lungs, from their middle."""
    return _of_images(rng, 0, 36, patient) * (_ellipse(0.5, 0.5, 0.5, 0.5) * np.maximum(_lung(0), _lung(1)))


def _patch(patient: Ints, rng: np.random.Generator) -> Floats:
    """Consolidation: a dense patch somewhere in a lung."""
    side = rng.integers(2, size=len(patient))[:, None, None]
    row, column = _of_images(rng, 0.3, 0.65, patient), _of_images(rng, -0.06, 0.06, patient) + 0.27 + 0.46 * side
    patch = np.minimum(1.0, 2 * _ellipse(row, column, 0.12, 0.10))
    return _of_images(rng, 0, 80, patient) * patch


def _band(patient: Ints, rng: np.random.Generator) -> Floats:
    """Atelectasis: a thin band above the base of a lung."""
    side = rng.integers(2, size=len(patient))[:, None, None]
    row = _of_images(rng, 0.66, 0.74, patient)
    return _of_images(rng, 0, 80, patient) * (np.abs(_ROW - row) < 0.035) * (_lung(side) > 0)


def _level(patient: Ints, rng: np.random.Generator) -> Floats:
    """Pleural effusion: fluid stands in a lung, up to a level."""
    side = rng.integers(2, size=len(patient))[:, None, None]
    level = _of_images(rng, 0.66, 0.82, patient)
    return _of_images(rng, 0, 90, patient) * (level < _ROW) * _lung(side)


_FINDINGS = (_heart, _haze, _patch, _band, _level)  # as `LABELS`


def _noisy(grey: Floats, rng: np.random.Generator) -> Floats:
    """Add noise: of pixels, and of parts of the image, which hides the findings more."""
    count = len(grey)
    coarse = np.repeat(np.repeat(rng.integers(-14, 15, size=(count, 8, 8)), SIDE // 8, 1), SIDE // 8, 2)
    smooth = coarse + np.roll(coarse, 2, 1) + np.roll(coarse, 2, 2) + np.roll(coarse, (2, 2), (1, 2))
    pixels = rng.integers(-9, 10, size=(2, count, SIDE, SIDE)).sum(0)
    return grey + smooth / 2 + pixels


# ---------------------------------------------------------------------- folders


def write(folder: Path, images: Images) -> None:
    """Write a site folder: labels.csv, and a PNG for each image."""
    from PIL import Image

    (folder / "images").mkdir(parents=True)
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as stream:
        lines = csv.writer(stream, lineterminator="\n")
        lines.writerow(["path", "patient", "view", *LABELS])
        for number, (pixels, patient, labels) in enumerate(
            zip(images.pixels, images.patient, images.labels, strict=True)
        ):
            path = f"images/{number:05}.png"
            Image.fromarray(pixels).save(folder / path, compress_level=1)
            lines.writerow([path, f"patient-{patient}", "PA" if patient % 2 else "AP", *labels])


def make(folder: Path, seed: int = 0, share: float = SHARE) -> Path:
    """Make all folders, whole or not at all; what is there stays. Returns the folder."""
    if folder.exists():
        return folder
    draft = folder.with_name(f"{folder.name}.draft-{os.getpid()}")
    try:
        for name in HOSPITALS:
            write(draft / name, generate(name, seed, share))
        test = generate("chexpert", seed, images=max(10, round(TEST_IMAGES * share / SHARE)), certain=True)
        write(draft / "first-1" / TEST, test)
        for count in range(1, len(HOSPITALS) + 1):
            first = draft / f"first-{count}"
            first.mkdir(exist_ok=True)
            if count > 1:
                (first / TEST).symlink_to(Path("..", "first-1", TEST))
            for name in list(HOSPITALS)[:count]:
                (first / name).symlink_to(Path("..", name))
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the folders; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.xrays", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="to make; it must not exist")
    parser.add_argument("--seed", type=int, default=0, help="of all random choices; default: 0")
    parser.add_argument("--share", type=float, default=SHARE, help=f"of the sources' images; default: {SHARE}")
    options = parser.parse_args(arguments)
    if options.folder.exists():
        parser.error(f"{options.folder} exists: name another folder")
    if options.seed < 0 or not 0 < options.share <= 1:
        parser.error("--seed must be at least 0, and --share above 0 and at most 1")
    make(options.folder, options.seed, options.share)
    for name in (*HOSPITALS, f"first-1/{TEST}"):
        with (options.folder / name / "labels.csv").open(encoding="utf-8") as stream:
            print(f"{options.folder / name}: {sum(1 for _ in stream) - 1:,} images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
