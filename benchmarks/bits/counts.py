#!/usr/bin/env python3
"""Count what a steady round of two simulated sites takes, and what a hospital reads before its first gradient.

    python benchmarks/bits/counts.py TREE [--functions] [--no-site]

A steady round is what a run of 6 rounds does more than one of 5 (breast-cancer, mlp, all else the defaults but
checkpoint-every = 0, which depends on the clock, and report = false), by sys.setprofile on the files below TREE: exact,
and the same on a busy machine. Two kinds of figures:

- *calls of the tree's functions*, by name (PATTERNS below; add the new names there if yours does not match), and
- *what they come down to*, which does not depend on the tree's names: NumPy's frombuffer (a vector, or an encoded histogram, is unpacked; called from the tree's files),
  flwr's Array.__init__ (a vector is packed), torch.aminmax and isfinite (a vector's range is looked through).

The hospital: three joined sites with tables of their own (dataset "site") at a SuperLink; of the first one's process,
load_site, DataConfig, readings of the table up to the first call of a function called `gradient`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

PATTERNS = {
    "pack": r"/(wire|codec|messages?|table|replies|requests?)\.py:(.*\.)?pack$",
    "unpack": r"/(wire|codec|messages?|table|replies|requests?)\.py:(.*\.)?unpack$",
    "encode": r":(.*\.)?encode$",
    "decode": r":(.*\.)?(decode|_decoded)$",
    "range scan": r":(.*\.)?(magnitude|beyond|not_finite|is_finite|finite|largest|check_range)$",
    "check of a table": r":(.*\.)?(misfits|sound|require_sound|require_records|mistakes)$",
    "TrainRequest/TrainReply parsed": r":(TrainRequest|TrainReply|Request|Reply|ReplyChecker)\..*",
    "config record parsed": r":(from_record|record_in|records_in|plain|to_record)$",
}
BARE = {
    "vectors packed: flwr Array()": ("call", r"flwr/.*/array\.py:Array\.__init__$"),
    "vectors unpacked: numpy.frombuffer": ("c_call", r"^frombuffer in "),
    "torch.from_numpy": ("c_call", r"^from_numpy in "),
    "ranges: torch.aminmax": ("c_call", r"^aminmax in "),
    "ranges: isfinite": ("c_call", r"^isfinite in "),
    "deep copies: Tensor.clone": ("c_call", r"^clone in "),
    "flwr records made": ("call", r"flwr/.*record\.py:(Config|Metric|Array)Record\.__init__$"),
}


class Profile:
    """Counts calls; of the tree's functions by file and name, of others those of BARE."""

    def __init__(self, root: str) -> None:
        self.root, self.own, self.bare = root + os.sep, Counter[str](), Counter[str]()
        self.names: dict[Any, str | None] = {}

    def mine(self, file: str) -> bool:
        return file.startswith(self.root) and "site-packages" not in file

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code not in self.names:
                file = code.co_filename
                inside = self.mine(file)
                name = f"/{file.removeprefix(self.root)}:{code.co_qualname}"
                self.names[code] = name if inside or "/flwr/" in file else None
            name = self.names[code]
            if name is None:
                return
            if "/flwr/" in name and "site-packages" in name:
                self.bare[name] += 1
            else:
                self.own[name] += 1
        elif event == "c_call" and self.mine(frame.f_code.co_filename):
            file = frame.f_code.co_filename.removeprefix(self.root)
            self.bare[f"{getattr(argument, '__name__', '?')} in {file}:{frame.f_code.co_qualname}"] += 1


def steady(root: Path, run: Any, keys: dict[str, Any]) -> tuple[Counter[str], Counter[str]]:
    """What a run of 6 rounds does more than one of 5."""
    found = []
    for rounds in (2, 5, 6):
        profile = Profile(str(root))
        with tempfile.TemporaryDirectory() as folder:
            sys.setprofile(profile)
            try:
                run(keys | {"rounds": rounds, "runs-dir": folder, "run-name": "r"})
            finally:
                sys.setprofile(None)
        found.append(profile)
    _, five, six = found
    return six.own - five.own, six.bare - five.bare


def rounds(tree: Any, run: Any, functions: bool) -> None:
    jobs = {
        f"{a}/{p}, {q} step{'s' if q > 1 else ''}": {"algorithm": a, "problem": p, "local-steps": q}
        for a, p in (("fedavg", "bce"), ("codasca", "auc"))
        for q in (1, 10)
    }
    common = {"dataset": "breast-cancer", "sites": 2, "workers": 1, "device": "cpu"}
    common |= {"report": False, "checkpoint-every": 0}
    for name, keys in jobs.items():
        own, bare = steady(tree.root, run, common | keys)
        files = {name.partition(":")[0] for name in own}
        plain = sum(c for n, c in own.items() if not n.endswith(">"))
        print(
            f"\n{name}: {sum(own.values()):,} calls ({plain:,} without comprehensions, lambdas, generator expressions), "
            f"{len(own)} functions, {len(files)} files in a steady round"
        )
        for what, pattern in PATTERNS.items():
            matched = {n: c for n, c in own.items() if re.search(pattern, n)}
            listed = ", ".join(
                f"{n.rpartition(':')[2]} {c}" for n, c in sorted(matched.items(), key=lambda x: -x[1])[:6]
            )
            print(f"  {what:32} {sum(matched.values()):5}   {listed}")
        for what, (_, pattern) in BARE.items():
            matched = {n: c for n, c in bare.items() if re.search(pattern, n)}
            listed = ", ".join(
                f"{n.rpartition(' in ')[2]} {c}" for n, c in sorted(matched.items(), key=lambda x: -x[1])[:3]
            )
            print(f"  {what:36} {sum(matched.values()):5}   {listed if ' in ' in pattern else ''}")
        if functions:
            for n, c in own.most_common():
                print(f"      {c:6} {n}")


