"""What a round costs beside its arithmetic, in the local engine: its fixed cost, and that of evaluating.

    EDELWEISS_DATA=folder/with/mnist python -m benchmarks.rounds      # about a minute

``fixed``: Local SGDA on the saddle problem, 16 sites, one step on 20 numbers: next to no arithmetic. Beside it stands
what a round of Flower's messages takes that are written and read, of as many vectors and numbers, and nothing more: no
check, no random stream, no step, no average. ``evaluation``: MNIST split across 16 sites, a round of one step on two
images; what the same rounds take longer with an evaluation of all sites, beside the bare metrics of their held-out
samples in a loop. All in one process with one thread, in turn; figures are medians over rounds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from edelweiss.common import plain, record_in, to_record
from edelweiss.common.memory import keep_freed_memory
from edelweiss.config import RunConfig
from edelweiss.datasets import DataSummary, load_site
from edelweiss.federation import Site
from edelweiss.federation.messages import common_fields, message
from edelweiss.federation.wire import pack, unpack
from edelweiss.server_app import simulate

SITES = 16
UNTIMED = {"engine": "local", "device": "cpu", "workers": 1, "sites": SITES, "central-test": False, "evidence": False}
UNTIMED |= {"checkpoint-every": 0, "report": False}
FIXED = {"problem": "saddle", "algorithm": "local-sgda", "saddle.dimension": 20, "local-steps": 1, "evaluate-every": 0}
MNIST = {"algorithm": "fedavg", "problem": "bce", "dataset": "mnist", "partition": "iid", "local-steps": 1}
MNIST |= {"batch-size": 2, "thin-share": 0.1}
MODELS = ("cnn-mnist", "mlp", "linear")


def seconds(job: dict[str, Any], rounds: int) -> float:
    """Play a job; return the median seconds of its rounds but the first two."""
    with tempfile.TemporaryDirectory() as folder:
        result = simulate(UNTIMED | job | {"rounds": rounds + 2, "runs-dir": folder})
    return statistics.median(record["seconds"] for record in result.metrics[2:])


def messages(rounds: int) -> float:
    """Write and read the messages and answers of a round; return the median seconds."""
    config, x, found = RunConfig.parse(UNTIMED | FIXED), torch.zeros(FIXED["saddle.dimension"]), []
    sites = [Site(k, f"site-{k}", k + 1) for k in range(SITES)]
    common = to_record(DataSummary()) | {"run": "0" * 16, "committed": 0, "evaluate": False}
    cost = {"gradients": 1, "samples": 0, "seconds": 0.0, "memory-from": 0, "memory-kept": 0}
    for _ in range(rounds):
        began, sent = time.perf_counter(), pack({"x": x, "y": x})
        told = common_fields(common, config.strategy.context(1, 1, "train", SITES))
        for site in sites:
            asked = message(sent, told, site, "train")
            plain(asked.content, "config", ConfigRecord)
            unpack(record_in(asked.content, "arrays", ArrayRecord))
            records = {"arrays": pack({"x": x, "y": x}), "metrics": ConfigRecord(), "cost": MetricRecord(cost)}
            answer = Message(RecordDict(records), reply_to=asked)
            plain(answer.content, "cost", MetricRecord)
            unpack(record_in(answer.content, "arrays", ArrayRecord))
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def arithmetic(job: dict[str, Any], rounds: int) -> float:
    """Take the metrics of all sites' held-out samples in a loop; return the median seconds."""
    config = RunConfig.parse(UNTIMED | job)
    data = [load_site(config.data(), site, SITES) for site in range(SITES)]
    data_summary = DataSummary(shape=data[0].train.shape, shift=(0.0,), scale=(255.0,))
    held_out = [data_summary.standardised(one.held_out) for one in data]
    problem = config.build_problem(config.setting(data_summary, "cpu"))
    x, found = problem.initial()["x"], []
    for _ in range(rounds):
        began = time.perf_counter()
        for samples in held_out:
            problem.metrics(x, None, samples)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def main() -> None:
    """Measure and print two Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="timed ones of each job")
    options = parser.parse_args()
    keep_freed_memory()  # for all alike
    torch.set_num_threads(1)
    print("| sites | ms / round | ms / site | messages alone, ms / round |\n| ---: | ---: | ---: | ---: |")
    fixed, least = 1e3 * seconds(FIXED, 10 * options.rounds), 1e3 * messages(10 * options.rounds)
    print(f"| {SITES} | {fixed:.1f} | {fixed / SITES:.2f} | {least:.1f} |\n")
    print("| network | evaluation, ms | its arithmetic, ms | ratio |\n| --- | ---: | ---: | ---: |")
    for model in MODELS:
        job = MNIST | {"model": model}
        evaluated = seconds(job | {"evaluate-every": 1}, options.rounds)
        evaluation = evaluated - seconds(job | {"evaluate-every": 0}, options.rounds)
        bare = arithmetic(job, options.rounds)
        print(f"| {model} | {1e3 * evaluation:.1f} | {1e3 * bare:.1f} | {evaluation / bare:.2f} |", flush=True)


if __name__ == "__main__":
    main()
