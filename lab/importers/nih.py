"""ChestX-ray14, of the NIH Clinical Center: 112,120 images of 30,805 patients.

Wang et al., ChestX-ray8: hospital-scale chest X-ray database and benchmarks on weakly-supervised classification and
localization of common thorax diseases, CVPR 2017, https://arxiv.org/abs/1705.02315. Read are Data_Entry_2017_v2020.csv,
or else Data_Entry_2017.csv, with Image Index, Finding Labels such as ``Effusion|Mass``, Patient ID and View Position;
and train_val_list.txt and test_list.txt. A program found the labels in the reports: what is not among them is 0. The
images are in images_001/images to images_012/images, as they are packed, or in one folder images.
"""

from __future__ import annotations

import pandas as pd

from edelweiss.lab.importers.listing import LABELS, Listing
from edelweiss.lab.importers.release import Release

LAYOUT = ("Data_Entry_2017_v2020.csv", "train_val_list.txt", "test_list.txt", "images_001/images/00000001_000.png")
OPTIONS = {"split": ("train", "test", "all")}
FOLDERS = ("images", "images_*/images", "images_*", "images/images_*/images", "images/images_*", "")

FINDINGS = (
    "Atelectasis",
    "Cardiomegaly",
    "Consolidation",
    "Edema",
    "Effusion",
    "Emphysema",
    "Fibrosis",
    "Hernia",
    "Infiltration",
    "Mass",
    "No Finding",
    "Nodule",
    "Pleural_Thickening",
    "Pneumonia",
    "Pneumothorax",
)
NAMES = {name: "Effusion" if name == "Pleural Effusion" else name for name in LABELS}


def read(release: Release, split: str) -> Listing:
    """Read the table, and the lists of the official splits; train is for training and validation."""
    table = release.table(
        release.first("Data_Entry_2017_v2020.csv", "Data_Entry_2017.csv"),
        "Image Index",
        "Finding Labels",
        "Patient ID",
        "View Position",
    )
    lists = {} if split == "all" else {"train": "train_val_list.txt", "test": "test_list.txt"}
    parts = {image: part for part, file in lists.items() for image in release.lines(file)}
    release.check()
    one = f"(?:{'|'.join(FINDINGS)})"
    found = table.matching("Finding Labels", rf"({one}(?:\|{one})*)", f"{', '.join(FINDINGS)}, with | between them")
    columns = {
        name: found.str.contains(own, regex=False).map({True: "1", False: "0"})  # no name is a part of another
        for name, own in NAMES.items()
    }
    images = {
        "path": table["Image Index"],
        "patient": table.matching("Patient ID", r"(\d+)", "digits"),
        "view": table.coded("View Position", {"PA": "PA", "AP": "AP"}),
    }
    listing = Listing(pd.DataFrame(images | columns))
    if lists:
        listing.choose(split, table["Image Index"].map(parts))
    return listing
