"""Heuristics for columns that are no measurement: identifiers, dates, codes, copies of the label.

They must not fire on real measurements; `docs/data.md` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edelweiss.datasets.source import Ints

Floats = NDArray[np.float64]

EMPTY = ("hold no value", "remove them at all sites, or keep them where other sites have values")
CONSTANT = ("hold the same value in all rows", "remove them, unless they vary at other sites")
LABEL = ("are copies of the label", "remove them")
LEAK = ("predict the label almost without error", "remove them if they define it, or are known only after it")
DATES = ("hold dates (YYYYMMDD)", "replace them by a time between two events, such as an age")
MONTHS = ("hold months (YYYYMM)", DATES[1])
DAYS = ("hold dates (DDMMYYYY or MMDDYYYY)", DATES[1])
SERIAL = ("hold whole numbers that look like a spreadsheet's dates (days since 1900)", DATES[1])
NUMBERED = ("hold a different whole number in each row, like identifiers", "remove them if they are")
REPEATED = (
    "hold identifiers that repeat, such as patient ids",
    "remove them; if they identify patients, declare them as the patient column, so that a patient's rows are held out "
    "together",
)
ICD = ("hold numbers that look like ICD-9 codes", "group the diagnoses into columns of 0 and 1")
CODES = ("hold codes such as -9 or 999 among their values", "leave these cells empty if the values are missing")

_FEWEST = 20  # fewest distinct values of identifiers and of a spreadsheet's dates
_FEW = 10  # with fewer rows in a class, one column may separate it by chance
_ERRORS = 50  # "almost without error" allows one error in this many rows of the smaller class
_WIDE = 10**4  # least range of identifiers that only repeat
_CELLS = 10**6  # cells of a table of values by class that are always allowed
_LOOKED_AT = 2**17  # first rows in which visits are looked for: more would say no more
_CATEGORIES = 20  # most distinct values of a category
_LONGER = [[7 * unit, 8 * unit, 9 * unit - 2, 9 * unit - 1, 9 * unit] for unit in (11.0, 111.0, 1111.0, 11111.0)]
_ABOVE = [[7.0, 8.0, 9.0], *_LONGER]  # 77, 88, 97, 98, 99, and longer ones
_MISSING_BELOW = np.array([-1.0, *(-code for group in _ABOVE for code in group)])
# The commonest three-digit ICD-9 codes of inpatients.
_DIAGNOSES = np.fromstring(
    """
    8 38 162 174 185 197 198 211 218 244 250 272 274 276 278 280 285 288 290 291 294 295 296 300 303 305 309 311 331
    332 345 348 357 362 365 396 397 401 402 403 410 411 412 413 414 415 416 424 425 426 427 428 429 431 433 434 435
    436 438 440 441 443 458 459 466 472 477 482 486 491 493 496 507 511 518 530 531 532 535 540 550 553 558 560 562
    564 569 571 573 574 577 578 584 585 586 590 592 593 599 600 618 625 644 648 682 707 710 714 715 719 721 722 723
    724 726 728 729 733 780 781 782 784 785 786 787 788 789 790 799 805 807 808 812 813 820 823 824 850 852 873 959
    965 969 995 996 997 998 999
    """,
    np.int64,
    sep=" ",
)


def kind_of(name: str, numbers: Floats, labels: Sequence[Ints]) -> tuple[str, str] | None:
    """Return the gravest problem of a column and its fix; None if there is none.

    `numbers` has shape (n,), NaN where missing; each of `labels` shape (n,), negative where the class is unknown. A
    column with a name such as ``patient_id`` needs less evidence.
    """
    there = np.isfinite(numbers)
    values = numbers[there]
    different, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    if not len(different):
        return EMPTY
    if len(values) < len(numbers) and any(_tells(_tally(there.astype(np.int64), 2, label)) for label in labels):
        return LEAK
    if len(different) == 1:
        return CONSTANT
    whole, words = bool(np.array_equal(different, np.rint(different))), set(_words(name))
    if whole and len(different) == len(values) >= _FEWEST and different[-1] - different[0] < 2 * len(different):
        return NUMBERED  # before LEAK: in a table sorted by its label they predict it
    place = np.full(len(numbers), -1)
    place[there] = inverse
    for label in labels:
        table = _tally(place, len(different), label)
        if table.shape[0] == table.shape[1] > 1 and int((table > 0).sum()) == len(table):
            return LABEL
        if _tells(table):
            return LEAK
    if whole:
        tests: tuple[tuple[tuple[str, str], Callable[[], bool]], ...] = (
            (DATES, lambda: _all_dates(different // 10000, different // 100 % 100, different % 100)),
            (
                DAYS,
                lambda: (
                    _all_dates(different % 10000, different // 10000 % 100, different // 1000000)
                    or _all_dates(different % 10000, different // 1000000, different // 10000 % 100)
                ),
            ),
            (MONTHS, lambda: len(different) > 2 and _all_dates(different // 100, different % 100, np.ones(1))),
            (NUMBERED, lambda: len(different) == len(values) >= (_FEWEST if words & _NAMES else 50)),
            (SERIAL, lambda: _are_serial(different)),
            (REPEATED, lambda: _repeat(words, values, different, counts)),
        )
        if found := next((kind for kind, holds in tests if holds()), None):
            return found
    if _are_icd(words, different, counts):
        return ICD
    return CODES if _has_codes(different, counts) else None


# ---------------------------------------------------------------------- the label


def _tally(place: Ints, count: int, label: Ints) -> Ints:
    """Count rows by value and class, shape (distinct values, classes that occur); empty if far larger than the column.

    `place`, shape (n,), is the index of each row's value, below ``count``, -1 for none; `label` its class, negative if
    unknown.
    """
    known = (place >= 0) & (label >= 0)
    sizes = np.bincount(label[known])
    kinds = np.flatnonzero(sizes)
    number = np.zeros(len(sizes), np.int64)
    number[kinds] = np.arange(len(kinds))
    if count * len(kinds) > _CELLS + _CATEGORIES * len(place):  # more classes than one column could separate
        return np.zeros((0, 0), np.int64)
    cells = np.bincount(place[known] * len(kinds) + number[label[known]], minlength=count * len(kinds))
    table: Ints = cells.reshape(count, len(kinds))
    return table[table.any(1)]


def _tells(table: Ints) -> bool:
    """Whether one threshold, or the class of each category, predicts a label almost without error.

    One error in 50 rows of the smaller class is allowed. With fewer than 10 rows in a class, a good column may do so by
    chance.
    """
    sizes = table.sum(0)
    if len(sizes) < 2 or sizes.min() < _FEW:
        return False
    allowed = int(sizes.min()) // _ERRORS
    if 5 * len(table) <= sizes.sum() and len(table) <= _CATEGORIES:
        return int((table.sum(1) - table.max(1)).sum()) <= allowed
    if len(sizes) > 2:  # sorted by value, each class is one run of rows
        pure = (table > 0).sum(1) == 1
        return bool(pure.all()) and int((np.diff(table.argmax(1)) != 0).sum()) == len(sizes) - 1
    below = np.cumsum(table, axis=0)[:-1]
    wrong = below[:, 0] + sizes[1] - below[:, 1]
    return bool(len(wrong)) and min(int(wrong.min()), int(sizes.sum() - wrong.max())) <= allowed


# ---------------------------------------------------------------------- dates and identifiers


def _all_dates(year: Floats, month: Floats, day: Floats) -> bool:
    fits = (year >= 1900) & (year < 2100) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    return bool(np.all(fits))


def _are_serial(different: Floats) -> bool:
    """Whether whole numbers are a spreadsheet's days from 1970 to 2031, not rounded."""
    inside = different[0] >= 25569 and different[-1] <= 47848
    return bool(inside and len(different) >= _FEWEST and np.mean(different % 10 == 0) <= 0.25)