SITE = r"""
import atexit, json, os, sys, threading
if (out := os.environ.get("BASELINE_SITE_COUNTS")) and "join" in sys.argv:
    root, counts, marks = os.environ["BASELINE_TREE"] + os.sep, {}, {}
    WATCHED = ("load_site", "DataConfig.__post_init__", "DataConfig.__init__", "read_table", "read_site", "read_csv")
    def write():
        with open(out, "w") as file:
            json.dump({"before the first gradient": marks or None, "in all": counts}, file)
    def profile(frame, event, argument):
        if event == "call":
            code = frame.f_code
            name = code.co_qualname
            if code.co_filename.startswith(root):
                if name.rpartition(".")[2] == "gradient" and not marks:
                    marks.update(counts); marks.setdefault("reached", 1); write()
                if name in WATCHED or name.endswith((".load_site", "tokenise", "read_site")):
                    counts[name] = counts.get(name, 0) + 1
            elif name == "read_csv" and "pandas" in code.co_filename:
                counts["pandas.read_csv"] = counts.get("pandas.read_csv", 0) + 1
        elif event == "c_call" and getattr(argument, "__name__", "") == "reader" and frame.f_code.co_filename.startswith(root):
            name = "csv.reader by " + frame.f_code.co_filename.removeprefix(root) + ":" + frame.f_code.co_qualname
            counts[name] = counts.get(name, 0) + 1
    def audit(event, arguments):
        if event == "open" and str(arguments[0]).endswith("data.csv"):
            counts["data.csv opened"] = counts.get("data.csv opened", 0) + 1
    sys.addaudithook(audit)
    sys.setprofile(profile)
    threading.setprofile(profile)
    atexit.register(write)
"""


def hospital(tree: Any, scratch: Path) -> None:
    """Join three sites with their own tables, and count in the first one's process."""
    import hashes

    place = scratch / "profile"
    place.mkdir()
    (place / "sitecustomize.py").write_text(SITE)

    class Job:
        def __init__(self) -> None:
            self.tree, self.scratch = tree, scratch

    for group in ("open", "default"):
        out = scratch / f"counts-{group}.json"
        os.environ.update(BASELINE_SITE_COUNTS=str(out), BASELINE_TREE=str(tree.root))
        with hashes.federation(Job(), group, first=str(place)) as (address, _):
            keys = {
                "algorithm": "fedavg",
                "problem": "bce",
                "dataset": "site",
                "sites": 3,
                "rounds": 2,
                "device": "cpu",
            }
            keys |= {
                "local-steps": 2,
                "report": False,
                "central-test": False,
                "runs-dir": str(scratch),
                "run-name": group,
            }
            settings = scratch / "site.toml"
            settings.write_text(hashes.to_toml(keys))
            command = [*tree.command("edelweiss"), "submit", "--superlink", address, "--insecure"]
            environment = os.environ | hashes.quiet_flower(scratch / f"federation-{group}")
            environment.pop("BASELINE_SITE_COUNTS")
            environment["PYTHONPATH"] = str(tree.root)
            done = subprocess.run(
                [*command, "--run-config", str(settings)],
                cwd=tree.root,
                env=environment,
                capture_output=True,
                text=True,
                timeout=600,
            )
            if done.returncode:
                print((done.stdout + done.stderr)[-2000:])
        os.environ.pop("BASELINE_SITE_COUNTS")
        with suppress(OSError):
            counted = json.loads(out.read_text())
            print(f"\na hospital's own table, {group} policy, in the site's process:")
            for when, counts in counted.items():
                print(
                    f"  {when}: " + ", ".join(f"{k} {v}" for k, v in sorted((counts or {}).items()) if k != "reached")
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree")
    parser.add_argument("--functions", action="store_true", help="list every function of a round")
    parser.add_argument("--no-site", action="store_true", help="leave the hospital out")
    options = parser.parse_args()
    import hashes

    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    tree = hashes.Tree(options.tree)
    with tempfile.TemporaryDirectory(prefix="blc-") as folder:
        if not options.no_site:
            hospital(tree, Path(folder))
        os.chdir(tree.root)
        rounds(tree, hashes.simulator(tree), options.functions)


if __name__ == "__main__":
    main()
