"""Memory and time of a long run over ten thousand sites, a hundred of whom take part in a round.

    EDELWEISS_DATA=folder/with/mnist python -m benchmarks.growth                  # about five minutes
    EDELWEISS_DATA=folder/with/mnist python -m benchmarks.growth --rounds 100 --sites 1000 4000

CODASCA on the AUC of MNIST (a small network, d = 7,973), which remembers control variates at each site that has taken
part. One process does everything, so that its memory is all there is: its resident set, and the files in shared memory
that hold what sites remember.

The first table holds their sum against the bytes of the samples + 1.2 times what is remembered + 300 MB. The second has
runs over fewer and more sites of whom equally many take part: the median CPU time of a round. The third has 16 and 256
sites that all take part, on the same samples.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SITES, ASKED, ROUNDS = (1_000, 4_000, 10_000), 100, 500
MARKS = (2, 50, 100, 250, 500)
SHARING, FEW = (16, 256), 4  # sites that all take part, and for how many rounds
JOB: dict[str, Any] = {
    "algorithm": "codasca",
    "problem": "auc",
    "dataset": "mnist",
    "partition": "iid",
    "thin-share": 0.0,
    "holdout-share": 0.0,
    "model": "mlp",
    "hidden": 10,
    "batch-size": 4,
    "local-steps": 4,
    "engine": "local",
    "workers": 1,
    "device": "cpu",
    "evaluate-every": 0,
    "central-test": False,
    "evidence": False,
    "report": False,
}


def resident() -> int:
    """Return the bytes of this process's resident set."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    raise KeyError("VmRSS")


def played(sites: int, rounds: int, asked: int, marks: Iterable[int]) -> dict[str, Any]:
    """Play a run; return what it took at the beginning of some rounds, and the CPU seconds of each."""
    from flwr.app import ConfigRecord, Message

    from edelweiss.common import record_in
    from edelweiss.config import RunConfig
    from edelweiss.datasets import load_site
    from edelweiss.server_app.console import Progress
    from edelweiss.server_app.coordinator import coordinate
    from edelweiss.server_app.local import LocalGrid, unused_run_id

    seen: list[dict[str, float]] = []
    cpu: list[float] = []

    class OutlierCounter(LocalGrid):
        """Looks at memory when the messages of a round leave."""

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            r = record_in(messages[0].content, "config", ConfigRecord).get("round")
            if messages[0].metadata.message_type == "train":
                cpu.append(time.process_time())
                if r in marks:
                    files = self.states.folder.glob("run-*/*/*")
                    states = [file.stat().st_blocks * 512 for file in files]
                    seen.append({"round": r, "memory": resident(), "states": sum(states), "kept": len(states)})
            return super().push_messages(messages)

    with tempfile.TemporaryDirectory() as folder:
        job = JOB | {"sites": sites, "fraction": asked / sites, "rounds": rounds, "runs-dir": folder}
        config = RunConfig.parse(job)
        with OutlierCounter(config, unused_run_id()) as grid:
            coordinate(config, grid, Progress(quiet=True))
        train = load_site(config.data(), 0, sites).train
    data = train.inputs.nbytes + train.labels.nbytes
    return {"seen": seen, "data": data, "cpu": [b - a for a, b in itertools.pairwise(cpu)]}


def measured(sites: int, asked: int, rounds: int) -> dict[str, Any]:
    """Play a run in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.growth", "--only", "--sites", str(sites), "--asked", str(asked)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words += ["--rounds", str(rounds)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure and print two Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=SITES, help="default: %(default)s")
    parser.add_argument("--asked", type=int, default=ASKED, help="sites of a round; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of the run over most sites; default: %(default)s")
    parser.add_argument("--short", type=int, default=50, help="of the others; default: %(default)s")
    parser.add_argument("--only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    marks = sorted({mark for mark in MARKS if mark < options.rounds} | {options.rounds})
    if options.only:
        print(json.dumps(played(options.sites[0], options.rounds, options.asked, marks)))
        return
    most = max(options.sites)
    runs = {n: measured(n, options.asked, options.rounds if n == most else options.short) for n in options.sites}
    longest = runs[most]
    print("| round | sites that remember | remembered, MB | process, MB | together, MB | allowed, MB |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for mark in longest["seen"]:
        allowed = longest["data"] + 1.2 * mark["states"] + 300e6
        sizes = [mark["states"], mark["memory"], mark["states"] + mark["memory"], allowed]
        cells = [f"{mark['round']:.0f}", f"{mark['kept']:,.0f}", *(f"{size / 1e6:,.0f}" for size in sizes)]
        print(f"| {' | '.join(cells)} |")
    print("\n| sites | of them in a round | CPU ms / round | ratio |")
    print("| ---: | ---: | ---: | ---: |")
    first = statistics.median(runs[min(options.sites)]["cpu"][1 : options.short])
    for sites, run in runs.items():
        median = statistics.median(run["cpu"][1 : options.short])
        print(f"| {sites:,} | {options.asked} | {1e3 * median:.0f} | {median / first:.2f} |")
    print("\n| sites, all of them in a round | remembered, MB | process, MB |")
    print("| ---: | ---: | ---: |")
    for sites in SHARING:
        mark = measured(sites, sites, FEW)["seen"][-1]
        print(f"| {sites} | {mark['states'] / 1e6:,.0f} | {mark['memory'] / 1e6:,.0f} |")


if __name__ == "__main__":
    main()