def _repeat(words: set[str], values: Floats, different: Floats, counts: Ints) -> bool:
    """Whether whole numbers identify something that has several rows.

    The column's name says so; or they count from 0 or 1 without a gap and the rows of each are adjacent; or they repeat
    although their neighbours do not occur, which rounding does not explain.
    """
    if len(different) < _FEWEST or len(different) == len(values):
        return bool(words & _NAMES) and len(different) > _CATEGORIES // 2 and len(different) < len(values)
    if words & _NAMES:
        return True
    runs = 1 + int(np.count_nonzero(np.diff(values)))
    gapless = different[0] in (0, 1) and different[-1] - different[0] == len(different) - 1
    if gapless and runs == len(different) and len(values) >= 1.5 * len(different):
        return True
    often = counts > 1
    if often.sum() < _FEWEST or counts[often].sum() < 0.7 * len(values) or different[-1] - different[0] < _WIDE:
        return False
    near = np.diff(different) == 1
    beside = np.append(near, False) | np.append(False, near)
    rounded = np.mean(different % 5 == 0) > 0.35 or np.gcd.reduce(np.diff(different).astype(np.int64)) > 1
    return not rounded and float(beside[often].mean()) <= 0.2


_NAMES = {
    "id",
    "ids",
    "subject",
    "subj",
    "subjid",
    "patient",
    "patid",
    "patientid",
    "pid",
    "mrn",
    "ptid",
    "caseid",
    "hadm",
    "encounter",
    "participant",
}  # words of a column's name
_NAMING = {"name", "names", "surname", "lastname", "firstname", "fullname", "forename", "patientname", "initials"}
_NAMING |= {"vorname", "nachname", "familienname", "nom", "prenom", "prénom", "nombre", "apellido", "apellidos"}


