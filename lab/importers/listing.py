"""What a source says of its images: a row each, and why others are left out."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

LABELS = ("Cardiomegaly", "Edema", "Consolidation", "Atelectasis", "Pleural Effusion")
"""The findings of CODASCA's section 6 (arXiv:2102.04635), as CheXpert calls them."""

NO_FINDING = "No Finding"
"""A column for sources whose labels are blank where nothing is said, of which this one says that all is well."""

VALUES = {"1": "present", "0": "absent", "-1": "uncertain", "": "not mentioned"}
"""Of a label."""

IMAGES = "images"
"""In a site's folder: where paths begin."""

VIEWS = ("AP", "PA", "lateral", "other", "")
"""Empty: unknown."""


class Listing:
    """The images of a source.

    The frame has a row for each image, with an index in which none comes twice, as text: ``path``, as the source names
    it; ``patient``, whose it is; ``view``, one of `VIEWS`; and labels, in `VALUES`. A column of `LABELS` that is not
    there is one that the source lacks; `NO_FINDING` may be present as well. Notes are for the importing person.

    Attributes
    ----------
    frame
        The rows that are kept, with the columns of a site's labels.csv.
    rows
        How many there were at first.
    lacking
        The labels that the source lacks.
    left_out
        The paths of the other rows, by the reason.
    """

    def __init__(self, frame: pd.DataFrame, notes: Sequence[str] = ()) -> None:
        self.rows = len(frame)
        self.lacking = [name for name in LABELS if name not in frame]
        columns = ["path", "patient", "view", *LABELS, *([NO_FINDING] if NO_FINDING in frame else [])]
        self.frame = frame.assign(**dict.fromkeys(self.lacking, ""))[columns]
        self.notes = list(notes)
        self.left_out: dict[str, list[str]] = {}
        self.leave_out(self.frame["path"].duplicated(), "listed twice, of which the first row counts")

    def leave_out(self, which: pd.Series, why: str) -> None:
        """Leave out the rows for which ``which``, with the index of the first frame, is true."""
        gone = which[self.frame.index]
        if gone.any():
            self.left_out.setdefault(why, []).extend(self.frame.loc[gone, "path"])
            self.frame = self.frame[~gone]

    def choose(self, split: str, parts: pd.Series) -> None:
        """Keep the images of a split; ``parts`` says in which each is."""
        self.leave_out(parts.isna(), "in no split of the source")
        self.leave_out(parts != split, f"in another split than {split}")
