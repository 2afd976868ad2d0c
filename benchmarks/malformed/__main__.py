"""How many malformed inputs get one clear line, by kind; the table goes into docs/results/malformed.md.

python -m benchmarks.malformed                        # every module and kind
python -m benchmarks.malformed messages --count 20    # one module, 20 inputs of each kind, and no page
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

from benchmarks.malformed import OUTCOMES, Kind, commands, configs, data, described, files, messages, outcome
from benchmarks.pages import insert

MODULES: dict[str, dict[str, Kind]] = {
    "messages": messages.KINDS,
    "run-config": configs.KINDS,
    "files": files.KINDS,
    "data": data.KINDS,
    "what describes data": described.KINDS,
    "commands": commands.KINDS,
}
"""Boundary, kinds of what can be wrong there."""

COMMAND = "python -m benchmarks.malformed"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "malformed.md"


def main() -> None:
    """Count and print; write the page where everything was tried."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(MODULES)}; default: all")
    parser.add_argument("--count", type=int, default=100, help="inputs of each kind, at most")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if unknown := [name for name in options.modules if name not in MODULES]:
        parser.error(f"no such module: {', '.join(unknown)}")
    logging.disable(logging.CRITICAL)  # what a site writes into its own log is not what is counted
    counts: dict[tuple[str, str], Counter[str]] = {}
    for module in options.modules or MODULES:
        for kind, cases in MODULES[module].items():
            counted = counts[module, kind] = Counter()
            for description, attempt in islice(cases(Random(options.seed)), options.count):
                found, said = outcome(attempt)
                counted[found] += 1
                if found not in ("message", "accepted"):
                    print(f"{found}: {module}, {kind}: {description}" + f" [{said[:160]!r}]" * bool(said), flush=True)
    text = table(counts)
    print(text)
    if not options.modules:
        insert(PAGE, "malformed", "Malformed inputs", f"<!-- Written by `{COMMAND}`; do not edit. -->\n\n{text}\n")


def table(counts: dict[tuple[str, str], Counter[str]]) -> str:
    """Return a Markdown table: a line for each kind, and the sums."""
    lines = [f"| boundary | kind | {' | '.join(OUTCOMES)} |", f"| --- | --- |{' ---: |' * len(OUTCOMES)}"]
    for (module, kind), counted in counts.items():
        lines.append(f"| {module} | {kind} | {' | '.join(str(counted[name]) for name in OUTCOMES)} |")
    total = sum(counts.values(), Counter[str]())
    lines.append(f"| **all** | {total.total():,} inputs | {' | '.join(f'{total[name]:,}' for name in OUTCOMES)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
