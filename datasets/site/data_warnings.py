"""What may be a mistake in a hospital's table, and can be read all the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.patient_ids import digests, row_bytes
from edelweiss.datasets.site.columns import kind_of
from edelweiss.datasets.source import Ints


class DataWarnings:
    """Collects what may be a mistake, by kind.

    Parameters
    ----------
    file
        The table.
    classes
        Shape (n,), or (n, L) of several labels: of each row, below 0 where it is not known.
    """

    def __init__(self, file: Path, classes: Ints) -> None:
        self.file = file
        self.labels = list(classes.T) if classes.ndim > 1 else [classes]
        self._found: dict[tuple[str, str], list[str]] = {}
        self._repeated = self._contradicting = 0

    def column(self, name: str, numbers: NDArray[np.float64]) -> None:
        """Look at a feature: shape (n,), NaN where missing."""
        if len(numbers) == len(self.labels[0]) and (kind := kind_of(name, numbers, self.labels)):
            self._found.setdefault(kind, []).append(repr(name))

    def rows(self, rows: Sequence[bytes], inputs: NDArray[np.float32], labels: NDArray[np.float32]) -> None:
        """Look for rows that repeat, and for rows that have all features in common, and not the label.

        In a table of a few categories many patients have that by chance: nothing is said where one such pair is to be
        expected, had each column been drawn by itself.

        Parameters
        ----------
        rows
            All values of each row, n of them.
        inputs
            Shape (n, F), NaN where missing; a row without any value is like no other.
        labels
            Shape (n, L), as they are written: -1 where uncertain, NaN where blank, and neither contradicts anything.
        """
        repeated = len(rows) - len(set(rows))
        there = ~np.isnan(inputs).all(1)
        inputs, labels = inputs[there], np.where(labels < 0, np.nan, labels)[there]
        groups, same = np.unique(digests(row_bytes(inputs, labels[:, :0], [])), return_inverse=True)
        least, most = np.full((2, len(groups), labels.shape[1]), np.nan)
        np.fmin.at(least, same, labels)
        np.fmax.at(most, same, labels)
        contradicts: NDArray[np.bool_] = np.any(least < most, axis=1)
        contradicting = int(contradicts[same].sum())
        if (repeated or contradicting) and _pairs_by_chance(inputs) < 1:
            self._repeated, self._contradicting = repeated, contradicting

    def errors(self) -> list[DataError]:
        """Return an error for each kind; the public text holds counts only."""
        errors = [
            DataError(
                f"{self.file.name}: columns {wrong}: {examples(names)}; {mend}",
                f"{self.file.name}: {len(names)} columns {wrong}",
            )
            for (wrong, mend), names in self._found.items()
        ]
        if self._repeated:
            text = f"{self._repeated} rows repeat another one"
            errors.append(DataError(f"{self.file.name}: {text}; remove them if it is the same patient", text))
        if self._contradicting:
            text = f"{self._contradicting} rows have all features in common with others, and another label"
            errors.append(DataError(f"{self.file.name}: {text}; keep those that are right", text))
        return errors


def _pairs_by_chance(inputs: NDArray[np.float32]) -> float:
    """Return how many pairs of rows would have all in common if those that have one column in common were any."""
    pairs = expected = len(inputs) * (len(inputs) - 1) / 2
    for column in inputs.T if pairs else ():
        counts = np.unique(column, return_counts=True)[1].astype(np.float64)
        expected *= float((counts * (counts - 1)).sum()) / 2 / pairs
    return expected
