"""The random streams of a run: what each draw is for. A stream follows from (seed, purpose, site, round, phase)."""

from __future__ import annotations

from enum import IntEnum


class Stream(IntEnum):
    """What is drawn; second entry of a seed sequence, after the run's seed, so that no two purposes share bits.

    (How data are split is seeded by the names of its steps, see ``datasets.loading``.)

    The numbers are part of what a seed means: a new purpose takes a new number.
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
    NEWCOMERS = 9
    SENDING_ORDER = 10
    STAGE_OUTPUT = 11
    HEADS = 12
    AUGMENTATION = 14
