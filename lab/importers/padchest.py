"""PadChest, of the Hospital San Juan in Alicante: 160,861 images of 67,625 patients, with reports in Spanish.

Bustos et al., PadChest: a large chest x-ray image dataset with multi-label annotated reports, Medical Image Analysis
66, 2020, https://arxiv.org/abs/1901.07441. Read is PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv with ImageID,
PatientID, Projection and Labels: a list of English terms such as ``['cardiomegaly', ' pleural effusion']``, with spaces
here and there, that physicians (for a quarter) or a program gave to the report. The images are in the folders 0 to 54,
or all in one.

A label is 1 where the list has its own term or that of a kind of it (`TERMS`), and else 0. A sign or a cause is no
finding: an air bronchogram no consolidation, Kerley lines or heart insufficiency no edema, and a pericardial effusion,
which enlarges the heart's shadow, no cardiomegaly. Counted so, the 110,641 images that are neither lateral nor of the
ribs nor excluded have the shares of CODASCA's Table 6 (arXiv:2102.04635). What is not named is empty instead of 0 where
the report does not describe all that is seen (`PARTIAL`), and where it led to no term. An image is left out where the
report is of no use (``exclude``), where there is no list (``nan``), and where the projection is EXCLUDE: oblique.
"""

from __future__ import annotations

import re

import pandas as pd

from edelweiss.lab.importers.listing import Listing
from edelweiss.lab.importers.release import Release

TABLE = "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv"
LAYOUT = (TABLE, "0/ ... 54/ with images such as 20536686640136348236148679891455886468_k6ga29.png")
FOLDERS = ("[0-9]", "[0-9][0-9]", "images", "")
VIEWS = {
    "PA": "PA",
    "AP": "AP",
    "AP_horizontal": "AP",
    "L": "lateral",
    "COSTAL": "other",
    "EXCLUDE": "other",
    "UNK": "",
}

TERMS = {
    "Cardiomegaly": {"cardiomegaly"},
    "Edema": {"pulmonary edema"},
    "Consolidation": {"consolidation"},
    "Atelectasis": {
        "atelectasis",
        "atelectasis basal",
        "laminar atelectasis",
        "lobar atelectasis",
        "round atelectasis",
        "segmental atelectasis",
        "total atelectasis",
    },
    "Pleural Effusion": {
        "pleural effusion",
        "loculated pleural effusion",
        "loculated fissural effusion",
        "hydropneumothorax",
        "empyema",
    },
}
PARTIAL = {"unchanged", "suboptimal study"}  # compared with an earlier report; not to be judged in full
NOTE = f"what is not named is empty, not 0, by a report that says {' or '.join(sorted(PARTIAL))} or led to no term"
LIST = r"nan|\[\]|\[(?:'[^']*')(?:,\s*'[^']*')*\]"


def read(release: Release) -> Listing:
    """Read the table, which has no official splits."""
    table = release.table(TABLE, "ImageID", "PatientID", "Projection", "Labels")
    release.check()
    lists = table.matching("Labels", f"({LIST})", "a list such as ['cardiomegaly', 'pleural effusion'], or nan")
    terms = {text: {term.strip() for term in re.findall("'([^']*)'", text)} - {""} for text in lists.unique()}
    columns = {
        name: lists.map({text: _value(named, own) for text, named in terms.items()}) for name, own in TERMS.items()
    }
    images = {
        "path": table["ImageID"],
        "patient": table.matching("PatientID", r"(\S+)", "an id"),
        "view": table.coded("Projection", VIEWS),
    }
    listing = Listing(pd.DataFrame(images | columns), [NOTE])
    listing.leave_out(lists.isin(["nan", "[]"]), "there is no list of labels")
    useless = lists.map({text: "exclude" in named for text, named in terms.items()})
    listing.leave_out(useless, "the report is of no use, by the label exclude")
    listing.leave_out(table["Projection"] == "EXCLUDE", "the projection is EXCLUDE")
    return listing


def _value(named: set[str], own: set[str]) -> str:
    """Return the value of a label from the terms of a list and those of the label."""
    if named & own:
        return "1"
    return "" if not named or named & PARTIAL else "0"
