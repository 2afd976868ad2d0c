#!/usr/bin/env python3
"""Compare what two runs of hashes.py found; exit 1 if a number differs.

    python benchmarks/bits/compare.py OLD.json NEW.json [--only GLOB ...] [--strict]

Jobs of both files are compared. What counts as a difference (exit 1): a tensor's bytes, dtype or shape, any number of
metrics.jsonl (times and bytes aside), any part of evidence.json, a number in a model's metadata, a model more or less,
a job that failed in one of them or is in OLD alone. What is said and does not count, unless --strict: names that
changed while the values in their order or as a set stayed ("renamed"), a key more ("added"), bytes on the wire.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import sys
from collections import Counter
from typing import Any


class Found:
    """What differs."""

    def __init__(self) -> None:
        self.wrong: dict[str, list[str]] = {}
        self.said: Counter[str] = Counter()
        self.where: dict[str, str] = {}

    def differs(self, job: str, text: str) -> None:
        self.wrong.setdefault(job, []).append(text)

    def note(self, job: str, text: str) -> None:
        self.said[text] += 1
        self.where.setdefault(text, job)


def values(found: dict[str, Any]) -> list[str]:
    return sorted(json.dumps(v) for v in found.values())


def by_key(found: Found, job: str, what: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Compare two flat dictionaries whose keys may have other names, and whose order may differ."""
    if old == new:
        return
    gone, more = old.keys() - new.keys(), new.keys() - old.keys()
    for key in sorted(old.keys() & new.keys()):
        if json.dumps(old[key]) != json.dumps(new[key]):
            found.differs(job, f"{what}: {key}: {short(old[key])} is now {short(new[key])}")
    if not gone and not more:
        return
    left, right = {k: old[k] for k in gone}, {k: new[k] for k in more}
    if values(left) == values(right):
        found.note(
            job,
            f"{re.sub(r' [0-9]+', '', what)}: renamed {', '.join(sorted(gone))[:80]} -> {', '.join(sorted(more))[:80]}",
        )
        return
    extra = Counter(values(right))
    lost = [k for k in sorted(gone) if not extra.get(json.dumps(left[k]))]
    if lost:
        found.differs(job, f"{what}: no longer there: {', '.join(lost)[:200]}")
    elif gone:
        found.note(job, f"{re.sub(r' [0-9]+', '', what)}: renamed or moved {', '.join(sorted(gone))[:80]}")
    else:
        found.note(job, f"{re.sub(r' [0-9]+', '', what)}: added {', '.join(sorted(more))[:120]}")


def short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 60 else text[:57] + "..."


def one_model(found: Found, job: str, what: str, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
    if (old is None) != (new is None):
        found.differs(job, f"{what}: {'there is none now' if new is None else 'there was none'}")
    if old is None or new is None:
        return
    by_key(found, job, f"{what}, tensors", old["tensors"], new["tensors"])
    by_key(found, job, f"{what}, metadata", old["facts"], new["facts"])


def one_evidence(found: Found, job: str, old: dict[str, list[Any]], new: dict[str, list[Any]]) -> None:
    if old == new:
        return
    for key in sorted(old.keys() & new.keys()):
        if old[key][0] == new[key][0]:
            continue
        if old[key][1] == new[key][1]:
            found.note(job, f"evidence: keys renamed or in another order in {key}")
        else:
            found.differs(job, f"evidence: {key}: {short(old[key][3:] or '...')} is now {short(new[key][3:] or '...')}")
    gone, more = old.keys() - new.keys(), new.keys() - old.keys()
    after = Counter(new[key][1] for key in more)
    for key in sorted(gone):
        if after[old[key][1]]:
            found.note(job, f"evidence: {key} renamed")
        else:
            found.differs(job, f"evidence: {key} is no longer there")
    if more and not gone:
        found.note(job, f"evidence: added {', '.join(sorted(more))[:100]}")


def one_job(found: Found, job: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    if "error" in old or "error" in new:
        if ("error" in old) != ("error" in new):
            found.differs(job, f"error: {old.get('error', 'none')[:300]} | now: {new.get('error', 'none')[:300]}")
        return
    one_model(found, job, "model", old["model"], new["model"])
    if len(old["own"]) != len(new["own"]):
        found.differs(job, f"sites' own models: {len(old['own'])}, now {len(new['own'])}")
    else:
        for n, ((was, one), (now, other)) in enumerate(zip(old["own"], new["own"])):
            if was != now:
                found.note(job, f"file of a site's own model: {was} -> {now}")
            one_model(found, job, f"site {n}'s model", one, other)
    if len(old["metrics"]) != len(new["metrics"]):
        found.differs(job, f"rounds: {len(old['metrics'])}, now {len(new['metrics'])}")
    for one, other in zip(old["metrics"], new["metrics"]):
        by_key(found, job, f"round {one.get('round')}", one, other)
    if old["bytes"] != new["bytes"]:
        sums = [sum(v for line in x["bytes"] for v in line.values() if isinstance(v, int)) for x in (old, new)]
        found.note(
            job, f"bytes on the wire: {'fewer' if sums[1] < sums[0] else 'more' if sums[1] > sums[0] else 'as many'}"
        )
    one_evidence(found, job, old["evidence"], new["evidence"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="GLOB")
    parser.add_argument("--strict", action="store_true", help="renamed keys count, too")
    parser.add_argument("--common", action="store_true", help="jobs in one file alone do not count (two engines)")
    parser.add_argument("--shown", type=int, default=3, help="lines per job, default 3")
    options = parser.parse_args()
    with open(options.old) as file, open(options.new) as other:
        old, new = json.load(file), json.load(other)
    for name, each in (("old", old), ("new", new)):
        print(
            f"{name}: {each['about']['tree']} {each['about']['commit']} {each['about']['engine']}, "
            f"{each['about']['jobs']} jobs, {len(each['about']['failed'])} failed"
        )
    found = Found()
    wanted = [job for job in old["jobs"] if any(fnmatch.fnmatch(job, glob) for glob in options.only)]
    both = [job for job in wanted if job in new["jobs"]]
    missing = [job for job in wanted if job not in new["jobs"]]
    for job in both:
        one_job(found, job, old["jobs"][job], new["jobs"][job])
    for job, texts in found.wrong.items():
        for text in texts[: options.shown]:
            print(f"DIFFERS {job}: {text}")
        if len(texts) > options.shown:
            print(f"        {job}: and {len(texts) - options.shown} more")
    for text, count in found.said.most_common(40):
        print(f"note ({count}x, first in {found.where[text]}): {text}")
    if missing and not options.common:
        print(f"MISSING in new: {len(missing)} jobs, such as {', '.join(missing[:5])}")
    bad = (
        bool(found.wrong) or (bool(missing) and not options.common) or (options.strict and bool(found.said)) or not both
    )
    print(f"{len(both)} jobs compared, {len(found.wrong)} differ" + ("" if bad else ": the same results"))
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
