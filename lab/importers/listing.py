"""The images of a source, one row each, and the reasons for those left out."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

LABELS = ("Cardiomegaly", "Edema", "Consolidation", "Atelectasis", "Pleural Effusion")
"""The findings of CODASCA's section 6 (arXiv:2102.04635), by their names in CheXpert."""

NO_FINDING = "No Finding"
"""A column for sources with blank labels: it marks images without any finding."""

VALUES = {"1": "present", "0": "absent", "-1": "uncertain", "": "not mentioned"}
"""The values of a label."""

IMAGES = "images"
"""The folder of images in a site's folder; paths are relative to it."""

VIEWS = ("AP", "PA", "lateral", "other", "")
"""Empty: unknown."""


class Listing:
    """The images of a source.

    The frame has a row per image, a unique index, and text columns: ``path`` in the source, ``patient``, ``view`` (one
    of `VIEWS`), and labels with `VALUES`. A missing column of `LABELS` is one that the source lacks; `NO_FINDING` may
    be present as well. Notes are for the person who imports.

    Attributes
    ----------
    frame
        The rows that are kept, with the columns of a site's labels.csv.
    rows
        Number of rows before any was left out.
    lacking
        The labels that the source lacks.
    left_out
        The paths of the rows left out, by reason.
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