def _words(name: str) -> list[str]:
    """Return the words of a column's name in lower case: patient and id of ``PatientID`` or ``patient_id``."""
    spaced = "".join(f" {c}" if c.isupper() and p.islower() else c for p, c in zip(f" {name}", name, strict=False))
    return "".join(c.lower() if c.isalpha() else " " for c in spaced).split()


def names_an_id(name: str) -> bool:
    """Whether a column's name says that it identifies patients or stays."""
    return not _NAMES.isdisjoint(_words(name))


def names_a_person(name: str) -> bool:
    """Whether a column's name says that it holds people's names."""
    words = set(_words(name))
    return bool(words & _NAMING) and words <= _NAMING | {
        "patient",
        "first",
        "last",
        "full",
        "family",
        "given",
        "middle",
    }


def look_like_visits(inputs: NDArray[np.float32]) -> bool:
    """Whether neighbouring rows are the same patient's: they agree in several columns far more often than others do.

    `inputs` has shape (n, F), NaN where missing. A column by which the table may be sorted is no evidence.
    """
    agree, chance = [], 1.0
    for column in inputs[:_LOOKED_AT].T:
        values = column[~np.isnan(column)]
        counts = np.unique(values, return_counts=True)[1]
        if len(counts) < _FEW or len(values) < 2 * _FEWEST:
            continue
        steps = np.sign(np.diff(values))
        steps = steps[steps != 0]
        sorted_by = np.mean(steps[1:] != steps[:-1]) < 0.4 if len(steps) > _FEWEST else True
        same, by_chance = column[1:] == column[:-1], float(((counts / len(values)) ** 2).sum())
        if not sorted_by and same.mean() >= max(0.25, 5 * by_chance):
            agree.append(same)
            chance *= by_chance
    return len(agree) > 1 and chance < 0.01 and bool(np.logical_and.reduce(agree).mean() >= 0.25)


# ---------------------------------------------------------------------- codes


def _are_icd(words: set[str], different: Floats, counts: Ints) -> bool:
    """Whether numbers are diagnoses: from 1 to 999.99, widely spread, and mostly among the commonest codes."""
    if different[0] < 1 or different[-1] >= 1000 or not np.allclose(different * 100, np.rint(different * 100)):
        return False
    whole = np.floor(different)
    known = np.isin(whole, _DIAGNOSES)
    named = any(word.startswith(("icd", "diag")) or word == "dx" for word in words)
    wide = len(np.unique(whole[known])) >= (5 if named else 10) and different[-1] - different[0] >= 300
    return bool(wide and counts[known].sum() >= (0.4 if named else 0.75) * counts.sum())


def _has_codes(different: Floats, counts: Ints) -> bool:
    """Whether some values are codes for missing: isolated negative ones, or nines above all others."""
    if len(below := different[different < 0]) and np.isin(below, _MISSING_BELOW).all():
        rest = different[different >= 0]
        if below[0] == -1 and (len(rest) < 5 or counts[0] <= counts[1]):  # a value like 0 and 1
            return False
        if len(rest) > 1 and counts[: len(below)].sum() > 1:
            return True
    for group in _ABOVE:
        code = group[-1]
        if different[-1] != code or counts[-1] < 2:
            continue
        rest = different[~np.isin(different, group)]
        if len(rest) < 2 or rest[0] < -code:
            return False
        if code == 9:  # of 1 to 4 and 9; 5 and 9 may be counts
            return bool(rest[-1] <= 5 and np.array_equal(rest, np.rint(rest)))
        if rest[-1] <= code / 2:
            return True
        upper = counts[:-1][(different[:-1] > 0.85 * code) & ~np.isin(different[:-1], group)]
        return len(upper) > 2 and bool(counts[-1] >= 5 and counts[-1] >= 5 * upper.max())
    return False
