"""Memory and time of the local engine with up to 1,000 workers that learn from their neighbours on a ring.

    python -m benchmarks.scale                               # linear on digits, d = 650
    python -m benchmarks.scale --model mlp --hidden 256      # d = 85,002: vectors outweigh all else
    python -m benchmarks.scale --algorithm fedavg            # the engine's own part

Digits dealt evenly, five steps of one sample per round, no evaluation. One process, so that its memory is all there is;
a process for each line. Memory is the peak of the resident set during the run less what the process had before it, with
every library imported and the data read; vectors in shared memory count where they are mapped. It stands beside the
arrays' own size: a vector of d numbers for each worker.

Seconds are the median over all rounds but the first. CPU seconds, of which a busy machine does not make more, are the
difference between a run of all rounds and one of a single round, after the one whose memory counts. Both should grow as
the number of workers; the last line has the slopes of the least squares lines.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

WORKERS = (125, 250, 500, 1000)
JOB: dict[str, Any] = {
    "problem": "cross-entropy",
    "dataset": "digits",
    "partition": "iid",
    "test-share": 0.0,
    "holdout-share": 0.0,  # 1,797 samples are one or two for each of 1,000 workers
    "batch-size": 1,
    "local-steps": 5,
    "engine": "local",
    "workers": 1,
    "device": "cpu",
    "evaluate-every": 0,
    "central-test": False,
    "checkpoint-every": 0,
}


def resident(which: str) -> int:
    """Return this process's resident memory in bytes: VmRSS, now, or VmHWM, the highest since `forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{which}:"):
            return 1024 * int(line.split()[1])
    raise KeyError(which)


def forget_peak() -> None:
    """Start to record the highest resident memory anew."""
    Path("/proc/self/clear_refs").write_text("5")


def measure(algorithm: str, model: str, hidden: int, sites: int, rounds: int) -> dict[str, float]:
    """Run once; returns bytes of the arrays and of the process beyond what it has before, and seconds of a round."""
    from edelweiss.server_app import simulate
    from edelweiss.server_app.coordinator import Result

    job = JOB | {"algorithm": algorithm, "model": model, "hidden": hidden}
    job |= {"d-psgd.topology": "ring"} if algorithm == "d-psgd" else {}

    def run(sites: int, rounds: int) -> tuple[Result, float]:
        started = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            result = simulate(job | {"sites": sites, "rounds": rounds, "runs-dir": folder}, quiet=True)
        return result, time.process_time() - started

    run(4, 2)
    gc.collect()
    before = resident("VmRSS")
    forget_peak()
    result, _ = run(sites, rounds)
    peak = resident("VmHWM")
    (_, short), (_, long) = run(sites, 1), run(sites, rounds)
    seconds = statistics.median(record["seconds"] for record in result.metrics[1:])
    arrays, cpu = sites * result.arrays["x"].nbytes, (long - short) / (rounds - 1)
    return {"arrays": arrays, "memory": peak - before, "seconds": seconds, "cpu": cpu}


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sites", nargs="*", type=int, default=WORKERS, help="how many workers; default: %(default)s")
    parser.add_argument("--algorithm", choices=["d-psgd", "fedavg"], default="d-psgd")
    parser.add_argument("--model", default="linear")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    setting = options.algorithm, options.model, options.hidden
    if options.only:
        print(json.dumps(measure(*setting, options.sites[0], options.rounds)))
        return
    found = []
    print("| workers | s / round | CPU s / round | CPU ms / worker | memory, MB | arrays, MB | memory / arrays |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for sites in options.sites:
        arguments = [str(sites), "--algorithm", setting[0], "--model", setting[1], "--hidden", str(setting[2])]
        command = [sys.executable, "-m", "benchmarks.scale", *arguments, "--rounds", str(options.rounds), "--only"]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        one = json.loads(output.splitlines()[-1])
        found.append(one)
        cells = [f"{sites:,}", f"{one['seconds']:.3f}", f"{one['cpu']:.3f}", f"{1000 * one['cpu'] / sites:.2f}"]
        cells += [f"{one['memory'] / 1e6:.1f}", f"{one['arrays'] / 1e6:.1f}", f"{one['memory'] / one['arrays']:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    if len(found) > 1:
        cpu, memory = (np.polyfit(options.sites, [one[key] for one in found], 1)[0] for key in ("cpu", "memory"))
        ratio = memory * options.sites[0] / found[0]["arrays"]
        print(f"\nEach worker more: {1000 * cpu:.2f} CPU ms a round, {memory / 1e3:.1f} kB, {ratio:.2f} × its array.")


if __name__ == "__main__":
    main()
