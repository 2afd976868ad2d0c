"""Checks that runs were evaluated on the same samples, by digest where there is one, else by run-config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edelweiss.common import shown as quoted
from edelweiss.config import ConfigError
from edelweiss.datasets.evaluation_digest import CENTRAL, HELD_OUT
from edelweiss.lab.compare.runs import label_of, metric
from edelweiss.problems import PROBLEMS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edelweiss.lab.compare.folders import Found

LABELS = ("label", "label-preset", "uncertain", "blank")
TEST_SET = (
    "dataset",
    "data-file",
    "study",
    "group-column",
    *LABELS,
    "image-size",
    "image-fit",
    "image-colour",
    "positive-classes",
    "negative-classes",
    "test-share",
    "data-seed",
)
OF_SITES = (*TEST_SET, "partition", "concentration", "sites", "holdout-share", "personal-test", "folds")

Words = tuple[tuple[str, Any], ...]


def require_comparable(found: Sequence[Found], path: str) -> None:
    """Check that a metric is taken on the same samples in all runs of a seed.

    Raises
    ------
    ConfigError
        Naming the runs that differ from most, and in what.
    """
    part, where = (CENTRAL, "the test samples") if path.startswith("central.") else (HELD_OUT, "the held-out samples")
    words = [words_of(each.written, path) for each in found]
    most, same = _alike(found, words, part)
    wrong = []
    for each, own in zip(found, map(dict, words), strict=True):
        if tuple(own.items()) not in same:
            texts = [
                f"{key} = {quoted(own.get(key))}, {quoted(most.get(key))} in most"
                for key in {**most, **own}
                if own.get(key) != most.get(key)
            ]
            wrong.append(f"{each.path}: {where} differ from those of most runs ({'; '.join(texts)}): leave it out")
    wrong = wrong or [text for those in _by_seed(found).values() for text in _differ(those, path, part, where)]
    if wrong:
        raise ConfigError("runs to compare", wrong)


def words_of(written: Mapping[str, Any], path: str) -> Words:
    """Return the keys that decide on which samples a metric is taken."""
    problem = str(written["problem"])
    if not PROBLEMS[problem].needs_data:
        own = [(key, value) for key, value in written.items() if key.startswith(f"{problem}.")]
        return (("problem", problem), ("sites", written["sites"]), *own)
    left_out = {"holdout-share", "test-share"} if written["folds"] else set[str]()  # these play no part then
    if written["partition"] != "dirichlet":
        left_out.add("concentration")
    keys = dict.fromkeys(TEST_SET if path.startswith("central.") else OF_SITES)
    return tuple((key, written[key]) for key in keys if key in written and key not in left_out)


def _alike(found: Sequence[Found], words: Sequence[Words], part: str) -> tuple[dict[str, Any], set[Words]]:
    """Return the words of most runs, and all that mean the same samples, as the digests of some seed show."""
    most = max(words, key=words.count)
    theirs: dict[str, set[str]] = {}
    for each, own in zip(found, words, strict=True):
        if own == most and part in each.samples:
            theirs.setdefault(str(each.run.repeat), set()).add(each.samples[part])
    alike = {
        own
        for each, own in zip(found, words, strict=True)
        if each.samples.get(part) in theirs.get(str(each.run.repeat), ())
    }
    return dict(most), alike | {most}


def _by_seed(found: Sequence[Found]) -> dict[str, list[Found]]:
    """Return the runs that agree in all that is repeated."""
    seeds: dict[str, list[Found]] = {}
    for each in found:
        seeds.setdefault(str(each.run.repeat), []).append(each)
    return seeds


def _differ(those: Sequence[Found], path: str, part: str, where: str) -> list[str]:
    """Say which runs of a seed were judged on other samples than most: by their digests, or by how many there are."""
    of, digests = f".{label}" if (label := label_of(path)) else "", all(part in each.samples for each in those)
    kinds: dict[Any, list[Found]] = {}
    for each in those:
        last, of_all = each.run.outcome.last, path.partition(".")[0]
        count = tuple(metric(last, f"{of_all}.{key}{of}") for key in ("n", "positives"))
        if digests or None not in count:
            kinds.setdefault(each.samples[part] if digests else count, []).append(each)
    if len(kinds) < 2:
        return []
    most = max(kinds, key=lambda kind: len(kinds[kind]))
    like = kinds.pop(most)[0].path
    return [
        f"{each.path}: of seed {each.run.repeat['seed']}, {where} are "
        + (
            f"different from those in {like}"
            if digests
            else f"{kind[0]:g}, {kind[1]:g} of them positive, and {most[0]:g}, {most[1]:g} in {like}"
        )
        + ": the data differ; leave one out"
        for kind, runs in kinds.items()
        for each in runs
    ]
