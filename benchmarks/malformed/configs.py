"""Every key of a run-config with a value that it cannot have, and names and texts that are none."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.malformed import Case, Kind
from benchmarks.malformed.spoil import cuts, flips, in_its_place
from edelweiss.common import shown

NUMBERS: tuple[Any, ...] = (10**10, 10**18, 10**400, -1, -(10**9), 1e300, -1e300, math.nan, math.inf, "7", True, [1])
TEXTS: tuple[Any, ...] = ("nosuch", "a\0b", "\x1b[31m", "\ud800", "x" * 10_000, 7, True, ["x"], date(2020, 1, 1))
PATHS = ("a\0b", "~nobody-of-this-name/x", "x" * 5000, "/".join(["x" * 200] * 40), "\udcff", "/dev/null/x")
PLACES = ("LOOP", "FILE")  # that `paths` makes
PAIRS = ("rounds 3", "rounds==1", "rounds='", "=1", ".=1", "rounds=2020-01-01", "rounds=[1]", "rounds={a=1}")
MAPPINGS: tuple[Any, ...] = (None, [], "rounds=3", 5, {1: 2}, {None: 1}, {("a",): 1}, {"rounds": {1: 2}})
SMALL: dict[str, Any] = {"problem": "saddle", "algorithm": "local-sgda", "sites": 2, "rounds": 1, "workers": 1}


def parsed(flat: dict[str, Any], fine: bool = False) -> Case:
    """Return a run-config with something wrong."""

    def attempt() -> bool | None:
        from edelweiss.config import RunConfig

        RunConfig.parse(flat)
        return fine or None

    return ", ".join(f"{key[:40]} = {str(value)[:40]!r}" for key, value in flat.items()), attempt


def keys(rng: Random) -> Iterator[Case]:
    """Yield keys whose values are out of their range, or of another kind."""
    from edelweiss.config import RunConfig
    from edelweiss.config.tables import SHARED, tables

    defaults = {key: f.default for key, f in (*RunConfig.keys().items(), *SHARED.items())}
    defaults |= {f"{name}.{key}": f.default for name, options in tables().items() for key, f in options.items()}
    cases = []
    for key, default in defaults.items():
        number = isinstance(default, int | float) and not isinstance(default, bool)
        for value in NUMBERS if number else TEXTS if isinstance(default, str) else ("yes", 1, 0.0):
            name = isinstance(value, str) and value == "nosuch"  # many texts are any
            real = isinstance(default, float) and value in (10**10, 10**18)  # many numbers are any, such as step sizes
            cases.append(parsed({key: value}, fine=name or real or (key == "seed" and value in (10**10, 10**18))))
    rng.shuffle(cases)
    yield from cases


def names(rng: Random) -> Iterator[Case]:
    """Yield keys that there are none of."""
    from edelweiss.config import RunConfig

    known = list(RunConfig.keys())
    for key in known:
        place = rng.randrange(len(key))
        spelled = (key[:place] + key[place + 1 :], f"{key}s", key.upper(), f"codasca.{key}", f"{key}\n", f"\x1b{key}")
        for other in spelled:
            if other not in known:
                yield parsed({other: 1})
    yield parsed({"x" * 10**6: 1})


def together(rng: Random) -> Iterator[Case]:
    """Yield pairs of keys, each allowed, that mean nothing together."""
    for growth in (3.0, 10.0, 1000.0):
        yield parsed({"stage-steps-growth": growth, "stage-iterations": 1, "rounds": 10**4})
    for flat in (
        {"folds": 1},
        {"folds": 3, "fold": 3},
        {"min-replies": 9},
        {"partition": "sites"},
        {"init-head": "fresh"},
        {"sampler": "fixed-positives", "positives-per-batch": 16},
        {"positive-classes": "1", "negative-classes": "1"},
        {"personal-test": True, "folds": 3},
        {"image-size": 5},
        {"pretrained": "x.pth"},
    ):
        yield parsed(flat)


def memory(rng: Random) -> Iterator[Case]:
    """Yield runs that no machine has the memory for."""
    for keys_ in (
        {"problem": "auc", "algorithm": "codasca", "hidden": 10**6},
        {"problem": "bce", "algorithm": "fedavg", "hidden": 5 * 10**5},
        {"saddle.dimension": 10**9, "sites": 10**3},
        {"saddle.dimension": 10**8, "sites": 10**4},
        {"problem": "invariant-logistic", "algorithm": "fcsg", "invariant-logistic.dimension": 10**9},
        {"problem": "invariant-logistic", "algorithm": "fcsg", "invariant-logistic.inner-samples": 10**9},
        {"problem": "invariant-logistic", "algorithm": "fcsg", "batch-size": 10**9},
    ):
        yield simulated({**SMALL, **keys_})


def simulated(config: Any) -> Case:
    """Return a job for `simulate`."""

    def attempt() -> bool | None:
        from edelweiss.server_app import simulate

        with tempfile.TemporaryDirectory() as scratch:
            simulate({"runs-dir": scratch, **config} if isinstance(config, dict) and "problem" in config else config)
        return None

    return f"simulate({shown(config)})", attempt


def mappings(rng: Random) -> Iterator[Case]:
    """Yield what is no table of keys."""
    within: dict[str, Any] = {}
    within["a"] = within
    deep: dict[str, Any] = {}
    inner = deep
    for _ in range(10**4):
        inner["a"] = inner = {}
    for config in (*MAPPINGS, within, deep):
        yield simulated(config)


def paths(rng: Random) -> Iterator[Case]:
    """Yield paths that lead nowhere."""
    for key in ("runs-dir", "state-dir", "init-from", "pretrained", "resume", "saddle.file", "data-root"):
        for path in (*PATHS, *PLACES):

            def attempt(key: str = key, path: str = path) -> bool | None:
                from edelweiss.server_app import simulate

                with tempfile.TemporaryDirectory() as scratch:
                    (Path(scratch) / "LOOP").symlink_to("LOOP")
                    (Path(scratch) / "FILE").touch()
                    named = f"{scratch}/{path}/x" if path.isupper() else path
                    job: dict[str, Any] = {**SMALL, "runs-dir": f"{scratch}/runs"}
                    if key in ("init-from", "pretrained"):
                        job |= {"problem": "bce", "algorithm": "fedavg", "dataset": "digits"}
                        job |= {"model": "resnet18"} if key == "pretrained" else {}
                    if key == "data-root":
                        job |= {"problem": "bce", "algorithm": "fedavg", "dataset": "heart-disease"}
                    simulate(job | {key: f"{named}.npz" if key == "saddle.file" else named})
                return None

            yield f"{key} = {path[:40]!r}", attempt


def pairs(rng: Random) -> Iterator[Case]:
    """Yield texts for ``--run-config`` that are none."""
    deep = ("x=" + "[" * 10**5, "x=" + "{a=" * 3000, ".".join("a" * 50_000) + "=1")
    for text in (*PAIRS, *deep, "a" * 10**6, "rounds=1" + "0" * 5000):

        def attempt(text: str = text) -> bool | None:
            from edelweiss.config import RunConfig, read_overrides

            RunConfig.parse(read_overrides([text]))
            return None

        yield f"--run-config {text[:40]!r}", attempt


def files(rng: Random) -> Iterator[Case]:
    """Yield TOML files that are none: run-configs, policies, and what `join` reads."""
    from edelweiss.client_app.connection import JoinConfig
    from edelweiss.client_app.policy import Policy
    from edelweiss.config import RunConfig, read_overrides

    readers = {
        "run-config": lambda file: RunConfig.parse(read_overrides([str(file)])),
        "policy": lambda file: Policy.read(str(file)),
        "join": lambda file: JoinConfig.read(str(file), {"superlink": "host:1", "insecure": True}),
    }
    contents = {"run-config": 'algorithm = "codasca"\nrounds = 3\n', "policy": "[policy]\nstrict = true\n"}
    for name, read in readers.items():
        for what, spoil in (*in_its_place(rng), *cuts(rng), *flips(rng, 30)):
            partly = "cut" in what or "byte at" in what or what == "is empty"

            def attempt(name: str = name, read: Any = read, spoil: Any = spoil, partly: bool = partly) -> bool | None:
                with tempfile.TemporaryDirectory() as scratch:
                    file = Path(scratch) / "it.toml"
                    file.write_text(contents.get(name, 'site = "a"\n'))
                    spoil(file)
                    read(file)
                return partly or None  # what is left may be TOML

            yield f"{name} {what}", attempt


KINDS: dict[str, Kind] = {
    "values of keys": keys,
    "names of keys": names,
    "keys that do not go together": together,
    "memory": memory,
    "what is no table of keys": mappings,
    "paths": paths,
    "--run-config": pairs,
    "TOML files": files,
}
