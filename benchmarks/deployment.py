"""What a deployment costs, as real processes over gRPC on this machine, each figure beside something else's.

    python -m benchmarks.deployment                  # about ten minutes; or some of: rounds images message

rounds
    Seconds of a round with trivial work at two sites. "Flower alone" is the smallest app there can be: Flower's own
    FedAvg of twenty numbers, at SuperNodes that import torch and answer. Edelweiss plays `local-sgda` on `saddle` of
    the same size, at SuperNodes and at sites that joined; of these also the memory.
images
    Seconds of a round, after the first, at one site with 20,000 PNGs of 64 x 64: joined, and in the local engine.
message
    Seconds in which 100 MB go to a site and back, beside a plain gRPC call with 100 MB each way. They pass the
    SuperLink, so that each byte is sent twice each way, and hashed by everybody. A deployment's processes keep memory
    that was freed; so does the local engine here, whose time is taken off, and the second of the two calls.

A round's time is that between two rounds' ends, at the ServerApp. All are medians.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import re
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import grpc  # type: ignore[import-untyped,unused-ignore]
import numpy as np
from PIL import Image

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from bin.run import free_port  # noqa: E402
from edelweiss.common.memory import keep_freed_memory  # noqa: E402
from edelweiss.config import RunConfig  # noqa: E402
from edelweiss.lab.submission import started  # noqa: E402
from tests.deployment.processes import Federation, deployment  # noqa: E402
from tests.server_app.sites import run_at  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection

    from edelweiss.common import Value

SITES = [{"partition-id": 0, "num-partitions": 2}, {"partition-id": 1, "num-partitions": 2}]

ALONE = {
    "pyproject.toml": """
[project]
name = "alone"
version = "1.0.0"
dependencies = []
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.flwr.app]
publisher = "edelweiss"
[tool.flwr.app.components]
serverapp = "alone.server:app"
clientapp = "alone.client:app"
[tool.flwr.app.config]
rounds = 5
""",
    "alone/__init__.py": "",
    "alone/server.py": """
import time

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class Timed(FedAvg):
    def aggregate_train(self, server_round, replies):
        result = super().aggregate_train(server_round, replies)
        print(f"round {server_round} ended at {time.monotonic()}", flush=True)
        return result


