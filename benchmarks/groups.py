"""How far off AUROC and average precision are where a hospital tells of groups, and how far they might be.

``python -m benchmarks.groups`` prints the table of docs/evidence.md.
"""

from __future__ import annotations

import numpy as np

from edelweiss.client_app.policy.coarsening import merged
from edelweiss.lab.compare.text import markdown
from edelweiss.problems.histogram import Histogram
from edelweiss.problems.metrics import HISTOGRAMS, RANKINGS, TIES, ranked
from edelweiss.problems.pooling import pool

SIZES = ((20, 80), (50, 200), (100, 400), (200, 1800))
DRAWS, FEWEST = 200, 5


def main() -> None:
    """Draw scores, and print a line for each size."""
    random = np.random.default_rng(0)
    lines = []
    for positives, negatives in SIZES:
        labels, found = np.repeat([1, 0], [positives, negatives]), []
        for _ in range(DRAWS):
            exact = ranked(labels, (random.normal(size=len(labels)) + labels).astype(np.float32))
            groups = {
                name: merged(Histogram.unpacked(bytes(exact[name])), FEWEST).packed()  # type: ignore[arg-type]
                for name in HISTOGRAMS
            }
            told = pool([{**exact, **groups, "fewest": FEWEST}])
            found.append(
                [part for kind in RANKINGS for part in (abs(told[kind] - float(str(exact[kind]))), told[TIES[kind]])]
            )
        means = np.mean(found, axis=0)
        cells = [f"{mean:.{3 - place % 2}f}" for place, mean in enumerate(means)]
        lines.append([f"{positives:,}, {negatives:,}", *cells])
    heads = ["positives, negatives", "AUROC off, on average", "`ties`", "average precision off", "`ties`"]
    print(markdown([heads, ["---"] * len(heads), *lines]))


if __name__ == "__main__":
    main()
