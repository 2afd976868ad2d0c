"""Digests of the evaluation samples: equal for the same patients with the same labels, whatever the run-config."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import torch

from edelweiss.datasets.config import SITE, DataConfig
from edelweiss.datasets.loading import load_site, load_test
from edelweiss.datasets.memory_mapped import gather
from edelweiss.datasets.samples import Samples

CENTRAL, HELD_OUT = "central", "held-out"
READ = 2**28  # bytes of inputs that are read; larger ones are identified by data set and rows


def fingerprints(config: DataConfig, sites: int) -> dict[str, str]:
    """Return digests of the common test rows and of all held-out rows, if there are any.

    A hospital's own data have none, since a digest would reveal one unknown patient to anyone who knows all others.

    Raises
    ------
    DataError
        If the data cannot be read, or cannot be split like this.
    """
    if config.dataset == SITE:
        return {}
    held_out = [load_site(config, site, sites).held_out for site in range(sites)]
    parts = {CENTRAL: [test] if (test := load_test(config)) is not None else [], HELD_OUT: held_out}
    return {part: digest(config, samples) for part, samples in parts.items() if any(map(len, samples))}


def digest(config: DataConfig, parts: list[Samples]) -> str:
    """Digest sets of samples; the assignment of samples to sets is part of the digest."""
    state = blake2b(digest_size=16)
    first = parts[0]
    size = sum(map(len, parts)) * int(np.prod(first.shape)) * first.inputs.itemsize
    state.update(repr((first.shape, str(first.inputs.dtype), size <= READ)).encode())
    if size > READ:
        state.update(repr((config.dataset, config.data_file, len(first.inputs))).encode())
    for samples in parts:
        rows = samples.rows
        inputs = gather(samples.inputs, rows) if size <= READ else rows
        for tensor in (torch.tensor(len(rows)), inputs, samples.targets()):
            state.update(np.ascontiguousarray(tensor.numpy()).tobytes())
    return state.hexdigest()
