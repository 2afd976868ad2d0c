"""What secure aggregation costs beside the same numbers in the clear: seconds of the processor, bytes.

    python -m benchmarks.secure_aggregation [--sites 3 10 50] [--numbers 100000 7000000]

For one round: what a site does with its vector (encode, mask, write the answer and the next keys to disk, pack; in the
clear, pack), and what the coordinator does with all (read and add; in the clear, read and average).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from edelweiss.common.files import write_private
from edelweiss.federation.average import Mean
from edelweiss.federation.masks import Chains
from edelweiss.federation.sums import INTEGERS, LARGEST, Layout, Part
from edelweiss.federation.sums import pack as pack_integers
from edelweiss.federation.wire import pack, unpack

REPEATS = 5


def least(work: Callable[[], object]) -> float:
    """Return the least seconds of the processor that work takes."""
    found = []
    for _ in range(REPEATS):
        before = time.process_time()
        work()
        found.append(time.process_time() - before)
    return min(found)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10, 50])
    parser.add_argument("--numbers", type=int, nargs="+", default=[100_000, 7_000_000])
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| numbers | sites | site: clear | masked | of it masks, per peer | coordinator: clear | summed | bytes |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for d in options.numbers:
            for sites in options.sites:
                print(row(d, sites, Path(folder)))


def row(d: int, sites: int, folder: Path) -> str:
    """Return the line of a table."""
    vector = torch.randn(d, generator=torch.Generator().manual_seed(d))
    layout = Layout(sites, (Part("vector x", (d,), LARGEST),))
    chains = Chains("a", {f"b{number}": os.urandom(32) for number in range(sites - 1)})
    own = layout.encode({"vector x": (vector.numpy(), 1.0)})

    def masked() -> None:
        integers = chains.mask(layout.encode({"vector x": (vector.numpy(), 1.0)}), b"e")
        chains.stepped(b"e")
        write_private(folder / "answer", integers.tobytes())
        pack_integers(integers)

    of_masks = least(lambda: chains.mask(own, b"e"))
    clear, secure = least(lambda: pack({"x": vector})), least(masked)
    packed, sent = pack({"x": vector}), pack_integers(own)

    def averaged() -> None:
        mean = Mean()
        for _ in range(sites):
            mean.add(unpack(packed), 1.0)
        mean.value()

    def summed() -> None:
        total = np.zeros(layout.length, np.uint64)
        for _ in range(sites):
            data = sent[INTEGERS].data
            np.add(total, np.frombuffer(data, "<u8", layout.length, offset=len(data) - 8 * layout.length), out=total)
        total[-1] = sites
        _ = layout.decode(total)["vector x"] / sites

    ratio = len(sent[INTEGERS].data) / len(packed["x"].data)
    seconds = [clear, secure, of_masks / (sites - 1), least(averaged), least(summed)]
    return f"| {d:,} | {sites} | " + " | ".join(f"{each:.4f}" for each in seconds) + f" | {ratio:.2f} x |"


if __name__ == "__main__":
    main()
