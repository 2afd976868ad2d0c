"""The random streams of a run, each seeded by (seed, purpose, site, round, phase)."""

from __future__ import annotations

from enum import IntEnum


class Stream(IntEnum):
    """The purpose of a stream: the second entry of its seed sequence, so that no two purposes share bits.

    (Splits of data are seeded by the names of their steps, see ``datasets.loading``.)

    The numbers determine results: a new purpose takes a new number.
    """

    SADDLE_START = 0
    SADDLE_COEFFICIENTS = 1
    OUTPUT_ROUND = 2
    PARTICIPANTS = 3
    BATCHES = 4
    LOGISTIC_SOLUTION = 5
    LOGISTIC_TEST = 6
    TEST_TASKS = 7
    GRAPH = 8
    NEW_SITES = 9
    SENDING_ORDER = 10
    STAGE_OUTPUT = 11
    HEADS = 12
    AUGMENTATION = 14
