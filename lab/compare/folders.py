"""Run folders: read, checked, and grouped by the settings that differ."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edelweiss.common import shown as quoted
from edelweiss.common.files import as_path, is_file, read_json, reason
from edelweiss.config import ConfigError, RunConfig
from edelweiss.config.resume import FREE
from edelweiss.lab.compare.grids import beyond, steps
from edelweiss.lab.compare.groups import Group
from edelweiss.lab.compare.runs import (
    DIVERGED,
    OUTCOME,
    PAUSE,
    Outcome,
    Run,
    label_of,
    lower_is_better,
    metric,
    name_of,
    shown,
)
from edelweiss.lab.run_folder import AGAIN, read_config, read_part, read_records
from edelweiss.problems.metrics import split
from edelweiss.server_app.about import FILE as ABOUT
from edelweiss.server_app.evidence import FILE as EVIDENCE
from edelweiss.server_app.run_folder import ENDED_EARLY, mark_lost

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from edelweiss.lab.compare.runs import Settings

REPEATED = ("seed", "fold")  # runs that differ in these alone are a group, and are paired by them
MEASURED = {"evaluate-every", "central-test", "evidence", "compare-with"}  # of what is trained they change nothing
ASIDE = FREE | MEASURED | {"state-dir", *REPEATED}  # makes no other setting


@dataclass(frozen=True)
class Found:
    """A run folder."""

    path: Path  # where it is
    written: Mapping[str, Any]  # every key of its config.toml that makes it another setting
    run: Run  # what came of it
    # digests of the samples that it was judged on, see `datasets.evaluation_digest`; empty for a hospital's run
    samples: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Found:
        """Read a folder; ValueError saying why nothing can be compared with it."""
        inside = sum(is_file(each / "config.toml") for each in path.iterdir()) if path.is_dir() else 0
        if inside and not is_file(path / "config.toml"):
            raise ValueError(f"not a run folder, but {inside} are in it: write {str(path / '*')!r}")
        config = read_config(path)
        written = config.written()
        repeat = {key: written[key] for key in REPEATED if key != "fold" or config.folds}
        run = Run(written, repeat, _ended(path, config))
        return cls(path, {key: value for key, value in written.items() if key not in ASIDE}, run, _samples(path))

    def over_patients(self, path: str) -> dict[str, float]:
        """Return the interval over patients that the run's evidence.json has of a metric; empty without one."""
        part, _, name = path.partition(".")
        try:
            evidence: Any = read_json(self.path / EVIDENCE)
            name, label = split(name)
            evidence = evidence["labels"][label] if label else evidence.get("mean", evidence)
            found = evidence[{"central": "common-test-set", "pooled": "pooled", "noised": "noised"}[part]][name]
            return {f"{path}, {end} over patients": float(found[end]) for end in ("low", "high")}
        except (OSError, ValueError, LookupError, TypeError):
            return {}


