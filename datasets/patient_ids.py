"""Who a row is, as a number: to split a hospital's rows by patient, and to know them again without keeping them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from edelweiss.datasets.source import Digests, Mask

_BYTES = 8


def digests(rows: Iterable[bytes], key: bytes = b"") -> Digests:
    """Return a 64-bit BLAKE2b hash of each row, with a key if one is given; shape (n,)."""
    return np.frombuffer(b"".join(hashlib.blake2b(row, digest_size=_BYTES, key=key).digest() for row in rows), "<u8")


def of_values(inputs: NDArray[np.float32], labels: NDArray[np.float32], places: Sequence[int]) -> list[bytes]:
    """Return the values of each row of a table.

    Parameters
    ----------
    inputs
        Shape (n, F), NaN where missing.
    labels
        Shape (n, L), in the order of their names and as they are written: NaN where blank, whatever a run makes of it.
    places
        Before which feature each label stands in the order of all names, so that a row stays the same whichever columns
        a run takes for labels.
    """
    values = np.insert(inputs, places, labels, axis=1).astype("<f4") + 0.0  # the sum makes -0 a 0
    values[np.isnan(values)] = np.nan  # of which there are many
    return [row.tobytes() for row in values]


def keyed(identities: Digests, key: str) -> Digests:
    """Return the hashes of hashes that only the owner of the key can make; equal ones stay equal."""
    unique, inverse = np.unique(identities, return_inverse=True)
    return digests((number.tobytes() for number in unique), bytes.fromhex(key))[inverse]


def held_out_by(identities: Digests, key: str, share: float, folds: int, fold: int) -> Mask:
    """Choose whom a hospital holds out, each for itself: who else is there changes nothing.

    Parameters
    ----------
    identities
        Shape (n,): whose each row is. Rows of the same stay together.
    key
        The hospital's secret, in hexadecimal digits.
    share
        In [0, 1). Of the patients, in the mean.
    folds, fold
        With folds: which of so many.

    Returns
    -------
    chosen
        Shape (n,) bool. The first of k folds is whom a share of 1/k chooses.
    """
    place = keyed(identities, key) / 2.0**64
    return np.floor(place * folds) == fold if folds else place < share