@app.main()
def main(grid, context):
    strategy = Timed(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    strategy.start(grid, ArrayRecord([np.zeros(20, np.float32)]), num_rounds=context.run_config["rounds"])
""",
    "alone/client.py": """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    arrays = [torch.tensor(array) for array in message.content["arrays"].to_numpy_ndarrays()]
    reply = {"arrays": ArrayRecord([a.numpy() for a in arrays]), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(reply), reply_to=message)
""",
}


def alone(federation: Federation, rounds: int) -> list[float]:
    """Run the smallest app; returns seconds per round."""
    app = federation.home / "alone"
    for name, text in ALONE.items():
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(text, encoding="utf-8")
    command = ["flwr", "run", str(app), "--stream", "--run-config", f"rounds={rounds}"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with started(command, federation.environment, **options) as flwr:
        log = flwr.stdout.read() if flwr.stdout else ""
    ends = [float(end) for end in re.findall(r"round \d+ ended at ([\d.]+)", log)]
    if len(ends) < rounds:
        sys.exit(f"Flower alone did not end its rounds:\n{log}")
    return [later - earlier for earlier, later in itertools.pairwise(ends)]


def edelweiss(federation: Federation, job: Mapping[str, Value]) -> list[float]:
    """Run a job; returns seconds per round, without the first."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = federation.submit({"device": "cpu", **job, "runs-dir": folder})
        if not outcome.ok:
            sys.exit(outcome.log)
        (metrics,) = Path(folder).glob("*/metrics.jsonl")
        return [json.loads(line)["seconds"] for line in metrics.read_text().splitlines()][1:]


def local(job: Mapping[str, Value], nodes: list[dict[str, Value]]) -> list[float]:
    """Run it in the local engine, in this process; returns seconds per round, without the first."""
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig.parse({"device": "cpu", "workers": 1, **job, "runs-dir": folder})
        return [float(record["seconds"]) for record in run_at(config, nodes).metrics][1:]


def resident(process: int) -> float:
    """Megabytes of memory that a process holds."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1000


def rounds(count: int, repeats: int) -> None:
    """Trivial work."""
    job: dict[str, Value] = {"algorithm": "local-sgda", "problem": "saddle", "sites": 2, "rounds": count}
    job |= {"local-steps": 1, "evaluate-every": 0}
    seconds: dict[str, list[float]] = {"Flower alone": [], "Edelweiss at SuperNodes": [], "Edelweiss, joined": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder, deployment(Path(folder), SITES, supernodes=(0, 1)) as federation:
            seconds["Flower alone"] += alone(federation, count)
            seconds["Edelweiss at SuperNodes"] += edelweiss(federation, job)
        with tempfile.TemporaryDirectory() as folder, deployment(Path(folder), SITES) as federation:
            seconds["Edelweiss, joined"] += edelweiss(federation, job | {"rounds": 5 * count})
            memory = max(resident(site.pid) for site in federation.sites)
    theirs = statistics.median(seconds["Flower alone"])
    print("| trivial work, two sites | s / round | of Flower alone |\n| --- | ---: | ---: |")
    for name, found in seconds.items():
        print(f"| {name} | {statistics.median(found):.2f} | {statistics.median(found) / theirs:.3f} |")
    print(f"\nA site that has joined holds {memory:,.0f} MB after it.\n")


def images(count: int) -> None:
    """A site with many images."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "data"
        folder.mkdir()
        rng = np.random.default_rng(0)
        for number in range(20_000):
            Image.fromarray(rng.integers(0, 256, (64, 64), np.uint8)).save(folder / f"{number}.png")
        lines = [f"{number}.png,{number % 2}" for number in range(20_000)]
        (folder / "labels.csv").write_text("\n".join(["path,label", *lines]))
        job: dict[str, Value] = {"dataset": "site", "sites": 1, "rounds": count, "model": "lenet5", "local-steps": 200}
        job |= {"evaluate-every": 0}
        here = local(job, [{"site": "a", "data-dir": str(folder)}])
        state = Path(place) / "state"
        nodes: list[dict[str, Value]] = [{"site": "a", "data-dir": str(folder), "state-dir": str(state)}]
        with deployment(Path(place), nodes) as federation:
            joined = edelweiss(federation, job)
            again = edelweiss(federation, job)
    print("| 20,000 PNGs at one site | s / round | of the local engine |\n| --- | ---: | ---: |")
    for name, found in {"local engine": here, "joined": joined, "joined, a second run": again}.items():
        print(f"| {name} | {statistics.median(found):.2f} | {statistics.median(found) / statistics.median(here):.2f} |")
    print()


def message(count: int) -> None:
    """A large message: x and y of 12.5 million float32 each."""
    job: dict[str, Value] = {"algorithm": "local-sgda", "problem": "saddle", "sites": 1, "rounds": count}
    job |= {"saddle.dimension": 12_500_000, "local-steps": 1, "evaluate-every": 0, "central-test": False}
    job |= {"local-sgda.lr": 1e-4, "local-sgda.lr-dual": 1e-4, "loss-bound": 1e9}
    node: dict[str, Value] = {"partition-id": 0, "num-partitions": 1}
    plain = statistics.median(grpc_copy(count))
    keep_freed_memory()
    keeping = statistics.median(grpc_copy(count, keep=True))
    here = statistics.median(local(job, [node]))
    with tempfile.TemporaryDirectory() as folder, deployment(Path(folder), [node]) as federation:
        joined = statistics.median(edelweiss(federation, job))
    print("| 100 MB to a site and back | s | of the plain call |\n| --- | ---: | ---: |")
    for name, seconds in {
        "a plain gRPC call": plain,
        "the same, in processes that keep freed memory": keeping,
        f"a round, less the local engine's ({joined:.2f} - {here:.2f})": joined - here,
    }.items():
        print(f"| {name} | {seconds:.2f} | {seconds / plain:.1f} |")


def grpc_copy(count: int, *, keep: bool = False) -> list[float]:
    """Seconds of a call that takes 100 MB and returns 100 MB, to another process; `keep`: that keeps freed memory."""
    ours, theirs = multiprocessing.Pipe()
    port = free_port()
    server = multiprocessing.get_context("spawn").Process(target=echo, args=(port, theirs, keep))
    server.start()
    ours.recv()
    payload, seconds = bytes(100_000_000), []
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=UNLIMITED) as channel:
        call = channel.unary_unary("/copy/echo")
        for _ in range(count + 1):
            started_at = time.perf_counter()
            call(payload)
            seconds.append(time.perf_counter() - started_at)
    ours.send(None)
    server.join()
    return seconds[1:]


UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def echo(port: int, pipe: Connection, keep: bool) -> None:
    """Serve calls that return what they were given."""
    if keep:
        keep_freed_memory()
    server = grpc.server(ThreadPoolExecutor(1), options=UNLIMITED)
    handler = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("copy", {"echo": handler}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    pipe.send(None)
    pipe.recv()
    server.stop(None)


def main() -> None:
    """Measure and print Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="rounds, images, message; default: all of them")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2, help="of the trivial work")
    options = parser.parse_args()
    parts = options.parts or ["rounds", "images", "message"]
    if "rounds" in parts:
        rounds(options.rounds, options.repeats)
    if "images" in parts:
        images(options.rounds)
    if "message" in parts:
        message(options.rounds)


if __name__ == "__main__":
    main()
