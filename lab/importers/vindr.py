"""VinDr-CXR 1.0.0, of two hospitals in Hanoi, and the part of it that Kaggle's VinBigData challenge had.

Nguyen et al., VinDr-CXR: an open dataset of chest X-rays with radiologist's annotations,
https://arxiv.org/abs/2012.15029. Read are annotations/image_labels_train.csv, 15,000 images in three rows each, one for
each of its readers (rad_id, of 17 radiologists), and image_labels_test.csv, 3,000 images with the consensus of five:
image_id and 28 findings that are 1 or 0. Where the former is missing, Kaggle's train.csv of the same 15,000 images is
read, in which a reader names what is seen, a row for each box; edema is not among its classes. The images are
train/IMAGE_ID.dicom and test/IMAGE_ID.dicom, all postero-anterior. Whose they are is not published: each image counts
as a patient of its own.
"""

from __future__ import annotations

import pandas as pd

from edelweiss.lab.importers.listing import LABELS, Listing
from edelweiss.lab.importers.release import Release, Table

LAYOUT = (
    "annotations/image_labels_train.csv",
    "annotations/image_labels_test.csv",
    "train/50a418190bc3fb1ef1633bf9678929b3.dicom",
)
OPTIONS = {"split": ("train", "test", "all"), "readers": ("majority", "any", "uncertain")}
COLUMNS = {name: "Pleural effusion" if name == "Pleural Effusion" else name for name in LABELS}

# The 14 findings of Kaggle's challenge.
BOXES = (
    "Aortic enlargement",
    "Atelectasis",
    "Calcification",
    "Cardiomegaly",
    "Consolidation",
    "ILD",
    "Infiltration",
    "Lung Opacity",
    "Nodule/Mass",
    "Other lesion",
    "Pleural effusion",
    "Pleural thickening",
    "Pneumothorax",
    "Pulmonary fibrosis",
    "No finding",
)


def read(release: Release, split: str, readers: str) -> Listing:
    """Read the table of a split, or both.

    ``readers`` says what becomes of several readers. ``majority``: what more than half of them say, uncertain where as
    many say yes as no. ``any``: present where one of them says so, as Table 6 of CODASCA counts (arXiv:2102.04635).
    ``uncertain``: uncertain where they disagree.
    """
    tables = {part: _table(release, part) for part in ("train", "test") if split in (part, "all")}
    release.check()
    shares = {part: _shares(table) for part, table in tables.items()}
    release.check()
    notes = ["whose the images are is not published: each counts as a patient of its own"]
    for part, share in shares.items():
        doubtful = (~share.isin([0, 1])).any(axis=1).sum()
        notes.append(f"the readers disagree on one of these labels in {doubtful:,} images of {part}: by {readers}")
    images = [_images(share, part, readers) for part, share in shares.items()]
    return Listing(pd.concat(images, ignore_index=True).fillna(""), notes)


def _table(release: Release, part: str) -> Table:
    file = f"annotations/image_labels_{part}.csv"
    if part == "test":
        return release.table(file, "image_id", *COLUMNS.values())
    if release.first(file, "train.csv") == "train.csv":
        return release.table("train.csv", "image_id", "rad_id", "class_name")
    return release.table(file, "image_id", "rad_id", *COLUMNS.values())


def _shares(table: Table) -> pd.DataFrame:
    """Return for each image and label the share of its readers who say that it is present."""
    if "class_name" in table.frame:
        named = table.coded("class_name", {name: name for name in BOXES})
        said = pd.DataFrame({name: named == column for name, column in COLUMNS.items() if column in BOXES})
    else:
        said = table.labels({"1": "1", "0": "0"}, COLUMNS) == "1"
    whose = table["rad_id"] if "rad_id" in table.frame else pd.Series("consensus", table.frame.index)
    each_reader = said.groupby([table["image_id"], whose], sort=False).max()  # with Kaggle's, a row for each box
    return each_reader.astype(float).groupby(level="image_id", sort=False).mean()


def _images(share: pd.DataFrame, part: str, readers: str) -> pd.DataFrame:
    if readers == "any":
        values = share.gt(0).astype(int)
    elif readers == "majority":
        values = share.gt(0.5).astype(int) - share.eq(0.5)
    else:
        values = share.where(share.isin([0, 1]), -1).astype(int)
    return values.astype(str).assign(path=f"{part}/" + share.index, patient=share.index, view="PA")
