"""Warnings about a hospital's table: likely mistakes that do not prevent reading it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.patient_ids import blocks, digests, row_bytes, spelt_apart
from edelweiss.datasets.site.columns import CONSTANT, kind_of, look_like_visits
from edelweiss.datasets.source import Digests, Ints


class DataWarnings:
    """Collects likely mistakes in a table, by kind; classes, (n,) or (n, L) of several labels, negative if unknown."""

    def __init__(self, file: Path, classes: Ints) -> None:
        self.file = file
        self.labels = list(classes.T) if classes.ndim > 1 else [classes]
        self._found: dict[tuple[str, str], list[str]] = {}
        self._repeated = self._contradicting = 0
        self._visits = False
        self._spelt: list[tuple[str, ...]] = []

    def column(self, name: str, numbers: NDArray[np.float64], *, indicator: bool = False) -> None:
        """Check a feature: shape (n,), NaN where missing; an ``indicator`` of a category's word may be constant."""
        if len(numbers) != len(self.labels[0]):
            return
        if (kind := kind_of(name, numbers, self.labels)) and not (indicator and kind == CONSTANT):
            self._found.setdefault(kind, []).append(repr(name))

    def rows(self, rows: Digests, inputs: NDArray[np.float32], labels: NDArray[np.float32]) -> None:
        """Look for repeated rows, and for rows with the same features but different labels.

        In a table of a few categories this is common by chance: there is no warning if one such pair is expected under
        independence of the columns.

        `rows` has a hash of the whole content of each row; `inputs`, shape (n, F), is NaN where missing, and a row
        without any value matches no other; `labels`, shape (n, L), is as written: -1 if uncertain, NaN if blank, and
        neither contradicts another value.
        """
        repeated = len(rows) - len(np.unique(rows))
        there = ~np.isnan(inputs).all(1)
        inputs, labels = inputs if there.all() else inputs[there], np.where(labels < 0, np.nan, labels)[there]
        hashes = [digests(row_bytes(inputs[part], labels[part, :0], [])) for part in blocks(len(inputs))]
        groups, same = np.unique(np.concatenate([*hashes, rows[:0]]), return_inverse=True)
        least, most = np.full((2, len(groups), labels.shape[1]), np.nan)
        np.fmin.at(least, same, labels)
        np.fmax.at(most, same, labels)
        contradicts: NDArray[np.bool_] = np.any(least < most, axis=1)
        contradicting = int(contradicts[same].sum())
        if (repeated or contradicting) and _pairs_by_chance(inputs) < 1:
            self._repeated, self._contradicting = repeated, contradicting

    def visits(self, inputs: NDArray[np.float32]) -> None:
        """Look for several rows of a patient, where nothing says whose the rows are; `inputs` has shape (n, F)."""
        self._visits = look_like_visits(inputs)

    def patients(self, texts: Iterable[str]) -> None:
        """Look for patients who are spelt in several ways, and so may be several."""
        self._spelt = spelt_apart(texts)

    def errors(self) -> list[DataError]:
        """Return an error for each kind; the public text holds counts only."""
        errors = [
            DataError(
                f"{self.file.name}: columns {wrong}: {examples(names)}; {mend}",
                f"{self.file.name}: {len(names)} columns {wrong}",
            )
            for (wrong, mend), names in self._found.items()
        ]
        if self._spelt:
            named = examples([" = ".join(map(repr, spellings)) for spellings in self._spelt])
            text = f"{len(self._spelt)} patients are spelt in several ways, and each counts as one"
            mend = "spell each alike or, if these are different patients, give them other identifiers"
            errors.append(DataError(f"{self.file.name}: {text}: {named}; {mend}", text))
        if self._repeated:
            text = f"{self._repeated} rows repeat an earlier one"
            errors.append(DataError(f"{self.file.name}: {text}; remove them if it is the same patient", text))
        if self._contradicting:
            text = f"{self._contradicting} rows have the same features as others, but another label"
            errors.append(DataError(f"{self.file.name}: {text}; keep the correct ones", text))
        if self._visits:
            text = "neighbouring rows agree in several columns, as several visits of a patient do"
            mend = "name the column of patients, as patient in the study file or under [policy], to hold out whole ones"
            errors.append(DataError(f"{self.file.name}: {text}; {mend}", text))
        return errors


def _pairs_by_chance(inputs: NDArray[np.float32]) -> float:
    """Return the expected number of pairs of equal rows if columns were independent."""
    pairs = expected = len(inputs) * (len(inputs) - 1) / 2
    for column in inputs.T if pairs else ():
        counts = np.unique(column, return_counts=True)[1].astype(np.float64)
        expected *= float((counts * (counts - 1)).sum()) / 2 / pairs
    return expected
