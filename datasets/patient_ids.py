"""Which rows are one patient's, and hashes of patients and rows, to recognise them without storing them.

The same patient in two exports of one system is one patient, whatever wrote them: a spreadsheet drops leading zeros,
and a column of floats adds ``.0``. So `patient_key` is the one rule for how two identifiers are compared.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from edelweiss.datasets.source import Digests, Mask

_BYTES = 8
BLOCK = 2**15  # rows
_WHOLE = re.compile(r"(-?)0*([0-9]+?)(?:\.0+)?")
_POWER = re.compile(r"-?[0-9](?:\.[0-9]+)?e\+[0-9]+", re.IGNORECASE)
_EXACT = 2**53  # a float is exact to here


def patient_key(text: str) -> str:
    """Return what two spellings of a patient's identifier have in common.

    Spaces around it and case do not count; nor do leading zeros and a fraction of zeros, if it is a number otherwise:
    ``123``, ``00123`` and ``123.0`` are one patient, as are ``P-7`` and ``p-7``. All else counts: ``P-7``, ``P-07`` and
    ``P7`` are three.
    """
    text = unicodedata.normalize("NFC", text).strip().casefold()
    return "".join(whole.groups()) if (whole := _WHOLE.fullmatch(text)) else text


def is_rounded(text: str) -> bool:
    """Whether an identifier went through a number that may not hold all of its digits: ``1.23457E+11``."""
    text = text.strip()
    return bool(_POWER.fullmatch(text)) or ("." in text and bool(_WHOLE.fullmatch(text)) and abs(float(text)) > _EXACT)


def spelt_apart(texts: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the patients of one export that it spells in several ways, which may be different patients."""
    found: dict[str, dict[str, None]] = {}
    for text in dict.fromkeys(map(str.strip, texts)):
        found.setdefault(patient_key(text), {})[text] = None
    return [tuple(spellings) for spellings in found.values() if len(spellings) > 1]


def digests(rows: Iterable[bytes], key: bytes = b"") -> Digests:
    """Return the 64-bit BLAKE2b hash of each row, optionally keyed; shape (n,)."""
    found, rows = bytearray(), iter(rows)
    while part := b"".join(hashlib.blake2b(row, digest_size=_BYTES, key=key).digest() for row in islice(rows, BLOCK)):
        found += part
    return np.frombuffer(found, "<u8")


def row_bytes(inputs: NDArray[np.float32], labels: NDArray[np.float32], places: Sequence[int]) -> list[bytes]:
    """Serialise the values of each row of a table.

    Parameters
    ----------
    inputs
        Shape (n, F), NaN where missing.
    labels
        Shape (n, L), in the order of their names, as written: NaN where blank.
    places
        The index of the feature that each label precedes in the order of all names, so that a row's bytes do not depend
        on the choice of label columns.
    """
    values = np.insert(inputs, places, labels, axis=1).astype("<f4") + 0.0  # the sum makes -0 a 0
    values[np.isnan(values)] = np.nan  # one bit pattern for all NaN
    return [row.tobytes() for row in values]


def blocks(rows: int) -> Iterator[slice]:
    """Yield the places of rows, `BLOCK` at a time: an object for each of all rows takes far more than their values."""
    return (slice(start, start + BLOCK) for start in range(0, rows, BLOCK))


def keyed(identities: Digests, key: str) -> Digests:
    """Return keyed hashes of hashes; equal ones stay equal."""
    unique, inverse = np.unique(identities, return_inverse=True)
    return digests((number.tobytes() for number in unique), bytes.fromhex(key))[inverse]


def keyed_holdout(identities: Digests, key: str, share: float, folds: int, fold: int) -> Mask:
    """Select a hospital's held-out patients, each independently of the others.

    `identities`, shape (n,), are the patients of the rows, `key` the hospital's secret in hexadecimal digits. With
    folds it selects the patients of one fold, else an expected share in [0, 1); the first of k folds equals the
    selection with a share of 1/k.
    """
    place = keyed(identities, key) / 2.0**64
    return np.floor(place * folds) == fold if folds else place < share
