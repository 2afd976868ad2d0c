"""A data set as read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edelweiss.datasets.errors import DataError

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Digests = NDArray[np.uint64]


@dataclass(frozen=True)
class Change:
    """A change to rows between a file and the samples of a run, with counts."""

    # count, of: number of changed rows, of all rows
    count: int
    of: int
    what: str  # the change: "rows are left out by views = 'AP'"

    def __str__(self) -> str:
        return f"{self.count:,} of {self.of:,} {self.what}"

    @classmethod
    def summed(cls, changes: Iterable[Change]) -> tuple[Change, ...]:
        """Sum equal changes of several files."""
        found: dict[str, Change] = {}
        for one in changes:
            before = found.get(one.what, cls(0, 0, one.what))
            found[one.what] = cls(before.count + one.count, before.of + one.of, one.what)
        return tuple(found.values())


@dataclass(frozen=True, eq=False)
class Source:
    """A data set as read, independent of sites and of a run's labels.

    Parameters
    ----------
    inputs
        Shape (N, F) float32, NaN where missing, or (N, C, H, W) uint8.
    classes
        Shape (N,): original classes, in [0, class_count); or (N, L) for several binary labels. Binary labels may be
        `datasets.labels.UNKNOWN`.
    class_count
        Number of classes, whether or not all occur.
    test
        Shape (N,) bool: the official test rows; None without an official test set.
    groups
        Shape (N,): the group of each row, a natural site or a character; None without groups.
    group_names
        Names of natural sites, indexed by `groups`.
    features
        Column names of a table.
    patient_ids, row_ids
        Shape (N,), for a hospital's own rows: hashes of the patient and of the row, see `datasets.patient_ids`.
    by_patient
        Whether ``patient_ids`` says which rows are one patient's, as a patient column does.
    warnings
        Possible mistakes in a hospital's own table, and bad images that are left out.
    notes
        Which rows were left out because the run wants it so, for the hospital's own log.
    changes
        What was done to rows as they were read, without a name or a value of them.
    class_names
        Label value of each class, for a table with a label column.
    """

    inputs: Tensor
    classes: Ints
    class_count: int
    test: Mask | None = None
    groups: Ints | None = None
    group_names: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    patient_ids: Digests | None = None
    row_ids: Digests | None = None
    by_patient: bool = False
    warnings: tuple[DataError, ...] = ()
    notes: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    class_names: tuple[str, ...] = ()

    @classmethod
    def official(cls, images: Bytes, classes: Ints, test_images: Bytes, test_classes: Ints, count: int) -> Source:
        """Combine training images with those of the official test set."""
        inputs = torch.from_numpy(np.concatenate([images, test_images]))
        test = np.arange(len(inputs)) >= len(images)
        return cls(inputs, np.concatenate([classes, test_classes]).astype(np.int64), count, test)
