#!/usr/bin/env python3
"""Run the frozen jobs of jobs.json in a tree of Edelweiss and write what they gave. See README.md.

python benchmarks/bits/hashes.py TREE local|ray|deployment OUT.json [--only GLOB ...] [--core] [--shuffle]
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import importlib
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SITES = 3  # of all jobs in Ray and in deployment


# ---------------------------------------------------------------------- the tree


class Tree:
    """A checkout, and how it is called."""

    def __init__(self, root: str) -> None:
        self.root = Path(root).resolve()
        self.project = tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))
        self.components = self.project["tool"]["flwr"]["app"]["components"]

    def command(self, which: str) -> list[str]:
        """How the coordinator's ("edelweiss") or the site's command ("edelweiss-site") is called."""
        module, _, name = self.project["project"]["scripts"][which].partition(":")
        code = f"import sys; sys.argv[0] = {which!r}; from {module} import {name} as main; sys.exit(main())"
        return [sys.executable, "-c", code]


# ---------------------------------------------------------------------- what a run gave


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:20]


def tensors(file: Path) -> dict[str, Any]:
    """{"tensors": {name: [dtype, shape, digest of the bytes]}, "facts": flat numbers and words of the metadata}."""
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    facts: dict[str, Any] = {}
    for entry in header.pop("__metadata__", {}).values():
        with suppress(ValueError):
            noted = json.loads(entry)
            facts |= {k: v for k, v in leaves(noted).items() if k not in ("checksum", "run", "app")}
    body = data[8 + length :]
    found = {
        name: [one["dtype"], one["shape"], digest(body[slice(*one["data_offsets"])])] for name, one in header.items()
    }
    return {"tensors": dict(sorted(found.items())), "facts": facts}


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """All numbers and words below a value, by their paths."""
    if isinstance(value, dict):
        return {
            k: v for name, item in value.items() for k, v in leaves(item, f"{path}.{name}" if path else name).items()
        }
    if isinstance(value, list):
        return {k: v for n, item in enumerate(value) for k, v in leaves(item, f"{path}[{n}]").items()}
    return {path: value}


TIMED = re.compile(r"second|time|memory|when", re.IGNORECASE)
BYTES = re.compile(r"bytes", re.IGNORECASE)


def measured(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The lines of metrics.jsonl without times; and their bytes."""
    lines = [leaves(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rounds = [{k: v for k, v in line.items() if not TIMED.search(k) and not BYTES.search(k)} for line in lines]
    return rounds, [{k: v for k, v in line.items() if BYTES.search(k)} for line in lines]


def evidence(folder: Path) -> dict[str, Any]:
    """Of each part of evidence.json, two levels deep: a digest with its keys, and one of its values alone."""
    file = folder / "evidence.json"
    if not file.exists():
        return {}
    found = {}
    for key, value in json.loads(file.read_text()).items():
        parts = {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
        for path, part in parts.items():
            below = leaves(part)
            whole = json.dumps(part, sort_keys=True).encode()
            found[path] = [digest(whole), digest(json.dumps(list(below.values())).encode()), len(below)]
            if len(below) == 1:
                found[path].append(next(iter(below.values())))
    return found


def harvest(folder: Path, own: list[tuple[str, Path]]) -> dict[str, Any]:
    """All that a run gave: the run folder, and the models that sites kept, by a name without the run's key."""
    rounds, sizes = measured(folder)
    model = folder / "model.safetensors"
    return {
        "model": tensors(model) if model.exists() else None,
        "own": [[name, tensors(file)] for name, file in own],
        "metrics": rounds,
        "bytes": sizes,
        "evidence": evidence(folder),
    }


def own_models(folders: list[Path], before: set[Path]) -> list[tuple[str, Path]]:
    """Models that sites have kept since, in the order of the sites."""
    files = [f for place in folders for f in sorted(place.rglob("*.safetensors")) if f not in before]
    named = [(re.sub(r"[0-9a-f]{32}-?", "", f.name), f) for f in files if ".memory" not in str(f)]
    return sorted(named, key=lambda pair: pair[0])


def kept(folders: list[Path]) -> set[Path]:
    return {f for place in folders for f in place.rglob("*.safetensors")}


# ---------------------------------------------------------------------- jobs


class Jobs:
    """The jobs of an engine; where their runs lie."""

    def __init__(self, tree: Tree, engine: str, options: argparse.Namespace, scratch: Path) -> None:
        self.tree, self.engine, self.scratch = tree, engine, scratch
        self.runs = scratch / "runs"
        self.runs.mkdir()
        all_jobs = [job for job in json.loads((HERE / "jobs.json").read_text()) if engine in job["engines"]]
        names = {
            job["name"]
            for job in all_jobs
            if (not options.only or any(fnmatch.fnmatch(job["name"], glob) for glob in options.only))
            and (not options.core or job.get("core") or not job["name"].startswith("pair/"))
        }
        for job in all_jobs:  # and what they start from
            if job["name"] in names:
                names |= {v[5:] for v in job["keys"].values() if isinstance(v, str) and v.startswith("@run:")}
        self.list = [job for job in all_jobs if job["name"] in names]
        if options.shuffle:
            random.Random(options.shuffle).shuffle(self.list)
            needs = [any(str(v).startswith("@run:") for v in job["keys"].values()) for job in self.list]
            self.list = [j for j, n in zip(self.list, needs) if not n] + [j for j, n in zip(self.list, needs) if n]
        self.results: dict[str, Any] = {}

    def folder(self, job: dict[str, Any]) -> Path:
        return self.runs / job["name"].replace("/", "--")

    def keys(self, job: dict[str, Any], **more: Any) -> dict[str, Any]:
        """The run-config of a job here."""
        found = {}
        for key, value in (job["keys"] | more).items():
            if isinstance(value, str):
                if value == "@state":
                    if self.engine == "deployment":
                        continue
                    value = str(self.state(job))
                elif value.startswith("@run:"):
                    value = str(self.runs / value[5:].replace("/", "--"))
                value = value.replace("@here", str(HERE))
            found[key] = value
        folder = self.folder(job)
        return found | {"runs-dir": str(folder.parent), "run-name": folder.name}

    def state(self, job: dict[str, Any]) -> Path:
        return self.scratch / "state" / job["name"].replace("/", "--")

    def note(self, job: dict[str, Any], seconds: float, found: dict[str, Any]) -> None:
        self.results[job["name"]] = found | {"seconds": round(seconds, 2)}
        if "error" in found:
            print(f"{job['name']}: {found['error']}", flush=True)


def failed(error: BaseException) -> dict[str, Any]:
    return {"error": f"{type(error).__name__}: {str(error)[:1000]}"}


# ---------------------------------------------------------------------- the local engine


def simulator(tree: Tree) -> Callable[[dict[str, Any]], Any]:
    """The tree's function that runs a job of these flat keys in this process."""
    sys.path.insert(0, str(tree.root))
    return importlib.import_module("edelweiss.server_app.simulation").simulate


def to_toml(keys: dict[str, Any]) -> str:
    """Flat keys as lines of TOML; dotted ones nest."""
    lines = []
    for key, value in keys.items():
        name = ".".join(f'"{part}"' for part in key.split("."))
        lines.append(f"{name} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def local(jobs: Jobs) -> None:
    """All jobs in this process."""
    os.chdir(jobs.tree.root)
    run = simulator(jobs.tree)
    for job in jobs.list:
        began = time.perf_counter()
        try:
            keys = jobs.keys(job)
            keys.setdefault("workers", 1)
            if "resume" in job:
                interrupted(run, keys, jobs.folder(job), job["resume"])
                run({"resume": str(jobs.folder(job))})
            else:
                run(keys)
            found = harvest(jobs.folder(job), own_models([jobs.state(job)], set()))
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            found = failed(error)
        jobs.note(job, time.perf_counter() - began, found)


def interrupted(run: Callable[..., Any], keys: dict[str, Any], folder: Path, rounds: int) -> None:
    """Begin a run in a fork of this process and interrupt it, as Ctrl-C does, after some rounds."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            run(keys)
            code = 0
        except KeyboardInterrupt:
            code = 130
        finally:
            os._exit(code)
    lines, deadline = folder / "metrics.jsonl", time.monotonic() + 120
    ended = 0
    while not ended and (not lines.exists() or lines.read_text().count("\n") < rounds):
        time.sleep(0.002)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            break
    if not ended:
        os.kill(pid, signal.SIGINT)
        _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != 130:
        raise RuntimeError(f"the run was not interrupted before its end: exit code {os.waitstatus_to_exitcode(status)}")


# ---------------------------------------------------------------------- Flower's simulation, on Ray


def ray(jobs: Jobs) -> None:
    """All jobs in one Ray session: the tree's ServerApp is called once a job, with a run-config of its own.

    Flower's VCE, its in-memory grid, Ray's actors and the tree's two apps are real; what differs from ``flwr run`` is
    that the bundle is the tree itself, and that the run-config (and a run's number) come from a file for each job.
    """
    os.environ.update(quiet_flower(jobs.scratch))
    os.environ["RAY_TMPDIR"] = str(jobs.scratch / "r")  # a socket's path has at most 107 characters
    (jobs.scratch / "r").mkdir()
    os.chdir(jobs.scratch)
    sys.path[:0] = [str(jobs.tree.root), str(HERE)]
    import logging

    import ray as ray_itself
    import ray_client
    from flwr.app import Context, RecordDict
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    module, _, name = jobs.tree.components["serverapp"].partition(":")
    theirs = getattr(importlib.import_module(module), name)
    current = jobs.scratch / "current.json"
    server = ServerApp()

    @server.main()
    def main(grid: Any, context: Any) -> None:
        for number, job in enumerate(jobs.list, 1):
            began = time.perf_counter()
            keys = jobs.keys(job) | {"state-dir": str(jobs.state(job))}
            draft = current.with_suffix(".draft")
            draft.write_text(json.dumps({"run_id": number, "run_config": keys}))
            draft.replace(current)
            jobs.state(job).mkdir(parents=True, exist_ok=True)
            own = Context(number, context.node_id, context.node_config, RecordDict(), keys)
            try:
                with (jobs.scratch / "said.log").open("a") as said, redirect_stdout(said):
                    theirs(grid, own)
                found = harvest(jobs.folder(job), own_models([jobs.state(job)], set()))
            except (Exception, SystemExit) as error:
                traceback.print_exc()
                found = failed(error)
            jobs.note(job, time.perf_counter() - began, found)
            if number % 50 == 0:
                print(f"{number} of {len(jobs.list)}", flush=True)

    client = ray_client.Client(jobs.tree.components["clientapp"], str(current))
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    resources["init_args"] = {"num_cpus": 2, "logging_level": logging.ERROR, "log_to_driver": False}
    run_simulation(server, client, SITES, backend_config=resources)
    if ray_itself.is_initialized():
        ray_itself.shutdown()


# ---------------------------------------------------------------------- a deployment


def quiet_flower(home: Path) -> dict[str, str]:
    """Environment variables of a Flower process, as the tree itself sets them."""
    return {
        "FLWR_HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_prestart_worker_first_driver": "0",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(command: list[str], environment: dict[str, str], cwd: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own that ends with the block."""
    with log.open("w") as out:
        child = subprocess.Popen(command, env=environment, cwd=cwd, stdout=out, stderr=out, start_new_session=True)
    try:
        yield child
    finally:
        for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
            deadline = time.monotonic() + patience
            with suppress(ProcessLookupError):
                os.killpg(child.pid, number)
                while child.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.05)
        child.wait()


@contextmanager
def federation(jobs: Jobs, group: str, first: str = "", stubs: Path | None = None) -> Iterator[tuple[str, list[Path]]]:
    """A SuperLink on private ports with three joined sites; yields its address and the sites' state folders.

    `first` comes before the tree on the path of the first site's process (see counts.py); `stubs` holds commands that
    the SuperExec starts instead of Flower's (see warm.py).
    """
    home = jobs.scratch / f"federation-{group or 'pairs'}"
    home.mkdir()
    environment = os.environ | quiet_flower(home)
    control, fleet = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    server = ["flower-superlink", "--insecure", "--isolation", "process", "--fleet-api-type", "grpc-rere"]
    server += ["--fleet-api-address", fleet, "--host", "127.0.0.1", "--port", control.rpartition(":")[2]]
    launcher = ["flower-superexec", "--insecure", "--runtime-api-address", control, "--parent-pid", str(os.getpid())]
    states = []
    with ExitStack() as stack:
        stack.enter_context(process(server, environment, home, home / "superlink.log"))
        deadline = time.monotonic() + 120
        while not healthy(f"http://{control}/health"):
            if time.monotonic() > deadline:
                raise RuntimeError((home / "superlink.log").read_text())
            time.sleep(0.1)
        found = {"PATH": f"{stubs}{os.pathsep}{environment['PATH']}"} if stubs else {}
        launched = environment | found | ({"FLWR_HOME": str(stubs.parent)} if stubs else {})
        stack.enter_context(process(launcher, launched, home, home / "superexec.log"))
        for k in range(SITES):
            place = home / f"site-{k}"
            states.append(place / "state")
            (place / "state").mkdir(parents=True)
            options = {"state-dir": str(place / "state")}
            if group:
                name = ("north", "south", "west")[k]
                options |= {"site": name, "data-dir": str(HERE / "data" / "hospitals" / name)}
                if group == "open":
                    policy = place / "site.toml"
                    policy.write_text("[policy]\n" + to_toml(OPEN))
                    options["policy"] = str(policy)
                else:
                    (place / "state" / "policy").mkdir()
                    (place / "state" / "policy" / "secret").write_text(f"{k}" * 64)
            else:
                options |= {"partition-id": k, "num-partitions": SITES}
            command = [*jobs.tree.command("edelweiss-site"), "join", "--insecure", "--superlink", fleet]
            command += [f"--{key}={value}" for key, value in options.items()]
            path = f"{first}{os.pathsep}{jobs.tree.root}" if first and not k else str(jobs.tree.root)
            own = environment | {"FLWR_HOME": str(place), "PYTHONPATH": path, "EDELWEISS_ALLOW_ROOT": "1"}
            if k:
                own.pop("BASELINE_SITE_COUNTS", None)
            stack.enter_context(process(command, own, jobs.tree.root, home / f"site-{k}.log"))
        yield control, states


OPEN = {
    "fewest-training": 1,
    "fewest-in-update": 1,
    "fewest-held-out": 1,
    "fewest-of-each-class": 1,
    "seed": "tests",
    "holdout-share": 0.2,
    "folds": 0,
}


def healthy(url: str) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class Submitter:
    """Submits runs to a SuperLink, as ``flwr run`` does, and waits for their ends; see warm.py."""

    def __init__(self, jobs: Jobs, stack: ExitStack) -> None:
        self.jobs, self.home = jobs, jobs.scratch / "warm"
        self.home.mkdir()
        self.ended, self.log = self.home / "ended", self.home / "said.log"
        self.socket = str(self.home / "door")
        stub = self.home / "bin" / "flwr-serverapp"
        stub.parent.mkdir()
        stub.write_text(f"#!{sys.executable} -IS\n" + (HERE / "warm.py").read_text())
        stub.chmod(0o755)
        command = [sys.executable, str(HERE / "warm.py"), "--serve", self.socket, str(self.ended)]
        stack.enter_context(process(command, os.environ | quiet_flower(self.home), self.home, self.home / "warm.log"))
        os.environ |= {"BASELINE_WARM": self.socket, "BASELINE_LOG": str(self.log)}
        sys.path.insert(0, str(jobs.tree.root))
        importlib.import_module("edelweiss.lab.submission").stage(self.home / "app")
        deadline = time.monotonic() + 300
        while not Path(self.socket).exists():
            if time.monotonic() > deadline:
                raise RuntimeError((self.home / "warm.log").read_text())
            time.sleep(0.1)

    def connect(self, address: str) -> None:
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "own"\n[superlink.own]\naddress = "{address}"\ninsecure = true\n'
        )

    def submit(self, keys: dict[str, Any], timeout: float = 300.0) -> None:
        """Run a job to its end; RuntimeError with the log if it failed."""
        self.log.unlink(missing_ok=True)
        self.ended.unlink(missing_ok=True)
        settings = self.home / "run.toml"
        settings.write_text(to_toml(keys))
        environment = os.environ | quiet_flower(self.home)
        words = ["flwr", "run", str(self.home / "app"), "--run-config", str(settings)]
        ask_warm(self.socket, words, environment, self.home, self.log)
        deadline = time.monotonic() + timeout
        ends: dict[str, int] = {}
        while "flwr-serverapp" not in ends and not ends.get("flwr"):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
            lines = self.ended.read_text().splitlines() if self.ended.exists() else []
            ends = {line.split()[0]: int(line.split()[2]) for line in lines}
        if ends.get("flwr") or ends.get("flwr-serverapp") != 0:
            raise RuntimeError(f"{ends}\n{self.log.read_text() if self.log.exists() else ''}"[-3000:])


def ask_warm(path: str, words: list[str], environment: Any, cwd: Path, log: Path) -> None:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        request = {"words": words, "env": dict(environment), "cwd": str(cwd), "log": str(log)}
        line.sendall(json.dumps(request).encode() + b"\n")
        line.recv(16)


def deployment(jobs: Jobs) -> None:
    """All jobs at SuperLinks with joined sites, submitted one after another."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for job in jobs.list:
        groups.setdefault(job.get("group", ""), []).append(job)
    with ExitStack() as stack:
        submitter = Submitter(jobs, stack)
        for group, mine in groups.items():
            with federation(jobs, group, stubs=submitter.home / "bin") as (address, states):
                submitter.connect(address)
                for number, job in enumerate(mine, 1):
                    began, before = time.perf_counter(), kept(states)
                    try:
                        submitter.submit(jobs.keys(job))
                        found = harvest(jobs.folder(job), own_models(states, before))
                    except Exception as error:
                        traceback.print_exc()
                        found = failed(error)
                    jobs.note(job, time.perf_counter() - began, found)
                    if number % 10 == 0:
                        print(f"{group or 'pairs'}: {number} of {len(mine)}", flush=True)


# ---------------------------------------------------------------------- the command


ENGINES = {"local": local, "ray": ray, "deployment": deployment}


def head(tree: Tree) -> str:
    command = ["git", "-C", str(tree.root), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("out")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="GLOB", help="jobs whose names match, as 'pair/codasca/*'"
    )
    parser.add_argument("--core", action="store_true", help="each algorithm's first two problems, each problem once")
    parser.add_argument("--shuffle", type=int, default=0, metavar="SEED", help="in another order")
    parser.add_argument("--update", action="store_true", help="keep what OUT.json says of other jobs")
    parser.add_argument("--keep", action="store_true", help="keep the run folders, and say where they are")
    options = parser.parse_args()
    out = Path(options.out).resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) and options.engine == "local" else "/tmp"
    scratch = Path(tempfile.mkdtemp(prefix="bl-", dir=where))
    tree = Tree(options.tree)
    jobs = Jobs(tree, options.engine, options, scratch)
    began, load, commit = time.time(), os.getloadavg(), head(tree)
    try:
        ENGINES[options.engine](jobs)
    finally:
        if head(tree) != commit:
            print(f"the tree moved while it was measured, from {commit} to {head(tree)}: take a checkout of your own")
        about = {
            "tree": str(tree.root),
            "commit": commit,
            "engine": options.engine,
            "jobs": len(jobs.results),
            "failed": sorted(name for name, found in jobs.results.items() if "error" in found),
            "seconds": round(time.time() - began, 1),
            "load": [round(v, 1) for v in (*load[:1], *os.getloadavg()[:1])],
        }
        if options.update and out.exists():
            before = json.loads(out.read_text())
            jobs.results = before["jobs"] | jobs.results
            about["jobs"], about["seconds"] = len(jobs.results), before["about"]["seconds"]
            about["failed"] = sorted(name for name, found in jobs.results.items() if "error" in found)
        out.write_text(json.dumps({"about": about, "jobs": jobs.results}, indent=0, sort_keys=False) + "\n")
        print(json.dumps(about), flush=True)
        if options.keep:
            print(f"runs: {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    return 1 if about["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
