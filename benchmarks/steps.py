"""Local steps per second of the local engine on invariant logistic regression, where a step is a few operations.

    python -m benchmarks.steps

What is measured is what the engine and PyTorch cost around the arithmetic: 16 sites, d = 10, one outer sample with ten
inner ones per step. A round's time is the coordinator's, from the first message to the last answer. The median is over
all rounds but the first, in which the workers start.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from typing import Any

from edelweiss.server_app import simulate

SITES = 16
JOB: dict[str, Any] = {
    "problem": "invariant-logistic",
    "sites": SITES,
    "batch-size": 1,
    "invariant-logistic.inner-samples": 10,
    "invariant-logistic.dimension": 10,
    "evaluate-every": 0,
    "checkpoint-every": 0,
    "device": "cpu",
}


def steps_per_second(algorithm: str, steps: int, workers: int, rounds: int) -> tuple[float, float]:
    """Return the steps of all sites per second, and the seconds of a round."""
    with tempfile.TemporaryDirectory() as folder:
        job = JOB | {"algorithm": algorithm, f"{algorithm}.lr": 0.01, "local-steps": steps, "workers": workers}
        records = simulate(job | {"rounds": rounds, "runs-dir": folder}, quiet=True).metrics
    seconds = statistics.median(record["seconds"] for record in records[1:])
    return SITES * steps / seconds, seconds


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", default=["fcsg", "fcsg-m", "acc-fcsg-m"])
    parser.add_argument("--local-steps", type=int, nargs="+", default=[1, 10, 50, 200])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    print("| algorithm | local steps | ms / round | steps / s |")
    print("| --- | ---: | ---: | ---: |")
    for algorithm in options.algorithms:
        for steps in options.local_steps:
            rate, seconds = steps_per_second(algorithm, steps, options.workers, options.rounds)
            print(f"| {algorithm} | {steps} | {1000 * seconds:.1f} | {rate:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
