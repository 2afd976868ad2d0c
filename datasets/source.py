"""A whole data set as it was read."""

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
    """What was done to rows between a file and the samples of a run, in numbers.

    Parameters
    ----------
    count, of
        To how many, of how many.
    what
        What these are, and what was done: ``"rows are left out by views = 'AP'"``.
    """

    count: int
    of: int
    what: str

    def __str__(self) -> str:
        return f"{self.count:,} of {self.of:,} {self.what}"

    @classmethod
    def summed(cls, changes: Iterable[Change]) -> tuple[Change, ...]:
        """Add up the same change of several files."""
        found: dict[str, Change] = {}
        for one in changes:
            before = found.get(one.what, cls(0, 0, one.what))
            found[one.what] = cls(before.count + one.count, before.of + one.of, one.what)
        return tuple(found.values())


@dataclass(frozen=True, eq=False)
class Source:
    """A whole data set as it was read; it knows of no sites and of no labels of a run.

    Parameters
    ----------
    inputs
        Shape (N, F) float32, NaN where missing, or (N, C, H, W) uint8.
    classes
        Shape (N,): original classes, in [0, class_count). Shape (N, L), of several labels of two classes, with
        `datasets.labels.UNKNOWN` where one is not known; so may be the classes of one such label.
    class_count
        How many classes the data set has, whether or not all occur.
    test
        Shape (N,) bool: the official test rows; None when there is no official test set.
    groups
        Shape (N,): what each row belongs to, a natural site or a character; None when there are none.
    group_names
        Of natural sites; `groups` is the index into them.
    features
        Column names of a table.
    whose, what
        Shape (N,), of a hospital's own rows: hashes of the patient and of the whole row, see `datasets.patient_ids`.
    by_patient
        Whether ``whose`` says which rows are one patient's, as a patient column does.
    doubts
        What may be a mistake in a hospital's own table, and images of it that are left out because they are bad.
    notes
        Which rows were left out because the run wants it so, for the hospital's own log.
    changes
        What was done to rows as they were read, without a name or a value of them.
    class_names
        Of a table with a label column: for each class the value that means it.
    """

    inputs: Tensor
    classes: Ints
    class_count: int
    test: Mask | None = None
    groups: Ints | None = None
    group_names: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    whose: Digests | None = None
    what: Digests | None = None
    by_patient: bool = False
    doubts: tuple[DataError, ...] = ()
    notes: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    class_names: tuple[str, ...] = ()

    @classmethod
    def official(cls, images: Bytes, classes: Ints, test_images: Bytes, test_classes: Ints, count: int) -> Source:
        """Join images to train on with those of the official test set."""
        inputs = torch.from_numpy(np.concatenate([images, test_images]))
        test = np.arange(len(inputs)) >= len(images)
        return cls(inputs, np.concatenate([classes, test_classes]).astype(np.int64), count, test)
