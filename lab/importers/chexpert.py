"""CheXpert-v1.0 and CheXpert-v1.0-small, of Stanford Hospital.

Irvin et al., CheXpert: a large chest radiograph dataset with uncertainty labels and expert comparison, AAAI 2019,
https://arxiv.org/abs/1901.07031. Read are train.csv, 223,414 images of 64,540 patients, whose labels a program found in
the reports, and valid.csv, 234 images of 200 patients, labelled by radiologists: each with Path, Frontal/Lateral, AP/PA
and 14 labels that are 1.0, 0.0, -1.0 (uncertain) or empty (not mentioned).
"""

from __future__ import annotations

import pandas as pd

from edelweiss.lab.importers.listing import Listing
from edelweiss.lab.importers.release import CHEXPERT_LABELS, Release, Table

LAYOUT = ("train.csv", "valid.csv", "train/patient00001/study1/view1_frontal.jpg")
OPTIONS = {"split": ("train", "valid", "all")}


def read(release: Release, split: str) -> Listing:
    """Read train.csv, valid.csv or both."""
    parts = ("train", "valid") if split == "all" else (split,)
    tables = [release.table(f"{part}.csv", "Path", "Frontal/Lateral", "AP/PA", *CHEXPERT_LABELS) for part in parts]
    release.check()
    return Listing(pd.concat([_images(table) for table in tables], ignore_index=True))


def _images(table: Table) -> pd.DataFrame:
    # A path begins with the name of the release, CheXpert-v1.0-small, which is the folder itself.
    path = table.matching(
        "Path",
        r"(?:.*/)?((?:train|valid|test)/patient\d+/study\d+/[^/]+)",
        "a path that ends in train/patientN/studyN/IMAGE",
    )
    frontal = table.coded("Frontal/Lateral", {"Frontal": "frontal", "Lateral": "lateral"})
    # LL and RL are lateral views by the DICOM header, though the other column says frontal: 17 images.
    direction = table.coded("AP/PA", {"AP": "AP", "PA": "PA", "LL": "other", "RL": "other", "": ""})
    return table.chexpert_labels().assign(
        path=path, patient=path.str.split("/").str[1], view=direction.where(frontal == "frontal", "lateral")
    )
