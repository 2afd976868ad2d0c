"""MIMIC-CXR-JPG 2.0.0 and 2.1.0, and MIMIC-CXR with the tables of these, of Beth Israel Deaconess Medical Center.

Johnson et al., MIMIC-CXR-JPG, a large publicly available database of labeled chest radiographs,
https://arxiv.org/abs/1901.07042. Read are mimic-cxr-2.0.0-metadata.csv, 377,110 images with dicom_id, subject_id,
study_id and ViewPosition; mimic-cxr-2.0.0-chexpert.csv, the labels of 227,827 studies, found in the reports by the
CheXpert labeler: 1.0, 0.0, -1.0 (uncertain) or empty (not mentioned); and mimic-cxr-2.0.0-split.csv. The images are
files/p10/p10000032/s50414267/DICOM_ID.jpg, or .dcm.
"""

from __future__ import annotations

from edelweiss.lab.importers.listing import Listing
from edelweiss.lab.importers.release import CHEXPERT_LABELS, Release

LAYOUT = (
    "mimic-cxr-2.0.0-metadata.csv",
    "mimic-cxr-2.0.0-chexpert.csv",
    "mimic-cxr-2.0.0-split.csv",
    "files/p10/p10000032/s50414267/02aa804e-bde0afdd-112c0b34-7bc16630-4e384014.jpg",
)
OPTIONS = {"split": ("train", "validate", "test", "all")}

# View positions as DICOM defines them, attribute (0018,5101): LL and RL are left and right lateral. Any other view
# is oblique, decubitus or another special one.
VIEWS = {"AP": "AP", "PA": "PA", "LATERAL": "lateral", "LL": "lateral", "RL": "lateral", "": ""}


def read(release: Release, split: str) -> Listing:
    """Join the three tables: an image has the labels of its study."""
    images = release.table("mimic-cxr-2.0.0-metadata.csv", "dicom_id", "subject_id", "study_id", "ViewPosition")
    studies = release.table("mimic-cxr-2.0.0-chexpert.csv", "study_id", *CHEXPERT_LABELS)
    splits = None if split == "all" else release.table("mimic-cxr-2.0.0-split.csv", "dicom_id", "split")
    release.check()
    subject = images.matching("subject_id", r"(\d+)", "digits")
    study = images.matching("study_id", r"(\d+)", "digits")
    labels = studies.chexpert_labels().set_index(studies.unique("study_id"))
    release.check()
    listing = Listing(
        labels.reindex(study)
        .set_index(study.index)
        .assign(
            path="files/p" + subject.str[:2] + "/p" + subject + "/s" + study + "/" + images["dicom_id"],
            patient=subject,
            view=images["ViewPosition"].str.upper().map(VIEWS).fillna("other"),
        )
    )
    if splits:
        part = splits.coded("split", {name: name for name in OPTIONS["split"] if name != "all"})
        listing.choose(split, images["dicom_id"].map(part.set_axis(splits.unique("dicom_id"))))
    listing.leave_out(~study.isin(studies["study_id"]), "their study has no row of labels")
    return listing