def _samples(path: Path) -> dict[str, str]:
    """Return a run's digests of samples; none where it did not write them."""
    try:
        digests = read_json(path / ABOUT)["samples"]
        return {part: str(digest) for part, digest in digests.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _ended(path: Path, config: RunConfig) -> Outcome:
    """Read what came of a run; ValueError where it has not ended."""
    if os.path.lexists(path / OUTCOME):
        try:
            return Outcome.read(path)
        except (OSError, ValueError) as error:
            raise ValueError(f"it is damaged, or of another version ({reason(error)}): {AGAIN}") from None
    mark_lost(path)
    said, records = read_part(path, "status.json"), read_records(path)
    status, why = said.get("status"), str(said.get("reason", ""))
    diverged = why if status in ENDED_EARLY and DIVERGED.search(why) else ""
    if not diverged and (status != "complete" or len(records) != config.rounds):
        how = {
            "running": "it still runs",
            "stopped": f"it was stopped ({why})",
            "failed": f"it failed ({why})",
            "lost": f"it is lost ({why})",
        }.get(str(status), "its status.json does not say that it is complete")
        raise ValueError(
            f"it has {len(records)} of {config.rounds} rounds; {how}: do it again, or resume it with "
            f"--run-config 'resume=\"{path}\"'"
        )
    seconds = sum(float(record.get("seconds") or 0.0) for record in records)
    return Outcome(records, diverged, seconds, str(said.get("app", "")))


def read(names: Sequence[str]) -> tuple[list[Found], list[str]]:
    """Read the run folders that match names and patterns such as ``runs/codasca-*``; returns them and notes.

    Raises
    ------
    ConfigError
        For all that cannot be used.
    """
    found: dict[str, Found] = {}
    wrong: list[str] = []
    paused: set[str] = set()
    for name in names:
        try:
            there = as_path(name)
            meant = [there] if there.exists() else sorted(map(Path, glob(str(there))))
            if not meant:
                wrong.append(f"{quoted(name)}: no such file or folder")
        except OSError as error:
            wrong.append(f"{quoted(name)}: {reason(error)}")
            continue
        for path in meant:
            try:
                real = os.path.realpath(path)  # of links in a circle, too
                if is_file(path / PAUSE) and not os.path.lexists(path / OUTCOME):
                    paused.add(real)
                elif real not in found and (path.is_dir() or len(meant) == 1):
                    found[real] = Found.read(path)
            except (ValueError, OSError) as error:
                wrong.append(f"{path}: {reason(error)}")
    if not wrong and not found:
        why = "their sweep stopped all of them early" if paused else "none of these is a run folder"
        wrong.append(why)
    if wrong:
        raise ConfigError("runs to compare", wrong)
    once: dict[str, Found] = {}
    for each in found.values():
        once[str(sorted({**each.written, **each.run.repeat}.items()))] = each
    twice = len(found) - len(once)
    notes = [f"Of runs with equal settings and seeds the last one counts: {twice} left out."] if twice else []
    if paused:
        notes.append(f"Left out: runs that their sweep stopped early ({len(paused)}).")
    # Of a sweep: a number with the seed that chose would flatter what was chosen.
    reported = [each for each in once.values() if not each.run.outcome.tuning]
    if reported and len(reported) < len(once):
        chose = len(once) - len(reported)
        notes.append(f"Left out: runs by which their sweep chose ({chose}); by themselves they can be compared.")
    return reported or list(once.values()), notes


def grouped(found: Sequence[Found]) -> tuple[list[Group], list[str]]:
    """Return groups, named by what differs, in the order of their first runs; and what the names leave out."""
    groups: dict[str, list[Found]] = {}
    for each in found:
        groups.setdefault(str(sorted(each.written.items())), []).append(each)
    settings = [those[0].written for those in groups.values()]
    labels, notes = names(settings)
    pairs = zip(labels, groups.values(), strict=True)
    return [Group(label, [each.run for each in those]) for label, those in pairs], notes


def names(settings: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Name settings by what differs: the algorithm, and what differs among those of one algorithm.

    What differs from algorithm to algorithm alone, but for their own tables, is a note.
    """
    keys = list(dict.fromkeys(key for each in settings for key in each if key != "algorithm"))
    algorithms = list(dict.fromkeys(str(each["algorithm"]) for each in settings))

    def differing(among: Sequence[Mapping[str, Any]]) -> list[str]:
        return [key for key in keys if len({each[key] for each in among if key in each}) > 1]

    within = {name: differing([each for each in settings if each["algorithm"] == name]) for name in algorithms}
    own = dict.fromkeys(key for found in within.values() for key in found)
    labels, others = [], {}
    for each in settings:
        parts = [str(each["algorithm"])] if len(algorithms) > 1 or not own else []
        parts += [shown({key: each[key]}) for key in own if key in within[str(each["algorithm"])]]
        labels.append(", ".join(parts))
    for name in algorithms if len(algorithms) > 1 else ():
        first = next(each for each in settings if each["algorithm"] == name)
        rest = {key: first[key] for key in differing(settings) if key in first and key not in own and "." not in key}
        others[name] = shown(rest)
    differ = [f"{name} with {text}" for name, text in others.items() if text]
    return labels, [f"The algorithms differ in more than their own keys: {'; '.join(differ)}."] if differ else []


def edges(found: Sequence[Found], path: str) -> Iterator[str]:
    """Say where the best step size lies on the edge of its grid, by the held-out samples if there are any."""
    held_out = f"pooled.{name_of(path)}" + (f".{label}" if (label := label_of(path)) else "")
    families: dict[str, list[Found]] = {}
    for each in found:
        rest = {key: value for key, value in each.written.items() if key not in _own_steps(each)}
        families.setdefault(str(sorted(rest.items())), []).append(each)
    for family in families.values():
        points = {str(point): point for each in family if (point := _own_steps(each))}
        if len(points) < 2:
            continue
        ended = [each.run.outcome.last for each in family if not each.run.outcome.diverged]
        by = held_out if all(metric(last, held_out) is not None for last in ended) else path
        means = {}
        for text, point in points.items():
            group = Group("", [each.run for each in family if _own_steps(each) == point])
            if values := group.values(by):
                means[text] = sum(values) / len(values) * (-1 if lower_is_better(by) else 1)
        if not means:
            continue
        best = points[max(means, key=lambda text: means[text])]
        if further := beyond(list(points.values()), best):
            moved = {key: value for key, value in further.items() if best[key] != value}
            name = family[0].written["algorithm"]
            yield (
                f"{name}: the best of {len(points)} step sizes by {by}, {shown({key: best[key] for key in moved})}, "
                f"lies on the edge of its grid: also try {shown(moved)}."
            )


def _own_steps(each: Found) -> Settings:
    own = f"{each.written['algorithm']}."
    return steps({key: value for key, value in each.written.items() if key.startswith(own)})
